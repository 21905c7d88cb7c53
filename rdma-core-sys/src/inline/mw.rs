//! Memory windows.

use core::ffi::c_int;

use libc::{EINVAL, EPERM};

use crate::bindings::{ibv_mw, ibv_mw_bind, ibv_mw_type, ibv_pd, ibv_qp};
use crate::inline::{null_unsupported, unsupported};

/// Allocates a memory window.
///
/// Returns NULL and sets errno on failure.
///
/// # Safety
/// - `pd` is a live protection domain.
#[inline]
pub unsafe fn ibv_alloc_mw(pd: *mut ibv_pd, type_: ibv_mw_type) -> *mut ibv_mw {
    // SAFETY: the protection domain is live.
    let context = unsafe { (*pd).context };
    // SAFETY: a live object keeps its context open.
    match unsafe { (*context).ops.alloc_mw } {
        // SAFETY: the caller's promise is the one that the provider's function needs.
        Some(alloc) => unsafe { alloc(pd, type_) },
        None => null_unsupported(),
    }
}

/// Frees a memory window.
///
/// Returns 0 or an errno value.
///
/// # Safety
/// - `mw` is a live memory window, and not used after this has returned 0.
#[inline]
pub unsafe fn ibv_dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: the memory window is live.
    let context = unsafe { (*mw).context };
    // SAFETY: a live object keeps its context open.
    match unsafe { (*context).ops.dealloc_mw } {
        // SAFETY: the caller's promise is the one that the provider's function needs.
        Some(dealloc) => unsafe { dealloc(mw) },
        None => unsupported(),
    }
}

/// The next key of a type 2 memory window: the low 8 bits count, the rest stays.
#[inline]
#[must_use]
pub const fn ibv_inc_rkey(rkey: u32) -> u32 {
    (rkey & !0xff) | (rkey.wrapping_add(1) & 0xff)
}

/// Binds a type 1 memory window to a part of a region.
///
/// Returns 0 or an errno value: `EINVAL` for a window of another type, or a range without a region; `EPERM` when region and
/// window are of different protection domains.
///
/// # Safety
/// - `qp` is a live queue pair and `mw` a live memory window of the same context.
/// - `mw_bind` points to a filled struct, whose region is live until the window is bound elsewhere or freed. Some providers
///   dereference the region unchecked, so it should not be NULL.
#[inline]
pub unsafe fn ibv_bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, mw_bind: *mut ibv_mw_bind) -> c_int {
    // SAFETY: the memory window is live.
    if unsafe { (*mw).type_ } != ibv_mw_type::IBV_MW_TYPE_1 {
        return EINVAL;
    }
    // SAFETY: the struct is filled.
    let info = unsafe { (*mw_bind).bind_info };
    if info.mr.is_null() {
        if info.addr != 0 || info.length != 0 {
            return EINVAL;
        }
    } else {
        // SAFETY: the memory window is live.
        let window_pd = unsafe { (*mw).pd };
        // SAFETY: the region is not NULL, so it is live.
        let region_pd = unsafe { (*info.mr).pd };
        if window_pd != region_pd {
            return EPERM;
        }
    }
    // SAFETY: the memory window is live.
    let context = unsafe { (*mw).context };
    // SAFETY: a live object keeps its context open.
    match unsafe { (*context).ops.bind_mw } {
        // SAFETY: the caller's promises are the ones that the provider's function needs.
        Some(bind) => unsafe { bind(qp, mw, mw_bind) },
        None => unsupported(),
    }
}
