//! Completion queues: what became of operations.

mod builder;
mod completion;

use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cm::Deadline;
use cm::verbs::{self, CqId, WorkCompletion, wait_for};

pub use self::builder::CompletionQueueBuilder;
pub use self::completion::Completion;

use crate::channel::CompletionChannel;
use crate::error::Error;
use crate::peer::Peer;

/// How long a thread that waits for a completion sleeps at most before it looks again.
pub(crate) const NAP: Duration = Duration::from_millis(100);

/// Where completions are picked up. `Send` and `Sync`, and a handle of its own: one thread may post
/// on the connection while another polls here. Cloning gives another handle.
///
/// A connection makes its own, or takes one made before, which it may share with other
/// connections ([`ConnectionConfig::set_cq`](crate::ConnectionConfig::set_cq)). It reports to a channel: its own, or a
/// [`CompletionChannel`] that it shares with other queues.
///
/// # Waiting
/// Poll until fewer completions come than there is room for; then the queue is drained, and
/// [`wait`](Self::wait) sleeps until more has come. A `wait` before that returns at once: nothing
/// that is in the queue is slept over, also by who takes one completion a wait.
///
/// The descriptor ([`AsFd`]) becomes readable when a completion arrives after the last `wait`: drain
/// the queue, call [`try_wait`](Self::try_wait) until it says `false`, then sleep.
#[doc(alias = "rpma_cq")]
#[doc(alias = "rpma_cq_get_fd")]
#[doc(alias = "rpma_conn_get_completion_fd")]
#[derive(Clone)]
pub struct CompletionQueue(Arc<Inner>);

pub(crate) struct Inner {
    cq: verbs::CompletionQueue,
    /// Whether the last poll took all that was there. A hint for waits, which is not in step with
    /// other threads that poll.
    drained: AtomicBool,
    source: Source,
}

/// Where a queue reports that it has something.
enum Source {
    /// To nobody else's channel.
    Own(verbs::CompletionChannel),
    /// To a channel that finds it by its identity.
    Shared(CompletionChannel),
}

impl CompletionQueue {
    /// A queue of at least `entries` entries with a channel of its own.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) when the device has none so
    /// large, [`OutOfMemory`](crate::ErrorKind::OutOfMemory).
    pub fn new(peer: &Peer, entries: u32) -> Result<Self, Error> {
        Self::builder(peer, entries).build()
    }

    /// Starts making a queue of at least `entries` entries.
    pub fn builder(peer: &Peer, entries: u32) -> CompletionQueueBuilder<'_> {
        CompletionQueueBuilder::new(peer.device().context(), entries)
    }

    fn assemble(cq: verbs::CompletionQueue, source: Source) -> Result<Self, Error> {
        let queue = Self(Arc::new(Inner {
            cq,
            drained: AtomicBool::new(true),
            source,
        }));
        if let Source::Shared(channel) = &queue.0.source {
            channel.know(&queue.0);
        }
        queue.0.cq.arm()?;
        Ok(queue)
    }

    /// Takes up to `out.len()` completions out of the queue into `out`, and returns the filled part.
    /// Never blocks.
    ///
    /// # Errors
    /// The provider failed; the queue is of no further use.
    #[doc(alias = "rpma_cq_get_wc")]
    #[inline]
    pub fn poll<'a>(
        &self,
        out: &'a mut [MaybeUninit<Completion>],
    ) -> Result<&'a [Completion], Error> {
        let len = out.len();
        let start = out.as_mut_ptr().cast::<MaybeUninit<WorkCompletion>>();
        // SAFETY: `Completion` is a transparent wrapper, so this is the same memory and length.
        let raw = unsafe { slice::from_raw_parts_mut(start, len) };
        let got = self.0.cq.poll(raw).map_err(verbs::Error::from)?;
        self.0.drained.store(got.len() < len, Ordering::Relaxed);
        // SAFETY: the filled part is that many work completions, of the same layout.
        Ok(unsafe { slice::from_raw_parts(got.as_ptr().cast(), got.len()) })
    }

    /// The next completion, if there is one. Never blocks.
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    #[doc(alias = "rpma_cq_get_completion")]
    #[inline]
    pub fn poll_one(&self) -> Result<Option<Completion>, Error> {
        let mut out = [MaybeUninit::uninit()];
        Ok(self.poll(&mut out)?.first().copied())
    }

    /// Waits until there is something to poll: a completion has arrived since the last call, or the
    /// queue was not drained. It may turn out to be nothing, when the completion was polled
    /// before.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`](crate::ErrorKind::TimedOut) after `timeout`,
    /// [`Error::SharedChannel`] at once for a queue on a shared channel: wait on that, or by
    /// [`Connection::wait`](crate::Connection::wait).
    #[doc(alias = "rpma_cq_wait")]
    pub fn wait(&self, timeout: Duration) -> Result<(), Error> {
        if self.try_wait()? {
            return Ok(());
        }
        let channel = self.own_channel()?;
        let deadline = Deadline::after(timeout);
        loop {
            let over = deadline.has_passed();
            // Not for longer: another thread may take the event, and leave completions behind.
            let nap = deadline.min(Deadline::after(NAP));
            let ready = wait_for(channel.as_fd(), nap, || {
                Ok::<_, Error>(self.try_wait()?.then_some(()))
            })?;
            match ready {
                Some(()) => return Ok(()),
                None if over => return Err(no_completion()),
                None => {}
            }
        }
    }

    /// As [`wait`](Self::wait), without waiting: whether there is something to poll.
    ///
    /// # Errors
    /// As [`wait`](Self::wait), without the timeout.
    #[inline]
    pub fn try_wait(&self) -> Result<bool, Error> {
        let channel = self.own_channel()?;
        if self.0.has_more() {
            return Ok(true);
        }
        let event = channel.try_next_event()?;
        if event.is_some() {
            self.0.reported()?;
        }
        Ok(event.is_some())
    }

    /// The next completion, waited for if there is none yet.
    ///
    /// Several threads may wait here: each completion goes to one of them, at once or within 100 ms.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    #[doc(alias = "rpma_conn_completion_wait")]
    pub fn next(&self, timeout: Duration) -> Result<Completion, Error> {
        let mut out = [MaybeUninit::uninit()];
        self.poll_wait(&mut out, timeout)?
            .first()
            .copied()
            .ok_or_else(no_completion)
    }

    /// Takes completions as [`poll`](Self::poll) does, and waits until there is at least one.
    ///
    /// # Errors
    /// As [`wait`](Self::wait); [`Error::Invalid`] for an `out` without room.
    pub fn poll_wait<'a>(
        &self,
        out: &'a mut [MaybeUninit<Completion>],
        timeout: Duration,
    ) -> Result<&'a [Completion], Error> {
        if out.is_empty() {
            return Err(Error::Invalid(
                "a wait for completions was given no room for any".into(),
            ));
        }
        let channel = self.own_channel()?;
        let mut deadline = None;
        let got = loop {
            let over = deadline.is_some_and(Deadline::has_passed);
            let got = self.poll(out)?.len();
            if got > 0 {
                break got;
            }
            if over {
                return Err(no_completion());
            }
            let deadline = *deadline.get_or_insert_with(|| Deadline::after(timeout));
            // Not for longer: another thread may take the event, and leave completions behind.
            let nap = deadline.min(Deadline::after(NAP));
            wait_for(channel.as_fd(), nap, || channel.try_next_event())?;
            // Armed before polling: a completion that comes from here on is reported.
            self.0.cq.arm()?;
        };
        let start = out.as_ptr().cast();
        // SAFETY: the last poll filled the first `got` entries.
        Ok(unsafe { slice::from_raw_parts(start, got) })
    }

    /// The channel, if this queue has it for itself.
    #[inline]
    fn own_channel(&self) -> Result<&verbs::CompletionChannel, Error> {
        match &self.0.source {
            Source::Own(channel) => Ok(channel),
            Source::Shared(_) => Err(Error::SharedChannel),
        }
    }

    /// The channel that it shares with other queues, if it does.
    pub fn shared_channel(&self) -> Option<&CompletionChannel> {
        match &self.0.source {
            Source::Own(_) => None,
            Source::Shared(channel) => Some(channel),
        }
    }

    /// The number of entries, at least what was asked for.
    pub fn entries(&self) -> u32 {
        self.0.cq.entries()
    }

    /// The queue as verbs has it.
    pub fn as_verbs(&self) -> &verbs::CompletionQueue {
        &self.0.cq
    }

    pub(crate) fn from_inner(inner: Arc<Inner>) -> Self {
        Self(inner)
    }
}

impl Inner {
    pub(crate) fn id(&self) -> CqId {
        self.cq.id()
    }

    /// Whether the last poll may have left something.
    #[inline]
    pub(crate) fn has_more(&self) -> bool {
        !self.drained.load(Ordering::Relaxed)
    }

    /// Makes the queue report again, after its event was taken and before its completions are.
    #[inline]
    pub(crate) fn reported(&self) -> Result<(), Error> {
        let armed = self.cq.arm();
        // Afterwards: who has polled it empty before it was armed may have missed what came between.
        self.drained.store(false, Ordering::Relaxed);
        Ok(armed?)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Source::Shared(channel) = &self.source {
            channel.forget(self.id());
        }
    }
}

/// Handles of the same queue are equal.
impl PartialEq for CompletionQueue {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for CompletionQueue {}

impl AsFd for CompletionQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.0.source {
            Source::Own(channel) => channel.as_fd(),
            Source::Shared(channel) => channel.as_fd(),
        }
    }
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CompletionQueue").field(&self.0.cq).finish()
    }
}

/// The error of a wait for a completion that did not come.
pub(crate) fn no_completion() -> Error {
    verbs::Error::refused(
        "ibv_get_cq_event",
        verbs::ErrorKind::TimedOut,
        "no completion came before the deadline",
    )
    .into()
}
