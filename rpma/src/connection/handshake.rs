//! From the first message of the handshake to the event that the connection stands.

use std::time::Duration;

use cm::{ConnectionState, Deadline};

use super::{Connection, ConnectionEvent};
use crate::error::Error;

/// How long data may be ahead of the last message of the handshake before that counts as lost.
///
/// Data often overtakes it, because the message goes through a work queue. To tell the connection
/// manager at once would be wrong then: if the peer disconnects before it has acted on that, it
/// never says that the connection stood, and destroying the id waits until the answer to the
/// request is given up (measured: over a minute).
const PATIENCE: Duration = Duration::from_millis(250);

/// How often the device is asked whether data has come while the last message is awaited.
pub(crate) const LOOK: Duration = Duration::from_millis(50);

impl Connection {
    /// Waits for the next event; carries the handshake out on the way.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`](crate::ErrorKind::TimedOut) after `timeout`, or the failed step.
    #[doc(alias = "rpma_conn_next_event")]
    pub fn next_event(&self, timeout: Duration) -> Result<ConnectionEvent, Error> {
        let event = self.next_link_event(Deadline::after(timeout))?;
        Ok(ConnectionEvent::from(&event))
    }

    /// The next event if there is one. Never blocks.
    ///
    /// On the accepting side, call it again a quarter of a second after the first data has come
    /// without [`ConnectionEvent::Established`]: only then the message that should have come before
    /// counts as lost.
    ///
    /// # Errors
    /// The failed step.
    pub fn try_next_event(&self) -> Result<Option<ConnectionEvent>, Error> {
        let event = self.try_next_link_event()?;
        Ok(event.as_ref().map(ConnectionEvent::from))
    }

    /// Waits until data can flow.
    ///
    /// # Errors
    /// [`ErrorKind::NoListener`](crate::ErrorKind::NoListener),
    /// [`Rejected`](crate::ErrorKind::Rejected), [`Unreachable`](crate::ErrorKind::Unreachable),
    /// [`Disconnected`](crate::ErrorKind::Disconnected), or
    /// [`TimedOut`](crate::ErrorKind::TimedOut) after `timeout`.
    pub fn wait_established(&self, timeout: Duration) -> Result<(), Error> {
        let deadline = Deadline::after(timeout);
        while !self.link.is_established()? {
            let event = self.next_link_event(deadline)?;
            if self.link.established(event)?.is_some() {
                break;
            }
        }
        Ok(())
    }

    /// As [`wait_established`](Self::wait_established), without waiting: `None` while it may come yet.
    #[cfg(feature = "tokio")]
    pub(crate) fn try_established(&self) -> Result<Option<()>, Error> {
        while !self.link.is_established()? {
            let Some(event) = self.try_next_link_event()? else {
                return Ok(None);
            };
            if self.link.established(event)?.is_some() {
                break;
            }
        }
        Ok(Some(()))
    }

    fn try_next_link_event(&self) -> Result<Option<cm::ConnectionEvent>, Error> {
        let event = self.link.try_next_event()?;
        if event.is_none() && self.awaits_data() {
            self.look_for_data()?;
        }
        Ok(event.map(|event| self.kept(event)))
    }

    fn next_link_event(&self, deadline: Deadline) -> Result<cm::ConnectionEvent, Error> {
        while self.awaits_data() && !deadline.has_passed() {
            match self.link.next_event(deadline.min(Deadline::after(LOOK))) {
                Err(cm::Error::TimedOut { .. }) => self.look_for_data()?,
                event => return Ok(self.kept(event?)),
            }
        }
        let event = self.link.next_event(deadline)?;
        Ok(self.kept(event))
    }

    /// Whether the last message of the handshake may have been lost: then the peer's first data
    /// stands for it.
    pub(crate) fn awaits_data(&self) -> bool {
        self.awaits_data.get() && self.link.state() == ConnectionState::Connecting
    }

    /// Asks the device whether data has come: completions are left to their owner, in whichever
    /// queue they are. When some has and [`PATIENCE`] has passed without an event, the connection
    /// manager is told, once, so that the connection stands.
    fn look_for_data(&self) -> Result<(), Error> {
        match self.patience.get() {
            Some(patience) if patience.has_passed() => {
                self.awaits_data.set(false);
                self.link.notify_received()?;
            }
            Some(_) => {}
            None => match self.link.has_received() {
                Ok(true) => self.patience.set(Some(Deadline::after(PATIENCE))),
                Ok(false) => {}
                // A device that goes away says so by an event.
                Err(error) => tracing::debug!(%error, "looking for data before the confirmation"),
            },
        }
        Ok(())
    }

    fn kept(&self, event: cm::ConnectionEvent) -> cm::ConnectionEvent {
        self.keep_private_data(&event);
        event
    }

    fn keep_private_data(&self, event: &cm::ConnectionEvent) {
        if let cm::ConnectionEvent::Established { private_data } = event {
            // The passive side has the request's data already, and gets none here.
            let _ = self.private_data.set(private_data.clone());
        }
    }
}
