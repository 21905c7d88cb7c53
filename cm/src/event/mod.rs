//! Events of the connection manager: each is copied out and acknowledged exactly once.

mod kind;
mod owned;

use std::ptr::NonNull;

use verbs::sys;

pub use self::kind::{EventKind, RejectReason};
pub use self::owned::{
    ConnectionData, DatagramData, Event, MulticastData, Payload, RemoteQueuePair,
};

/// An event that was got and is not acknowledged yet; dropping it does.
///
/// It lives only while its contents are copied: `rdma_destroy_id`, `rdma_migrate_id` and
/// `rdma_leave_multicast` wait for the acknowledgement, and must never wait for a caller of ours.
#[derive(Debug)]
pub(crate) struct Unacknowledged(NonNull<sys::rdma_cm_event>);

impl Drop for Unacknowledged {
    fn drop(&mut self) {
        // SAFETY: the event was got and is acknowledged only here.
        let _ = unsafe { sys::rdma_ack_cm_event(self.0.as_ptr()) };
    }
}

/// An id as an event names it, alive until the event is acknowledged.
pub(crate) type RawId = NonNull<sys::rdma_cm_id>;

impl Unacknowledged {
    /// Takes an event over.
    ///
    /// # Safety
    /// - `raw` was just got, and nobody else acknowledges it.
    pub(crate) unsafe fn new(raw: NonNull<sys::rdma_cm_event>) -> Self {
        Self(raw)
    }

    /// The id that waits for the acknowledgement, and the new id that a request brings.
    pub(crate) fn ids(&self) -> Option<(RawId, Option<RawId>)> {
        // SAFETY: the event is ours until it is acknowledged.
        let own = NonNull::new(unsafe { (*self.0.as_ptr()).id })?;
        // SAFETY: as above.
        let listener = NonNull::new(unsafe { (*self.0.as_ptr()).listen_id });
        Some(match listener {
            // A request is accounted to the listener; its new id is nobody's yet.
            Some(listener) if self.kind() == EventKind::CONNECT_REQUEST => (listener, Some(own)),
            _ => (own, None),
        })
    }

    /// All that it says.
    pub(crate) fn copy(&self) -> Event {
        // SAFETY: the event is as C filled it, and ours until it is acknowledged.
        unsafe { Event::from_raw(self.0.as_ptr()) }
    }

    fn kind(&self) -> EventKind {
        // SAFETY: the event is ours until it is acknowledged.
        let raw = unsafe { (*self.0.as_ptr()).event };
        EventKind::from_raw(raw.0)
    }
}
