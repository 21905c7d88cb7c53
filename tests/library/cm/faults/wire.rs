//! A wire that loses, delays, doubles or damages packets, or is cut.

use std::thread;
use std::time::{Duration, Instant};

use harness::{
    End, LINK, Outcome, Role, SECOND, Test, WAIT, ensure, ensure_eq, phase, rounds, test,
};
use rpma::cm::verbs::WcStatus;
use rpma::cm::{ConnParams, ConnectionState, Deadline, Resolving};

use super::{
    dropped_within, fate_of_a_send, from_a, impatient, listener_at_b, message, on_a_wire, pair,
    silent, statuses, stubborn,
};
use crate::raw::{Queues, RawPair};

pub(super) fn tests() -> Vec<Test> {
    vec![
        test(
            "a_link_that_goes_down_ends_the_sends_of_both_sides_and_nothing_hangs",
            LINK,
            || on_a_wire("own_link_down"),
        ),
        test(
            "a_wire_that_loses_all_is_noticed_by_a_send_alone",
            LINK,
            || on_a_wire("all_lost"),
        ),
        test(
            "messages_arrive_once_and_whole_over_a_wire_that_harms_them",
            LINK,
            || on_a_wire("harmed"),
        ),
        test(
            "a_link_that_goes_down_at_the_peer_ends_sends_and_nothing_hangs",
            LINK,
            || {
                on_a_wire("peers_link_down")?;
                // After a cut under traffic the devices stay deaf: a new wire is none the worse for it.
                on_a_wire("connects")
            },
        )
        .long(),
        test(
            "a_wire_that_loses_all_is_given_up_within_ten_seconds_by_default",
            LINK,
            || on_a_wire("all_lost_by_default"),
        )
        .long(),
        test(
            "a_handshake_whose_messages_are_lost_or_late_is_repeated",
            LINK,
            || on_a_wire("handshake_repeated"),
        )
        .long(),
    ]
}

pub(super) const ROLES: &[Role] = &[
    ("connects", connects),
    ("own_link_down", || link_down(End::A)),
    ("peers_link_down", || link_down(End::B)),
    ("all_lost", || all_lost(&impatient(), 3 * SECOND)),
    ("all_lost_by_default", || {
        all_lost(&ConnParams::default(), WAIT)
    }),
    ("harmed", harmed),
    ("handshake_repeated", handshake_repeated),
];

/// How long packets of a queue pair may wait for a neighbour that does not answer (three questions, a second each). SoftRoCE
/// does not destroy the queue pair before.
const NEIGHBOUR: Duration = Duration::from_secs(4);

fn connects() -> Outcome {
    let pair = pair(&ConnParams::default())?;
    (2..10).try_for_each(|number| message(&pair, number))
}

fn link_down(end: End) -> Outcome {
    let pair = pair(&impatient())?;
    pair.client_queues.recv(pair.client.qp(), 5)?;
    pair.server_queues.recv(pair.server.qp(), 6)?;
    end.down()?;
    phase("sending");
    let (status, took) = fate_of_a_send(&pair.client, &pair.client_queues)?;
    // The device whose own interface is down says so at once (from Linux 7 on by flushing). The other one, without a carrier,
    // takes it for a peer that does not answer.
    let here = [WcStatus::LOC_QP_OP_ERR, WcStatus::WR_FLUSH_ERR];
    let there = [WcStatus::RETRY_EXC_ERR, WcStatus::WR_FLUSH_ERR];
    let (of_client, of_server) = match end {
        End::A => (here, there),
        End::B => (there, here),
    };
    ensure!(of_client.contains(&status), "the client's send: {status:?}");
    ensure!(took < 3 * SECOND, "told after {took:?}");
    let (status, took) = fate_of_a_send(&pair.server, &pair.server_queues)?;
    ensure!(of_server.contains(&status), "the server's send: {status:?}");
    ensure!(took < 3 * SECOND, "told after {took:?}");
    for queues in [&pair.client_queues, &pair.server_queues] {
        // The queue pair went into the error state with its send.
        ensure_eq!(
            statuses(&queues.recv_cq, 1)?,
            [WcStatus::WR_FLUSH_ERR],
            "receives"
        );
    }
    end_in_silence(pair, NEIGHBOUR)
}

fn all_lost(params: &ConnParams, limit: Duration) -> Outcome {
    let pair = pair(params)?;
    pair.server_queues.recv(pair.server.qp(), 6)?;
    for end in End::BOTH {
        end.netem("loss 100%")?;
    }
    let before = End::A.counter("hw_counters/retry_exceeded_err")?;
    // Who only receives learns of nothing: there is no sign of life between two ends.
    phase("waiting for a message");
    silent(&pair.server, SECOND / 2)?;
    ensure!(
        statuses(&pair.server_queues.recv_cq, 0)?.is_empty(),
        "a receive ended"
    );
    let (status, took) = fate_of_a_send(&pair.client, &pair.client_queues)?;
    ensure_eq!(status, WcStatus::RETRY_EXC_ERR, "the send");
    ensure!(took < limit, "told after {took:?}");
    let after = End::A.counter("hw_counters/retry_exceeded_err")?;
    ensure_eq!(after, before + 1, "sends that the device gave up");
    end_in_silence(pair, 2 * SECOND)?;
    for end in End::BOTH {
        end.no_netem()?;
    }
    // The device itself is well.
    connects()
}

/// Neither side is told of an end of the other: both are ended by hand, and dropped.
fn end_in_silence(pair: RawPair, limit: Duration) -> Outcome {
    for end in [&pair.client, &pair.server] {
        silent(end, SECOND / 10)?;
        ensure_eq!(end.state(), ConnectionState::Established, "state");
        let start = Instant::now();
        end.disconnect()?;
        ensure!(start.elapsed() < SECOND, "took {:?}", start.elapsed());
        ensure_eq!(end.state(), ConnectionState::Closed, "state");
    }
    dropped_within(limit, pair)
}

fn harmed() -> Outcome {
    for (how, end, counter) in [
        ("loss 20%", End::A, "hw_counters/completer_retry_err"),
        ("duplicate 30%", End::B, "hw_counters/duplicate_request"),
        ("corrupt 20%", End::A, "hw_counters/completer_retry_err"),
        // Longer than the device waits for an answer: it asks again, and the answer comes twice.
        ("delay 30ms", End::B, "hw_counters/duplicate_request"),
    ] {
        let pair = pair(&stubborn())?;
        let before = end.counter(counter)?;
        End::A.netem(how)?;
        for number in 2..rounds(40, 400) {
            message(&pair, u64::try_from(number)?)
                .map_err(|failed| format!("{how}: {}", failed.message().unwrap_or_default()))?;
        }
        let after = end.counter(counter)?;
        ensure!(
            after > before,
            "{how}: {counter} did not move from {before}"
        );
        End::A.no_netem()?;
        dropped_within(2 * SECOND, pair)?;
    }
    Ok(())
}

fn handshake_repeated() -> Outcome {
    for (end, how, counter) in [
        (End::A, "loss 100%", "cm_tx_retries/req"),
        (End::B, "loss 100%", "cm_tx_retries/rep"),
        (End::A, "delay 300ms", ""),
        (End::B, "duplicate 100%", ""),
    ] {
        let listener = listener_at_b()?;
        let deadline = Deadline::after(2 * WAIT);
        let resolved = Resolving::start(listener.local_addr(), &from_a(), deadline)?.wait()?;
        let (client_queues, qp) = Queues::new(resolved.context())?;
        resolved.init_qp(&qp)?;
        let lossy = how.starts_with("loss");
        if !lossy || end == End::A {
            end.netem(how)?;
        }
        let before = if lossy { end.counter(counter)? } else { 0 };
        let client = resolved.connect(qp, &stubborn(), &[])?;
        if lossy && end == End::A {
            // The request is on its way by now, into the void.
            thread::sleep(SECOND / 2);
            ensure!(listener.try_next_request()?.is_none(), "the request came");
            end.no_netem()?;
        }
        phase(format!("{how} at {end:?}: waiting for the request"));
        let request = listener.next_request(deadline)?;
        let (server_queues, qp) = Queues::new(request.context())?;
        request.init_qp(&qp)?;
        if lossy && end == End::B {
            end.netem(how)?;
        }
        let server = request.accept(qp, &stubborn(), &[])?;
        if lossy && end == End::B {
            thread::sleep(SECOND / 2);
            ensure!(client.try_next_event()?.is_none(), "the answer came");
            end.no_netem()?;
        }
        phase(format!(
            "{how} at {end:?}: waiting for the connection to stand"
        ));
        client.wait_established(deadline)?;
        server.wait_established(deadline)?;
        if lossy {
            let after = end.counter(counter)?;
            ensure!(after > before, "{counter} did not move from {before}");
        }
        let pair = RawPair {
            client,
            client_queues,
            server,
            server_queues,
        };
        message(&pair, 1)?;
        if !lossy {
            end.no_netem()?;
        }
    }
    Ok(())
}
