//! What each event asks of a connection.

use std::ptr;

use verbs::{QpState, TransportType, sys};

use super::{Connection, ConnectionEvent, ConnectionState, Side};
use crate::error::Error;
use crate::event::{Event, EventKind, RejectReason};
use crate::id::check;
use crate::listen::both_ends;
use crate::source::EventSource;

impl<S: EventSource> Connection<S> {
    /// Does what an event asks for; `None` when it was only a step of the handshake.
    pub(super) fn take(&self, event: Event) -> Result<Option<ConnectionEvent>, Error> {
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
                    if given_up {
                        return Ok(None);
                    }
                    // The peer may have taken its answer back before it was read: then the event that says why is there.
                    return match self.events.try_next()? {
                        Some(arrived) => self.take(arrived.event),
                        None => Err(error.or_removed(self.peer)),
                    };
                }
                if !self.state.establish() {
                    self.hang_up();
                    return Ok(None);
                }
                ConnectionEvent::Established {
                    private_data: event.into_private_data(),
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
                    private_data: event.into_private_data(),
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
                    private_data: event.into_private_data(),
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
        let whose = both_ends(self.peer, self.local, &self.qp);
        self.ready().map_err(|error| error.of_connection(whose))
    }

    fn ready(&self) -> Result<(), Error> {
        let verb = "rdma_establish";
        // Asked again: INIT came before the request, when the connection manager did not know yet
        // that the peer may read, and gave access flags without it.
        let access = self.id.peer_access()?;
        self.id.ready_qp(&self.qp, &self.params, Some(access))?;
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
    pub(super) fn end(&self) {
        self.state.close();
        if self.qp.state() != QpState::ERR
            && let Err(error) = self.qp.set_error()
        {
            tracing::debug!(%error, "queue pair of an ended connection");
        }
    }
}
