//! A thread that reads one channel for several ids, as C programs have one: it stores what came and posts a semaphore.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::thread::{self, JoinHandle};

use harness::Failed;
use rpma::cm::verbs::sys;

use super::raw::{done, new_id, next_event};

/// Whose event it is.
#[derive(Debug, Clone, Copy)]
pub(super) enum End {
    Client,
    /// The listener and the id of its request, which has the listener's context.
    Server,
}

/// What the context of an id points to. An end waits for each event before it causes the next.
pub(super) struct Slot {
    came: UnsafeCell<libc::sem_t>,
    kind: AtomicU32,
    id: AtomicPtr<sys::rdma_cm_id>,
}

// SAFETY: the semaphore is there to be used by several threads, the rest is atomic.
unsafe impl Sync for Slot {}
// SAFETY: it moves only before the semaphore is initialised.
unsafe impl Send for Slot {}

impl Slot {
    fn new() -> Self {
        Self {
            // SAFETY: sem_t is an array of bytes, for which zero is a value.
            came: UnsafeCell::new(unsafe { MaybeUninit::zeroed().assume_init() }),
            kind: AtomicU32::new(0),
            id: AtomicPtr::new(ptr::null_mut()),
        }
    }
}

/// The thread, and the two ends that it hands events to.
pub(super) struct Reader {
    slots: Arc<[Slot; 2]>,
    thread: JoinHandle<()>,
}

/// A channel for another thread.
struct Channel(*mut sys::rdma_event_channel);

// SAFETY: events of a channel may be got in any thread.
unsafe impl Send for Channel {}

impl Reader {
    pub(super) fn start(channel: *mut sys::rdma_event_channel) -> Result<Self, Failed> {
        let slots = Arc::new([Slot::new(), Slot::new()]);
        for slot in slots.iter() {
            // SAFETY: the semaphore is in its place for good, and nobody uses it yet.
            done("sem_init", unsafe { libc::sem_init(slot.came.get(), 0, 0) })?;
        }
        let channel = Channel(channel);
        let kept = Arc::clone(&slots);
        let thread = thread::spawn(move || {
            let channel = channel;
            // The ids' contexts point into it.
            let _kept = kept;
            while let Ok((kind, id, context)) = next_event(channel.0) {
                let slot = context.cast::<Slot>();
                // SAFETY: a context is NULL or one of the slots, which are kept.
                let Some(slot) = (unsafe { slot.as_ref() }) else {
                    return;
                };
                slot.kind.store(kind.0, Ordering::Relaxed);
                slot.id.store(id, Ordering::Relaxed);
                // SAFETY: the semaphore is initialised.
                unsafe { libc::sem_post(slot.came.get()) };
            }
        });
        Ok(Self { slots, thread })
    }

    /// The context for ids of an end.
    pub(super) fn slot(&self, end: End) -> *const Slot {
        &self.slots[end as usize]
    }

    /// Waits for the next event of an end: its kind and id.
    pub(super) fn wait(
        &self,
        end: End,
    ) -> Result<(sys::rdma_cm_event_type, *mut sys::rdma_cm_id), Failed> {
        let slot = &self.slots[end as usize];
        // SAFETY: the semaphore is initialised.
        done("sem_wait", unsafe { libc::sem_wait(slot.came.get()) })?;
        let kind = sys::rdma_cm_event_type(slot.kind.load(Ordering::Relaxed));
        Ok((kind, slot.id.load(Ordering::Relaxed)))
    }

    /// Ends the thread by an event of nobody's.
    pub(super) fn end(self, channel: *mut sys::rdma_event_channel, mut to: libc::sockaddr_in) {
        let Ok(id) = new_id(channel, ptr::null()) else {
            return;
        };
        // SAFETY: the id is live, the address is whole.
        let asked =
            unsafe { sys::rdma_resolve_addr(id, ptr::null_mut(), (&raw mut to).cast(), 2000) };
        if asked == 0 {
            // A panic there has been printed.
            let _ = self.thread.join();
        }
        // SAFETY: its only event is acknowledged.
        unsafe { sys::rdma_destroy_id(id) };
    }
}
