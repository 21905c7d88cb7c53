//! A `/sys` of one's own for the unit tests.

use std::fs;
use std::path::{Path, PathBuf};

/// A folder that looks like `/sys`, removed at the end.
pub(crate) struct FakeSys(PathBuf);

impl FakeSys {
    pub(crate) fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("xtask-sys-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    pub(crate) fn root(&self) -> &Path {
        &self.0
    }

    /// Adds a port as the kernel would show it.
    pub(crate) fn port(&self, device: &str, number: u32, state: &str, gids: &[&str]) {
        let port = self
            .0
            .join(format!("class/infiniband/{device}/ports/{number}"));
        fs::create_dir_all(port.join("gids")).unwrap();
        fs::write(port.join("state"), format!("{state}\n")).unwrap();
        for (index, gid) in gids.iter().enumerate() {
            fs::write(
                port.join("gids").join(index.to_string()),
                format!("{gid}\n"),
            )
            .unwrap();
        }
    }
}

impl Drop for FakeSys {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
