//! The answering side: telling who asks which queue pair takes datagrams.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use verbs::{Context, Deadline, QueuePair, sys};

use super::{check_receives, datagrams, ready};
use crate::error::Error;
use crate::event::EventKind;
use crate::id::{Home, Id, check};
use crate::incoming::IncomingId;
use crate::listen::ListenOptions;
use crate::params::{ConnParams, Message};
use crate::source::{Arrived, EventSource, Lane, OwnChannel, Routed};

/// A port at which peers ask for a queue pair that takes datagrams.
#[derive(Debug)]
pub struct DatagramListener<S = OwnChannel> {
    // Before the channel that its events arrive on.
    id: Id,
    events: S,
    local: SocketAddr,
}

impl DatagramListener<OwnChannel> {
    /// Listens at `addr`. A wildcard address listens on every device; port 0 lets the system choose.
    ///
    /// # Errors
    /// As [`Listener::bind`](crate::Listener::bind).
    #[doc(alias = "rdma_listen")]
    pub fn bind(addr: SocketAddr, options: &ListenOptions) -> Result<Self, Error> {
        let events = OwnChannel::new()?;
        let home = events.home();
        Self::begin(events, &home, None, addr, options)
    }
}

impl<S: EventSource> DatagramListener<S> {
    pub(crate) fn begin(
        events: S,
        home: &Home,
        lane: Option<Arc<Lane>>,
        addr: SocketAddr,
        options: &ListenOptions,
    ) -> Result<Self, Error> {
        let id = Id::new(datagrams(options.id.port_space)?, home, lane)?;
        id.set_options(&options.id)?;
        id.bind(addr)?;
        id.listen(addr, options.backlog)?;
        // A listener's own addresses are not rewritten by events.
        let local = id.addresses().0.unwrap_or(addr);
        Ok(Self { id, events, local })
    }

    /// The address it listens at, with the port that the system chose.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// The next request if there is one; never blocks.
    ///
    /// # Errors
    /// [`Error::DeviceRemoved`], or the failed call.
    pub fn try_next_request(&self) -> Result<Option<DatagramRequest>, Error> {
        while let Some(arrived) = self.events.try_next()? {
            if let Some(request) = self.request(arrived)? {
                return Ok(Some(request));
            }
        }
        Ok(None)
    }

    /// Waits for the next request.
    ///
    /// # Errors
    /// [`Error::TimedOut`] once the deadline has passed, otherwise as
    /// [`try_next_request`](Self::try_next_request).
    pub fn next_request(&self, deadline: Deadline) -> Result<DatagramRequest, Error> {
        while let Some(arrived) = self.events.next(deadline)? {
            if let Some(request) = self.request(arrived)? {
                return Ok(request);
            }
        }
        Err(Error::TimedOut {
            what: format!("waiting for a datagram request at {}", self.local),
        })
    }

    fn request(&self, arrived: Arrived) -> Result<Option<DatagramRequest>, Error> {
        let (kind, status) = (arrived.event.kind(), arrived.event.status());
        if kind == EventKind::DEVICE_REMOVAL && self.id.is(arrived.accounted) {
            return Err(Error::DeviceRemoved { peer: self.local });
        }
        let Some(incoming) = arrived.incoming else {
            tracing::debug!(%kind, status, "event ignored while listening");
            return Ok(None);
        };
        // A new id gets no event before it is accepted, so its fields stand still.
        let Some(context) = incoming.id().context()? else {
            return Ok(None);
        };
        let (local, Some(peer)) = incoming.addresses(&context, self.local) else {
            return Ok(None);
        };
        Ok(Some(DatagramRequest {
            incoming,
            context,
            private_data: arrived.event.into_private_data(),
            peer,
            local,
        }))
    }
}

impl AsFd for DatagramListener<OwnChannel> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

impl AsFd for DatagramListener<Routed> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.bell()
    }
}

/// Somebody asks for a queue pair that takes datagrams. Dropped undecided, the request is refused.
///
/// The request does not say how the peer itself is reached: answer its first datagram, with
/// [`AddressHandle::of_sender`](verbs::AddressHandle::of_sender).
#[derive(Debug)]
#[must_use = "dropping it refuses the request"]
pub struct DatagramRequest {
    incoming: IncomingId,
    context: Context,
    private_data: Vec<u8>,
    peer: SocketAddr,
    local: Option<SocketAddr>,
}

impl DatagramRequest {
    /// The device that the request came in on; the queue pair must be of it.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The private data of the request: 180 bytes, padded with zeros, whatever the peer sent.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Who asks.
    pub fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    /// The local address asked for.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.local
    }

    /// Brings a new UD queue pair to RTS, with the key that [`accept`](Self::accept) tells.
    ///
    /// # Errors
    /// [`verbs::ErrorKind::InvalidArgument`] for another type than UD or another device, or the
    /// failed call.
    pub fn init_qp(&self, qp: &QueuePair) -> Result<(), Error> {
        ready(self.incoming.id(), qp, &self.context)
    }

    /// Tells the peer the number of `qp` and the key of the port space (0x01234567 for
    /// [`PortSpace::UDP`](crate::PortSpace::UDP)), which [`init_qp`](Self::init_qp) has given it. No
    /// other key can be told: for IP addresses the kernel takes none. One queue pair may answer any number of requests.
    ///
    /// Nothing of the request is left: datagrams have no connection, and nobody is told when the
    /// peer goes away. Should the answer get lost the peer asks again, which is a new request.
    ///
    /// # Errors
    /// [`Error::PrivateDataTooLong`] above 136 bytes, [`verbs::ErrorKind::InvalidArgument`] for a
    /// queue pair that does not receive yet, or the failed call. The request is refused then.
    #[doc(alias = "rdma_accept")]
    pub fn accept(self, qp: &QueuePair, private_data: &[u8]) -> Result<(), Error> {
        let verb = "rdma_accept";
        check_receives(qp, &self.context, verb)?;
        Message::DatagramAccept.check_private_data(self.context.transport(), private_data)?;
        let mut c = ConnParams::default().to_c(qp.number(), private_data);
        let id = self.incoming.id();
        id.origin().check(verb)?;
        // SAFETY: the id came with a request and has a device, parameters and private data are live;
        // the queue pair is named by its number, as the id has none of its own.
        let ret = unsafe { sys::rdma_accept(id.raw(), &mut c) };
        check(verb, ret).map_err(|e| e.with_detail(format!("peer {}", self.peer)))?;
        drop(self.incoming.into_id());
        Ok(())
    }

    /// Says no, with up to 136 bytes for the peer to read. That the peer has given up meanwhile is no
    /// error.
    ///
    /// # Errors
    /// [`Error::PrivateDataTooLong`], or the failed call. The request is gone either way.
    #[doc(alias = "rdma_reject")]
    pub fn reject(self, private_data: &[u8]) -> Result<(), Error> {
        Message::DatagramReject.check_private_data(self.context.transport(), private_data)?;
        self.incoming.reject(private_data)
    }
}
