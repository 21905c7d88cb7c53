//! Faults on a real wire, of devices and of processes: each test says which event, error or status comes, and by when.
//!
//! What opens the devices of the wire is a process of its own: librdmacm keeps them open to its end, and up to Linux 6.12 they
//! cannot be removed before.

mod hosts;
mod peers;
mod removal;
mod unreachable;
mod wire;

use std::time::{Duration, Instant};

use harness::{
    Child, End, Failed, Link, Outcome, Role, SECOND, Test, WAIT, ensure, ensure_eq, phase,
};
use rpma::cm::verbs::{CompletionQueue, WcStatus};
use rpma::cm::{ConnParams, ConnectOptions, Connection, Deadline, Error, ListenOptions, Listener};

use crate::raw::{Queues, RawPair, poll, try_poll};

pub(super) fn roles() -> Vec<Role> {
    [
        wire::ROLES,
        peers::ROLES,
        hosts::ROLES,
        removal::ROLES,
        unreachable::ROLES,
    ]
    .concat()
}

pub(super) fn tests() -> Vec<Test> {
    [
        wire::tests(),
        peers::tests(),
        hosts::tests(),
        removal::tests(),
        unreachable::tests(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Makes a wire, and runs the role on it.
fn on_a_wire(role: &str) -> Outcome {
    Link::run(role, "")
}

/// Runs the role in a process of its own to its end.
fn run(role: &str) -> Outcome {
    Child::role(role, "", &[])?.finish(5 * WAIT)?.success()?;
    Ok(())
}

/// Connects from end A, to end B.
fn from_a() -> ConnectOptions {
    let mut options = ConnectOptions::default();
    options.source = Some(End::A.addr(0));
    options
}

fn listener_at_b() -> Result<Listener, Failed> {
    Ok(Listener::bind(End::B.addr(0), &ListenOptions::default())?)
}

/// A connection from end A (the client) to end B, which has moved data.
fn pair(params: &ConnParams) -> Result<RawPair, Failed> {
    let pair = RawPair::at(&listener_at_b()?, &from_a(), params)?;
    ensure_eq!(pair.client.qp().context().name(), End::A.device(), "device");
    ensure_eq!(pair.server.qp().context().name(), End::B.device(), "device");
    message(&pair, 1)?;
    Ok(pair)
}

/// Gives a dead link up after 4 · 67 ms at the earliest; rxe's clock may take four times as long.
fn impatient() -> ConnParams {
    let mut params = ConnParams::default();
    params.ack_timeout = 14;
    params.retry_count = 3;
    params
}

/// Never gives a link up, and sends again after 17 ms.
fn stubborn() -> ConnParams {
    let mut params = ConnParams::default();
    params.ack_timeout = 12;
    params.retry_count = 7;
    params
}

/// One message from client to server, with `number` in it.
fn message(pair: &RawPair, number: u64) -> Outcome {
    pair.server_queues.recv(pair.server.qp(), number)?;
    let bytes: Vec<u8> = (0..1024_u64)
        .map(|i| (number * 7 + i).to_le_bytes()[0])
        .collect();
    pair.client_queues.buffer.store(0, &bytes);
    pair.client_queues
        .send(pair.client.qp(), number, bytes.len())?;
    for cq in [&pair.server_queues.recv_cq, &pair.client_queues.send_cq] {
        let completion = poll(cq)?;
        ensure_eq!(completion.wr_id(), number, "order");
        ensure_eq!(completion.status(), WcStatus::SUCCESS, "message {number}");
    }
    let came = pair.server_queues.buffer.load(0, bytes.len());
    ensure!(came == bytes, "message {number} came with other bytes");
    Ok(())
}

/// Sends something that cannot arrive; the status that tells so, and after how long.
fn fate_of_a_send(end: &Connection, queues: &Queues) -> Result<(WcStatus, Duration), Failed> {
    let start = Instant::now();
    queues.send(end.qp(), 99, 8)?;
    let completion = poll(&queues.send_cq)?;
    ensure_eq!(completion.wr_id(), 99, "which request");
    Ok((completion.status(), start.elapsed()))
}

/// The next `count` completions of a queue, and what comes with them.
fn statuses(cq: &CompletionQueue, count: usize) -> Result<Vec<WcStatus>, Failed> {
    let mut found = Vec::new();
    while found.len() < count {
        found.push(poll(cq)?.status());
    }
    while let Some(completion) = try_poll(cq)? {
        found.push(completion.status());
    }
    Ok(found)
}

/// Nothing is told for so long, and the wait for it ends in time.
fn silent(end: &Connection, time: Duration) -> Outcome {
    let start = Instant::now();
    let told = end.next_event(Deadline::after(time));
    ensure!(matches!(told, Err(Error::TimedOut { .. })), "{told:?}");
    let took = start.elapsed();
    ensure!(
        (time..time + SECOND / 2).contains(&took),
        "the wait of {time:?} took {took:?}"
    );
    Ok(())
}

/// Drops the connections, and then their queues.
fn dropped_within(limit: Duration, pair: RawPair) -> Outcome {
    phase("dropping both ends");
    let start = Instant::now();
    drop((pair.client, pair.server));
    drop((pair.client_queues, pair.server_queues));
    let took = start.elapsed();
    ensure!(took < limit, "the drops took {took:?}");
    Ok(())
}
