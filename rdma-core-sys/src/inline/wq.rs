//! Work queues and indirection tables.

use core::ffi::c_int;
use core::ptr;

use libc::EOPNOTSUPP;

use crate::bindings::{
    ibv_context, ibv_recv_wr, ibv_rwq_ind_table, ibv_rwq_ind_table_init_attr, ibv_wq, ibv_wq_attr,
    ibv_wq_init_attr,
};
use crate::inline::null_unsupported;

/// Creates a work queue.
///
/// Returns NULL and sets errno on failure.
///
/// # Safety
/// - `context` is an open context.
/// - `wq_init_attr` points to a struct filled as its `comp_mask` says, naming live objects of the same context.
#[inline]
pub unsafe fn ibv_create_wq(
    context: *mut ibv_context,
    wq_init_attr: *mut ibv_wq_init_attr,
) -> *mut ibv_wq {
    let Some(create) = verbs_get_ctx_op!(context, create_wq) else {
        return null_unsupported();
    };
    // SAFETY: the caller's promises are the ones that the provider's function needs.
    let wq = unsafe { create(context, wq_init_attr) };
    if !wq.is_null() {
        // SAFETY: the struct is filled.
        let wq_context = unsafe { (*wq_init_attr).wq_context };
        // SAFETY: the provider returned a queue that nobody else knows yet; these fields are left to the caller.
        unsafe { (*wq).wq_context = wq_context };
        // SAFETY: as above.
        unsafe { (*wq).events_completed = 0 };
        // SAFETY: the place lies within the new queue.
        let mutex = unsafe { &raw mut (*wq).mutex };
        // SAFETY: the mutex is not initialised yet and nobody else knows it.
        unsafe { libc::pthread_mutex_init(mutex, ptr::null()) };
        // SAFETY: the place lies within the new queue.
        let cond = unsafe { &raw mut (*wq).cond };
        // SAFETY: the condition variable is not initialised yet and nobody else knows it.
        unsafe { libc::pthread_cond_init(cond, ptr::null()) };
    }
    wq
}

extended_ops! {
    /// Changes the state or attributes of a work queue.
    ///
    /// Returns 0 or an errno value.
    ///
    /// # Safety
    /// - `wq` is a live work queue.
    /// - `wq_attr` points to a struct filled as its `attr_mask` says.
    fn ibv_modify_wq(wq: *mut ibv_wq, wq_attr: *mut ibv_wq_attr) -> c_int
        = modify_wq of wq.context else unsupported;

    /// Destroys a work queue.
    ///
    /// Returns 0 or an errno value (`EBUSY` while an indirection table uses it).
    ///
    /// # Safety
    /// - `wq` is a live work queue, and not used after this has returned 0.
    fn ibv_destroy_wq(wq: *mut ibv_wq) -> c_int
        = destroy_wq of wq.context else unsupported;

    /// Creates an indirection table.
    ///
    /// Returns NULL and sets errno on failure.
    ///
    /// # Safety
    /// - `context` is an open context.
    /// - `init_attr` points to a filled struct, its table to two to the power of `log_ind_tbl_size` live work queues.
    fn ibv_create_rwq_ind_table(context: *mut ibv_context, init_attr: *mut ibv_rwq_ind_table_init_attr) -> *mut ibv_rwq_ind_table
        = create_rwq_ind_table of context else null_unsupported;

    /// Destroys an indirection table.
    ///
    /// Returns 0 or an errno value (`EBUSY` while a queue pair uses it).
    ///
    /// # Safety
    /// - `rwq_ind_table` is a live table, and not used after this has returned 0.
    fn ibv_destroy_rwq_ind_table(rwq_ind_table: *mut ibv_rwq_ind_table) -> c_int
        = destroy_rwq_ind_table of rwq_ind_table.context else unsupported;
}

/// Posts a list of receive requests to a work queue.
///
/// Returns 0 or an errno value; then `*bad_recv_wr` is the first request that was not queued.
///
/// # Safety
/// - `wq` is a live work queue.
/// - `recv_wr` begins a NULL-terminated list of requests, each with `num_sge` entries at `sg_list`.
/// - The memory that the entries name stays valid, and is not accessed otherwise, until the requests have completed.
/// - `bad_recv_wr` is valid for a write; it must not be NULL.
#[inline]
pub unsafe fn ibv_post_wq_recv(
    wq: *mut ibv_wq,
    recv_wr: *mut ibv_recv_wr,
    bad_recv_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the work queue is live.
    match unsafe { (*wq).post_recv } {
        // SAFETY: the caller's promises are the ones that the provider's function needs.
        Some(post) => unsafe { post(wq, recv_wr, bad_recv_wr) },
        None => {
            // SAFETY: `bad_recv_wr` is valid for a write.
            unsafe { *bad_recv_wr = recv_wr };
            EOPNOTSUPP
        }
    }
}
