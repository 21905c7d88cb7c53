//! What a test needs of the machine, decided once at start.

use std::path::Path;

use crate::{c, device};

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
    /// The C programs of `tests/c`.
    C,
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
            Self::SoftRoce => ["rdma_rxe", "dummy"]
                .into_iter()
                .find(|module| !Path::new("/sys/module").join(module).is_dir())
                .map(|module| format!("the kernel module {module}")),
            Self::C => (!c::MISSING.is_empty()).then(|| format!("the C programs: {}", c::MISSING)),
            Self::Tool(name) => {
                (!in_path(name)).then(|| format!("the program {name}{}", package(name)))
            }
        }
    }
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
        "rdma" | "ip" => " (package iproute2)",
        "rping" => " (package rdmacm-utils)",
        _ => "",
    }
}
