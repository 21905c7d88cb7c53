//! The packages by purpose, and how to see whether what they bring is already there, from wherever it came.

use std::fmt;
use std::fs;
use std::path::Path;

use crate::process;

/// A purpose that packages are needed for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Set {
    /// Compiling and linking the workspace.
    Build,
    /// Making and using an RDMA device on this machine.
    Device,
    /// The virtual machine.
    Vm,
    /// The C programs and tools that the tests talk to.
    Peers,
    /// The checks before a merge.
    Checks,
    /// Fetching Debian's packages.
    Debian,
}

impl Set {
    /// Every purpose.
    pub(crate) const ALL: [Self; 6] = [
        Self::Build,
        Self::Device,
        Self::Vm,
        Self::Peers,
        Self::Checks,
        Self::Debian,
    ];

    fn needs(self) -> &'static [Need] {
        match self {
            Self::Build => BUILD,
            Self::Device => DEVICE,
            Self::Vm => VM,
            Self::Peers => PEERS,
            Self::Checks => CHECKS,
            Self::Debian => DEBIAN,
        }
    }
}

/// One thing that is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Need {
    /// The Debian and Ubuntu package that brings it.
    pub(crate) package: &'static str,
    /// What for.
    pub(crate) reason: &'static str,
    /// How to see that it is there.
    pub(crate) probe: Probe,
}

/// A sign that something is installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Probe {
    /// A program.
    Tool(&'static str),
    /// A library that pkg-config knows.
    Library(&'static str),
    /// A file.
    File(&'static str),
    /// A shared library of this name, with or without versions (`NAME.so`, `NAME.so.1`, `NAME-14.so.1`), in one of the folders
    /// of shared libraries.
    SharedObject(&'static str),
}

impl Probe {
    fn is_there(self) -> bool {
        match self {
            Self::Tool(name) => process::find_tool(name).is_some(),
            Self::Library(name) => {
                process::succeeds(process::tool("pkg-config").args(["--exists", name]))
            }
            Self::File(path) => Path::new(path).exists(),
            Self::SharedObject(name) => library_folders()
                .iter()
                .any(|folder| has_library(folder, name)),
        }
    }
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tool(name) => write!(f, "program {name}"),
            Self::Library(name) => write!(f, "library {name} (for pkg-config)"),
            Self::File(path) => write!(f, "file {path}"),
            Self::SharedObject(name) => write!(f, "shared library {name}"),
        }
    }
}

/// What is missing of the given sets, each need once.
pub(super) fn missing(sets: &[Set]) -> Vec<Need> {
    let mut missing: Vec<Need> = Vec::new();
    for need in sets.iter().flat_map(|set| set.needs()) {
        if !missing.contains(need) && !need.probe.is_there() {
            missing.push(*need);
        }
    }
    missing
}

const fn tool(package: &'static str, name: &'static str, reason: &'static str) -> Need {
    Need {
        package,
        reason,
        probe: Probe::Tool(name),
    }
}

const fn library(package: &'static str, name: &'static str, reason: &'static str) -> Need {
    Need {
        package,
        reason,
        probe: Probe::Library(name),
    }
}

const PROVIDER: Need = Need {
    package: "ibverbs-providers",
    reason: "the user-space driver of SoftRoCE",
    probe: Probe::File("/etc/libibverbs.d/rxe.driver"),
};
const IP: Need = tool("iproute2", "ip", "sets network interfaces up");
const RDMA: Need = tool("iproute2", "rdma", "makes the SoftRoCE device");
const MODPROBE: Need = tool("kmod", "modprobe", "finds and loads kernel modules");

const XZ: Need = tool("xz-utils", "xz", "unpacks kernels and modules");
const ZSTD: Need = tool("zstd", "zstd", "unpacks kernels and modules");

const BUILD: &[Need] = &[
    tool(
        "gcc",
        "gcc",
        "links Rust programs and compiles the layout checks",
    ),
    tool("pkg-config", "pkg-config", "finds the RDMA libraries"),
    library(
        "libibverbs-dev",
        "libibverbs",
        "headers and library of RDMA verbs",
    ),
    library(
        "librdmacm-dev",
        "librdmacm",
        "headers and library of the RDMA connection manager",
    ),
];

const DEVICE: &[Need] = &[IP, RDMA, MODPROBE, PROVIDER];

const VM: &[Need] = &[
    tool("qemu-system-x86", "qemu-system-x86_64", "runs the VM"),
    tool("busybox-static", "busybox", "the first programs in the VM"),
    MODPROBE,
    tool("cpio", "cpio", "packs the VM's initrd"),
    XZ,
    ZSTD,
    IP,
    RDMA,
    PROVIDER,
    tool("procps", "ps", "shows processes in the VM"),
];

const PEERS: &[Need] = &[
    library(
        "librpma-dev",
        "librpma",
        "C peers of the interoperation tests",
    ),
    tool(
        "ibverbs-utils",
        "ibv_devinfo",
        "C programs that the tests compare with",
    ),
    tool(
        "rdmacm-utils",
        "rping",
        "C peers of the interoperation tests",
    ),
    tool(
        "perftest",
        "ib_send_lat",
        "C peers of the interoperation tests",
    ),
    tool(
        "valgrind",
        "valgrind",
        "memory checks of the tools, and the count of instructions",
    ),
    tool("binutils", "objdump", "shows the code that is counted"),
    tool("libcap2-bin", "capsh", "runs tests without capabilities"),
    tool("util-linux", "setpriv", "runs tests as a plain user"),
    tool("make", "make", "builds the module of the iWARP device"),
    tool(
        "ndctl",
        "ndctl",
        "makes a device of persistent memory in a VM",
    ),
    XZ,
    ZSTD,
];

const CHECKS: &[Need] = &[Need {
    package: "libclang-dev",
    reason: "regenerates the bindings to compare them",
    probe: Probe::SharedObject("libclang"),
}];

const DEBIAN: &[Need] = &[Need {
    package: "debian-archive-keyring",
    reason: "vouches for the packages of the guest debian13",
    probe: Probe::File("/usr/share/keyrings/debian-archive-keyring.gpg"),
}];

/// Where distributions put shared libraries, with those of each LLVM.
fn library_folders() -> Vec<std::path::PathBuf> {
    let mut folders: Vec<std::path::PathBuf> = ["/usr/lib", "/usr/lib64", "/usr/local/lib"]
        .map(Into::into)
        .into();
    for entry in fs::read_dir("/usr/lib").into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with("llvm") {
            folders.push(entry.path().join("lib"));
        } else if name.ends_with("-linux-gnu") {
            folders.push(entry.path());
        }
    }
    folders
}

fn has_library(folder: &Path, library: &str) -> bool {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.any(|name| is_library(&name, library))
}

/// Whether a file of this name is this library, and not one whose name only begins so (`libclang-cpp.so.14` is not libclang).
fn is_library(file: &str, library: &str) -> bool {
    file.strip_prefix(library).is_some_and(|rest| {
        let rest = rest.strip_prefix('-').map_or(rest, |version| {
            version.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.')
        });
        rest.trim_start_matches('.').starts_with("so")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_need_has_a_package_and_a_reason() {
        for need in Set::ALL.iter().flat_map(|set| set.needs()) {
            assert!(
                !need.package.is_empty() && !need.reason.is_empty(),
                "{need:?}"
            );
        }
    }

    #[test]
    fn a_library_is_found_with_any_version_and_not_by_the_beginning_of_another_ones_name() {
        for file in [
            "libclang.so",
            "libclang.so.1",
            "libclang-14.so",
            "libclang-14.so.1",
            "libclang-14.0.6.so",
        ] {
            assert!(is_library(file, "libclang"), "{file}");
        }
        for file in [
            "libclang-cpp.so.14",
            "libclangd.so",
            "libclang.a",
            "libclang-14.a",
            "libclang",
        ] {
            assert!(!is_library(file, "libclang"), "{file}");
        }
    }

    #[test]
    fn what_two_sets_need_is_missing_only_once() {
        let missing = missing(&[Set::Device, Set::Vm, Set::Device]);
        for (index, need) in missing.iter().enumerate() {
            assert!(!missing[..index].contains(need), "{need:?} twice");
        }
    }

    #[test]
    fn probes_see_what_is_there_and_what_is_not() {
        assert!(Probe::Tool("sh").is_there());
        assert!(Probe::File("/proc/self").is_there());
        for probe in [
            Probe::Tool("no-such-program"),
            Probe::File("/no/such/file"),
            Probe::Library("no-such-library"),
            Probe::SharedObject("libno-such"),
        ] {
            assert!(!probe.is_there(), "{probe}");
        }
    }
}
