//! The programs on a real device, as a user runs them: each test is named after the rule it holds.

mod cmtime;
mod damage;
mod examples;
mod gone;
mod interrupt;
mod json;
mod persistent;
mod pingpong;
mod program;
mod refusals;
mod release;
mod rounds;
mod rpma_examples;
mod user;
mod waiting;

use std::process::ExitCode;

use harness::Test;

fn main() -> ExitCode {
    let mut tests: Vec<Test> = Vec::new();
    tests.extend(rounds::tests());
    tests.extend(damage::tests());
    tests.extend(gone::tests());
    tests.extend(waiting::tests());
    tests.extend(persistent::tests());
    tests.extend(refusals::tests());
    tests.extend(user::tests());
    tests.extend(interrupt::tests());
    tests.extend(json::tests());
    tests.extend(release::tests());
    tests.extend(examples::tests());
    tests.extend(pingpong::tests());
    tests.extend(cmtime::tests());
    tests.extend(rpma_examples::tests());
    let code = harness::run(tests, &[]);
    program::remove_copies();
    code
}
