//! What an operation and a poll cost, in instructions, compared with a plain loop over the C interface.
//!
//! `RUSTFLAGS='--cfg rdma_fake' cargo bench -p rpma --bench instructions --target-dir target/fake`
//!
//! How it counts is told by the benchmark of the same name in `verbs`, of which this one takes all but the operations.

use std::process::ExitCode;

// The rules for the code that is counted know the instructions of this processor only.
#[cfg(all(rdma_fake, target_arch = "x86_64"))]
mod checks;
#[cfg(all(rdma_fake, target_arch = "x86_64"))]
// Of the plain loops and of the provider only some is needed here.
#[allow(dead_code)]
#[path = "../../../verbs/benches/instructions/harness/mod.rs"]
mod harness;
#[cfg(all(rdma_fake, target_arch = "x86_64"))]
mod loops;
#[cfg(all(rdma_fake, target_arch = "x86_64"))]
mod rig;

#[cfg(all(rdma_fake, target_arch = "x86_64"))]
fn main() -> ExitCode {
    const SUITE: harness::Suite<rig::Rig> = harness::Suite {
        name: "rpma",
        operations: loops::OPERATIONS,
        make: || rig::Rig::new().map_err(|error| error.to_string()),
        checks: &[(
            "instructions: each check of rpma refuses before the provider sees anything",
            checks::each_refuses,
        )],
    };
    harness::main(&SUITE)
}

#[cfg(not(all(rdma_fake, target_arch = "x86_64")))]
fn main() -> ExitCode {
    eprintln!(
        "instructions: needs the fake device on x86-64; run RUSTFLAGS='--cfg rdma_fake' cargo bench -p rpma --bench \
         instructions --target-dir target/fake"
    );
    ExitCode::from(2)
}
