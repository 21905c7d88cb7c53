//! `cargo xtask`: brings a device or a test VM up, runs the tests and the ping, regenerates the bindings.

use std::process::ExitCode;

use clap::Parser;

mod bindings;
#[cfg(test)]
mod ci_files;
mod cli;
mod device;
mod error;
mod nightly;
mod packages;
mod ping;
mod process;
mod report;
mod signals;
mod test_run;
mod vm;
mod workspace;

fn main() -> ExitCode {
    match cli::Cli::parse().run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}
