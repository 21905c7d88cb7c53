//! The asking side: from an address to the number and key of a queue pair.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use verbs::{AddressHandle, Context, Deadline, ProtectionDomain, QueuePair, sys};

use super::{datagrams, ready};
use crate::connect::{ConnectOptions, Progress};
use crate::error::Error;
use crate::event::{Event, EventKind, RejectReason, RemoteQueuePair};
use crate::id::{Home, Id, check};
use crate::params::{ConnParams, Message};
use crate::resolve::{Found, Search};
use crate::source::{EventSource, Lane, OwnChannel};

/// An address and route being resolved, for datagrams.
#[derive(Debug)]
#[must_use = "dropping it gives the attempt up"]
pub struct DatagramResolving<S = OwnChannel>(Search<S>);

impl DatagramResolving<OwnChannel> {
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

impl<S: EventSource> DatagramResolving<S> {
    pub(crate) fn begin(
        events: S,
        home: &Home,
        lane: Option<Arc<Lane>>,
        peer: SocketAddr,
        options: &ConnectOptions,
        deadline: Deadline,
    ) -> Result<Self, Error> {
        let space = datagrams(options.id.port_space)?;
        Search::begin(events, home, lane, space, peer, options, deadline).map(Self)
    }

    /// Goes on as far as possible without waiting.
    ///
    /// # Errors
    /// [`Error::AddressNotResolved`], [`Error::RouteNotResolved`], or [`Error::TimedOut`] once the
    /// deadline has passed.
    pub fn try_advance(self) -> Result<Progress<Self, DatagramResolved<S>>, Error> {
        Ok(self.0.try_advance()?.map(Self, DatagramResolved))
    }

    /// Waits until address and route are known, or the deadline has passed.
    ///
    /// # Errors
    /// As [`try_advance`](Self::try_advance).
    pub fn wait(self) -> Result<DatagramResolved<S>, Error> {
        self.0.wait().map(DatagramResolved)
    }
}

impl AsFd for DatagramResolving<OwnChannel> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.events.as_fd()
    }
}

/// A device and a route to the peer: what it takes to ask for its queue pair.
#[derive(Debug)]
pub struct DatagramResolved<S = OwnChannel>(Found<S>);

impl<S: EventSource> DatagramResolved<S> {
    /// The device that leads to the peer.
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// The peer's address.
    pub fn peer_addr(&self) -> SocketAddr {
        self.0.peer
    }

    /// The local address that datagrams will come from.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.0.local
    }

    /// Brings a new UD queue pair to RTS, with the key that peers found by address use.
    ///
    /// # Errors
    /// [`verbs::ErrorKind::InvalidArgument`] for another type than UD or another device, or the
    /// failed call.
    pub fn init_qp(&self, qp: &QueuePair) -> Result<(), Error> {
        ready(&self.0.id, qp, &self.0.context)
    }

    /// Asks who listens there for the address of its queue pair.
    ///
    /// # Errors
    /// [`Error::PrivateDataTooLong`] above 180 bytes, or the failed call.
    #[doc(alias = "rdma_connect")]
    pub fn ask(self, private_data: &[u8]) -> Result<DatagramLookup<S>, Error> {
        let verb = "rdma_connect";
        let Found {
            id,
            events,
            context,
            peer,
            ..
        } = self.0;
        Message::DatagramRequest.check_private_data(context.transport(), private_data)?;
        let mut c = ConnParams::default().to_c(0, private_data);
        id.origin().check(verb)?;
        // SAFETY: the id has device and route; parameters and private data are live.
        let ret = unsafe { sys::rdma_connect(id.raw(), &mut c) };
        check(verb, ret).map_err(|e| e.with_detail(format!("peer {peer}")))?;
        Ok(DatagramLookup { id, events, peer })
    }
}

/// A question for the address of a queue pair, under way.
#[derive(Debug)]
#[must_use = "dropping it gives the question up"]
pub struct DatagramLookup<S = OwnChannel> {
    // Before the channel that its events arrive on.
    #[expect(dead_code, reason = "held to be dropped")]
    id: Id,
    events: S,
    peer: SocketAddr,
}

/// Where the datagrams of a peer go.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DatagramPeer {
    /// Path, number and key of its queue pair.
    pub remote: RemoteQueuePair,
    /// What it sent along, padded with zeros to 136 bytes.
    pub private_data: Vec<u8>,
}

impl DatagramPeer {
    /// The address in the form that requests take.
    ///
    /// # Errors
    /// As [`AddressHandle::new`].
    #[doc(alias = "ibv_create_ah")]
    pub fn address_handle(&self, pd: &ProtectionDomain) -> Result<AddressHandle, Error> {
        Ok(AddressHandle::new(pd, &self.remote.address)?)
    }
}

impl<S: EventSource> DatagramLookup<S> {
    /// The answer if it is there; never blocks.
    ///
    /// # Errors
    /// [`Error::NoListener`], [`Error::Rejected`], [`Error::Unreachable`], [`Error::DeviceRemoved`],
    /// or the failed call.
    pub fn try_answer(self) -> Result<Progress<Self, DatagramPeer>, Error> {
        while let Some(arrived) = self.events.try_next()? {
            if let Some(peer) = self.answer(arrived.event)? {
                return Ok(Progress::Done(peer));
            }
        }
        Ok(Progress::Pending(self))
    }

    /// Waits for the answer.
    ///
    /// # Errors
    /// [`Error::TimedOut`] once the deadline has passed, otherwise as
    /// [`try_answer`](Self::try_answer).
    pub fn wait(self, deadline: Deadline) -> Result<DatagramPeer, Error> {
        while let Some(arrived) = self.events.next(deadline)? {
            if let Some(peer) = self.answer(arrived.event)? {
                return Ok(peer);
            }
        }
        Err(Error::TimedOut {
            what: format!("asking {} for its queue pair", self.peer),
        })
    }

    fn answer(&self, event: Event) -> Result<Option<DatagramPeer>, Error> {
        let (kind, status, peer) = (event.kind(), event.status(), self.peer);
        match kind {
            EventKind::ESTABLISHED => {
                let remote = event.datagram().and_then(|data| data.remote);
                Ok(remote.map(|remote| DatagramPeer {
                    remote,
                    private_data: event.into_private_data(),
                }))
            }
            EventKind::UNREACHABLE if status == NO_SERVICE => Err(Error::NoListener { peer }),
            EventKind::UNREACHABLE if status == REFUSED => Err(Error::Rejected {
                peer,
                reason: RejectReason::CONSUMER,
                private_data: event.into_private_data(),
            }),
            EventKind::UNREACHABLE => Err(Error::Unreachable { peer, status }),
            EventKind::CONNECT_ERROR => Err(Error::ConnectFailed { peer, status }),
            EventKind::DEVICE_REMOVAL => Err(Error::DeviceRemoved { peer }),
            _ => {
                tracing::debug!(%kind, status, "event ignored while asking for a queue pair");
                Ok(None)
            }
        }
    }
}

/// Statuses of the exchange: nobody has the service, and the application refused.
const NO_SERVICE: i32 = 1;
const REFUSED: i32 = 2;

impl AsFd for DatagramLookup<OwnChannel> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}
