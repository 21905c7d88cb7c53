//! Completion queues.

mod builder;
mod channel;
mod completion;
mod extended_clock;
mod extended_completion;
mod extended_queue;
mod inner;
mod room;

use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use rdma_core_sys as sys;

pub use self::builder::CompletionQueueBuilder;
pub use self::channel::{CompletionChannel, CompletionEvent, CqId};
pub use self::completion::{WcError, WcOpcode, WcStatus, WcSuccess, WorkCompletion};
pub use self::extended_completion::{CompletionFields, ExtendedCompletion, ExtendedSuccess};
pub use self::extended_queue::ExtendedCompletionQueue;

pub(crate) use self::inner::CqInner;
pub(crate) use self::room::CqRoom;

use self::channel::{EventCount, no_completion};
use self::inner::CqParents;
use crate::context::Context;
use crate::deadline::{Deadline, wait_for};
use crate::error::{CloseError, ErrnoText, Error, ErrorKind, from_return};
use crate::owned::Owned;

/// How long a waiting thread sleeps at most before it looks into the queue again: another thread may
/// have taken its event, and a kernel short of memory may have dropped it.
const NAP: Duration = Duration::from_millis(100);

/// Where completions are picked up. `Send` and `Sync`; queue pairs keep it alive.
#[doc(alias = "ibv_cq")]
pub struct CompletionQueue {
    inner: Arc<CqInner>,
    id: CqId,
    shared: bool,
}

/// Why polling failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PollError {
    /// This is a forked child of the process that made the queue.
    #[error("the completion queue belongs to the parent process")]
    Forked,
    /// The provider answered with this number, which is no count of completions.
    #[error("ibv_poll_cq failed with {0}")]
    Provider(i32),
    /// An extended queue could not be polled; the errno is positive.
    #[error("ibv_start_poll failed: {}", ErrnoText(*.0))]
    Start(i32),
}

impl From<PollError> for Error {
    fn from(error: PollError) -> Self {
        match error {
            PollError::Forked => Self::forked("ibv_poll_cq"),
            PollError::Start(errno) => Self::from_errno("ibv_start_poll", errno),
            PollError::Provider(code) => Self::refused(
                "ibv_poll_cq",
                ErrorKind::Provider,
                // Providers have numbers of their own here: not an errno.
                format!("the device answered {code}, which is no count of completions"),
            ),
        }
    }
}

impl CompletionQueue {
    /// Starts building a queue of at least `entries` entries on `context`.
    pub fn builder(context: &Context, entries: u32) -> CompletionQueueBuilder<'_> {
        CompletionQueueBuilder::new(context, entries)
    }

    /// Takes up to `out.len()` completions out of the queue into `out` and returns the filled part.
    ///
    /// # Errors
    /// [`PollError`], after which the queue is of no further use.
    #[doc(alias = "ibv_poll_cq")]
    #[inline]
    pub fn poll<'a>(
        &self,
        out: &'a mut [MaybeUninit<WorkCompletion>],
    ) -> Result<&'a mut [WorkCompletion], PollError> {
        self.inner.poll(out)
    }

    /// Asks for one event on the channel when the next completion arrives.
    ///
    /// Completions that are in the queue already give no event: poll again after arming.
    ///
    /// # Errors
    /// The errno of the call.
    #[doc(alias = "ibv_req_notify_cq")]
    pub fn arm(&self) -> Result<(), Error> {
        let verb = "ibv_req_notify_cq";
        let raw = self.inner.owned.raw_checked(verb)?;
        // SAFETY: the queue is live.
        let ret = unsafe { sys::ibv_req_notify_cq(raw, 0) };
        from_return(verb, ret)
    }

    /// Waits until completions are in `out`: polls, arms, polls, sleeps, and again.
    ///
    /// Several threads may wait on one queue. An event wakes one of them, which may leave
    /// completions behind: the others find those within 100 ms.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`] once the deadline has passed with an empty queue,
    /// [`ErrorKind::InvalidArgument`] for an empty `out`, [`ErrorKind::NoChannel`] or [`ErrorKind::SharedChannel`] when there is no channel of its own.
    pub fn wait<'a>(
        &self,
        out: &'a mut [MaybeUninit<WorkCompletion>],
        deadline: Deadline,
    ) -> Result<&'a mut [WorkCompletion], Error> {
        let got = self.wait_with(out.len(), deadline, || Ok(self.poll(out)?.len()))?;
        // SAFETY: the last poll filled the first `got` entries.
        Ok(unsafe { filled(out, got) })
    }

    /// Waits until `poll`, which has `room` for completions, has got some, and says how many: polls,
    /// arms, polls, sleeps, again.
    fn wait_with(
        &self,
        room: usize,
        deadline: Deadline,
        mut poll: impl FnMut() -> Result<usize, Error>,
    ) -> Result<usize, Error> {
        let channel = self.own_channel()?;
        if room == 0 {
            return Err(Error::refused(
                "ibv_poll_cq",
                ErrorKind::InvalidArgument,
                "a wait for completions was given no room for any",
            ));
        }
        loop {
            let over = deadline.has_passed();
            let got = poll()?;
            if got > 0 {
                return Ok(got);
            }
            if over {
                return Err(no_completion());
            }
            self.arm()?;
            let got = poll()?;
            if got > 0 {
                return Ok(got);
            }
            let nap = deadline.min(Deadline::after(NAP));
            if wait_for(channel.as_fd(), nap, || channel.try_next_event())?.is_some() {
                // The event is used up: whoever sleeps on this queue needs the next one.
                self.arm()?;
            }
        }
    }

    /// The channel, if this queue has it for itself.
    ///
    /// # Errors
    /// [`ErrorKind::NoChannel`] or [`ErrorKind::SharedChannel`].
    pub fn own_channel(&self) -> Result<&CompletionChannel, Error> {
        let verb = "ibv_get_cq_event";
        match self.channel() {
            Some(channel) if !self.shared => Ok(channel),
            Some(_) => Err(Error::refused(
                verb,
                ErrorKind::SharedChannel,
                "the completion channel is shared; wait on the channel, which names the queue",
            )),
            None => Err(Error::refused(
                verb,
                ErrorKind::NoChannel,
                "the completion queue has no completion channel",
            )),
        }
    }

    /// The channel it reports to, own or shared.
    pub fn channel(&self) -> Option<&CompletionChannel> {
        self.inner.owned.parents().channel.as_ref()
    }

    /// Its identity in [`CompletionEvent::queue`].
    pub fn id(&self) -> CqId {
        self.id
    }

    /// The number of entries, at least what was asked for.
    pub fn entries(&self) -> u32 {
        self.inner.room.entries()
    }

    /// Makes the queue at least `entries` entries large; what is in it stays.
    ///
    /// # Errors
    /// [`ErrorKind::Limit`] for 0, a size above the device's limit or below what is promised to
    /// queue pairs; [`ErrorKind::Unsupported`] where the device cannot; EINVAL when more completions
    /// are in it. Its size is as before then.
    #[doc(alias = "ibv_resize_cq")]
    pub fn resize(&self, entries: u32) -> Result<(), Error> {
        self.inner.resize(entries)
    }

    /// Holds events back until `count` completions have come or `period` microseconds have passed
    /// since the first of them; 0 and 0 hold back nothing. Polling sees completions at once.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] where the device cannot, EINVAL above its
    /// [limits](crate::ExtendedAttributes::cq_moderation_caps).
    #[doc(alias = "ibv_modify_cq")]
    pub fn moderate(&self, count: u16, period: u16) -> Result<(), Error> {
        let verb = "ibv_modify_cq";
        let raw = self.inner.owned.raw_checked(verb)?;
        let mut attributes = sys::ibv_modify_cq_attr {
            attr_mask: sys::ibv_cq_attr_mask::IBV_CQ_ATTR_MODERATE.0,
            moderate: sys::ibv_moderate_cq {
                cq_count: count,
                cq_period: period,
            },
        };
        // SAFETY: the queue is live, and what the mask names is filled.
        let ret = unsafe { sys::ibv_modify_cq(raw, &mut attributes) };
        from_return(verb, ret)
            .map_err(|e| e.with_detail(format!("{count} completions or {period} microseconds")))
    }

    /// The device it is of.
    pub fn context(&self) -> &Context {
        self.inner.context()
    }

    /// Destroys the queue now.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] while a queue pair uses it.
    #[doc(alias = "ibv_destroy_cq")]
    pub fn close(self) -> Result<(), CloseError<Self>> {
        let Self { inner, id, shared } = self;
        let inner = Arc::try_unwrap(inner).map_err(|inner| CloseError {
            error: Error::refused(
                "ibv_destroy_cq",
                ErrorKind::Busy,
                "a queue pair still uses the completion queue",
            ),
            handle: Self { inner, id, shared },
        })?;
        inner.close().map_err(|failed| CloseError {
            error: failed.error,
            handle: Self {
                inner: Arc::new(failed.handle),
                id,
                shared,
            },
        })
    }

    /// Takes over a queue that other code has made. `channel` is the one that it reports to, if any,
    /// which it has for itself unless it is `shared`.
    ///
    /// The queue's context pointer becomes one of this crate.
    ///
    /// # Safety
    /// - `raw` is a live queue of `context` that nobody else destroys, polls, resizes or arms, and no
    ///   queue pair but those handed over to this crate uses it.
    /// - Its channel in C is `channel`, or none; and the queue was not armed since its last event
    ///   was taken and acknowledged, or no thread takes events from the channel during this call.
    /// - All events got for it are acknowledged.
    /// - It was not made in a parent domain with a thread domain, nor for one thread alone, unless
    ///   it is used as [`ProtectionDomain::with_thread_domain`](crate::ProtectionDomain::with_thread_domain)
    ///   says.
    pub unsafe fn from_raw(
        raw: NonNull<sys::ibv_cq>,
        context: &Context,
        channel: Option<&CompletionChannel>,
        shared: bool,
    ) -> Self {
        let events = Arc::new(EventCount::new());
        let id = events.queue;
        // SAFETY: the queue is live, and nobody reads the field now.
        unsafe { (*raw.as_ptr()).cq_context = Arc::as_ptr(&events).cast_mut().cast() };
        let parents = CqParents {
            events,
            channel: channel.cloned(),
            context: context.clone(),
        };
        // SAFETY: the caller gives the queue over; it needs its channel and its context.
        let owned = unsafe { Owned::new(raw, context.origin(), parents) };
        Self {
            inner: Arc::new(CqInner::new(owned, false)),
            id,
            shared,
        }
    }

    /// The C queue, for calls that this crate does not have. It must not be destroyed, and its
    /// events must not be taken or acknowledged.
    pub fn as_raw(&self) -> *mut sys::ibv_cq {
        self.inner.raw()
    }

    pub(crate) fn inner(&self) -> &Arc<CqInner> {
        &self.inner
    }
}

/// The first `got` entries.
///
/// # Safety
/// - `got` is at most the length, and so many entries are filled with values of the type.
unsafe fn filled<T>(out: &mut [MaybeUninit<T>], got: usize) -> &mut [T] {
    // SAFETY: forwarded to the caller.
    unsafe { slice::from_raw_parts_mut(out.as_mut_ptr().cast(), got) }
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue")
            .field("id", &self.id)
            .field("entries", &self.entries())
            .field("shared_channel", &self.shared)
            .finish_non_exhaustive()
    }
}
