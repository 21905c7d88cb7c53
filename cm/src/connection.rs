//! A connection from the first message of the handshake to its end.

mod event;
mod state;

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr;
use std::time::Duration;

use verbs::{Deadline, QpState, QueuePair, TransportType, sys};

pub use self::event::ConnectionEvent;
pub use self::state::ConnectionState;

use self::state::State;
use crate::channel::EventChannel;
use crate::error::Error;
use crate::event::{Event, EventKind, RejectReason};
use crate::id::{Id, check};
use crate::params::ConnParams;

/// Who asked for the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Active,
    Passive,
}

/// How long [`Connection::wait_established`] sleeps at most before it looks at the state again.
const NAP: Duration = Duration::from_millis(100);

/// A connection with its queue pair.
///
/// [`next_event`](Self::next_event) drives the handshake: the active side becomes connected while
/// it takes the peer's answer from there. Dropping a connection ends it; the peer is told.
#[derive(Debug)]
pub struct Connection {
    // Dropped in this order: no work for the queue pair is left when the id goes, and the channel
    // outlives the id.
    qp: QueuePair,
    id: Id,
    channel: EventChannel,
    side: Side,
    params: ConnParams,
    state: State,
    peer: SocketAddr,
    local: Option<SocketAddr>,
}

impl Connection {
    pub(crate) fn new(
        qp: QueuePair,
        id: Id,
        channel: EventChannel,
        side: Side,
        params: ConnParams,
        peer: SocketAddr,
        local: Option<SocketAddr>,
    ) -> Self {
        Self {
            qp,
            id,
            channel,
            side,
            params,
            state: State::new(),
            peer,
            local,
        }
    }

    /// Its queue pair.
    #[inline]
    pub fn qp(&self) -> &QueuePair {
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

    /// Where it stands, as far as the events taken tell.
    pub fn state(&self) -> ConnectionState {
        self.state.get()
    }

    /// The next event if there is one; never blocks.
    ///
    /// # Errors
    /// The failed call.
    pub fn try_next_event(&self) -> Result<Option<ConnectionEvent>, Error> {
        while let Some(event) = self.channel.try_next()? {
            if let Some(event) = self.take(&event)? {
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
        let what = || match self.state() {
            ConnectionState::Connecting => format!("connecting with {}", self.peer),
            _ => format!("waiting for an event of the connection with {}", self.peer),
        };
        loop {
            let event = self.channel.next(deadline, what)?;
            if let Some(event) = self.take(&event)? {
                return Ok(event);
            }
        }
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
            ConnectionEvent::Rejected { reason, .. } if reason.is_no_listener() => {
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

    /// Does what an event asks for; `None` when it was only a step of the handshake.
    fn take(&self, event: &Event) -> Result<Option<ConnectionEvent>, Error> {
        let status = event.status();
        Ok(Some(match event.kind() {
            EventKind::CONNECT_RESPONSE if self.side == Side::Active => {
                match self.state() {
                    ConnectionState::Connecting => {}
                    ConnectionState::Established => return Ok(None),
                    // Given up before the answer came: the peer is not left waiting for the rest.
                    ConnectionState::Closed => {
                        self.decline();
                        return Ok(None);
                    }
                }
                if let Err(error) = self.confirm() {
                    let given_up = self.state() == ConnectionState::Closed;
                    self.end();
                    self.decline();
                    return if given_up { Ok(None) } else { Err(error) };
                }
                if !self.state.establish() {
                    self.hang_up();
                    return Ok(None);
                }
                ConnectionEvent::Established {
                    private_data: event.private_data(),
                }
            }
            EventKind::ESTABLISHED => {
                match self.state() {
                    ConnectionState::Connecting => self.note_iwarp_ready(),
                    ConnectionState::Established => return Ok(None),
                    ConnectionState::Closed => {}
                }
                if !self.state.establish() {
                    // Closed before the peer's last message: the peer takes it for connected.
                    if self.state() == ConnectionState::Closed {
                        self.hang_up();
                    }
                    return Ok(None);
                }
                ConnectionEvent::Established {
                    private_data: event.private_data(),
                }
            }
            EventKind::DISCONNECTED => {
                // The side that disconnected first gets its own event only with an answer.
                self.hang_up();
                ConnectionEvent::Disconnected
            }
            EventKind::REJECTED => {
                self.end();
                ConnectionEvent::Rejected {
                    reason: RejectReason::from_raw(status),
                    private_data: event.private_data(),
                }
            }
            EventKind::CONNECT_ERROR => {
                self.end();
                ConnectionEvent::ConnectError { status }
            }
            EventKind::UNREACHABLE => {
                if self.state() == ConnectionState::Connecting {
                    self.end();
                }
                ConnectionEvent::Unreachable { status }
            }
            EventKind::DEVICE_REMOVAL => {
                self.end();
                ConnectionEvent::DeviceRemoved
            }
            EventKind::TIMEWAIT_EXIT => ConnectionEvent::TimewaitExit,
            kind => ConnectionEvent::Other { kind, status },
        }))
    }

    /// The active side's last step: the queue pair is ours, so librdmacm leaves this to us.
    fn confirm(&self) -> Result<(), Error> {
        let verb = "rdma_establish";
        // INIT a second time: the first came before the request, when the connection manager did
        // not know yet that the peer may read, and gave access flags without it.
        self.id.init_qp(&self.qp)?;
        self.id.ready_qp(&self.qp, &self.params)?;
        // SAFETY: the id is live and has got the peer's answer.
        let ret = unsafe { sys::rdma_establish(self.id.raw()) };
        Ok(check(verb, ret)?)
    }

    /// Refuses the peer's acceptance.
    fn decline(&self) {
        let verb = "rdma_reject";
        // SAFETY: the id is live; there is no private data.
        let ret = unsafe { sys::rdma_reject(self.id.raw(), ptr::null(), 0) };
        if let Err(error) = check(verb, ret) {
            tracing::debug!(%error, "answer to an acceptance that came too late");
        }
    }

    /// Disconnects where nobody is there to be told of a failure.
    fn hang_up(&self) {
        if let Err(error) = self.disconnect() {
            tracing::debug!(%error, "answer of a connection that is over");
        }
    }

    /// On iWARP the kernel brings the queue pair to RTS itself.
    fn note_iwarp_ready(&self) {
        if self.qp.context().transport() == TransportType::IWARP {
            // SAFETY: ESTABLISHED on iWARP comes after the kernel has brought the queue pair to RTS.
            unsafe { self.qp.record_state(QpState::RTS) };
        }
    }

    /// Flushes what is posted: neither kernel nor librdmacm does it for a queue pair of ours.
    fn end(&self) {
        self.state.close();
        if self.qp.state() != QpState::ERR
            && let Err(error) = self.qp.set_error()
        {
            tracing::debug!(%error, "queue pair of an ended connection");
        }
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
            // There is no connection any more, or not yet: nothing to end.
            Err(error) if !matches!(error.errno(), Some(libc::EINVAL | libc::ENOTCONN)) => {
                Err(error.into())
            }
            _ => Ok(()),
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn send_and_sync<T: Send + Sync>() {}

    #[test]
    fn connections_may_move_between_threads() {
        send_and_sync::<Connection>();
        send_and_sync::<crate::Listener>();
        send_and_sync::<crate::Resolved>();
    }
}
