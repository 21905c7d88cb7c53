//! Ends and refusals many times over, and what they leave.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use harness::{
    Baseline, Failed, Need, Outcome, SECOND, Test, WAIT, device, ensure, ensure_eq, rounds, test,
};
use rpma::cm::{
    ConnParams, Connection, ConnectionEvent, Deadline, Dispatcher, Error, ListenOptions, Listener,
    Request, Routed,
};

use super::dispatcher::{answered, asked};
use super::dropped_quickly;
use crate::raw::{Queues, RawPair, begin, listener, resolve};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test(
            "clients_that_go_at_each_stage_are_one_clean_failure_each",
            &[Need::Device],
            clients_that_go,
        )
        .limit(120),
        test(
            "rejecting_and_accepting_a_client_that_is_gone_leaves_a_listener_that_serves",
            &[Need::Device],
            client_gone,
        )
        .limit(120),
        test(
            "both_sides_may_disconnect_at_once_and_again",
            &[Need::Device],
            both_disconnect,
        )
        .limit(120),
        test(
            "receivers_that_are_slow_or_gone_hold_up_nobody",
            &[Need::Device],
            slow_and_gone,
        ),
        test(
            "cycles_through_one_channel_leave_nothing",
            &[Need::Device],
            cycles,
        )
        .limit(120),
        test(
            "live_connections_are_dropped_by_one_call_on_a_small_stack",
            &[Need::Device],
            dropped_at_once,
        )
        .limit(120),
        test(
            "events_after_the_end_of_a_connection_that_is_gone_harm_nobody",
            &[Need::Device],
            late_events,
        )
        .limit(120)
        .long(),
    ]
}

pub(super) fn soon() -> Deadline {
    Deadline::after(WAIT)
}

pub(super) fn accept(request: Request) -> Result<(Connection, Queues), Failed> {
    let (queues, qp) = Queues::new(request.context())?;
    request.init_qp(&qp)?;
    Ok((request.accept(qp, &ConnParams::default(), &[])?, queues))
}

/// A client is served as if nothing had been.
pub(super) fn serves(listener: &Listener) -> Outcome {
    let (client, _queues) = begin(listener.local_addr(), &[])?;
    let (server, _server_queues) = accept(listener.next_request(soon())?)?;
    client.wait_established(soon())?;
    server.wait_established(soon())?;
    Ok(())
}

/// Accepting ends in a failure, which has another reason than the deadline unless `unheard` counts it.
fn fails_cleanly(round: usize, request: Request, unheard: &mut usize) -> Outcome {
    let accepted = accept(request);
    if let Ok((server, _queues)) = &accepted {
        match server.wait_established(soon()) {
            Err(
                Error::Rejected { .. }
                | Error::Disconnected { .. }
                | Error::Unreachable { .. }
                | Error::ConnectFailed { .. },
            ) => {}
            // The kernel takes messages in several threads: now and then the withdrawal before the request, which is then lost.
            Err(Error::TimedOut { .. }) => *unheard += 1,
            other => return Err(format!("round {round}: {other:?} with nobody").into()),
        }
    }
    dropped_quickly("the server's side", accepted)
}

/// That a withdrawal is lost is a rare thing.
fn nearly_all_heard(unheard: usize, rounds: usize) -> Outcome {
    ensure!(
        unheard <= 1 + rounds / 20,
        "of {rounds} clients that went {unheard} were noticed at the deadline only"
    );
    Ok(())
}

fn clients_that_go() -> Outcome {
    let listener = listener()?;
    serves(&listener)?;
    let baseline = Baseline::take()?;
    let to = listener.local_addr();
    let (rounds, mut unheard) = (rounds(9, 200), 0);
    for round in 0..rounds {
        match round % 3 {
            // Before it has asked: the server never hears of it.
            0 => {
                let resolved = resolve(to)?;
                dropped_quickly("the client", resolved)?;
                ensure!(
                    listener.try_next_request()?.is_none(),
                    "a request of nobody"
                );
            }
            // After it has asked.
            1 => {
                dropped_quickly("the client", begin(to, &[])?)?;
                fails_cleanly(round, listener.next_request(soon())?, &mut unheard)?;
            }
            // When it was just accepted.
            _ => {
                let client = begin(to, &[])?;
                let (server, queues) = accept(listener.next_request(soon())?)?;
                dropped_quickly("the client", client)?;
                let error = server.wait_established(soon()).err();
                ensure!(
                    matches!(
                        error,
                        Some(Error::Rejected { .. } | Error::Disconnected { .. })
                    ),
                    "round {round}: {error:?}"
                );
                dropped_quickly("the server", (server, queues))?;
            }
        }
    }
    nearly_all_heard(unheard, rounds)?;
    serves(&listener)?;
    Ok(baseline.check()?)
}

fn client_gone() -> Outcome {
    let listener = listener()?;
    serves(&listener)?;
    let baseline = Baseline::take()?;
    let (rounds, mut unheard) = (rounds(10, 200), 0);
    for round in 0..rounds {
        let client = begin(listener.local_addr(), &[])?;
        let request = listener.next_request(soon())?;
        dropped_quickly("the client", client)?;
        if harness::full() {
            // Now this side's kernel has heard of it for certain.
            thread::sleep(SECOND / 10);
        }
        if round % 2 == 0 {
            request.reject(b"too late")?;
        } else {
            fails_cleanly(round, request, &mut unheard)?;
        }
    }
    nearly_all_heard(unheard, rounds)?;
    serves(&listener)?;
    Ok(baseline.check()?)
}

fn both_disconnect() -> Outcome {
    let listener = listener()?;
    for round in 0..rounds(10, 500) {
        let (client, client_queues) = begin(listener.local_addr(), &[])?;
        let (server, server_queues) = accept(listener.next_request(soon())?)?;
        client.wait_established(soon())?;
        server.wait_established(soon())?;
        let barrier = Barrier::new(2);
        let results = thread::scope(|scope| {
            [&client, &server]
                .map(|end| {
                    let barrier = &barrier;
                    scope.spawn(move || {
                        barrier.wait();
                        end.disconnect()
                    })
                })
                .map(|thread| thread.join())
        });
        for result in results {
            result.map_err(|_| "a thread panicked")??;
        }
        for end in [&client, &server] {
            let event = end.next_event(soon())?;
            ensure_eq!(event, ConnectionEvent::Disconnected, "round {round}");
            end.disconnect()?;
            end.disconnect()?;
            let more = end.try_next_event()?;
            ensure!(
                matches!(more, None | Some(ConnectionEvent::TimewaitExit)),
                "round {round}: {more:?}"
            );
        }
        drop((client, client_queues, server, server_queues));
    }
    Ok(())
}

fn pair(
    dispatcher: &Dispatcher,
    listener: &Listener<Routed>,
    shared: &mut Shared,
) -> Result<(Connection<Routed>, Connection<Routed>), Failed> {
    let (count, to) = (shared.count, listener.local_addr());
    let client = asked(dispatcher, to, &[], &mut shared.ours, count, soon())?;
    let server = answered(listener.next_request(soon())?, &mut shared.theirs, count)?;
    client.wait_established(soon())?;
    server.wait_established(soon())?;
    Ok((client, server))
}

/// Domains and completion queues for both sides of `count` connections.
struct Shared {
    ours: Option<super::dispatcher::Shared>,
    theirs: Option<super::dispatcher::Shared>,
    count: usize,
}

impl Shared {
    fn new(count: usize) -> Self {
        Self {
            ours: None,
            theirs: None,
            count,
        }
    }
}

fn slow_and_gone() -> Outcome {
    let dispatcher = Dispatcher::new()?;
    let options = ListenOptions::default();
    let slow = dispatcher.listen(device().addr(0), &options)?;
    let quick = dispatcher.listen(device().addr(0), &options)?;
    let mut shared = Shared::new(40);
    let to = slow.local_addr();
    let waiting = (0..3)
        .map(|_| asked(&dispatcher, to, &[], &mut shared.ours, 40, soon()))
        .collect::<Result<Vec<_>, _>>()?;
    for round in 0..rounds(8, 100) {
        // The listener that takes no requests is ahead of these in the channel.
        let start = Instant::now();
        let (client, server) = pair(&dispatcher, &quick, &mut shared)?;
        // Events for the one that goes are under way.
        client.disconnect()?;
        if round % 2 == 0 {
            drop(server);
        } else {
            drop(client);
        }
        let (_client, _server) = pair(&dispatcher, &quick, &mut shared)?;
        ensure!(start.elapsed() < 5 * SECOND, "took {:?}", start.elapsed());
    }
    // What was not taken is still there, all of it.
    for _ in &waiting {
        let server = answered(slow.next_request(soon())?, &mut shared.theirs, 40)?;
        let peer = server.peer_addr();
        let client = waiting.iter().find(|c| c.local_addr() == Some(peer));
        client.ok_or("a stranger")?.wait_established(soon())?;
        server.wait_established(soon())?;
    }
    ensure_eq!(slow.overflowed() + quick.overflowed(), 0, "overflowed");
    ensure_eq!(dispatcher.last_error(), None, "errors of the thread");
    Ok(())
}

fn cycles() -> Outcome {
    let dispatcher = Dispatcher::new()?;
    let listener = dispatcher.listen(device().addr(0), &ListenOptions::default())?;
    let mut shared = Shared::new(4);
    let mut cycle = |n: usize| -> Outcome {
        let (client, server) = pair(&dispatcher, &listener, &mut shared)?;
        let (one, other) = if n.is_multiple_of(2) {
            (client, server)
        } else {
            (server, client)
        };
        one.disconnect()?;
        let event = other.next_event(soon())?;
        ensure_eq!(event, ConnectionEvent::Disconnected, "cycle {n}");
        Ok(())
    };
    let count = rounds(30, 1000);
    // The first ones fill the allocator's pools.
    (0..10).try_for_each(&mut cycle)?;
    let (baseline, memory) = (Baseline::take()?, super::dispatcher::resident()?);
    let start = Instant::now();
    (0..count / 10).try_for_each(&mut cycle)?;
    let first = start.elapsed();
    (0..count - 2 * (count / 10)).try_for_each(&mut cycle)?;
    let start = Instant::now();
    (0..count / 10).try_for_each(&mut cycle)?;
    let last = start.elapsed();
    baseline.check()?;
    let grown = super::dispatcher::resident()?.saturating_sub(memory);
    println!("first tenth {first:?}, last {last:?}; {grown} kB more after {count} cycles");
    // A queue pair alone takes more than a page, so a leak per cycle would show.
    ensure!(
        grown <= 128 + u64::try_from(count)?,
        "{grown} kB of memory more after {count} cycles"
    );
    if count >= 1000 {
        ensure!(last < 2 * first, "slower: {first:?}, then {last:?}");
    }
    Ok(())
}

fn dropped_at_once() -> Outcome {
    let baseline = Baseline::take()?;
    let count = rounds(40, 500);
    let dispatcher = Dispatcher::new()?;
    let listener = dispatcher.listen(device().addr(0), &ListenOptions::default())?;
    let mut shared = Shared::new(count);
    let pairs = (0..count)
        .map(|_| pair(&dispatcher, &listener, &mut shared))
        .collect::<Result<Vec<_>, _>>()?;
    let start = Instant::now();
    let dropping = thread::Builder::new().stack_size(128 * 1024);
    let dropping = dropping.spawn(move || drop((pairs, listener, dispatcher, shared)))?;
    dropping.join().map_err(|_| "the thread panicked")?;
    let took = start.elapsed();
    println!("{count} live connections dropped in {took:?}");
    ensure!(took < 30 * SECOND, "dropping them took {took:?}");
    Ok(baseline.check()?)
}

fn late_events() -> Outcome {
    const CONNECTIONS: usize = 100;
    let dispatcher = Dispatcher::new()?;
    let listener = dispatcher.listen(device().addr(0), &ListenOptions::default())?;
    let mut shared = Shared::new(CONNECTIONS + 2);
    let (held, other) = pair(&dispatcher, &listener, &mut shared)?;
    let mut kept = Vec::new();
    for n in 0..CONNECTIONS {
        let (client, server) = pair(&dispatcher, &listener, &mut shared)?;
        client.disconnect()?;
        let event = server.next_event(soon())?;
        ensure_eq!(event, ConnectionEvent::Disconnected, "connection {n}");
        if n.is_multiple_of(10) {
            // These are there when their last event comes.
            kept.push((client, server));
        }
    }
    // The time-wait of every connection ends meanwhile, and the channel is read all the time.
    let end = Instant::now() + 15 * SECOND;
    let mut ended = 0;
    while Instant::now() < end {
        for (client, server) in &kept {
            for connection in [client, server] {
                match connection.try_next_event()? {
                    None | Some(ConnectionEvent::Disconnected) => {}
                    Some(ConnectionEvent::TimewaitExit) => ended += 1,
                    Some(other) => return Err(format!("{other:?}").into()),
                }
            }
        }
        thread::sleep(Duration::from_millis(10));
    }
    println!("{ended} of {} ends of time-wait were told", 2 * kept.len());
    ensure_eq!(held.try_next_event()?, None, "an event of somebody else");
    ensure_eq!(dispatcher.last_error(), None, "errors of the thread");
    held.disconnect()?;
    let event = other.next_event(soon())?;
    ensure_eq!(
        event,
        ConnectionEvent::Disconnected,
        "the one that was held"
    );
    drop(RawPair::new()?);
    Ok(())
}
