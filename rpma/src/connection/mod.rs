//! Connections.

mod config;
mod event;
mod post;
mod request;

use std::cell::{Cell, OnceCell};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use cm::verbs::wait_readable;
use cm::{ConnectionState, Deadline};

pub use self::config::ConnectionConfig;
pub use self::event::ConnectionEvent;
pub use self::post::{FlushType, Signal};
pub use self::request::ConnectionRequest;

use crate::cq::CompletionQueue;
use crate::error::Error;
use crate::peer::Peer;
use crate::peer_config::PeerConfig;

/// How long data may be ahead of the last message of the handshake before that counts as lost.
///
/// Data often overtakes it, because the message goes through a work queue. To tell the connection
/// manager at once would be wrong then: if the peer disconnects before it has acted on that, it
/// never says that the connection stood, and destroying the id waits until the answer to the
/// request is given up (measured: over a minute).
const PATIENCE: Duration = Duration::from_millis(250);

/// A connection. `Send`, but not `Sync`: one thread at a time posts; share it behind a mutex. Its
/// [`CompletionQueue`] may be polled by another thread meanwhile.
///
/// A new connection is only begun: [`wait_established`](Self::wait_established) or
/// [`next_event`](Self::next_event) carries the handshake out, and the other side waits for that.
/// Dropping a connection ends it, and the other side is told.
///
/// ```compile_fail,E0277
/// fn shared_by_threads<T: Sync>() {}
/// shared_by_threads::<rpma::Connection>();
/// ```
#[doc(alias = "rpma_conn")]
#[derive(Debug)]
pub struct Connection {
    // Dropped in this order: the queue pair goes with the link, before what its operations use.
    link: cm::Connection,
    cq: CompletionQueue,
    peer: Peer,
    /// What came with the request (passive side) or the acceptance (active side).
    private_data: OnceCell<Vec<u8>>,
    /// Whether it still has to be told to the connection manager that data came before the last
    /// message of the handshake; only ever on the passive side.
    awaits_data: Cell<bool>,
    /// How long the last message of the handshake may still come once data has.
    patience: Cell<Option<Deadline>>,
    /// Operations since the last one that gives a completion in every case.
    unsignaled: Cell<u32>,
    sq_size: u32,
    /// The peer's writes reach its persistence domain by themselves.
    direct_write: Cell<bool>,
    max_message: u32,
    domain: usize,
}

impl Connection {
    /// `received` is the request's private data on the passive side, `None` on the active one.
    fn new(
        link: cm::Connection,
        cq: CompletionQueue,
        peer: Peer,
        sq_size: u32,
        received: Option<Vec<u8>>,
    ) -> Self {
        Self {
            awaits_data: Cell::new(received.is_some()),
            patience: Cell::new(None),
            private_data: received.map_or_else(OnceCell::new, OnceCell::from),
            unsignaled: Cell::new(0),
            sq_size,
            direct_write: Cell::new(false),
            max_message: peer.max_message_size(),
            domain: peer.domain_identity(),
            link,
            cq,
            peer,
        }
    }

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
        let event = self.link.try_next_event()?;
        if event.is_none() && self.awaits_data() {
            self.look_for_data(Deadline::after(Duration::ZERO))?;
        }
        Ok(event.map(|event| {
            self.keep_private_data(&event);
            ConnectionEvent::from(&event)
        }))
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

    fn next_link_event(&self, deadline: Deadline) -> Result<cm::ConnectionEvent, Error> {
        while self.awaits_data() {
            if let Some(event) = self.link.try_next_event()? {
                return Ok(self.kept(event));
            }
            self.look_for_data(deadline)?;
            if deadline.has_passed() {
                break;
            }
        }
        let event = self.link.next_event(deadline)?;
        Ok(self.kept(event))
    }

    /// Whether the last message of the handshake may have been lost: then the peer's first data
    /// stands for it. A completion shows on the queue's descriptor, which is left as it is for its
    /// owner.
    fn awaits_data(&self) -> bool {
        self.awaits_data.get() && self.link.state() == ConnectionState::Connecting
    }

    /// Waits for an event or for the peer's data. When data has come and [`PATIENCE`] has passed
    /// without an event, the connection manager is told, once, so that the connection stands.
    fn look_for_data(&self, deadline: Deadline) -> Result<(), Error> {
        if let Some(patience) = self.patience.get() {
            let [event] = wait_readable([self.link.as_fd()], patience.min(deadline))?;
            if !event && patience.has_passed() {
                self.awaits_data.set(false);
                self.link.notify_received()?;
            }
        } else {
            let [event, data] = wait_readable([self.link.as_fd(), self.cq.as_fd()], deadline)?;
            if data && !event {
                self.patience.set(Some(Deadline::after(PATIENCE)));
            }
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

    /// What the other side sent along: with its request (56 bytes on InfiniBand and RoCE), or, once
    /// the connection is established, with its acceptance (196 bytes), padded with zeros.
    #[doc(alias = "rpma_conn_get_private_data")]
    pub fn private_data(&self) -> &[u8] {
        self.private_data.get().map_or(&[], Vec::as_slice)
    }

    /// Where its completions are picked up.
    #[doc(alias = "rpma_conn_get_cq")]
    pub fn cq(&self) -> &CompletionQueue {
        &self.cq
    }

    /// The number of its queue pair.
    #[doc(alias = "rpma_conn_get_qp_num")]
    pub fn qp_num(&self) -> u32 {
        self.link.qp().number()
    }

    /// The other side's address.
    pub fn peer_addr(&self) -> SocketAddr {
        self.link.peer_addr()
    }

    /// This side's address.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.link.local_addr()
    }

    /// Becomes readable when [`next_event`](Self::next_event) has something to do.
    #[doc(alias = "rpma_conn_get_event_fd")]
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }

    /// Takes over what the other side says about itself; needed before flushing to persistence.
    #[doc(alias = "rpma_conn_apply_remote_peer_cfg")]
    pub fn apply_remote_peer_config(&self, config: &PeerConfig) {
        self.direct_write.set(config.direct_write_to_pmem());
    }

    /// Ends the connection: what is posted comes back flushed, and the other side is told. Does not
    /// wait; [`ConnectionEvent::Closed`] follows on both sides. May be called again.
    ///
    /// # Errors
    /// The failed call.
    #[doc(alias = "rpma_conn_disconnect")]
    pub fn disconnect(&self) -> Result<(), Error> {
        Ok(self.link.disconnect()?)
    }

    /// Ends the connection, if that has not been done, and releases it.
    ///
    /// # Errors
    /// The failed disconnect; the connection is released all the same.
    #[doc(alias = "rpma_conn_delete")]
    pub fn close(self) -> Result<(), Error> {
        self.disconnect()
    }

    /// The connection as `cm` has it, with its queue pair.
    pub fn as_cm(&self) -> &cm::Connection {
        &self.link
    }

    /// The peer it was made with.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }
}
