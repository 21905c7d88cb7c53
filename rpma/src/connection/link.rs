//! A connection as the connection manager has it: with an event channel of its own, or served by a
//! dispatcher.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use cm::verbs::QueuePair;
use cm::{ConnParams, ConnectionState, Deadline, OwnChannel, Routed};

use crate::error::Error;

/// The connection manager's side of a connection.
#[derive(Debug)]
pub(crate) struct Link {
    // Dropped first: the connection then has the last handle, and ends it before its id.
    qp: Arc<QueuePair>,
    side: Side,
}

#[derive(Debug)]
enum Side {
    Own(cm::Connection<OwnChannel>),
    Routed(cm::Connection<Routed>),
}

impl From<cm::Connection<OwnChannel>> for Link {
    fn from(connection: cm::Connection<OwnChannel>) -> Self {
        Self {
            qp: Arc::clone(connection.qp()),
            side: Side::Own(connection),
        }
    }
}

impl From<cm::Connection<Routed>> for Link {
    fn from(connection: cm::Connection<Routed>) -> Self {
        Self {
            qp: Arc::clone(connection.qp()),
            side: Side::Routed(connection),
        }
    }
}

/// Does the same with either kind of connection.
macro_rules! either {
    ($self:ident, $connection:ident => $what:expr) => {
        match &$self.side {
            Side::Own($connection) => $what,
            Side::Routed($connection) => $what,
        }
    };
}

impl Link {
    #[inline]
    pub(super) fn qp(&self) -> &QueuePair {
        &self.qp
    }

    #[inline]
    pub(super) fn state(&self) -> ConnectionState {
        either!(self, connection => connection.state())
    }

    pub(super) fn try_next_event(&self) -> Result<Option<cm::ConnectionEvent>, cm::Error> {
        either!(self, connection => connection.try_next_event())
    }

    pub(super) fn next_event(&self, deadline: Deadline) -> Result<cm::ConnectionEvent, cm::Error> {
        either!(self, connection => connection.next_event(deadline))
    }

    pub(super) fn is_established(&self) -> Result<bool, cm::Error> {
        either!(self, connection => connection.is_established())
    }

    pub(super) fn established(
        &self,
        event: cm::ConnectionEvent,
    ) -> Result<Option<Vec<u8>>, cm::Error> {
        either!(self, connection => connection.established(event))
    }

    pub(super) fn has_received(&self) -> Result<bool, cm::Error> {
        either!(self, connection => connection.has_received())
    }

    pub(super) fn notify_received(&self) -> Result<(), cm::Error> {
        either!(self, connection => connection.notify_received())
    }

    pub(super) fn disconnect(&self) -> Result<(), cm::Error> {
        either!(self, connection => connection.disconnect())
    }

    pub(super) fn peer_addr(&self) -> SocketAddr {
        either!(self, connection => connection.peer_addr())
    }

    pub(super) fn local_addr(&self) -> Option<SocketAddr> {
        either!(self, connection => connection.local_addr())
    }

    pub(super) fn params(&self) -> &ConnParams {
        either!(self, connection => connection.params())
    }

    pub(super) fn event_fd(&self) -> Result<BorrowedFd<'_>, Error> {
        match &self.side {
            Side::Own(connection) => Ok(connection.as_fd()),
            Side::Routed(_) => Err(Error::NoEventDescriptor),
        }
    }
}
