//! What a test needs of the machine, decided once at start.

use std::path::Path;
use std::process::Command;

use crate::{c, device};

/// The first kernel and the first rdma-core with flush and atomic write as operations of the device.
const NATIVE_KERNEL: &[u32] = &[6, 2];
const NATIVE_RDMA_CORE: u32 = 45;

/// Where a newer librpma lies beside the installed one.
pub const NATIVE_LIBRPMA: &str = "/usr/lib/rdma-rust";

/// Something that a test cannot do without.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Need {
    /// An RDMA device, and the program `rdma` to look for leaks.
    Device,
    /// The rights of root.
    Root,
    /// The kernel modules for software devices, so that a test can make its own.
    SoftRoce,
    /// The kernel modules for a wire between two software devices, and for faults on it.
    Wire,
    /// Kernel 6.2 and rdma-core 45 or later, from which on there are flush and atomic write as operations of the device.
    Native,
    /// A second machine, which runs the role `second_host`. Tests that need it are left out where there is none.
    SecondHost,
    /// The C programs of `tests/c`.
    C,
    /// Those written with librpma, of `tests/c/rpma`.
    Librpma,
    /// A librpma that lets the device flush, in the folder [`NATIVE_LIBRPMA`]: the guest with newer libraries has one.
    NativeLibrpma,
    /// The C program `cmtime` as it was before it had threads, and other columns. Tests that need it are left out where there
    /// is a later one.
    EarlyCmtime,
    /// A program found through `PATH`.
    Tool(&'static str),
}

impl Need {
    /// Why it is missing, or `None` when it is there.
    pub(crate) fn missing(self) -> Option<String> {
        match self {
            Self::Device => device::find()
                .as_ref()
                .err()
                .cloned()
                .or_else(|| Self::Tool("rdma").missing()),
            Self::Root => {
                (!rustix::process::geteuid().is_root()).then(|| "the rights of root".to_owned())
            }
            Self::SoftRoce => module_missing(&["rdma_rxe", "dummy"]),
            Self::Wire => module_missing(&["veth", "sch_netem"]),
            Self::Native => kernel_too_old().or_else(library_too_old),
            Self::SecondHost => device::second().err(),
            Self::C => (!c::MISSING.is_empty()).then(|| format!("the C programs: {}", c::MISSING)),
            Self::Librpma => (!c::RPMA_MISSING.is_empty())
                .then(|| format!("the C programs with librpma: {}", c::RPMA_MISSING)),
            Self::NativeLibrpma => {
                let library = Path::new(NATIVE_LIBRPMA).join("librpma.so.0");
                let missing =
                    (!library.exists()).then(|| format!("librpma 1.3 as {}", library.display()));
                missing.or_else(|| Self::Librpma.missing())
            }
            Self::EarlyCmtime => cmtime_too_late(),
            Self::Tool(name) => {
                (!in_path(name)).then(|| format!("the program {name}{}", package(name)))
            }
        }
    }
}

fn module_missing(modules: &[&str]) -> Option<String> {
    let missing = modules
        .iter()
        .find(|module| !Path::new("/sys/module").join(module).is_dir());
    missing.map(|module| format!("the kernel module {module} (modprobe {module})"))
}

fn kernel_too_old() -> Option<String> {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy();
    let new_enough = numbers(&release).is_some_and(|numbers| *numbers >= *NATIVE_KERNEL);
    (!new_enough).then(|| format!("kernel 6.2 or later (this is {release})"))
}

fn library_too_old() -> Option<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    match rdma_core_in(&maps) {
        Some(release) if release >= NATIVE_RDMA_CORE => None,
        Some(release) => Some(format!(
            "rdma-core {NATIVE_RDMA_CORE} or later (this is {release})"
        )),
        None => Some("a libibverbs whose file name tells its release".to_owned()),
    }
}

fn cmtime_too_late() -> Option<String> {
    // It answers to what it does not know with how to use it.
    let output = Command::new("cmtime").arg("-?").output().ok()?;
    let usage = String::from_utf8_lossy(&output.stdout).into_owned();
    let threads = usage.contains("-n num_threads")
        || String::from_utf8_lossy(&output.stderr).contains("-n num_threads");
    threads.then(|| "a cmtime without threads (rdma-core 50 or earlier)".to_owned())
}

/// The release of rdma-core by the name of the library that is loaded: `libibverbs.so.1.14.44.0` is of release 44.
fn rdma_core_in(maps: &str) -> Option<u32> {
    let (_, name) = maps.split_once("/libibverbs.so.")?;
    numbers(name.lines().next()?)?.get(2).copied()
}

/// The numbers with dots between them that a text begins with.
fn numbers(text: &str) -> Option<Vec<u32>> {
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    text[..end]
        .split('.')
        .map(|part| part.parse().ok())
        .collect()
}

fn in_path(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        // Where a plain user's PATH does not lead.
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .any(|dir: std::path::PathBuf| Path::new(&dir).join(name).is_file())
}

/// The distribution's package, where the program's name does not tell.
fn package(name: &str) -> &'static str {
    match name {
        "rdma" | "ip" | "tc" => " (package iproute2)",
        "rping" | "ucmatose" | "udaddy" | "mckey" | "cmtime" => " (package rdmacm-utils)",
        "stdbuf" => " (package coreutils)",
        "ibv_devinfo" | "ibv_rc_pingpong" => " (package ibverbs-utils)",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_release_of_the_library_is_read_off_its_file_name() {
        let maps = |name: &str| {
            format!(
                "7f00-7f01 r--p 00000000 00:1d 42    /usr/lib/x86_64-linux-gnu/{name}\n7f02 rw-p\n"
            )
        };
        assert_eq!(rdma_core_in(&maps("libibverbs.so.1.14.56.1")), Some(56));
        assert_eq!(rdma_core_in(&maps("libibverbs.so.1")), None);
        assert_eq!(rdma_core_in(&maps("librdmacm.so.1.3.56.1")), None);
        assert_eq!(rdma_core_in(""), None);
    }

    #[test]
    fn what_is_missing_is_named_with_where_to_get_it() {
        assert_eq!(
            module_missing(&["no_such_module"]).as_deref(),
            Some("the kernel module no_such_module (modprobe no_such_module)")
        );
        assert_eq!(module_missing(&[]), None);
        let missing = Need::Tool("no-such-program").missing();
        assert_eq!(missing.as_deref(), Some("the program no-such-program"));
        for tool in ["ip", "tc", "rdma"] {
            assert_eq!(package(tool), " (package iproute2)");
        }
    }

    #[test]
    fn a_kernels_release_is_compared_by_number() {
        for (release, new_enough) in [
            ("6.12.117+deb13-amd64", true),
            ("6.2.0", true),
            ("7.0-rc1", true),
            ("6.1.0-57-amd64", false),
        ] {
            let numbers = numbers(release).expect("numbers");
            assert_eq!(*numbers >= *NATIVE_KERNEL, new_enough, "{release}");
        }
    }
}
