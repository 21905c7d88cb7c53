//! The extended operation table, and the functions that go through it.

use core::ffi::{c_int, c_void};
use core::mem::offset_of;
use core::ptr;

use crate::bindings::{ibv_context, ibv_port_attr, verbs_context};
use crate::constants::__VERBS_ABI_IS_EXTENDED;

unsafe extern "C" {
    /// The symbol behind the macro: it fills only the fields that the struct had at first.
    #[link_name = "ibv_query_port"]
    fn frozen_query_port(context: *mut ibv_context, port_num: u8, attr: *mut c_void) -> c_int;
}

/// The extended context that `ctx` lies within, or NULL.
///
/// The struct grows at its front: only fields that lie at most `(*result).sz` bytes before its end exist.
///
/// # Safety
/// - `ctx` is an open context.
#[inline]
#[must_use]
pub unsafe fn verbs_get_ctx(ctx: *mut ibv_context) -> *mut verbs_context {
    // SAFETY: the context is open.
    let abi = unsafe { (*ctx).abi_compat };
    if abi != __VERBS_ABI_IS_EXTENDED {
        return ptr::null_mut();
    }
    ctx.cast::<u8>().wrapping_sub(offset_of!(verbs_context, context)).cast()
}

/// The slot `$op` of the extended table of an open context: `None` when the library is too old to have it or the provider left
/// it NULL.
macro_rules! verbs_get_ctx_op {
    ($ctx:expr, $op:ident) => {{
        // SAFETY: the context is open, says the caller of the function that this is in.
        let vctx = unsafe { $crate::verbs_get_ctx($ctx) };
        if vctx.is_null() {
            None
        } else {
            const NEEDED: usize = size_of::<$crate::verbs_context>()
                - core::mem::offset_of!($crate::verbs_context, $op);
            // SAFETY: an extended context always has its size, next to the plain context at the end.
            let size = unsafe { (*vctx).sz };
            if size < NEEDED {
                None
            } else {
                // SAFETY: the size covers this slot.
                unsafe { (*vctx).$op }
            }
        }
    }};
}

/// Reads the attributes of a port.
///
/// Returns 0 or an errno value. All of `*port_attr` is written on success; fields that the library or the kernel is too old
/// to know are 0. In C this is a macro over a frozen symbol of the same name, which fills only the oldest fields.
///
/// # Safety
/// - `context` is an open context.
/// - `port_attr` is valid for a write.
#[inline]
pub unsafe fn ibv_query_port(
    context: *mut ibv_context,
    port_num: u8,
    port_attr: *mut ibv_port_attr,
) -> c_int {
    if let Some(query) = verbs_get_ctx_op!(context, query_port) {
        // SAFETY: the context is open and `port_attr` has room for the size told.
        return unsafe { query(context, port_num, port_attr, size_of::<ibv_port_attr>()) };
    }
    // SAFETY: `port_attr` is valid for a write of the struct.
    unsafe { ptr::write_bytes(port_attr, 0, 1) };
    // SAFETY: the context is open and the old struct is a prefix of the new.
    unsafe { frozen_query_port(context, port_num, port_attr.cast()) }
}
