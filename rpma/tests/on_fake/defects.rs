//! What librpma was known for, and does not happen here: those of its defects that no other test is
//! about.

use std::mem::MaybeUninit;
use std::time::Duration;

use cm::verbs::sys::fake::control::{self, Session};
use rpma::{
    CompletionChannel, CompletionQueue, ConnectionConfig, ConnectionEvent, ConnectionRequest,
    Endpoint, ErrorKind, FlushType, PrivateData, RejectReason, Signal, Status,
};

use super::common::{Pair, Regions, WAIT, addr, begin, completed, peer};

/// Where a call stands among all that were made.
fn last(fake: &Session, call: &str) -> usize {
    let calls = fake.calls();
    let place = calls.iter().rposition(|made| *made == call);
    place.unwrap_or_else(|| panic!("no {call} in {calls:?}"))
}

#[test]
fn an_interrupted_call_and_nothing_yet_are_no_errors() {
    let fake = control::session();
    let pair = Pair::new().expect("a connection");
    let regions = Regions::new(&pair, 8).expect("regions");
    assert_eq!(pair.client.try_next_event().expect("nothing yet"), None);
    assert!(!pair.client.cq().try_wait().expect("nothing yet"));
    let completion = pair.client.next_completion().expect("nothing yet");
    assert!(completion.is_none());
    let (to, from) = (regions.of_server.as_span(), regions.client.as_span());
    let written = pair.client.write(to, from, Signal::Always, 1);
    written.expect("posted");
    fake.fail("ibv_get_cq_event", 0, libc::EINTR);
    pair.client.cq().wait(WAIT).expect("an event");
    assert!(fake.faults_happened());
    completed(pair.client.cq());
    pair.server.disconnect().expect("begun");
    fake.fail("rdma_get_cm_event", 0, libc::EINTR);
    let event = pair.client.next_event(WAIT).expect("the end");
    assert_eq!(event, ConnectionEvent::Closed);
    assert!(fake.faults_happened());
    drop((pair, regions));
    fake.finish();
}

#[test]
fn an_event_whose_completion_was_polled_already_is_no_failure() {
    let fake = control::session();
    let pair = Pair::new().expect("a connection");
    let regions = Regions::new(&pair, 8).expect("regions");
    let (to, from) = (regions.of_server.as_span(), regions.client.as_span());
    let write = |id| pair.client.write(to, from, Signal::Always, id);
    let cq = pair.client.cq();
    write(1).expect("posted");
    let polled = cq.poll_one().expect("no failure").expect("a completion");
    assert_eq!(polled.op_context(), 1);
    // The wait is told of what is gone; there is nothing, and nothing is wrong.
    cq.wait(WAIT).expect("an event");
    let nothing = cq.poll_one().expect("no failure");
    assert!(nothing.is_none(), "{nothing:?}");
    // Who waits for a completion is not given the event instead.
    write(2).expect("posted");
    cq.poll_one().expect("no failure").expect("a completion");
    let mut room = [MaybeUninit::uninit(); 4];
    let error = cq.poll_wait(&mut room, Duration::from_millis(20));
    assert_eq!(error.expect_err("nothing").kind(), ErrorKind::TimedOut);
    write(3).expect("posted");
    assert_eq!(completed(cq).op_context(), 3);
    drop((pair, regions));
    fake.finish();
}

#[test]
fn a_completion_stands_for_every_operation_before_it_and_a_failure_names_its_own() {
    let fake = control::session();
    let pair = Pair::new().expect("a connection");
    let regions = Regions::new(&pair, 8).expect("regions");
    regions.client.store(0, b"unsigned").expect("stored");
    for id in 0..4 {
        let range = 2 * id..2 * id + 2;
        let to = regions.of_server.span(range.clone()).expect("inside");
        let from = regions.client.span(range).expect("inside");
        let signal = if id == 3 {
            Signal::Always
        } else {
            Signal::OnError
        };
        pair.client.write(to, from, signal, id).expect("posted");
    }
    assert_eq!(completed(pair.client.cq()).op_context(), 3);
    let mut found = [0; 8];
    regions.server.load(0, &mut found).expect("loaded");
    assert_eq!(&found, b"unsigned", "all four were carried out");
    let more = pair.client.next_completion().expect("no failure");
    assert!(more.is_none(), "{more:?}");

    fake.hold_requests(true);
    let (to, from) = (regions.of_server.as_span(), regions.client.as_span());
    let write = |signal, id| pair.client.write(to, from, signal, id);
    fake.next_status(Status::REM_ACCESS_ERR.raw());
    write(Signal::OnError, 5).expect("posted");
    write(Signal::Always, 6).expect("posted");
    fake.hold_requests(false);
    let failed = pair.client.cq().next(WAIT).expect("a completion");
    assert_eq!(failed.op_context(), 5);
    let error = failed.result().expect_err("made to fail");
    assert_eq!(error.status, Status::REM_ACCESS_ERR);
    let behind = pair.client.cq().next(WAIT).expect("a completion");
    assert_eq!(behind.op_context(), 6);
    assert!(behind.result().expect_err("flushed").is_flushed());
    drop((pair, regions));
    fake.finish();
}

#[test]
fn a_rejection_carries_data_and_leaves_no_id_at_either_side() {
    let fake = control::session();
    let peer = peer().expect("a peer");
    let endpoint = Endpoint::listen(&peer, addr(0)).expect("a listener");
    let config = ConnectionConfig::default();
    let connect = || {
        let request = ConnectionRequest::new(&peer, endpoint.local_addr(), &config);
        let data = PrivateData::new(b"who asks").expect("short");
        let client = request.expect("a request").connect(data).expect("begun");
        let request = endpoint.next_connection_request(&config, WAIT);
        (client, request.expect("the request"))
    };
    let ids = || fake.count("rdma_create_id") + fake.count("rdma_destroy_id");
    let (client, request) = connect();
    assert!(request.private_data().starts_with(b"who asks"));
    let why = PrivateData::new(b"not today").expect("short");
    request.reject(why).expect("rejected");
    match client.next_event(WAIT).expect("an event") {
        ConnectionEvent::Rejected {
            reason,
            private_data,
        } => {
            assert_eq!(reason, RejectReason::CONSUMER);
            assert!(private_data.starts_with(b"not today"), "{private_data:?}");
        }
        other => panic!("{other}"),
    }
    // Nobody cares for this one, which is an answer as well.
    let before = ids();
    let (client_of_dropped, request) = connect();
    drop(request);
    let event = client_of_dropped.next_event(WAIT).expect("an event");
    assert!(matches!(event, ConnectionEvent::Rejected { .. }), "{event}");
    drop(client_of_dropped);
    // That of the client made and destroyed, and the request's, which came with its event, destroyed.
    assert_eq!(ids() - before, 3);
    drop((client, endpoint, peer));
    fake.finish();
}

#[test]
fn a_confirmation_never_comes_to_the_listener() {
    let fake = control::session();
    let peer = peer().expect("a peer");
    let endpoint = Endpoint::listen(&peer, addr(0)).expect("a listener");
    let config = ConnectionConfig::default();
    let client = begin(&peer, &endpoint, &config).expect("begun");
    let request = endpoint
        .next_connection_request(&config, WAIT)
        .expect("the request");
    let server = request.connect(PrivateData::none()).expect("accepted");
    // Else another thread that waits for requests may take it.
    assert!(last(&fake, "rdma_migrate_id") < last(&fake, "rdma_accept"));
    client.wait_established(WAIT).expect("established");
    let request = endpoint.try_next_connection_request(&config);
    assert!(request.expect("no failure").is_none());
    let event = server.next_event(WAIT).expect("the confirmation");
    assert_eq!(event, ConnectionEvent::Established);
    drop((client, server, endpoint, peer));
    fake.finish();
}

#[test]
fn an_event_of_a_queue_that_has_gone_from_its_channel_holds_nothing_up() {
    let fake = control::session();
    let server_peer = peer().expect("a peer");
    let channel = CompletionChannel::new(&server_peer).expect("a channel");
    let queue = || {
        let queue = CompletionQueue::builder(&server_peer, 32).channel(&channel);
        queue.build().expect("a queue")
    };
    let (first, second) = (queue(), queue());
    let with = |cq: &CompletionQueue| {
        let mut config = ConnectionConfig::default();
        config.set_cq(Some(cq));
        let plain = ConnectionConfig::default();
        let client = peer().expect("a peer");
        Pair::between(client, server_peer.clone(), &plain, &config).expect("a connection")
    };
    let (goes, stays) = (with(&first), with(&second));
    for (pair, id) in [(&goes, 1), (&stays, 2)] {
        let regions = Regions::new(pair, 8).expect("regions");
        let (to, from) = (regions.of_client.as_span(), regions.server.as_span());
        let written = pair.server.write(to, from, Signal::Always, id);
        written.expect("posted");
    }
    // Both have reported; one will never be asked.
    drop((goes, first));
    let ready = channel.wait(WAIT).expect("an event");
    assert!(ready == second, "another queue than is left");
    let completion = ready.poll_one().expect("no failure");
    assert_eq!(completion.expect("a completion").op_context(), 2);
    drop((ready, stays, second, channel, server_peer));
    fake.finish();
}

#[test]
fn a_peer_that_never_answers_is_waited_for_no_longer_than_was_said() {
    let fake = control::session();
    let peer = peer().expect("a peer");
    let endpoint = Endpoint::listen(&peer, addr(0)).expect("a listener");
    let config = ConnectionConfig::default();
    let client = begin(&peer, &endpoint, &config).expect("begun");
    let short = Duration::from_millis(20);
    let error = client.wait_established(short).expect_err("no answer");
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    let error = client.next_event(short).expect_err("no event");
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    let request = endpoint
        .next_connection_request(&config, WAIT)
        .expect("the request");
    let server = request.connect(PrivateData::none()).expect("accepted");
    let error = server.wait_established(short).expect_err("unconfirmed");
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    // It was only not yet.
    client.wait_established(WAIT).expect("established");
    server.wait_established(WAIT).expect("established");
    drop((client, server, endpoint, peer));
    fake.finish();
}

#[test]
fn connections_register_nothing_for_flushes_that_may_never_come() {
    let fake = control::session();
    let peer = peer().expect("a peer");
    let registered = || fake.count("ibv_reg_mr") + fake.count("ibv_reg_mr_iova2");
    let before = registered();
    let config = ConnectionConfig::default();
    let pairs: Vec<_> = (0..3)
        .map(|_| Pair::between(peer.clone(), peer.clone(), &config, &config))
        .collect();
    assert!(pairs.iter().all(Result::is_ok), "{:?}", pairs.len());
    assert_eq!(registered(), before);
    drop((pairs, peer));
    fake.finish();
}

#[test]
fn what_flushes_read_into_outlives_those_in_flight() {
    let fake = control::session();
    let pair = Pair::new().expect("a connection");
    let regions = Regions::new(&pair, 8).expect("regions");
    let target = regions.of_server.as_span();
    fake.hold_requests(true);
    let kind = FlushType::Visibility;
    let flushed = pair.client.flush(target, kind, Signal::Always, 1);
    flushed.expect("posted");
    let Pair {
        client,
        server,
        client_peer,
        server_peer,
    } = pair;
    drop(regions);
    // The connection is the last that holds its peer.
    drop(client_peer);
    drop(client);
    assert!(last(&fake, "ibv_destroy_qp") < last(&fake, "ibv_dereg_mr"));
    fake.hold_requests(false);
    drop((server, server_peer));
    fake.finish();
}

#[test]
fn a_queue_goes_to_the_interrupt_vector_that_was_chosen() {
    let fake = control::session();
    let mut config = ConnectionConfig::default();
    // The fake device has two.
    config.set_completion_vector(1);
    drop(Pair::with(&config).expect("a connection"));
    config.set_completion_vector(2);
    let error = Pair::with(&config).err().expect("no such vector");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    fake.finish();
}

#[test]
fn a_queue_without_room_is_refused_before_the_device_is_asked() {
    let fake = control::session();
    let mut config = ConnectionConfig::default();
    for entries in [0, 1] {
        config.set_cq_size(entries);
        let asked = fake.count("ibv_create_cq");
        let error = Pair::with(&config).err().expect("too small");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert!(error.to_string().contains("need 20"), "{error}");
        assert_eq!(fake.count("ibv_create_cq"), asked);
    }
    fake.finish();
}
