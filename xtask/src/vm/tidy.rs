//! Keeping the cache small: what nothing needs any more is removed.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::{Config, state};

/// VMs of checkouts that are gone, kernels and libraries that were replaced, are removed when unused for so long.
const UNUSED: Duration = Duration::from_secs(30 * 24 * 3600);

/// What a VM's folder holds that its next start makes anew. The console stays, it may be asked for.
pub(super) fn large_files(folder: &Path) {
    for name in ["initrd", "agent", "token", "qemu.pid"] {
        // Often not there at all.
        let _ = fs::remove_file(folder.join(name));
    }
}

/// Notes that a folder of the cache is in use.
pub(super) fn mark_used(folder: &Path) {
    // Without the note it is at worst fetched again some day.
    let _ = fs::write(folder.join("used"), "");
}

/// Removes folders of VMs, kernels and libraries that nobody used for long. Only a wish: what cannot be removed stays.
pub(super) fn old_leftovers(config: &Config) {
    mark_used(&config.folder);
    for kind in ["vm", "kernel", "libraries"] {
        for folder in old_folders(&config.cache.join(kind), SystemTime::now()) {
            let in_use = fs::read_to_string(folder.join("qemu.pid"))
                .ok()
                .and_then(|pid| pid.trim().parse().ok())
                .is_some_and(|pid| state::is_our_qemu(pid, &folder));
            if !in_use {
                let _ = fs::remove_dir_all(folder);
            }
        }
    }
}

fn old_folders(parent: &Path, now: SystemTime) -> Vec<PathBuf> {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    let folders = entries
        .map(|entry| entry.path())
        .filter(|path| path.is_dir());
    let age = |folder: &Path| {
        let data = fs::metadata(folder.join("used")).or_else(|_| fs::metadata(folder));
        let modified = data.and_then(|data| data.modified()).ok()?;
        now.duration_since(modified).ok()
    };
    folders
        .filter(|folder| age(folder).is_some_and(|age| age > UNUSED))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::testing::Scratch;
    use super::*;

    #[test]
    fn only_what_was_not_used_for_long_is_old() {
        let scratch = Scratch::new("tidy");
        for name in ["a", "b"] {
            fs::create_dir_all(scratch.path(name)).unwrap();
        }
        mark_used(&scratch.path("a"));
        let old = |days: u64| {
            let now = SystemTime::now() + Duration::from_secs(days * 24 * 3600);
            old_folders(&scratch.path(""), now).len()
        };
        assert_eq!((old(0), old(29), old(31)), (0, 0, 2));
        assert_eq!(
            old_folders(&scratch.path("none"), SystemTime::now()).len(),
            0
        );
    }
}
