//! The RDMA libraries of a guest that has others than the host: fetched as distribution packages, never installed here.
//!
//! They lie in a tree that the guest lays over the host's root, so that what was built here runs with them. They need the
//! libc of their own distribution. It takes the place of an older one of the host, whose programs run with it as
//! well; the host's is kept where it is the newer one, for the same reason.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::apt::Apt;
use super::download::{self, files_in};
use super::{Config, tidy};
use crate::error::{Context, Error, Result};
use crate::process;
use crate::report::Step;
use crate::workspace;

/// Libraries, drivers and the programs that go with them, and the headers to compare the bindings with.
const PACKAGES: [&str; 9] = [
    "ibverbs-providers",
    "ibverbs-utils",
    "libibverbs-dev",
    "libibverbs1",
    "libnl-3-200",
    "libnl-route-3-200",
    "librdmacm-dev",
    "librdmacm1t64",
    "rdmacm-utils",
];

/// The library whose peers flush by the device's own operation there. It lies beside the host's, in a folder that programs
/// search when they are told to, and is left out where there is none any more.
const LIBRPMA: &str = "librpma0";

/// Where it is unpacked to, and where it lies in the guest.
const LIBRPMA_FILES: [&str; 2] = [
    "usr/lib/x86_64-linux-gnu/librpma.so.0",
    "usr/lib/rdma-rust/librpma.so.0",
];

const LIBC: &str = "libc6";

/// What valgrind needs to know of a libc.
const LIBC_SYMBOLS: &str = "libc6-dbg";

/// The package whose version is the release of rdma-core.
const RELEASE: &str = "libibverbs1";

/// What a tree may hold: other folders of a root would hide the host's links to folders in `usr`.
const FOLDERS: [&str; 2] = ["etc", "usr"];

/// Libraries ready to be laid over the host's root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Libraries {
    /// The tree, as it goes over the root.
    pub(crate) tree: PathBuf,
    /// The release of rdma-core in it, such as 56.1.
    pub(crate) release: String,
}

impl Libraries {
    fn in_folder(folder: &Path) -> Option<Self> {
        // Written last, so it vouches for the rest.
        let release = fs::read_to_string(folder.join("release")).ok()?;
        Some(Self {
            tree: folder.join("tree"),
            release: release.trim().to_owned(),
        })
    }
}

/// The libraries of this configuration, from the cache or downloaded into it; none when they are the host's. The caller
/// holds the cache's lock.
///
/// # Errors
/// When the packages cannot be found, fetched or unpacked.
pub(crate) fn obtain(config: &Config) -> Result<Option<Libraries>> {
    if !config.system.is_debian() {
        return Ok(None);
    }
    if !fs::symlink_metadata("/lib").is_ok_and(|data| data.is_symlink()) {
        return Err(Error::new(
            "the guest's libraries cannot be laid over this root, where /lib is no link to usr/lib; use the guest 'host'",
        ));
    }
    let apt = Apt::of(config.system.of_libraries(), &config.cache)?;
    let mut packages = versions(&apt, &PACKAGES)?;
    packages.extend(versions(&apt, &[LIBRPMA]).unwrap_or_default());
    let libc = versions(&apt, &[LIBC, LIBC_SYMBOLS])?;
    if is_older(&installed_libc()?, &libc[0].1)? {
        packages.extend(libc);
    }
    let folder = folder_of(config, &packages);
    if let Some(libraries) = Libraries::in_folder(&folder) {
        tidy::mark_used(&folder);
        return Ok(Some(libraries));
    }
    let staging = folder.with_extension("new");
    download::fresh_folder(&staging)?;
    let names: Vec<String> = packages.iter().map(|(name, _)| name.clone()).collect();
    download::packages("the guest's RDMA libraries", &names, &apt, &staging)?;
    unpack(&staging, release_of(&packages))?;
    download::remove(&folder)?;
    fs::rename(&staging, &folder)
        .context(|| format!("cannot move the libraries to {}", folder.display()))?;
    Libraries::in_folder(&folder).map(Some).ok_or_else(|| {
        Error::new(format!(
            "the libraries in {} are incomplete; remove that folder",
            folder.display()
        ))
    })
}

fn folder_of(config: &Config, packages: &[(String, String)]) -> PathBuf {
    let texts = packages
        .iter()
        .flat_map(|(name, version)| [name.as_bytes(), version.as_bytes()]);
    let name = format!(
        "{}-{:08x}",
        config.system.of_libraries().vm_name(),
        workspace::fingerprint(texts) & 0xffff_ffff
    );
    config.cache.join("libraries").join(name)
}

/// The packages with the version that apt would fetch of each.
fn versions(apt: &Apt, names: &[&str]) -> Result<Vec<(String, String)>> {
    let mut command = apt.command("apt-cache");
    command.args(["show", "--no-all-versions"]).args(names);
    let found = versions_in(&process::capture(&mut command)?);
    names
        .iter()
        .map(|name| {
            let package = found.iter().find(|(found, _)| found == name);
            package.cloned().ok_or_else(|| {
                Error::new(format!(
                    "the suite {} has no package {name}, which the guest's libraries are taken from",
                    apt.label()
                ))
            })
        })
        .collect()
}

/// The names and versions in the output of `apt-cache show`.
fn versions_in(shown: &str) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = Vec::new();
    let mut name = "";
    for line in shown.lines() {
        if let Some(value) = line.strip_prefix("Package: ") {
            name = value.trim();
        } else if let Some(version) = line.strip_prefix("Version: ") {
            found.push((name.to_owned(), version.trim().to_owned()));
        }
    }
    found
}

/// The version without the distribution's own part.
fn release_of(packages: &[(String, String)]) -> &str {
    let version = packages.iter().find(|(name, _)| name == RELEASE);
    let version = version.map_or("unknown", |(_, version)| version.as_str());
    version
        .rsplit_once('-')
        .map_or(version, |(before, _)| before)
}

fn installed_libc() -> Result<String> {
    let shown = process::capture(process::tool("dpkg-query").args([
        "--show",
        "--showformat=${Version}\n",
        LIBC,
    ]));
    let shown = shown.context(|| {
        "cannot tell the version of this machine's libc, beside which the guest's must fit"
            .to_owned()
    })?;
    // One line for each architecture that it is installed for.
    Ok(shown.lines().next().unwrap_or_default().to_owned())
}

fn is_older(one: &str, other: &str) -> Result<bool> {
    let mut compare: Command = process::tool("dpkg");
    compare.args(["--compare-versions", one, "lt", other]);
    let status = compare
        .status()
        .context(|| "cannot run dpkg to compare versions".to_owned())?;
    Ok(status.success())
}

/// From the packages in `folder` to `tree` and `release`.
fn unpack(folder: &Path, release: &str) -> Result<()> {
    let step = Step::start("Unpacking the guest's RDMA libraries");
    let tree = folder.join("tree");
    download::unpack_all(folder, &tree)?;
    set_librpma_aside(&tree)?;
    check_folders(&tree)?;
    fs::write(folder.join("release"), release)
        .context(|| format!("cannot write into {}", folder.display()))?;
    step.done(&format!("rdma-core {release}"));
    Ok(())
}

/// So that programs go on with the host's, unless they are told to search elsewhere.
fn set_librpma_aside(tree: &Path) -> Result<()> {
    let [from, to] = LIBRPMA_FILES.map(|file| tree.join(file));
    if !from.exists() {
        return Ok(());
    }
    let moved = to
        .parent()
        .map_or(Ok(()), fs::create_dir_all)
        .and_then(|()| fs::rename(&from, &to));
    moved.context(|| format!("cannot move {} to {}", from.display(), to.display()))
}

fn check_folders(tree: &Path) -> Result<()> {
    for entry in files_in(tree)? {
        let known = entry
            .file_name()
            .is_some_and(|name| FOLDERS.iter().any(|folder| name == *folder));
        if !known {
            return Err(Error::new(format!(
                "the packages of the guest's libraries hold {}, which is neither in /usr nor in /etc: laid over this root \
                 it would hide what is there",
                entry.display()
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::testing::Scratch;
    use super::*;

    #[test]
    fn names_and_versions_are_read_from_what_apt_shows() {
        let shown = "Package: libibverbs1\nSource: rdma-core\nVersion: 56.1-1\nSize: 62428\n\nPackage: libc6\nVersion: \
                     2.41-12+deb13u5\nDescription: a\n Version: none\n";
        let found = versions_in(shown);
        let expected = [("libibverbs1", "56.1-1"), ("libc6", "2.41-12+deb13u5")];
        let expected = expected.map(|(name, version)| (name.to_owned(), version.to_owned()));
        assert_eq!(found, expected);
        assert_eq!(release_of(&found), "56.1");
        assert_eq!(release_of(&[]), "unknown");
    }

    #[test]
    fn versions_are_compared_as_the_distribution_does() {
        assert!(is_older("2.36-9+deb12u10", "2.41-12").unwrap());
        assert!(is_older("2.39-0ubuntu8.4", "2.41-12").unwrap());
        assert!(!is_older("2.41-12", "2.41-12").unwrap());
        assert!(!is_older("2.42-1", "2.41-12+deb13u5").unwrap());
    }

    #[test]
    fn a_tree_that_would_hide_a_link_of_the_root_is_refused() {
        let scratch = Scratch::new("libraries");
        for folder in ["tree/usr/lib", "tree/etc"] {
            fs::create_dir_all(scratch.path(folder)).unwrap();
        }
        check_folders(&scratch.path("tree")).unwrap();
        fs::create_dir_all(scratch.path("tree/lib")).unwrap();
        let error = check_folders(&scratch.path("tree")).unwrap_err();
        assert!(error.to_string().contains("tree/lib"), "{error}");
    }

    #[test]
    fn librpma_lies_aside_so_that_programs_go_on_with_the_hosts() {
        let scratch = Scratch::new("librpma");
        let [from, to] = LIBRPMA_FILES.map(|file| scratch.path(file));
        set_librpma_aside(&scratch.path("")).unwrap();
        assert!(!to.exists());
        fs::create_dir_all(from.parent().unwrap()).unwrap();
        fs::write(&from, "a library").unwrap();
        set_librpma_aside(&scratch.path("")).unwrap();
        assert!(!from.exists() && to.exists());
    }

    #[test]
    fn libraries_without_their_last_file_are_not_used() {
        let scratch = Scratch::new("libraries-half");
        let folder = scratch.path("debian13-1");
        fs::create_dir_all(folder.join("tree")).unwrap();
        assert_eq!(Libraries::in_folder(&folder), None);
        fs::write(folder.join("release"), "56.1\n").unwrap();
        assert_eq!(Libraries::in_folder(&folder).unwrap().release, "56.1");
    }
}
