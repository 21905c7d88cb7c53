//! Compiles the C programs and preloaded libraries of the tests against the installed headers.
//!
//! A machine without compiler or headers can still check and lint this crate: what is missing is
//! handed to the tests, which report it by name.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=c");
    println!("cargo::rerun-if-env-changed=CC");
    println!("cargo::rerun-if-env-changed=RDMA_CORE_INCLUDE_DIR");
    println!("cargo::rerun-if-env-changed={LIBRPMA_DIR}");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    println!("cargo::rustc-env=RPMA_TEST_C_DIR={}", out.display());
    let sets = [
        ("RPMA_TEST_C_MISSING", Set::RdmaCore),
        // Apart: without librpma the other programs are still there.
        ("RPMA_TEST_C_RPMA_MISSING", Set::Librpma),
    ];
    for (variable, set) in sets {
        let missing = set.compile(&out).err().unwrap_or_default();
        if !missing.is_empty() {
            println!("cargo::warning={missing}");
        }
        println!("cargo::rustc-env={variable}={missing}");
    }
}

/// Where a package of librpma is unpacked that is not installed: its `usr`.
const LIBRPMA_DIR: &str = "RPMA_TEST_LIBRPMA_DIR";

/// What programs are linked with.
#[derive(Clone, Copy)]
enum Set {
    RdmaCore,
    Librpma,
}

impl Set {
    fn folder(self) -> &'static str {
        match self {
            Self::RdmaCore => "",
            Self::Librpma => "rpma",
        }
    }

    /// Compiles every `*.c` of its folder: `lib*.c` to a shared library, anything else to a
    /// program.
    fn compile(self, out: &Path) -> Result<(), String> {
        let (from, to) = (Path::new("c").join(self.folder()), out.join(self.folder()));
        let problem =
            |path: &Path, error| format!("cannot read or make {}: {error}", path.display());
        std::fs::create_dir_all(&to).map_err(|error| problem(&to, error))?;
        let mut sources: Vec<_> = std::fs::read_dir(&from)
            .map_err(|error| problem(&from, error))?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.extension().is_some_and(|e| e == "c"))
            .collect();
        sources.sort();
        sources
            .iter()
            .try_for_each(|source| self.compile_one(source, &to))
    }

    fn compile_one(self, source: &Path, to: &Path) -> Result<(), String> {
        let name = source.file_stem().unwrap_or_default().to_string_lossy();
        let compiler = env::var("CC").unwrap_or_else(|_| "cc".to_owned());
        let mut command = Command::new(&compiler);
        command.args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror"]);
        if let Some(dir) = env::var_os("RDMA_CORE_INCLUDE_DIR") {
            command.arg("-I").arg(dir);
        }
        let target = if name.starts_with("lib") {
            command.args(["-shared", "-fPIC"]);
            to.join(format!("{name}.so"))
        } else {
            to.join(&*name)
        };
        command.arg(source).arg("-o").arg(target);
        if let Self::Librpma = self {
            link_librpma(&mut command);
        }
        command.args(["-lrdmacm", "-libverbs", "-lpthread", "-ldl"]);
        let output = command.output().map_err(|error| {
            format!("cannot run the C compiler {compiler}: {error}; install the package gcc")
        })?;
        if output.status.success() {
            return Ok(());
        }
        Err(explain(source, &String::from_utf8_lossy(&output.stderr)))
    }
}

fn link_librpma(command: &mut Command) {
    if let Some(usr) = env::var_os(LIBRPMA_DIR).map(PathBuf::from) {
        command.arg("-I").arg(usr.join("include"));
        for folder in ["lib", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu"] {
            let folder = usr.join(folder);
            if folder.is_dir() {
                command.arg("-L").arg(&folder);
                command.arg(format!("-Wl,-rpath,{}", folder.display()));
            }
        }
    }
    command.arg("-lrpma");
}

fn explain(source: &Path, text: &str) -> String {
    let line = text
        .lines()
        .find(|line| line.contains("error") || line.contains("cannot find"))
        .unwrap_or("no error message")
        .replace('"', "'");
    let advice = match () {
        () if line.contains("librpma.h") || line.contains("-lrpma") => {
            "; install the package librpma-dev, or name the usr of an unpacked one in RPMA_TEST_LIBRPMA_DIR"
        }
        () if line.contains("infiniband/") || line.contains("rdma/") => {
            "; install the packages libibverbs-dev and librdmacm-dev"
        }
        () if line.contains(".h:") => "; install the package libc6-dev",
        () => "",
    };
    format!("cannot compile {}: {line}{advice}", source.display())
}
