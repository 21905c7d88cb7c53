//! RDMA ports at which somebody listens, and at which nobody does.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::Failed;
use rpma::cm::{ListenOptions, Listener};

use crate::Outcome;
use crate::child::Child;
use crate::device::device;
use crate::pair::WAIT;

/// A port for connections at which nobody listens at this moment.
///
/// # Errors
/// The failed call.
pub fn free_rdma_port() -> Result<u16, Failed> {
    let listener = Listener::bind(device().addr(0), &ListenOptions::default())?;
    Ok(listener.local_addr().port())
}

/// Waits until somebody listens at a port of `space` (TCP or UDP), without asking there: many programs take as many
/// clients as they were told, and count every one. It needs the program `rdma`.
///
/// # Errors
/// When nobody does in time: who listens elsewhere.
pub fn wait_for_rdma_listener(space: &str, port: u16) -> Outcome {
    let end = Instant::now() + WAIT;
    let space = format!("ps {space} ");
    // After the address, which may be a wildcard.
    let port = format!(":{port} dst-addr");
    loop {
        let mut command = Command::new("rdma");
        command.args(["resource", "show", "cm_id"]);
        let shown = Child::start(&mut command)?.finish(WAIT)?.success()?.stdout;
        let listens = |line: &str| {
            line.contains("state LISTEN") && line.contains(&space) && line.contains(&port)
        };
        if shown.lines().any(listens) {
            return Ok(());
        }
        if Instant::now() >= end {
            return Err(format!("nobody listens: no {space}and {port} in\n{shown}").into());
        }
        thread::sleep(Duration::from_millis(20));
    }
}
