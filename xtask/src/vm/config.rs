//! What the VM looks like: from the environment, with defaults that were measured to boot fastest.

use std::env;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::system::System;
use crate::error::{Error, Result};
use crate::workspace;

/// The address of the device in the guest (a documentation address: it is never routed).
pub(crate) const DEVICE_ADDRESS: &str = "192.0.2.1";

/// Which accelerator to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Accelerator {
    /// KVM if a real kernel boots under it, otherwise TCG.
    Auto,
    /// KVM, or an error.
    Kvm,
    /// Emulation.
    Tcg,
}

/// The VM of one checkout, target folder and name.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    /// Its name, unique within the checkout.
    pub(crate) name: String,
    /// Folder shared by all VMs of this user: kernels, verdicts, agents.
    pub(crate) cache: PathBuf,
    /// Folder of this VM: console, pid, port.
    pub(crate) folder: PathBuf,
    /// Folders that host and guest see alike at every moment; all else of the host is a frozen copy to the guest.
    pub(crate) shares: Vec<PathBuf>,
    /// The first TCP port of this VM to try on the host's loopback interface.
    pub(crate) first_port: u16,
    /// Which accelerator to use.
    pub(crate) accelerator: Accelerator,
    /// Guest memory, in QEMU's notation.
    pub(crate) memory: String,
    /// Guest processors.
    pub(crate) processors: u32,
    /// QEMU's machine.
    pub(crate) machine: String,
    /// Which kernel and RDMA libraries it runs.
    pub(crate) system: System,
    /// The kernel package asked for instead of the distribution's own.
    pub(crate) kernel_package: Option<String>,
    /// Words added to the kernel's command line.
    pub(crate) kernel_args: String,
    /// Words added to QEMU's command line.
    pub(crate) qemu_args: Vec<String>,
    /// Minutes without a command after which the guest powers itself off; 0 for never.
    pub(crate) idle_minutes: u32,
    /// The guest's clock counts instructions: one of them is one nanosecond.
    pub(crate) icount: bool,
    /// A unix socket that joins it to another VM as by a cable.
    pub(crate) link: Option<PathBuf>,
    /// The file that is the content of its persistent memory, where it has some.
    pub(crate) pmem: Option<PathBuf>,
}

impl Config {
    /// Reads the environment; `name` goes before `RDMA_RUST_VM_NAME`, `guest` before `RDMA_RUST_VM_GUEST`.
    ///
    /// # Errors
    /// When a variable has a value that cannot be used: which, and what it may be.
    pub(crate) fn from_environment(name: Option<String>, guest: Option<String>) -> Result<Self> {
        let text = |variable: &str| -> Result<Option<String>> {
            match env::var(variable) {
                Ok(value) if value.trim().is_empty() => Ok(None),
                Ok(value) => Ok(Some(value)),
                Err(env::VarError::NotPresent) => Ok(None),
                Err(env::VarError::NotUnicode(_)) => Err(Error::new(format!(
                    "{variable} is not valid UTF-8; set it anew"
                ))),
            }
        };
        let number = |variable: &str, default: u32| -> Result<u32> {
            text(variable)?.map_or(Ok(default), |value| {
                value.parse().map_err(|_| {
                    Error::new(format!(
                        "{variable} is '{value}', but must be a whole number"
                    ))
                })
            })
        };
        let guest = match guest {
            Some(guest) => Some(guest),
            None => text("RDMA_RUST_VM_GUEST")?,
        };
        let system = System::choose(guest.as_deref(), text("RDMA_RUST_VM_SUITE")?)?;
        let name = match name {
            Some(name) => name,
            None => text("RDMA_RUST_VM_NAME")?.unwrap_or_else(|| system.vm_name().to_owned()),
        };
        check_name(&name)?;
        let cache = workspace::cache_dir()?;
        let shares = shares(
            &workspace::root(),
            &workspace::target_dir(),
            env::var_os("RDMA_RUST_VM_SHARE").as_deref(),
        );
        for share in &shares {
            std::fs::create_dir_all(share).map_err(|error| {
                Error::new(format!(
                    "cannot share {} with the VM: {error}",
                    share.display()
                ))
            })?;
        }
        let identity = identity(&name, &shares);
        Ok(Self {
            folder: cache.join("vm").join(format!("{name}-{identity:016x}")),
            cache,
            first_port: first_port(identity),
            shares,
            name,
            accelerator: accelerator(text("RDMA_RUST_VM_ACCEL")?.as_deref())?,
            memory: text("RDMA_RUST_VM_MEM")?.unwrap_or_else(|| "2G".to_owned()),
            processors: number("RDMA_RUST_VM_SMP", 2)?.max(1),
            machine: text("RDMA_RUST_VM_MACHINE")?.unwrap_or_else(|| "microvm,acpi=on".to_owned()),
            system,
            kernel_package: text("RDMA_RUST_VM_KERNEL")?,
            kernel_args: text("RDMA_RUST_VM_KERNEL_ARGS")?.unwrap_or_default(),
            qemu_args: text("RDMA_RUST_VM_QEMU_ARGS")?
                .map(|words| words.split_whitespace().map(str::to_owned).collect())
                .unwrap_or_default(),
            idle_minutes: number("RDMA_RUST_VM_IDLE_MINUTES", 120)?,
            icount: false,
            link: None,
            pmem: None,
        })
    }

    /// The same VM with a clock that counts instructions. What takes a time in it is then the same in every run, whatever
    /// else the machine does.
    pub(crate) fn counting_instructions(self) -> Self {
        Self {
            // The clock is that of one emulated processor.
            accelerator: Accelerator::Tcg,
            processors: 1,
            // An idle guest skips the time until its next timer: two hours are over in minutes.
            idle_minutes: 0,
            icount: true,
            ..self
        }
    }

    /// The same VM, joined to another one that has the same `link`: a unix socket, made by the VM that starts first.
    pub(crate) fn joined(mut self, link: &Path) -> Self {
        self.link = Some(link.to_owned());
        self
    }

    /// The same VM with persistent memory, whose content is the file: it outlives the VM, however that ends.
    pub(crate) fn with_pmem(self, file: &Path) -> Self {
        Self {
            // The smaller machine has no slots for memory.
            machine: "q35,nvdimm=on".to_owned(),
            pmem: Some(file.to_owned()),
            ..self
        }
    }

    /// The same VM under another name, with a folder and port of its own.
    pub(crate) fn renamed(mut self, name: &str) -> Self {
        let identity = identity(name, &self.shares);
        self.folder = self
            .cache
            .join("vm")
            .join(format!("{name}-{identity:016x}"));
        self.first_port = first_port(identity);
        self.name = name.to_owned();
        self
    }
}

fn check_name(name: &str) -> Result<()> {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if !name.is_empty() && name.len() <= 32 && name.chars().all(fits) {
        return Ok(());
    }
    Err(Error::new(format!(
        "'{name}' cannot name a VM: use 1 to 32 letters, digits, '-' or '_'"
    )))
}

fn accelerator(value: Option<&str>) -> Result<Accelerator> {
    match value {
        None | Some("auto") => Ok(Accelerator::Auto),
        Some("kvm") => Ok(Accelerator::Kvm),
        Some("tcg") => Ok(Accelerator::Tcg),
        Some(other) => Err(Error::new(format!(
            "RDMA_RUST_VM_ACCEL is '{other}', but must be auto, kvm or tcg"
        ))),
    }
}

/// The workspace, the target folder and the user's own, without those that lie inside another.
fn shares(root: &Path, target: &Path, more: Option<&OsStr>) -> Vec<PathBuf> {
    let mut wanted = vec![root.to_owned(), target.to_owned()];
    wanted.extend(
        more.into_iter()
            .flat_map(env::split_paths)
            .filter(|path| path.is_absolute()),
    );
    let mut shares: Vec<PathBuf> = Vec::new();
    for path in wanted {
        if !shares.iter().any(|share| path.starts_with(share)) {
            shares.retain(|share| !share.starts_with(&path));
            shares.push(path);
        }
    }
    shares
}

fn identity(name: &str, shares: &[PathBuf]) -> u64 {
    let paths = shares.iter().map(|share| share.as_os_str().as_bytes());
    workspace::fingerprint(std::iter::once(name.as_bytes()).chain(paths))
}

/// Below the range that Linux hands out by itself (32768 and up).
fn first_port(identity: u64) -> u16 {
    // Below 12000, so both conversions keep the value.
    20_000 + u16::try_from(identity % 12_000).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_inside_another_share_is_not_shared_twice() {
        let paths = |more: &str, target: &str| {
            shares(Path::new("/w"), Path::new(target), Some(OsStr::new(more)))
        };
        assert_eq!(paths("", "/w/target"), [Path::new("/w")]);
        assert_eq!(paths("", "/t"), [Path::new("/w"), Path::new("/t")]);
        assert_eq!(
            paths("/t/x:/data:relative", "/t"),
            ["/w", "/t", "/data"].map(Path::new)
        );
        assert_eq!(paths("/", "/t"), [Path::new("/")]);
    }

    #[test]
    fn two_checkouts_have_different_ports_and_names_do_too() {
        let of = |name: &str, share: &str| identity(name, &[PathBuf::from(share)]);
        assert_ne!(of("default", "/a"), of("default", "/b"));
        assert_ne!(of("default", "/a"), of("other", "/a"));
        for identity in [0, 1, 11_999, 12_000, u64::MAX] {
            assert!((20_000..32_000).contains(&first_port(identity)));
        }
    }

    #[test]
    fn names_that_cannot_be_a_folder_are_refused() {
        for bad in ["", "a/b", "a b", "..", &"x".repeat(33)] {
            let error = check_name(bad).unwrap_err().to_string();
            assert!(error.contains("letters, digits"), "{error}");
        }
        check_name("two-hosts_1").unwrap();
    }

    #[test]
    fn an_unknown_accelerator_is_refused_with_the_known_ones() {
        assert_eq!(accelerator(None).unwrap(), Accelerator::Auto);
        assert_eq!(accelerator(Some("tcg")).unwrap(), Accelerator::Tcg);
        let error = accelerator(Some("hvf")).unwrap_err().to_string();
        assert!(error.contains("auto, kvm or tcg"), "{error}");
    }
}
