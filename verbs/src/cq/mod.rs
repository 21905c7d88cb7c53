//! Completion queues.

mod channel;
mod completion;

use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rdma_core_sys as sys;

pub use self::channel::{CompletionChannel, CompletionEvent, CqId};
pub use self::completion::{WcError, WcOpcode, WcStatus, WcSuccess, WorkCompletion};

use self::channel::{EventCount, no_completion};
use crate::context::Context;
use crate::deadline::{Deadline, wait_for};
use crate::error::{CloseError, Error, ErrorKind, from_pointer, from_return};
use crate::owned::{Destroy, Owned};
use crate::process::Origin;

// SAFETY: ibv_destroy_cq returns EBUSY and changes nothing while a queue pair uses the queue, and
// otherwise returns only after every event got was acknowledged.
unsafe impl Destroy for sys::ibv_cq {
    const VERB: &'static str = "ibv_destroy_cq";

    unsafe fn destroy(object: *mut Self) -> i32 {
        // SAFETY: forwarded to the caller.
        unsafe { sys::ibv_destroy_cq(object) }
    }
}

/// How to make a [`CompletionQueue`].
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct CompletionQueueBuilder<'a> {
    context: &'a Context,
    entries: u32,
    channel: Option<(&'a CompletionChannel, bool)>,
    vector: u32,
    allow_overrun: bool,
}

impl<'a> CompletionQueueBuilder<'a> {
    /// Reports events on `channel`, which this queue has for itself: [`CompletionQueue::wait`] works.
    pub fn own_channel(mut self, channel: &'a CompletionChannel) -> Self {
        self.channel = Some((channel, false));
        self
    }

    /// Reports events on `channel`, which other queues use as well: wait on the channel.
    pub fn shared_channel(mut self, channel: &'a CompletionChannel) -> Self {
        self.channel = Some((channel, true));
        self
    }

    /// The interrupt vector, from 0 (the default) to below the device's number of vectors.
    pub fn vector(mut self, vector: u32) -> Self {
        self.vector = vector;
        self
    }

    /// Lets queue pairs attach although their requests could overrun this queue, which then loses
    /// completions. Off by default.
    pub fn allow_overrun(mut self, allow: bool) -> Self {
        self.allow_overrun = allow;
        self
    }

    /// Creates the queue.
    ///
    /// # Errors
    /// [`ErrorKind::Limit`] when `entries` is 0 or above the device's limit; ENOMEM when memory may
    /// not be locked.
    #[doc(alias = "ibv_create_cq")]
    pub fn build(self) -> Result<CompletionQueue, Error> {
        let verb = "ibv_create_cq";
        let origin = self.context.origin();
        origin.check(verb)?;
        if self
            .channel
            .is_some_and(|(c, _)| c.context() != self.context)
        {
            return Err(Error::refused(
                verb,
                ErrorKind::InvalidArgument,
                "the completion channel is of another device, or of the same device opened again",
            ));
        }
        let max = self.context.attributes().max_cqe();
        let entries = i32::try_from(self.entries)
            .ok()
            .filter(|_| (1..=max).contains(&self.entries))
            .ok_or_else(|| {
                Error::refused(
                    verb,
                    ErrorKind::Limit,
                    format!(
                        "{} entries asked, device {} allows 1 to {max}",
                        self.entries,
                        self.context.name()
                    ),
                )
            })?;
        let vectors = {
            // SAFETY: the context is open; the field is set when it was opened.
            let count = unsafe { (*self.context.as_raw()).num_comp_vectors };
            u32::try_from(count).unwrap_or(0).max(1)
        };
        let vector = i32::try_from(self.vector)
            .ok()
            .filter(|_| self.vector < vectors)
            .ok_or_else(|| {
                Error::refused(
                    verb,
                    ErrorKind::Limit,
                    format!("vector {} asked, the device has {vectors}", self.vector),
                )
            })?;
        let events = Arc::new(EventCount::new());
        let channel = self.channel.map(|(channel, _)| channel.clone());
        let raw_channel = channel
            .as_ref()
            .map_or(ptr::null_mut(), CompletionChannel::raw);
        // SAFETY: context and channel are live; the context pointer is only ever handed back to
        // `CompletionChannel::try_next_event`, for which `events` lives as long as the queue.
        let raw = unsafe {
            sys::ibv_create_cq(
                self.context.as_raw(),
                entries,
                Arc::as_ptr(&events).cast_mut().cast(),
                raw_channel,
                vector,
            )
        };
        let raw =
            from_pointer(verb, raw).map_err(|e| e.with_detail(format!("{entries} entries")))?;
        let id = events.queue;
        let acknowledge = Acknowledge {
            events: Arc::clone(&events),
            cq: raw,
            origin,
        };
        // SAFETY: the queue was just made; its parents are all that it refers to.
        let owned = unsafe { Owned::new(raw, origin, (events, channel, self.context.clone())) };
        Ok(CompletionQueue {
            inner: Arc::new(CqInner {
                acknowledge,
                owned,
                room: AtomicU32::new(0),
                allow_overrun: self.allow_overrun,
            }),
            origin,
            id,
            shared: self.channel.is_some_and(|(_, shared)| shared),
        })
    }
}

/// How long a waiting thread sleeps at most before it looks into the queue again: another thread may
/// have taken its event, and a kernel short of memory may have dropped it.
const NAP: Duration = Duration::from_millis(100);

type CqParents = (Arc<EventCount>, Option<CompletionChannel>, Context);

/// What a queue pair keeps alive of its completion queues.
pub(crate) struct CqInner {
    // Dropped in this order: events are acknowledged before the queue is destroyed.
    acknowledge: Acknowledge,
    owned: Owned<sys::ibv_cq, CqParents>,
    /// Entries promised to attached queue pairs.
    room: AtomicU32,
    allow_overrun: bool,
}

impl CqInner {
    pub(crate) fn raw(&self) -> *mut sys::ibv_cq {
        self.owned.raw()
    }

    pub(crate) fn context(&self) -> &Context {
        &self.owned.parents().2
    }

    fn entries(&self) -> u32 {
        // SAFETY: the queue is live, and nothing here resizes it.
        u32::try_from(unsafe { (*self.raw()).cqe }).unwrap_or(0)
    }

    /// Promises `wanted` entries to a queue pair.
    pub(crate) fn reserve(&self, wanted: u32) -> Result<(), Error> {
        let entries = self.entries();
        let fits = |taken: u32| {
            let sum = taken.checked_add(wanted)?;
            (sum <= entries || self.allow_overrun).then_some(sum)
        };
        match self
            .room
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, fits)
        {
            Ok(_) => Ok(()),
            Err(taken) => Err(Error::refused(
                "ibv_create_qp",
                ErrorKind::Limit,
                format!(
                    "the completion queue has {entries} entries, {taken} of them promised; {} are \
                     needed for a queue pair with {wanted} more requests",
                    u64::from(taken) + u64::from(wanted)
                ),
            )
            .with_hint("make the completion queue larger, or allow overrun explicitly")),
        }
    }

    pub(crate) fn release(&self, entries: u32) {
        self.room.fetch_sub(entries, Ordering::AcqRel);
    }
}

/// Acknowledges the events still counted for a queue; dropped before the queue is destroyed.
struct Acknowledge {
    events: Arc<EventCount>,
    cq: NonNull<sys::ibv_cq>,
    origin: Origin,
}

// SAFETY: acknowledging is thread-safe in C, and the count is atomic.
unsafe impl Send for Acknowledge {}
// SAFETY: `&Acknowledge` offers nothing.
unsafe impl Sync for Acknowledge {}

impl Drop for Acknowledge {
    fn drop(&mut self) {
        // In a forked child the locks in C may be held by a thread that does not exist.
        if self.origin.is_current() {
            // SAFETY: this is dropped before the `Owned` beside it, so the queue is live.
            unsafe { self.events.close(self.cq.as_ptr()) };
        }
    }
}

/// Where completions are picked up. `Send` and `Sync`; queue pairs keep it alive.
#[doc(alias = "ibv_cq")]
pub struct CompletionQueue {
    inner: Arc<CqInner>,
    origin: Origin,
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
}

impl From<PollError> for Error {
    fn from(error: PollError) -> Self {
        match error {
            PollError::Forked => Self::forked("ibv_poll_cq"),
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
        CompletionQueueBuilder {
            context,
            entries,
            channel: None,
            vector: 0,
            allow_overrun: false,
        }
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
        if !self.origin.is_current() {
            return Err(PollError::Forked);
        }
        let room = i32::try_from(out.len()).unwrap_or(i32::MAX);
        // SAFETY: the queue is live and `out` has room for that many `ibv_wc`.
        let got = unsafe { sys::ibv_poll_cq(self.inner.raw(), room, out.as_mut_ptr().cast()) };
        match usize::try_from(got) {
            Ok(got) if got <= out.len() => {
                // SAFETY: foreign code was given the first `got` entries to fill, and `got` is at
                // most the length; any bit pattern is a valid completion, also in the fields that
                // a provider does not set for this kind of request.
                Ok(unsafe { slice::from_raw_parts_mut(out.as_mut_ptr().cast(), got) })
            }
            _ => Err(PollError::Provider(got)),
        }
    }

    /// Asks for one event on the channel when the next completion arrives.
    ///
    /// Completions that are in the queue already give no event: poll again after arming.
    ///
    /// # Errors
    /// The errno of the call.
    #[doc(alias = "ibv_req_notify_cq")]
    pub fn arm(&self) -> Result<(), Error> {
        self.origin.check("ibv_req_notify_cq")?;
        // SAFETY: the queue is live.
        let ret = unsafe { sys::ibv_req_notify_cq(self.inner.raw(), 0) };
        from_return("ibv_req_notify_cq", ret)
    }

    /// Waits until completions are in `out`: polls, arms, polls, sleeps, and again.
    ///
    /// Several threads may wait on one queue. An event wakes one of them, which may leave
    /// completions behind: the others find those within 100 ms.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`] once the deadline has passed with an empty queue,
    /// [`ErrorKind::NoChannel`] or [`ErrorKind::SharedChannel`] when there is no channel of its own.
    pub fn wait<'a>(
        &self,
        out: &'a mut [MaybeUninit<WorkCompletion>],
        deadline: Deadline,
    ) -> Result<&'a mut [WorkCompletion], Error> {
        let channel = self.own_channel()?;
        let got = loop {
            let over = deadline.has_passed();
            let got = self.poll(out)?.len();
            if got > 0 {
                break got;
            }
            if over {
                return Err(no_completion());
            }
            self.arm()?;
            let got = self.poll(out)?.len();
            if got > 0 {
                break got;
            }
            let nap = deadline.min(Deadline::after(NAP));
            if wait_for(channel.as_fd(), nap, || channel.try_next_event())?.is_some() {
                // The event is used up: whoever sleeps on this queue needs the next one.
                self.arm()?;
            }
        };
        // SAFETY: the last poll filled the first `got` entries.
        Ok(unsafe { slice::from_raw_parts_mut(out.as_mut_ptr().cast(), got) })
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
        self.inner.owned.parents().1.as_ref()
    }

    /// Its identity in [`CompletionEvent::queue`].
    pub fn id(&self) -> CqId {
        self.id
    }

    /// The number of entries, at least what was asked for.
    pub fn entries(&self) -> u32 {
        self.inner.entries()
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
        let Self {
            inner,
            origin,
            id,
            shared,
        } = self;
        let handle = |inner| Self {
            inner,
            origin,
            id,
            shared,
        };
        let inner = Arc::try_unwrap(inner).map_err(|inner| CloseError {
            error: Error::refused(
                "ibv_destroy_cq",
                ErrorKind::Busy,
                "a queue pair still uses the completion queue",
            ),
            handle: handle(inner),
        })?;
        let CqInner {
            acknowledge,
            owned,
            room,
            allow_overrun,
        } = inner;
        let events = Arc::clone(&acknowledge.events);
        drop(acknowledge);
        owned.close().map_err(|(error, owned)| {
            let acknowledge = Acknowledge {
                events,
                cq: owned.non_null(),
                origin,
            };
            CloseError {
                error,
                handle: handle(Arc::new(CqInner {
                    acknowledge,
                    owned,
                    room,
                    allow_overrun,
                })),
            }
        })
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

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue")
            .field("id", &self.id)
            .field("entries", &self.entries())
            .field("shared_channel", &self.shared)
            .finish_non_exhaustive()
    }
}
