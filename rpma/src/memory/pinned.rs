//! Memory together with its registration: unmapped only after the device let go.

use std::mem::ManuallyDrop;

use cm::verbs::{self, AccessFlags, MemoryRegion, Origin, ProtectionDomain};

use super::Usage;
use super::mapping::Mapping;
use super::registrar::Registrar;
use crate::error::{Error, ErrorKind};

/// Memory registered with a device.
#[derive(Debug)]
pub(crate) struct Pinned {
    /// Taken only while both go away.
    registration: ManuallyDrop<MemoryRegion>,
    access: AccessFlags,
    origin: Origin,
    mapping: ManuallyDrop<Mapping>,
}

// SAFETY: the mapping belongs to this object or to somebody who has vouched for it, and whoever
// accesses it answers for that access.
unsafe impl Send for Pinned {}
// SAFETY: `&Pinned` gives out an address and keys.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// Maps `len` zeroed bytes, at least 1, in pages that nothing else uses, and registers them.
    pub(crate) fn alloc(
        domain: &ProtectionDomain,
        registrar: &Registrar,
        len: usize,
        usage: Usage,
    ) -> Result<Self, Error> {
        let mapping = Mapping::anonymous(len)?;
        // SAFETY: nobody else knows of the mapping.
        Ok(unsafe { Self::register(domain, registrar, mapping, usage) }?)
    }

    /// Registers a mapping.
    ///
    /// # Safety
    /// - No Rust reference to the mapping exists, or is formed until its registration has ended;
    ///   with a usage by which no device writes to it, no `&mut`.
    /// - A foreign mapping stays until then, and for ever if that fails.
    pub(super) unsafe fn register(
        domain: &ProtectionDomain,
        registrar: &Registrar,
        mapping: Mapping,
        usage: Usage,
    ) -> Result<Self, verbs::Error> {
        Self::attach(registrar, mapping, usage, |mapping, access| {
            // SAFETY: the caller vouches for foreign memory and for references; our own mapping is
            // unmapped only after the registration has ended (see `release`).
            unsafe { MemoryRegion::register(domain, mapping.start(), mapping.len(), access) }
        })
    }

    /// Registers by `attempt`, which must be of this mapping.
    pub(super) fn attach(
        registrar: &Registrar,
        mapping: Mapping,
        usage: Usage,
        attempt: impl Fn(&Mapping, AccessFlags) -> Result<MemoryRegion, verbs::Error>,
    ) -> Result<Self, verbs::Error> {
        let origin = Origin::current("ibv_reg_mr")?;
        let (registration, access) =
            registrar.register(usage, |access| attempt(&mapping, access))?;
        Ok(Self {
            registration: ManuallyDrop::new(registration),
            access,
            origin,
            mapping: ManuallyDrop::new(mapping),
        })
    }

    #[inline]
    pub(crate) fn registration(&self) -> &MemoryRegion {
        &self.registration
    }

    /// What the device has granted.
    pub(super) fn access(&self) -> AccessFlags {
        self.access
    }

    #[inline]
    pub(super) fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// An error in a forked child, which has a copy of the memory, or, where the library keeps
    /// registered memory out of children, nothing at that address.
    #[inline]
    pub(crate) fn check_process(&self, operation: &'static str) -> Result<(), Error> {
        Ok(self.origin.check(operation)?)
    }

    #[inline]
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.mapping.start()
    }

    /// Deregisters and unmaps, or leaks both and says why.
    pub(crate) fn close(self) -> Result<(), Error> {
        ManuallyDrop::new(self).release()
    }

    /// Called once, by `close` or `drop`.
    fn release(&mut self) -> Result<(), Error> {
        // SAFETY: called once, and the field is not used afterwards.
        let registration = unsafe { ManuallyDrop::take(&mut self.registration) };
        match registration.close() {
            Ok(()) => {
                // SAFETY: called once; the device no longer reaches the memory.
                unsafe { ManuallyDrop::drop(&mut self.mapping) };
                Ok(())
            }
            Err(failed) => {
                // Its own drop would only try again.
                std::mem::forget(failed.handle);
                Err(failed.error.into())
            }
        }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // In a forked child the locks of a log may be held by threads that do not exist.
        if let Err(error) = self.release()
            && error.kind() != ErrorKind::Forked
        {
            tracing::warn!(%error, "memory could not be deregistered; it is leaked");
        }
    }
}
