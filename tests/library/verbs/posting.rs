//! Posting: what is refused, and where completions go.

use std::thread;
use std::time::Duration;

use harness::{Failed, Need, Outcome, Test, WAIT, ensure, ensure_eq, test};
use rpma::cm::ConnParams;
use rpma::cm::verbs::{
    Deadline, PostError, PostErrorKind, QpState, QueuePair, SendFlags, SendRequest, Sge, WcOpcode,
};

use crate::raw::{INLINE, Queues, RawPair, SEND_SGES, listener, poll, resolve, try_poll};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test(
            "completions_of_sends_and_receives_go_each_to_their_own_queue",
            &[Need::Device],
            completions_go_to_their_own_queue,
        ),
        test(
            "a_send_before_rts_is_refused_and_nothing_is_sent_later",
            &[Need::Device],
            a_send_before_rts_is_refused,
        ),
        test(
            "too_many_sges_and_too_much_inline_are_refused_before_the_provider",
            &[Need::Device],
            too_much_is_refused,
        ),
        test(
            "a_full_send_queue_is_queue_full_and_takes_more_later",
            &[Need::Device],
            a_full_queue,
        ),
    ]
}

fn completions_go_to_their_own_queue() -> Outcome {
    let pair = RawPair::new()?;
    let (client, server) = (&pair.client_queues, &pair.server_queues);
    for (from, from_qp, to, to_qp) in [
        (client, pair.client.qp(), server, pair.server.qp()),
        (server, pair.server.qp(), client, pair.client.qp()),
    ] {
        to.recv(to_qp, 1)?;
        from.send(from_qp, 2, 100)?;
        let sent = poll(&from.send_cq)?;
        ensure_eq!(sent.wr_id(), 2, "on the send queue");
        ensure_eq!(sent.result()?.opcode(), WcOpcode::SEND, "on the send queue");
        let received = poll(&to.recv_cq)?;
        ensure_eq!(received.wr_id(), 1, "on the receive queue");
        ensure_eq!(
            received.result()?.opcode(),
            WcOpcode::RECV,
            "on the receive queue"
        );
        ensure_eq!(received.result()?.byte_len(), 100, "bytes received");
        for (name, cq) in [
            ("sender's receive", &from.recv_cq),
            ("receiver's send", &to.send_cq),
        ] {
            ensure!(try_poll(cq)?.is_none(), "a completion on the {name} queue");
        }
    }
    let RawPair {
        client,
        client_queues,
        server,
        server_queues,
    } = pair;
    drop((client, server));
    for queues in [client_queues, server_queues] {
        drop(queues.buffer);
        queues.send_cq.close()?;
        queues.recv_cq.close()?;
        queues.pd.close()?;
    }
    Ok(())
}

fn a_send_before_rts_is_refused() -> Outcome {
    let listener = listener()?;
    let deadline = Deadline::after(WAIT);
    let resolved = resolve(listener.local_addr())?;
    let (client, qp) = Queues::new(resolved.context())?;
    ensure_eq!(send_refused(&client, &qp)?, QpState::RESET, "state");
    // Not even a receive is taken in RESET.
    ensure!(client.recv(&qp, 1).is_err(), "a receive was taken in RESET");
    resolved.init_qp(&qp)?;
    ensure_eq!(send_refused(&client, &qp)?, QpState::INIT, "state");
    let connection = resolved.connect(qp, &ConnParams::default(), &[])?;

    let request = listener.next_request(deadline)?;
    let (server, qp) = Queues::new(request.context())?;
    request.init_qp(&qp)?;
    server.recv(&qp, 7)?;
    let accepted = request.accept(qp, &ConnParams::default(), &[])?;
    ensure_eq!(
        send_refused(&client, connection.qp())?,
        QpState::INIT,
        "state"
    );
    connection.wait_established(deadline)?;
    accepted.wait_established(deadline)?;

    thread::sleep(Duration::from_millis(300));
    ensure!(
        try_poll(&client.send_cq)?.is_none(),
        "a refused send completed"
    );
    ensure!(
        try_poll(&server.recv_cq)?.is_none(),
        "a refused send arrived"
    );
    client.send(connection.qp(), 8, 5)?;
    ensure_eq!(
        poll(&client.send_cq)?.wr_id(),
        8,
        "the first send that was taken"
    );
    ensure_eq!(poll(&server.recv_cq)?.result()?.byte_len(), 5, "its bytes");
    Ok(())
}

/// Tries to send, and gives the state for which it is refused.
fn send_refused(queues: &Queues, qp: &QueuePair) -> Result<QpState, Failed> {
    let sges = [queues.buffer.sge(0, 64)];
    match post(qp, SendRequest::send(99, &sges)) {
        Err(PostError {
            kind: PostErrorKind::State(state),
            queued: 0,
        }) => Ok(state),
        other => Err(format!("a send in state {}: {other:?}", qp.state()).into()),
    }
}

fn post(qp: &QueuePair, request: SendRequest<'_>) -> Result<(), PostError> {
    let mut request = request;
    // SAFETY: every SGE of these tests lies in a registered buffer to which no reference exists,
    // or names bytes that are readable during the call.
    unsafe { qp.post_send(&mut request) }
}

fn too_much_is_refused() -> Outcome {
    let pair = RawPair::new()?;
    let (queues, qp) = (&pair.client_queues, pair.client.qp());
    let limits = *qp.capabilities();
    ensure!(
        limits.max_send_sge >= SEND_SGES && limits.max_inline_data >= INLINE,
        "{limits:?}"
    );

    let too_many: Vec<Sge> = (0..=limits.max_send_sge)
        .map(|_| queues.buffer.sge(0, 1))
        .collect();
    let expected = PostErrorKind::TooManySges {
        given: limits.max_send_sge + 1,
        max: limits.max_send_sge,
    };
    let refused = |kind| Err(PostError { kind, queued: 0 });
    ensure_eq!(
        post(qp, SendRequest::send(1, &too_many)),
        refused(expected),
        "SGEs"
    );

    let length = limits.max_inline_data as usize + 1;
    let too_long = [queues.buffer.sge(0, length)];
    let expected = PostErrorKind::InlineTooLong {
        given: length as u64,
        max: limits.max_inline_data,
    };
    let request = SendRequest::send(2, &too_long).with_flags(SendFlags::INLINE);
    ensure_eq!(post(qp, request), refused(expected), "inline");
    // In two pieces, each of which would fit.
    let pieces = [
        queues.buffer.sge(0, length - 1),
        queues.buffer.sge(0, length - 1),
    ];
    let request = SendRequest::send(3, &pieces).with_flags(SendFlags::INLINE);
    ensure!(
        matches!(
            post(qp, request),
            Err(PostError {
                kind: PostErrorKind::InlineTooLong { .. },
                ..
            })
        ),
        "inline in two pieces"
    );

    // The connection is as good as before, and what is just allowed goes through.
    let (server, server_qp) = (&pair.server_queues, pair.server.qp());
    server.recv(server_qp, 4)?;
    queues
        .buffer
        .store(0, &harness::pattern::bytes(4, length - 1));
    let just = [queues.buffer.sge(0, length - 1)];
    let flags = SendFlags::INLINE | SendFlags::SIGNALED;
    post(qp, SendRequest::send(5, &just).with_flags(flags))?;
    queues.buffer.store(0, &[0; 16]);
    poll(&queues.send_cq)?.result()?;
    poll(&server.recv_cq)?.result()?;
    harness::pattern::check(&server.buffer.load(0, length - 1), 4)?;
    Ok(())
}

fn a_full_queue() -> Outcome {
    let pair = RawPair::new()?;
    let (queues, qp) = (&pair.client_queues, pair.client.qp());
    let granted = qp.capabilities().max_send_wr;
    let sges = [queues.buffer.sge(0, 8)];
    // Nothing is received, so nothing completes.
    let mut taken = 0;
    let refused = loop {
        match post(
            qp,
            SendRequest::send(taken, &sges).with_flags(SendFlags::SIGNALED),
        ) {
            Ok(()) => taken += 1,
            Err(error) => break error,
        }
        ensure!(
            taken <= u64::from(granted) * 2,
            "{taken} taken by a queue of {granted}"
        );
    };
    ensure_eq!(
        refused,
        PostError {
            kind: PostErrorKind::QueueFull,
            queued: 0
        },
        "the full queue"
    );
    ensure!(
        taken >= u64::from(granted),
        "full after {taken}, {granted} were granted"
    );
    for n in 0..taken {
        pair.server_queues.recv(pair.server.qp(), n)?;
        ensure_eq!(poll(&queues.send_cq)?.wr_id(), n, "order of completions");
        poll(&pair.server_queues.recv_cq)?.result()?;
    }
    post(
        qp,
        SendRequest::send(taken, &sges).with_flags(SendFlags::SIGNALED),
    )?;
    pair.server_queues.recv(pair.server.qp(), taken)?;
    ensure_eq!(
        poll(&queues.send_cq)?.wr_id(),
        taken,
        "after the queue was full"
    );
    Ok(())
}
