//! What is counted of this crate.

mod checks;
// What the tests on the fake device share, of which only some is needed here.
#[allow(dead_code)]
#[path = "../../../tests/on_fake/common.rs"]
mod common;
mod loops;
mod rig;

use std::process::ExitCode;

use self::rig::Rig;
use crate::harness::{self, Suite};

const SUITE: Suite<Rig> = Suite {
    name: "verbs",
    operations: loops::OPERATIONS,
    make: || Rig::new().map_err(|error| error.to_string()),
    checks: &[
        (
            "instructions: each check refuses before the provider sees anything",
            checks::each_refuses,
        ),
        (
            "instructions: nothing is posted or polled in a forked child",
            checks::a_forked_child_is_refused,
        ),
    ],
};

pub(crate) fn main() -> ExitCode {
    harness::main(&SUITE)
}
