//! Making sure that what is in a mapped file's memory survives a loss of power.

use std::fmt;
use std::ops::RangeBounds;
use std::sync::OnceLock;

use memmap2::Advice;

use super::cache_line;
use super::local::LocalRegion;
use super::mapping::{Mapping, Rights};
use super::span::resolve;
use crate::error::Error;

/// How [`LocalRegion::persist`] makes bytes survive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PersistMethod {
    /// `msync`: the kernel writes the pages to the file.
    Msync,
    /// The processor writes its cache lines back and keeps them: `clwb`.
    Clwb,
    /// The processor writes its cache lines back and drops them: `clflushopt`.
    ClflushOpt,
    /// As [`ClflushOpt`](Self::ClflushOpt), one line after the other: `clflush`.
    Clflush,
    /// The processor cleans its cache lines to the point of persistence: `dc cvap`.
    DcCvap,
}

impl PersistMethod {
    /// The best one for memory that is persistent itself, if this processor has any.
    pub(super) fn of_cache_lines() -> Option<Self> {
        static FOUND: OnceLock<Option<PersistMethod>> = OnceLock::new();
        *FOUND.get_or_init(cache_line::detect)
    }
}

impl fmt::Display for PersistMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Msync => "msync",
            Self::Clwb => "clwb",
            Self::ClflushOpt => "clflushopt",
            Self::Clflush => "clflush",
            Self::DcCvap => "dc cvap",
        })
    }
}

impl LocalRegion {
    /// Makes the bytes `range` survive a loss of power as they are now, whether this side has stored
    /// them or a peer has written them. It returns when they do.
    ///
    /// For regions that are made of files: see [`persist_method`](Self::persist_method).
    ///
    /// # Errors
    /// [`Error::OutOfBounds`], [`Error::ReadOnly`], [`Error::Invalid`] for memory that is of no
    /// file, and [`Error::Persist`] with the answer of the system: EIO when a device has failed.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let peer = rpma::Peer::new(&rpma::Device::local("192.0.2.1".parse()?)?)?;
    /// use rpma::{LocalRegion, Usage};
    ///
    /// let file = std::fs::File::options().read(true).write(true).open("/mnt/pmem/log")?;
    /// let region = LocalRegion::map_file(&peer, &file, .., Usage::WRITE_DST)?;
    /// region.store(64, b"entry")?;
    /// region.persist(64..69)?;
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "pmem_persist")]
    #[doc(alias = "msync")]
    pub fn persist(&self, range: impl RangeBounds<u64>) -> Result<(), Error> {
        let (offset, len) = resolve(range, self.len() as u64, "local region")?;
        self.pinned().check_process("persist")?;
        // Both fit: the region has that many bytes.
        #[expect(clippy::cast_possible_truncation, reason = "a place in a region")]
        persist(self.pinned().mapping(), offset as usize, len as usize)
    }

    /// How [`persist`](Self::persist) works here; `None` where it does not, since the memory is of no
    /// file, or may not be changed.
    pub fn persist_method(&self) -> Option<PersistMethod> {
        self.pinned().mapping().persist_method()
    }
}

/// Persists `len` bytes from `offset` on, which lie in the mapping.
fn persist(mapping: &Mapping, offset: usize, len: usize) -> Result<(), Error> {
    let Some(method) = mapping.persist_method() else {
        if mapping.rights() == Rights::ReadOnly {
            return Err(Error::ReadOnly {
                operation: "persist",
            });
        }
        return Err(Error::Invalid(
            "persist is for regions made of files (LocalRegion::map_file), this one's memory is of none"
                .into(),
        ));
    };
    if len == 0 {
        return Ok(());
    }
    match (method, mapping.pages()) {
        (PersistMethod::Msync, Some((pages, skip))) => {
            let failed = |source| Error::Persist {
                offset: offset as u64,
                len: len as u64,
                source,
            };
            let at = skip + offset;
            // The kernel knows of a device's writes only that they were possible when the pages were
            // pinned, and forgets that with the first msync. So it is told as by a write of our own:
            // the pages are made writable anew, which marks them.
            pages
                .advise_range(Advice::PopulateWrite, at, len)
                .or_else(|error| match error.raw_os_error() {
                    // Before Linux 5.14.
                    Some(libc::EINVAL) => {
                        // SAFETY: in the mapping, which is writable, and to which no reference exists.
                        unsafe { cache_line::touch(mapping.start().wrapping_add(offset), len) };
                        Ok(())
                    }
                    _ => Err(error),
                })
                .and_then(|()| pages.flush_range(at, len))
                .map_err(failed)
        }
        _ => {
            // SAFETY: in the mapping, which is there as long as the region.
            unsafe { cache_line::write_back(method, mapping.start().wrapping_add(offset), len) };
            Ok(())
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::fs::File;
    use std::os::fd::OwnedFd;
    use std::os::unix::fs::FileExt;

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::super::file::{Mode, map};
    use super::*;

    #[test]
    fn each_part_of_a_mapped_file_can_be_persisted() {
        let fd: OwnedFd = memfd_create("mapped", MemfdFlags::CLOEXEC).expect("a file");
        ftruncate(&fd, 20_000).expect("its length");
        let file = File::from(fd);
        let mapping = map(&file, 100..19_000, Mode::ReadWrite).expect("mapped");
        assert_eq!(mapping.persist_method(), Some(PersistMethod::Msync));
        for (offset, len) in [(0, 18_900), (0, 0), (18_899, 1), (3_995, 2), (5_000, 9_000)] {
            persist(&mapping, offset, len).expect("persisted");
        }
        // SAFETY: a byte of the mapping.
        unsafe { mapping.start().write_volatile(7) };
        persist(&mapping, 0, 1).expect("persisted");
        let mut found = [0];
        file.read_exact_at(&mut found, 100).expect("read");
        assert_eq!(found, [7]);
    }

    #[test]
    fn a_file_that_was_cut_off_is_an_error_of_persist() {
        let fd: OwnedFd = memfd_create("mapped", MemfdFlags::CLOEXEC).expect("a file");
        ftruncate(&fd, 20_000).expect("its length");
        let file = File::from(fd);
        let mapping = map(&file, .., Mode::ReadWrite).expect("mapped");
        file.set_len(4096).expect("cut off");
        persist(&mapping, 0, 4096).expect("still there");
        let error = persist(&mapping, 0, 8192).expect_err("half of it is gone");
        assert!(matches!(error, Error::Persist { .. }), "{error}");
    }

    #[test]
    fn what_may_not_be_changed_or_is_no_file_is_not_persisted() {
        let file = File::open("/proc/self/exe").expect("this program");
        let mapping = map(&file, .., Mode::ReadOnly).expect("mapped");
        let error = persist(&mapping, 0, 1).expect_err("read only");
        assert!(matches!(error, Error::ReadOnly { .. }), "{error}");
        let error = persist(&Mapping::anonymous(64).expect("memory"), 0, 1).expect_err("no file");
        assert!(error.to_string().contains("map_file"), "{error}");
    }
}
