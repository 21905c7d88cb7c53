//! A mapping of our own together with its registration: unmapped only after the device let go.

use std::io;
use std::mem::ManuallyDrop;

use cm::verbs::{AccessFlags, MemoryRegion, Origin, ProtectionDomain};
use memmap2::{MmapMut, MmapRaw};

use crate::error::{Error, ErrorKind};

/// Zeroed pages that nothing else uses, registered with a device.
#[derive(Debug)]
pub(crate) struct Pinned {
    /// Taken only while both go away.
    registration: ManuallyDrop<MemoryRegion>,
    origin: Origin,
    memory: ManuallyDrop<MmapRaw>,
}

// SAFETY: the mapping belongs to this object, and whoever accesses it answers for that access.
unsafe impl Send for Pinned {}
// SAFETY: `&Pinned` gives out an address and keys.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// Maps and registers `len` bytes, at least 1.
    pub(crate) fn alloc(
        domain: &ProtectionDomain,
        len: usize,
        access: AccessFlags,
    ) -> Result<Self, Error> {
        let no_memory = |source| Error::Memory { len, source };
        // Lengths that no address space has would overflow the rounding to pages.
        if len > usize::MAX / 2 {
            return Err(no_memory(io::Error::from_raw_os_error(libc::ENOMEM)));
        }
        let origin = Origin::current("ibv_reg_mr")?;
        let memory = MmapRaw::from(MmapMut::map_anon(len).map_err(no_memory)?);
        // SAFETY: the mapping is our own, no reference to it is ever formed, and it is unmapped
        // only after the registration has ended (see `release`).
        let registration =
            unsafe { MemoryRegion::register(domain, memory.as_mut_ptr(), len, access) }?;
        Ok(Self {
            registration: ManuallyDrop::new(registration),
            origin,
            memory: ManuallyDrop::new(memory),
        })
    }

    pub(crate) fn registration(&self) -> &MemoryRegion {
        &self.registration
    }

    /// An error in a forked child, which has a copy of the memory, or, where the library keeps
    /// registered memory out of children, nothing at that address.
    #[inline]
    pub(crate) fn check_process(&self, operation: &'static str) -> Result<(), Error> {
        Ok(self.origin.check(operation)?)
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.memory.as_mut_ptr()
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
                unsafe { ManuallyDrop::drop(&mut self.memory) };
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
