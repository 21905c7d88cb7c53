//! Posting of work requests.

use core::ffi::c_int;

use libc::EOPNOTSUPP;

use crate::bindings::{ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_srq};

/// Posts a list of requests to the send queue.
///
/// Returns 0, or an errno value (some providers return it negated); then `*bad_wr` is the first request that was not
/// queued, or NULL when the provider does not know.
///
/// # Safety
/// - `qp` is a live queue pair.
/// - `wr` begins a NULL-terminated list of requests, each with `num_sge` entries at `sg_list`, and an opcode and flags that
///   the provider knows (some index tables with them unchecked).
/// - The memory that the entries name stays valid until the requests have completed; memory that the device writes into is
///   not accessed otherwise until then.
/// - `bad_wr` is valid for a write; it must not be NULL.
#[inline]
pub unsafe fn ibv_post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the queue pair is live, so is its context field.
    let context = unsafe { (*qp).context };
    // SAFETY: a live queue pair keeps its context open, whose table never changes after opening.
    let slot = unsafe { (*context).ops.post_send };
    match slot {
        // SAFETY: the caller's promises are the ones that the provider's function needs.
        Some(post) => unsafe { post(qp, wr, bad_wr) },
        None => {
            // SAFETY: `bad_wr` is valid for a write.
            unsafe { *bad_wr = wr };
            EOPNOTSUPP
        }
    }
}

/// Posts a list of requests to the receive queue.
///
/// Returns 0, or an errno value (some providers return it negated); then `*bad_wr` is the first request that was not
/// queued, or NULL when the provider does not know.
///
/// # Safety
/// - `qp` is a live queue pair that has a receive queue of its own.
/// - `wr` begins a NULL-terminated list of requests, each with `num_sge` entries at `sg_list`.
/// - The memory that the entries name stays valid, and is not accessed otherwise, until the requests have completed.
/// - `bad_wr` is valid for a write; it must not be NULL.
#[inline]
pub unsafe fn ibv_post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the queue pair is live, so is its context field.
    let context = unsafe { (*qp).context };
    // SAFETY: a live queue pair keeps its context open, whose table never changes after opening.
    let slot = unsafe { (*context).ops.post_recv };
    match slot {
        // SAFETY: the caller's promises are the ones that the provider's function needs.
        Some(post) => unsafe { post(qp, wr, bad_wr) },
        None => {
            // SAFETY: `bad_wr` is valid for a write.
            unsafe { *bad_wr = wr };
            EOPNOTSUPP
        }
    }
}

/// Posts a list of requests to a shared receive queue.
///
/// Returns 0, or an errno value (some providers return it negated); then `*bad_recv_wr` is the first request that was not
/// queued, or NULL when the provider does not know.
///
/// # Safety
/// - `srq` is a live shared receive queue.
/// - `recv_wr` begins a NULL-terminated list of requests, each with `num_sge` entries at `sg_list`.
/// - The memory that the entries name stays valid, and is not accessed otherwise, until the requests have completed.
/// - `bad_recv_wr` is valid for a write; it must not be NULL.
#[inline]
pub unsafe fn ibv_post_srq_recv(
    srq: *mut ibv_srq,
    recv_wr: *mut ibv_recv_wr,
    bad_recv_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the shared receive queue is live, so is its context field.
    let context = unsafe { (*srq).context };
    // SAFETY: a live queue keeps its context open, whose table never changes after opening.
    let slot = unsafe { (*context).ops.post_srq_recv };
    match slot {
        // SAFETY: the caller's promises are the ones that the provider's function needs.
        Some(post) => unsafe { post(srq, recv_wr, bad_recv_wr) },
        None => {
            // SAFETY: `bad_recv_wr` is valid for a write.
            unsafe { *bad_recv_wr = recv_wr };
            EOPNOTSUPP
        }
    }
}
