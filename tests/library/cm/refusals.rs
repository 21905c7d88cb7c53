//! Connections that do not come about: the error says why, and no drop waits.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use harness::{Need, Outcome, SECOND, Test, WAIT, device, ensure, ensure_eq, phase, rounds, test};
use rpma::cm::{
    ConnParams, ConnectOptions, Connection, ConnectionState, Deadline, Error, RejectReason,
    Resolving,
};

use super::dropped_quickly;
use crate::raw::{Queues, begin, listener};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test(
            "nobody_listening_is_no_listener_and_no_drop_waits",
            &[Need::Device],
            nobody_listens,
        ),
        test(
            "a_rejection_brings_reason_and_data_and_no_drop_waits",
            &[Need::Device],
            a_rejection_brings_its_data,
        ),
        test(
            "a_dropped_request_is_a_rejection",
            &[Need::Device],
            a_dropped_request,
        ),
        test(
            "an_address_without_a_device_is_not_resolved_and_no_drop_waits",
            &[Need::Device],
            an_address_without_a_device,
        ),
        test(
            "a_client_that_starts_before_its_server_connects_with_a_new_request",
            &[Need::Device],
            a_client_before_its_server,
        ),
    ]
}

/// An address at which nobody listens: a port that was just given back.
pub(crate) fn unused() -> Result<SocketAddr, harness::Failed> {
    Ok(listener()?.local_addr())
}

/// The event and id are gone quickly whichever handle goes first.
fn all_dropped_quickly(connection: Connection, queues: Queues) -> Outcome {
    dropped_quickly("the connection", connection)?;
    dropped_quickly("the queues", queues)
}

fn nobody_listens() -> Outcome {
    for _ in 0..rounds(5, 100) {
        let to = unused()?;
        let (connection, queues) = begin(to, &[])?;
        let error = connection
            .wait_established(Deadline::after(WAIT))
            .err()
            .ok_or("connected")?;
        ensure_eq!(error, Error::NoListener { peer: to }, "{error}");
        ensure_eq!(connection.state(), ConnectionState::Closed, "state");
        ensure!(error.hint().is_some(), "no hint");
        all_dropped_quickly(connection, queues)?;
    }
    Ok(())
}

fn a_rejection_brings_its_data() -> Outcome {
    for sent in [&b""[..], b"x", b"the reason", &[7; 148]] {
        let listener = listener()?;
        let deadline = Deadline::after(WAIT);
        let (connection, queues) = begin(listener.local_addr(), &[])?;
        let request = listener.next_request(deadline)?;
        request.reject(sent)?;
        let error = connection
            .wait_established(deadline)
            .err()
            .ok_or("connected")?;
        let Error::Rejected {
            peer,
            reason,
            private_data,
        } = error
        else {
            return Err(format!("not a rejection: {error}").into());
        };
        ensure_eq!(peer, listener.local_addr(), "peer");
        ensure_eq!(reason, RejectReason::CONSUMER, "reason");
        let mut padded = sent.to_vec();
        padded.resize(148, 0);
        ensure_eq!(private_data, padded, "private data");
        all_dropped_quickly(connection, queues)?;
        dropped_quickly("the listener", listener)?;
    }
    let listener = listener()?;
    let (_connection, _queues) = begin(listener.local_addr(), &[])?;
    let request = listener.next_request(Deadline::after(WAIT))?;
    let error = request
        .reject(&[0; 149])
        .err()
        .ok_or("149 bytes were taken")?;
    ensure!(
        matches!(
            error,
            Error::PrivateDataTooLong {
                given: 149,
                max: 148,
                ..
            }
        ),
        "{error}"
    );
    Ok(())
}

fn a_dropped_request() -> Outcome {
    let listener = listener()?;
    let deadline = Deadline::after(WAIT);
    let (connection, _queues) = begin(listener.local_addr(), &[])?;
    drop(listener.next_request(deadline)?);
    let start = Instant::now();
    let error = connection
        .wait_established(deadline)
        .err()
        .ok_or("connected")?;
    ensure!(
        matches!(
            error,
            Error::Rejected {
                reason: RejectReason::CONSUMER,
                ..
            }
        ),
        "{error}"
    );
    ensure!(start.elapsed() < 2 * SECOND, "after {:?}", start.elapsed());
    Ok(())
}

fn an_address_without_a_device() -> Outcome {
    // Loopback has no RDMA device; the second is of a range that is never routed.
    for text in ["127.0.0.1:7204", "[::1]:7204", "240.0.0.1:7204"] {
        let peer: SocketAddr = text.parse()?;
        phase(format!("resolving {peer}"));
        let start = Instant::now();
        let error = Resolving::start(
            peer,
            &ConnectOptions::default(),
            Deadline::after(3 * SECOND),
        )
        .and_then(Resolving::wait)
        .err()
        .ok_or(format!("{peer} was resolved"))?;
        // Loopback addresses are resolved by the kernel, and only then no device is found.
        ensure!(
            matches!(
                error,
                Error::AddressNotResolved { .. } | Error::RouteNotResolved { .. }
            ),
            "{peer}: {error}"
        );
        ensure!(error.to_string().contains(text), "{error}");
        ensure!(error.hint().is_some(), "no hint");
        ensure!(
            start.elapsed() < 5 * SECOND,
            "{peer} took {:?}",
            start.elapsed()
        );
    }
    Ok(())
}

fn a_client_before_its_server() -> Outcome {
    let to = unused()?;
    let start = Instant::now();
    let deadline = Deadline::after(WAIT);
    let mut listener = None;
    let mut refused = 0;
    loop {
        let (client, client_queues) = begin(to, &[])?;
        if let Some(listener) = &listener {
            let listener: &rpma::cm::Listener = listener;
            let request = listener.next_request(deadline)?;
            let (queues, qp) = Queues::new(request.context())?;
            request.init_qp(&qp)?;
            let server = request.accept(qp, &ConnParams::default(), &[])?;
            client.wait_established(deadline)?;
            server.wait_established(deadline)?;
            drop((client, client_queues, server, queues));
            break;
        }
        let error = client
            .wait_established(deadline)
            .err()
            .ok_or("connected to nobody")?;
        ensure!(matches!(error, Error::NoListener { .. }), "{error}");
        refused += 1;
        drop((client, client_queues));
        if start.elapsed() > SECOND / 2 && listener.is_none() {
            listener = Some(rpma::cm::Listener::bind(
                to,
                &rpma::cm::ListenOptions::default(),
            )?);
        } else {
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    ensure!(refused >= 2, "refused only {refused} times");
    ensure!(device().ip == to.ip(), "another device");
    Ok(())
}
