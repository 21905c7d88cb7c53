//! Distribution packages that are fetched and unpacked, never installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use super::apt::Apt;
use crate::error::{Context, Error, Result};
use crate::process::{self, Guarded};
use crate::report::Step;

/// A download that takes longer is given up.
const DOWNLOAD_DEADLINE: Duration = Duration::from_secs(900);

/// Downloads packages into a folder: that needs no privileges and installs nothing. `what` is what they are, for people.
///
/// # Errors
/// When one of them cannot be fetched, or not in time.
pub(super) fn packages(what: &str, packages: &[String], apt: &Apt, to: &Path) -> Result<()> {
    let total = download_size(packages, apt);
    let size = total
        .map(|bytes| format!(" ({})", megabytes(bytes)))
        .unwrap_or_default();
    let step = Step::start(format!("Downloading {what}{size}: {}", packages.join(" ")));
    let attempt = || -> Result<()> {
        let mut command = apt.command("apt-get");
        command
            .args(["-qq", "download"])
            .args(packages)
            .current_dir(to)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let child = command
            .spawn()
            .context(|| format!("cannot run apt-get to download {what}"))?;
        let mut child = Guarded(child);
        let deadline = Instant::now() + DOWNLOAD_DEADLINE;
        let status = loop {
            let soon = Instant::now() + Duration::from_millis(250);
            if let Some(status) = process::wait_until(&mut child.0, soon)? {
                break status;
            }
            step.progress(|| match total {
                Some(total) => format!("{} of {}", megabytes(size_of_files(to)), megabytes(total)),
                None => megabytes(size_of_files(to)),
            });
            if Instant::now() > deadline {
                return Err(Error::new(format!(
                    "the download of {} did not end within {} minutes; check the network and try again",
                    packages.join(" "),
                    DOWNLOAD_DEADLINE.as_secs() / 60
                )));
            }
        };
        if status.success() {
            return Ok(());
        }
        let mut said = String::new();
        if let Some(mut stderr) = child.0.stderr.take() {
            // What apt-get wrote before it ended; without it the message is only shorter.
            let _ = std::io::Read::read_to_string(&mut stderr, &mut said);
        }
        Err(Error::new(format!(
            "cannot download {what} ({}): {}; check the network and the room in {}",
            packages.join(" "),
            said.lines().next().unwrap_or("apt-get said nothing").trim(),
            to.display()
        )))
    };
    attempt().or_else(|first| {
        if !apt.is_system() {
            return Err(first);
        }
        // The lists name a version that the archive no longer has.
        crate::packages::update_lists(&format!("because {first}"))?;
        attempt()
    })?;
    step.done("fetched");
    Ok(())
}

fn download_size(packages: &[String], apt: &Apt) -> Option<u64> {
    let shown = process::capture(
        apt.command("apt-cache")
            .args(["show", "--no-all-versions"])
            .args(packages),
    );
    let sizes = shown.ok()?;
    let sizes = sizes
        .lines()
        .filter_map(|line| line.strip_prefix("Size: ")?.trim().parse::<u64>().ok());
    Some(sizes.sum()).filter(|total| *total > 0)
}

fn size_of_files(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.metadata().ok())
        .map(|data| data.len())
        .sum()
}

fn megabytes(bytes: u64) -> String {
    format!("{}.{} MB", bytes / 1_000_000, bytes / 100_000 % 10)
}

/// Unpacks every package in `folder` into `tree`, and removes the packages.
///
/// # Errors
/// When one of them is damaged, or there is no room for what it holds.
pub(super) fn unpack_all(folder: &Path, tree: &Path) -> Result<()> {
    for package in files_in(folder)?
        .iter()
        .filter(|file| file.extension().is_some_and(|e| e == "deb"))
    {
        process::capture(process::tool("dpkg").arg("-x").arg(package).arg(tree))?;
        fs::remove_file(package).context(|| format!("cannot remove {}", package.display()))?;
    }
    Ok(())
}

/// The files and folders in a folder, by name.
pub(super) fn files_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).context(|| format!("cannot read {}", folder.display()))?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.sort();
    Ok(files)
}

/// An empty folder in place of what may be left of an earlier try.
pub(super) fn fresh_folder(folder: &Path) -> Result<()> {
    remove(folder)?;
    fs::create_dir_all(folder).context(|| format!("cannot make {}", folder.display()))
}

/// Removes a folder with all in it, if it is there.
pub(super) fn remove(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(Error::new(format!(
            "cannot remove {}: {error}",
            folder.display()
        ))),
        _ => Ok(()),
    }
}
