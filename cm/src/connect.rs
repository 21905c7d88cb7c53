//! The active side: from an address to a connection.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use verbs::{Context, Deadline, QueuePair, sys};

use crate::channel::EventChannel;
use crate::connection::{Connection, Side};
use crate::error::Error;
use crate::event::{Event, EventKind};
use crate::id::{Id, check};
use crate::listen::check_queue_pair;
use crate::params::{ConnParams, IdOptions, Message};

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
pub struct Resolving {
    id: Id,
    channel: EventChannel,
    peer: SocketAddr,
    deadline: Deadline,
}

impl Resolving {
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
        let channel = EventChannel::new()?;
        let id = Id::new(&channel)?;
        id.set_options(&options.id)?;
        id.resolve_addr(options.source, peer, deadline)?;
        Ok(Self {
            id,
            channel,
            peer,
            deadline,
        })
    }

    /// Goes on as far as possible without waiting.
    ///
    /// # Errors
    /// [`Error::AddressNotResolved`], [`Error::RouteNotResolved`], or [`Error::TimedOut`] once the
    /// deadline has passed.
    pub fn try_advance(self) -> Result<Progress<Self, Resolved>, Error> {
        while let Some(event) = self.channel.try_next()? {
            if self.step(&event)? {
                drop(event);
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
    pub fn wait(self) -> Result<Resolved, Error> {
        loop {
            let event = self.channel.next(self.deadline, || self.what())?;
            if self.step(&event)? {
                drop(event);
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

    fn resolved(self) -> Result<Resolved, Error> {
        let peer = self.peer;
        // Both events are in, so none is pending that would write these fields.
        let context = self.id.context()?.ok_or(Error::AddressNotResolved {
            peer,
            errno: libc::ENODEV,
        })?;
        let (local, _) = self.id.addresses();
        Ok(Resolved {
            id: self.id,
            channel: self.channel,
            context,
            peer,
            local,
        })
    }

    fn what(&self) -> String {
        format!("resolving the address or route of {}", self.peer)
    }

    fn timed_out(&self) -> Error {
        Error::TimedOut { what: self.what() }
    }
}

impl AsFd for Resolving {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

/// A device and a route to the peer: what it takes to connect.
#[derive(Debug)]
pub struct Resolved {
    id: Id,
    channel: EventChannel,
    context: Context,
    peer: SocketAddr,
    local: Option<SocketAddr>,
}

impl Resolved {
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
    ) -> Result<Connection, Error> {
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
            self.channel,
            Side::Active,
            params,
            self.peer,
            self.local,
        ))
    }
}
