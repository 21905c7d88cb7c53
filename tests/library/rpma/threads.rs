//! Several threads and several addresses at once.

use std::thread;
use std::time::Instant;

use harness::{
    Failed, Need, Outcome, Pair, Targets, Test, WAIT, completed, device, ensure, ensure_eq, listen,
    pattern, phase, rounds, test,
};
use rpma::{
    Connection, ConnectionConfig, ConnectionEvent, ConnectionRequest, Device, Endpoint, ErrorKind,
    LocalRegion, Peer, PrivateData, RemoteRegion, Signal, Usage,
};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test(
            "threads_may_connect_accept_and_transfer_at_once",
            &[Need::Device],
            many_threads,
        )
        .limit(120),
        test(
            "a_client_that_leaves_right_after_its_message_holds_nobody_up",
            &[Need::Device],
            a_client_that_leaves,
        )
        .limit(120),
        test(
            "a_connection_works_over_every_address_of_the_device",
            &[Need::Device],
            every_address,
        ),
        test(
            "a_connection_may_move_to_another_thread",
            &[Need::Device],
            a_connection_moves,
        ),
    ]
}

const LEN: usize = 3000;
const THREADS: usize = 4;

/// Threads report failures as text: a `Failed` cannot be sent.
fn text(failed: &Failed) -> String {
    failed.message().unwrap_or("failed").to_owned()
}

/// Accepts `count` clients, and lets each write into memory that is then checked.
fn serve(peer: &Peer, endpoint: &Endpoint, count: usize, stay: Stay) -> Outcome {
    let config = ConnectionConfig::default();
    for _ in 0..count {
        let memory = LocalRegion::alloc(peer, LEN, Usage::WRITE_DST)?;
        let note = LocalRegion::alloc(peer, 8, Usage::RECV)?;
        let request = endpoint.next_connection_request(&config, WAIT)?;
        let seed = u64::from(request.private_data()[0]);
        request.recv(note.as_span(), seed)?;
        let connection = request.connect(PrivateData::new(&memory.descriptor())?)?;
        match connection.wait_established(WAIT) {
            Ok(()) => {}
            // The kernel may handle a client's goodbye before its confirmation.
            Err(error) if error.kind() == ErrorKind::Disconnected && stay == Stay::No => {}
            Err(error) => return Err(error.into()),
        }
        ensure_eq!(completed(connection.cq())?.op_context(), seed, "the note");
        let mut found = vec![0; LEN];
        memory.load(0, &mut found)?;
        pattern::check(&found, seed)?;
        dropped_quickly(connection)?;
    }
    Ok(())
}

/// The end of a connection waits neither for the other end nor for another thread. Eight threads on
/// an emulated machine take their time; a wait for the other end would be over a minute.
fn dropped_quickly(connection: Connection) -> Outcome {
    let start = Instant::now();
    drop(connection);
    ensure!(
        start.elapsed() < WAIT,
        "dropping a connection took {:?}",
        start.elapsed()
    );
    Ok(())
}

fn write_to(peer: &Peer, endpoint: &Endpoint, seed: u8) -> Result<Connection, Failed> {
    let source = LocalRegion::alloc(peer, LEN, Usage::WRITE_SRC | Usage::SEND)?;
    source.store(0, &pattern::bytes(seed.into(), LEN))?;
    let request =
        ConnectionRequest::new(peer, endpoint.local_addr(), &ConnectionConfig::default())?;
    let connection = request.connect(PrivateData::new(&[seed])?)?;
    connection.wait_established(WAIT)?;
    let target = RemoteRegion::from_descriptor(connection.private_data())?;
    connection.write(target.as_span(), source.as_span(), Signal::OnError, 1)?;
    connection.send(source.span(..8)?, Signal::Always, 2)?;
    completed(connection.cq())?;
    Ok(connection)
}

/// Whether a client waits until its server has ended the connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stay {
    Yes,
    No,
}

fn many_threads() -> Outcome {
    at_once(rounds(20, 100), Stay::Yes)
}

fn a_client_that_leaves() -> Outcome {
    at_once(rounds(20, 100), Stay::No)
}

fn at_once(each: usize, stay: Stay) -> Outcome {
    let (server_peer, endpoint) = listen()?;
    let client_peer = Peer::new(&Device::local(device().ip)?)?;
    phase("threads at work");
    let results: Vec<Result<(), String>> = thread::scope(|scope| {
        let servers = (0..THREADS).map(|_| {
            scope.spawn(|| {
                serve(&server_peer, &endpoint, each, stay).map_err(|failed| text(&failed))
            })
        });
        let mut all: Vec<_> = servers.collect();
        for number in 0..THREADS {
            let (endpoint, client_peer) = (&endpoint, &client_peer);
            all.push(scope.spawn(move || {
                for n in 0..each {
                    let seed = ((number * each + n) % 251).to_le_bytes()[0];
                    write_to(client_peer, endpoint, seed)
                        .and_then(|connection| {
                            if stay == Stay::Yes {
                                ensure_eq!(
                                    connection.next_event(WAIT)?,
                                    ConnectionEvent::Closed,
                                    "event"
                                );
                            }
                            dropped_quickly(connection)
                        })
                        .map_err(|failed| text(&failed))?;
                }
                Ok(())
            }));
        }
        all.into_iter()
            .map(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|_| Err("a thread panicked".to_owned()))
            })
            .collect()
    });
    for (number, result) in results.into_iter().enumerate() {
        result.map_err(|text| format!("thread {number}: {text}"))?;
    }
    Ok(())
}

fn every_address() -> Outcome {
    let addresses = Device::local(device().ip)?.ip_addresses()?;
    ensure!(
        addresses.contains(&device().ip),
        "{addresses:?} without {}",
        device().ip
    );
    for ip in addresses {
        phase(format!("over {ip}"));
        let peer = Peer::new(&Device::local(ip)?)?;
        let endpoint = Endpoint::listen(&peer, (ip, 0).into())?;
        ensure_eq!(endpoint.local_addr().ip(), ip, "address of the endpoint");
        ensure!(endpoint.local_addr().port() != 0, "no port was chosen");
        let config = ConnectionConfig::default();
        let pair = Pair::between(peer.clone(), peer, &endpoint, &config, |_| Ok(()))?;
        ensure_eq!(
            pair.client.peer_addr(),
            endpoint.local_addr(),
            "the server's address"
        );
        ensure_eq!(
            Some(pair.server.peer_addr()),
            pair.client.local_addr(),
            "the client's address"
        );
        let targets = Targets::new(&pair, LEN)?;
        targets.client.store(0, &pattern::bytes(9, LEN))?;
        let (to, from) = (targets.of_server.as_span(), targets.client.as_span());
        pair.client.write(to, from, Signal::Always, 1)?;
        completed(pair.client.cq())?;
        let mut found = vec![0; LEN];
        targets.server.load(0, &mut found)?;
        pattern::check(&found, 9)?;
    }
    Ok(())
}

fn a_connection_moves() -> Outcome {
    let pair = Pair::new()?;
    let targets = Targets::new(&pair, LEN)?;
    let Pair { client, server, .. } = pair;
    let remote = targets.of_server;
    let source = targets.client;
    let client = thread::spawn(move || {
        client
            .write(remote.as_span(), source.as_span(), Signal::Always, 1)
            .map_err(|error| error.to_string())?;
        completed(client.cq()).map_err(|failed| text(&failed))?;
        Ok::<_, String>(client)
    })
    .join()
    .map_err(|_| "the thread panicked")??;
    client.disconnect()?;
    ensure_eq!(
        server.next_event(WAIT)?,
        rpma::ConnectionEvent::Closed,
        "event"
    );
    Ok(())
}
