//! Where the libraries are: told by variables, or asked of pkg-config.

use std::env;
use std::path::{Path, PathBuf};

/// The two libraries with their pkg-config range: from the first version that has all that the bindings name (rdma-core 44;
/// the third component is the release) up to the next incompatible one.
const LIBRARIES: [(&str, &str, &str); 2] =
    [("libibverbs", "1.14.44", "2"), ("librdmacm", "1.3.44", "2")];

/// The first line of every "not found" error: what most people have to do.
const INSTALL: &str = "libibverbs and librdmacm of rdma-core 44 or later are needed: install `libibverbs-dev librdmacm-dev pkg-config` \
     (Debian, Ubuntu) or `rdma-core-devel pkgconf-pkg-config` (Fedora, RHEL)";
const ELSEWHERE: &str = "when they are elsewhere: set RDMA_CORE_LIB_DIR (and for the feature `bindgen` RDMA_CORE_INCLUDE_DIR), or \
     PKG_CONFIG_PATH; to check or document without them, set RDMA_CORE_NO_LINK=1";

/// What the environment says.
pub(crate) struct Environment {
    pub(crate) lib_dir: Option<PathBuf>,
    pub(crate) include_dir: Option<PathBuf>,
    pub(crate) no_pkg_config: bool,
    /// Nothing is to be linked: asked for, or only documentation is made, or the fake device defines every symbol itself.
    pub(crate) no_link: bool,
    /// The program is to be linked statically.
    pub(crate) is_static: bool,
    #[cfg(feature = "bindgen")]
    pub(crate) bindings_copy: Option<PathBuf>,
}

impl Environment {
    pub(crate) fn read() -> Self {
        Self {
            lib_dir: path("RDMA_CORE_LIB_DIR"),
            include_dir: path("RDMA_CORE_INCLUDE_DIR"),
            no_pkg_config: is_set("RDMA_CORE_NO_PKG_CONFIG"),
            no_link: is_set("RDMA_CORE_NO_LINK")
                | is_set("DOCS_RS")
                | env::var_os("CARGO_CFG_RDMA_FAKE").is_some(),
            is_static: env::var("CARGO_CFG_TARGET_FEATURE")
                .is_ok_and(|features| features.split(',').any(|feature| feature == "crt-static")),
            #[cfg(feature = "bindgen")]
            bindings_copy: path("RDMA_CORE_BINDINGS_COPY"),
        }
    }
}

/// What was found.
#[derive(Default)]
pub(crate) struct Found {
    pub(crate) libraries: Vec<String>,
    pub(crate) link_dirs: Vec<PathBuf>,
    pub(crate) include_dir: Option<PathBuf>,
    /// The release of rdma-core, where it is known.
    pub(crate) release: Option<String>,
}

/// Said instead of building what would find no device.
const STATIC: &str = "a static program finds no RDMA device, because libibverbs loads the device drivers with dlopen: build without \
     the target feature `crt-static` (RUSTFLAGS=-Ctarget-feature=-crt-static)";

pub(crate) fn find(environment: &Environment) -> Result<Found, String> {
    if environment.is_static {
        return Err(STATIC.to_owned());
    }
    if let Some(dir) = &environment.lib_dir {
        return in_directory(dir);
    }
    if environment.no_pkg_config {
        return Err(format!(
            "{INSTALL}\nRDMA_CORE_NO_PKG_CONFIG is set, and RDMA_CORE_LIB_DIR is not: nothing says where the libraries are\n{ELSEWHERE}"
        ));
    }
    with_pkg_config()
}

fn in_directory(dir: &Path) -> Result<Found, String> {
    let mut found = Found {
        link_dirs: vec![dir.to_owned()],
        ..Found::default()
    };
    for (name, ..) in LIBRARIES {
        let file = dir.join(format!("{name}.so"));
        if !file.exists() {
            return Err(format!(
                "{INSTALL}\nRDMA_CORE_LIB_DIR is {}, but {} does not exist\n{ELSEWHERE}",
                dir.display(),
                file.display()
            ));
        }
        found
            .libraries
            .push(name.trim_start_matches("lib").to_owned());
    }
    Ok(found)
}

fn with_pkg_config() -> Result<Found, String> {
    let mut found = Found::default();
    for (name, first, end) in LIBRARIES {
        let library = probe(name, Some((first, end)))
            .map_err(|e| format!("{INSTALL}\n{}\n{ELSEWHERE}", reason(&e, name, first, end)))?;
        for dir in library.link_paths {
            if !found.link_dirs.contains(&dir) {
                found.link_dirs.push(dir);
            }
        }
        found
            .libraries
            .push(name.trim_start_matches("lib").to_owned());
        found.release = library.version.split('.').nth(2).map(str::to_owned);
        if found.include_dir.is_none() {
            found.include_dir = pkg_config::get_variable(name, "includedir")
                .ok()
                .map(PathBuf::from);
        }
    }
    Ok(found)
}

fn probe(
    name: &str,
    range: Option<(&str, &str)>,
) -> Result<pkg_config::Library, pkg_config::Error> {
    let mut config = pkg_config::Config::new();
    if let Some((first, end)) = range {
        config.range_version(first..end);
    }
    // Static linking is not offered: the device drivers are loaded with dlopen, and a static program finds no device.
    config
        .statik(false)
        .cargo_metadata(false)
        .env_metadata(true)
        .print_system_libs(false)
        .probe(name)
}

/// Why pkg-config did not give the library, in one line.
fn reason(error: &pkg_config::Error, name: &str, first: &str, end: &str) -> String {
    match error {
        pkg_config::Error::Command { command, cause } => {
            format!("pkg-config cannot be run: {cause} ({command})")
        }
        pkg_config::Error::ProbeFailure { .. } => match probe(name, None) {
            Ok(other) => format!(
                "the {name} that pkg-config finds is version {}; needed is {first} or later, below {end} (the third number is the \
                 release of rdma-core)",
                other.version
            ),
            Err(_) => format!("pkg-config finds no file {name}.pc"),
        },
        other => {
            let text = other.to_string();
            let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
            lines.collect::<Vec<_>>().join(" ")
        }
    }
}

fn path(variable: &str) -> Option<PathBuf> {
    println!("cargo::rerun-if-env-changed={variable}");
    env::var_os(variable)
        .filter(|value| !value.is_empty())
        .map(PathBuf::from)
}

/// A switch is on unless it is missing, empty or `0`.
fn is_set(variable: &str) -> bool {
    println!("cargo::rerun-if-env-changed={variable}");
    env::var_os(variable).is_some_and(|value| !value.is_empty() && value != "0")
}
