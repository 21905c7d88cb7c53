//! What a completion queue is made of, shared with the queue pairs that use it.

use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use rdma_core_sys as sys;

use super::channel::{CompletionChannel, EventCount};
use super::room::Room;
use super::{PollError, WorkCompletion, filled};
use crate::context::Context;
use crate::error::{CloseError, Error, ErrorKind, from_return};
use crate::owned::{Destroy, Owned};
use crate::process::Origin;
use crate::registry::Registered;
use crate::slots::{self, Poll};

// SAFETY: ibv_destroy_cq returns EBUSY and changes nothing while a queue pair uses the queue, and
// otherwise returns only after every event got was acknowledged.
unsafe impl Destroy for sys::ibv_cq {
    const VERB: &'static str = "ibv_destroy_cq";

    unsafe fn destroy(object: *mut Self) -> i32 {
        // SAFETY: forwarded to the caller.
        unsafe { sys::ibv_destroy_cq(object) }
    }
}

/// What must outlive a completion queue.
#[derive(Debug)]
pub(crate) struct CqParents {
    pub(super) events: Arc<EventCount>,
    pub(super) channel: Option<CompletionChannel>,
    pub(super) context: Context,
}

/// What a queue pair keeps alive of its completion queues.
pub(crate) struct CqInner {
    // Dropped in this order: no event finds the queue any more and those got are acknowledged before
    // it is destroyed.
    registered: Registered,
    acknowledge: Acknowledge,
    pub(super) owned: Owned<sys::ibv_cq, CqParents>,
    poll: Poll,
    pub(crate) room: Room,
    /// Held while the size is changed.
    resizing: Mutex<()>,
}

impl CqInner {
    pub(super) fn new(owned: Owned<sys::ibv_cq, CqParents>, allow_overrun: bool) -> Self {
        // SAFETY: the queue is live, and nobody else knows it yet who could resize it.
        let entries = u32::try_from(unsafe { (*owned.raw()).cqe }).unwrap_or(0);
        // SAFETY: the queue is live.
        let poll = unsafe { slots::of_cq(owned.raw()) };
        Self {
            registered: register(&owned),
            acknowledge: Acknowledge::of(&owned),
            owned,
            poll,
            room: Room::new(entries, allow_overrun),
            resizing: Mutex::new(()),
        }
    }

    #[inline]
    pub(crate) fn raw(&self) -> *mut sys::ibv_cq {
        self.owned.raw()
    }

    #[inline]
    pub(crate) fn poll<'a>(
        &self,
        out: &'a mut [MaybeUninit<WorkCompletion>],
    ) -> Result<&'a mut [WorkCompletion], PollError> {
        if !self.is_current() {
            return Err(PollError::Forked);
        }
        let room = i32::try_from(out.len()).unwrap_or(i32::MAX);
        // SAFETY: the queue is live and `out` has room for that many `ibv_wc`.
        let got = unsafe { (self.poll)(self.raw(), room, out.as_mut_ptr().cast()) };
        // A negative number is above every room.
        if got.cast_unsigned() > room.cast_unsigned() {
            return Err(PollError::Provider(got));
        }
        let got = got.cast_unsigned() as usize;
        // SAFETY: foreign code was given the first `got` entries to fill, and `got` is at most the
        // room; any bit pattern is a valid completion, also in the fields that a provider does not
        // set for this kind of request.
        Ok(unsafe { filled(out, got) })
    }

    /// Whether the queue was made by this process.
    #[inline]
    pub(crate) fn is_current(&self) -> bool {
        self.owned.origin().is_current()
    }

    pub(crate) fn context(&self) -> &Context {
        &self.owned.parents().context
    }

    /// Changes the size.
    pub(super) fn resize(&self, wanted: u32) -> Result<(), Error> {
        let verb = "ibv_resize_cq";
        let raw = self.owned.raw_checked(verb)?;
        let max = self.context().attributes().max_cqe();
        let Some(c_wanted) = i32::try_from(wanted)
            .ok()
            .filter(|_| (1..=max).contains(&wanted))
        else {
            return Err(Error::refused(
                verb,
                ErrorKind::Limit,
                format!(
                    "{wanted} entries asked, device {} allows 1 to {max}",
                    self.context().name()
                ),
            ));
        };
        let _resizing = self.resizing.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.room.entries();
        if wanted < before {
            // Nobody is promised what is about to go.
            self.room.resize(wanted)?;
        }
        // SAFETY: the queue is live; the lock keeps other resizes away.
        let ret = unsafe { sys::ibv_resize_cq(raw, c_wanted) };
        let result = from_return(verb, ret).map_err(|e| e.with_detail(format!("{wanted} entries")));
        let now = match result {
            // SAFETY: the queue is live; only a resize writes the field.
            Ok(()) => u32::try_from(unsafe { (*raw).cqe }).unwrap_or(wanted),
            Err(_) => before,
        };
        // Larger than what was promised meanwhile, in any case.
        self.room.resize(now)?;
        result
    }

    /// Destroys the queue, or gives it back.
    pub(super) fn close(self) -> Result<(), CloseError<Self>> {
        let Self {
            registered,
            acknowledge,
            owned,
            poll,
            room,
            resizing,
        } = self;
        drop(registered);
        drop(acknowledge);
        owned.close().map_err(|(error, owned)| CloseError {
            error,
            handle: Self {
                registered: register(&owned),
                acknowledge: Acknowledge::of(&owned),
                owned,
                poll,
                room,
                resizing,
            },
        })
    }
}

fn register(owned: &Owned<sys::ibv_cq, CqParents>) -> Registered {
    let id = owned.parents().events.queue.number();
    Registered::new(owned.raw(), id, owned.origin())
}

impl std::fmt::Debug for CqInner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("CqInner").field(&self.owned).finish()
    }
}

/// Acknowledges the events still counted for a queue; dropped before the queue is destroyed.
struct Acknowledge {
    events: Arc<EventCount>,
    cq: NonNull<sys::ibv_cq>,
    origin: Origin,
}

impl Acknowledge {
    fn of(owned: &Owned<sys::ibv_cq, CqParents>) -> Self {
        Self {
            events: Arc::clone(&owned.parents().events),
            cq: owned.non_null(),
            origin: owned.origin(),
        }
    }
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
