//! Device memory.

use core::ffi::{c_int, c_uint, c_void};

use crate::bindings::{ibv_alloc_dm_attr, ibv_context, ibv_dm, ibv_mr, ibv_pd};
use crate::inline::unsupported;

extended_ops! {
    /// Allocates memory on the device.
    ///
    /// Returns NULL and sets errno on failure.
    ///
    /// # Safety
    /// - `context` is an open context.
    /// - `attr` points to a filled struct.
    fn ibv_alloc_dm(context: *mut ibv_context, attr: *mut ibv_alloc_dm_attr) -> *mut ibv_dm
        = alloc_dm of context else null_unsupported;

    /// Frees device memory.
    ///
    /// Returns 0 or an errno value; on failure the memory stays allocated.
    ///
    /// # Safety
    /// - `dm` is live device memory, and not used after this has returned 0.
    fn ibv_free_dm(dm: *mut ibv_dm) -> c_int
        = free_dm of dm.context else unsupported;

    /// Registers a part of device memory.
    ///
    /// Returns NULL and sets errno on failure.
    ///
    /// # Safety
    /// - `pd` is a live protection domain and `dm` live device memory of the same context.
    fn ibv_reg_dm_mr(pd: *mut ibv_pd, dm: *mut ibv_dm, dm_offset: u64, length: usize, access: c_uint) -> *mut ibv_mr
        = reg_dm_mr of pd.context else null_unsupported;
}

/// Copies from host memory to device memory.
///
/// Returns 0 or an errno value.
///
/// # Safety
/// - `dm` is live device memory.
/// - `host_addr` is valid for reads of `length` bytes.
#[inline]
pub unsafe fn ibv_memcpy_to_dm(
    dm: *mut ibv_dm,
    dm_offset: u64,
    host_addr: *const c_void,
    length: usize,
) -> c_int {
    // SAFETY: the device memory is live.
    match unsafe { (*dm).memcpy_to_dm } {
        // SAFETY: the caller's promises are the ones that the provider's function needs.
        Some(copy) => unsafe { copy(dm, dm_offset, host_addr, length) },
        None => unsupported(),
    }
}

/// Copies from device memory to host memory.
///
/// Returns 0 or an errno value.
///
/// # Safety
/// - `dm` is live device memory.
/// - `host_addr` is valid for writes of `length` bytes.
#[inline]
pub unsafe fn ibv_memcpy_from_dm(
    host_addr: *mut c_void,
    dm: *mut ibv_dm,
    dm_offset: u64,
    length: usize,
) -> c_int {
    // SAFETY: the device memory is live.
    match unsafe { (*dm).memcpy_from_dm } {
        // SAFETY: the caller's promises are the ones that the provider's function needs.
        Some(copy) => unsafe { copy(host_addr, dm, dm_offset, length) },
        None => unsupported(),
    }
}
