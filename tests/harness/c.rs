//! C programs and preloaded libraries, compiled by the build script.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Why they could not be compiled, or nothing.
pub(crate) const MISSING: &str = env!("RPMA_TEST_C_MISSING");
/// The same for those written with librpma.
pub(crate) const RPMA_MISSING: &str = env!("RPMA_TEST_C_RPMA_MISSING");

/// The program made from `c/{name}.c`; those written with librpma are named `rpma/…`.
pub fn c_program(name: &str) -> PathBuf {
    PathBuf::from(env!("RPMA_TEST_C_DIR")).join(name)
}

/// The library made from `c/lib{name}.c`, to be named in `LD_PRELOAD`.
///
/// That variable is split at blanks and colons, and nothing escapes them: a library whose path has
/// any goes by a link without.
pub fn c_library(name: &str) -> PathBuf {
    let library = PathBuf::from(env!("RPMA_TEST_C_DIR")).join(format!("lib{name}.so"));
    if !is_split(&library) {
        return library;
    }
    let link = std::env::temp_dir().join(format!("rpma-lib{name}-{}.so", std::process::id()));
    // Made by an earlier call; whether it leads to the library is seen by whoever preloads it.
    let _ = std::os::unix::fs::symlink(library, &link);
    link
}

fn is_split(path: &Path) -> bool {
    let bytes = path.as_os_str().as_bytes();
    bytes.iter().any(|b| *b == b':' || b.is_ascii_whitespace())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_blanks_and_colons_split_a_path_that_is_preloaded() {
        assert!(is_split(Path::new("/a b/lib.so")));
        assert!(is_split(Path::new("/a:b/lib.so")));
        assert!(!is_split(Path::new("/a,b%20/lib.so")));
    }
}
