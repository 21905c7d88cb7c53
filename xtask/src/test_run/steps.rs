//! The steps: which tests each one runs, how they are built, and where they run.

use std::ffi::OsString;
use std::process::Command;

use super::counted::{Run, step};
use super::{Options, Outcome};
use crate::device::{Place, Rights};
use crate::error::{Error, Result};
use crate::nightly::{self, Nightly};
use crate::ping::cargo;
use crate::process;
use crate::vm;
use crate::workspace;

/// What to build for the tests on the fake device.
const ON_FAKE: &str =
    "--package verbs --package cm --package rpma --features cm/tokio,rpma/tokio --lib --test fake";

/// The same in two parts that take about as long under Miri, where tests run one after the other.
const ON_FAKE_HALVES: [&str; 2] = [
    "--package cm --package verbs --lib --test fake",
    "--package rpma --lib --test fake",
];

/// What has an order of bytes on the wire, on a machine with the other one. Miri needs no such machine.
const BIG_ENDIAN: &str = "--target s390x-unknown-linux-gnu --package rpma --lib";

/// The tests that make a destroy fail, by their names: what then leaks is meant to leak.
const NO_LEAKS: &str = "--skip leaks_";

/// What Miri leaves to the plain run and to AddressSanitizer, except among the long tests: the tests that make every call fail
/// in turn, or that deliver every event in every phase, are a third of its time and go the same ways again and again.
const SLOW_UNDER_MIRI: &str = "--skip failing --skip each_call --skip errno --skip on_fake::events:: \
                               --skip on_fake::combinations:: --skip on_fake::defects:: --skip on_fake::dispatched:: \
                               --skip on_fake::sharing:: --skip on_fake::optional:: --skip on_fake::xrc:: \
                               --skip on_fake::extended_targets:: --skip on_fake::unreliable:: \
                               --skip on_fake::multicast:: --skip on_fake::resizing:: --skip on_fake::running:: \
                               --skip on_fake::adopted:: --skip on_fake::forgotten:: --skip on_fake::native:: \
                               --skip on_fake::options:: --skip on_fake::names:: --skip \
                               gives_the_access_it_was_bound_for";

/// The guest with newer kernel and libraries.
pub(super) const GUEST: &str = "debian13";

/// The guest whose headers are the newest that there are.
const NEWEST: &str = "sid";

/// What to build for the tests that compare the bindings with headers and libraries.
const WITH_HEADERS: &str = "--package rdma-core-sys --test complete --test constants --test inlines --test layout --test \
                            parity --test signatures";

/// What the test programs are told where the tests of what only newer kernels and libraries have are held elsewhere.
const NATIVE_ELSEWHERE: (&str, &str) = ("RPMA_TEST_NATIVE", "elsewhere");

/// The pure tests of all crates.
pub(super) fn host(options: &Options) -> Result<Outcome> {
    step(Run {
        name: "host",
        calls: vec![plain("--workspace --exclude tests", options)],
        settings: &[],
        variables: Vec::new(),
        deadline: options.deadline,
    })
}

/// The tests of the bindings once more, with headers and libraries of later releases; with the long tests those of the newest
/// release too, which may have things that are not bound yet.
pub(super) fn headers(options: &Options) -> Result<Outcome> {
    let guests: &[&str] = if options.full {
        &[GUEST, NEWEST]
    } else {
        &[GUEST]
    };
    let mut all = Outcome::default();
    for guest in guests {
        let config = vm::Config::from_environment(None, Some((*guest).to_owned()));
        let (headers, libraries) =
            match config.and_then(|config| vm::headers_and_libraries(&config)) {
                Ok(folders) => folders,
                Err(error) => return Ok(Outcome::missing(error)),
            };
        let outcome = step(Run {
            name: "headers",
            calls: vec![plain(WITH_HEADERS, options)],
            settings: &[],
            variables: vec![
                variable("RDMA_CORE_SYS_TEST_HEADERS", &headers.to_string_lossy()),
                variable("RDMA_CORE_SYS_TEST_LIBRARIES", &libraries.to_string_lossy()),
            ],
            deadline: options.deadline,
        })?;
        all.count = all.count.plus(outcome.count);
        all.failure = all.failure.or(outcome
            .failure
            .map(|how| format!("{how} (those of {guest})")));
    }
    Ok(all)
}

/// The tests on the fake device: the crates built so that no C library is linked.
pub(super) fn fake(options: &Options) -> Result<Outcome> {
    step(Run {
        name: "fake",
        calls: vec![plain(ON_FAKE, options)],
        settings: &[],
        variables: fake_variables("fake", ""),
        deadline: options.deadline,
    })
}

/// Whether the costs are to be counted: they have the word in their names.
pub(super) fn counts_instructions(options: &Options) -> bool {
    let filter = options.filter.as_deref();
    filter.is_none_or(|filter| filter.contains("instructions"))
}

/// What posting and polling on the fake device cost, in instructions, as those who use it build it.
pub(super) fn instructions(options: &Options) -> Result<Outcome> {
    let what = "--package verbs --package rpma --bench instructions";
    let mut variables = fake_variables("fake", "");
    // What it needs was installed in the beginning.
    variables.push(variable("RPMA_REQUIRE_ALL", "1"));
    step(Run {
        name: "instructions",
        calls: vec![(Command::new(cargo()), words("bench", what, options, ""))],
        settings: &[],
        variables,
        deadline: options.deadline,
    })
}

/// The same with every access to memory checked by AddressSanitizer, and what is left behind by its leak checker.
pub(super) fn asan(options: &Options) -> Result<Outcome> {
    sanitized("asan", "address", options)
}

/// The same with the order of every access from several threads checked by ThreadSanitizer.
pub(super) fn tsan(options: &Options) -> Result<Outcome> {
    sanitized("tsan", "thread", options)
}

/// The tests on the fake device, built with a sanitizer of the compiler.
fn sanitized(name: &str, sanitizer: &str, options: &Options) -> Result<Outcome> {
    // With --target, or build scripts and procedural macros would be instrumented as well.
    let how = format!(
        "test -Zbuild-std --target {}",
        host_triple(&mut Command::new(cargo()))?
    );
    let variables = fake_variables(name, &format!("-Zsanitizer={sanitizer}"));
    nightly(name, options, &how, &[ON_FAKE], NO_LEAKS, variables)
}

/// The same under Miri, which finds what is undefined behaviour to the language.
pub(super) fn miri(options: &Options) -> Result<Outcome> {
    let mut variables = fake_variables("miri", "");
    variables.push(variable(
        "MIRIFLAGS",
        // No isolation, for the clock; permissive provenance, because addresses go through 64-bit integers as in C.
        "-Zmiri-disable-isolation -Zmiri-permissive-provenance",
    ));
    let mut parts = ON_FAKE_HALVES.to_vec();
    let mut for_tests = NO_LEAKS.to_owned();
    if options.full {
        parts.push(BIG_ENDIAN);
    } else if options.filter.is_none() {
        for_tests = format!("{NO_LEAKS} {SLOW_UNDER_MIRI}");
    }
    nightly("miri", options, "miri test", &parts, &for_tests, variables)
}

/// A run with a nightly toolchain, where there is one.
fn nightly(
    name: &str,
    options: &Options,
    how: &str,
    parts: &[&str],
    for_tests: &str,
    variables: Vec<(String, String)>,
) -> Result<Outcome> {
    let toolchain: Nightly = match nightly::ensure() {
        Ok(toolchain) => toolchain,
        Err(error) => return Ok(Outcome::missing(error)),
    };
    step(Run {
        name,
        calls: parts
            .iter()
            .map(|what| (toolchain.cargo(), words(how, what, options, for_tests)))
            .collect(),
        settings: &[],
        variables: [variables, full(options)].concat(),
        deadline: options.deadline,
    })
}

/// The tests on the real device.
pub(super) fn device(options: &Options, place: &Place) -> Result<Outcome> {
    let through = runner_setting(&place.runner(Rights::Root)?)?;
    on_device(
        "device",
        options,
        "--package tests",
        &through,
        &place.address(),
        NATIVE_ELSEWHERE,
    )
}

/// Whether the lengths of paths are to be compared: they have the words in their names.
pub(super) fn compares_paths(options: &Options) -> bool {
    let filter = options.filter.as_deref();
    options.full && filter.is_none_or(|filter| filter.contains("path length"))
}

/// What the ways through the layers cost on the real device, beside a C program's calls: in a fresh VM of its own, with a
/// clock that counts instructions.
pub(super) fn paths(options: &Options) -> Result<Outcome> {
    let name = "paths";
    let config = vm::Config::from_environment(Some(name.to_owned()), None)?.counting_instructions();
    if let Err(error) = vm::fetch(&config) {
        return Ok(Outcome::missing(error));
    }
    // One that is left over has seen other work.
    vm::stop(&config)?;
    if let Err(error) = vm::start(&config) {
        return Ok(Outcome::failed(format!("{name}: {error}")));
    }
    let what = "--package tests --bench path_length";
    let outcome = step(Run {
        name,
        calls: vec![(Command::new(cargo()), words("bench", what, options, ""))],
        settings: &through_vm(&config, &["--icount"])?,
        variables: vec![
            variable("RPMA_REQUIRE_ALL", "1"),
            variable("RPMA_TEST_ADDRESS", vm::DEVICE_ADDRESS),
        ],
        deadline: options.deadline,
    });
    // Its clock never stands still, and keeps a processor busy.
    vm::stop(&config)?;
    outcome
}

pub(super) fn on_device(
    name: &str,
    options: &Options,
    what: &str,
    through: &[String],
    address: &str,
    native: (&str, &str),
) -> Result<Outcome> {
    let variables = vec![
        variable("RPMA_REQUIRE_ALL", "1"),
        variable("RPMA_TEST_ADDRESS", address),
        variable(native.0, native.1),
    ];
    step(Run {
        name,
        calls: vec![plain(what, options)],
        settings: through,
        variables: [variables, full(options)].concat(),
        deadline: options.deadline,
    })
}

fn full(options: &Options) -> Vec<(String, String)> {
    let full = options.full.then(|| variable("RPMA_TEST_FULL", "1"));
    full.into_iter().collect()
}

pub(super) fn variable(name: &str, value: &str) -> (String, String) {
    (name.to_owned(), value.to_owned())
}

/// A run of tests with this cargo.
pub(super) fn plain(what: &str, options: &Options) -> (Command, Vec<String>) {
    (Command::new(cargo()), words("test", what, options, ""))
}

/// The words of a run of tests: `how` to run `what`, and words for the tests themselves.
pub(super) fn words(how: &str, what: &str, options: &Options, for_tests: &str) -> Vec<String> {
    let mut words: Vec<&str> = how.split(' ').collect();
    words.push("--no-fail-fast");
    words.extend(what.split(' '));
    words.extend(options.filter.as_deref());
    if !for_tests.is_empty() {
        words.push("--");
        words.extend(for_tests.split(' '));
    }
    words.into_iter().map(str::to_owned).collect()
}

/// What is built for the fake device: in a target folder of its own, or each run would build all anew.
pub(super) fn fake_variables(folder: &str, more_flags: &str) -> Vec<(String, String)> {
    let flags = std::env::var("RUSTFLAGS").unwrap_or_default();
    let flags = format!("{flags} --cfg rdma_fake {more_flags}");
    let folder = workspace::target_dir().join(folder);
    vec![
        variable("RUSTFLAGS", flags.trim()),
        variable("CARGO_TARGET_DIR", &folder.to_string_lossy()),
    ]
}

/// The triple of the machine that this cargo builds for.
pub(super) fn host_triple(cargo: &mut Command) -> Result<String> {
    let version = process::capture(cargo.arg("-vV"))?;
    version
        .lines()
        .find_map(|line| line.strip_prefix("host: "))
        .map(str::to_owned)
        .ok_or_else(|| Error::new("`cargo -vV` does not name its host"))
}

/// Cargo's words to run what it builds in the VM of `config`, which `more` options of `cargo xtask vm` name too.
///
/// # Errors
/// When the program that leads there cannot be copied, or its path cannot be said to cargo.
pub(super) fn through_vm(config: &vm::Config, more: &[&str]) -> Result<Vec<String>> {
    let program = vm::copy_of_this_program(&config.folder.join("runner"))?;
    let words = [&["vm"], more, &["--name", &config.name, "exec", "--"]].concat();
    let words: Vec<OsString> = std::iter::once(program.into_os_string())
        .chain(words.iter().map(OsString::from))
        .collect();
    runner_setting(&words)
}

/// Cargo's words to run what it builds for this machine through `runner`.
fn runner_setting(runner: &[OsString]) -> Result<Vec<String>> {
    let words = runner
        .iter()
        .map(|word| {
            word.to_str().ok_or_else(|| {
                Error::new(format!(
                    "cargo cannot run tests through '{}', because its path is not UTF-8; set RDMA_RUST_VM_CACHE and \
                     CARGO_TARGET_DIR to folders whose path is",
                    word.display()
                ))
            })
        })
        .collect::<Result<Vec<_>>>()?;
    let host = host_triple(&mut Command::new(cargo()))?;
    Ok(vec!["--config".to_owned(), setting_for(&host, &words)])
}

/// A list, not the variable `CARGO_TARGET_*_RUNNER`: that one is split at blanks, and a path may have some.
fn setting_for(triple: &str, words: &[&str]) -> String {
    // A JSON text is a TOML text, and a list of them is one too.
    format!("target.{triple}.runner={}", serde_json::json!(words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargo_gets_the_runner_word_by_word_with_blanks_in_its_path() {
        assert_eq!(
            setting_for(
                "x86_64-unknown-linux-gnu",
                &["/a \"path\" with blanks/runner", "vm", "--"]
            ),
            r#"target.x86_64-unknown-linux-gnu.runner=["/a \"path\" with blanks/runner","vm","--"]"#
        );
    }

    #[test]
    fn what_is_for_the_tests_stands_behind_the_filter() {
        let options = |filter: Option<&str>| Options {
            full: false,
            filter: filter.map(str::to_owned),
            deadline: std::time::Duration::ZERO,
        };
        assert_eq!(
            words("miri test", "--lib", &options(Some("name")), NO_LEAKS).join(" "),
            "miri test --no-fail-fast --lib name -- --skip leaks_"
        );
        assert_eq!(
            words("test", "--lib", &options(None), "").join(" "),
            "test --no-fail-fast --lib"
        );
    }

    #[test]
    fn cargo_runs_a_program_through_the_runner_that_is_set() {
        let scratch = std::env::temp_dir().join(format!("xtask runner {}", std::process::id()));
        std::fs::create_dir_all(scratch.join("src")).unwrap();
        let manifest = "[package]\nname = \"a\"\nversion = \"0.0.0\"\n[workspace]\n";
        std::fs::write(scratch.join("Cargo.toml"), manifest).unwrap();
        std::fs::write(scratch.join("src/main.rs"), "fn main() {}").unwrap();
        let runner = scratch.join("a runner");
        std::os::unix::fs::symlink("/bin/echo", &runner).unwrap();
        let words = [runner.into_os_string(), "two words".into()];
        let said = process::capture(
            Command::new(cargo())
                .args(["run", "--quiet", "--offline"])
                .args(runner_setting(&words).unwrap())
                .env("CARGO_TARGET_DIR", scratch.join("target"))
                .current_dir(&scratch),
        );
        let _ = std::fs::remove_dir_all(&scratch);
        assert!(said.unwrap().starts_with("two words "));
    }
}
