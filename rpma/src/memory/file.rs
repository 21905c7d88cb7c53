//! Files mapped into memory: ordinary ones, those of DAX file systems and hugetlbfs, and the devices
//! of device DAX.

use std::fs::{self, File};
use std::io;
use std::ops::RangeBounds;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use memmap2::{MmapOptions, MmapRaw};

use super::mapping::{Mapping, Rights, Synchronous, page_size};
use super::persist::PersistMethod;
use super::span::resolve;
use crate::error::Error;

/// How a file is mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// Shared, to be changed.
    ReadWrite,
    /// Shared, not to be changed by this side.
    ReadOnly,
    /// A private copy of what the file has when the pages are pinned.
    Snapshot,
}

/// Maps the bytes `range` of `file`.
pub(super) fn map(file: &File, range: impl RangeBounds<u64>, mode: Mode) -> Result<Mapping, Error> {
    let kind = Kind::of(file)?;
    let (offset, len) = resolve(range, kind.size, "file")?;
    let refused = |source| Error::MapFile {
        offset,
        len,
        source,
    };
    if len == 0 {
        return Err(Error::Invalid(format!(
            "a region needs at least 1 byte, 0 asked of a file of {} bytes",
            kind.size
        )));
    }
    // Mapped and unmapped in whole units, which are longer than pages for some files.
    let base = offset - offset % kind.unit;
    let too_long = || refused(io::Error::from_raw_os_error(libc::ENOMEM));
    let whole = (offset - base + len)
        .checked_next_multiple_of(kind.unit)
        .and_then(|whole| usize::try_from(whole).ok())
        .ok_or_else(too_long)?;
    let skip = usize::try_from(offset - base).map_err(|_| too_long())?;
    let bytes = usize::try_from(len).map_err(|_| too_long())?;

    let options = {
        let mut options = MmapOptions::new();
        options.offset(base).len(whole);
        options
    };
    match mode {
        Mode::ReadWrite => {
            let lines = PersistMethod::of_cache_lines();
            if let Some(method) = lines
                && let Ok(pages) = Synchronous::map(file, base, whole)
            {
                return Ok(Mapping::of_synchronous(pages, skip, bytes).persisted_by(method));
            }
            let pages = options.map_raw(file).map_err(refused)?;
            let method = lines
                .filter(|_| kind.device)
                .unwrap_or(PersistMethod::Msync);
            Ok(Mapping::of(pages, skip, bytes, Rights::ReadWrite).persisted_by(method))
        }
        Mode::ReadOnly => {
            let pages = options.map_raw_read_only(file).map_err(refused)?;
            Ok(Mapping::of(pages, skip, bytes, Rights::ReadOnly))
        }
        Mode::Snapshot => {
            // SAFETY: no slice of it is ever formed, so that it does not matter who changes the
            // file meanwhile.
            let pages = unsafe { options.map_copy_read_only(file) }.map_err(refused)?;
            Ok(Mapping::of(MmapRaw::from(pages), skip, bytes, Rights::ReadOnly).snapshot())
        }
    }
}

/// What kind of file it is.
#[derive(Debug)]
struct Kind {
    /// Its length in bytes.
    size: u64,
    /// What it is mapped in multiples of, in bytes.
    unit: u64,
    /// Whether it is memory itself, with no file system.
    device: bool,
}

impl Kind {
    fn of(file: &File) -> Result<Self, Error> {
        let failed = |source| Error::MapFile {
            offset: 0,
            len: 0,
            source,
        };
        let metadata = file.metadata().map_err(failed)?;
        if metadata.is_file() {
            let system = rustix::fs::fstatfs(file).map_err(|errno| failed(errno.into()))?;
            let unit = if i128::from(system.f_type) == HUGETLBFS {
                u64::try_from(system.f_bsize).unwrap_or(1)
            } else {
                page_size() as u64
            };
            return Ok(Self {
                size: metadata.len(),
                unit: unit.max(1),
                device: false,
            });
        }
        let number = metadata.rdev();
        let character = metadata.file_type().is_char_device();
        Self::of_device_dax(number).filter(|_| character).ok_or_else(|| {
            Error::Invalid(format!(
                "only regular files and devices of device DAX can be mapped, not a file of mode {:o}",
                metadata.mode()
            ))
        })
    }

    /// What sysfs says of a device, if that is one of device DAX.
    fn of_device_dax(number: u64) -> Option<Self> {
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        let device = format!("/sys/dev/char/{major}:{minor}");
        let bus = fs::read_link(format!("{device}/subsystem")).ok()?;
        if bus.file_name()? != "dax" {
            return None;
        }
        let number = |name: &str| -> Option<u64> {
            let text = fs::read_to_string(format!("{device}/{name}")).ok()?;
            text.trim().parse().ok()
        };
        // Kernels before 5.10 tell it of the whole device's range only.
        let align = number("align").or_else(|| number("../dax_region/align"))?;
        Some(Self {
            size: number("size")?,
            unit: align.max(1),
            device: true,
        })
    }
}

/// Whose pages are huge: `HUGETLBFS_MAGIC`.
const HUGETLBFS: i128 = 0x9584_58f6;

#[cfg(all(test, not(miri)))]
mod tests {
    use std::os::fd::OwnedFd;

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;

    fn file(len: u64) -> File {
        let fd: OwnedFd = memfd_create("mapped", MemfdFlags::CLOEXEC).expect("a file");
        ftruncate(&fd, len).expect("its length");
        File::from(fd)
    }

    #[test]
    fn any_part_of_a_file_is_mapped_and_no_byte_outside() {
        let file = file(10_000);
        for (range, len) in [(0..10_000, 10_000), (1..2, 1), (4095..9_999, 5904)] {
            let mapping = map(&file, range, Mode::ReadWrite).expect("mapped");
            assert_eq!(mapping.len(), len);
            assert_eq!(mapping.rights(), Rights::ReadWrite);
        }
        for range in [0..10_001, 10_000..10_001, 1..u64::MAX] {
            let error = map(&file, range, Mode::ReadWrite).expect_err("outside");
            assert!(
                matches!(
                    error,
                    Error::OutOfBounds {
                        what: "file",
                        size: 10_000,
                        ..
                    }
                ),
                "{error}"
            );
        }
        let error = map(&file, 5..5, Mode::ReadOnly).expect_err("no byte");
        assert!(error.to_string().contains("at least 1 byte"), "{error}");
    }

    #[test]
    fn what_is_no_file_is_refused_by_its_mode() {
        for path in ["/dev/null", "/dev/zero", "/"] {
            let error = map(&File::open(path).expect("there"), .., Mode::ReadOnly)
                .expect_err("cannot be mapped");
            assert!(error.to_string().contains("mode"), "{path}: {error}");
        }
    }

    #[test]
    fn a_file_that_is_open_for_reading_alone_is_not_mapped_for_writing() {
        let file = File::open("/proc/self/exe").expect("this program");
        let error = map(&file, .., Mode::ReadWrite).expect_err("read only");
        assert!(
            matches!(&error, Error::MapFile { source, .. } if source.raw_os_error() == Some(libc::EACCES)),
            "{error}"
        );
        for mode in [Mode::ReadOnly, Mode::Snapshot] {
            let mapping = map(&file, 1..4, mode).expect("mapped");
            assert_eq!(mapping.rights(), Rights::ReadOnly);
            // SAFETY: three bytes of a mapping that lives, of a file that nobody changes.
            let name = unsafe { std::slice::from_raw_parts(mapping.start(), 3) };
            assert_eq!(name, b"ELF");
        }
    }
}
