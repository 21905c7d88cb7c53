//! The argument of an event that a program has written itself.

use crate::bindings::rdma_cm_event;

/// The `param.arg` of an `RDMA_CM_EVENT_USER` or `RDMA_CM_EVENT_INTERNAL` event: what
/// [`rdma_write_cm_event`](crate::rdma_write_cm_event) was given. In C a field of the union that rdma-core 60 added; of any
/// other event these are the first 8 bytes of its parameters.
///
/// # Safety
/// - `event` points to an event that was got and not acknowledged yet.
#[inline]
#[must_use]
pub unsafe fn rdma_cm_event_arg(event: *const rdma_cm_event) -> u64 {
    // SAFETY: the event is live, so the place lies within it; nothing is read.
    let param = unsafe { &raw const (*event).param };
    // SAFETY: the union begins with a pointer in either of its other forms, so it is long and aligned enough.
    unsafe { param.cast::<u64>().read() }
}

const _: () = assert!(
    size_of::<crate::rdma_cm_event_param>() >= 8 && align_of::<crate::rdma_cm_event_param>() >= 8,
    "an argument of 8 bytes fits into the parameters"
);
