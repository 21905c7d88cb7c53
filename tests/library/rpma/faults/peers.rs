//! The peer is killed, or frozen.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use harness::{
    Child, Failed, Need, Outcome, Role, SECOND, Test, WAIT, device, ensure, ensure_eq, listen,
    phase, role_argument, test,
};
use rpma::{
    Connection, ConnectionConfig, ConnectionEvent, ConnectionRequest, Device, Endpoint, ErrorKind,
    Peer, PrivateData, RemoteRegion, Status,
};

use super::traffic::{self, Active, Operation, Passive};
use super::{LIMIT, SOON, dropped_within};

pub(super) fn tests() -> Vec<Test> {
    vec![
        test(
            "each_operation_whose_peer_is_killed_ends_with_the_cause",
            &[Need::Device],
            peer_killed,
        )
        .long(),
        test(
            "a_frozen_peer_serves_each_operation_that_does_not_need_it_and_holds_nobody_up",
            &[Need::Device],
            peer_frozen,
        )
        .long(),
        test(
            "a_peer_that_is_frozen_or_killed_before_the_connection_stands_is_noticed",
            &[Need::Device],
            handshake,
        )
        .long(),
    ]
}

pub(super) const ROLES: &[Role] = &[
    ("passive_traffic", passive_traffic),
    ("asks", asks),
    ("answers", answers),
];

/// Settings under which who sends to this side waits so long for a receive, once more: 164 ms.
fn slow_to_receive() -> Result<ConnectionConfig, rpma::Error> {
    let mut config = ConnectionConfig::default();
    config.set_min_rnr_timer(28)?;
    Ok(config)
}

/// A connection for each operation, of which this side has the memory, until it is ended.
fn passive_traffic() -> Outcome {
    let to: SocketAddr = role_argument().parse()?;
    let peer = Peer::new(&Device::local(device().ip)?)?;
    let mut all = Vec::new();
    for operation in Operation::ALL {
        let memory = traffic::memory(&peer)?;
        let request = ConnectionRequest::new(&peer, to, &slow_to_receive()?)?;
        let connection = request.connect(PrivateData::new(&memory.descriptor())?)?;
        connection.wait_established(WAIT)?;
        all.push(Passive::new(operation, connection, memory));
    }
    loop {
        all.iter_mut().try_for_each(Passive::step)?;
    }
}

/// Such a process, and this side of all of its connections, under way.
fn under_way(config: &ConnectionConfig) -> Result<(Child, Vec<Active>), Failed> {
    let (_peer, endpoint) = listen()?;
    let to = endpoint.local_addr().to_string();
    let child = Child::role("passive_traffic", &to, &[])?;
    let mut all = Vec::new();
    for operation in Operation::ALL {
        let request = endpoint.next_connection_request(config, WAIT)?;
        let theirs = RemoteRegion::from_descriptor(request.private_data())?;
        let connection = request.connect(PrivateData::none())?;
        connection.wait_established(WAIT)?;
        all.push(Active::new(operation, connection, theirs)?);
    }
    until(&mut all, |all| all.iter().all(|active| active.done() >= 2))?;
    Ok((child, all))
}

/// Goes on until it is so.
fn until(all: &mut [Active], is_so: impl Fn(&[Active]) -> bool) -> Outcome {
    let start = Instant::now();
    while !is_so(all) {
        ensure!(start.elapsed() < LIMIT, "not in time: {all:?}");
        all.iter_mut().try_for_each(Active::step)?;
    }
    Ok(())
}

fn peer_killed() -> Outcome {
    let (child, mut all) = under_way(&ConnectionConfig::default())?;
    let killed = Instant::now();
    child.signal(libc::SIGKILL)?;
    drop(child);
    // Of these only the completions are looked at, of the others first the events.
    phase("waiting for completions");
    let by_completion = |active: &Active| {
        !matches!(
            active.operation,
            Operation::Recv | Operation::Write | Operation::Send
        )
    };
    until(&mut all, |all| {
        all.iter()
            .all(|active| !by_completion(active) || active.fate.is_some())
    })?;
    println!(
        "without looking at events, all ended after {:?}",
        killed.elapsed()
    );
    for active in &mut all {
        let operation = active.operation;
        phase(format!("{operation:?}: waiting for the event"));
        let event = active.connection.next_event(WAIT)?;
        ensure_eq!(event, ConnectionEvent::Closed, "{operation:?}");
        active.take()?;
        let error = active
            .fate
            .ok_or_else(|| format!("{operation:?} is left open"))?;
        // A device that is asked by a queue pair that is gone says nothing.
        let causes = [Status::RETRY_EXC_ERR, Status::WR_FLUSH_ERR];
        ensure!(causes.contains(&error.status), "{operation:?}: {error}");
        ensure!(
            !by_completion(active) || error.status == Status::RETRY_EXC_ERR,
            "{operation:?}: {error}"
        );
        active.is_over()?;
    }
    ensure!(killed.elapsed() < LIMIT, "took {:?}", killed.elapsed());
    dropped_within(SOON, "everything", all)
}

fn peer_frozen() -> Outcome {
    // A peer without a receive is given up after a second at the earliest; a default would wait for ever.
    let mut config = ConnectionConfig::default();
    config.set_rnr_retry(6)?;
    let (child, mut all) = under_way(&config)?;
    child.signal(libc::SIGSTOP)?;
    let before: Vec<u64> = all.iter().map(Active::done).collect();
    phase("operations with a frozen peer");
    let needs_peer = |operation| matches!(operation, Operation::Send | Operation::WriteWithImm);
    until(&mut all, |all| {
        all.iter()
            .zip(&before)
            .all(|(active, before)| match active.operation {
                Operation::Recv => true,
                operation if needs_peer(operation) => active.fate.is_some(),
                _ => active.done() >= before + 3,
            })
    })?;
    for active in &mut all {
        let operation = active.operation;
        if needs_peer(operation) {
            let error = active.fate.ok_or("no fate")?;
            ensure_eq!(
                error.status,
                Status::RNR_RETRY_EXC_ERR,
                "{operation:?}: {error}"
            );
            ensure!(error.to_string().contains("posts no receive"), "{error}");
        } else {
            ensure!(active.fate.is_none(), "{active:?}");
        }
        let told = active.connection.next_event(Duration::from_millis(20));
        let kind = told.as_ref().err().map(rpma::Error::kind);
        ensure_eq!(kind, Some(ErrorKind::TimedOut), "{operation:?}: {told:?}");
        let start = Instant::now();
        active.connection.disconnect()?;
        ensure!(start.elapsed() < SECOND, "took {:?}", start.elapsed());
    }
    dropped_within(SOON, "everything", all)
}

/// Asks for a connection, and does not look at the answer.
fn asks() -> Outcome {
    let to: SocketAddr = role_argument().parse()?;
    let peer = Peer::new(&Device::local(device().ip)?)?;
    let request = ConnectionRequest::new(&peer, to, &ConnectionConfig::default())?;
    let _connection = request.connect(PrivateData::none())?;
    println!("has asked");
    std::thread::sleep(10 * WAIT);
    Ok(())
}

/// Accepts connections, or, with the argument `late`, takes a request and does nothing more.
fn answers() -> Outcome {
    let (_peer, endpoint) = listen()?;
    println!("listens at {}", endpoint.local_addr().port());
    let mut all = Vec::new();
    loop {
        let config = ConnectionConfig::default();
        match endpoint.next_connection_request(&config, 6 * WAIT) {
            Ok(request) if role_argument() == "late" => {
                println!("is asked");
                std::thread::sleep(10 * WAIT);
                drop(request);
            }
            Ok(request) => all.push(request.connect(PrivateData::none())?),
            // That of somebody who has given up.
            Err(error) => println!("fails: {error}"),
        }
    }
}

/// A listening process, and its port.
fn listening(how: &str) -> Result<(Child, u16), Failed> {
    let child = Child::role("answers", how, &[])?;
    let line = child.wait_line("listens at ", WAIT)?;
    let (_, port) = line.rsplit_once(' ').ok_or("no port")?;
    Ok((child, port.parse()?))
}

fn ask(port: u16) -> Result<Connection, Failed> {
    let peer = Peer::new(&Device::local(device().ip)?)?;
    let config = ConnectionConfig::default();
    let request = ConnectionRequest::new(&peer, device().addr(port), &config)?;
    Ok(request.connect(PrivateData::none())?)
}

fn handshake() -> Outcome {
    phase("a frozen listener");
    let (child, port) = listening("")?;
    child.signal(libc::SIGSTOP)?;
    let client = ask(port)?;
    fails(&client, SECOND, ErrorKind::TimedOut, SECOND * 3 / 2)?;
    dropped_within(SOON, "the client", client)?;
    child.signal(libc::SIGCONT)?;
    let client = ask(port)?;
    client.wait_established(WAIT)?;
    drop((client, child));

    phase("a listener that is killed before it answers");
    let (child, port) = listening("late")?;
    let client = ask(port)?;
    child.wait_line("is asked", WAIT)?;
    child.signal(libc::SIGKILL)?;
    fails(&client, WAIT, ErrorKind::Rejected, SOON)?;
    dropped_within(SOON, "the client", client)?;
    drop(child);
    fails(&ask(port)?, WAIT, ErrorKind::NoListener, SOON)?;

    phase("clients that are killed before they are answered, and afterwards");
    let (_peer, endpoint) = listen()?;
    for answered_first in [false, true] {
        client_killed(&endpoint, answered_first)?;
    }
    let (child, request) = asked(&endpoint)?;
    let server = request.connect(PrivateData::none())?;
    dropped_within(SOON, "a server whose client does not answer", server)?;
    drop(child);
    Ok(())
}

fn asked(endpoint: &Endpoint) -> Result<(Child, ConnectionRequest), Failed> {
    let child = Child::role("asks", &endpoint.local_addr().to_string(), &[])?;
    let request = endpoint.next_connection_request(&ConnectionConfig::default(), WAIT)?;
    child.wait_line("has asked", WAIT)?;
    Ok((child, request))
}

fn client_killed(endpoint: &Endpoint, answered_first: bool) -> Outcome {
    let (child, request) = asked(endpoint)?;
    let start = Instant::now();
    let error = if answered_first {
        let server = request.connect(PrivateData::none())?;
        child.signal(libc::SIGKILL)?;
        let error = server.wait_established(LIMIT).err();
        dropped_within(SOON, "the server", server)?;
        error
    } else {
        child.signal(libc::SIGKILL)?;
        drop(child);
        // Whether the kernel has taken the request back by now is a matter of a moment.
        match request.connect(PrivateData::none()) {
            Ok(server) => server.wait_established(LIMIT).err(),
            Err(error) => Some(error),
        }
    };
    let error = error.ok_or("connected to a process that is gone")?;
    println!(
        "answered first: {answered_first}: {error} after {:?}",
        start.elapsed()
    );
    let kinds = [
        ErrorKind::Disconnected,
        ErrorKind::Rejected,
        ErrorKind::Unreachable,
    ];
    ensure!(kinds.contains(&error.kind()), "{:?}: {error}", error.kind());
    ensure!(start.elapsed() < LIMIT, "took {:?}", start.elapsed());
    Ok(())
}

/// Waits so long for the connection to stand, which fails with the kind by the limit.
fn fails(client: &Connection, wait: Duration, kind: ErrorKind, limit: Duration) -> Outcome {
    let start = Instant::now();
    let error = client.wait_established(wait).err().ok_or("it stands")?;
    ensure_eq!(error.kind(), kind, "{error}");
    let took = start.elapsed();
    ensure!(took < limit, "{error} after {took:?}");
    Ok(())
}
