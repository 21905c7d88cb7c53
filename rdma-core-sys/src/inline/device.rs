//! Queries of a device and its ports.

use core::ffi::{c_int, c_void};
use core::ptr;

use libc::{EINVAL, ENOSYS, EOPNOTSUPP};

use crate::bindings::{
    ibv_context, ibv_device_attr_ex, ibv_port_attr, ibv_qp_type, ibv_query_device,
    ibv_query_device_ex_input, ibv_values_ex,
};

unsafe extern "C" {
    /// The symbol behind the macro: it fills only the fields that the struct had at first.
    #[link_name = "ibv_query_port"]
    fn frozen_query_port(context: *mut ibv_context, port_num: u8, attr: *mut c_void) -> c_int;
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

/// Reads the extended attributes of a device.
///
/// Returns 0 or an errno value (`EINVAL` when `input` asks for anything). Where the provider cannot, the attributes of
/// `ibv_query_device` are filled in and the rest is 0.
///
/// # Safety
/// - `context` is an open context.
/// - `input` is NULL or points to a filled struct.
/// - `attr` is valid for a write.
#[inline]
pub unsafe fn ibv_query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
) -> c_int {
    if !input.is_null() {
        // SAFETY: not NULL, so it points to a filled struct.
        let comp_mask = unsafe { (*input).comp_mask };
        if comp_mask != 0 {
            return EINVAL;
        }
    }
    if let Some(query) = verbs_get_ctx_op!(context, query_device_ex) {
        // SAFETY: the context is open and `attr` has room for the size told.
        let ret = unsafe { query(context, input, attr, size_of::<ibv_device_attr_ex>()) };
        if ret != EOPNOTSUPP && ret != ENOSYS {
            return ret;
        }
    }
    // SAFETY: `attr` is valid for a write of the struct.
    unsafe { ptr::write_bytes(attr, 0, 1) };
    // SAFETY: the place lies within the struct; nothing is read.
    let orig_attr = unsafe { &raw mut (*attr).orig_attr };
    // SAFETY: the context is open and the plain attributes lie within the extended ones.
    unsafe { ibv_query_device(context, orig_attr) }
}

extended_ops! {
    /// Reads values of the moment, such as the device's clock.
    ///
    /// Returns 0 or an errno value; `(*values).comp_mask` says which were read.
    ///
    /// # Safety
    /// - `context` is an open context.
    /// - `values` points to a struct whose `comp_mask` says what is wanted.
    fn ibv_query_rt_values_ex(context: *mut ibv_context, values: *mut ibv_values_ex) -> c_int
        = query_rt_values of context else unsupported;
}

/// Whether a set of queue pair types, one bit per type, has `qpt`: 1 or 0.
///
/// A type beyond the 32 bits is in no set (in C the shift would be undefined).
#[inline]
#[must_use]
pub const fn ibv_is_qpt_supported(caps: u32, qpt: ibv_qp_type) -> c_int {
    match 1_u32.checked_shl(qpt.0) {
        Some(bit) => (caps & bit != 0) as c_int,
        None => 0,
    }
}
