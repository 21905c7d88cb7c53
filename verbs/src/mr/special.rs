//! Regions that are not a range of pinned memory.

use std::ptr;

use rdma_core_sys as sys;

use super::MemoryRegion;
use crate::attributes::OdpFlags;
use crate::error::{Error, ErrorKind, from_pointer};
use crate::flags::AccessFlags;
use crate::owned::Owned;
use crate::pd::ProtectionDomain;

impl MemoryRegion {
    /// Registers the whole address space of the process, to be paged in on demand: one key for every
    /// address. [`AccessFlags::ON_DEMAND`] is added to `access`.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] unless the device can
    /// ([`OdpFlags::IMPLICIT`](crate::OdpFlags::IMPLICIT)).
    ///
    /// # Safety
    /// - While registered, every range that a request of this process names by its key is mapped and
    ///   not borrowed, as for [`register`](Self::register).
    /// - With a remote right every byte of the process is a peer's to read or to change, which
    ///   no program is written for: use [`AccessFlags::LOCAL_WRITE`] alone.
    #[doc(alias = "ibv_reg_mr")]
    #[doc(alias = "implicit on-demand paging")]
    pub unsafe fn register_implicit(
        pd: &ProtectionDomain,
        access: AccessFlags,
    ) -> Result<Self, Error> {
        let access = access | AccessFlags::ON_DEMAND;
        // SAFETY: forwarded to the caller.
        let region = unsafe { Self::register(pd, ptr::null_mut(), usize::MAX, access) };
        region.map_err(|error| error.with_detail("the whole address space, on demand"))
    }

    /// A region that reads as zeros and forgets what is written, of any length.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] where the device has none.
    #[doc(alias = "ibv_alloc_null_mr")]
    pub fn null(pd: &ProtectionDomain) -> Result<Self, Error> {
        let verb = "ibv_alloc_null_mr";
        let raw_pd = pd.raw_checked(verb)?;
        // SAFETY: the domain is live.
        let raw = unsafe { sys::ibv_alloc_null_mr(raw_pd) };
        let raw = from_pointer(verb, raw)?;
        // SAFETY: the region was just made and needs its domain, which is its parent.
        let owned = unsafe { Owned::new(raw, pd.context().origin(), pd.clone()) };
        Ok(Self { owned, iova: 0 })
    }
}

/// What a refused registration means: a device that says elsewhere that it does not page on demand
/// answers EINVAL, as for a wrong argument.
pub(super) fn explain(pd: &ProtectionDomain, access: AccessFlags, error: Error) -> Error {
    if !access.contains(AccessFlags::ON_DEMAND) || error.errno() != Some(libc::EINVAL) {
        return error;
    }
    match pd.context().query_extended() {
        Ok(extended)
            if !extended
                .on_demand_paging()
                .general
                .contains(OdpFlags::SUPPORT) =>
        {
            error
                .with_kind(ErrorKind::Unsupported)
                .with_hint("the device does not page on demand: register without ON_DEMAND")
        }
        _ => error,
    }
}
