//! Programs that have a loop of their own around the descriptors.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use harness::{
    Failed, Need, Outcome, Pair, Targets, Test, WAIT, completed, device, ensure, ensure_eq, listen,
    phase, rounds, test,
};
use rpma::cm::verbs::{Deadline, wait_readable};
use rpma::{
    Connection, ConnectionConfig, ConnectionEvent, ConnectionRequest, Device, Endpoint, ErrorKind,
    LocalRegion, Peer, PrivateData, Signal, Usage,
};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test(
            "one_loop_serves_clients_by_three_descriptors_and_sleeps_when_nothing_comes",
            &[Need::Device],
            three_descriptors,
        ),
        test(
            "a_loop_never_sleeps_over_what_was_left_while_sending",
            &[Need::Device],
            left_while_sending,
        )
        .limit(120),
    ]
}

/// How long a loop may sleep over something that has come.
const STALL: Duration = Duration::from_secs(2);

/// What the calling thread has computed so far.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(
        time.tv_sec.unsigned_abs(),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}

fn three_descriptors() -> Outcome {
    let (server_peer, endpoint) = listen()?;
    let count = rounds(6, 100);
    let to = endpoint.local_addr();
    thread::scope(|scope| {
        let clients = scope.spawn(move || {
            let peer = Peer::new(&Device::local(device().ip)?)?;
            let memory = LocalRegion::alloc(&peer, 64, Usage::all())?;
            for n in 0..count {
                let byte = n.to_le_bytes()[0];
                let request = ConnectionRequest::new(&peer, to, &ConnectionConfig::default())?;
                let connection = request.connect(PrivateData::none())?;
                connection.wait_established(WAIT)?;
                connection.recv(memory.span(32..)?, 1)?;
                memory.store(0, &[byte; 32])?;
                connection.send(memory.span(..32)?, Signal::Always, 2)?;
                let mut ids = [0, 0];
                for id in &mut ids {
                    let completion = connection.cq().next(WAIT)?;
                    if completion.result().is_err() {
                        return Ok(Err(format!("client {n}: {completion:?}")));
                    }
                    *id = completion.op_context();
                }
                connection.disconnect()?;
                let mut echo = [0; 32];
                memory.load(32, &mut echo)?;
                if ids[0] + ids[1] != 3 || echo != [byte; 32] {
                    return Ok(Err(format!("client {n}: {ids:?}, {echo:?}")));
                }
            }
            Ok::<_, rpma::Error>(Ok(()))
        });
        phase("serving");
        let memory = LocalRegion::alloc(&server_peer, 32, Usage::all())?;
        for n in 0..count {
            serve_one(&endpoint, &memory).map_err(|failed| {
                format!("client {n}: {}", failed.message().unwrap_or_default())
            })?;
        }
        clients.join().map_err(|_| "a client panicked")???;
        Ok::<_, Failed>(())
    })?;
    phase("idle");
    nothing_comes(&endpoint)
}

/// Takes one client from its request to its end, never asking for anything before a descriptor tells that
/// there is something.
fn serve_one(endpoint: &Endpoint, memory: &LocalRegion) -> Outcome {
    let config = ConnectionConfig::default();
    let [readable] = wait_readable([endpoint.as_fd()], Deadline::after(WAIT))?;
    ensure!(readable, "no request");
    let request = endpoint.try_next_connection_request(&config)?;
    let request = request.ok_or("a readable endpoint without a request")?;
    request.recv(memory.as_span(), 1)?;
    let connection = request.connect(PrivateData::none())?;
    let cq = connection.cq();
    let mut answered = false;
    let end = Deadline::after(WAIT);
    loop {
        let fds = [endpoint.as_fd(), connection.event_fd()?, cq.as_fd()];
        let [another, event, completion] = wait_readable(fds, end)?;
        ensure!(!another, "the next client did not wait for its turn");
        ensure!(event || completion, "nothing comes, answered: {answered}");
        if completion {
            while cq.try_wait()? {
                while let Some(completion) = cq.poll_one()? {
                    if completion.op_context() == 1 {
                        completion.result()?;
                        connection.send(memory.as_span(), Signal::Always, 2)?;
                        answered = true;
                    }
                }
            }
        }
        if event {
            while let Some(event) = connection.try_next_event()? {
                if event == ConnectionEvent::Closed {
                    ensure!(answered, "closed before it was served");
                    return Ok(());
                }
            }
        }
    }
}

/// Asking without waiting says so at once, and sleeping costs nothing.
fn nothing_comes(endpoint: &Endpoint) -> Outcome {
    let pair = Pair::new()?;
    let config = ConnectionConfig::default();
    let server = &pair.server;
    ensure!(
        endpoint.try_next_connection_request(&config)?.is_none(),
        "a request from nobody"
    );
    ensure!(server.try_next_event()?.is_none(), "an event of nothing");
    ensure!(!server.cq().try_wait()?, "something to poll");
    let request = endpoint.next_connection_request(&config, Duration::ZERO);
    let request = request.err().ok_or("a request from nobody")?;
    let event = server.next_event(Duration::ZERO);
    let event = event.err().ok_or("an event of nothing")?;
    let completion = server.cq().wait(Duration::ZERO);
    let completion = completion.err().ok_or("something to poll")?;
    for (error, code) in [
        (request, -100_006),
        (event, -100_006),
        (completion, -100_005),
    ] {
        ensure_eq!(error.code(), code, "{error}");
        ensure_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    }
    let idle = Duration::from_millis(200);
    let (start, before) = (Instant::now(), cpu_time());
    while start.elapsed() < idle {
        let fds = [endpoint.as_fd(), server.event_fd()?, server.cq().as_fd()];
        let ready = wait_readable(fds, Deadline::after(idle))?;
        ensure_eq!(ready, [false; 3], "descriptors with nothing to say");
    }
    let used = cpu_time() - before;
    ensure!(used < idle / 20, "{used:?} of {idle:?} were computed");
    Ok(())
}

const LEN: usize = 100 << 10;

/// What a program takes out of the queue while it sends: it may look there for room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WhileSending {
    /// Nothing, until the answer is in the queue as well.
    Nothing,
    One,
    All,
}

/// The answers that are in the client's queue.
#[derive(Default)]
struct Answered(AtomicU64);

fn left_while_sending() -> Outcome {
    let pair = Pair::new()?;
    let targets = Targets::new(&pair, 2 * LEN)?;
    let count = rounds(12, 10_000) as u64;
    let Pair { client, server, .. } = pair;
    server.recv(targets.server.span(..LEN as u64)?, 0)?;
    let answered = Answered::default();
    thread::scope(|scope| {
        let (answered, memory) = (&answered, &targets.server);
        let server = scope.spawn(move || echoes(&server, memory, count, answered));
        let asked = (0..count).try_for_each(|n| {
            let kinds = [WhileSending::Nothing, WhileSending::One, WhileSending::All];
            let kind = kinds[usize::try_from(n % 3)?];
            ask(&client, &targets.client, n, kind, answered)
                .map_err(|failed| Failed::from(format!("request {n}, {kind:?}: {}", text(&failed))))
        });
        // Why nothing came is known there.
        server.join().map_err(|_| "the server panicked")??;
        asked
    })
}

fn text(failed: &Failed) -> &str {
    failed.message().unwrap_or_default()
}

/// Answers each request with as many bytes.
fn echoes(
    server: &Connection,
    memory: &LocalRegion,
    count: u64,
    answered: &Answered,
) -> Result<(), String> {
    // The next request may be there before the answer is known to have arrived.
    let (mut requests, mut sent) = (0, 0);
    let take = |requests: &mut u64, sent: &mut u64| -> Outcome {
        let of_answer = completed(server.cq())?.op_context() == u64::MAX;
        *(if of_answer { sent } else { requests }) += 1;
        Ok(())
    };
    let mut serve = |n| -> Outcome {
        while requests <= n {
            take(&mut requests, &mut sent)?;
        }
        if n + 1 < count {
            server.recv(memory.span(..LEN as u64)?, n + 1)?;
        }
        server.send(memory.span(LEN as u64..)?, Signal::Always, u64::MAX)?;
        while sent <= n {
            take(&mut requests, &mut sent)?;
        }
        answered.0.store(n + 1, Ordering::Release);
        Ok(())
    };
    for n in 0..count {
        serve(n).map_err(|failed| format!("server, request {n}: {}", text(&failed)))?;
    }
    Ok(())
}

fn ask(
    client: &Connection,
    memory: &LocalRegion,
    n: u64,
    kind: WhileSending,
    answered: &Answered,
) -> Outcome {
    let cq = client.cq();
    let (answer, request) = (2 * n, 2 * n + 1);
    client.recv(memory.span(LEN as u64..)?, answer)?;
    client.send(memory.span(..LEN as u64)?, Signal::Always, request)?;
    let mut open = vec![answer, request];
    let mut take = |completion: rpma::Completion| -> Result<usize, Failed> {
        completion.result()?;
        let at = open.iter().position(|&id| id == completion.op_context());
        open.swap_remove(at.ok_or_else(|| format!("{completion:?} again"))?);
        Ok(open.len())
    };
    let end = Instant::now() + WAIT;
    let mut left = 2;
    while match kind {
        WhileSending::Nothing => answered.0.load(Ordering::Acquire) <= n,
        WhileSending::One => left == 2,
        WhileSending::All => left > 0,
    } {
        ensure!(Instant::now() < end, "nothing completes");
        let wanted = kind != WhileSending::Nothing;
        match wanted.then(|| cq.poll_one()).transpose()?.flatten() {
            Some(completion) => left = take(completion)?,
            // Not busily: the server and the device need the processors.
            None => thread::sleep(Duration::from_micros(50)),
        }
    }
    // Whoever takes one a turn is told of the next.
    let at_most = if n.is_multiple_of(2) { 1 } else { usize::MAX };
    while left > 0 {
        while cq.try_wait()? {
            let mut room = at_most;
            while room > 0
                && let Some(completion) = cq.poll_one()?
            {
                left = take(completion)?;
                room -= 1;
            }
        }
        if left > 0 {
            let [readable] = wait_readable([cq.as_fd()], Deadline::after(STALL))?;
            ensure!(readable, "asleep, and {left} to come");
        }
    }
    Ok(())
}
