//! Shared receive queues.

use core::ffi::c_int;

use libc::EOPNOTSUPP;

use crate::bindings::{
    ibv_context, ibv_create_srq, ibv_ops_wr, ibv_srq, ibv_srq_init_attr_ex, ibv_srq_init_attr_mask,
    ibv_srq_type,
};
use crate::inline::null_unsupported;

/// Creates a shared receive queue with extended attributes.
///
/// Returns NULL and sets errno on failure. For a basic queue with nothing but a protection domain this is `ibv_create_srq`.
///
/// # Safety
/// - `context` is an open context.
/// - `srq_init_attr_ex` points to a struct filled as its `comp_mask` says, naming live objects of the same context.
#[inline]
pub unsafe fn ibv_create_srq_ex(
    context: *mut ibv_context,
    srq_init_attr_ex: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    const PD: u32 = ibv_srq_init_attr_mask::IBV_SRQ_INIT_ATTR_PD.0;
    const TYPE: u32 = ibv_srq_init_attr_mask::IBV_SRQ_INIT_ATTR_TYPE.0;

    // SAFETY: the struct is filled.
    let mask = unsafe { (*srq_init_attr_ex).comp_mask };
    let mut plain = mask & !TYPE == PD;
    if plain && mask & TYPE != 0 {
        // SAFETY: the mask says that this field is filled.
        plain = unsafe { (*srq_init_attr_ex).srq_type } == ibv_srq_type::IBV_SRQT_BASIC;
    }
    if plain {
        // SAFETY: the mask says that this field is filled.
        let pd = unsafe { (*srq_init_attr_ex).pd };
        // SAFETY: the extended struct begins with the fields of the plain one.
        return unsafe { ibv_create_srq(pd, srq_init_attr_ex.cast()) };
    }
    match verbs_get_ctx_op!(context, create_srq_ex) {
        // SAFETY: the caller's promises are the ones that the provider's function needs.
        Some(create) => unsafe { create(context, srq_init_attr_ex) },
        None => null_unsupported(),
    }
}

extended_ops! {
    /// Reads the number by which XRC peers address a shared receive queue.
    ///
    /// Returns 0 or an errno value.
    ///
    /// # Safety
    /// - `srq` is a live shared receive queue.
    /// - `srq_num` is valid for a write.
    fn ibv_get_srq_num(srq: *mut ibv_srq, srq_num: *mut u32) -> c_int
        = get_srq_num of srq.context else unsupported;
}

/// Posts a list of tag matching operations.
///
/// Returns 0 or an errno value; then `*bad_op` is the first operation that was not queued.
///
/// # Safety
/// - `srq` is a live shared receive queue with tag matching.
/// - `op` begins a NULL-terminated list of filled operations; the memory that they name stays valid, and is not accessed
///   otherwise, until they have completed.
/// - `bad_op` is valid for a write; it must not be NULL.
#[inline]
pub unsafe fn ibv_post_srq_ops(
    srq: *mut ibv_srq,
    op: *mut ibv_ops_wr,
    bad_op: *mut *mut ibv_ops_wr,
) -> c_int {
    // SAFETY: the shared receive queue is live.
    let context = unsafe { (*srq).context };
    match verbs_get_ctx_op!(context, post_srq_ops) {
        // SAFETY: the caller's promises are the ones that the provider's function needs.
        Some(post) => unsafe { post(srq, op, bad_op) },
        None => {
            // SAFETY: `bad_op` is valid for a write.
            unsafe { *bad_op = op };
            EOPNOTSUPP
        }
    }
}
