//! Waits in a tokio runtime, on a real device.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use cm::verbs::WcStatus;
use cm::{
    Async, ConnParams, ConnectOptions, Connection, ConnectionEvent, Deadline, Error, Listener,
    Request, Resolved, Resolving,
};
use harness::{Failed, Need, Outcome, Test, WAIT, ensure, ensure_eq, rounds, test};
use tokio::task::{self, JoinHandle, LocalSet};
use tokio::time::timeout;

use crate::raw::{Queues, listener, try_poll};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test(
            "many_connections_live_in_one_runtime_of_one_thread",
            &[Need::Device],
            many,
        ),
        test(
            "a_wait_that_is_dropped_again_and_again_loses_nothing_on_a_device",
            &[Need::Device],
            dropped_waits,
        ),
        test(
            "a_ticker_of_the_same_thread_keeps_its_beat_while_a_device_is_waited_for",
            &[Need::Device],
            ticker,
        )
        .long(),
    ]
}

fn run(future: impl Future<Output = Outcome>) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    // Time for all of it: the waits in a runtime have no deadline of their own.
    runtime.block_on(async { timeout(5 * WAIT, future).await })?
}

fn accept(request: Request, receives: bool) -> Result<(Async<Connection>, Queues), Failed> {
    let (queues, qp) = Queues::new(request.context())?;
    request.init_qp(&qp)?;
    if receives {
        queues.recv(&qp, 1)?;
    }
    let connection = request.accept(qp, &ConnParams::default(), b"welcome")?;
    Ok((Async::new(connection)?, queues))
}

fn connect(resolved: Resolved, data: &[u8]) -> Result<(Async<Connection>, Queues), Failed> {
    let (queues, qp) = Queues::new(resolved.context())?;
    resolved.init_qp(&qp)?;
    let connection = resolved.connect(qp, &ConnParams::default(), data)?;
    Ok((Async::new(connection)?, queues))
}

fn resolving(listener: &Listener) -> Result<Async<Resolving>, Failed> {
    let options = ConnectOptions::default();
    let deadline = Deadline::after(WAIT);
    let resolving = Resolving::start(listener.local_addr(), &options, deadline)?;
    Ok(Async::new(resolving)?)
}

/// Waits for a completion while other tasks run.
async fn completed(queue: &cm::verbs::CompletionQueue) -> Outcome {
    loop {
        if let Some(completion) = try_poll(queue)? {
            ensure_eq!(completion.status(), WcStatus::SUCCESS, "a completion");
            return Ok(());
        }
        task::yield_now().await;
    }
}

const BYTES: &[u8] = b"over the runtime";

async fn serve(mut connection: Async<Connection>, queues: Queues, number: u8) -> Outcome {
    connection.wait_established().await?;
    completed(&queues.recv_cq).await?;
    let got = queues.buffer.load(0, BYTES.len() + 1);
    ensure_eq!(
        got,
        [BYTES, &[number]].concat(),
        "what client {number} sent"
    );
    let event = connection.next_event().await?;
    ensure_eq!(event, ConnectionEvent::Disconnected, "client {number} ends");
    Ok(())
}

async fn ask(mut attempt: Async<Resolving>, number: u8) -> Outcome {
    let resolved = attempt.wait().await?;
    let (mut connection, queues) = connect(resolved, &[number])?;
    let answer = connection.wait_established().await?;
    ensure!(answer.starts_with(b"welcome\0"), "the answer: {answer:?}");
    queues.buffer.store(0, &[BYTES, &[number]].concat());
    queues.send(connection.get_ref().qp(), 2, BYTES.len() + 1)?;
    completed(&queues.send_cq).await?;
    connection.get_ref().disconnect()?;
    let event = connection.next_event().await?;
    ensure_eq!(event, ConnectionEvent::Disconnected, "the end of {number}");
    Ok(())
}

fn many() -> Outcome {
    let clients = u8::try_from(rounds(10, 50))?;
    run(async move {
        let listener = listener()?;
        let attempts: Vec<_> = (0..clients)
            .map(|_| resolving(&listener))
            .collect::<Result<_, _>>()?;
        let mut listener = Async::new(listener)?;
        let server: JoinHandle<Outcome> = task::spawn(async move {
            let mut seen = vec![false; clients.into()];
            let mut tasks = Vec::new();
            for _ in 0..clients {
                let request = listener.next_request().await?;
                let number = request.private_data()[0];
                let known = seen
                    .get_mut(usize::from(number))
                    .ok_or("a client of no number")?;
                ensure!(!*known, "client {number} came twice");
                *known = true;
                let (connection, queues) = accept(request, true)?;
                tasks.push(task::spawn(serve(connection, queues, number)));
            }
            for task in tasks {
                task.await??;
            }
            Ok(())
        });
        let tasks: Vec<_> = (0..)
            .zip(attempts)
            .map(|(number, attempt)| task::spawn(ask(attempt, number)))
            .collect();
        for task in tasks {
            task.await??;
        }
        server.await?
    })
}

/// Waits in short futures, each of which is dropped before the next is made.
async fn in_pieces<T, R>(
    value: &mut T,
    wait: impl AsyncFn(&mut T) -> Result<R, Error>,
) -> Result<R, Failed> {
    loop {
        // None is dropped when all is there at once; those of `in_vain` always are.
        if let Ok(got) = timeout(Duration::from_millis(1), wait(value)).await {
            return Ok(got?);
        }
    }
}

/// Waits for what does not come yet, and drops the wait.
async fn in_vain<T, R>(value: &mut T, wait: impl AsyncFn(&mut T) -> Result<R, Error>) -> Outcome {
    match timeout(Duration::from_millis(5), wait(value)).await {
        Err(_) => Ok(()),
        Ok(Ok(_)) => Err("something came that nobody sent".into()),
        Ok(Err(error)) => Err(error.into()),
    }
}

fn dropped_waits() -> Outcome {
    run(async {
        let mut listener = Async::new(listener()?)?;
        for round in 0..rounds(5, 30) {
            let data = round.to_le_bytes();
            let next_request = async |listener: &mut Async<Listener>| listener.next_request().await;
            let established = async |end: &mut Async<Connection>| end.wait_established().await;
            let next_event = async |end: &mut Async<Connection>| end.next_event().await;

            in_vain(&mut listener, next_request).await?;
            let mut attempt = resolving(listener.get_ref())?;
            let wait = async |attempt: &mut Async<Resolving>| attempt.wait().await;
            let resolved = in_pieces(&mut attempt, wait).await?;
            let (mut client, client_queues) = connect(resolved, &data)?;
            in_vain(&mut client, established).await?;
            let request = in_pieces(&mut listener, next_request).await?;
            ensure!(request.private_data().starts_with(&data), "whose request");
            let (mut server, queues) = accept(request, false)?;
            let answer = in_pieces(&mut client, established).await?;
            ensure!(answer.starts_with(b"welcome\0"), "the answer: {answer:?}");
            in_pieces(&mut server, established).await?;

            for end in [&mut client, &mut server] {
                in_vain(end, next_event).await?;
            }
            client_queues.recv(client.get_ref().qp(), 1)?;
            queues.buffer.store(0, BYTES);
            queues.send(server.get_ref().qp(), 2, BYTES.len())?;
            completed(&client_queues.recv_cq).await?;
            let got = client_queues.buffer.load(0, BYTES.len());
            ensure_eq!(got, BYTES, "what the server sent");

            server.get_ref().disconnect()?;
            for end in [&mut client, &mut server] {
                let event = in_pieces(end, next_event).await?;
                ensure_eq!(event, ConnectionEvent::Disconnected, "the end");
            }
            let client = client.into_inner().ok_or("a connection is not spent")?;
            ensure!(client.is_established().is_err(), "it is over");
        }
        Ok(())
    })
}

/// A beat, and how much later than the one before the next may come: a wait that blocks takes all of the time.
const BEAT: Duration = Duration::from_millis(10);
const LATE: Duration = Duration::from_secs(1);

fn ticker() -> Outcome {
    run(async {
        let mut listener = Async::new(listener()?)?;
        let longest = Rc::new(Cell::new(Duration::ZERO));
        let tasks = LocalSet::new();
        let of_ticker = Rc::clone(&longest);
        tasks.spawn_local(async move {
            let mut beat = tokio::time::interval(BEAT);
            let mut last = Instant::now();
            loop {
                beat.tick().await;
                of_ticker.set(of_ticker.get().max(last.elapsed()));
                last = Instant::now();
            }
        });
        let waits = async {
            let nobody = timeout(2 * harness::SECOND, listener.next_request()).await;
            ensure!(nobody.is_err(), "a request of nobody");
            let mut attempt = resolving(listener.get_ref())?;
            let (mut client, _queues) = connect(attempt.wait().await?, &[])?;
            let (mut server, _server_queues) = accept(listener.next_request().await?, false)?;
            client.wait_established().await?;
            server.wait_established().await?;
            for end in [&mut client, &mut server] {
                let event = timeout(harness::SECOND, end.next_event()).await;
                ensure!(event.is_err(), "an event of nobody");
            }
            Ok(())
        };
        tasks.run_until(waits).await?;
        let longest = longest.get();
        println!("the longest time between two beats was {longest:?}");
        ensure!(longest < LATE, "no beat for {longest:?}");
        Ok(())
    })
}
