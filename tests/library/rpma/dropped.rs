//! Everything dropped at once, in any order, with work in flight.

use std::any::Any;
use std::thread;
use std::time::Instant;

use harness::{Failed, Need, Outcome, SECOND, Test, WAIT, ensure, phase, rounds, test};
use rpma::{
    ConnectionConfig, ConnectionRequest, Device, Endpoint, LocalRegion, Peer, PrivateData,
    RemoteRegion, Signal, Usage,
};

use super::dice::Dice;

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test(
            "several_threads_may_drop_everything_in_any_order_with_work_in_flight",
            &[Need::Device],
            any_order,
        )
        .limit(180),
    ]
}

/// Anything, with a name.
type Handle = (&'static str, Box<dyn Any>);

/// A listener, a pair with long transfers, sends and receives under way, and two connections that
/// are half made: one whose request is undecided, one whose request was not taken.
fn handles(dice: &mut Dice) -> Result<Vec<Handle>, Failed> {
    let config = ConnectionConfig::default();
    let (server_peer, client_peer) = (
        Peer::new(&Device::local(harness::device().ip)?)?,
        Peer::new(&Device::local(harness::device().ip)?)?,
    );
    let endpoint = Endpoint::listen(&server_peer, harness::device().addr(0))?;
    let connect = || {
        ConnectionRequest::new(&client_peer, endpoint.local_addr(), &config)?
            .connect(PrivateData::none())
    };
    let client = connect()?;
    let len = (client_peer.max_message_size() as usize).min(8 << 20);
    let request = endpoint.next_connection_request(&config, WAIT)?;
    let target = LocalRegion::alloc(&server_peer, len, Usage::all())?;
    request.recv(target.span(..64)?, 1)?;
    let server = request.connect(PrivateData::none())?;
    client.wait_established(WAIT)?;
    server.wait_established(WAIT)?;
    let source = LocalRegion::alloc(&client_peer, len, Usage::all())?;
    let remote = RemoteRegion::from_descriptor(&target.descriptor())?;
    let (to, from) = (remote.as_span(), source.as_span());
    client.recv(source.span(..64)?, 2)?;
    for n in 0..3 {
        match dice.roll(3) {
            0 => client.write(to, from, Signal::Always, n)?,
            1 => client.read(from, to, Signal::Always, n)?,
            // The second of these finds no receive, and waits for one.
            _ => client.send(source.span(..64)?, Signal::Always, n)?,
        }
    }
    let undecided = connect()?;
    let request = endpoint.next_connection_request(&config, WAIT)?;
    let untaken = connect()?;
    Ok(vec![
        ("the endpoint", Box::new(endpoint)),
        ("the client", Box::new(client)),
        ("the server", Box::new(server)),
        ("the source", Box::new(source)),
        ("the target", Box::new(target)),
        ("the undecided client", Box::new(undecided)),
        ("the undecided request", Box::new(request)),
        ("the client without an answer", Box::new(untaken)),
        ("the client's peer", Box::new(client_peer)),
        ("the server's peer", Box::new(server_peer)),
    ])
}

fn any_order() -> Outcome {
    thread::scope(|scope| {
        let threads: Vec<_> = (0..3_u64)
            .map(|n| scope.spawn(move || one_thread(n)))
            .collect();
        for (n, thread) in threads.into_iter().enumerate() {
            thread
                .join()
                .map_err(|_| format!("thread {n} panicked"))?
                .map_err(|text| format!("thread {n}: {text}"))?;
        }
        Ok(())
    })
}

fn one_thread(seed: u64) -> Result<(), String> {
    let mut dice = Dice::new(seed);
    for round in 0..rounds(2, 60) {
        rounds_of(&mut dice).map_err(|failed| {
            let text = failed.message().unwrap_or_default();
            format!("round {round}: {text}")
        })?;
    }
    Ok(())
}

fn rounds_of(dice: &mut Dice) -> Outcome {
    let mut handles = handles(dice)?;
    while !handles.is_empty() {
        let (name, handle) = handles.swap_remove(dice.roll(handles.len()));
        phase(format!("dropping {name}"));
        let start = Instant::now();
        drop(handle);
        let took = start.elapsed();
        ensure!(took < 2 * SECOND, "dropping {name} took {took:?}");
    }
    Ok(())
}
