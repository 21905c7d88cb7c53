//! Shared receive queues.

use std::fmt;
use std::sync::Arc;

use cm::verbs::{self, RecvRequest};

use crate::cq::CompletionQueue;
use crate::error::Error;
use crate::memory::{Span, Usage};
use crate::peer::Peer;

/// Sizes of a [`SharedReceiveQueue`].
#[doc(alias = "rpma_srq_cfg")]
#[doc(alias = "rpma_srq_cfg_new")]
#[doc(alias = "rpma_srq_cfg_delete")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SrqConfig {
    rq_size: u32,
    rcq_size: u32,
}

impl Default for SrqConfig {
    fn default() -> Self {
        Self {
            rq_size: Self::RQ_SIZE,
            rcq_size: Self::RCQ_SIZE,
        }
    }
}

impl SrqConfig {
    /// Receives that can be posted at once, by default.
    pub const RQ_SIZE: u32 = 20;
    /// Entries of the queue's own receive completion queue, by default.
    pub const RCQ_SIZE: u32 = 20;

    /// Receives posted at once, [20](Self::RQ_SIZE) by default.
    #[doc(alias = "rpma_srq_cfg_set_rq_size")]
    pub fn set_rq_size(&mut self, receives: u32) -> &mut Self {
        self.rq_size = receives;
        self
    }

    /// Receives posted at once.
    #[doc(alias = "rpma_srq_cfg_get_rq_size")]
    pub fn rq_size(&self) -> u32 {
        self.rq_size
    }

    /// Entries of a completion queue of its own, where the receives of all connections complete;
    /// [20](Self::RCQ_SIZE) by default. It gets at least as many as there are receives. 0 for none: then
    /// each receive completes where its connection says.
    #[doc(alias = "rpma_srq_cfg_set_rcq_size")]
    pub fn set_rcq_size(&mut self, entries: u32) -> &mut Self {
        self.rcq_size = entries;
        self
    }

    /// Entries of a completion queue of its own; 0 for none.
    #[doc(alias = "rpma_srq_cfg_get_rcq_size")]
    pub fn rcq_size(&self) -> u32 {
        self.rcq_size
    }
}

/// Receives for any of several connections. `Send` and `Sync`; cloning gives another handle, and
/// connections keep it alive.
///
/// A receive belongs to no connection until a message takes it: the end of one connection flushes
/// none of them. [`Completion::qp_num`](crate::Completion::qp_num) says whose message it was.
///
/// ```no_run
/// # fn main() -> Result<(), rpma::Error> {
/// # let peer = rpma::Peer::new(&rpma::Device::local([192, 0, 2, 1].into())?)?;
/// use rpma::{ConnectionConfig, LocalRegion, SharedReceiveQueue, SrqConfig, Usage};
///
/// let srq = SharedReceiveQueue::new(&peer, &SrqConfig::default())?;
/// let memory = LocalRegion::alloc(&peer, 20 * 64, Usage::RECV)?;
/// for n in 0..20 {
///     srq.recv(memory.span(n * 64..(n + 1) * 64)?, n)?;
/// }
/// let mut config = ConnectionConfig::default();
/// config.set_srq(Some(&srq));
/// # Ok(())
/// # }
/// ```
#[doc(alias = "rpma_srq")]
#[derive(Clone)]
pub struct SharedReceiveQueue(Arc<Inner>);

struct Inner {
    srq: verbs::SharedReceiveQueue,
    /// Receives that were asked for; the device may take more.
    asked: u32,
    rcq: Option<CompletionQueue>,
    peer: Peer,
    domain: usize,
}

impl SharedReceiveQueue {
    /// Makes a queue.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) for a size that the device
    /// does not have, [`OutOfMemory`](crate::ErrorKind::OutOfMemory).
    #[doc(alias = "rpma_srq_new")]
    pub fn new(peer: &Peer, config: &SrqConfig) -> Result<Self, Error> {
        if config.rq_size == 0 {
            return Err(Error::Invalid(
                "a shared receive queue of 0 receives takes none: give a size of at least 1".into(),
            ));
        }
        let srq = verbs::SharedReceiveQueue::new(peer.domain(), config.rq_size, 1)?;
        let rcq = match config.rcq_size {
            0 => None,
            entries => {
                let max = peer.device().context().attributes().max_cqe();
                let entries = entries.max(crate::connection::ring(srq.max_wr()).min(max));
                Some(CompletionQueue::new(peer, entries)?)
            }
        };
        Ok(Self(Arc::new(Inner {
            srq,
            asked: config.rq_size,
            rcq,
            peer: peer.clone(),
            domain: peer.domain_identity(),
        })))
    }

    /// Posts a receive: the next message of any of its connections goes to `dst`.
    ///
    /// # Errors
    /// [`Error::WrongPeer`], [`Error::UsageForbids`] without [`Usage::RECV`],
    /// [`Error::QueueFull`].
    #[doc(alias = "rpma_srq_recv")]
    #[inline]
    pub fn recv(&self, dst: Span<'_>, op_context: u64) -> Result<(), Error> {
        // A buffer may be longer than any message.
        let sge = [dst.sge("recv", Usage::RECV, self.0.domain, u32::MAX)?];
        let mut request = RecvRequest::new(op_context, &sge);
        // SAFETY: the span lies in a live region of this domain, whose memory is never borrowed,
        // and which is deregistered before it is unmapped.
        unsafe { self.0.srq.post_recv(&mut request) }.map_err(Error::from)
    }

    /// Where receives complete, of all connections; `None` when each completes where its
    /// connection says.
    #[doc(alias = "rpma_srq_get_rcq")]
    pub fn rcq(&self) -> Option<&CompletionQueue> {
        self.0.rcq.as_ref()
    }

    /// How many receives can be posted at once, as granted.
    pub fn rq_size(&self) -> u32 {
        self.0.srq.max_wr()
    }

    /// How many receives were asked for.
    pub(crate) fn asked_rq_size(&self) -> u32 {
        self.0.asked
    }

    /// Asks for an event of the device, once, when fewer than `limit` receives are left; 0 asks for none. It comes to
    /// [`AsyncEvents`](cm::verbs::AsyncEvents) with the [identity](cm::verbs::SharedReceiveQueue::id) of [`as_verbs`](Self::as_verbs).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) for a limit above the size.
    #[doc(alias = "ibv_modify_srq")]
    pub fn arm_limit(&self, limit: u32) -> Result<(), Error> {
        Ok(self.0.srq.arm_limit(limit)?)
    }

    /// Releases the queue now, with the receives in it.
    ///
    /// # Errors
    /// [`Error::Invalid`] while connections or other handles use it; it then lives on in those.
    #[doc(alias = "rpma_srq_delete")]
    pub fn close(self) -> Result<(), Error> {
        let inner = Arc::into_inner(self.0).ok_or_else(|| {
            Error::Invalid(
                "connections, configurations or other handles still use the shared receive queue"
                    .into(),
            )
        })?;
        inner.srq.close().map_err(|failed| failed.error.into())
    }

    /// The peer that it belongs to.
    pub fn peer(&self) -> &Peer {
        &self.0.peer
    }

    /// The queue as verbs has it.
    pub fn as_verbs(&self) -> &verbs::SharedReceiveQueue {
        &self.0.srq
    }
}

/// Handles of the same queue are equal.
impl PartialEq for SharedReceiveQueue {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for SharedReceiveQueue {}

impl fmt::Debug for SharedReceiveQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedReceiveQueue")
            .field("srq", &self.0.srq)
            .field("rcq", &self.0.rcq)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_librpmas_by_default_and_read_back() {
        let mut config = SrqConfig::default();
        assert_eq!((config.rq_size(), config.rcq_size()), (20, 20));
        config.set_rq_size(7).set_rcq_size(0);
        assert_eq!((config.rq_size(), config.rcq_size()), (7, 0));
    }
}
