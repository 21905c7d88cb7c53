//! Thread domains, parent domains and XRC domains.

use core::ffi::c_int;

use crate::bindings::{
    ibv_context, ibv_parent_domain_init_attr, ibv_pd, ibv_td, ibv_td_init_attr, ibv_xrcd,
    ibv_xrcd_init_attr,
};

extended_ops! {
    /// Allocates a thread domain: the caller promises to use its objects from one thread at a time.
    ///
    /// Returns NULL and sets errno on failure.
    ///
    /// # Safety
    /// - `context` is an open context.
    /// - `init_attr` points to a filled struct.
    fn ibv_alloc_td(context: *mut ibv_context, init_attr: *mut ibv_td_init_attr) -> *mut ibv_td
        = alloc_td of context else null_unsupported;

    /// Frees a thread domain.
    ///
    /// Returns 0 or an errno value (`EBUSY` while a parent domain uses it).
    ///
    /// # Safety
    /// - `td` is a live thread domain, and not used after this has returned 0.
    fn ibv_dealloc_td(td: *mut ibv_td) -> c_int
        = dealloc_td of td.context else unsupported;

    /// Makes a protection domain that adds a thread domain or an allocator to another; freed with `ibv_dealloc_pd`.
    ///
    /// Returns NULL and sets errno on failure.
    ///
    /// # Safety
    /// - `context` is an open context.
    /// - `attr` points to a struct filled as its `comp_mask` says; callbacks and objects that it names outlive all that is made of
    ///   the parent domain.
    fn ibv_alloc_parent_domain(context: *mut ibv_context, attr: *mut ibv_parent_domain_init_attr) -> *mut ibv_pd
        = alloc_parent_domain of context else null_unsupported;

    /// Opens an XRC domain.
    ///
    /// Returns NULL and sets errno on failure.
    ///
    /// # Safety
    /// - `context` is an open context.
    /// - `xrcd_init_attr` points to a struct filled as its `comp_mask` says.
    fn ibv_open_xrcd(context: *mut ibv_context, xrcd_init_attr: *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd
        = open_xrcd of context else null_unsupported;

    /// Closes an XRC domain.
    ///
    /// Returns 0 or an errno value (`EBUSY` while objects use it).
    ///
    /// # Safety
    /// - `xrcd` is a live XRC domain, and not used after this has returned 0.
    fn ibv_close_xrcd(xrcd: *mut ibv_xrcd) -> c_int
        = close_xrcd of xrcd.context else unsupported;
}
