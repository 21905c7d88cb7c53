//! The initial file system of the guest: busybox, the modules, and the script that leads to the host's root.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Stdio;

use super::kernel::Kernel;
use crate::error::{Context, Error, Result};
use crate::process;

/// The script that the kernel runs first.
pub(crate) const INIT: &str = include_str!("init.sh");

/// Writes the initrd for `kernel` to `to`, building it in `staging`.
///
/// # Errors
/// When busybox or cpio is missing or fails, or a folder cannot be written.
pub(crate) fn write(kernel: &Kernel, staging: &Path, to: &Path) -> Result<()> {
    let failed = |what: &str| {
        format!(
            "cannot build the VM's initrd in {}: {what}",
            staging.display()
        )
    };
    // It may be left over from a start that was interrupted.
    let _ = fs::remove_dir_all(staging);
    for folder in [
        "bin", "dev", "proc", "sys", "lower", "layer", "ov", "root", "modules",
    ] {
        fs::create_dir_all(staging.join(folder)).context(|| failed(folder))?;
    }
    let busybox = process::find_tool("busybox")
        .ok_or_else(|| Error::new("busybox is missing; install the package busybox-static"))?;
    fs::copy(busybox, staging.join("bin/busybox")).context(|| failed("busybox"))?;
    symlink("busybox", staging.join("bin/sh")).context(|| failed("bin/sh"))?;
    let init = staging.join("init");
    fs::write(&init, INIT).context(|| failed("init"))?;
    fs::set_permissions(&init, fs::Permissions::from_mode(0o755)).context(|| failed("init"))?;
    let entries = fs::read_dir(&kernel.modules).context(|| failed("modules"))?;
    for entry in entries.flatten() {
        fs::copy(
            entry.path(),
            staging.join("modules").join(entry.file_name()),
        )
        .context(|| failed("modules"))?;
    }
    let archive = archive(staging)?;
    fs::write(to, archive).context(|| format!("cannot write {}", to.display()))?;
    fs::remove_dir_all(staging).context(|| failed("clean up"))
}

/// The folder as a cpio archive in the kernel's format.
fn archive(folder: &Path) -> Result<Vec<u8>> {
    let mut names = Vec::new();
    list(folder, Path::new(""), &mut names)?;
    let mut child = process::tool("cpio")
        .args(["-o", "-H", "newc", "--quiet"])
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .context(|| "cannot run cpio (package cpio) to build the VM's initrd".to_owned())?;
    let stdin = child.stdin.take();
    let output = std::thread::scope(|scope| {
        scope.spawn(move || {
            // If cpio ended early, its exit code says so below.
            if let Some(mut stdin) = stdin {
                let _ = stdin.write_all(names.join("\n").as_bytes());
            }
        });
        child.wait_with_output()
    });
    let output = output.context(|| "cannot read what cpio writes".to_owned())?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    Err(Error::new(format!(
        "cpio failed to build the VM's initrd ({})",
        process::describe(output.status)
    )))
}

/// Every path below `folder`, a folder before what it holds.
fn list(folder: &Path, below: &Path, names: &mut Vec<String>) -> Result<()> {
    let here = folder.join(below);
    let entries = fs::read_dir(&here).context(|| format!("cannot read {}", here.display()))?;
    for entry in entries.flatten() {
        let path = below.join(entry.file_name());
        names.push(path.to_string_lossy().into_owned());
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            list(folder, &path, names)?;
        }
    }
    Ok(())
}
