//! Finds libibverbs and librdmacm, and with the feature `bindgen` makes the bindings from their headers.
//!
//! Order of search: the `RDMA_CORE_*` variables, then pkg-config. What is read and what it means stands in README.md.

#[cfg(feature = "bindgen")]
#[path = "bindgen.rs"]
mod bindings;
mod find;

use std::process::ExitCode;

use crate::find::{Environment, Found};

fn main() -> ExitCode {
    println!("cargo::rerun-if-changed=build");
    println!("cargo::rerun-if-changed=wrapper.h");
    let environment = Environment::read();

    let found = if environment.no_link {
        Found::default()
    } else {
        match find::find(&environment) {
            Ok(found) => found,
            Err(message) => return fail(&message),
        }
    };
    for dir in &found.link_dirs {
        println!("cargo::rustc-link-search=native={}", dir.display());
    }
    for library in &found.libraries {
        println!("cargo::rustc-link-lib=dylib={library}");
    }
    if let Some(release) = &found.release {
        println!("cargo::metadata=version={release}");
    }
    if let Some(dir) = environment
        .include_dir
        .as_ref()
        .or(found.include_dir.as_ref())
    {
        println!("cargo::metadata=include={}", dir.display());
        // Where this crate's own tests find the headers.
        println!("cargo::rustc-env=RDMA_CORE_SYS_INCLUDE={}", dir.display());
    }

    #[cfg(feature = "bindgen")]
    if let Err(message) = write_bindings(&environment, &found) {
        return fail(&message);
    }
    ExitCode::SUCCESS
}

/// Reports each line as an error of this package, which cargo prints before anything else.
fn fail(message: &str) -> ExitCode {
    for line in message.lines() {
        println!("cargo::error={line}");
    }
    ExitCode::FAILURE
}

/// Puts `bindings.rs` into `OUT_DIR`, and a copy where `RDMA_CORE_BINDINGS_COPY` says.
#[cfg(feature = "bindgen")]
fn write_bindings(environment: &Environment, found: &Found) -> Result<(), String> {
    let include_dirs: Vec<_> = environment
        .include_dir
        .iter()
        .chain(&found.include_dir)
        .cloned()
        .collect();
    let out_dir = std::env::var_os("OUT_DIR").ok_or("cargo did not set OUT_DIR")?;
    let out = std::path::Path::new(&out_dir).join("bindings.rs");
    let text = bindings::generate(&include_dirs)?;
    std::fs::write(&out, text).map_err(|e| format!("cannot write {}: {e}", out.display()))?;
    if let Some(copy) = &environment.bindings_copy {
        std::fs::copy(&out, copy)
            .map_err(|e| format!("cannot copy the bindings to {}: {e}", copy.display()))?;
    }
    Ok(())
}
