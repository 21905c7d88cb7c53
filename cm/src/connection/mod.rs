//! A connection from the first message of the handshake to its end.

mod event;
mod state;
mod steps;

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use verbs::{Deadline, QpState, QueuePair, sys};

pub use self::event::ConnectionEvent;
pub use self::state::ConnectionState;

use self::state::State;
use crate::error::Error;
use crate::event::RejectReason;
use crate::id::{Id, check};
use crate::params::{ConnParams, Ece};
use crate::source::{EventSource, OwnChannel};

/// Who asked for the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Active,
    Passive {
        /// The number of the peer's first packet, where those are counted.
        first_packet: Option<u32>,
    },
}

/// How long [`Connection::wait_established`] sleeps at most before it looks at the state again.
const NAP: Duration = Duration::from_millis(100);

/// A connection with its queue pair.
///
/// [`next_event`](Self::next_event) drives the handshake: the active side becomes connected while
/// it takes the peer's answer from there. Dropping a connection ends it; the peer is told.
///
/// # No keep-alive
/// A reliable connection sends nothing while nobody posts. Of a peer whose process ends, its kernel tells
/// ([`ConnectionEvent::Disconnected`]). Of a peer that loses its power or its network, nobody does: the connection stays
/// [`Established`](ConnectionState::Established), posted receives stay posted, and waits end at their deadline only. What finds out
/// is a send, read or write: it ends with [`RETRY_EXC_ERR`](verbs::WcStatus::RETRY_EXC_ERR) after [`ConnParams::retry_count`] repetitions,
/// within 10 s with the defaults, and the queue pair is in the error state then. So who waits for a peer that may be silent for long
/// posts something now and then, a write of no bytes say, and looks at its completion; or lets the peer send at intervals, and takes
/// a deadline that passes for the end. Frozen processes are not found out that way: their device goes on answering.
///
/// [`ConnectionEvent::Unreachable`] on a connection that stands says that the peer's hardware address has changed; whether it can be
/// reached, again only a send tells.
///
/// To end it needs no answer: [`disconnect`](Self::disconnect) does not wait, and dropping takes milliseconds, on SoftRoCE up to 3 s
/// while its packets wait for a neighbour that does not answer.
///
/// On iWARP the kernel lets go of an attempt only with the peer's answer, or when the device gives up
/// (siw after 10 s): a drop before that takes as long.
#[derive(Debug)]
pub struct Connection<S = OwnChannel> {
    // Dropped in this order: no work for the queue pair is left when the id goes, unless others hold
    // it, and the channel outlives the id.
    qp: Arc<QueuePair>,
    id: Id,
    events: S,
    side: Side,
    params: ConnParams,
    state: State,
    peer: SocketAddr,
    local: Option<SocketAddr>,
}

impl<S: EventSource> Connection<S> {
    pub(crate) fn new(
        qp: Arc<QueuePair>,
        id: Id,
        events: S,
        side: Side,
        params: ConnParams,
        peer: SocketAddr,
        local: Option<SocketAddr>,
    ) -> Self {
        Self {
            qp,
            id,
            events,
            side,
            params,
            state: State::new(),
            peer,
            local,
        }
    }

    /// Its queue pair. Who holds it longer than the connection has a queue pair that is not ended
    /// with it.
    #[inline]
    pub fn qp(&self) -> &Arc<QueuePair> {
        &self.qp
    }

    /// The other side's address.
    pub fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    /// This side's address.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.local
    }

    /// The parameters asked for, within the device's limits; on the passive side also within what
    /// the peer offered. The active side's queue pair follows the peer's answer, which may be less.
    pub fn params(&self) -> &ConnParams {
        &self.params
    }

    /// The extended connection capabilities that the peer told; all zero when none.
    ///
    /// # Errors
    /// [`verbs::ErrorKind::InvalidArgument`] unless the connection is established: the peer's answer,
    /// which brings them, may be on its way. The failed call.
    #[doc(alias = "rdma_get_remote_ece")]
    pub fn remote_ece(&self) -> Result<Ece, Error> {
        if self.state() != ConnectionState::Established {
            return Err(verbs::Error::refused(
                "rdma_get_remote_ece",
                verbs::ErrorKind::InvalidArgument,
                format!("the connection with {} is not established", self.peer),
            )
            .into());
        }
        self.id.remote_ece()
    }

    /// Where it stands, as far as the events taken tell.
    #[inline]
    pub fn state(&self) -> ConnectionState {
        self.state.get()
    }

    /// The next event if there is one; never blocks.
    ///
    /// # Errors
    /// The failed call.
    pub fn try_next_event(&self) -> Result<Option<ConnectionEvent>, Error> {
        while let Some(arrived) = self.events.try_next()? {
            if let Some(event) = self.take(arrived.event)? {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    /// Waits for the next event.
    ///
    /// # Errors
    /// [`Error::TimedOut`] once the deadline has passed, or the failed call.
    #[doc(alias = "rdma_get_cm_event")]
    pub fn next_event(&self, deadline: Deadline) -> Result<ConnectionEvent, Error> {
        while let Some(arrived) = self.events.next(deadline)? {
            if let Some(event) = self.take(arrived.event)? {
                return Ok(event);
            }
        }
        Err(Error::TimedOut {
            what: match self.state() {
                ConnectionState::Connecting => format!("connecting with {}", self.peer),
                _ => format!("waiting for an event of the connection with {}", self.peer),
            },
        })
    }

    /// Waits until data can flow, and gives the private data of the acceptance; none when the
    /// event was taken before.
    ///
    /// # Errors
    /// [`Error::NoListener`], [`Error::Rejected`], [`Error::Unreachable`], [`Error::ConnectFailed`],
    /// [`Error::Disconnected`], [`Error::DeviceRemoved`], or [`Error::TimedOut`].
    pub fn wait_established(&self, deadline: Deadline) -> Result<Vec<u8>, Error> {
        loop {
            if self.is_established()? {
                return Ok(Vec::new());
            }
            // Not for longer: another thread may take the event that this one waits for.
            match self.next_event(deadline.min(Deadline::after(NAP))) {
                Ok(event) => {
                    if let Some(private_data) = self.established(event)? {
                        return Ok(private_data);
                    }
                }
                Err(Error::TimedOut { .. }) if !deadline.has_passed() => {}
                Err(error @ Error::TimedOut { .. }) => {
                    return if self.is_established()? {
                        Ok(Vec::new())
                    } else {
                        Err(error)
                    };
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Whether data can flow already.
    ///
    /// # Errors
    /// [`Error::Disconnected`] when it never will again.
    pub fn is_established(&self) -> Result<bool, Error> {
        match self.state() {
            ConnectionState::Connecting => Ok(false),
            ConnectionState::Established => Ok(true),
            ConnectionState::Closed => Err(Error::Disconnected { peer: self.peer }),
        }
    }

    /// What an event means for somebody who waits for the connection to stand: its private data
    /// when it does, `None` to wait on.
    ///
    /// # Errors
    /// As [`wait_established`](Self::wait_established).
    pub fn established(&self, event: ConnectionEvent) -> Result<Option<Vec<u8>>, Error> {
        let peer = self.peer;
        match event {
            ConnectionEvent::Established { private_data } => Ok(Some(private_data)),
            // An errno with bytes comes from an application, which some iWARP devices do not tell from a
            // port with none. Elsewhere the reason decides, and the bytes are padding.
            ConnectionEvent::Rejected {
                reason,
                private_data,
            } if reason == RejectReason::NO_LISTENER
                || (reason.is_no_listener() && private_data.is_empty()) =>
            {
                Err(Error::NoListener { peer })
            }
            ConnectionEvent::Rejected {
                reason,
                private_data,
            } => Err(Error::Rejected {
                peer,
                reason,
                private_data,
            }),
            ConnectionEvent::Unreachable { status } => Err(Error::Unreachable { peer, status }),
            ConnectionEvent::ConnectError { status } => Err(Error::ConnectFailed { peer, status }),
            ConnectionEvent::Disconnected => Err(Error::Disconnected { peer }),
            ConnectionEvent::DeviceRemoved => Err(Error::DeviceRemoved { peer }),
            ConnectionEvent::TimewaitExit | ConnectionEvent::Other { .. } => Ok(None),
        }
    }

    /// Whether anything of the peer has come already, in whatever queue it completes, and also what
    /// gives no completion here. Asks the device, which waits for nothing; no completion is taken.
    ///
    /// Always `false` on the active side, and on devices that do not count packets (iWARP).
    ///
    /// # Errors
    /// The failed call.
    pub fn has_received(&self) -> Result<bool, Error> {
        let Side::Passive {
            first_packet: Some(first),
        } = self.side
        else {
            return Ok(false);
        };
        let (now, _) = self.qp.query()?;
        // In the error state, which the peer's end brings as well, numbers mean nothing.
        Ok(now.state() == Some(QpState::RTS) && now.rq_psn() != first)
    }

    /// Tells the connection manager that the peer's data has come, although its last message of
    /// the handshake has not: [`ConnectionEvent::Established`] then follows.
    ///
    /// Does nothing unless this is the passive side and the handshake is under way.
    ///
    /// Give the message a moment first: if it is only late, and the peer disconnects at once,
    /// `Established` may never come, and dropping the connection takes over a minute.
    ///
    /// # Errors
    /// The failed call; EISCONN and EINVAL, which only say that the message has come by now, are no
    /// failure.
    #[doc(alias = "rdma_notify")]
    pub fn notify_received(&self) -> Result<(), Error> {
        let verb = "rdma_notify";
        if self.side == Side::Active || self.state() != ConnectionState::Connecting {
            return Ok(());
        }
        self.id.origin().check(verb)?;
        let event = sys::ibv_event_type::IBV_EVENT_COMM_EST;
        // SAFETY: the id is live.
        let ret = unsafe { sys::rdma_notify(self.id.raw(), event) };
        match check(verb, ret) {
            Err(error) if !matches!(error.errno(), Some(libc::EISCONN | libc::EINVAL)) => {
                Err(error.into())
            }
            _ => Ok(()),
        }
    }

    /// Ends the connection: what is posted is flushed, and the peer is told. Does not wait for the
    /// peer's answer, which comes as [`ConnectionEvent::Disconnected`]. May be called again, and
    /// after the peer has disconnected, without effect. While the handshake is under way it ends
    /// the attempt: the peer is told when its next message is taken, or when this is dropped.
    ///
    /// # Errors
    /// The failed call.
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnect(&self) -> Result<(), Error> {
        let verb = "rdma_disconnect";
        self.id.origin().check(verb)?;
        self.end();
        // SAFETY: the id is live and a connection was at least begun.
        let ret = unsafe { sys::rdma_disconnect(self.id.raw()) };
        match check(verb, ret) {
            // There is no connection any more, or not yet, or no device: nothing to end.
            Err(error)
                if !matches!(
                    error.errno(),
                    Some(libc::EINVAL | libc::ENOTCONN | libc::ENXIO)
                ) =>
            {
                Err(error.into())
            }
            _ => Ok(()),
        }
    }
}

impl AsFd for Connection<OwnChannel> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Routed;

    fn send_and_sync<T: Send + Sync>() {}

    #[test]
    fn connections_may_move_between_threads() {
        send_and_sync::<Connection>();
        send_and_sync::<Connection<Routed>>();
        send_and_sync::<crate::Listener<Routed>>();
        send_and_sync::<crate::Request<Routed>>();
        send_and_sync::<crate::Dispatcher>();
        send_and_sync::<crate::Listener>();
        send_and_sync::<crate::Resolved>();
    }
}
