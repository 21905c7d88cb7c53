//! How long the way through our layers, librdmacm and the kernel is, compared with that of a C program's calls.
//!
//! `cargo xtask bench` runs it in a guest with one processor whose clock counts instructions: there a nanosecond is an
//! instruction, and each number is the same in every run. Both ends of each connection are in this process. What is
//! compared runs in turns, and of each step the middle is taken.

mod measure;
mod setup;

use std::fs;
use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};

/// A limit that a measurement is held to.
type Check = (&'static str, fn() -> Result<(), Failed>);

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // Cargo says what this is, but there are tests in it only.
    arguments.bench = false;
    arguments.test_threads = Some(1);
    if !arguments.list && !clock_counts_instructions() {
        eprintln!(
            "path_length: the clock of this machine does not count instructions; run `cargo xtask bench`"
        );
        return ExitCode::from(2);
    }
    let checks: Vec<Check> = setup::CHECKS.to_vec();
    let trials = checks
        .into_iter()
        .map(|(name, body)| Trial::test(name, body))
        .collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Whether this is the guest of `cargo xtask bench`: one processor, and the rate of a clock that counts instructions.
fn clock_counts_instructions() -> bool {
    let line = fs::read_to_string("/proc/cmdline").unwrap_or_default();
    let mut words = line.split_whitespace();
    words.any(|word| word == "tsc_early_khz=1000000")
        && std::thread::available_parallelism().is_ok_and(|count| count.get() == 1)
}
