//! What a post and a poll cost, in instructions, compared with a plain loop over the C interface.
//!
//! `RUSTFLAGS='--cfg rdma_fake' cargo bench -p verbs --bench instructions --target-dir target/fake`
//!
//! Every operation runs twice under callgrind, with few and with many rounds; the difference divided by the difference of
//! the rounds is what one round costs. It is the same number whatever else the machine does. The same run counts the same
//! operation written with the inline functions of `rdma-core-sys`, on a request that is zeroed first, as C programs do. What
//! a provider does stands in both numbers: here it takes the requests and gives completions, and no more.

use std::process::ExitCode;

// The rules for the code that is counted know the instructions of this processor only.
#[cfg(all(rdma_fake, target_arch = "x86_64"))]
mod counted;
// Shared with the benchmarks of the crates above.
#[cfg(all(rdma_fake, target_arch = "x86_64"))]
mod harness;

#[cfg(all(rdma_fake, target_arch = "x86_64"))]
fn main() -> ExitCode {
    counted::main()
}

#[cfg(not(all(rdma_fake, target_arch = "x86_64")))]
fn main() -> ExitCode {
    eprintln!(
        "instructions: needs the fake device on x86-64; run RUSTFLAGS='--cfg rdma_fake' cargo bench -p verbs --bench \
         instructions --target-dir target/fake"
    );
    ExitCode::from(2)
}
