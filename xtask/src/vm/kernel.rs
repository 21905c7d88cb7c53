//! The guest's kernel: downloaded once as a distribution package, never installed, kept in the cache.

use std::fs;
use std::path::{Path, PathBuf};

use super::apt::Apt;
use super::download::{self, files_in};
use super::{Config, modules, resolve, vmlinux};
use crate::error::{Context, Error, Result};
use crate::report::Step;

/// A kernel ready to boot.
#[derive(Debug, Clone)]
pub(crate) struct Kernel {
    /// Its release, as `uname -r` says it.
    pub(crate) release: String,
    /// The uncompressed ELF image.
    pub(crate) image: PathBuf,
    /// Uncompressed modules, named in the order to load them.
    pub(crate) modules: PathBuf,
}

impl Kernel {
    fn in_folder(folder: &Path) -> Option<Self> {
        // Written last, so it vouches for the rest.
        let release = fs::read_to_string(folder.join("release")).ok()?;
        Some(Self {
            release: release.trim().to_owned(),
            image: folder.join("vmlinux"),
            modules: folder.join("modules"),
        })
    }
}

/// The kernel of this configuration, from the cache or downloaded into it. The caller holds the cache's lock.
///
/// # Errors
/// When the packages cannot be found, fetched or unpacked, or lack what the VM needs.
pub(crate) fn obtain(config: &Config) -> Result<Kernel> {
    let asked = match &config.kernel_package {
        Some(package) => package.as_str(),
        None => resolve::meta_package(&config.system)?,
    };
    let apt = Apt::of(&config.system, &config.cache)?;
    let packages = match resolve::packages(asked, &apt) {
        Ok(packages) => packages,
        Err(error) if !apt.is_system() => return Err(error),
        // A machine whose lists of packages were never fetched, or are gone.
        Err(_) => {
            if let Some(kernel) = newest_cached(config) {
                return Ok(kernel);
            }
            crate::packages::update_lists("to find the kernel package")?;
            resolve::packages(asked, &apt)?
        }
    };
    let folder = folder_of(config, &packages, &apt);
    if let Some(kernel) = Kernel::in_folder(&folder) {
        super::tidy::mark_used(&folder);
        return Ok(kernel);
    }
    let staging = folder.with_extension("new");
    download::fresh_folder(&staging)?;
    download::packages("the VM's kernel", &packages, &apt, &staging)?;
    unpack(&staging)?;
    download::remove(&folder)?;
    fs::rename(&staging, &folder)
        .context(|| format!("cannot move the kernel to {}", folder.display()))?;
    Kernel::in_folder(&folder).ok_or_else(|| {
        Error::new(format!(
            "the kernel in {} is incomplete; remove that folder",
            folder.display()
        ))
    })
}

fn folder_of(config: &Config, packages: &[String], apt: &Apt) -> PathBuf {
    let image = packages
        .iter()
        .find(|name| name.starts_with("linux-image-"))
        .map_or("linux", String::as_str);
    let name = format!(
        "{image}-{}{:08x}",
        apt.label(),
        modules::list_fingerprint() & 0xffff_ffff
    );
    config.cache.join("kernel").join(name)
}

/// Without an explicit wish for a kernel, one that was fetched earlier will do.
fn newest_cached(config: &Config) -> Option<Kernel> {
    if config.kernel_package.is_some() || config.system.suite().is_some() {
        return None;
    }
    let suffix = format!("-{:08x}", modules::list_fingerprint() & 0xffff_ffff);
    let entries = fs::read_dir(config.cache.join("kernel")).ok()?;
    let folders = entries.flatten().map(|entry| entry.path()).filter(|path| {
        path.file_name()
            .is_some_and(|name| name.to_string_lossy().ends_with(&suffix))
    });
    let newest =
        folders.max_by_key(|path| fs::metadata(path).and_then(|data| data.modified()).ok())?;
    Kernel::in_folder(&newest)
}

/// From the packages in `folder` to `vmlinux`, `modules/` and `release`; the rest is removed.
fn unpack(folder: &Path) -> Result<()> {
    let step = Step::start("Unpacking the kernel");
    let tree = folder.join("tree");
    download::unpack_all(folder, &tree)?;
    let (base, release) = modules_tree(&tree)?;
    let vmlinuz = kernel_image(&tree, &base, &release)?;
    step.progress(|| "taking the compression off".to_owned());
    let image = vmlinux::extract(&vmlinuz)?;
    fs::write(folder.join("vmlinux"), image)
        .context(|| format!("cannot write into {}", folder.display()))?;
    let count = modules::collect(&base, &release, &folder.join("modules"))?;
    download::remove(&tree)?;
    fs::write(folder.join("release"), &release)
        .context(|| format!("cannot write into {}", folder.display()))?;
    step.done(&format!("kernel {release}, {count} modules"));
    Ok(())
}

/// The folder above `lib/modules`, and the release below it: in newer packages all of it is under `usr`.
fn modules_tree(tree: &Path) -> Result<(PathBuf, String)> {
    for base in [tree.to_owned(), tree.join("usr")] {
        for folder in files_in(&base.join("lib/modules")).unwrap_or_default() {
            let release = folder.file_name().and_then(|name| name.to_str());
            if let Some(release) = release.filter(|_| folder.join("kernel").is_dir()) {
                return Ok((base, release.to_owned()));
            }
        }
    }
    Err(Error::new(
        "the kernel packages hold no lib/modules folder; set RDMA_RUST_VM_KERNEL to another kernel package",
    ))
}

fn kernel_image(tree: &Path, base: &Path, release: &str) -> Result<PathBuf> {
    let modules = base.join("lib/modules").join(release);
    [
        tree.join(format!("boot/vmlinuz-{release}")),
        modules.join("vmlinuz"),
        modules.join("vmlinux"),
    ]
    .into_iter()
    .find(|file| file.is_file())
    .ok_or_else(|| {
        Error::new(format!(
            "the kernel packages of {release} hold no vmlinuz; set RDMA_RUST_VM_KERNEL to another kernel package"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::super::testing::Scratch;
    use super::*;

    #[test]
    fn modules_are_found_with_and_without_usr() {
        for prefix in ["", "usr/"] {
            let scratch = Scratch::new("tree");
            let tree = scratch.path("tree");
            fs::create_dir_all(tree.join(format!("{prefix}lib/modules/6.8.0-31-generic/kernel")))
                .unwrap();
            let (base, release) = modules_tree(&tree).unwrap();
            assert_eq!(release, "6.8.0-31-generic");
            assert_eq!(base.join(""), tree.join(prefix));
        }
        let scratch = Scratch::new("no-tree");
        let error = modules_tree(&scratch.path("none")).unwrap_err().to_string();
        assert!(error.contains("RDMA_RUST_VM_KERNEL"), "{error}");
    }

    #[test]
    fn the_image_is_found_in_boot_and_beside_the_modules() {
        let scratch = Scratch::new("image");
        let tree = scratch.path("tree");
        let error = kernel_image(&tree, &tree, "7.3").unwrap_err().to_string();
        assert!(error.contains("no vmlinuz"), "{error}");
        let beside = tree.join("lib/modules/7.3/vmlinuz");
        fs::create_dir_all(beside.parent().unwrap()).unwrap();
        fs::write(&beside, "").unwrap();
        assert_eq!(kernel_image(&tree, &tree, "7.3").unwrap(), beside);
        let boot = tree.join("boot/vmlinuz-7.3");
        fs::create_dir_all(boot.parent().unwrap()).unwrap();
        fs::write(&boot, "").unwrap();
        assert_eq!(kernel_image(&tree, &tree, "7.3").unwrap(), boot);
    }

    #[test]
    fn a_kernel_folder_without_its_last_file_is_not_used() {
        let scratch = Scratch::new("kernel");
        let folder = scratch.path("linux-image-1");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("vmlinux"), "x").unwrap();
        assert!(Kernel::in_folder(&folder).is_none());
        fs::write(folder.join("release"), "6.1.0\n").unwrap();
        assert_eq!(Kernel::in_folder(&folder).unwrap().release, "6.1.0");
    }
}
