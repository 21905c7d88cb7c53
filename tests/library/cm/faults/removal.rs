//! A device that is removed, at each stage of both sides.

use std::net::SocketAddr;
use std::thread;
use std::time::Instant;

use harness::{
    Child, End, LINK, Link, Outcome, Role, SECOND, Test, WAIT, ensure, ensure_eq, phase,
    role_argument, test,
};
use rpma::cm::verbs::{DeviceList, QueuePair};
use rpma::cm::{
    ConnParams, Connection, ConnectionEvent, ConnectionState, Deadline, Error, ListenOptions,
    Listener, RejectReason, Resolved, Resolving,
};

use super::{from_a, impatient, listener_at_b, pair, run};
use crate::cm::dropped_quickly;
use crate::raw::Queues;

pub(super) fn tests() -> Vec<Test> {
    vec![
        test(
            "a_removed_device_is_told_at_each_stage_of_the_asking_side",
            LINK,
            || at_stages(End::A, &["resolving", "resolved", "connecting", "peer"]),
        )
        .long(),
        test(
            "a_removed_device_is_told_at_each_stage_of_the_answering_side",
            LINK,
            || at_stages(End::B, &["listening", "requested", "accepted", "peer"]),
        )
        .long(),
    ]
}

pub(super) const ROLES: &[Role] = &[("device_removed", device_removed)];

/// Removes the device of `end` while a process is at the stage, which must then let it go; a new device does again.
fn at_stages(end: End, stages: &[&str]) -> Outcome {
    let _link = Link::new()?;
    for stage in stages {
        phase(*stage);
        let argument = format!("{stage} {}", end.device());
        let holder = Child::role("device_removed", &argument, &[])?;
        holder.wait_line("is there", 2 * WAIT)?;
        let remover = end.delete_device()?;
        holder
            .finish(2 * WAIT)?
            .success()
            .map_err(|failed| format!("{stage}: {}", failed.message().unwrap_or_default()))?;
        remover.finish(WAIT)?.success()?;
        for end in End::BOTH {
            let _ = end.no_netem();
        }
        end.add_device()?;
        run("connects")
            .map_err(|failed| format!("after {stage}: {}", failed.message().unwrap_or_default()))?;
    }
    Ok(())
}

fn device_removed() -> Outcome {
    let argument = role_argument();
    let (stage, device) = argument.split_once(' ').ok_or("no stage")?;
    match stage {
        "resolving" => resolving(),
        "resolved" => resolved(device),
        "connecting" => connecting(),
        "peer" => connected(device),
        "listening" => listening(device),
        "requested" => requested(device),
        "accepted" => accepted(),
        _ => Err("no such stage".into()),
    }
}

/// Says that the stage is reached.
fn reached() {
    println!("is there");
}

/// Waits until the removal has begun.
fn until_removed(device: &str) -> Outcome {
    let deadline = Deadline::after(WAIT);
    while DeviceList::new()?.by_name(device).is_ok() {
        ensure!(!deadline.has_passed(), "{device} is not removed");
        thread::sleep(SECOND / 100);
    }
    Ok(())
}

fn told(error: Option<Error>) -> Outcome {
    ensure!(
        matches!(error, Some(Error::DeviceRemoved { .. })),
        "{error:?}"
    );
    Ok(())
}

fn resolving() -> Outcome {
    // Nobody has this address, so the search goes on.
    let unused = SocketAddr::from(([198, 51, 100, 77], 7204));
    let resolving = Resolving::start(unused, &from_a(), Deadline::after(WAIT))?;
    reached();
    let start = Instant::now();
    told(resolving.wait().err())?;
    ensure!(
        start.elapsed() < 5 * SECOND,
        "told after {:?}",
        start.elapsed()
    );
    Ok(())
}

fn route(listener: &Listener) -> Result<Resolved, harness::Failed> {
    Ok(Resolving::start(listener.local_addr(), &from_a(), Deadline::after(WAIT))?.wait()?)
}

fn prepared(resolved: &Resolved) -> Result<(Queues, QueuePair), harness::Failed> {
    let (queues, qp) = Queues::new(resolved.context())?;
    resolved.init_qp(&qp)?;
    Ok((queues, qp))
}

fn resolved(device: &str) -> Outcome {
    let listener = listener_at_b()?;
    let [first, second] = [route(&listener)?, route(&listener)?];
    let (queues, qp) = prepared(&first)?;
    reached();
    until_removed(device)?;
    told(second.init_qp(&qp).err())?;
    dropped_quickly("what was resolved", second)?;
    told(first.connect(qp, &ConnParams::default(), &[]).err())?;
    dropped_quickly("queues", queues)
}

fn connecting() -> Outcome {
    let listener = listener_at_b()?;
    let resolved = route(&listener)?;
    let (queues, qp) = prepared(&resolved)?;
    End::A.netem("loss 100%")?;
    let client = resolved.connect(qp, &impatient(), &[])?;
    reached();
    let start = Instant::now();
    told(client.wait_established(Deadline::after(WAIT)).err())?;
    ensure!(
        start.elapsed() < 5 * SECOND,
        "told after {:?}",
        start.elapsed()
    );
    ensure_eq!(client.state(), ConnectionState::Closed, "state");
    dropped_quickly("the client", client)?;
    dropped_quickly("its queues", queues)
}

/// The next event but one that tells of the other end's end.
fn removal_of(end: &Connection) -> Result<(), harness::Failed> {
    let deadline = Deadline::after(WAIT);
    loop {
        match end.next_event(deadline)? {
            ConnectionEvent::DeviceRemoved => return Ok(()),
            ConnectionEvent::Disconnected => {}
            other => return Err(format!("told {other:?}").into()),
        }
    }
}

/// One end loses its device, the other its peer.
fn connected(device: &str) -> Outcome {
    let pair = pair(&impatient())?;
    reached();
    let (gone, gone_queues, left, left_queues) = if device == End::A.device() {
        (
            pair.client,
            pair.client_queues,
            pair.server,
            pair.server_queues,
        )
    } else {
        (
            pair.server,
            pair.server_queues,
            pair.client,
            pair.client_queues,
        )
    };
    removal_of(&gone)?;
    ensure_eq!(gone.state(), ConnectionState::Closed, "state");
    gone.disconnect()?;
    dropped_quickly("the end without its device", gone)?;
    dropped_quickly("its queues", gone_queues)?;
    let event = left.next_event(Deadline::after(WAIT))?;
    ensure_eq!(event, ConnectionEvent::Disconnected, "the other end");
    dropped_quickly("the other end", left)?;
    dropped_quickly("its queues", left_queues)
}

fn listening(device: &str) -> Outcome {
    let listener = listener_at_b()?;
    let wildcard = Listener::bind(([0, 0, 0, 0], 0).into(), &ListenOptions::default())?;
    reached();
    let start = Instant::now();
    told(listener.next_request(Deadline::after(WAIT)).err())?;
    ensure!(
        start.elapsed() < 5 * SECOND,
        "told after {:?}",
        start.elapsed()
    );
    dropped_quickly("the listener", listener)?;
    until_removed(device)?;
    // One that listens on every device goes on with the others.
    let error = wildcard.next_request(Deadline::after(SECOND / 5)).err();
    ensure!(matches!(error, Some(Error::TimedOut { .. })), "{error:?}");
    dropped_quickly("the wildcard listener", wildcard)
}

fn requested(device: &str) -> Outcome {
    let listener = listener_at_b()?;
    let mut clients = Vec::new();
    let mut requests = Vec::new();
    for _ in 0..3 {
        let resolved = route(&listener)?;
        let (queues, qp) = prepared(&resolved)?;
        clients.push((resolved.connect(qp, &impatient(), &[])?, queues));
        requests.push(listener.next_request(Deadline::after(WAIT))?);
    }
    let accepted = requests.pop().ok_or("no request")?;
    let (queues, qp) = Queues::new(accepted.context())?;
    accepted.init_qp(&qp)?;
    let rejected = requests.pop().ok_or("no request")?;
    let dropped = requests.pop().ok_or("no request")?;
    reached();
    until_removed(device)?;
    told(listener.next_request(Deadline::after(WAIT)).err())?;
    told(accepted.accept(qp, &impatient(), &[]).err())?;
    told(rejected.reject(b"no").err())?;
    dropped_quickly("a request", dropped)?;
    dropped_quickly("the listener", listener)?;
    dropped_quickly("the queues", queues)?;
    for (client, _) in &clients {
        println!(
            "client {:?}",
            client.wait_established(Deadline::after(WAIT))
        );
    }
    dropped_quickly("the clients", clients)
}

/// The other side's kernel has answered for the end that lost its device.
fn refused(client: &Connection) -> Outcome {
    let error = client.wait_established(Deadline::after(WAIT)).err();
    let reason = RejectReason::CONSUMER;
    ensure!(
        matches!(&error, Some(Error::Rejected { reason: told, .. }) if *told == reason),
        "{error:?}"
    );
    Ok(())
}

fn accepted() -> Outcome {
    let listener = listener_at_b()?;
    let resolved = route(&listener)?;
    let (client_queues, qp) = prepared(&resolved)?;
    let client = resolved.connect(qp, &impatient(), &[])?;
    let request = listener.next_request(Deadline::after(WAIT))?;
    let (queues, qp) = Queues::new(request.context())?;
    request.init_qp(&qp)?;
    let server = request.accept(qp, &impatient(), &[])?;
    drop(listener);
    // The client does not take the answer, so that the server waits.
    reached();
    let start = Instant::now();
    told(server.wait_established(Deadline::after(WAIT)).err())?;
    ensure!(
        start.elapsed() < 5 * SECOND,
        "told after {:?}",
        start.elapsed()
    );
    ensure_eq!(server.state(), ConnectionState::Closed, "state");
    dropped_quickly("the server", server)?;
    dropped_quickly("its queues", queues)?;
    refused(&client)?;
    dropped_quickly("the client", client)?;
    dropped_quickly("its queues", client_queues)
}
