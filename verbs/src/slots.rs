//! The provider's functions that posting and polling go through.
//!
//! They stand in a table of the context that never changes after opening, so they are looked up once, when a queue is
//! made. Where the table has none, the function of `rdma-core-sys` stands in, which answers that.

use std::ffi::c_int;

use rdma_core_sys as sys;

/// Takes a list of requests into a queue; gives 0 or an errno, and the first that was refused.
pub(crate) type Post<Q, W> = unsafe extern "C" fn(*mut Q, *mut W, *mut *mut W) -> c_int;
pub(crate) type PostSend = Post<sys::ibv_qp, sys::ibv_send_wr>;
pub(crate) type PostRecv = Post<sys::ibv_qp, sys::ibv_recv_wr>;
pub(crate) type PostSrqRecv = Post<sys::ibv_srq, sys::ibv_recv_wr>;
/// Takes completions out of a queue; gives their number, or a negative one.
pub(crate) type Poll = unsafe extern "C" fn(*mut sys::ibv_cq, c_int, *mut sys::ibv_wc) -> c_int;

/// How requests are posted to a queue pair.
///
/// # Safety
/// - The queue pair is live.
pub(crate) unsafe fn of_qp(qp: *mut sys::ibv_qp) -> (PostSend, PostRecv) {
    // SAFETY: the queue pair is live, so is its context field.
    let context = unsafe { (*qp).context };
    // SAFETY: a live queue pair keeps its context open.
    let ops = unsafe { &raw const (*context).ops };
    // SAFETY: within the context.
    let send = unsafe { (*ops).post_send };
    // SAFETY: as above.
    let recv = unsafe { (*ops).post_recv };
    (send.unwrap_or(post_send), recv.unwrap_or(post_recv))
}

/// How receives are posted to a shared receive queue.
///
/// # Safety
/// - The queue is live.
pub(crate) unsafe fn of_srq(srq: *mut sys::ibv_srq) -> PostSrqRecv {
    // SAFETY: the queue is live, so is its context field.
    let context = unsafe { (*srq).context };
    // SAFETY: a live queue keeps its context open.
    unsafe { (*context).ops.post_srq_recv }.unwrap_or(post_srq_recv)
}

/// How a completion queue is polled.
///
/// # Safety
/// - The queue is live.
pub(crate) unsafe fn of_cq(cq: *mut sys::ibv_cq) -> Poll {
    // SAFETY: the queue is live, so is its context field.
    let context = unsafe { (*cq).context };
    // SAFETY: a live queue keeps its context open.
    unsafe { (*context).ops.poll_cq }.unwrap_or(poll_cq)
}

unsafe extern "C" fn post_send(
    qp: *mut sys::ibv_qp,
    wr: *mut sys::ibv_send_wr,
    bad: *mut *mut sys::ibv_send_wr,
) -> c_int {
    // SAFETY: forwarded to the caller.
    unsafe { sys::ibv_post_send(qp, wr, bad) }
}

unsafe extern "C" fn post_recv(
    qp: *mut sys::ibv_qp,
    wr: *mut sys::ibv_recv_wr,
    bad: *mut *mut sys::ibv_recv_wr,
) -> c_int {
    // SAFETY: forwarded to the caller.
    unsafe { sys::ibv_post_recv(qp, wr, bad) }
}

unsafe extern "C" fn post_srq_recv(
    srq: *mut sys::ibv_srq,
    wr: *mut sys::ibv_recv_wr,
    bad: *mut *mut sys::ibv_recv_wr,
) -> c_int {
    // SAFETY: forwarded to the caller.
    unsafe { sys::ibv_post_srq_recv(srq, wr, bad) }
}

unsafe extern "C" fn poll_cq(cq: *mut sys::ibv_cq, room: c_int, wc: *mut sys::ibv_wc) -> c_int {
    // SAFETY: forwarded to the caller.
    unsafe { sys::ibv_poll_cq(cq, room, wc) }
}
