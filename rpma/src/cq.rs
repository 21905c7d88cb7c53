//! Completion queues: what became of operations.

use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use cm::Deadline;
use cm::verbs::{self, CompletionChannel, WcError, WcSuccess, WorkCompletion, wait_for};

use crate::error::Error;

/// How long a thread that waits for a completion sleeps at most before it looks again.
const NAP: Duration = Duration::from_millis(100);

/// What became of one operation.
#[derive(Debug, Clone, Copy)]
#[repr(transparent)]
pub struct Completion(WorkCompletion);

impl Completion {
    /// The number that the operation was posted with.
    #[inline]
    pub fn op_context(&self) -> u64 {
        self.0.wr_id()
    }

    /// What was done, or why not. A failed operation ends the connection: those behind it come
    /// back flushed.
    ///
    /// # Errors
    /// [`CompletionError`](crate::CompletionError), the status of the operation.
    #[inline]
    pub fn result(&self) -> Result<WcSuccess<'_>, WcError> {
        self.0.result()
    }

    /// The number of this side's queue pair, which tells connections apart.
    #[inline]
    pub fn qp_num(&self) -> u32 {
        self.0.qp_num()
    }

    /// The completion as verbs has it.
    pub fn as_work_completion(&self) -> &WorkCompletion {
        &self.0
    }
}

/// Where completions are picked up. `Send` and `Sync`, and a handle of its own: one thread may post
/// on the connection while another polls here. Cloning gives another handle.
///
/// The descriptor ([`AsFd`]) becomes readable when a completion arrives after the last
/// [`wait`](Self::wait); drain the queue, call `wait`, then sleep.
#[doc(alias = "rpma_cq")]
#[derive(Clone)]
pub struct CompletionQueue(Arc<Inner>);

struct Inner {
    cq: verbs::CompletionQueue,
    channel: CompletionChannel,
}

impl CompletionQueue {
    /// A queue with a channel of its own, armed.
    pub(crate) fn new(context: &verbs::Context, entries: u32) -> Result<Self, Error> {
        let channel = CompletionChannel::new(context)?;
        let cq = verbs::CompletionQueue::builder(context, entries)
            .own_channel(&channel)
            .build()?;
        cq.arm()?;
        Ok(Self(Arc::new(Inner { cq, channel })))
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

    /// Waits until a completion has arrived since the last call, or since the queue was made, and
    /// makes the queue report again. Then poll until nothing comes: it may be nothing at all, when
    /// the completion was polled before.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`](crate::ErrorKind::TimedOut) after `timeout`.
    #[doc(alias = "rpma_cq_wait")]
    pub fn wait(&self, timeout: Duration) -> Result<(), Error> {
        self.0.channel.next_event(Deadline::after(timeout))?;
        // Armed before the caller polls: a completion that comes from here on is reported.
        Ok(self.0.cq.arm()?)
    }

    /// The next completion, waited for if there is none yet.
    ///
    /// Several threads may wait here: each completion goes to one of them, at once or within 100 ms.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`](crate::ErrorKind::TimedOut) after `timeout`.
    #[doc(alias = "rpma_conn_completion_wait")]
    pub fn next(&self, timeout: Duration) -> Result<Completion, Error> {
        let deadline = Deadline::after(timeout);
        loop {
            let over = deadline.has_passed();
            if let Some(completion) = self.poll_one()? {
                return Ok(completion);
            }
            if over {
                return Err(verbs::Error::refused(
                    "ibv_get_cq_event",
                    verbs::ErrorKind::TimedOut,
                    "no completion came before the deadline",
                )
                .into());
            }
            // Not for longer: another thread may take the event, and leave completions behind.
            let nap = deadline.min(Deadline::after(NAP));
            wait_for(self.as_fd(), nap, || self.0.channel.try_next_event())?;
            // Armed before polling: a completion that comes from here on is reported.
            self.0.cq.arm()?;
        }
    }

    /// The queue as verbs has it.
    pub fn as_verbs(&self) -> &verbs::CompletionQueue {
        &self.0.cq
    }
}

impl AsFd for CompletionQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.channel.as_fd()
    }
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CompletionQueue").field(&self.0.cq).finish()
    }
}
