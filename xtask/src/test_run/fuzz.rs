//! The step `fuzz`: the fuzz targets are built, and each runs for a while.

use std::process::Command;

use super::counted::{Run, step};
use super::steps::{fake_variables, host_triple};
use super::{Options, Outcome};
use crate::error::{Context, Result};
use crate::nightly;
use crate::ping::cargo;
use crate::process;
use crate::workspace;

/// Where the targets are.
const FOLDER: &str = "rpma/fuzz";

/// How long each runs.
const SECONDS: u32 = 30;

/// What the compiler does for a fuzzer, as `cargo fuzz` asks for it: the fuzzer sees which ways were gone.
const FLAGS: &str = "--cfg fuzzing -Zsanitizer=address -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
                     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
                     -Cllvm-args=-sanitizer-coverage-trace-compares -Cdebug-assertions -Ccodegen-units=1";

/// Whether the targets are to run: they have the word in front of their names.
pub(super) fn wanted(options: &Options) -> bool {
    let filter = options.filter.as_deref();
    options.full && filter.is_none_or(|filter| filter.starts_with("fuzz"))
}

/// Builds the targets and runs each; one that finds bytes that break a rule, or an access outside of memory, has failed.
pub(super) fn fuzz(options: &Options) -> Result<Outcome> {
    let toolchain = match nightly::ensure() {
        Ok(toolchain) => toolchain,
        Err(error) => return Ok(Outcome::missing(error)),
    };
    if process::find_tool("c++").is_none() {
        return Ok(Outcome::missing(
            "there is no program c++, which compiles libFuzzer; install the package g++",
        ));
    }
    let triple = host_triple(&mut Command::new(cargo()))?;
    let found = workspace::target_dir().join("fuzz/");
    let mut all = Outcome::default();
    for target in targets()? {
        let words = format!(
            "run --manifest-path {FOLDER}/Cargo.toml --release --target {triple} --bin {target} -- -max_total_time={SECONDS} \
             -print_final_stats=1"
        );
        let mut words: Vec<String> = words.split(' ').map(str::to_owned).collect();
        // Where it writes what it has found.
        words.push(format!("-artifact_prefix={}", found.display()));
        let outcome = step(Run {
            name: "fuzz",
            calls: vec![(toolchain.cargo(), words)],
            settings: &[],
            variables: fake_variables("fuzz", FLAGS),
            deadline: options.deadline,
        })?;
        match outcome.failure {
            None => all.count.passed += 1,
            Some(how) => {
                all.count.failed += 1;
                let how = format!("{how} ({target}; the bytes are in {})", found.display());
                all.failure = all.failure.or(Some(how));
            }
        }
    }
    Ok(all)
}

/// The names of the targets.
fn targets() -> Result<Vec<String>> {
    let folder = workspace::root().join(FOLDER).join("fuzz_targets");
    let context = || format!("cannot list {}", folder.display());
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&folder).context(context)? {
        let path = entry.context(context)?.path();
        names.extend(
            path.file_stem()
                .map(|name| name.to_string_lossy().into_owned()),
        );
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fuzz_target_is_a_program_and_runs_among_the_long_tests_only() {
        let manifest = workspace::root().join(FOLDER).join("Cargo.toml");
        let manifest = std::fs::read_to_string(manifest).unwrap();
        let names = targets().unwrap();
        assert!(!names.is_empty());
        for name in names {
            assert!(manifest.contains(&format!("name = \"{name}\"")), "{name}");
        }
        let options = |full, filter: Option<&str>| Options {
            full,
            filter: filter.map(str::to_owned),
            deadline: std::time::Duration::ZERO,
        };
        assert!(wanted(&options(true, None)) && wanted(&options(true, Some("fuzz"))));
        assert!(!wanted(&options(false, None)) && !wanted(&options(true, Some("a_rule"))));
    }
}
