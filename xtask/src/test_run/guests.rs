//! The steps `guest`, `guest-full` and `newest`: tests in guests with newer kernels and libraries than this machine's.

use std::process::Command;

use super::steps::{GUEST, on_device, through_vm, words};
use super::{Options, Outcome};
use crate::error::Result;
use crate::ping::cargo;
use crate::process;
use crate::vm;
use crate::workspace;

/// The guest with the newest kernel: it grants more than others, and its work queues run at other times.
const NEWEST: &str = "debian13-backports";

const TESTS: &str = "--package tests --test library --test tools";

/// What the test programs are told: only the tests of what newer kernels and libraries have, or all.
const NATIVE_ONLY: (&str, &str) = ("RPMA_TEST_NATIVE", "only");
const NATIVE_TOO: (&str, &str) = ("RPMA_TEST_NATIVE", "");

/// The steps in guests that this run has, by name.
///
/// # Errors
/// When the tests cannot be listed, or the set-up of a step fails.
pub(super) fn guests(options: &Options) -> Result<Vec<(&'static str, Outcome)>> {
    if options.full {
        // As often as in a short run: what the kernel does otherwise shows at once.
        let short = Options {
            full: false,
            filter: options.filter.clone(),
            deadline: options.deadline,
        };
        return Ok(vec![
            (
                "guest-full",
                within("guest-full", GUEST, options, NATIVE_TOO)?,
            ),
            ("newest", within("newest", NEWEST, &short, NATIVE_TOO)?),
        ]);
    }
    if !has_native(options)? {
        return Ok(Vec::new());
    }
    let outcome = within("guest", GUEST, options, NATIVE_ONLY)?;
    Ok(vec![("guest", outcome)])
}

/// Whether there are tests of what only newer kernels and libraries have: with a filter that is not known.
fn has_native(options: &Options) -> Result<bool> {
    if options.filter.is_none() {
        return Ok(true);
    }
    // Listing needs no device.
    let listed = process::capture_within(
        Command::new(cargo())
            .args(words("test", TESTS, options, "--list"))
            .env("CARGO_TARGET_DIR", workspace::target_dir())
            .env(NATIVE_ONLY.0, NATIVE_ONLY.1)
            .current_dir(workspace::root()),
        options.deadline,
    )?;
    Ok(listed.lines().any(|line| line.ends_with(": test")))
}

/// The tests in a guest. They were built for the step `device`.
fn within(name: &str, guest: &str, options: &Options, native: (&str, &str)) -> Result<Outcome> {
    let config = vm::Config::from_environment(None, Some(guest.to_owned()))?;
    if let Err(error) = vm::fetch(&config) {
        return Ok(Outcome::missing(error));
    }
    if let Err(error) = vm::start(&config) {
        return Ok(Outcome::failed(format!("{name}: {error}")));
    }
    let outcome = on_device(
        name,
        options,
        TESTS,
        &through_vm(&config, &["--guest", guest])?,
        vm::DEVICE_ADDRESS,
        native,
    );
    if guest == NEWEST {
        vm::stop(&config)?;
    }
    outcome
}
