//! Events of a connection: each comes once, on the channel of its own connection.

use std::time::Duration;

use harness::{Need, Outcome, Test, WAIT, ensure, ensure_eq, rounds, test};
use rpma::cm::verbs::{QpState, WcStatus};
use rpma::cm::{ConnParams, Connection, ConnectionEvent, ConnectionState, Deadline, Error};

use crate::raw::{Queues, RawPair, begin, listener, poll};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test(
            "established_comes_once_on_the_connections_own_channel",
            &[Need::Device],
            established_comes_once,
        ),
        test(
            "disconnect_from_either_side_flushes_the_receives_of_both",
            &[Need::Device],
            disconnect_flushes_both,
        ),
        test(
            "disconnecting_again_is_no_error",
            &[Need::Device],
            disconnecting_again,
        ),
        test(
            "dropping_one_end_disconnects_the_other",
            &[Need::Device],
            dropping_one_end,
        ),
        test(
            "a_burst_of_clients_is_served",
            &[Need::Device],
            a_burst_of_clients,
        )
        .limit(120),
        test(
            "steps_that_do_not_block_reach_the_same_end",
            &[Need::Device],
            steps_that_do_not_block,
        ),
    ]
}

fn established_comes_once() -> Outcome {
    for _ in 0..rounds(5, 50) {
        let listener = listener()?;
        let deadline = Deadline::after(WAIT);
        let (client, _client_queues) = begin(listener.local_addr(), &[])?;
        let request = listener.next_request(deadline)?;
        let (_queues, qp) = Queues::new(request.context())?;
        request.init_qp(&qp)?;
        let server = request.accept(qp, &ConnParams::default(), &[])?;
        for end in [&client, &server] {
            ensure_eq!(end.state(), ConnectionState::Connecting, "state");
            let event = end.next_event(deadline)?;
            ensure!(
                matches!(event, ConnectionEvent::Established { .. }),
                "first event {event:?}"
            );
            ensure_eq!(end.state(), ConnectionState::Established, "state");
        }
        for end in [&client, &server] {
            let error = end
                .next_event(Deadline::after(Duration::from_millis(200)))
                .err();
            ensure!(
                matches!(error, Some(Error::TimedOut { .. })),
                "second event {error:?}"
            );
            ensure_eq!(end.qp().state(), QpState::RTS, "state of the queue pair");
        }
        ensure!(listener.try_next_request()?.is_none(), "a second request");
    }
    Ok(())
}

fn disconnect_flushes_both() -> Outcome {
    for server_ends in [false, true] {
        let pair = RawPair::new()?;
        let ends = [
            (&pair.client, &pair.client_queues),
            (&pair.server, &pair.server_queues),
        ];
        for (end, queues) in ends {
            for n in 0..5 {
                queues.recv(end.qp(), n)?;
            }
        }
        ends[usize::from(server_ends)].0.disconnect()?;
        // The side that disconnects learns of the end once the other has taken its own event.
        for (end, queues) in [
            ends[usize::from(!server_ends)],
            ends[usize::from(server_ends)],
        ] {
            let event = end.next_event(Deadline::after(WAIT))?;
            ensure_eq!(
                event,
                ConnectionEvent::Disconnected,
                "server ends: {server_ends}"
            );
            ensure_eq!(end.state(), ConnectionState::Closed, "state");
            for n in 0..5 {
                let completion = poll(&queues.recv_cq)?;
                ensure_eq!(completion.wr_id(), n, "order of the flushed receives");
                ensure_eq!(completion.status(), WcStatus::WR_FLUSH_ERR, "status");
            }
        }
    }
    Ok(())
}

fn disconnecting_again() -> Outcome {
    let pair = RawPair::new()?;
    pair.client.disconnect()?;
    pair.client.disconnect()?;
    // Also after the other side did, and after the event.
    pair.server.disconnect()?;
    for end in [&pair.client, &pair.server] {
        let event = end.next_event(Deadline::after(WAIT))?;
        ensure_eq!(event, ConnectionEvent::Disconnected, "event");
        end.disconnect()?;
        end.disconnect()?;
    }
    // Before the connection stands, too.
    let listener = listener()?;
    let (client, _queues) = begin(listener.local_addr(), &[])?;
    client.disconnect()?;
    client.disconnect()?;
    Ok(())
}

fn dropping_one_end() -> Outcome {
    for server_goes in [false, true] {
        let pair = RawPair::new()?;
        let RawPair {
            client,
            client_queues,
            server,
            server_queues,
        } = pair;
        let (goes, stays, queues) = if server_goes {
            (server, client, client_queues)
        } else {
            (client, server, server_queues)
        };
        queues.recv(stays.qp(), 1)?;
        super::dropped_quickly("one end", goes)?;
        let event = stays.next_event(Deadline::after(WAIT))?;
        ensure_eq!(
            event,
            ConnectionEvent::Disconnected,
            "server goes: {server_goes}"
        );
        ensure_eq!(
            poll(&queues.recv_cq)?.status(),
            WcStatus::WR_FLUSH_ERR,
            "posted receive"
        );
    }
    Ok(())
}

fn a_burst_of_clients() -> Outcome {
    const CLIENTS: usize = 50;
    let listener = listener()?;
    let deadline = Deadline::after(Duration::from_secs(60));
    let clients: Vec<(Connection, Queues)> = (0..CLIENTS)
        .map(|n| begin(listener.local_addr(), &[u8::try_from(n).expect("few")]))
        .collect::<Result<_, _>>()?;
    let mut servers = Vec::new();
    let mut seen = [false; CLIENTS];
    for _ in 0..CLIENTS {
        let request = listener.next_request(deadline)?;
        let number = usize::from(request.private_data()[0]);
        ensure!(!seen[number], "client {number} came twice");
        seen[number] = true;
        let (queues, qp) = Queues::new(request.context())?;
        request.init_qp(&qp)?;
        queues.recv(&qp, number as u64)?;
        servers.push((
            request.accept(qp, &ConnParams::default(), &[request_byte(number)])?,
            queues,
        ));
    }
    for (number, (client, queues)) in clients.iter().enumerate() {
        let answer = client.wait_established(deadline)?;
        ensure_eq!(
            answer[0],
            request_byte(number),
            "the answer to client {number}"
        );
        queues.send(client.qp(), 1, number + 1)?;
        poll(&queues.send_cq)?.result()?;
    }
    for (server, queues) in &servers {
        server.wait_established(deadline)?;
        let completion = poll(&queues.recv_cq)?;
        let len = u64::from(completion.result()?.byte_len());
        ensure_eq!(
            len,
            completion.wr_id() + 1,
            "bytes of client {}",
            completion.wr_id()
        );
    }
    Ok(())
}

fn request_byte(number: usize) -> u8 {
    u8::try_from(number).expect("few") ^ 0x80
}

fn steps_that_do_not_block() -> Outcome {
    use rpma::cm::{ConnectOptions, Progress, Resolving};
    let deadline = Deadline::after(WAIT);
    let listener = listener()?;
    ensure!(
        listener.try_next_request()?.is_none(),
        "a request from nobody"
    );
    let mut resolving =
        Resolving::start(listener.local_addr(), &ConnectOptions::default(), deadline)?;
    let resolved = loop {
        match resolving.try_advance()? {
            Progress::Pending(pending) => resolving = pending,
            Progress::Done(resolved) => break resolved,
        }
    };
    let (_client_queues, qp) = Queues::new(resolved.context())?;
    resolved.init_qp(&qp)?;
    let client = resolved.connect(qp, &ConnParams::default(), &[])?;
    let request = loop {
        ensure!(!deadline.has_passed(), "no request came");
        if let Some(request) = listener.try_next_request()? {
            break request;
        }
    };
    let (_queues, qp) = Queues::new(request.context())?;
    request.init_qp(&qp)?;
    let server = request.accept(qp, &ConnParams::default(), &[])?;
    for end in [&client, &server] {
        loop {
            ensure!(!deadline.has_passed(), "not established");
            match end.try_next_event()? {
                None => {}
                Some(ConnectionEvent::Established { .. }) => break,
                Some(other) => return Err(format!("{other:?}").into()),
            }
        }
    }
    Ok(())
}
