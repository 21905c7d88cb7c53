//! What a region can be made of.

use std::fs::File;
use std::ops::RangeBounds;
use std::os::fd::BorrowedFd;

use cm::verbs::{self, AccessFlags, Advice, MemoryRegion};

use super::Usage;
use super::advise::AdviseFlags;
use super::file::{self, Mode};
use super::local::LocalRegion;
use super::mapping::{HugePageSize, Mapping, Rights};
use super::pinned::Pinned;
use crate::error::Error;
use crate::peer::Peer;

impl LocalRegion {
    /// Maps `len` zeroed bytes and registers them with `peer` for `usage`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for no bytes or no usage, [`Error::Memory`], or the refused registration:
    /// ENOMEM says that the process may not pin so much.
    #[doc(alias = "rpma_mr_reg")]
    pub fn alloc(peer: &Peer, len: usize, usage: Usage) -> Result<Self, Error> {
        check(len, usage)?;
        let pinned = Pinned::alloc(peer.domain(), peer.registrar(), len, usage)?;
        Ok(Self::new(peer, pinned, usage))
    }

    /// As [`alloc`](Self::alloc), in huge pages of the length `page`: devices keep track of fewer
    /// pages then. The last page may be used in part.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc), and [`Error::HugePages`] when fewer are reserved and free than are
    /// needed.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let peer = rpma::Peer::new(&rpma::Device::local("192.0.2.1".parse()?)?)?;
    /// use rpma::{HugePageSize, LocalRegion, Usage};
    ///
    /// let len = 64 << 20;
    /// let region = LocalRegion::alloc_huge(&peer, len, HugePageSize::MIB_2, Usage::WRITE_DST)
    ///     .or_else(|_none_reserved| LocalRegion::alloc(&peer, len, Usage::WRITE_DST))?;
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "rpma_mr_reg")]
    #[doc(alias = "MAP_HUGETLB")]
    pub fn alloc_huge(
        peer: &Peer,
        len: usize,
        page: HugePageSize,
        usage: Usage,
    ) -> Result<Self, Error> {
        check(len, usage)?;
        let mapping = Mapping::huge(len, page)?;
        // SAFETY: nobody else knows of the mapping.
        Ok(unsafe { Self::register(peer, mapping, usage) }?)
    }

    /// Maps the bytes `range` (`..` for all) of `file`, which is open for reading and writing, and
    /// registers them with `peer` for `usage`. Changes are the file's; when they survive a loss of
    /// power, [`persist`](Self::persist) tells.
    ///
    /// `file` is a regular file, of hugetlbfs too, or a device of device DAX (`/dev/dax0.0`). On DAX
    /// file systems it is mapped with `MAP_SYNC` where the kernel grants that. It may be closed
    /// afterwards. The memory is shared with all who map the file, and what they change is seen.
    ///
    /// When somebody cuts the file off, touching what is gone (by [`store`](Self::store) and
    /// [`load`](Self::load) too) ends the process by SIGBUS, as with any mapped file.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an empty range, no usage, or another kind of file;
    /// [`Error::OutOfBounds`] for a range past the end of the file; [`Error::MapFile`] with the
    /// system's answer (EACCES: open for reading only); or the refused registration. EFAULT says there
    /// that a file system does not let pages be pinned for writing (Linux 6.5 and later, for others
    /// than tmpfs, hugetlbfs and DAX).
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let peer = rpma::Peer::new(&rpma::Device::local("192.0.2.1".parse()?)?)?;
    /// use std::fs::File;
    ///
    /// use rpma::{LocalRegion, Usage};
    ///
    /// let dax = File::options().read(true).write(true).open("/dev/dax0.0")?;
    /// let usage = Usage::WRITE_DST | Usage::FLUSH;
    /// let region = LocalRegion::map_file(&peer, &dax, ..1 << 30, usage)?;
    /// println!("persisted by {:?}", region.persist_method());
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "rpma_mr_reg")]
    #[doc(alias = "MAP_SYNC")]
    pub fn map_file(
        peer: &Peer,
        file: &File,
        range: impl RangeBounds<u64>,
        usage: Usage,
    ) -> Result<Self, Error> {
        used(usage)?;
        let mapping = file::map(file, range, Mode::ReadWrite)?;
        // SAFETY: the mapping is new; other mappings of the file are other memory to Rust, and
        // whoever borrows from those has vouched that the file does not change.
        unsafe { Self::register(peer, mapping, usage) }.map_err(|error| {
            if error.errno() != Some(libc::EFAULT) {
                return error.into();
            }
            error
                .with_hint(
                    "from Linux 6.5 on only tmpfs, hugetlbfs and DAX let pages of files be pinned \
                     for writing: map the file there, or read-only as a source",
                )
                .into()
        })
    }

    /// As [`map_file`](Self::map_file), of a file that is open for reading alone, as a source: for a
    /// usage by which no device writes to it. [`store`](Self::store) is an error.
    ///
    /// Kernels before 6.2 pin such pages only as a private copy. The region then has what the file
    /// had at this moment, in memory of its own, and [`is_snapshot`](Self::is_snapshot) is true.
    ///
    /// # Errors
    /// As [`map_file`](Self::map_file), and [`Error::Invalid`] for a usage that writes.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let peer = rpma::Peer::new(&rpma::Device::local("192.0.2.1".parse()?)?)?;
    /// use rpma::{LocalRegion, Usage};
    ///
    /// let file = std::fs::File::open("/usr/share/dict/words")?;
    /// let region = LocalRegion::map_file_read_only(&peer, &file, .., Usage::READ_SRC)?;
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "rpma_mr_reg")]
    pub fn map_file_read_only(
        peer: &Peer,
        file: &File,
        range: impl RangeBounds<u64> + Clone,
        usage: Usage,
    ) -> Result<Self, Error> {
        used(usage)?;
        if writes(peer, usage) {
            return Err(Error::Invalid(format!(
                "{usage:?} lets devices write, which a file mapped read-only does not take: use map_file"
            )));
        }
        let mapping = file::map(file, range.clone(), Mode::ReadOnly)?;
        // SAFETY: as in `map_file`; no device writes.
        match unsafe { Self::register(peer, mapping, usage) } {
            Err(error) if error.errno() == Some(libc::EFAULT) => {
                let mapping = file::map(file, range, Mode::Snapshot)?;
                // SAFETY: as above.
                Ok(unsafe { Self::register(peer, mapping, usage) }?)
            }
            other => Ok(other?),
        }
    }

    /// Registers memory that belongs to somebody else: `len` bytes from `start` on.
    ///
    /// [`store`](Self::store) works where the usage lets devices write as well. With other usages the
    /// bytes may be borrowed elsewhere, so it is an error; use `start` instead.
    ///
    /// # Errors
    /// [`Error::Invalid`] for no bytes, no usage, a null pointer or a range past the address space, or
    /// the refused registration: EFAULT says that a part is not mapped, or not writable.
    ///
    /// # Safety
    /// - The memory stays mapped, in the same place, until the region **and** all connections of the
    ///   peer are gone, and for ever if [`close`](Self::close) fails (a drop does not tell).
    /// - Until then, with a usage by which devices write ([`READ_DST`](Usage::READ_DST),
    ///   [`WRITE_DST`](Usage::WRITE_DST), [`RECV`](Usage::RECV)): the memory is writable, no Rust
    ///   reference to any of it exists or is formed, and no allocator has it to give out.
    /// - With other usages: no `&mut` to any of it exists or is formed, and nobody in this process
    ///   writes to it while [`load`](Self::load) or [`load_u64`](Self::load_u64) runs.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let peer = rpma::Peer::new(&rpma::Device::local("192.0.2.1".parse()?)?)?;
    /// use rpma::{LocalRegion, Usage};
    ///
    /// static GREETING: [u8; 5] = *b"hello";
    /// // SAFETY: a static stays, and nobody ever changes this one.
    /// let region = unsafe {
    ///     LocalRegion::from_raw_parts(&peer, GREETING.as_ptr().cast_mut(), 5, Usage::READ_SRC)
    /// }?;
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "rpma_mr_reg")]
    pub unsafe fn from_raw_parts(
        peer: &Peer,
        start: *mut u8,
        len: usize,
        usage: Usage,
    ) -> Result<Self, Error> {
        check(len, usage)?;
        if start.is_null() || start.addr().checked_add(len).is_none() {
            return Err(Error::Invalid(format!(
                "no memory has {len} bytes from {start:p} on"
            )));
        }
        let rights = if writes(peer, usage) {
            Rights::ReadWrite
        } else {
            Rights::Borrowed
        };
        // SAFETY: the caller vouches for the memory, and for references to it.
        Ok(unsafe { Self::register(peer, Mapping::foreign(start, len, rights), usage) }?)
    }

    /// Registers `len` bytes of a DMA buffer, the memory of another device, from `offset` on. `fd` may
    /// be closed afterwards. Peers and requests name its bytes by their place in the buffer.
    ///
    /// The bytes are not mapped here: [`as_ptr`](Self::as_ptr) is null, and [`store`](Self::store)
    /// and [`load`](Self::load) are errors.
    ///
    /// # Errors
    /// [`Error::Invalid`] for no bytes or no usage;
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) where library, kernel or device
    /// cannot.
    ///
    /// # Safety
    /// - As [`from_raw_parts`](Self::from_raw_parts) of references, for every mapping of the buffer.
    #[doc(alias = "ibv_reg_dmabuf_mr")]
    pub unsafe fn from_dmabuf(
        peer: &Peer,
        fd: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        usage: Usage,
    ) -> Result<Self, Error> {
        check(len, usage)?;
        let mapping = Mapping::foreign(std::ptr::null_mut(), len, Rights::Unmapped);
        let attempt = |_: &Mapping, access: AccessFlags| {
            // The place must have the same remainder in its page as the offset.
            let iova = offset;
            // SAFETY: the caller vouches for all mappings of the buffer, which lives as long as its
            // registration.
            unsafe { MemoryRegion::register_dmabuf(peer.domain(), fd, offset, len, iova, access) }
        };
        let pinned = Pinned::attach(peer.registrar(), mapping, usage, attempt)?;
        Ok(Self::new(peer, pinned, usage))
    }

    /// # Safety
    /// - As [`Pinned::register`].
    unsafe fn register(peer: &Peer, mapping: Mapping, usage: Usage) -> Result<Self, verbs::Error> {
        // SAFETY: forwarded to the caller.
        let pinned = unsafe { Pinned::register(peer.domain(), peer.registrar(), mapping, usage) }?;
        let region = Self::new(peer, pinned, usage);
        if region.is_on_demand() {
            region.prefetch();
        }
        Ok(region)
    }

    /// Lets the device bring in all pages now: the first transfers would be slow enough for peers to
    /// run into their limits of time.
    fn prefetch(&self) {
        let advice = if writes(self.peer(), self.usage()) {
            Advice::PREFETCH_WRITE
        } else {
            Advice::PREFETCH
        };
        if let Err(error) = self.advise(.., advice, AdviseFlags::FLUSH) {
            tracing::debug!(%error, "pages that are paged on demand were not brought in yet");
        }
    }
}

/// Whether devices write to a region of this usage.
fn writes(peer: &Peer, usage: Usage) -> bool {
    peer.registrar()
        .needed(usage)
        .contains(AccessFlags::LOCAL_WRITE)
}

fn check(len: usize, usage: Usage) -> Result<(), Error> {
    if len == 0 {
        return Err(Error::Invalid(
            "a region needs at least 1 byte, 0 asked".into(),
        ));
    }
    used(usage)
}

fn used(usage: Usage) -> Result<(), Error> {
    if usage.is_empty() {
        return Err(Error::Invalid("a region needs a usage, none given".into()));
    }
    Ok(())
}
