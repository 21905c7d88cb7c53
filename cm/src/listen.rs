//! The passive side: listening, and what to do with a request.

use std::marker::PhantomData;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use verbs::{Context, Deadline, QpState, QpType, QueuePair, TransportType, sys};

use crate::connection::{Connection, Side};
use crate::error::Error;
use crate::event::EventKind;
use crate::id::{Home, Id, check};
use crate::incoming::IncomingId;
use crate::params::{ConnParams, Ece, IdOptions, Message, connected};
use crate::source::{Arrived, EventSource, Lane, OwnChannel, Routed};

/// How to listen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListenOptions {
    /// Options of the id.
    pub id: IdOptions,
    /// How many requests may wait; 0, the default, and more than the system's maximum mean that maximum
    /// (`net.rdma_ucm.max_backlog`, usually 1024).
    ///
    /// What comes on top is dropped by the kernel, which tells neither side: the client's kernel asks
    /// again after some seconds. A [`Dispatcher`](crate::Dispatcher) rejects it at once, because it
    /// empties the kernel's queue all the time.
    pub backlog: u16,
}

/// A port that peers can connect to. Dropping it rejects the requests that wait.
#[derive(Debug)]
pub struct Listener<S = OwnChannel> {
    // Before the channel that its events arrive on.
    id: Id,
    events: S,
    local: SocketAddr,
}

impl Listener<OwnChannel> {
    /// Listens at `addr`. A wildcard address listens on every device; port 0 lets the system choose.
    ///
    /// # Errors
    /// [`Error::NoSuchAddress`] when no RDMA device has the address, or the failed call, with advice
    /// when the port is taken (EADDRINUSE, or EADDRNOTAVAIL between a wildcard and one address) or needs a privilege (EACCES).
    #[doc(alias = "rdma_listen")]
    #[doc(alias = "rdma_bind_addr")]
    pub fn bind(addr: SocketAddr, options: &ListenOptions) -> Result<Self, Error> {
        let events = OwnChannel::new()?;
        let home = events.home();
        Self::begin(events, &home, None, addr, options)
    }
}

impl<S: EventSource> Listener<S> {
    pub(crate) fn begin(
        events: S,
        home: &Home,
        lane: Option<Arc<Lane>>,
        addr: SocketAddr,
        options: &ListenOptions,
    ) -> Result<Self, Error> {
        let space = connected(options.id.port_space, "rdma_create_id")?;
        let id = Id::new(space, home, lane)?;
        id.set_options(&options.id)?;
        id.bind(addr)?;
        id.listen(addr, options.backlog)?;
        // A listener's own addresses are not rewritten by events.
        let local = id.addresses().0.unwrap_or(addr);
        Ok(Self { id, events, local })
    }

    /// The address it listens at, with the port that the system chose.
    #[doc(alias = "rdma_get_src_port")]
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// The next request if there is one; never blocks.
    ///
    /// # Errors
    /// [`Error::DeviceRemoved`], or the failed call.
    pub fn try_next_request(&self) -> Result<Option<Request<S>>, Error> {
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
    pub fn next_request(&self, deadline: Deadline) -> Result<Request<S>, Error> {
        while let Some(arrived) = self.events.next(deadline)? {
            if let Some(request) = self.request(arrived)? {
                return Ok(request);
            }
        }
        Err(Error::TimedOut {
            what: format!("waiting for a connection request at {}", self.local),
        })
    }

    fn request(&self, arrived: Arrived) -> Result<Option<Request<S>>, Error> {
        let event = arrived.event;
        let (kind, status) = (event.kind(), event.status());
        if kind == EventKind::DEVICE_REMOVAL && self.id.is(arrived.accounted) {
            return Err(Error::DeviceRemoved { peer: self.local });
        }
        let (Some(incoming), Some(offer)) = (arrived.incoming, event.connection()) else {
            tracing::debug!(%kind, status, "event ignored while listening");
            return Ok(None);
        };
        // The kernel gives the peer's offer from our point of view.
        let (responder_resources, initiator_depth) =
            (offer.responder_resources, offer.initiator_depth);
        let private_data = event.into_private_data();
        // A new id gets no event before it is accepted, so its fields stand still.
        let Some(context) = incoming.id().context()? else {
            return Ok(None);
        };
        let (local, Some(peer)) = incoming.addresses(&context, self.local) else {
            return Ok(None);
        };
        Ok(Some(Request {
            incoming,
            context,
            private_data,
            responder_resources,
            initiator_depth,
            peer,
            local,
            events: PhantomData,
        }))
    }
}

impl Listener<Routed> {
    /// How many requests were rejected because [`ListenOptions::backlog`] of them waited already.
    pub fn overflowed(&self) -> u64 {
        self.events.overflowed()
    }
}

impl AsFd for Listener<OwnChannel> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

impl AsFd for Listener<Routed> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.bell()
    }
}

/// Somebody wants to connect. Dropped undecided, the request is rejected.
///
/// What it says is borrowed from it, and copied by who wants to keep it:
///
/// ```compile_fail,E0505
/// fn answer(request: cm::Request) {
///     let said = request.private_data();
///     let _ = request.reject(b"no");
///     println!("{said:?}");
/// }
/// ```
#[derive(Debug)]
#[must_use = "dropping it rejects the request"]
pub struct Request<S = OwnChannel> {
    incoming: IncomingId,
    context: Context,
    private_data: Vec<u8>,
    responder_resources: u8,
    initiator_depth: u8,
    peer: SocketAddr,
    local: Option<SocketAddr>,
    events: PhantomData<S>,
}

impl<S: EventSource> Request<S> {
    /// The device that the request came in on; the queue pair must be of it.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The private data of the request. On InfiniBand and RoCE always 56 bytes, padded with zeros,
    /// whatever the peer sent.
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

    /// Reads and atomics that the peer wants in flight towards us.
    pub fn responder_resources(&self) -> u8 {
        self.responder_resources
    }

    /// Reads and atomics that the peer lets us have in flight.
    pub fn initiator_depth(&self) -> u8 {
        self.initiator_depth
    }

    /// Brings a new queue pair to INIT, so that receives can be posted before accepting.
    ///
    /// # Errors
    /// [`Error::GaveUp`]: take the next request. [`Error::DeviceRemoved`], or the failed call.
    pub fn init_qp(&self, qp: &QueuePair) -> Result<(), Error> {
        let initialised = self.incoming.id().init_qp(qp);
        initialised.map_err(|error| error.or_given_up(self.peer).or_removed(self.peer))
    }

    /// The extended connection capabilities that the peer told; all zero when none.
    ///
    /// # Errors
    /// The failed call.
    #[doc(alias = "rdma_get_remote_ece")]
    pub fn remote_ece(&self) -> Result<Ece, Error> {
        self.incoming.id().remote_ece()
    }

    /// Tells the peer these extended connection capabilities with the acceptance.
    ///
    /// # Errors
    /// The failed call.
    #[doc(alias = "rdma_set_local_ece")]
    pub fn set_local_ece(&mut self, ece: Ece) -> Result<(), Error> {
        self.incoming.id_mut().set_local_ece(ece)
    }

    /// Accepts with `qp`, which [`init_qp`](Self::init_qp) has prepared.
    ///
    /// Returns at once; [`Connection::wait_established`] waits until the peer has confirmed. On
    /// failure the request is rejected.
    ///
    /// # Errors
    /// [`Error::PrivateDataTooLong`] above 196 bytes (iWARP 255), [`Error::GaveUp`], [`Error::DeviceRemoved`], or the failed call.
    #[doc(alias = "rdma_accept")]
    #[doc(alias = "rdma_migrate_id")]
    pub fn accept(
        self,
        qp: impl Into<Arc<QueuePair>>,
        params: &ConnParams,
        private_data: &[u8],
    ) -> Result<Connection<S>, Error> {
        let peer = self.peer;
        let accepted = self.accept_with(qp.into(), params, private_data);
        accepted.map_err(|error| error.or_given_up(peer).or_removed(peer))
    }

    fn accept_with(
        mut self,
        qp: Arc<QueuePair>,
        params: &ConnParams,
        private_data: &[u8],
    ) -> Result<Connection<S>, Error> {
        let verb = "rdma_accept";
        let transport = self.context.transport();
        check_queue_pair(&qp, &self.context, verb)?;
        Message::Accept.check_private_data(transport, private_data)?;
        params.check(verb)?;
        let limits = self.context.attributes();
        let params = params.limited(
            self.responder_resources.min(limits.max_qp_rd_atom()),
            self.initiator_depth.min(limits.max_qp_init_rd_atom()),
        );
        let whose = both_ends(self.peer, self.local, &qp);
        let events = S::of_accepted(&mut self.incoming).map_err(|e| e.of_connection(whose))?;
        let id = self.incoming.id();
        let first_packet = match transport {
            TransportType::IWARP => None,
            _ => {
                let readied = id.ready_qp(&qp, &params, None);
                Some(readied.map_err(|e| e.of_connection(whose))?)
            }
        };
        let mut c = params.to_c(qp.number(), private_data);
        id.origin().check(verb)?;
        // SAFETY: the id came with a request and has a device, parameters and private data are
        // live; the queue pair is named by its number, as the id has none of its own.
        let ret = unsafe { sys::rdma_accept(id.raw(), &mut c) };
        check(verb, ret).map_err(|e| {
            let reset = e.errno() == Some(libc::ECONNRESET);
            let e = if reset {
                e.with_hint("the peer has given up before it was accepted: take the next request")
            } else {
                e
            };
            Error::from(e).of_connection(whose)
        })?;
        Ok(Connection::new(
            qp,
            self.incoming.into_id(),
            events,
            Side::Passive { first_packet },
            params,
            self.peer,
            self.local,
        ))
    }

    /// Says no, with up to 148 bytes (iWARP 255) for the peer to read. That the peer has given up
    /// meanwhile is no error.
    ///
    /// # Errors
    /// [`Error::PrivateDataTooLong`], [`Error::DeviceRemoved`] (the peer is told by the kernel), or the failed call. The
    /// request is gone either way.
    #[doc(alias = "rdma_reject")]
    pub fn reject(self, private_data: &[u8]) -> Result<(), Error> {
        Message::Reject.check_private_data(self.context.transport(), private_data)?;
        let peer = self.peer;
        let rejected = self.incoming.reject(private_data);
        rejected.map_err(|error| error.or_removed(peer))
    }

    /// Says no because the peer's extended connection capabilities do not fit, with up to 148 bytes
    /// for it to read; it is told [`RejectReason::VENDOR_OPTION`](crate::RejectReason::VENDOR_OPTION).
    ///
    /// # Errors
    /// As [`reject`](Self::reject).
    #[doc(alias = "rdma_reject_ece")]
    pub fn reject_ece(self, private_data: &[u8]) -> Result<(), Error> {
        Message::Reject.check_private_data(self.context.transport(), private_data)?;
        let peer = self.peer;
        let rejected = self.incoming.reject_ece(private_data);
        rejected.map_err(|error| error.or_removed(peer))
    }
}

/// Whose connection it is that something failed for.
pub(crate) fn both_ends(
    peer: SocketAddr,
    local: Option<SocketAddr>,
    qp: &QueuePair,
) -> impl Fn() -> String + Copy {
    let number = qp.number();
    move || match local {
        Some(local) => format!("peer {peer}, local address {local}, queue pair {number}"),
        None => format!("peer {peer}, queue pair {number}"),
    }
}

/// A queue pair must be reliable and handed over in INIT, and be of the device that the connection goes through.
pub(crate) fn check_queue_pair(
    qp: &QueuePair,
    context: &Context,
    verb: &'static str,
) -> Result<(), Error> {
    let wrong = if matches!(qp.qp_type(), QpType::UD | QpType::UC) {
        // The device would refuse what the connection manager knows of it, after the peer's answer.
        format!(
            "a {} queue pair cannot be connected: make one of type RC",
            qp.qp_type()
        )
    } else if qp.state() != QpState::INIT {
        format!(
            "the queue pair is in state {}, not INIT; call init_qp first",
            qp.state()
        )
    } else if qp.context() != context {
        format!(
            "the queue pair is of device {}, the connection goes through {}",
            qp.context().name(),
            context.name()
        )
    } else {
        return Ok(());
    };
    Err(verbs::Error::refused(verb, verbs::ErrorKind::InvalidArgument, wrong).into())
}
