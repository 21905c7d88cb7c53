//! Queue pairs.

use core::ffi::c_int;

use crate::bindings::{
    ibv_context, ibv_create_qp, ibv_qp, ibv_qp_init_attr_ex, ibv_qp_init_attr_mask,
    ibv_qp_open_attr, ibv_qp_rate_limit_attr,
};
use crate::inline::null_unsupported;

/// Creates a queue pair with extended attributes.
///
/// Returns NULL and sets errno on failure. With a `comp_mask` of just `IBV_QP_INIT_ATTR_PD` this is `ibv_create_qp`, which every
/// provider has.
///
/// # Safety
/// - `context` is an open context.
/// - `qp_init_attr_ex` points to a struct filled as its `comp_mask` says, naming live objects of the same context.
#[inline]
pub unsafe fn ibv_create_qp_ex(
    context: *mut ibv_context,
    qp_init_attr_ex: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    // SAFETY: the struct is filled.
    let mask = unsafe { (*qp_init_attr_ex).comp_mask };
    if mask == ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0 {
        // SAFETY: the mask says that this field is filled.
        let pd = unsafe { (*qp_init_attr_ex).pd };
        // SAFETY: the extended struct begins with the fields of the plain one.
        return unsafe { ibv_create_qp(pd, qp_init_attr_ex.cast()) };
    }
    match verbs_get_ctx_op!(context, create_qp_ex) {
        // SAFETY: the caller's promises are the ones that the provider's function needs.
        Some(create) => unsafe { create(context, qp_init_attr_ex) },
        None => null_unsupported(),
    }
}

extended_ops! {
    /// Opens an existing queue pair of an XRC domain.
    ///
    /// Returns NULL and sets errno on failure.
    ///
    /// # Safety
    /// - `context` is an open context.
    /// - `qp_open_attr` points to a struct filled as its `comp_mask` says.
    fn ibv_open_qp(context: *mut ibv_context, qp_open_attr: *mut ibv_qp_open_attr) -> *mut ibv_qp
        = open_qp of context else null_unsupported;

    /// Sets the pacing of a queue pair.
    ///
    /// Returns 0 or an errno value.
    ///
    /// # Safety
    /// - `qp` is a live queue pair.
    /// - `attr` points to a filled struct.
    fn ibv_modify_qp_rate_limit(qp: *mut ibv_qp, attr: *mut ibv_qp_rate_limit_attr) -> c_int
        = modify_qp_rate_limit of qp.context else unsupported;
}
