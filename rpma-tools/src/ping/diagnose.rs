//! Why a machine has no RDMA device: what the library cannot know, or says in other words.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use crate::failure::Failure;

const FILES: &str = "/dev/infiniband";

/// Replaces a failure that came before there was a device by one that names the device file that
/// is missing or cannot be opened, when that is so.
pub(super) fn explain(failure: Failure) -> Failure {
    examine(Path::new(FILES)).unwrap_or(failure)
}

/// What is wrong with the device files in this directory; `None` when those of a device can be
/// opened.
fn examine(directory: &Path) -> Option<Failure> {
    let manager = directory.join("rdma_cm");
    if let Err(error) = open(&manager) {
        return Some(describe(&manager, &error, "rdma_ucm"));
    }
    let devices: Vec<PathBuf> = fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("uverbs"))
        .map(|entry| entry.path())
        .collect();
    if devices.is_empty() {
        let missing = io::Error::from_raw_os_error(libc::ENOENT);
        return Some(describe(&directory.join("uverbs0"), &missing, "ib_uverbs"));
    }
    // One that can be opened is enough; which one the address leads to is not known here.
    let refused: Vec<_> = devices
        .iter()
        .map_while(|device| Some((device, open(device).err()?)))
        .collect();
    match refused.first() {
        Some((device, error)) if refused.len() == devices.len() => {
            Some(describe(device, error, "ib_uverbs"))
        }
        _ => None,
    }
}

fn open(file: &Path) -> io::Result<()> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .open(file)
        .map(drop)
}

fn describe(file: &Path, error: &io::Error, module: &str) -> Failure {
    let errno = error.raw_os_error().unwrap_or(0);
    let file = file.display();
    let failure = Failure::failed(format!(
        "no usable RDMA device: cannot open {file}: {}",
        plain(error)
    ));
    match errno {
        libc::EACCES | libc::EPERM => failure.with_hint(format!(
            "give this user read and write permission for {file} (usually mode 0666 by the udev \
             rules of rdma-core), or run as root"
        )),
        _ => failure.with_hint(format!(
            "load the module with modprobe {module}, and the module of the device; without RDMA \
             hardware, modprobe rdma_rxe and rdma link add rxe0 type rxe netdev INTERFACE make one \
             of a network interface"
        )),
    }
}

/// The system's text and number, as `No such file or directory (errno 2)`.
fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    match (text.split_once(" (os error "), error.raw_os_error()) {
        (Some((text, _)), Some(errno)) => format!("{text} (errno {errno})"),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_file_is_named_with_its_errno_and_the_module() {
        let directory = std::env::temp_dir().join(format!("rpma-ping-none-{}", std::process::id()));
        let failure = examine(&directory).unwrap();
        let file = directory.join("rdma_cm");
        assert!(
            failure.sentence().contains(&file.display().to_string()),
            "{failure}"
        );
        assert!(failure.sentence().contains("errno 2"), "{failure}");
        assert!(failure.hint().unwrap().contains("rdma_ucm"), "{failure}");
    }

    #[test]
    fn a_refused_file_is_named_with_its_errno_and_the_permission() {
        let refused = io::Error::from_raw_os_error(libc::EACCES);
        let failure = describe(Path::new("/dev/infiniband/rdma_cm"), &refused, "rdma_ucm");
        assert!(
            failure.sentence().contains("/dev/infiniband/rdma_cm"),
            "{failure}"
        );
        assert!(failure.sentence().contains("errno 13"), "{failure}");
        assert!(failure.hint().unwrap().contains("permission"), "{failure}");
    }

    #[test]
    fn files_without_a_device_among_them_are_not_enough() {
        let directory = std::env::temp_dir().join(format!("rpma-ping-cm-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("rdma_cm"), "").unwrap();
        let without = examine(&directory);
        fs::write(directory.join("uverbs0"), "").unwrap();
        let with = examine(&directory);
        fs::remove_dir_all(&directory).unwrap();
        assert!(without.unwrap().sentence().contains("uverbs0"));
        assert_eq!(with, None);
    }
}
