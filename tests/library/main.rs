//! The libraries on a real device: each test is named after the rule it holds.

mod cm;
mod preloaded;
mod raw;
mod rpma;
mod verbs;

use std::process::ExitCode;

use harness::{Role, Test};

fn main() -> ExitCode {
    let tests: Vec<Test> = [
        verbs::tests(),
        cm::tests(),
        rpma::tests(),
        preloaded::tests(),
    ]
    .into_iter()
    .flatten()
    .collect();
    let roles: Vec<Role> = [verbs::roles(), cm::roles()].concat();
    harness::run(tests, &[roles, rpma::roles(), preloaded::roles()].concat())
}
