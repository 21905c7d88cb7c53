//! Handshakes that one side ends before the other has said its last word.

use std::thread;
use std::time::Instant;

use harness::{Failed, Need, Outcome, SECOND, Test, WAIT, ensure, ensure_eq, rounds, test};
use rpma::cm::verbs::{
    CompletionQueue, Context, InitAttributes, ProtectionDomain, QpType, QueuePair,
};
use rpma::cm::{ConnParams, ConnectionEvent, ConnectionState, Deadline, Error};

use super::dropped_quickly;
use crate::raw::{Queues, begin, listener, resolve};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test(
            "a_server_that_disconnects_as_it_accepts_stays_closed_and_its_client_is_told",
            &[Need::Device],
            server_ends_early,
        ),
        test(
            "a_client_that_disconnects_before_the_answer_declines_it_and_stays_closed",
            &[Need::Device],
            client_ends_early,
        ),
        test(
            "two_threads_may_wait_for_one_connection_to_stand",
            &[Need::Device],
            two_waiters,
        ),
        test(
            "parameters_that_no_message_can_carry_are_refused_by_name",
            &[Need::Device],
            impossible_parameters,
        ),
        test(
            "a_queue_pair_that_is_not_reliable_is_not_connected",
            &[Need::Device],
            datagram_queue_pair,
        ),
    ]
}

fn server_ends_early() -> Outcome {
    for round in 0..rounds(5, 100) {
        let listener = listener()?;
        let deadline = Deadline::after(WAIT);
        let (client, _client_queues) = begin(listener.local_addr(), &[])?;
        let request = listener.next_request(deadline)?;
        let (_queues, qp) = Queues::new(request.context())?;
        request.init_qp(&qp)?;
        let server = request.accept(qp, &ConnParams::default(), &[])?;
        server.disconnect()?;
        ensure_eq!(server.state(), ConnectionState::Closed, "at once");
        // Until the server has taken the client's last message, its client is connected.
        let mut events = Vec::new();
        while events.len() < 2 {
            ensure!(!deadline.has_passed(), "round {round}: only {events:?}");
            events.extend(client.try_next_event()?);
            if let Some(event) = server.try_next_event()? {
                // Were it `Established`, the late message had brought the connection back to life.
                ensure_eq!(event, ConnectionEvent::Disconnected, "the server");
            }
            ensure_eq!(server.state(), ConnectionState::Closed, "round {round}");
        }
        ensure!(
            matches!(events[0], ConnectionEvent::Established { .. }),
            "{events:?}"
        );
        ensure_eq!(events[1], ConnectionEvent::Disconnected, "the client");
        dropped_quickly("the server", server)?;
        dropped_quickly("the client", client)?;
    }
    Ok(())
}

fn client_ends_early() -> Outcome {
    for round in 0..rounds(5, 100) {
        let listener = listener()?;
        let deadline = Deadline::after(WAIT);
        let (client, _client_queues) = begin(listener.local_addr(), &[])?;
        client.disconnect()?;
        let request = listener.next_request(deadline)?;
        let (_queues, qp) = Queues::new(request.context())?;
        request.init_qp(&qp)?;
        let server = request.accept(qp, &ConnParams::default(), &[])?;
        let start = Instant::now();
        let told = loop {
            ensure!(!deadline.has_passed(), "round {round}: nobody was told");
            let event = client.try_next_event()?;
            ensure!(
                !matches!(event, Some(ConnectionEvent::Established { .. })),
                "round {round}: established after the end"
            );
            ensure_eq!(client.state(), ConnectionState::Closed, "round {round}");
            match server.wait_established(Deadline::after(SECOND / 100)) {
                Err(Error::TimedOut { .. }) => {}
                told => break told,
            }
        };
        match told {
            Err(Error::Rejected { reason, .. }) => ensure_eq!(reason.raw(), 28, "reason"),
            other => return Err(format!("round {round}: {other:?}").into()),
        }
        ensure!(
            start.elapsed() < 2 * SECOND,
            "round {round}: told after {:?}",
            start.elapsed()
        );
        dropped_quickly("the client", client)?;
        dropped_quickly("the server", server)?;
    }
    Ok(())
}

fn two_waiters() -> Outcome {
    for round in 0..rounds(5, 100) {
        let listener = listener()?;
        let deadline = Deadline::after(WAIT);
        let (client, _client_queues) = begin(listener.local_addr(), &[])?;
        let request = listener.next_request(deadline)?;
        let (_queues, qp) = Queues::new(request.context())?;
        request.init_qp(&qp)?;
        let start = Instant::now();
        let answers = thread::scope(|scope| {
            let wait = || {
                let got = client.wait_established(deadline);
                got.map_err(|error| error.to_string())
            };
            let waiters = [scope.spawn(wait), scope.spawn(wait)];
            let server = request.accept(qp, &ConnParams::default(), b"hello");
            let answers = waiters.map(|waiter| waiter.join());
            server?.wait_established(deadline)?;
            Ok::<_, Failed>(answers)
        })?;
        let mut data = Vec::new();
        for answer in answers {
            data.push(answer.map_err(|_| "a waiting thread panicked")??);
        }
        // The second waits for an event that never comes: it looks at the state every 100 ms.
        ensure!(start.elapsed() < 2 * SECOND, "took {:?}", start.elapsed());
        data.sort();
        ensure!(data[0].is_empty(), "round {round}: the data came twice");
        ensure!(data[1].starts_with(b"hello"), "round {round}: {data:?}");
    }
    Ok(())
}

fn impossible_parameters() -> Outcome {
    type Change = fn(&mut ConnParams);
    let changes: [(&str, Change); 4] = [
        ("retry_count", |params| params.retry_count = 8),
        ("rnr_retry", |params| params.rnr_retry = u8::MAX),
        ("ack_timeout", |params| params.ack_timeout = 32),
        ("min_rnr_timer", |params| params.min_rnr_timer = 32),
    ];
    for (name, change) in changes {
        let mut params = ConnParams::default();
        change(&mut params);
        let listener = listener()?;
        // On the side that asks.
        let resolved = resolve(listener.local_addr())?;
        let (_queues, qp) = Queues::new(resolved.context())?;
        resolved.init_qp(&qp)?;
        let error = resolved.connect(qp, &params, &[]).err().ok_or(name)?;
        ensure!(error.to_string().contains(name), "{name}: {error}");
        ensure!(
            listener.try_next_request()?.is_none(),
            "{name}: asked all the same"
        );
        // On the side that accepts: its client is not left waiting.
        let (client, _client_queues) = begin(listener.local_addr(), &[])?;
        let request = listener.next_request(Deadline::after(WAIT))?;
        let (_server_queues, qp) = Queues::new(request.context())?;
        request.init_qp(&qp)?;
        let error = request.accept(qp, &params, &[]).err().ok_or(name)?;
        ensure!(error.to_string().contains(name), "{name}: {error}");
        let told = client.wait_established(Deadline::after(WAIT)).err();
        ensure!(
            matches!(told, Some(Error::Rejected { .. })),
            "{name}: the client was told {told:?}"
        );
    }
    Ok(())
}

fn datagram_queue_pair() -> Outcome {
    let listener = listener()?;
    let build = |context: &Context, qp_type| -> Result<QueuePair, Failed> {
        let pd = ProtectionDomain::new(context)?;
        let cq = CompletionQueue::builder(context, 64).build()?;
        let qp = QueuePair::builder(&pd, qp_type, &cq, &cq).build()?;
        qp.to_init(&InitAttributes::new(harness::device().port))?;
        Ok(qp)
    };
    for qp_type in [QpType::UD, QpType::UC] {
        // On the side that asks: it would learn of it only after the answer.
        let resolved = resolve(listener.local_addr())?;
        let qp = build(resolved.context(), qp_type)?;
        let error = resolved.connect(qp, &ConnParams::default(), &[]).err();
        let error = error.ok_or(format!("{qp_type} connected"))?;
        let text = error.to_string();
        ensure!(
            text.contains(&qp_type.to_string()) && text.contains("RC"),
            "{text}"
        );
        ensure!(listener.try_next_request()?.is_none(), "asked all the same");
        // On the side that accepts.
        let (client, _queues) = begin(listener.local_addr(), &[])?;
        let request = listener.next_request(Deadline::after(WAIT))?;
        let qp = build(request.context(), qp_type)?;
        let error = request.accept(qp, &ConnParams::default(), &[]).err();
        let error = error.ok_or(format!("{qp_type} accepted"))?;
        ensure!(error.to_string().contains("RC"), "{error}");
        let told = client.wait_established(Deadline::after(WAIT)).err();
        ensure!(
            matches!(told, Some(Error::Rejected { .. })),
            "the client was told {told:?}"
        );
    }
    Ok(())
}
