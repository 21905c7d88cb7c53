//! siw, iWARP in software: no Debian kernel has it, so it is built from the distribution's source of the guest's kernel.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use super::apt::Apt;
use super::kernel::Kernel;
use super::state::Lock;
use super::{Config, client, download, kernel, resolve};
use crate::error::{Context, Error, Result};
use crate::process;
use crate::report::Step;

/// The address of the iWARP device in the guest (a documentation address: it is never routed).
pub(crate) const IWARP_ADDRESS: &str = "198.51.100.1";

/// Where it is in the kernel's source.
const SOURCE: &str = "drivers/infiniband/sw/siw";

/// What it needs of the kernel's own modules, in the order to load them, by the folders below `kernel`.
const NEEDED: [&str; 2] = ["crypto/crc32c_generic", "lib/libcrc32c"];

/// The build takes seconds on an idle machine.
const BUILD_DEADLINE: Duration = Duration::from_secs(600);

/// Fetches and builds what [`bring_up`] loads, unless it is in the cache: the folder of the modules, named in their order.
///
/// # Errors
/// When the packages cannot be had, or the module does not build.
pub(crate) fn obtain(config: &Config) -> Result<PathBuf> {
    let _lock = Lock::take(&config.cache.join("lock"))?;
    let kernel = kernel::obtain(config)?;
    let apt = Apt::of(&config.system, &config.cache)?;
    let folder = config
        .cache
        .join("siw")
        .join(format!("{}{}", kernel.release, apt.label()));
    let modules = folder.join("modules");
    if folder.join("complete").exists() {
        return Ok(modules);
    }
    let staging = folder.with_extension("new");
    download::fresh_folder(&staging)?;
    let packages = packages(&kernel, &apt)?;
    download::packages(
        "the source of the guest's kernel",
        &packages,
        &apt,
        &staging,
    )?;
    let step = Step::start("Building siw");
    build(&kernel, &staging)?;
    step.done("done");
    download::remove(&folder)?;
    fs::rename(&staging, &folder).context(|| format!("cannot move siw to {}", folder.display()))?;
    // Written last, so it vouches for the rest.
    fs::write(folder.join("complete"), "")
        .context(|| format!("cannot write into {}", folder.display()))?;
    Ok(modules)
}

/// Source and headers of the kernel, and the package of its modules.
fn packages(kernel: &Kernel, apt: &Apt) -> Result<Vec<String>> {
    let headers = format!("linux-headers-{}", kernel.release);
    let depends = process::capture(apt.command("apt-cache").args([
        "depends",
        "--no-recommends",
        "--no-suggests",
        &headers,
    ]))?;
    let mut all = resolve::packages(&format!("linux-image-{}", kernel.release), apt)?;
    all.extend(headers_in(&depends));
    all.push(headers);
    all.push(format!("linux-source-{}", series(&kernel.release)?));
    Ok(all)
}

/// What headers depend on to build modules, in the output of `apt-cache depends`.
fn headers_in(depends: &str) -> Vec<String> {
    depends
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "))
        .filter(|name| name.starts_with("linux-headers-") || name.starts_with("linux-kbuild-"))
        .map(str::to_owned)
        .collect()
}

/// The first two numbers of a release: Debian names a source by them.
fn series(release: &str) -> Result<String> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    match (parts.next(), parts.next()) {
        (Some(major), Some(minor)) if !major.is_empty() && !minor.is_empty() => {
            Ok(format!("{major}.{minor}"))
        }
        _ => Err(Error::new(format!(
            "the kernel's release '{release}' does not begin with two numbers"
        ))),
    }
}

/// From the packages in `folder` to the folder `modules`; the rest is removed.
fn build(kernel: &Kernel, folder: &Path) -> Result<()> {
    let tree = folder.join("tree");
    download::unpack_all(folder, &tree)?;
    let sources = tree.join("usr/src");
    let name = format!("linux-source-{}", series(&kernel.release)?);
    process::capture_within(
        process::tool("tar")
            .arg("-xJf")
            .arg(sources.join(format!("{name}.tar.xz")))
            .arg("-C")
            .arg(folder)
            .arg("--strip-components=1")
            .arg(format!("{name}/{SOURCE}")),
        BUILD_DEADLINE,
    )?;
    let headers = sources.join(format!("linux-headers-{}", kernel.release));
    // It names the place that the package would be installed at.
    let makefile = headers.join("Makefile");
    let text = fs::read_to_string(&makefile)
        .context(|| format!("cannot read {}", makefile.display()))?
        .replace("/usr/src/", &format!("{}/", sources.display()));
    fs::write(&makefile, text).context(|| format!("cannot write {}", makefile.display()))?;
    let source = folder.join(SOURCE);
    process::capture_within(
        process::tool("make")
            .arg("-s")
            .arg("-C")
            .arg(&headers)
            .arg(format!("M={}", source.display()))
            .args(["CONFIG_RDMA_SIW=m", "modules"]),
        BUILD_DEADLINE,
    )?;
    let modules = folder.join("modules");
    fs::create_dir_all(&modules).context(|| format!("cannot make {}", modules.display()))?;
    let own = tree
        .join("lib/modules")
        .join(&kernel.release)
        .join("kernel");
    let files = NEEDED
        .iter()
        .map(|name| own.join(format!("{name}.ko")))
        .chain([source.join("siw.ko")]);
    for (index, file) in files.enumerate() {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let to = modules.join(format!("{index}-{name}"));
        fs::copy(&file, &to)
            .context(|| format!("cannot copy {} to {}", file.display(), to.display()))?;
    }
    download::remove(&tree)?;
    download::remove(&folder.join("drivers"))
}

/// Loads what [`obtain`] has made in the running VM, and makes the device siw0 on an interface of its own.
///
/// # Errors
/// When the guest refuses.
pub(crate) fn bring_up(config: &Config, modules: &Path) -> Result<()> {
    let running = super::boot::ensure(config)?;
    let script = format!(
        "set -e; [ -e /sys/class/infiniband/siw0 ] && exit 0; for m in '{}'/*.ko; do insmod \"$m\"; done; ip link add s0 \
         type dummy; ip addr add {IWARP_ADDRESS}/24 dev s0; ip link set s0 up; rdma link add siw0 type siw netdev s0",
        modules.display()
    );
    let words = ["sh", "-c", &script].map(OsString::from);
    if client::exec(&running, &words)? == ExitCode::SUCCESS {
        return Ok(());
    }
    Err(Error::new(
        "the guest cannot make the iWARP device siw0: what it says stands above",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_is_named_by_the_first_two_numbers_of_the_release() {
        assert_eq!(series("6.1.0-57-amd64").unwrap(), "6.1");
        assert_eq!(series("6.12.117+deb13-amd64").unwrap(), "6.12");
        let error = series("next").unwrap_err().to_string();
        assert!(error.contains("'next'"), "{error}");
    }

    #[test]
    fn headers_are_taken_with_what_builds_modules_and_no_compiler() {
        let shown = "linux-headers-6.1.0-57-amd64\n  Depends: linux-headers-6.1.0-57-common\n  Depends: \
                     linux-kbuild-6.1\n  Depends: linux-compiler-gcc-12-x86\n";
        assert_eq!(
            headers_in(shown),
            ["linux-headers-6.1.0-57-common", "linux-kbuild-6.1"]
        );
    }
}
