//! Where things are: the workspace, its target folder, the cache that all checkouts share.

use std::env;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// The root folder of the workspace that this program was built from.
pub(crate) fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_owned()
}

/// The folder that cargo builds into.
///
/// The environment first, then where this program itself was built (which follows a `target-dir` in a cargo
/// configuration file), then cargo's default. No call of cargo: this runs before every command in the VM.
pub(crate) fn target_dir() -> PathBuf {
    for name in ["CARGO_TARGET_DIR", "CARGO_BUILD_TARGET_DIR"] {
        if let Some(folder) = env::var_os(name).filter(|value| !value.is_empty()) {
            return env::current_dir().unwrap_or_else(|_| root()).join(folder);
        }
    }
    let own = env::current_exe().ok();
    let built_in = own.as_deref().and_then(Path::parent).and_then(Path::parent);
    match built_in {
        Some(folder) if folder.join("CACHEDIR.TAG").exists() => folder.to_owned(),
        _ => root().join("target"),
    }
}

/// The folder for kernels, VM state and what `device up` made.
///
/// # Errors
/// When neither `RDMA_RUST_VM_CACHE`, `XDG_CACHE_HOME` nor `HOME` names an absolute folder.
pub(crate) fn cache_dir() -> Result<PathBuf> {
    cache_dir_from(|name| env::var_os(name).map(PathBuf::from))
}

fn cache_dir_from(variable: impl Fn(&str) -> Option<PathBuf>) -> Result<PathBuf> {
    let set = |name: &str| variable(name).filter(|path| path.is_absolute());
    set("RDMA_RUST_VM_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|folder| folder.join("rdma-rust-vm")))
        .or_else(|| set("HOME").map(|folder| folder.join(".cache/rdma-rust-vm")))
        .ok_or_else(|| {
            Error::new(
                "no place for the VM's kernel: neither RDMA_RUST_VM_CACHE, XDG_CACHE_HOME nor HOME is set to an \
                 absolute path; set RDMA_RUST_VM_CACHE to a folder of your own",
            )
        })
}

/// FNV-1a over several texts: a short, stable name for a configuration (not a secret, no adversary).
pub(crate) fn fingerprint<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut add = |byte: u8| {
        hash ^= u64::from(byte);
        hash = hash.wrapping_mul(0x0100_0000_01b3);
    };
    for part in parts {
        part.iter().copied().for_each(&mut add);
        // A separator that no UTF-8 text contains, so that ("ab", "c") and ("a", "bc") differ.
        add(0xff);
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_is_the_override_then_xdg_then_home() {
        let with = |pairs: &[(&str, &str)]| {
            let pairs: Vec<(String, PathBuf)> = pairs
                .iter()
                .map(|(k, v)| ((*k).to_owned(), PathBuf::from(v)))
                .collect();
            cache_dir_from(move |name| {
                pairs
                    .iter()
                    .find(|(k, _)| k == name)
                    .map(|(_, v)| v.clone())
            })
        };
        let all = [
            ("RDMA_RUST_VM_CACHE", "/a"),
            ("XDG_CACHE_HOME", "/x"),
            ("HOME", "/h"),
        ];
        assert_eq!(with(&all).unwrap(), Path::new("/a"));
        assert_eq!(with(&all[1..]).unwrap(), Path::new("/x/rdma-rust-vm"));
        assert_eq!(
            with(&all[2..]).unwrap(),
            Path::new("/h/.cache/rdma-rust-vm")
        );
        assert_eq!(
            with(&[("XDG_CACHE_HOME", "relative"), ("HOME", "/h")]).unwrap(),
            Path::new("/h/.cache/rdma-rust-vm"),
            "a relative XDG_CACHE_HOME must be ignored"
        );
        let error = with(&[]).unwrap_err().to_string();
        assert!(error.contains("set RDMA_RUST_VM_CACHE"), "{error}");
    }

    #[test]
    fn the_fingerprint_tells_where_one_part_ends() {
        let of = |parts: &[&str]| fingerprint(parts.iter().map(|part| part.as_bytes()));
        assert_eq!(of(&["a", "b"]), of(&["a", "b"]));
        assert_ne!(of(&["ab", "c"]), of(&["a", "bc"]));
        assert_ne!(of(&["a"]), of(&["a", ""]));
    }
}
