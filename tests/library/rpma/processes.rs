//! Peers in other processes, which are stopped or killed.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use harness::{
    Child, Failed, Need, Outcome, Pair, Role, Targets, Test, WAIT, completed, device, ensure,
    ensure_eq, listen, pattern, phase, role_argument, test,
};
use rpma::{
    Connection, ConnectionConfig, ConnectionEvent, ConnectionRequest, Device, LocalRegion, Peer,
    PrivateData, RemoteRegion, Signal, Usage,
};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test(
            "a_killed_peer_ends_the_connection_and_flushes_what_was_posted",
            &[Need::Device],
            a_killed_peer,
        ),
        test(
            "a_stopped_peer_still_serves_writes_and_reads",
            &[Need::Device],
            a_stopped_peer,
        ),
        test(
            "a_server_whose_clients_are_killed_one_after_the_other_serves_the_next",
            &[Need::Device],
            killed_clients,
        )
        .long(),
    ]
}

pub(crate) const ROLES: &[Role] = &[("passive_memory", passive_memory), ("busy", busy)];

const LEN: usize = 4096;

/// Connects, offers its memory, and does nothing more.
fn passive_memory() -> Outcome {
    let to: SocketAddr = role_argument().parse()?;
    let peer = Peer::new(&Device::local(device().ip)?)?;
    let memory = LocalRegion::alloc(&peer, LEN, Usage::all())?;
    let request = ConnectionRequest::new(&peer, to, &ConnectionConfig::default())?;
    let connection = request.connect(PrivateData::new(&memory.descriptor())?)?;
    connection.wait_established(WAIT)?;
    println!("connected");
    std::thread::sleep(Duration::from_secs(100));
    Ok(())
}

/// A connection to such a process, and its memory.
fn connected() -> Result<(Child, Connection, RemoteRegion), Failed> {
    let (_peer, endpoint) = listen()?;
    let child = Child::role("passive_memory", &endpoint.local_addr().to_string(), &[])?;
    let request = endpoint.next_connection_request(&ConnectionConfig::default(), WAIT)?;
    let memory = RemoteRegion::from_descriptor(request.private_data())?;
    let connection = request.connect(PrivateData::none())?;
    connection.wait_established(WAIT)?;
    child.wait_line("connected", WAIT)?;
    Ok((child, connection, memory))
}

fn a_killed_peer() -> Outcome {
    let (child, connection, memory) = connected()?;
    let own = LocalRegion::alloc(connection.peer(), LEN, Usage::all())?;
    for n in 0..3 {
        connection.recv(own.as_span(), n)?;
    }
    child.signal(libc::SIGKILL)?;
    let start = Instant::now();
    ensure_eq!(
        connection.next_event(WAIT)?,
        ConnectionEvent::Closed,
        "event"
    );
    ensure!(
        start.elapsed() < Duration::from_secs(5),
        "after {:?}",
        start.elapsed()
    );
    for n in 0..3 {
        let completion = connection.cq().next(WAIT)?;
        ensure_eq!(completion.op_context(), n, "order");
        ensure!(
            completion.result().is_err_and(|error| error.is_flushed()),
            "{completion:?}"
        );
    }
    // What is posted now fails, one way or the other, and says so.
    let late = connection.write(memory.as_span(), own.as_span(), Signal::Always, 9);
    if late.is_ok() {
        ensure!(
            connection.cq().next(WAIT)?.result().is_err(),
            "written to a dead process"
        );
    }
    Ok(())
}

fn a_stopped_peer() -> Outcome {
    let (child, connection, memory) = connected()?;
    child.signal(libc::SIGSTOP)?;
    phase("writing to a stopped process");
    let own = LocalRegion::alloc(connection.peer(), LEN, Usage::all())?;
    own.store(0, &pattern::bytes(6, LEN))?;
    connection.write(memory.as_span(), own.as_span(), Signal::Always, 1)?;
    completed(connection.cq())?;
    own.fill(0)?;
    connection.read(own.as_span(), memory.as_span(), Signal::Always, 2)?;
    completed(connection.cq())?;
    let mut found = [0; LEN];
    own.load(0, &mut found)?;
    pattern::check(&found, 6)?;

    // Its program cannot answer a disconnect, so this side does not wait for that.
    let start = Instant::now();
    connection.disconnect()?;
    drop(connection);
    ensure!(
        start.elapsed() < Duration::from_secs(2),
        "the end took {:?}",
        start.elapsed()
    );
    Ok(())
}

/// Connects, and writes and sends until it is ended.
fn busy() -> Outcome {
    let to: SocketAddr = role_argument().parse()?;
    let peer = Peer::new(&Device::local(device().ip)?)?;
    let own = LocalRegion::alloc(&peer, BUSY, Usage::WRITE_SRC | Usage::SEND)?;
    let request = ConnectionRequest::new(&peer, to, &ConnectionConfig::default())?;
    let connection = request.connect(PrivateData::none())?;
    connection.wait_established(WAIT)?;
    let memory = RemoteRegion::from_descriptor(connection.private_data())?;
    for n in 0.. {
        // Several are under way at any moment.
        for _ in 0..3 {
            connection.write(memory.as_span(), own.as_span(), Signal::Always, n)?;
        }
        connection.send(own.span(..64)?, Signal::Always, n)?;
        for _ in 0..if n == 0 { 2 } else { 4 } {
            completed(connection.cq())?;
        }
        if n == 2 {
            println!("is busy");
        }
    }
    Ok(())
}

/// Bytes of its writes.
const BUSY: usize = 256 << 10;

fn killed_clients() -> Outcome {
    let (peer, endpoint) = listen()?;
    let config = ConnectionConfig::default();
    for round in 0..20 {
        phase(format!("client {round}"));
        let memory = LocalRegion::alloc(&peer, BUSY, Usage::all())?;
        let child = Child::role("busy", &endpoint.local_addr().to_string(), &[])?;
        let request = endpoint.next_connection_request(&config, WAIT)?;
        for n in 0..4 {
            request.recv(memory.span(..64)?, n)?;
        }
        let connection = request.connect(PrivateData::new(&memory.descriptor())?)?;
        connection.wait_established(WAIT)?;
        for _ in 0..4 {
            let n = completed(connection.cq())?.op_context();
            connection.recv(memory.span(..64)?, n)?;
        }
        child.wait_line("is busy", WAIT)?;
        child.signal(libc::SIGKILL)?;
        let start = Instant::now();
        ensure_eq!(
            connection.next_event(WAIT)?,
            ConnectionEvent::Closed,
            "event"
        );
        let mut flushed = 0;
        while flushed == 0 {
            match connection.cq().next(WAIT)?.result() {
                Ok(_) => {}
                Err(error) if error.is_flushed() => flushed += 1,
                Err(error) => return Err(format!("client {round}: {error}").into()),
            }
        }
        // Either may go first.
        if round % 2 == 0 {
            drop(memory);
            drop(connection);
        } else {
            drop(connection);
            drop(memory);
        }
        let took = start.elapsed();
        ensure!(took < WAIT, "client {round} was gone after {took:?}");
    }
    phase("a client that stays");
    let client_peer = Peer::new(&Device::local(device().ip)?)?;
    let pair = Pair::between(client_peer, peer, &endpoint, &config, |_| Ok(()))?;
    let targets = Targets::new(&pair, LEN)?;
    targets.client.store(0, &pattern::bytes(3, LEN))?;
    let (to, from) = (targets.of_server.as_span(), targets.client.as_span());
    pair.client.write(to, from, Signal::Always, 1)?;
    completed(pair.client.cq())?;
    let mut found = [0; LEN];
    targets.server.load(0, &mut found)?;
    Ok(pattern::check(&found, 3)?)
}
