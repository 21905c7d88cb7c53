//! Regenerates the committed bindings, or checks that they are what the generator makes of this machine's headers.
//!
//! The generator is the feature `bindgen` of `rdma-core-sys`; running it through cargo keeps this program free of libclang.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The committed file, from the workspace's root.
const COMMITTED: &str = "rdma-core-sys/src/bindings.rs";

/// Writes the bindings file, or with `check` only compares it.
///
/// # Errors
/// The generator fails (no libclang, no headers), a file cannot be read or written, or with `check` the two differ; the
/// text names the first line that does.
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
    if check {
        return Err(difference(&old, &fresh));
    }
    fs::write(&committed, fresh)
        .map_err(|e| format!("cannot write {}: {e}", committed.display()))?;
    println!("{COMMITTED} written");
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
    use super::difference;

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
}
