//! Connections.

mod config;
mod event;
mod handshake;
mod link;
mod post;
mod queue_pair;
mod queues;
mod request;

use std::cell::{Cell, OnceCell};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use cm::verbs::QueuePair;
use cm::{ConnParams, Deadline};

pub use self::config::ConnectionConfig;
pub use self::event::ConnectionEvent;
pub use self::post::{
    AtomicWriteMethod, Batch, Destination, FlushMethod, FlushType, Signal, Source,
};
pub use self::request::ConnectionRequest;

#[cfg(feature = "tokio")]
pub(crate) use self::handshake::LOOK;
pub(crate) use self::queues::ring;

use self::link::Link;
use self::post::Posting;
use self::queues::Queues;
use crate::cq::{Completion, CompletionQueue};
use crate::error::Error;
use crate::peer::Peer;
use crate::peer_config::PeerConfig;
use crate::srq::SharedReceiveQueue;

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
    posting: Posting,
    link: Link,
    queues: Queues,
    peer: Peer,
    /// What came with the request (passive side) or the acceptance (active side).
    private_data: OnceCell<Vec<u8>>,
    /// Whether it still has to be told to the connection manager that data came before the last
    /// message of the handshake; only ever on the passive side.
    awaits_data: Cell<bool>,
    /// How long the last message of the handshake may still come once data has.
    patience: Cell<Option<Deadline>>,
    /// The peer's writes reach its persistence domain by themselves.
    direct_write: Cell<bool>,
}

/// Which of a connection's queues has something.
#[doc(alias = "rpma_conn_wait")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadyQueue<'a> {
    queue: &'a CompletionQueue,
    is_rcq: bool,
}

impl<'a> ReadyQueue<'a> {
    /// The queue to poll.
    pub fn queue(&self) -> &'a CompletionQueue {
        self.queue
    }

    /// Whether it is the one for receives alone.
    pub fn is_rcq(&self) -> bool {
        self.is_rcq
    }
}

impl Connection {
    /// `received` is the request's private data on the passive side, `None` on the active one.
    fn new(
        link: Link,
        queues: Queues,
        peer: Peer,
        posting: Posting,
        received: Option<Vec<u8>>,
    ) -> Self {
        Self {
            awaits_data: Cell::new(received.is_some()),
            patience: Cell::new(None),
            private_data: received.map_or_else(OnceCell::new, OnceCell::from),
            posting,
            direct_write: Cell::new(false),
            link,
            queues,
            peer,
        }
    }

    /// What the other side sent along: with its request (56 bytes on InfiniBand and RoCE), or, once
    /// the connection is established, with its acceptance (196 bytes), padded with zeros.
    #[doc(alias = "rpma_conn_get_private_data")]
    pub fn private_data(&self) -> &[u8] {
        self.private_data.get().map_or(&[], Vec::as_slice)
    }

    /// Where its completions are picked up: all, or those of everything but receives.
    #[doc(alias = "rpma_conn_get_cq")]
    pub fn cq(&self) -> &CompletionQueue {
        &self.queues.cq
    }

    /// Where the completions of its receives are picked up, if it has a queue for those alone. That
    /// of a [shared receive queue](SharedReceiveQueue::rcq) is not the connection's.
    #[doc(alias = "rpma_conn_get_rcq")]
    pub fn rcq(&self) -> Option<&CompletionQueue> {
        self.queues.rcq.as_ref()
    }

    /// Where its receives are taken from, if that is shared.
    pub fn srq(&self) -> Option<&SharedReceiveQueue> {
        self.queues.srq.as_ref()
    }

    /// Waits until one of its queues has something to poll, and says which; both report to one channel
    /// ([`ConnectionConfig::set_shared_completion_channel`], or queues given that share one). It may turn out to be nothing, when the
    /// completion was polled before. A queue that was not drained is named again, in turn with the
    /// other.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`](crate::ErrorKind::TimedOut) after `timeout`,
    /// [`Error::NotSharedChannel`] at once where the queues have channels of their own: wait on
    /// [`cq`](Self::cq) and [`rcq`](Self::rcq).
    #[doc(alias = "rpma_conn_wait")]
    pub fn wait(&self, timeout: Duration) -> Result<ReadyQueue<'_>, Error> {
        let ready = self
            .queues
            .shared_channel()?
            .wait_for(timeout, |id| self.has_queue(id))?;
        Ok(self.named(&ready))
    }

    /// As [`wait`](Self::wait), without waiting.
    ///
    /// # Errors
    /// As [`wait`](Self::wait), without the timeout.
    pub fn try_wait(&self) -> Result<Option<ReadyQueue<'_>>, Error> {
        let channel = self.queues.shared_channel()?;
        let ready = channel.ready(|id| self.has_queue(id))?;
        Ok(ready.map(|ready| self.named(&ready)))
    }

    fn has_queue(&self, id: cm::verbs::CqId) -> bool {
        let has = |queue: &CompletionQueue| queue.as_verbs().id() == id;
        has(&self.queues.cq) || self.queues.rcq.as_ref().is_some_and(has)
    }

    fn named(&self, ready: &CompletionQueue) -> ReadyQueue<'_> {
        match &self.queues.rcq {
            Some(rcq) if rcq == ready => ReadyQueue {
                queue: rcq,
                is_rcq: true,
            },
            _ => ReadyQueue {
                queue: &self.queues.cq,
                is_rcq: false,
            },
        }
    }

    /// The descriptor of the channel that its queues share: readable when one of them has something. Call
    /// [`try_wait`](Self::try_wait), and drain the queue that it names, until it names none, then sleep.
    ///
    /// # Errors
    /// [`Error::NotSharedChannel`] where the queues have channels of their own: they have
    /// descriptors themselves.
    #[doc(alias = "rpma_conn_get_compl_fd")]
    pub fn completion_fd(&self) -> Result<BorrowedFd<'_>, Error> {
        Ok(self.queues.shared_channel()?.as_fd())
    }

    /// The next completion in [`cq`](Self::cq), if there is one. Never blocks.
    ///
    /// # Errors
    /// As [`CompletionQueue::poll`].
    #[doc(alias = "rpma_conn_completion_get")]
    #[inline]
    pub fn next_completion(&self) -> Result<Option<Completion>, Error> {
        self.queues.cq.poll_one()
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
    ///
    /// # Errors
    /// [`Error::NoEventDescriptor`] for a connection of a peer with a dispatcher
    /// ([`Peer::with_dispatcher`]).
    #[doc(alias = "rpma_conn_get_event_fd")]
    pub fn event_fd(&self) -> Result<BorrowedFd<'_>, Error> {
        self.link.event_fd()
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

    /// What was agreed on: the parameters asked for, within the device's limits, on the accepting side also within what
    /// the peer offered.
    pub fn params(&self) -> &ConnParams {
        self.link.params()
    }

    /// Its queue pair.
    pub fn queue_pair(&self) -> &QueuePair {
        self.link.qp()
    }

    /// The peer it was made with.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }
}
