//! The active side: from an address to a connection.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use verbs::{Context, Deadline, QueuePair, sys};

use crate::connection::{Connection, Side};
use crate::error::Error;
use crate::event::{Event, EventKind};
use crate::id::{Home, Id, check};
use crate::listen::check_queue_pair;
use crate::params::{ConnParams, Ece, IdOptions, Message, connected};
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

/// An address and route being resolved.
#[derive(Debug)]
#[must_use = "dropping it gives the attempt up"]
pub struct Resolving<S = OwnChannel> {
    // Before the channel that its events arrive on.
    id: Id,
    events: S,
    peer: SocketAddr,
    deadline: Deadline,
}

impl Resolving<OwnChannel> {
    /// Starts to look for a device and a route to `peer`. All of it ends at `deadline`.
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
        let id = Id::new(space, home, lane)?;
        id.set_options(&options.id)?;
        id.resolve_addr(options.source, peer, deadline)?;
        Ok(Self {
            id,
            events,
            peer,
            deadline,
        })
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
        self.id.set_ack_timeout(code)
    }

    /// Goes on as far as possible without waiting.
    ///
    /// # Errors
    /// [`Error::AddressNotResolved`], [`Error::RouteNotResolved`], or [`Error::TimedOut`] once the
    /// deadline has passed.
    pub fn try_advance(self) -> Result<Progress<Self, Resolved<S>>, Error> {
        while let Some(arrived) = self.events.try_next()? {
            if self.step(&arrived.event)? {
                return Ok(Progress::Done(self.resolved()?));
            }
        }
        if self.deadline.has_passed() {
            return Err(self.timed_out());
        }
        Ok(Progress::Pending(self))
    }

    /// Waits until address and route are known, or the deadline has passed.
    ///
    /// # Errors
    /// As [`try_advance`](Self::try_advance).
    pub fn wait(self) -> Result<Resolved<S>, Error> {
        loop {
            let arrived = self.events.next(self.deadline)?;
            let Some(arrived) = arrived else {
                return Err(self.timed_out());
            };
            if self.step(&arrived.event)? {
                return self.resolved();
            }
        }
    }

    /// Takes one event; `true` when everything is resolved.
    fn step(&self, event: &Event) -> Result<bool, Error> {
        let (peer, errno) = (self.peer, event.errno());
        match event.kind() {
            EventKind::ADDR_RESOLVED => {
                // SAFETY: the address has just been resolved, so the id has a device.
                let started = unsafe { self.id.resolve_route(self.deadline) };
                // A loopback address is given any device, which then has no interface for it.
                started.map_err(|error| match &error {
                    Error::Call(call) if call.errno() == Some(libc::ENODEV) => {
                        Error::RouteNotResolved {
                            peer,
                            errno: libc::ENODEV,
                        }
                    }
                    _ => error,
                })?;
                Ok(false)
            }
            EventKind::ROUTE_RESOLVED => Ok(true),
            EventKind::ADDR_ERROR => Err(Error::AddressNotResolved { peer, errno }),
            EventKind::ROUTE_ERROR => Err(Error::RouteNotResolved { peer, errno }),
            EventKind::DEVICE_REMOVAL => Err(Error::DeviceRemoved { peer }),
            kind => {
                tracing::debug!(%kind, status = event.status(), "event ignored while resolving");
                Ok(false)
            }
        }
    }

    fn resolved(self) -> Result<Resolved<S>, Error> {
        let peer = self.peer;
        // Both events are in, so none is pending that would write these fields.
        let context = self.id.context()?.ok_or(Error::AddressNotResolved {
            peer,
            errno: libc::ENODEV,
        })?;
        let (local, _) = self.id.addresses();
        Ok(Resolved {
            id: self.id,
            events: self.events,
            context,
            peer,
            local,
        })
    }

    fn timed_out(&self) -> Error {
        Error::TimedOut {
            what: format!("resolving the address or route of {}", self.peer),
        }
    }
}

impl AsFd for Resolving<OwnChannel> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

/// A device and a route to the peer: what it takes to connect.
#[derive(Debug)]
pub struct Resolved<S = OwnChannel> {
    // Before the channel that its events arrive on.
    id: Id,
    events: S,
    context: Context,
    peer: SocketAddr,
    local: Option<SocketAddr>,
}

impl<S: EventSource> Resolved<S> {
    /// The device that leads to the peer; the queue pair must be of it.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The peer's address.
    pub fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    /// The local address the connection will come from.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.local
    }

    /// Brings a new queue pair to INIT, so that receives can be posted before connecting.
    ///
    /// # Errors
    /// The failed call.
    pub fn init_qp(&self, qp: &QueuePair) -> Result<(), Error> {
        self.id.init_qp(qp)
    }

    /// Tells the peer these extended connection capabilities with the request.
    ///
    /// # Errors
    /// The failed call.
    #[doc(alias = "rdma_set_local_ece")]
    pub fn set_local_ece(&self, ece: Ece) -> Result<(), Error> {
        self.id.set_local_ece(ece)
    }

    /// Asks the peer for a connection of `qp`, which [`init_qp`](Self::init_qp) has prepared.
    ///
    /// Returns at once; [`Connection::wait_established`] waits for the answer.
    ///
    /// # Errors
    /// [`Error::PrivateDataTooLong`] above 56 bytes (iWARP 255), or the failed call.
    #[doc(alias = "rdma_connect")]
    pub fn connect(
        self,
        qp: QueuePair,
        params: &ConnParams,
        private_data: &[u8],
    ) -> Result<Connection<S>, Error> {
        let verb = "rdma_connect";
        check_queue_pair(&qp, &self.context, verb)?;
        Message::Request.check_private_data(self.context.transport(), private_data)?;
        params.check(verb)?;
        let limits = self.context.attributes();
        let params = params.limited(limits.max_qp_rd_atom(), limits.max_qp_init_rd_atom());
        let mut c = params.to_c(qp.number(), private_data);
        self.id.origin().check(verb)?;
        // SAFETY: the id has device and route; parameters and private data are live.
        let ret = unsafe { sys::rdma_connect(self.id.raw(), &mut c) };
        check(verb, ret).map_err(|e| e.with_detail(format!("peer {}", self.peer)))?;
        Ok(Connection::new(
            qp,
            self.id,
            self.events,
            Side::Active,
            params,
            self.peer,
            self.local,
        ))
    }
}
