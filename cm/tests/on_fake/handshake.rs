//! Every way that a handshake can go.

use std::time::Duration;

use cm::verbs::QpState;
use cm::verbs::sys::fake::control;
use cm::{
    ConnParams, ConnectionEvent, ConnectionState, Deadline, Error, ListenOptions, Listener,
    Message, RejectReason,
};

use super::common::{
    accept, accepted, connect, established, iwarp, listen, queue_pair, resolve, roce, soon,
};

fn padded(data: &[u8], len: usize) -> Vec<u8> {
    let mut data = data.to_vec();
    data.resize(len, 0);
    data
}

#[test]
fn both_sides_get_each_others_data_padded_to_the_size_of_the_message() {
    let fake = control::session();
    for (request_data, accept_data) in [
        (&b""[..], &b""[..]),
        (b"q", b"answer"),
        (&[1; 56], &[2; 196]),
    ] {
        let listener = listen(roce()).expect("a listener");
        let client = connect(listener.local_addr(), request_data).expect("a request");
        assert_eq!(client.state(), ConnectionState::Connecting);
        let request = listener.next_request(soon()).expect("the request");
        assert_eq!(request.private_data(), padded(request_data, 56));
        assert_eq!(Some(request.peer_addr()), client.local_addr());
        let server = accept(request, accept_data).expect("accepted");
        assert_eq!(client.qp().state(), QpState::INIT);
        assert_eq!(server.qp().state(), QpState::RTS);
        let answer = client.wait_established(soon()).expect("established");
        assert_eq!(answer, padded(accept_data, 196));
        assert_eq!(server.wait_established(soon()).expect("established"), b"");
        assert_eq!(client.qp().state(), QpState::RTS);
        assert_eq!(fake.established(), 1);
    }
    fake.finish();
}

#[test]
fn on_iwarp_the_kernel_readies_the_queue_pairs_and_data_comes_as_it_was_sent() {
    let fake = control::session();
    let listener = listen(iwarp()).expect("a listener");
    let client = connect(listener.local_addr(), &[1; 255]).expect("a request");
    let request = listener.next_request(soon()).expect("the request");
    assert_eq!(request.private_data(), [1; 255]);
    let server = accept(request, b"answer").expect("accepted");
    assert_eq!(server.qp().state(), QpState::INIT);
    assert_eq!(
        client.wait_established(soon()).expect("established"),
        b"answer"
    );
    server.wait_established(soon()).expect("established");
    assert_eq!(
        (client.qp().state(), server.qp().state()),
        (QpState::RTS, QpState::RTS)
    );
    assert_eq!(fake.count("rdma_establish"), 0);
    drop((client, server, listener));
    fake.finish();
}

#[test]
fn an_id_moves_to_its_own_channel_before_it_accepts() {
    let fake = control::session();
    let ends = accepted(roce()).expect("accepted");
    let calls = fake.calls();
    let at = |name| calls.iter().position(|call| *call == name).expect(name);
    assert!(at("rdma_migrate_id") < at("rdma_accept"));
    drop(ends);
    fake.finish();
}

#[test]
fn nobody_listening_is_told_apart_on_both_transports() {
    let fake = control::session();
    for addr in [roce(), iwarp()] {
        let port = listen(addr).expect("a listener").local_addr();
        let client = connect(port, b"").expect("a request");
        let error = client
            .wait_established(soon())
            .expect_err("nobody is there");
        assert_eq!(error, Error::NoListener { peer: port });
        assert_eq!(client.state(), ConnectionState::Closed);
        assert_eq!(client.qp().state(), QpState::ERR);
    }
    fake.finish();
}

#[test]
fn a_rejection_brings_its_data_and_its_reason() {
    let fake = control::session();
    for sent in [&b""[..], b"no", &[9; 148]] {
        let listener = listen(roce()).expect("a listener");
        let client = connect(listener.local_addr(), b"").expect("a request");
        let request = listener.next_request(soon()).expect("the request");
        request.reject(sent).expect("rejected");
        match client.wait_established(soon()) {
            Err(Error::Rejected {
                reason,
                private_data,
                ..
            }) => {
                assert_eq!(reason, RejectReason::CONSUMER);
                assert_eq!(private_data, padded(sent, 148));
            }
            other => panic!("{other:?}"),
        }
    }
    fake.finish();
}

#[test]
fn a_refusal_by_tcp_is_no_listener_and_a_reset_leaves_nobody_to_be_rejected() {
    let fake = control::session();
    let listener = listen(iwarp()).expect("a listener");
    fake.fail("rdma_connect", 0, libc::ECONNREFUSED);
    let error = connect(listener.local_addr(), b"").expect_err("refused");
    let peer = listener.local_addr();
    assert_eq!(error, Error::NoListener { peer });
    let client = connect(peer, b"").expect("a request");
    let request = listener.next_request(soon()).expect("the request");
    fake.fail("rdma_reject", 0, libc::ECONNRESET);
    request.reject(b"no").expect("nobody is left to be told");
    drop((client, listener));
    fake.finish();
}

#[test]
fn a_request_that_nobody_decides_is_rejected() {
    let fake = control::session();
    // Dropped, waiting in the listener that is dropped, and taken with the listener dropped first.
    for how in 0..3 {
        let listener = listen(roce()).expect("a listener");
        let client = connect(listener.local_addr(), b"").expect("a request");
        match how {
            0 => drop(listener.next_request(soon()).expect("the request")),
            1 => drop(listener),
            _ => {
                let request = listener.next_request(soon()).expect("the request");
                drop(listener);
                drop(request);
            }
        }
        let error = client.wait_established(soon()).expect_err("rejected");
        assert!(matches!(error, Error::Rejected { .. }), "{how}: {error}");
    }
    fake.finish();
}

#[test]
fn too_long_private_data_is_refused_before_c_and_the_request_rejected() {
    let fake = control::session();
    let listener = listen(roce()).expect("a listener");
    let error = connect(listener.local_addr(), &[0; 57]).expect_err("too long");
    assert!(
        matches!(
            error,
            Error::PrivateDataTooLong {
                given: 57,
                max: 56,
                ..
            }
        ),
        "{error}"
    );
    assert_eq!(fake.count("rdma_connect"), 0);
    let client = connect(listener.local_addr(), b"").expect("a request");
    let error = accept(
        listener.next_request(soon()).expect("the request"),
        &[0; 197],
    );
    let (given, max) = (
        197,
        Message::Accept.max_private_data(cm::verbs::TransportType::INFINIBAND),
    );
    assert!(
        matches!(error, Err(Error::PrivateDataTooLong { given: g, max: m, .. }) if (g, m) == (given, max))
    );
    assert_eq!(fake.count("rdma_accept"), 0);
    client.wait_established(soon()).expect_err("rejected");
    drop((client, listener));
    fake.finish();
}

#[test]
fn more_requests_than_the_backlog_holds_are_not_answered() {
    let fake = control::session();
    let mut options = ListenOptions::default();
    options.backlog = 2;
    let listener = Listener::bind(roce(), &options).expect("a listener");
    let to = listener.local_addr();
    let clients: Vec<_> = (0..3)
        .map(|_| connect(to, b"").expect("a request"))
        .collect();
    let error = clients[2].wait_established(soon()).expect_err("dropped");
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    for _ in 0..2 {
        drop(listener.next_request(soon()).expect("a request"));
    }
    assert!(listener.try_next_request().expect("no error").is_none());
    drop((clients, listener));
    fake.finish();
}

#[test]
fn each_side_is_told_once_that_the_other_disconnected() {
    let fake = control::session();
    for addr in [roce(), iwarp()] {
        for first in [0, 1] {
            let (client, server) = established(addr).expect("established");
            let ends = [&client, &server];
            ends[first].disconnect().expect("disconnected");
            ends[first].disconnect().expect("again, without effect");
            assert_eq!(ends[first].state(), ConnectionState::Closed);
            for end in [ends[1 - first], ends[first]] {
                let event = end.next_event(soon()).expect("an event");
                assert_eq!(event, ConnectionEvent::Disconnected);
                assert_eq!(end.try_next_event().expect("no error"), None);
                assert_eq!(end.qp().state(), QpState::ERR);
            }
        }
    }
    fake.finish();
}

#[test]
fn a_dropped_end_tells_the_other() {
    let fake = control::session();
    for drop_client in [true, false] {
        let (client, server) = established(roce()).expect("established");
        let left = if drop_client {
            drop(client);
            server
        } else {
            drop(server);
            client
        };
        assert_eq!(
            left.next_event(soon()).expect("an event"),
            ConnectionEvent::Disconnected
        );
    }
    fake.finish();
}

#[test]
fn a_client_that_gives_up_leaves_nobody_waiting() {
    let fake = control::session();
    // Before the request is taken, after it is taken, after it is accepted.
    for when in 0..3 {
        let listener = listen(roce()).expect("a listener");
        let client = connect(listener.local_addr(), b"").expect("a request");
        if when == 0 {
            drop(client);
            let request = listener.next_request(soon()).expect("the request");
            accept(request, b"").expect_err("the peer has gone");
        } else if when == 1 {
            let request = listener.next_request(soon()).expect("the request");
            drop(client);
            accept(request, b"").expect_err("the peer has gone");
        } else {
            let request = listener.next_request(soon()).expect("the request");
            let server = accept(request, b"").expect("accepted");
            drop(client);
            let error = server
                .wait_established(soon())
                .expect_err("the peer has gone");
            assert!(matches!(error, Error::Rejected { .. }), "{error}");
            assert_eq!(server.qp().state(), QpState::ERR);
        }
        drop(listener);
        assert_eq!(fake.left_over(), Vec::<String>::new(), "{when}");
    }
    fake.finish();
}

#[test]
fn a_client_that_disconnects_before_the_answer_declines_it() {
    let fake = control::session();
    let (client, server) = accepted(roce()).expect("accepted");
    client.disconnect().expect("given up");
    assert_eq!(client.try_next_event().expect("no error"), None);
    let error = server.wait_established(soon()).expect_err("declined");
    assert!(matches!(error, Error::Rejected { .. }), "{error}");
    assert_eq!(client.state(), ConnectionState::Closed);
    drop((client, server));
    fake.finish();
}

#[test]
fn a_server_that_disconnects_before_the_confirmation_stays_closed() {
    let fake = control::session();
    let (client, server) = accepted(roce()).expect("accepted");
    server.disconnect().expect("given up");
    client
        .wait_established(soon())
        .expect("the answer was there");
    assert_eq!(
        server.try_next_event().expect("no error"),
        None,
        "a late confirmation"
    );
    assert_eq!(server.state(), ConnectionState::Closed);
    assert_eq!(
        client.next_event(soon()).expect("an event"),
        ConnectionEvent::Disconnected
    );
    drop((client, server));
    fake.finish();
}

#[test]
fn data_stands_for_a_confirmation_that_was_lost() {
    let fake = control::session();
    let (client, server) = accepted(roce()).expect("accepted");
    fake.lose_confirmation();
    client.wait_established(soon()).expect("established");
    let error = server.wait_established(Deadline::after(Duration::from_millis(20)));
    assert!(matches!(error, Err(Error::TimedOut { .. })));
    server.notify_received().expect("notified");
    server.wait_established(soon()).expect("established");
    server.notify_received().expect("without effect");
    assert_eq!(fake.count("rdma_notify"), 1);
    drop((client, server));
    fake.finish();
}

#[test]
fn depths_are_those_that_both_sides_agree_on() {
    let fake = control::session();
    let listener = listen(roce()).expect("a listener");
    let resolved = resolve(listener.local_addr()).expect("resolved");
    let qp = queue_pair(resolved.context()).expect("a queue pair");
    resolved.init_qp(&qp).expect("INIT");
    let mut params = ConnParams::default();
    (params.responder_resources, params.initiator_depth) = (3, 5);
    let client = resolved.connect(qp, &params, b"").expect("a request");
    let request = listener.next_request(soon()).expect("the request");
    // The peer's reads towards us, and ours towards the peer.
    assert_eq!(
        (request.responder_resources(), request.initiator_depth()),
        (5, 3)
    );
    let server = accept(request, b"").expect("accepted");
    let agreed = server.params();
    assert_eq!((agreed.responder_resources, agreed.initiator_depth), (5, 3));
    client.wait_established(soon()).expect("established");
    drop((client, server, listener));
    fake.finish();
}

#[test]
fn rejecting_a_peer_that_has_given_up_is_no_error() {
    let fake = control::session();
    let listener = listen(roce()).expect("a listener");
    let client = connect(listener.local_addr(), b"").expect("a request");
    let request = listener.next_request(soon()).expect("the request");
    drop(client);
    request
        .reject(b"too late")
        .expect("nobody is left to be told");
    let client = connect(listener.local_addr(), b"").expect("a request");
    let request = listener.next_request(soon()).expect("the request");
    fake.fail("rdma_reject", 0, libc::EIO);
    request.reject(b"").expect_err("any other failure is one");
    drop((client, listener));
    fake.finish();
}
