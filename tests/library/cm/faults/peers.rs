//! Peers that are killed, frozen, or vanish without a word.

use std::time::{Duration, Instant};

use harness::{
    Child, End, Failed, LINK, Outcome, Role, SECOND, Test, WAIT, ensure, ensure_eq, phase,
    role_argument, test,
};
use rpma::cm::verbs::WcStatus;
use rpma::cm::{
    ConnParams, Connection, ConnectionEvent, ConnectionState, Deadline, Error, RejectReason,
    Resolving,
};

use super::{
    dropped_within, fate_of_a_send, from_a, impatient, listener_at_b, message, on_a_wire, pair,
    silent, statuses,
};
use crate::raw::{Queues, RawPair, poll};

pub(super) fn tests() -> Vec<Test> {
    vec![
        test("a_peer_that_is_killed_is_told_by_its_kernel", LINK, || {
            on_a_wire("killed_peer")
        }),
        test(
            "a_peer_that_is_frozen_takes_what_it_has_room_for_and_nothing_waits_for_it",
            LINK,
            || on_a_wire("frozen_peer"),
        )
        .long(),
        test(
            "a_neighbour_that_changes_is_told_and_ends_no_connection_by_itself",
            LINK,
            || on_a_wire("lost_neighbour"),
        ),
        test(
            "a_peer_that_is_frozen_or_killed_before_it_answers_is_noticed",
            LINK,
            || on_a_wire("no_answer"),
        )
        .long(),
    ]
}

pub(super) const ROLES: &[Role] = &[
    ("peer_at_b", peer_at_b),
    ("killed_peer", killed_peer),
    ("frozen_peer", frozen_peer),
    ("lost_neighbour", lost_neighbour),
    ("no_answer", no_answer),
];

/// How many receives the peer posts.
const RECEIVES: u64 = 4;

/// Accepts one connection after the other at end B, and says what becomes of each; the argument `late` lets it wait before it
/// accepts, until it is ended.
fn peer_at_b() -> Outcome {
    let listener = listener_at_b()?;
    println!("listens at {}", listener.local_addr().port());
    loop {
        let request = listener.next_request(Deadline::after(6 * WAIT))?;
        println!("is asked");
        if role_argument() == "late" {
            std::thread::sleep(10 * WAIT);
        }
        let (queues, qp) = Queues::new(request.context())?;
        if let Err(error) = request.init_qp(&qp) {
            println!("fails: {error}");
            continue;
        }
        for number in 0..RECEIVES {
            queues.recv(&qp, number)?;
        }
        let server = request.accept(qp, &impatient(), &[])?;
        if let Err(error) = server.wait_established(Deadline::after(WAIT)) {
            println!("fails: {error}");
            continue;
        }
        println!("is connected");
        println!(
            "is told {:?}",
            server.next_event(Deadline::after(6 * WAIT))?
        );
    }
}

/// A peer, and the port that it listens at.
fn start_peer(how: &str) -> Result<(Child, u16), Failed> {
    let peer = Child::role("peer_at_b", how, &[])?;
    let line = peer.wait_line("listens at ", WAIT)?;
    let (_, port) = line.rsplit_once(' ').ok_or("no port")?;
    Ok((peer, port.parse()?))
}

fn ask(port: u16, params: &ConnParams) -> Result<(Connection, Queues), Failed> {
    let deadline = Deadline::after(WAIT);
    let resolved = Resolving::start(End::B.addr(port), &from_a(), deadline)?.wait()?;
    let (queues, qp) = Queues::new(resolved.context())?;
    resolved.init_qp(&qp)?;
    Ok((resolved.connect(qp, params, &[])?, queues))
}

fn connect(port: u16, params: &ConnParams) -> Result<(Connection, Queues), Failed> {
    let (client, queues) = ask(port, params)?;
    client.wait_established(Deadline::after(WAIT))?;
    Ok((client, queues))
}

fn dropped(client: Connection, queues: Queues) -> Outcome {
    let start = Instant::now();
    drop(client);
    drop(queues);
    let took = start.elapsed();
    ensure!(took < 2 * SECOND, "the drops took {took:?}");
    Ok(())
}

fn killed_peer() -> Outcome {
    let (peer, port) = start_peer("")?;
    let (client, queues) = connect(port, &impatient())?;
    peer.wait_line("is connected", WAIT)?;
    queues.recv(client.qp(), 7)?;
    peer.signal(libc::SIGKILL)?;
    let start = Instant::now();
    let told = client.next_event(Deadline::after(WAIT))?;
    ensure_eq!(told, ConnectionEvent::Disconnected, "told");
    ensure!(
        start.elapsed() < 3 * SECOND,
        "told after {:?}",
        start.elapsed()
    );
    ensure_eq!(client.state(), ConnectionState::Closed, "state");
    ensure_eq!(
        statuses(&queues.recv_cq, 1)?,
        [WcStatus::WR_FLUSH_ERR],
        "receive"
    );
    let (status, _) = fate_of_a_send(&client, &queues)?;
    ensure_eq!(status, WcStatus::WR_FLUSH_ERR, "a send afterwards");
    client.disconnect()?;
    dropped(client, queues)?;
    // Its port is free again, and the next one serves.
    let (_peer, port) = start_peer("")?;
    let (client, queues) = connect(port, &impatient())?;
    dropped(client, queues)
}

fn frozen_peer() -> Outcome {
    let (peer, port) = start_peer("")?;
    let mut params = impatient();
    params.rnr_retry = 2;
    let (client, queues) = connect(port, &params)?;
    peer.wait_line("is connected", WAIT)?;
    peer.signal(libc::SIGSTOP)?;
    // Its device goes on without it.
    for number in 0..RECEIVES {
        queues.send(client.qp(), number, 8)?;
        ensure_eq!(
            poll(&queues.send_cq)?.status(),
            WcStatus::SUCCESS,
            "send {number}"
        );
    }
    silent(&client, SECOND / 2)?;
    let (status, took) = fate_of_a_send(&client, &queues)?;
    ensure_eq!(
        status,
        WcStatus::RNR_RETRY_EXC_ERR,
        "a send without a receive"
    );
    ensure!(took < 3 * SECOND, "told after {took:?}");
    silent(&client, SECOND / 5)?;
    client.disconnect()?;
    // Nobody answers that, so nothing is told; and nothing waits for it.
    silent(&client, SECOND / 5)?;
    dropped(client, queues)?;
    peer.signal(libc::SIGCONT)?;
    peer.wait_line("is told Disconnected", WAIT)?;
    let (client, queues) = connect(port, &params)?;
    dropped(client, queues)
}

fn lost_neighbour() -> Outcome {
    let pair = pair(&impatient())?;
    let bystander = RawPair::new()?;
    pair.server_queues.recv(pair.server.qp(), 6)?;
    End::A.lose_neighbour()?;
    // Since Linux 6.0 a neighbour's new hardware address is told as if the peer could not be reached.
    let told = pair.client.next_event(Deadline::after(WAIT))?;
    ensure!(
        matches!(told, ConnectionEvent::Unreachable { status } if status == -libc::ETIMEDOUT),
        "told {told:?}"
    );
    // Whether that is so, only a send can tell: the connection stands until then.
    ensure_eq!(pair.client.state(), ConnectionState::Established, "state");
    pair.client.wait_established(Deadline::after(SECOND))?;
    silent(&pair.server, SECOND / 5)?;
    let (status, took) = fate_of_a_send(&pair.client, &pair.client_queues)?;
    ensure_eq!(status, WcStatus::RETRY_EXC_ERR, "the send");
    ensure!(took < 3 * SECOND, "told after {took:?}");
    phase("another connection");
    silent(&bystander.client, Duration::from_millis(50))?;
    message(&bystander, 3)?;
    End::A.find_neighbour()?;
    dropped_within(2 * SECOND, pair)?;
    // The way is found again.
    message(&super::pair(&impatient())?, 4)
}

fn no_answer() -> Outcome {
    // Frozen before it accepts: the client's deadline holds.
    let (peer, port) = start_peer("")?;
    peer.signal(libc::SIGSTOP)?;
    let (client, queues) = ask(port, &impatient())?;
    let start = Instant::now();
    let error = client.wait_established(Deadline::after(SECOND)).err();
    ensure!(matches!(error, Some(Error::TimedOut { .. })), "{error:?}");
    let took = start.elapsed();
    ensure!((SECOND..SECOND * 3 / 2).contains(&took), "took {took:?}");
    dropped(client, queues)?;
    peer.signal(libc::SIGCONT)?;
    // The request that was given up is over before it can be accepted, and the error says so.
    peer.wait_line("is asked", WAIT)?;
    let line = peer.wait_line("fails", WAIT)?;
    ensure!(line.contains("has given up"), "{line}");
    let (client, queues) = connect(port, &impatient())?;
    dropped(client, queues)?;
    drop(peer);

    // Killed while the request waits: its kernel answers for it.
    let (peer, port) = start_peer("late")?;
    let (client, queues) = ask(port, &impatient())?;
    peer.wait_line("is asked", WAIT)?;
    peer.signal(libc::SIGKILL)?;
    let start = Instant::now();
    let error = client.wait_established(Deadline::after(WAIT)).err();
    ensure!(
        matches!(
            error,
            Some(Error::Rejected {
                reason: RejectReason::CONSUMER,
                ..
            })
        ),
        "{error:?}"
    );
    ensure!(
        start.elapsed() < 3 * SECOND,
        "told after {:?}",
        start.elapsed()
    );
    dropped(client, queues)?;

    // And when nobody is there at all.
    let (client, queues) = ask(port, &impatient())?;
    let error = client.wait_established(Deadline::after(WAIT)).err();
    ensure_eq!(
        error,
        Some(Error::NoListener {
            peer: End::B.addr(port)
        }),
        "nobody"
    );
    dropped(client, queues)
}
