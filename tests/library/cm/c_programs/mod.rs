//! The C programs that come with librdmacm, at the other end of a connection, a datagram or a group.

mod cmtime;
mod mckey;
mod rping;
mod ucmatose;
mod udaddy;

use std::process::Command;
use std::time::Duration;

use harness::{Child, Failed, Finished, Need, Outcome, Test, device, ensure, ensure_eq};
use rpma::cm::{EventSource, Request};

pub(crate) fn tests() -> Vec<Test> {
    [
        rping::tests(),
        ucmatose::tests(),
        udaddy::tests(),
        mckey::tests(),
        cmtime::tests(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// What a test of a program needs.
fn needs(program: &'static str) -> [Need; 3] {
    [Need::Device, Need::Tool(program), Need::Tool("stdbuf")]
}

/// What memory of a program holds that it sends without having written to it.
const FILL: u8 = 0xa5;

/// A program that prints line by line, and whose memory is filled with [`FILL`] when it gets it.
fn start(program: &str, arguments: &[&str]) -> Result<Child, Failed> {
    let mut command = Command::new("stdbuf");
    command.args(["-oL", program]).args(arguments);
    // glibc fills with the complement, but not what it keeps for each thread.
    let fill = format!("glibc.malloc.perturb={}:glibc.malloc.tcache_count=0", !FILL);
    command.env("GLIBC_TUNABLES", fill);
    Child::start(&mut command)
}

/// The address in use, as an argument.
fn address() -> String {
    device().ip.to_string()
}

/// What every one of these programs asks for: one read at a time each way, and no private data.
fn asks_for_the_usual<S: EventSource>(request: &Request<S>) -> Outcome {
    let depths = (request.responder_resources(), request.initiator_depth());
    ensure_eq!(depths, (1, 1), "the depths of a C client");
    let data = request.private_data();
    ensure!(
        data.iter().all(|&byte| byte == 0),
        "private data of a C client: {data:?}"
    );
    Ok(())
}

/// The program ended with `code`, and printed each of `lines` as a whole one.
fn ended(finished: &Finished, code: i32, lines: &[&str]) -> Outcome {
    let said = || format!("{}\n--- stderr\n{}", finished.stdout, finished.stderr);
    ensure_eq!(finished.code(), code, "the exit code; {}", said());
    for wanted in lines {
        let mut all = finished.stdout.lines().chain(finished.stderr.lines());
        ensure!(
            all.any(|line| line == *wanted),
            "no line {wanted:?} in\n{}",
            said()
        );
    }
    Ok(())
}

/// Makes sure that a program does not print a line for a while.
fn ensure_not_said(child: &Child, text: &str) -> Outcome {
    let said = child.wait_line(text, Duration::from_millis(300));
    ensure!(said.is_err(), "the program said {text:?}");
    Ok(())
}

/// Bytes that tell which message of which connection they are.
fn message(connection: usize, number: usize, len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| (31 * connection + 7 * number + at + 1).to_le_bytes()[0])
        .collect()
}
