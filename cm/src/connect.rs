//! The active side: from an address to a connection.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use verbs::{Context, Deadline, QueuePair, sys};

use crate::connection::{Connection, Side};
use crate::error::Error;
use crate::id::{Home, check};
use crate::listen::{both_ends, check_queue_pair};
use crate::params::{ConnParams, Ece, IdOptions, Message, connected};
use crate::resolve::{Found, Search};
use crate::source::{EventSource, Lane, OwnChannel};

/// How the active side finds its way.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectOptions {
    /// Options of the id.
    pub id: IdOptions,
    /// The local address (and port, 0 for any) to connect from; chosen by the system if `None`.
    pub source: Option<SocketAddr>,
}

/// What a step that does not block leaves behind.
#[derive(Debug)]
pub enum Progress<P, D> {
    /// Not there yet: try again when the descriptor is readable.
    Pending(P),
    /// Done.
    Done(D),
}

impl<P, D> Progress<P, D> {
    /// The same step of somebody who wraps the one that made it.
    pub(crate) fn map<Q, E>(
        self,
        pending: impl FnOnce(P) -> Q,
        done: impl FnOnce(D) -> E,
    ) -> Progress<Q, E> {
        match self {
            Self::Pending(left) => Progress::Pending(pending(left)),
            Self::Done(got) => Progress::Done(done(got)),
        }
    }
}

/// An address and route being resolved.
#[derive(Debug)]
#[must_use = "dropping it gives the attempt up"]
pub struct Resolving<S = OwnChannel>(Search<S>);

impl Resolving<OwnChannel> {
    /// Starts to look for a device and a route to `peer`. All of it ends at `deadline`.
    ///
    /// A link-local IPv6 address needs its scope, or a [`source`](ConnectOptions::source) that has it.
    ///
    /// # Errors
    /// [`Error::NoConnectionManager`], [`Error::AddressNotResolved`] when no device leads there, or
    /// the failed call.
    #[doc(alias = "rdma_resolve_addr")]
    pub fn start(
        peer: SocketAddr,
        options: &ConnectOptions,
        deadline: Deadline,
    ) -> Result<Self, Error> {
        let events = OwnChannel::new()?;
        let home = events.home();
        Self::begin(events, &home, None, peer, options, deadline)
    }
}

impl<S: EventSource> Resolving<S> {
    pub(crate) fn begin(
        events: S,
        home: &Home,
        lane: Option<Arc<Lane>>,
        peer: SocketAddr,
        options: &ConnectOptions,
        deadline: Deadline,
    ) -> Result<Self, Error> {
        let space = connected(options.id.port_space, "rdma_create_id")?;
        Search::begin(events, home, lane, space, peer, options, deadline).map(Self)
    }

    pub(crate) fn of(search: Search<S>) -> Self {
        Self(search)
    }

    /// Whether the peer's address is known, as far as the events taken tell: what is looked for now is the route.
    pub fn has_address(&self) -> bool {
        self.0.has_address()
    }

    /// How long an acknowledgement is waited for: 4.096 µs · 2^`code`, up to 31. Asks the connection
    /// manager for it, which tells the peer; [`ConnParams::ack_timeout`] is our own queue pair's.
    ///
    /// Before the first [`try_advance`](Self::try_advance) or [`wait`](Self::wait): later it has no
    /// effect on the route.
    ///
    /// # Errors
    /// [`verbs::ErrorKind::Unsupported`] from a kernel that does not know the option (before 5.2): the
    /// attempt goes on without it all the same. The failed call.
    #[doc(alias = "RDMA_OPTION_ID_ACK_TIMEOUT")]
    pub fn set_ack_timeout(&self, code: u8) -> Result<(), Error> {
        if code > 31 {
            return Err(verbs::Error::refused(
                "rdma_set_option",
                verbs::ErrorKind::InvalidArgument,
                format!("ack timeout {code} is above its limit 31"),
            )
            .into());
        }
        self.0.id.set_ack_timeout(code)
    }

    /// Goes on as far as possible without waiting.
    ///
    /// # Errors
    /// [`Error::AddressNotResolved`], [`Error::RouteNotResolved`], or [`Error::TimedOut`] once the
    /// deadline has passed.
    pub fn try_advance(self) -> Result<Progress<Self, Resolved<S>>, Error> {
        Ok(self.0.try_advance()?.map(Self, Resolved))
    }

    /// Waits until address and route are known, or the deadline has passed.
    ///
    /// # Errors
    /// As [`try_advance`](Self::try_advance).
    pub fn wait(self) -> Result<Resolved<S>, Error> {
        self.0.wait().map(Resolved)
    }
}

impl AsFd for Resolving<OwnChannel> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.events.as_fd()
    }
}

/// A device and a route to the peer: what it takes to connect.
#[derive(Debug)]
pub struct Resolved<S = OwnChannel>(Found<S>);

impl<S: EventSource> Resolved<S> {
    /// The device that leads to the peer; the queue pair must be of it.
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// The peer's address.
    pub fn peer_addr(&self) -> SocketAddr {
        self.0.peer
    }

    /// The local address the connection will come from.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.0.local
    }

    /// Brings a new queue pair to INIT, so that receives can be posted before connecting.
    ///
    /// # Errors
    /// [`Error::DeviceRemoved`], or the failed call.
    pub fn init_qp(&self, qp: &QueuePair) -> Result<(), Error> {
        let initialised = self.0.id.init_qp(qp);
        initialised.map_err(|error| error.or_removed(self.0.peer))
    }

    /// Tells the peer these extended connection capabilities with the request.
    ///
    /// # Errors
    /// The failed call.
    #[doc(alias = "rdma_set_local_ece")]
    pub fn set_local_ece(&mut self, ece: Ece) -> Result<(), Error> {
        self.0.id.set_local_ece(ece)
    }

    /// Asks the peer for a connection of `qp`, which [`init_qp`](Self::init_qp) has prepared.
    ///
    /// Returns at once; [`Connection::wait_established`] waits for the answer.
    ///
    /// # Errors
    /// [`Error::PrivateDataTooLong`] above 56 bytes (iWARP 255), [`Error::DeviceRemoved`], or the failed call.
    #[doc(alias = "rdma_connect")]
    pub fn connect(
        self,
        qp: impl Into<Arc<QueuePair>>,
        params: &ConnParams,
        private_data: &[u8],
    ) -> Result<Connection<S>, Error> {
        let verb = "rdma_connect";
        let Found {
            id,
            events,
            context,
            peer,
            local,
        } = self.0;
        let qp = qp.into();
        check_queue_pair(&qp, &context, verb)?;
        Message::Request.check_private_data(context.transport(), private_data)?;
        params.check(verb)?;
        let limits = context.attributes();
        let params = params.limited(limits.max_qp_rd_atom(), limits.max_qp_init_rd_atom());
        let mut c = params.to_c(qp.number(), private_data);
        id.origin().check(verb)?;
        // SAFETY: the id has device and route; parameters and private data are live.
        let ret = unsafe { sys::rdma_connect(id.raw(), &mut c) };
        check(verb, ret).map_err(|e| {
            // A device that opens its TCP connection in the call knows at once.
            if e.errno() == Some(libc::ECONNREFUSED) {
                return Error::NoListener { peer };
            }
            let whose = both_ends(peer, local, &qp);
            Error::from(e).of_connection(whose).or_removed(peer)
        })?;
        Ok(Connection::new(
            qp,
            id,
            events,
            Side::Active,
            params,
            peer,
            local,
        ))
    }
}
