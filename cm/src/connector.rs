//! The first steps of the active side, one by one.

use std::net::SocketAddr;
use std::sync::Arc;

use verbs::Deadline;

use crate::connect::Resolving;
use crate::error::Error;
use crate::id::{Home, Id};
use crate::params::{IdOptions, connected};
use crate::resolve::Search;
use crate::source::{EventSource, Lane, OwnChannel};

/// An id that is going to connect, and knows nothing of its peer yet: what [`Resolving::start`] makes first.
///
/// For who wants to have the local port before the peer is looked for, or to time each step.
///
/// ```no_run
/// # fn main() -> Result<(), cm::Error> {
/// use std::time::Duration;
///
/// use cm::{Connector, Deadline, IdOptions};
///
/// let connector = Connector::new(&IdOptions::default())?;
/// let local = connector.bind("192.0.2.1:0".parse().expect("an address"))?;
/// println!("the connection will come from port {}", local.port());
/// let peer = "192.0.2.2:7204".parse().expect("an address");
/// let resolved = connector.resolve(peer, Deadline::after(Duration::from_secs(5)))?.wait()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Connector<S = OwnChannel> {
    // Before the channel that its events arrive on.
    id: Id,
    events: S,
}

impl Connector<OwnChannel> {
    /// Makes an id with a channel of its own.
    ///
    /// # Errors
    /// [`Error::NoConnectionManager`], [`verbs::ErrorKind::InvalidArgument`] for a port space of datagrams, or the failed
    /// call, as for an option that the kernel does not know.
    #[doc(alias = "rdma_create_id")]
    pub fn new(options: &IdOptions) -> Result<Self, Error> {
        let events = OwnChannel::new()?;
        let home = events.home();
        Self::begin(events, &home, None, options)
    }
}

impl<S: EventSource> Connector<S> {
    pub(crate) fn begin(
        events: S,
        home: &Home,
        lane: Option<Arc<Lane>>,
        options: &IdOptions,
    ) -> Result<Self, Error> {
        let id = Id::new(connected(options.port_space, "rdma_create_id")?, home, lane)?;
        id.set_options(options)?;
        Ok(Self { id, events })
    }

    /// Takes the local address to connect from, and gives it with the port that the system chose for port 0.
    ///
    /// # Errors
    /// [`Error::NoSuchAddress`] when no RDMA device has the address, or the failed call: EINVAL when there is one already,
    /// with advice when the port is taken (EADDRINUSE) or needs a privilege (EACCES).
    #[doc(alias = "rdma_bind_addr")]
    pub fn bind(&self, source: SocketAddr) -> Result<SocketAddr, Error> {
        self.id.bind(source)?;
        // No event rewrites the addresses before the peer is looked for.
        Ok(self.id.addresses().0.unwrap_or(source))
    }

    /// Starts to look for a device and a route to `peer`. All of it ends at `deadline`.
    ///
    /// # Errors
    /// [`Error::AddressNotResolved`] when no device leads there, or the failed call.
    #[doc(alias = "rdma_resolve_addr")]
    pub fn resolve(self, peer: SocketAddr, deadline: Deadline) -> Result<Resolving<S>, Error> {
        let search = Search::of(self.id, self.events, None, peer, deadline)?;
        Ok(Resolving::of(search))
    }
}
