//! Many connections on one event channel.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use harness::{Baseline, Failed, Need, Outcome, Test, WAIT, device, ensure, ensure_eq, test};
use rpma::cm::verbs::{CompletionQueue, Context, ProtectionDomain, QpType, QueuePair};
use rpma::cm::{
    ConnParams, ConnectOptions, Connection, ConnectionEvent, Deadline, Dispatcher, Error,
    EventSource, ListenOptions, Listener, Request, Routed,
};

use super::dropped_quickly;
use crate::raw::begin;

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test(
            "both_sides_through_one_channel_connect_and_hear_of_the_end",
            &[Need::Device],
            both_sides,
        ),
        test(
            "a_burst_of_500_clients_is_connected_or_told_why_not",
            &[Need::Device],
            a_burst,
        )
        .limit(240),
        test(
            "requests_beyond_a_listeners_queue_are_rejected_at_once_and_counted",
            &[Need::Device],
            no_room,
        ),
        test(
            "a_hundred_connections_are_held_on_one_descriptor",
            &[Need::Device],
            || held(100),
        )
        .limit(120),
        test(
            "two_thousand_connections_are_held_at_a_flat_cost",
            &[Need::Device],
            || held(2000),
        )
        .limit(300)
        .long(),
        test(
            "listener_requests_and_connections_of_a_dispatcher_go_in_any_order",
            &[Need::Device],
            any_order,
        )
        .limit(120),
    ]
}

/// What the queue pairs of one test share: protection domain and completion queue.
pub(super) struct Shared {
    pd: ProtectionDomain,
    cq: CompletionQueue,
}

impl Shared {
    /// For up to `count` queue pairs with one request in each queue.
    fn new(context: &Context, count: usize) -> Result<Self, Failed> {
        Ok(Self {
            pd: ProtectionDomain::new(context)?,
            cq: CompletionQueue::builder(context, u32::try_from(2 * count + 2)?).build()?,
        })
    }

    fn qp(&self) -> Result<QueuePair, Failed> {
        Ok(QueuePair::builder(&self.pd, QpType::RC, &self.cq, &self.cq)
            .max_send_wr(1)
            .max_recv_wr(1)
            .build()?)
    }
}

pub(super) fn asked(
    dispatcher: &Dispatcher,
    to: SocketAddr,
    data: &[u8],
    shared: &mut Option<Shared>,
    count: usize,
    deadline: Deadline,
) -> Result<Connection<Routed>, Failed> {
    let options = ConnectOptions::default();
    let resolved = dispatcher.resolve(to, &options, deadline)?.wait()?;
    if shared.is_none() {
        *shared = Some(Shared::new(resolved.context(), count)?);
    }
    let qp = shared.as_ref().ok_or("no queues")?.qp()?;
    resolved.init_qp(&qp)?;
    Ok(resolved.connect(qp, &ConnParams::default(), data)?)
}

pub(super) fn answered<S: EventSource>(
    request: Request<S>,
    shared: &mut Option<Shared>,
    count: usize,
) -> Result<Connection<S>, Failed> {
    if shared.is_none() {
        *shared = Some(Shared::new(request.context(), count)?);
    }
    let qp = shared.as_ref().ok_or("no queues")?.qp()?;
    request.init_qp(&qp)?;
    Ok(request.accept(qp, &ConnParams::default(), &[])?)
}

fn listener(dispatcher: &Dispatcher, backlog: u16) -> Result<Listener<Routed>, Failed> {
    let mut options = ListenOptions::default();
    options.backlog = backlog;
    Ok(dispatcher.listen(device().addr(0), &options)?)
}

fn both_sides() -> Outcome {
    let deadline = Deadline::after(WAIT);
    let dispatcher = Dispatcher::new()?;
    let listener = listener(&dispatcher, 0)?;
    let (mut ours, mut theirs) = (None, None);
    for first_to_end in [true, false] {
        let to = listener.local_addr();
        let client = asked(&dispatcher, to, b"hello", &mut ours, 1, deadline)?;
        let request = listener.next_request(deadline)?;
        ensure_eq!(&request.private_data()[..5], b"hello", "private data");
        ensure_eq!(Some(request.peer_addr()), client.local_addr(), "the peer");
        let server = answered(request, &mut theirs, 1)?;
        client.wait_established(deadline)?;
        server.wait_established(deadline)?;
        let (one, other) = if first_to_end {
            (client, server)
        } else {
            (server, client)
        };
        one.disconnect()?;
        for end in [&other, &one] {
            let event = end.next_event(deadline)?;
            ensure_eq!(event, ConnectionEvent::Disconnected, "the end");
        }
    }
    // The other end may have a channel of its own.
    let (client, _queues) = begin(listener.local_addr(), &[])?;
    let server = answered(listener.next_request(deadline)?, &mut theirs, 2)?;
    client.wait_established(deadline)?;
    server.wait_established(deadline)?;
    Ok(())
}

fn a_burst() -> Outcome {
    const CLIENTS: usize = 500;
    const THREADS: usize = 4;
    let deadline = Deadline::after(Duration::from_secs(150));
    let server_side = Dispatcher::new()?;
    let client_side = Dispatcher::new()?;
    let listener = listener(&server_side, 0)?;
    let to = listener.local_addr();
    let client = |n: usize| -> Result<(Connection<Routed>, Shared), Failed> {
        let mut shared = None;
        let data = u32::try_from(n)?.to_le_bytes();
        let connection = asked(&client_side, to, &data, &mut shared, 1, deadline)?;
        Ok((connection, shared.ok_or("no queues")?))
    };
    let (answers, seen) = thread::scope(|scope| {
        let clients: Vec<_> = (0..THREADS)
            .map(|thread| {
                scope.spawn(move || -> Result<Vec<_>, Failed> {
                    let asking: Vec<_> = (thread..CLIENTS)
                        .step_by(THREADS)
                        .map(client)
                        .collect::<Result<_, _>>()?;
                    // Held until all of this thread are answered.
                    let answers = asking
                        .iter()
                        .map(|(connection, _)| connection.wait_established(deadline).map(drop))
                        .collect();
                    Ok(answers)
                })
            })
            .collect();
        let served = scope.spawn(|| -> Result<_, Failed> {
            let mut shared = None;
            let mut seen = vec![false; CLIENTS];
            let mut servers = Vec::new();
            while servers.len() < CLIENTS {
                let request = match listener.next_request(deadline) {
                    Ok(request) => request,
                    Err(error) => return Err(format!("{} served: {error}", servers.len()).into()),
                };
                let data = request.private_data().first_chunk().copied();
                let n = usize::try_from(u32::from_le_bytes(data.ok_or("no private data")?))?;
                ensure_again(&mut seen, n)?;
                servers.push(answered(request, &mut shared, CLIENTS)?);
            }
            for server in &servers {
                server.wait_established(deadline)?;
            }
            Ok(seen)
        });
        let answers: Result<Vec<Vec<Result<(), Error>>>, Failed> = clients
            .into_iter()
            .map(|thread| thread.join().map_err(|_| "a client panicked")?)
            .collect();
        let seen = served
            .join()
            .map_err(|_| Failed::from("the server panicked"));
        (answers, seen)
    });
    let answers: Vec<_> = answers?.into_iter().flatten().collect();
    let connected = answers.iter().filter(|answer| answer.is_ok()).count();
    for error in answers.iter().filter_map(|answer| answer.as_ref().err()) {
        // Told why: refused or unanswered by name, not left waiting.
        ensure!(
            matches!(error, Error::Rejected { .. } | Error::Unreachable { .. }),
            "{connected} connected, and then: {error}"
        );
    }
    ensure_eq!(answers.len(), CLIENTS, "answers");
    // Nothing was lost on this machine, where the queue has room for all.
    ensure_eq!(connected, CLIENTS, "connected");
    ensure_eq!(listener.overflowed(), 0, "rejected for lack of room");
    ensure!(seen??.iter().all(|seen| *seen), "not every client was seen");
    Ok(())
}

fn ensure_again(seen: &mut [bool], n: usize) -> Result<(), Failed> {
    let place = seen.get_mut(n).ok_or("a client that there is not")?;
    ensure!(!*place, "client {n} came twice");
    *place = true;
    Ok(())
}

fn no_room() -> Outcome {
    let deadline = Deadline::after(WAIT);
    let dispatcher = Dispatcher::new()?;
    let listener = listener(&dispatcher, 2)?;
    let mut shared = None;
    let clients: Vec<_> = (0..6)
        .map(|_| {
            let to = listener.local_addr();
            asked(&dispatcher, to, &[], &mut shared, 6, deadline)
        })
        .collect::<Result<_, _>>()?;
    while listener.overflowed() < 4 {
        ensure!(!deadline.has_passed(), "{} rejected", listener.overflowed());
        thread::sleep(Duration::from_millis(1));
    }
    let mut theirs = None;
    let servers: Vec<_> = (0..2)
        .map(|_| answered(listener.next_request(deadline)?, &mut theirs, 2))
        .collect::<Result<_, _>>()?;
    let (mut connected, mut rejected) = (0, 0);
    for client in &clients {
        match client.wait_established(deadline) {
            Ok(_) => connected += 1,
            Err(Error::Rejected { .. }) => rejected += 1,
            Err(error) => return Err(error.into()),
        }
    }
    ensure_eq!((connected, rejected), (2, 4), "connected and rejected");
    for server in &servers {
        server.wait_established(deadline)?;
    }
    ensure!(listener.try_next_request()?.is_none(), "a third request");
    Ok(())
}

/// The resident memory of this process in kB.
pub(super) fn resident() -> Result<u64, Failed> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    Ok(number.ok_or("no VmRSS")?.parse()?)
}

fn descriptors() -> Result<usize, Failed> {
    Ok(std::fs::read_dir("/proc/self/fd")?.count())
}

fn held(count: usize) -> Outcome {
    let deadline = Deadline::after(Duration::from_secs(if count > 100 { 1500 } else { 90 }));
    let baseline = Baseline::take()?;
    let dispatcher = Dispatcher::new()?;
    let listener = listener(&dispatcher, 0)?;
    let to = listener.local_addr();
    let (mut ours, mut theirs) = (None, None);
    let mut pairs = Vec::with_capacity(count);
    let mut connect = |pairs: &mut Vec<_>| -> Result<Duration, Failed> {
        let start = Instant::now();
        let client = asked(&dispatcher, to, &[], &mut ours, count, deadline)?;
        let server = answered(listener.next_request(deadline)?, &mut theirs, count)?;
        client.wait_established(deadline)?;
        server.wait_established(deadline)?;
        pairs.push((client, server));
        Ok(start.elapsed())
    };
    let tenth = count / 10;
    let measure =
        |pairs: &mut Vec<_>, connect: &mut dyn FnMut(&mut Vec<_>) -> Result<Duration, Failed>| {
            let memory = resident()?;
            let mut times = (0..tenth)
                .map(|_| connect(pairs))
                .collect::<Result<Vec<_>, _>>()?;
            times.sort_unstable();
            Ok::<_, Failed>((times[tenth / 2], resident()?.saturating_sub(memory)))
        };
    connect(&mut pairs)?;
    let open = descriptors()?;
    let first = measure(&mut pairs, &mut connect)?;
    while pairs.len() + tenth < count {
        connect(&mut pairs)?;
    }
    let last = measure(&mut pairs, &mut connect)?;
    ensure_eq!(
        descriptors()?,
        open,
        "descriptors with {} connections",
        pairs.len()
    );
    println!(
        "{} connections: median set-up {:?} of the first tenth, {:?} of the last; memory {} and {} kB",
        pairs.len(),
        first.0,
        last.0,
        first.1,
        last.1
    );
    if count > 100 {
        // A cost that grows with what is held would be about twenty times as high; less may be the machine.
        ensure!(
            last.0 < first.0 * 8,
            "the last tenth took {:?} each, the first {:?}",
            last.0,
            first.0
        );
        // One page of slack for each pair: an allocator's growth comes in steps.
        ensure!(
            last.1 < first.1 * 2 + 8 * u64::try_from(tenth)?,
            "the last tenth took {} kB, the first {} kB",
            last.1,
            first.1
        );
    }
    // All of them still hear of what happens to them.
    for (client, _) in &pairs {
        client.disconnect()?;
    }
    for (client, server) in &pairs {
        for end in [server, client] {
            let event = end.next_event(deadline)?;
            ensure_eq!(event, ConnectionEvent::Disconnected, "the end");
        }
    }
    drop(pairs);
    dropped_quickly("listener and dispatcher", (listener, dispatcher))?;
    drop((ours, theirs));
    Ok(baseline.check()?)
}

fn any_order() -> Outcome {
    let baseline = Baseline::take()?;
    let deadline = Deadline::after(Duration::from_secs(60));
    for round in 0..harness::rounds(7, 70) {
        let dispatcher = Dispatcher::new()?;
        let listener = listener(&dispatcher, 0)?;
        let to = listener.local_addr();
        let (mut ours, mut theirs) = (None, None);
        let client = asked(&dispatcher, to, &[], &mut ours, 4, deadline)?;
        let server = answered(listener.next_request(deadline)?, &mut theirs, 4)?;
        let undecided = asked(&dispatcher, to, &[], &mut ours, 4, deadline)?;
        let request = listener.next_request(deadline)?;
        let untaken = asked(&dispatcher, to, &[], &mut ours, 4, deadline)?;
        let mut handles: Vec<(&str, Box<dyn std::any::Any + Send>)> = vec![
            ("the dispatcher", Box::new(dispatcher)),
            ("the listener", Box::new(listener)),
            ("the client", Box::new(client)),
            ("the server", Box::new(server)),
            ("the undecided client", Box::new(undecided)),
            ("the request", Box::new(request)),
            ("the untaken client", Box::new(untaken)),
        ];
        let count = handles.len();
        handles.rotate_left(round % count);
        if round % 2 == 1 {
            handles.reverse();
        }
        if round % 3 == 2 {
            thread::scope(|scope| {
                for (_, handle) in handles {
                    scope.spawn(move || drop(handle));
                }
            });
        } else {
            for (name, handle) in handles {
                dropped_quickly(name, handle)?;
            }
        }
    }
    Ok(baseline.check()?)
}
