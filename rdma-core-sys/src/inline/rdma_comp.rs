//! The waiting functions of `rdma/rdma_verbs.h`.

use core::ffi::{c_int, c_uint};
use core::ptr;

use crate::bindings::{
    ibv_ack_cq_events, ibv_comp_channel, ibv_cq, ibv_get_cq_event, ibv_wc, rdma_cm_id,
};
use crate::inline::{ibv_poll_cq, ibv_req_notify_cq, rdma_seterrno};

/// Waits for one completion of the id's send queue, without limit.
///
/// Returns 1 with `*wc` written, or -1 with errno set (as in C, to the provider's negative number when polling failed).
///
/// # Safety
/// - `id` is a live id whose send completion queue and its channel belong to it alone.
/// - `wc` is valid for a write.
#[inline]
pub unsafe fn rdma_get_send_comp(id: *mut rdma_cm_id, wc: *mut ibv_wc) -> c_int {
    // SAFETY: the id is live.
    let cq = unsafe { (*id).send_cq };
    // SAFETY: the id is live.
    let channel = unsafe { (*id).send_cq_channel };
    // SAFETY: the caller's promises are passed on.
    unsafe { next_completion(cq, channel, wc) }
}

/// Waits for one completion of the id's receive queue, without limit.
///
/// Returns 1 with `*wc` written, or -1 with errno set (as in C, to the provider's negative number when polling failed).
///
/// # Safety
/// - `id` is a live id whose receive completion queue and its channel belong to it alone.
/// - `wc` is valid for a write.
#[inline]
pub unsafe fn rdma_get_recv_comp(id: *mut rdma_cm_id, wc: *mut ibv_wc) -> c_int {
    // SAFETY: the id is live.
    let cq = unsafe { (*id).recv_cq };
    // SAFETY: the id is live.
    let channel = unsafe { (*id).recv_cq_channel };
    // SAFETY: the caller's promises are passed on.
    unsafe { next_completion(cq, channel, wc) }
}

/// Polls, arms, polls once more (a completion may have come before the arming), and only then waits.
///
/// # Safety
/// - `cq` is a live completion queue and `channel` its own channel.
/// - `wc` is valid for a write.
unsafe fn next_completion(
    cq: *mut ibv_cq,
    channel: *mut ibv_comp_channel,
    wc: *mut ibv_wc,
) -> c_int {
    const ONE_EVENT: c_uint = 1;
    loop {
        // SAFETY: the queue is live and there is room for one entry.
        let polled = unsafe { ibv_poll_cq(cq, 1, wc) };
        if polled != 0 {
            return count_or_errno(polled);
        }
        // SAFETY: the queue is live.
        let armed = unsafe { ibv_req_notify_cq(cq, 0) };
        if armed != 0 {
            return rdma_seterrno(armed);
        }
        // SAFETY: the queue is live and there is room for one entry.
        let polled = unsafe { ibv_poll_cq(cq, 1, wc) };
        if polled != 0 {
            return count_or_errno(polled);
        }
        let mut event_cq = ptr::null_mut();
        let mut event_context = ptr::null_mut();
        // SAFETY: the channel is live and both places are valid for writes.
        let got = unsafe { ibv_get_cq_event(channel, &raw mut event_cq, &raw mut event_context) };
        if got != 0 {
            return got;
        }
        // SAFETY: the event that was got is acknowledged, to the queue that it is of.
        unsafe { ibv_ack_cq_events(event_cq, ONE_EVENT) };
    }
}

/// A count stays; a failure of polling, which is negative, becomes errno and -1.
fn count_or_errno(polled: c_int) -> c_int {
    if polled < 0 {
        rdma_seterrno(polled)
    } else {
        polled
    }
}
