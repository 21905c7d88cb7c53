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
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let missing = compile_all(Path::new("c"), &out).err().unwrap_or_default();
    if !missing.is_empty() {
        println!("cargo::warning={missing}");
    }
    println!("cargo::rustc-env=RPMA_TEST_C_DIR={}", out.display());
    println!("cargo::rustc-env=RPMA_TEST_C_MISSING={missing}");
}

/// Compiles every `*.c`: `lib*.c` to a shared library, anything else to a program.
fn compile_all(from: &Path, to: &Path) -> Result<(), String> {
    let mut sources: Vec<_> = std::fs::read_dir(from)
        .map_err(|error| format!("cannot read {}: {error}", from.display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|e| e == "c"))
        .collect();
    sources.sort();
    sources.iter().try_for_each(|source| compile(source, to))
}

fn compile(source: &Path, to: &Path) -> Result<(), String> {
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
    command.args(["-lrdmacm", "-libverbs", "-lpthread", "-ldl"]);
    let output = command.output().map_err(|error| {
        format!("cannot run the C compiler {compiler}: {error}; install the package gcc")
    })?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let line = text
        .lines()
        .find(|line| line.contains("error"))
        .unwrap_or("no error message")
        .replace('"', "'");
    let advice = match () {
        () if line.contains("infiniband/") || line.contains("rdma/") => {
            "; install the packages libibverbs-dev and librdmacm-dev"
        }
        () if line.contains(".h:") => "; install the package libc6-dev",
        () => "",
    };
    Err(format!(
        "cannot compile {}: {line}{advice}",
        source.display()
    ))
}
