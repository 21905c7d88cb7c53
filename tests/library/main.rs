//! The libraries on a real device: each test is named after the rule it holds.

mod transfer;

use std::process::ExitCode;

use harness::Test;

fn main() -> ExitCode {
    let mut tests: Vec<Test> = Vec::new();
    tests.extend(transfer::tests());
    harness::run(tests, &[])
}
