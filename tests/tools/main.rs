//! The programs on a real device, as a user runs them.

use std::process::{Command, ExitCode};

use harness::{Child, Need, Outcome, WAIT, ensure, test};

fn main() -> ExitCode {
    let tests = vec![test(
        "ping_over_loopback_verifies_its_rounds",
        &[Need::Device],
        ping_over_loopback_verifies_its_rounds,
    )];
    harness::run(tests, &[])
}

/// A command that runs `rpma-ping`.
fn rpma_ping() -> Command {
    Command::new(env!("CARGO_BIN_EXE_rpma-ping-under-test"))
}

fn ping_over_loopback_verifies_its_rounds() -> Outcome {
    let ip = harness::device().ip.to_string();
    let ping = Child::start(rpma_ping().args(["--loopback", &ip, "-c", "3", "-i", "0"]))?;
    let finished = ping.finish(WAIT)?.success()?;
    ensure!(
        finished
            .stdout
            .contains("3 sent, 3 received, 0 lost, 0 wrong"),
        "no summary of three good rounds in:\n{}",
        finished.stdout
    );
    Ok(())
}
