//! The kernel modules of the guest: which, in which order, and out of their compression.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::error::{Context, Error, Result};
use crate::process;

/// Without these there is no VM or no device.
const REQUIRED: [&str; 8] = [
    "virtio_mmio",
    "virtio_net",
    "9pnet_virtio",
    "9p",
    "overlay",
    "rdma_rxe",
    "rdma_ucm",
    "dummy",
];

/// Taken where the kernel has them: PCI for other machines, `crc32_generic` because rxe asks the crypto layer for
/// "crc32" and the guest has no modprobe, the rest for tests of faults and of persistent memory.
const WELCOME: [&str; 9] = [
    "virtio_pci",
    "crc32_generic",
    "veth",
    "sch_netem",
    "bridge",
    "nfit",
    "nd_pmem",
    "dax_pmem",
    "device_dax",
];

/// A fingerprint of the list above, so that a kernel prepared for another list is prepared again.
pub(crate) fn list_fingerprint() -> u64 {
    let names = REQUIRED.iter().chain(&WELCOME);
    crate::workspace::fingerprint(names.map(|name| name.as_bytes()))
}

/// Copies the modules and all they depend on, uncompressed, from the tree `base`/lib/modules/`version` to `to`, as
/// `NN-name.ko` in the order to load them; returns how many.
///
/// # Errors
/// When a module that the VM cannot do without is not there.
pub(crate) fn collect(base: &Path, version: &str, to: &Path) -> Result<usize> {
    process::capture(process::tool("depmod").arg("-b").arg(base).arg(version))?;
    let mut ordered: Vec<PathBuf> = Vec::new();
    for (name, required) in REQUIRED
        .iter()
        .map(|name| (name, true))
        .chain(WELCOME.iter().map(|name| (name, false)))
    {
        let shown = process::capture(
            process::tool("modprobe")
                .args(["-C", "/dev/null", "-d"])
                .arg(base)
                .args(["-S", version, "--show-depends", name]),
        );
        match shown {
            Ok(shown) => {
                for file in files_to_insert(&shown) {
                    if !ordered.contains(&file) {
                        ordered.push(file);
                    }
                }
            }
            Err(error) if required => {
                return Err(Error::new(format!(
                    "the kernel {version} has no module {name}, which the VM needs ({error}); set RDMA_RUST_VM_KERNEL \
                     to a kernel package that has it"
                )));
            }
            Err(_) => {}
        }
    }
    fs::create_dir_all(to).context(|| format!("cannot make {}", to.display()))?;
    for (index, file) in ordered.iter().enumerate() {
        let name = plain_name(file)?;
        decompress(file, &to.join(format!("{index:02}-{name}")))?;
    }
    Ok(ordered.len())
}

/// The paths in the output of `modprobe --show-depends`; what is built in needs no loading.
fn files_to_insert(shown: &str) -> Vec<PathBuf> {
    shown
        .lines()
        .filter_map(|line| line.trim().strip_prefix("insmod "))
        .map(|path| PathBuf::from(path.trim()))
        .collect()
}

/// The module's file name without a compression's suffix.
fn plain_name(file: &Path) -> Result<&str> {
    let name = file
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default();
    let plain = [".xz", ".zst", ".gz"]
        .iter()
        .find_map(|suffix| name.strip_suffix(suffix))
        .unwrap_or(name);
    if plain.ends_with(".ko") {
        return Ok(plain);
    }
    Err(Error::new(format!(
        "{} is no kernel module in a known form (.ko, .ko.xz, .ko.zst, .ko.gz)",
        file.display()
    )))
}

/// Writes the plain form of a file that may be compressed, judged by its name.
pub(crate) fn decompress(from: &Path, to: &Path) -> Result<()> {
    let program = match from.extension().and_then(|extension| extension.to_str()) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        Some("gz") => "gzip",
        _ => {
            fs::copy(from, to)
                .context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
            return Ok(());
        }
    };
    let output = File::create(to).context(|| format!("cannot write {}", to.display()))?;
    let mut command = process::tool(program);
    command
        .arg("-dcq")
        .arg(from)
        .stdout(output)
        .stderr(Stdio::piped());
    let result = command
        .output()
        .context(|| format!("cannot run {program} to unpack {}", from.display()))?;
    if result.status.success() {
        return Ok(());
    }
    Err(Error::new(format!(
        "cannot unpack {}: {}",
        from.display(),
        String::from_utf8_lossy(&result.stderr).trim()
    )))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Scratch, compress};
    use super::*;

    #[test]
    fn plain_xz_and_zst_modules_come_out_alike() {
        let scratch = Scratch::new("modules");
        let content = b"\x7fELF a module's bytes".repeat(1000);
        let plain = scratch.path("m.ko");
        fs::write(&plain, &content).unwrap();
        for (program, suffix) in [("xz", "xz"), ("zstd", "zst"), ("gzip", "gz")] {
            let packed = scratch.path(&format!("m.ko.{suffix}"));
            fs::write(&packed, compress(program, &content)).unwrap();
            assert_eq!(plain_name(&packed).unwrap(), "m.ko");
            let out = scratch.path("out.ko");
            decompress(&packed, &out).unwrap();
            assert!(fs::read(&out).unwrap() == content, "{program}");
        }
        let out = scratch.path("copy.ko");
        decompress(&plain, &out).unwrap();
        assert!(fs::read(&out).unwrap() == content);
    }

    #[test]
    fn a_damaged_module_is_an_error_that_names_it() {
        let scratch = Scratch::new("damaged");
        let packed = scratch.path("broken.ko.xz");
        fs::write(&packed, b"not xz at all").unwrap();
        let error = decompress(&packed, &scratch.path("out.ko"))
            .unwrap_err()
            .to_string();
        assert!(error.contains("broken.ko.xz"), "{error}");
    }

    #[test]
    fn only_modules_that_must_be_loaded_are_taken() {
        let shown = "insmod /k/lib/modules/6.8/kernel/net/9p/9pnet.ko.zst \nbuiltin virtio_pci\ninsmod /k/9p.ko\n";
        assert_eq!(
            files_to_insert(shown),
            ["/k/lib/modules/6.8/kernel/net/9p/9pnet.ko.zst", "/k/9p.ko"].map(PathBuf::from)
        );
    }

    #[test]
    fn a_file_that_is_no_module_is_refused() {
        let error = plain_name(Path::new("/k/9p.ko.lz4"))
            .unwrap_err()
            .to_string();
        assert!(error.contains(".ko.zst"), "{error}");
    }
}
