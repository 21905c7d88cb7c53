//! Bytes that ride on the handshake, as the other side sees them.

use harness::{Failed, Need, Outcome, Test, WAIT, device, ensure, ensure_eq, pattern, test};
use rpma::cm::{ConnParams, Connection, Deadline, Error};

use crate::raw::{Queues, begin, listener};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test(
            "private_data_arrives_padded_with_zeros_to_the_message_size",
            &[Need::Device],
            private_data_arrives_padded,
        ),
        test(
            "too_much_private_data_is_refused_before_the_library",
            &[Need::Device],
            too_much_is_refused,
        ),
        test(
            "private_data_and_addresses_outlive_event_migration_and_listener",
            &[Need::Device],
            data_outlives_its_event,
        ),
    ]
}

/// `bytes` as the receiver of a message with that much room sees them.
fn padded(bytes: &[u8], room: usize) -> Vec<u8> {
    let mut padded = bytes.to_vec();
    padded.resize(room, 0);
    padded
}

fn private_data_arrives_padded() -> Outcome {
    for (request_len, accept_len) in [(0, 0), (1, 1), (9, 9), (56, 196), (0, 196), (56, 0)] {
        let (asks, answers) = (
            pattern::bytes(1, request_len),
            pattern::bytes(2, accept_len),
        );
        let listener = listener()?;
        let deadline = Deadline::after(WAIT);
        let (client, _client_queues) = begin(listener.local_addr(), &asks)?;
        let request = listener.next_request(deadline)?;
        ensure_eq!(
            request.private_data(),
            padded(&asks, 56),
            "request of {request_len} bytes"
        );
        let (_queues, qp) = Queues::new(request.context())?;
        request.init_qp(&qp)?;
        let server = request.accept(qp, &ConnParams::default(), &answers)?;
        let received = client.wait_established(deadline)?;
        ensure_eq!(
            received,
            padded(&answers, 196),
            "acceptance of {accept_len} bytes"
        );
        ensure_eq!(
            server.wait_established(deadline)?,
            Vec::new(),
            "the passive side's own event"
        );
    }
    Ok(())
}

fn too_much_is_refused() -> Outcome {
    let listener = listener()?;
    let error = begin(listener.local_addr(), &[1; 57])
        .err()
        .ok_or("57 bytes were taken")?;
    let text = error.message().unwrap_or_default();
    ensure!(text.contains("57 bytes") && text.contains("56"), "{text}");
    ensure!(
        listener.try_next_request()?.is_none(),
        "something was sent all the same"
    );

    let (client, _client_queues) = begin(listener.local_addr(), &[])?;
    let request = listener.next_request(Deadline::after(WAIT))?;
    let (_queues, qp) = Queues::new(request.context())?;
    request.init_qp(&qp)?;
    let error = request
        .accept(qp, &ConnParams::default(), &[1; 197])
        .err()
        .ok_or("197 bytes were taken")?;
    ensure!(
        matches!(
            error,
            Error::PrivateDataTooLong {
                given: 197,
                max: 196,
                ..
            }
        ),
        "{error}"
    );
    // The client learns of it at once.
    let error = client
        .wait_established(Deadline::after(WAIT))
        .err()
        .ok_or("connected")?;
    ensure!(matches!(error, Error::Rejected { .. }), "{error}");
    Ok(())
}

fn data_outlives_its_event() -> Outcome {
    let (server, client, received) = accepted()?;
    ensure_eq!(
        received,
        padded(b"from the client", 56),
        "what came with the request"
    );
    ensure_eq!(server.peer_addr().ip(), device().ip, "the client's address");
    ensure_eq!(
        Some(server.peer_addr()),
        client.0.local_addr(),
        "the client's address"
    );
    ensure_eq!(
        Some(client.0.peer_addr()),
        server.local_addr(),
        "the server's address"
    );
    let answer = client.0.wait_established(Deadline::after(WAIT))?;
    ensure_eq!(
        answer,
        padded(b"from the server", 196),
        "what came with the acceptance"
    );
    server.wait_established(Deadline::after(WAIT))?;
    Ok(())
}

type End = (Connection, Queues);

/// A connection whose listener, request and event are gone, and what came with the request.
fn accepted() -> Result<(Connection, End, Vec<u8>), Failed> {
    let listener = listener()?;
    let client = begin(listener.local_addr(), b"from the client")?;
    let request = listener.next_request(Deadline::after(WAIT))?;
    let received = request.private_data().to_vec();
    let (queues, qp) = Queues::new(request.context())?;
    request.init_qp(&qp)?;
    let server = request.accept(qp, &ConnParams::default(), b"from the server")?;
    drop(listener);
    drop(queues);
    Ok((server, client, received))
}
