//! Two machines, one of which loses its power.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use harness::{
    Failed, Need, Outcome, Role, SECOND, Test, WAIT, device, ensure, ensure_eq, phase, rounds,
    second_host, test,
};
use rpma::cm::verbs::WcStatus;
use rpma::cm::{
    ConnParams, ConnectOptions, Connection, ConnectionEvent, Deadline, Error, ListenOptions,
    Listener, Resolving,
};

use super::{fate_of_a_send, silent, statuses, stubborn};
use crate::raw::{Queues, poll, try_poll};

pub(super) fn tests() -> Vec<Test> {
    vec![
        test(
            "two_hosts_connect_exchange_messages_and_part",
            &[Need::Device, Need::SecondHost],
            exchange,
        )
        .long(),
        // The last one: the second host is gone afterwards.
        test(
            "two_hosts_a_power_cut_is_noticed_by_a_send_alone_and_no_drop_waits",
            &[Need::Device, Need::SecondHost],
            power_cut,
        )
        .long(),
    ]
}

pub(super) const ROLES: &[Role] = &[("second_host", peer)];

const PORT: u16 = 7471;

/// Bytes of a message.
const LEN: usize = 1000;

/// Accepts connections and sends back what comes, until its end.
fn peer() -> Outcome {
    let options = ListenOptions::default();
    let listener = Listener::bind(device().addr(PORT), &options)?;
    println!("listens");
    loop {
        let request = listener.next_request(Deadline::after(60 * WAIT))?;
        println!("{} asks", request.peer_addr());
        let (queues, qp) = Queues::new(request.context())?;
        request.init_qp(&qp)?;
        queues.recv(&qp, 0)?;
        let server = request.accept(qp, &stubborn(), &[])?;
        thread::spawn(move || {
            let served = server.wait_established(Deadline::after(WAIT));
            let served = served
                .map_err(Failed::from)
                .and_then(|_| echo(&server, &queues));
            if let Err(failed) = served {
                println!("fails: {}", failed.message().unwrap_or_default());
            }
        });
    }
}

fn echo(server: &Connection, queues: &Queues) -> Outcome {
    loop {
        if let Some(event) = server.try_next_event()? {
            println!("told {event:?}");
            return Ok(());
        }
        let Some(completion) = try_poll(&queues.recv_cq)? else {
            thread::sleep(Duration::from_millis(1));
            continue;
        };
        if completion.status() != WcStatus::SUCCESS {
            println!("a receive ends: {}", completion.status());
            continue;
        }
        queues.send(server.qp(), 0, LEN)?;
        ensure_eq!(
            poll(&queues.send_cq)?.status(),
            WcStatus::SUCCESS,
            "the send"
        );
        queues.recv(server.qp(), 0)?;
    }
}

fn connect(
    to: SocketAddr,
    params: &ConnParams,
    deadline: Deadline,
) -> Result<(Connection, Queues), Failed> {
    let resolved = Resolving::start(to, &ConnectOptions::default(), deadline)?.wait()?;
    let (queues, qp) = Queues::new(resolved.context())?;
    resolved.init_qp(&qp)?;
    let client = resolved.connect(qp, params, &[])?;
    client.wait_established(deadline)?;
    Ok((client, queues))
}

/// Connected, once the second host's program is there.
fn connected(params: &ConnParams) -> Result<(Connection, Queues), Failed> {
    let to = SocketAddr::new(second_host(), PORT);
    let deadline = Deadline::after(3 * WAIT);
    loop {
        match connect(to, params, Deadline::after(WAIT)) {
            Err(failed) if deadline.has_passed() => return Err(failed),
            Err(_) => thread::sleep(SECOND / 5),
            Ok(connected) => return Ok(connected),
        }
    }
}

fn round_trip(client: &Connection, queues: &Queues, number: usize) -> Outcome {
    let bytes: Vec<u8> = (0..LEN)
        .map(|i| (number * 7 + i).to_le_bytes()[0])
        .collect();
    queues.buffer.store(0, &bytes);
    // The answer comes into the memory that the message came from, after the send.
    queues.recv(client.qp(), 1)?;
    queues.send(client.qp(), 2, LEN)?;
    for cq in [&queues.send_cq, &queues.recv_cq] {
        ensure_eq!(poll(cq)?.status(), WcStatus::SUCCESS, "message {number}");
    }
    ensure!(
        queues.buffer.load(0, LEN) == bytes,
        "message {number} came back with other bytes"
    );
    Ok(())
}

fn exchange() -> Outcome {
    for _ in 0..rounds(1, 5) {
        let (client, queues) = connected(&stubborn())?;
        (0..100).try_for_each(|number| round_trip(&client, &queues, number))?;
        client.disconnect()?;
        // The other host answers.
        let event = client.next_event(Deadline::after(WAIT))?;
        ensure_eq!(event, ConnectionEvent::Disconnected, "after the end");
    }
    Ok(())
}

/// Ends the second host, and returns when it is gone.
fn cut_power() -> Outcome {
    let file =
        PathBuf::from(std::env::var_os("RPMA_TEST_POWER_CUT").ok_or("no RPMA_TEST_POWER_CUT")?);
    File::create(&file)?;
    let deadline = Deadline::after(3 * WAIT);
    while fs::exists(&file)? {
        ensure!(!deadline.has_passed(), "the second host was not ended");
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

fn power_cut() -> Outcome {
    let params = ConnParams::default();
    let (client, queues) = connected(&params)?;
    let (idle, idle_queues) = connected(&params)?;
    round_trip(&client, &queues, 1)?;
    queues.recv(client.qp(), 7)?;
    phase("waiting for the power cut");
    cut_power()?;
    phase("waiting for a message");
    // Nothing tells of it, and a wait ends when it should.
    silent(&client, 5 * SECOND)?;
    ensure!(
        statuses(&queues.recv_cq, 0)?.is_empty(),
        "the receive ended"
    );
    // Only a send does: the first and six more, 268 ms each; a device may take four times as long.
    let (status, took) = fate_of_a_send(&client, &queues)?;
    ensure_eq!(status, WcStatus::RETRY_EXC_ERR, "the send");
    ensure!(
        (3 * SECOND / 2..WAIT).contains(&took),
        "told after {took:?}"
    );
    ensure_eq!(
        statuses(&queues.recv_cq, 1)?,
        [WcStatus::WR_FLUSH_ERR],
        "the receive"
    );
    phase("dropping what is left");
    let start = Instant::now();
    client.disconnect()?;
    drop(client);
    drop(queues);
    drop(idle);
    drop(idle_queues);
    let took = start.elapsed();
    ensure!(took < WAIT, "the drops took {took:?}");
    // A new attempt ends at its deadline.
    let to = SocketAddr::new(second_host(), PORT);
    let start = Instant::now();
    let resolved = Resolving::start(to, &ConnectOptions::default(), Deadline::after(2 * SECOND))?;
    let error = match resolved.wait() {
        Err(error) => error,
        Ok(resolved) => {
            let (_queues, qp) = Queues::new(resolved.context())?;
            resolved.init_qp(&qp)?;
            let client = resolved.connect(qp, &params, &[])?;
            let left = (2 * SECOND).saturating_sub(start.elapsed());
            let error = client.wait_established(Deadline::after(left)).err();
            error.ok_or("connected to a host that is gone")?
        }
    };
    let took = start.elapsed();
    ensure!(matches!(error, Error::TimedOut { .. }), "{error}");
    ensure!(took < 5 * SECOND / 2, "ended after {took:?}");
    Ok(())
}
