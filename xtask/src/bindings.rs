//! Regenerates the committed bindings, or checks that they are what the generator makes of this machine's headers.
//!
//! The generator is the feature `bindgen` of `rdma-core-sys`; running it through cargo keeps this program free of libclang.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The committed file, from the workspace's root.
const COMMITTED: &str = "rdma-core-sys/src/bindings.rs";

/// The release of rdma-core whose headers the committed file is made from.
const RELEASE: &str = "44";

/// Writes the bindings file, or with `check` only compares it.
///
/// Headers of a later release may only add to what is committed; they are checked for that, and never written from.
///
/// # Errors
/// The generator fails (no libclang, no headers), a file cannot be read or written, the headers are not those of the release
/// that is committed and are to be written from, or with `check` the two differ; the text names the first line that does.
pub(crate) fn run(check: bool) -> Result<(), String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .ok_or("xtask lies in no workspace")?;
    let committed = root.join(COMMITTED);
    let fresh = generate(root)?;
    let old = fs::read_to_string(&committed).unwrap_or_default();

    if fresh == old {
        println!("{COMMITTED} is what the generator makes of the installed headers");
        return Ok(());
    }
    match (installed_release(), check) {
        (Some(release), true) if release != RELEASE => {
            only_adds(&old, &fresh, &release)?;
            println!(
                "the headers of rdma-core {release} only add to {COMMITTED}, which is made from {RELEASE}"
            );
            Ok(())
        }
        (Some(release), false) if release != RELEASE => Err(format!(
            "{COMMITTED} is made from the headers of rdma-core {RELEASE}, installed are those of {release}: run this on Debian 12, \
             or set RDMA_CORE_INCLUDE_DIR to a directory with the headers of {RELEASE}"
        )),
        (_, true) => Err(difference(&old, &fresh)),
        (_, false) => {
            fs::write(&committed, fresh)
                .map_err(|e| format!("cannot write {}: {e}", committed.display()))?;
            println!("{COMMITTED} written");
            Ok(())
        }
    }
}

/// The release of the headers that the generator reads, where pkg-config knows it.
fn installed_release() -> Option<String> {
    if env::var_os("RDMA_CORE_INCLUDE_DIR").is_some() {
        return None;
    }
    let output = Command::new("pkg-config")
        .args(["--modversion", "libibverbs"])
        .output()
        .ok()?;
    // The third number of the library's version is the release.
    let version = String::from_utf8(output.stdout).ok()?;
    version.trim().split('.').nth(2).map(str::to_owned)
}

/// Checks that every committed line is there, in order, among the new ones.
fn only_adds(committed: &str, fresh: &str, release: &str) -> Result<(), String> {
    let mut new = fresh.lines();
    for (number, old) in committed.lines().enumerate() {
        if !new.any(|line| line == old) {
            return Err(format!(
                "the headers of rdma-core {release} do not have line {} of {COMMITTED}, or have it elsewhere:\n  {old}",
                number + 1
            ));
        }
    }
    Ok(())
}

/// Builds `rdma-core-sys` with its generator and returns the text it made.
fn generate(root: &Path) -> Result<String, String> {
    let copy = Copy::new();
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    println!("making the bindings: cargo check -p rdma-core-sys --features bindgen");
    let status = Command::new(cargo)
        .args([
            "check",
            "--quiet",
            "-p",
            "rdma-core-sys",
            "--features",
            "bindgen",
        ])
        .env("RDMA_CORE_BINDINGS_COPY", &copy.0)
        .current_dir(root)
        .status()
        .map_err(|e| format!("cannot run cargo: {e}"))?;
    if !status.success() {
        return Err(
            "the bindings were not made, see cargo's errors above (needed: libclang, package `libclang-dev` on Debian and \
             Ubuntu, `clang-devel` on Fedora)"
                .to_owned(),
        );
    }
    fs::read_to_string(&copy.0)
        .map_err(|e| format!("the generator left nothing at {}: {e}", copy.0.display()))
}

/// Where the build script puts its copy; removed at the end.
///
/// The name is new each time: a changed variable is what makes cargo run the build script again.
struct Copy(PathBuf);

impl Copy {
    fn new() -> Self {
        let now = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |time| time.as_nanos());
        let name = format!("rdma-core-bindings-{}-{now}.rs", std::process::id());
        Self(env::temp_dir().join(name))
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Says where two texts part.
fn difference(committed: &str, fresh: &str) -> String {
    let mut old = committed.lines();
    let mut new = fresh.lines();
    let mut number = 1;
    let (old, new) = loop {
        match (old.next(), new.next()) {
            (None, None) => break ("(no further line)", "(only line ends differ)"),
            (a, b) if a != b => break (a.unwrap_or("(no line)"), b.unwrap_or("(no line)")),
            _ => number += 1,
        }
    };
    format!(
        "{COMMITTED} is not what the generator makes of the installed headers; from line {number}:\n  committed: {old}\n  \
         generated: {new}\nrun `cargo xtask bindings` and commit the result (the committed file is made from rdma-core 44)"
    )
}

#[cfg(test)]
mod tests {
    use super::{difference, only_adds};

    #[test]
    fn difference_names_the_first_line_that_differs() {
        let text = difference("a\nb\nc\n", "a\nx\nc\n");
        assert!(
            text.contains("from line 2:\n  committed: b\n  generated: x"),
            "{text}"
        );
    }

    #[test]
    fn difference_shows_a_line_that_only_one_side_has() {
        let text = difference("a\n", "a\nb\n");
        assert!(
            text.contains("from line 2:\n  committed: (no line)\n  generated: b"),
            "{text}"
        );
    }

    #[test]
    fn later_headers_may_add_lines_anywhere() {
        only_adds("a\nb\nc\n", "a\nx\nb\nc\ny\n", "56").unwrap();
    }

    #[test]
    fn later_headers_may_not_change_or_drop_a_line() {
        let error = only_adds("a\nb\nc\n", "a\nB\nc\n", "56").unwrap_err();
        assert!(
            error.contains("rdma-core 56 do not have line 2") && error.ends_with("  b"),
            "{error}"
        );
        assert!(only_adds("a\nb\n", "b\na\n", "56").is_err());
    }
}
