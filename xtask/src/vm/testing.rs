//! What the unit tests of the VM share.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::Stdio;

use crate::process;

/// A folder of its own for one test, removed at its end.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("xtask-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// What `program` (xz, zstd, gzip) makes of `content`.
pub(crate) fn compress(program: &str, content: &[u8]) -> Vec<u8> {
    let mut child = process::tool(program)
        .arg("-cq")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| {
            panic!("cannot run {program}: {error}; cargo xtask setup installs it")
        });
    let mut stdin = child.stdin.take().unwrap();
    let content = content.to_vec();
    let writer = std::thread::spawn(move || stdin.write_all(&content).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(output.status.success());
    output.stdout
}
