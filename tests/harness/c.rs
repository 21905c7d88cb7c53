//! C programs and preloaded libraries, compiled by the build script.

use std::path::PathBuf;

/// Why they could not be compiled, or nothing.
pub(crate) const MISSING: &str = env!("RPMA_TEST_C_MISSING");

/// The program made from `c/{name}.c`.
pub fn c_program(name: &str) -> PathBuf {
    PathBuf::from(env!("RPMA_TEST_C_DIR")).join(name)
}

/// The library made from `c/lib{name}.c`, to be named in `LD_PRELOAD`.
pub fn c_library(name: &str) -> PathBuf {
    PathBuf::from(env!("RPMA_TEST_C_DIR")).join(format!("lib{name}.so"))
}
