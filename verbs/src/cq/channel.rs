//! Completion channels: sleeping until a queue has something.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rdma_core_sys as sys;

use crate::context::Context;
use crate::deadline::{Deadline, wait_for};
use crate::error::{Error, ErrorKind, from_pointer, last_errno};
use crate::owned::{Destroy, Owned};

// SAFETY: ibv_destroy_comp_channel returns EBUSY and changes nothing while a queue uses the channel.
unsafe impl Destroy for sys::ibv_comp_channel {
    const VERB: &'static str = "ibv_destroy_comp_channel";

    unsafe fn destroy(object: *mut Self) -> i32 {
        // SAFETY: forwarded to the caller.
        unsafe { sys::ibv_destroy_comp_channel(object) }
    }
}

/// Where completion queues report that they have something. Cloning gives another handle.
///
/// The descriptor ([`AsFd`]) is non-blocking and becomes readable with an event, so it can be given
/// to `poll`, epoll or an async runtime. It is for that alone: an event read from it by other means
/// is never acknowledged, and dropping its queue then waits for ever.
///
/// # Example
///
/// One thread that serves several queues:
///
/// ```no_run
/// use std::collections::HashMap;
/// use std::mem::MaybeUninit;
/// use verbs::{CompletionChannel, CompletionQueue, Context, Deadline};
///
/// # fn example(context: &Context, deadline: Deadline) -> Result<(), Box<dyn std::error::Error>> {
/// let channel = CompletionChannel::new(context)?;
/// let mut queues = HashMap::new();
/// for _ in 0..4 {
///     let cq = CompletionQueue::builder(context, 64).shared_channel(&channel).build()?;
///     cq.arm()?;
///     queues.insert(cq.id(), cq);
/// }
/// loop {
///     let cq = &queues[&channel.next_event(deadline)?.queue()];
///     // Armed first: what comes after the last poll gives another event.
///     cq.arm()?;
///     let mut completions = [const { MaybeUninit::uninit() }; 16];
///     loop {
///         let found = cq.poll(&mut completions)?;
///         if found.is_empty() {
///             break;
///         }
///         for completion in found {
///             println!("request {}: {}", completion.wr_id(), completion.status());
///         }
///     }
/// }
/// # }
/// ```
#[doc(alias = "ibv_comp_channel")]
#[doc(alias = "ibv_destroy_comp_channel")]
#[derive(Clone)]
pub struct CompletionChannel(Arc<Owned<sys::ibv_comp_channel, Context>>);

impl CompletionChannel {
    /// Creates a channel on `context`.
    ///
    /// # Errors
    /// EMFILE when the process has no descriptor left.
    #[doc(alias = "ibv_create_comp_channel")]
    pub fn new(context: &Context) -> Result<Self, Error> {
        let verb = "ibv_create_comp_channel";
        let raw = context.raw_checked(verb)?;
        // SAFETY: the context is open.
        let raw = unsafe { sys::ibv_create_comp_channel(raw) };
        let raw = from_pointer(verb, raw)?;
        // SAFETY: the channel was just made, of this context, and no queue reports to it.
        unsafe { Self::from_raw(raw, context) }
    }

    /// Takes over a channel that other code has made, and makes its descriptor non-blocking.
    ///
    /// # Errors
    /// The errno of `fcntl`, which destroys the channel as well.
    ///
    /// # Safety
    /// - `raw` is a live channel of `context` that nobody else destroys or takes events from.
    /// - No queue reports to it but those of this crate, also those taken over by
    ///   [`CompletionQueue::from_raw`](crate::CompletionQueue::from_raw), and queues that never give
    ///   an event.
    pub unsafe fn from_raw(
        raw: NonNull<sys::ibv_comp_channel>,
        context: &Context,
    ) -> Result<Self, Error> {
        // SAFETY: the caller gives the channel over; it needs its context, which is its parent.
        let owned = unsafe { Owned::new(raw, context.origin(), context.clone()) };
        let channel = Self(Arc::new(owned));
        rustix::fs::fcntl_setfl(channel.as_fd(), rustix::fs::OFlags::NONBLOCK)
            .map_err(|e| Error::from_errno("fcntl", e.raw_os_error()))?;
        Ok(channel)
    }

    /// The next event if there is one; never blocks.
    ///
    /// The event is accounted for before this returns, so dropping the queue never waits for it.
    ///
    /// # Errors
    /// EIO when the device has gone.
    #[doc(alias = "ibv_get_cq_event")]
    pub fn try_next_event(&self) -> Result<Option<CompletionEvent>, Error> {
        let verb = "ibv_get_cq_event";
        let raw = self.0.raw_checked(verb)?;
        let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel is live and both places are valid.
        let ret = unsafe { sys::ibv_get_cq_event(raw, &mut cq, &mut context) };
        if ret != 0 {
            return match last_errno() {
                libc::EAGAIN | libc::EINTR => Ok(None),
                errno => Err(Error::from_errno(verb, errno)),
            };
        }
        // SAFETY: every queue on one of our channels has an `EventCount` as its cq_context. It is
        // freed only after ibv_destroy_cq has returned, and that waits for the event just got.
        let count = unsafe { &*context.cast::<EventCount>() };
        let queue = count.queue;
        // SAFETY: `cq` is the queue of the event just got, which is not acknowledged yet.
        unsafe { EventCount::record(&count.pending, cq) };
        Ok(Some(CompletionEvent { queue }))
    }

    /// Waits for the next event.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`] once the deadline has passed.
    pub fn next_event(&self, deadline: Deadline) -> Result<CompletionEvent, Error> {
        wait_for(self.as_fd(), deadline, || self.try_next_event())?.ok_or_else(no_completion)
    }

    /// The device this channel is of.
    pub fn context(&self) -> &Context {
        self.0.parents()
    }

    /// The C channel, for calls that this crate does not have. It must not be destroyed, its events
    /// must not be taken, and no queue of other code may report to it.
    pub fn as_raw(&self) -> *mut sys::ibv_comp_channel {
        self.0.raw()
    }
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is live; its descriptor is set at creation.
        let fd = unsafe { (*self.0.raw()).fd };
        // SAFETY: the descriptor is open as long as the channel, which `self` keeps alive.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }
}

impl fmt::Debug for CompletionChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CompletionChannel").field(&self.0).finish()
    }
}

/// The error of a wait for a completion that did not come.
pub(super) fn no_completion() -> Error {
    Error::refused(
        "ibv_get_cq_event",
        ErrorKind::TimedOut,
        "no completion came before the deadline",
    )
}

/// A queue had a completion after it was armed. It may be empty again by now.
///
/// Whoever gets it has nothing to acknowledge.
#[doc(alias = "ibv_ack_cq_events")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompletionEvent {
    queue: CqId,
}

impl CompletionEvent {
    /// Which queue it was.
    pub fn queue(&self) -> CqId {
        self.queue
    }
}

/// The identity of a completion queue, never used twice in a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CqId(u64);

impl CqId {
    pub(crate) fn from_number(number: u64) -> Self {
        Self(number)
    }

    pub(super) fn number(self) -> u64 {
        self.0
    }
}

/// Counts the events got for one queue until they are acknowledged in one call.
///
/// An acknowledgement costs a lock in C. A queue can be destroyed only when every event got was
/// acknowledged, so the queue's drop acknowledges what is left ([`close`](Self::close)).
#[derive(Debug)]
pub(super) struct EventCount {
    pub(super) queue: CqId,
    pending: AtomicU32,
}

impl EventCount {
    /// Set in `pending` once the queue is being destroyed: from then on nobody else acknowledges.
    const CLOSED: u32 = 1 << 31;
    /// How many events one acknowledgement covers.
    const BATCH: u32 = 256;

    pub(super) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self {
            queue: CqId(NEXT.fetch_add(1, Ordering::Relaxed)),
            pending: AtomicU32::new(0),
        }
    }

    /// Counts one event, or acknowledges.
    ///
    /// # Safety
    /// - `cq` is the queue of the count that `counter` is in, and one event got for it is not
    ///   acknowledged yet. (This keeps the queue and the count alive until the acknowledgement or
    ///   the increment below, after which neither is touched.)
    // Takes the counter alone: another thread may free the count before this returns, which a
    // reference argument allows only for memory that is atomic as a whole.
    unsafe fn record(counter: &AtomicU32, cq: *mut sys::ibv_cq) {
        let mut pending = counter.load(Ordering::Relaxed);
        loop {
            let (next, ack) = if pending & Self::CLOSED != 0 {
                (pending, 1)
            } else if pending + 1 == Self::BATCH {
                (0, Self::BATCH)
            } else {
                (pending + 1, 0)
            };
            match counter.compare_exchange_weak(pending, next, Ordering::AcqRel, Ordering::Relaxed)
            {
                Ok(_) if ack == 0 => return,
                Ok(_) => {
                    // SAFETY: the caller's event is among the `ack` events, all got and none
                    // acknowledged, so the queue is live.
                    return unsafe { sys::ibv_ack_cq_events(cq, ack) };
                }
                Err(current) => pending = current,
            }
        }
    }

    /// Acknowledges what is pending and lets later events acknowledge themselves.
    ///
    /// # Safety
    /// - `cq` is the live queue of this count.
    pub(super) unsafe fn close(&self, cq: *mut sys::ibv_cq) {
        let pending = self.pending.swap(Self::CLOSED, Ordering::AcqRel);
        if pending & Self::CLOSED == 0 && pending > 0 {
            // SAFETY: exactly these events were got and are not acknowledged; the queue is live.
            unsafe { sys::ibv_ack_cq_events(cq, pending) };
        }
    }
}
