//! Polling and arming of completion queues.

use core::ffi::c_int;

use libc::EOPNOTSUPP;

use crate::bindings::{ibv_cq, ibv_wc};

/// Takes up to `num_entries` completions off the queue.
///
/// Returns how many, 0 when there is none, or a negative number on failure (errno is not set; `-EOPNOTSUPP` when the provider
/// has no such function). Only that many entries of `wc` are written.
///
/// # Safety
/// - `cq` is a live completion queue.
/// - `wc` is valid for writes of `num_entries` entries, and `num_entries` is not negative.
#[inline]
pub unsafe fn ibv_poll_cq(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: the completion queue is live, so is its context field.
    let context = unsafe { (*cq).context };
    // SAFETY: a live completion queue keeps its context open, whose table never changes after opening.
    let slot = unsafe { (*context).ops.poll_cq };
    match slot {
        // SAFETY: the caller's promises are the ones that the provider's function needs.
        Some(poll) => unsafe { poll(cq, num_entries, wc) },
        None => -EOPNOTSUPP,
    }
}

/// Asks for one completion event, at the next completion or (if `solicited_only` is not 0) at the next solicited or failed one.
///
/// Returns 0 or an errno value.
///
/// # Safety
/// - `cq` is a live completion queue.
#[inline]
pub unsafe fn ibv_req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: the completion queue is live, so is its context field.
    let context = unsafe { (*cq).context };
    // SAFETY: a live completion queue keeps its context open, whose table never changes after opening.
    let slot = unsafe { (*context).ops.req_notify_cq };
    match slot {
        // SAFETY: the caller's promise is the one that the provider's function needs.
        Some(arm) => unsafe { arm(cq, solicited_only) },
        None => EOPNOTSUPP,
    }
}
