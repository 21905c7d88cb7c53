//! The memory behind a region: where it is, what may be done with it here, and who unmaps it.

use std::fs;
use std::io;

use memmap2::{MmapMut, MmapOptions, MmapRaw};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::persist::PersistMethod;
use crate::error::Error;

/// What this side's processor may do with the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rights {
    /// Load and store.
    ReadWrite,
    /// Load: a store would be a fault.
    ReadOnly,
    /// Load: shared references to the bytes may exist.
    Borrowed,
    /// Nothing: the bytes are mapped nowhere.
    Unmapped,
}

/// Memory, and how it goes away.
#[derive(Debug)]
pub(super) struct Mapping {
    start: *mut u8,
    len: usize,
    rights: Rights,
    persist: Option<PersistMethod>,
    /// Whether others' changes of the file are not seen.
    snapshot: bool,
    owner: Owner,
}

/// Whoever unmaps the memory.
#[derive(Debug)]
enum Owner {
    Mapped(MmapRaw),
    Synchronous {
        #[expect(dead_code, reason = "held to be unmapped with the region")]
        pages: Synchronous,
    },
    /// The caller, or nobody.
    Other,
}

/// The length of a huge page.
///
/// Huge pages must be reserved before they are used, by `/proc/sys/vm/nr_hugepages` or
/// `/sys/kernel/mm/hugepages/hugepages-…/nr_hugepages`.
#[doc(alias = "MAP_HUGETLB")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HugePageSize(u8);

impl HugePageSize {
    /// 2 MiB.
    pub const MIB_2: Self = Self(21);
    /// 1 GiB.
    pub const GIB_1: Self = Self(30);

    /// Any other length that the machine has, in bytes: a power of two.
    ///
    /// ```
    /// use rpma::HugePageSize;
    ///
    /// assert_eq!(HugePageSize::new(2 << 20), Some(HugePageSize::MIB_2));
    /// assert_eq!(HugePageSize::new(3 << 20), None);
    /// ```
    pub const fn new(bytes: usize) -> Option<Self> {
        if bytes.is_power_of_two() {
            #[expect(clippy::cast_possible_truncation, reason = "at most 63")]
            return Some(Self(bytes.trailing_zeros() as u8));
        }
        None
    }

    /// Its length in bytes.
    pub const fn bytes(self) -> usize {
        1 << self.0
    }

    /// How many pages of this length are free; `None` where the machine has none of this length.
    fn free(self) -> Option<u64> {
        let kib = self.bytes() >> 10;
        let path = format!("/sys/kernel/mm/hugepages/hugepages-{kib}kB/free_hugepages");
        fs::read_to_string(path).ok()?.trim().parse().ok()
    }
}

/// Bytes of an ordinary page. Not from rustix, which reads it from a file that a process that has
/// given up root's rights may not open.
pub(super) fn page_size() -> usize {
    // SAFETY: the call has no precondition.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(4096)
}

impl Mapping {
    /// Zeroed pages that nothing else uses.
    pub(super) fn anonymous(len: usize) -> Result<Self, Error> {
        let no_memory = |source| Error::Memory { len, source };
        // Lengths that no address space has would overflow the rounding to pages.
        if len > usize::MAX / 2 {
            return Err(no_memory(io::Error::from_raw_os_error(libc::ENOMEM)));
        }
        let pages = MmapRaw::from(MmapMut::map_anon(len).map_err(no_memory)?);
        Ok(Self::of(pages, 0, len, Rights::ReadWrite))
    }

    /// Zeroed huge pages.
    pub(super) fn huge(len: usize, page: HugePageSize) -> Result<Self, Error> {
        let refused = |source| Error::HugePages {
            len,
            page: page.bytes(),
            free: page.free(),
            source,
        };
        let whole = len
            .checked_next_multiple_of(page.bytes())
            .filter(|&whole| whole <= usize::MAX / 2)
            // Unmapping takes whole huge pages only, so the mapping has whole ones.
            .ok_or_else(|| refused(io::Error::from_raw_os_error(libc::ENOMEM)))?;
        let pages = MmapOptions::new()
            .len(whole)
            .huge(Some(page.0))
            .map_anon()
            .map_err(refused)?;
        Ok(Self::of(MmapRaw::from(pages), 0, len, Rights::ReadWrite))
    }

    /// `len` bytes of a mapping of our own, from `skip` on, which lie in it.
    pub(super) fn of(pages: MmapRaw, skip: usize, len: usize, rights: Rights) -> Self {
        Self {
            start: pages.as_mut_ptr().wrapping_add(skip),
            len,
            rights,
            persist: None,
            snapshot: false,
            owner: Owner::Mapped(pages),
        }
    }

    /// As [`of`](Self::of), of a mapping whose file needs no call to be up to date.
    pub(super) fn of_synchronous(pages: Synchronous, skip: usize, len: usize) -> Self {
        Self {
            start: pages.start.wrapping_add(skip),
            len,
            rights: Rights::ReadWrite,
            persist: None,
            snapshot: false,
            owner: Owner::Synchronous { pages },
        }
    }

    /// Memory that somebody else unmaps.
    pub(super) fn foreign(start: *mut u8, len: usize, rights: Rights) -> Self {
        Self {
            start,
            len,
            rights,
            persist: None,
            snapshot: false,
            owner: Owner::Other,
        }
    }

    /// The same, persisted by `method`.
    pub(super) fn persisted_by(self, method: PersistMethod) -> Self {
        Self {
            persist: Some(method),
            ..self
        }
    }

    /// The same, a private copy of its file.
    pub(super) fn snapshot(self) -> Self {
        Self {
            snapshot: true,
            ..self
        }
    }

    pub(super) fn start(&self) -> *mut u8 {
        self.start
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn rights(&self) -> Rights {
        self.rights
    }

    pub(super) fn persist_method(&self) -> Option<PersistMethod> {
        self.persist
    }

    pub(super) fn is_snapshot(&self) -> bool {
        self.snapshot
    }

    /// The mapping and the place of the first byte in it, where the file is up to date only after a
    /// call.
    pub(super) fn pages(&self) -> Option<(&MmapRaw, usize)> {
        match &self.owner {
            Owner::Mapped(pages) => {
                let skip = self.start.addr() - pages.as_ptr().addr();
                Some((pages, skip))
            }
            Owner::Synchronous { .. } | Owner::Other => None,
        }
    }
}

/// A shared mapping of a file whose blocks do not move (`MAP_SYNC`): what reaches its memory is in
/// the file.
#[derive(Debug)]
pub(super) struct Synchronous {
    start: *mut u8,
    len: usize,
}

impl Synchronous {
    /// # Errors
    /// EOPNOTSUPP or EINVAL where kernel, file system or file do not have it.
    pub(super) fn map(file: &fs::File, offset: u64, len: usize) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED_VALIDATE | MapFlags::SYNC,
                file,
                offset,
            )
        }?;
        Ok(Self {
            start: start.cast(),
            len,
        })
    }
}

impl Drop for Synchronous {
    fn drop(&mut self) {
        // SAFETY: our own mapping, as long as it was made, which nobody uses any more.
        let unmapped = unsafe { munmap(self.start.cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}
