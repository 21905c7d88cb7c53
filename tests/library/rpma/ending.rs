//! The end of a connection.

use std::time::{Duration, Instant};

use harness::{Need, Outcome, Pair, Targets, Test, WAIT, ensure, ensure_eq, test};
use rpma::{ConnectionEvent, Signal};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test(
            "posted_receives_come_back_flushed_after_a_disconnect_by_either_side",
            &[Need::Device],
            posted_receives_are_flushed,
        ),
        test(
            "a_receive_after_the_end_is_refused_since_no_device_need_complete_it",
            &[Need::Device],
            a_receive_after_the_end,
        ),
        test(
            "a_send_that_is_never_received_is_ended_by_disconnect",
            &[Need::Device],
            a_send_never_received,
        ),
        test(
            "a_connection_may_be_dropped_with_work_in_flight",
            &[Need::Device],
            work_in_flight,
        ),
        test(
            "waiting_for_an_event_of_a_silent_connection_ends_at_the_deadline",
            &[Need::Device],
            a_silent_connection,
        ),
    ]
}

fn posted_receives_are_flushed() -> Outcome {
    for server_ends in [false, true] {
        let pair = Pair::new()?;
        let targets = Targets::new(&pair, 4096)?;
        for n in 0..7 {
            pair.client.recv(targets.client.as_span(), n)?;
            pair.server.recv(targets.server.as_span(), n)?;
        }
        let (ends, other) = if server_ends {
            (&pair.server, &pair.client)
        } else {
            (&pair.client, &pair.server)
        };
        ends.disconnect()?;
        for end in [other, ends] {
            ensure_eq!(
                end.next_event(WAIT)?,
                ConnectionEvent::Closed,
                "server ends: {server_ends}"
            );
            for n in 0..7 {
                let completion = end.cq().next(WAIT)?;
                ensure_eq!(completion.op_context(), n, "order");
                let error = completion.result().err().ok_or("a receive succeeded")?;
                ensure!(error.is_flushed(), "{error}");
            }
            ensure!(end.cq().poll_one()?.is_none(), "one completion too many");
        }
    }
    Ok(())
}

fn a_receive_after_the_end() -> Outcome {
    let pair = Pair::new()?;
    let targets = Targets::new(&pair, 64)?;
    pair.client.disconnect()?;
    ensure_eq!(
        pair.server.next_event(WAIT)?,
        ConnectionEvent::Closed,
        "event"
    );
    for (end, region) in [
        (&pair.client, &targets.client),
        (&pair.server, &targets.server),
    ] {
        let error = end
            .recv(region.as_span(), 1)
            .err()
            .ok_or("a receive was posted after the end")?;
        ensure_eq!(error.kind(), rpma::ErrorKind::Disconnected, "{error}");
    }
    Ok(())
}

fn a_send_never_received() -> Outcome {
    let pair = Pair::new()?;
    let targets = Targets::new(&pair, 64)?;
    pair.client
        .send(targets.client.as_span(), Signal::Always, 1)?;
    let early = pair.client.cq().next(Duration::from_millis(300));
    ensure!(
        early.is_err(),
        "a send without a receive completed: {early:?}"
    );
    let start = Instant::now();
    pair.client.disconnect()?;
    let error = pair
        .client
        .cq()
        .next(WAIT)?
        .result()
        .err()
        .ok_or("the send succeeded")?;
    ensure!(error.is_flushed(), "{error}");
    ensure!(
        start.elapsed() < Duration::from_secs(2),
        "after {:?}",
        start.elapsed()
    );
    Ok(())
}

fn work_in_flight() -> Outcome {
    for round in 0..harness::rounds(20, 200) {
        harness::phase(format!("round {round}"));
        let pair = Pair::new()?;
        let targets = Targets::new(&pair, 256 << 10)?;
        for n in 0..4 {
            let (to, from) = (targets.of_server.as_span(), targets.client.as_span());
            pair.client.write(to, from, Signal::Always, n)?;
            pair.server.recv(targets.server.as_span(), n)?;
        }
        let start = Instant::now();
        let Pair {
            client,
            server,
            client_peer,
            server_peer,
        } = pair;
        match round % 4 {
            0 => drop((client, server, targets, client_peer, server_peer)),
            1 => drop((server, client, targets, client_peer, server_peer)),
            2 => drop((targets, client_peer, server_peer, client, server)),
            _ => drop((client_peer, targets, server, server_peer, client)),
        }
        let took = start.elapsed();
        ensure!(
            took < Duration::from_secs(2),
            "round {round}: the drops took {took:?}"
        );
    }
    Ok(())
}

fn a_silent_connection() -> Outcome {
    let pair = Pair::new()?;
    for limit in [Duration::ZERO, Duration::from_millis(300)] {
        let start = Instant::now();
        let error = pair
            .server
            .next_event(limit)
            .err()
            .ok_or("an event from nowhere")?;
        let took = start.elapsed();
        ensure_eq!(error.kind(), rpma::ErrorKind::TimedOut, "{error}");
        ensure_eq!(error.code(), -100_006, "{error}");
        ensure!(
            took >= limit && took < limit + Duration::from_millis(500),
            "{limit:?} took {took:?}"
        );
    }
    ensure!(
        pair.server.try_next_event()?.is_none(),
        "an event from nowhere"
    );
    Ok(())
}
