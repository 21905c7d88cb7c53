//! Changing a registration in place.

use std::fmt;

use rdma_core_sys as sys;
use sys::ibv_rereg_mr_err_code as Code;
use sys::ibv_rereg_mr_flags as Flag;

use super::MemoryRegion;
use crate::error::{CloseError, Error, ErrorKind, last_errno};
use crate::flags::AccessFlags;
use crate::owned::Owned;
use crate::pd::ProtectionDomain;

const VERB: &str = "ibv_rereg_mr";

/// What [`MemoryRegion::reregister`] changes; what is not named stays.
///
/// ```
/// # use verbs::{AccessFlags, RegionChange};
/// let change = RegionChange::new().access(AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ);
/// # let _ = change;
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct RegionChange<'a> {
    pd: Option<&'a ProtectionDomain>,
    memory: Option<(*mut u8, usize)>,
    access: Option<AccessFlags>,
}

impl<'a> RegionChange<'a> {
    /// No change yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// To another protection domain of the same device.
    #[must_use]
    #[doc(alias = "IBV_REREG_MR_CHANGE_PD")]
    pub fn pd(mut self, pd: &'a ProtectionDomain) -> Self {
        self.pd = Some(pd);
        self
    }

    /// To the `len` bytes from `addr` on, which requests name by `addr`.
    #[must_use]
    #[doc(alias = "IBV_REREG_MR_CHANGE_TRANSLATION")]
    pub fn memory(mut self, addr: *mut u8, len: usize) -> Self {
        self.memory = Some((addr, len));
        self
    }

    /// To other rights.
    #[must_use]
    #[doc(alias = "IBV_REREG_MR_CHANGE_ACCESS")]
    pub fn access(mut self, access: AccessFlags) -> Self {
        self.access = Some(access);
        self
    }
}

/// A change of a registration that failed, and what has become of the region.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct ReregisterError {
    /// Why it failed.
    #[source]
    pub error: Error,
    /// What is left.
    pub region: ReregisterFailure,
}

/// What a failed [`MemoryRegion::reregister`] has left.
#[derive(Debug)]
#[non_exhaustive]
pub enum ReregisterFailure {
    /// The region as it was.
    Unchanged(MemoryRegion),
    /// The region, changed as asked: what failed is giving the former memory back for a fork.
    Changed(MemoryRegion),
    /// A region that no request can use any more, and that still has to be closed: until then the
    /// device may reach the former memory and the new.
    Unusable(UnusableRegion),
}

/// A region that a failed change has made unusable. Dropping it deregisters it.
pub struct UnusableRegion {
    // Which of both domains it is in now is not known.
    owned: Owned<sys::ibv_mr, (ProtectionDomain, Option<ProtectionDomain>)>,
}

impl UnusableRegion {
    /// Ends the registration now. After `Ok` the device reaches neither memory.
    ///
    /// # Errors
    /// The errno of the call; both memories must stay then.
    #[doc(alias = "ibv_dereg_mr")]
    pub fn close(self) -> Result<(), CloseError<Self>> {
        self.owned.close().map_err(|(error, owned)| CloseError {
            error,
            handle: Self { owned },
        })
    }
}

impl fmt::Debug for UnusableRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("UnusableRegion").field(&self.owned).finish()
    }
}

impl MemoryRegion {
    /// Changes the registration in place: its memory, its rights, its protection domain. Faster than
    /// a new one where the device can; the keys may change.
    ///
    /// # Errors
    /// [`ReregisterError`], with what has become of the region. Where the device cannot at all, its
    /// error is [`ErrorKind::Unsupported`]; C does not tell then whether the region is still usable,
    /// so it is not.
    ///
    /// # Safety
    /// - The new memory, or the same with the new rights: as
    ///   [`register`](MemoryRegion::register), from this call on.
    /// - The former memory: as registered, until this returns `Ok` or
    ///   [`Changed`](ReregisterFailure::Changed), or the region that is given back is closed.
    #[doc(alias = "ibv_rereg_mr")]
    pub unsafe fn reregister(self, change: &RegionChange<'_>) -> Result<Self, ReregisterError> {
        let unchanged = |region, error| {
            Err(ReregisterError {
                error,
                region: ReregisterFailure::Unchanged(region),
            })
        };
        let raw = match self.check(change) {
            Ok(raw) => raw,
            Err(error) => return unchanged(self, error),
        };
        let mut flags = 0;
        let mut flag = |set: bool, flag: Flag| flags |= if set { flag.0.cast_signed() } else { 0 };
        flag(
            change.memory.is_some(),
            Flag::IBV_REREG_MR_CHANGE_TRANSLATION,
        );
        flag(change.pd.is_some(), Flag::IBV_REREG_MR_CHANGE_PD);
        flag(change.access.is_some(), Flag::IBV_REREG_MR_CHANGE_ACCESS);
        let pd = change.pd.map_or(std::ptr::null_mut(), |pd| pd.as_raw());
        let (addr, len) = change.memory.unwrap_or((std::ptr::null_mut(), 0));
        let access = change.access.unwrap_or(AccessFlags::empty()).bits();
        // SAFETY: region and domain are live and of one device, and nobody else has this region; the
        // caller answers for the memory.
        let ret =
            unsafe { sys::ibv_rereg_mr(raw, flags, pd, addr.cast(), len, access.cast_signed()) };
        if ret == 0 {
            return Ok(self.changed(change));
        }
        let error =
            Error::from_errno(VERB, last_errno()).with_detail(format!("{change:?} (answer {ret})"));
        match Code(ret) {
            Code::IBV_REREG_MR_ERR_INPUT | Code::IBV_REREG_MR_ERR_DONT_FORK_NEW => {
                unchanged(self, error)
            }
            Code::IBV_REREG_MR_ERR_DO_FORK_OLD => Err(ReregisterError {
                error,
                region: ReregisterFailure::Changed(self.changed(change)),
            }),
            // The two codes that say so, and any that nobody knows.
            _ => {
                let other = change.pd.cloned();
                let owned = self.owned.with_parents(|pd| (pd, other));
                Err(ReregisterError {
                    error,
                    region: ReregisterFailure::Unusable(UnusableRegion { owned }),
                })
            }
        }
    }

    /// The C region, unless the change can never be right.
    fn check(&self, change: &RegionChange<'_>) -> Result<*mut sys::ibv_mr, Error> {
        let refused = |detail: &str| Err(Error::refused(VERB, ErrorKind::InvalidArgument, detail));
        if let RegionChange {
            pd: None,
            memory: None,
            access: None,
        } = change
        {
            return refused("nothing to change: name a domain, memory or rights");
        }
        if change
            .pd
            .is_some_and(|pd| pd.context() != self.pd().context())
        {
            return refused("the protection domain is of another device");
        }
        self.owned.raw_checked(VERB)
    }

    /// The region after a change that was carried out.
    fn changed(self, change: &RegionChange<'_>) -> Self {
        let Self { owned, iova } = self;
        Self {
            owned: owned.with_parents(|pd| change.pd.cloned().unwrap_or(pd)),
            iova: change
                .memory
                .map_or(iova, |(addr, _)| addr.expose_provenance() as u64),
        }
    }
}
