//! Registration of memory.

use core::ffi::{c_int, c_uint, c_void};

use crate::bindings::{ibv_mr, ibv_pd, ibv_reg_mr_iova2, ibv_sge};
use crate::constants::ibv_advise_mr_advice;

/// Registers memory; remote addresses of it are its own addresses.
///
/// Returns NULL and sets errno on failure. Optional access bits that the kernel does not know are dropped
/// (see [`IBV_ACCESS_OPTIONAL_RANGE`](crate::IBV_ACCESS_OPTIONAL_RANGE)). In C this is a macro over a frozen symbol of the
/// same name; this form always takes the macro's general branch.
///
/// # Safety
/// - `pd` is a live protection domain.
/// - `addr` is valid for `length` bytes, for writes too where `access` asks for them, until the region is deregistered; the
///   device and, where `access` says so, peers may read or write it at any time until then.
#[inline]
pub unsafe fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: the caller's promises are passed on.
    unsafe { ibv_reg_mr_iova2(pd, addr, length, addr.expose_provenance() as u64, access) }
}

/// Registers memory; remote addresses of it begin at `iova`.
///
/// Returns NULL and sets errno on failure. Otherwise as [`ibv_reg_mr`].
///
/// # Safety
/// - As for [`ibv_reg_mr`].
#[inline]
pub unsafe fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: the caller's promises are passed on.
    unsafe { ibv_reg_mr_iova2(pd, addr, length, iova, access) }
}

extended_ops! {
    /// Gives the kernel or device advice about registered memory, such as to page it in.
    ///
    /// Returns 0 or an errno value.
    ///
    /// # Safety
    /// - `pd` is a live protection domain.
    /// - `sg_list` points to `num_sge` entries that name registered memory.
    fn ibv_advise_mr(pd: *mut ibv_pd, advice: ibv_advise_mr_advice, flags: u32, sg_list: *mut ibv_sge, num_sge: u32) -> c_int
        = advise_mr of pd.context else unsupported;

    /// Registers a region that reads as zeros and forgets writes.
    ///
    /// Returns NULL and sets errno on failure.
    ///
    /// # Safety
    /// - `pd` is a live protection domain.
    fn ibv_alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr
        = alloc_null_mr of pd.context else null_unsupported;
}
