//! Queues and channels that several connections share.

use std::collections::HashMap;
use std::time::Duration;

use cm::verbs::sys::fake::control;
use rpma::{
    CompletionChannel, CompletionQueue, ConnectionConfig, ErrorKind, LocalRegion, Peer,
    SharedReceiveQueue, Signal, SrqConfig, Usage,
};

use super::common::{Pair, Regions, WAIT, peer};

const MOMENT: Duration = Duration::from_millis(20);

/// Connected pairs whose servers are of `server_peer`, with settings.
fn pairs(count: usize, server_peer: &Peer, of_server: &ConnectionConfig) -> Vec<Pair> {
    let client_peer = peer().expect("a peer");
    (0..count)
        .map(|_| {
            let of_client = ConnectionConfig::default();
            let (client, server) = (client_peer.clone(), server_peer.clone());
            Pair::between(client, server, &of_client, of_server).expect("a connection")
        })
        .collect()
}

fn write(pair: &Pair, regions: &Regions, id: u64) {
    let (to, from) = (regions.of_client.as_span(), regions.server.as_span());
    pair.server
        .write(to, from, Signal::Always, id)
        .expect("posted");
}

#[test]
fn connections_that_share_a_queue_are_told_apart_by_their_number() {
    let fake = control::session();
    let server_peer = peer().expect("a peer");
    let channel = CompletionChannel::new(&server_peer).expect("a channel");
    let shared = CompletionQueue::builder(&server_peer, 128).channel(&channel);
    let shared = shared.build().expect("a queue");
    let mut config = ConnectionConfig::default();
    config.set_cq(Some(&shared));
    let pairs = pairs(3, &server_peer, &config);
    for (pair, id) in pairs.iter().zip(0..) {
        assert_eq!(pair.server.cq(), &shared);
        let regions = Regions::new(pair, 8).expect("regions");
        write(pair, &regions, id);
    }
    let mut found = HashMap::new();
    while found.len() < 3 {
        let ready = channel.wait(WAIT).expect("something came");
        assert_eq!(ready, shared);
        while let Some(completion) = ready.poll_one().expect("no failure") {
            found.insert(completion.qp_num(), completion.op_context());
        }
    }
    for (pair, id) in pairs.iter().zip(0..) {
        assert_eq!(found.get(&pair.server.qp_num()), Some(&id));
    }
    // There is no room for many more.
    config.set_sq_size(100);
    let error = Pair::between(
        peer().expect("a peer"),
        server_peer.clone(),
        &ConnectionConfig::default(),
        &config,
    );
    let error = error.map(drop).expect_err("too many");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    // The queue outlives its connections, and they its other handles.
    drop((pairs, config, channel));
    assert!(shared.poll_one().expect("no failure").is_none());
    drop((shared, server_peer));
    fake.finish();
}

#[test]
fn one_shared_receive_queue_serves_several_connections_and_outlives_its_handle() {
    let fake = control::session();
    let server_peer = peer().expect("a peer");
    let srq = SharedReceiveQueue::new(&server_peer, &SrqConfig::default()).expect("a queue");
    let rcq = srq.rcq().expect("a queue of its own").clone();
    let mut config = ConnectionConfig::default();
    config.set_srq(Some(&srq)).set_srq(None);
    assert_eq!(config.srq(), None);
    config.set_srq(Some(&srq));
    assert_eq!(config.srq(), Some(&srq));
    let pairs = pairs(3, &server_peer, &config);
    let memory = LocalRegion::alloc(&server_peer, 64, Usage::RECV).expect("memory");
    let refused = srq.clone().close().expect_err("in use");
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    let rounds = if control::hurried() { 3 } else { 100 };
    let regions: Vec<_> = pairs
        .iter()
        .map(|pair| Regions::new(pair, 8).expect("regions"))
        .collect();
    for round in 0..rounds {
        for (pair, regions) in pairs.iter().zip(&regions) {
            srq.recv(memory.as_span(), round).expect("posted");
            let from = regions.client.as_span();
            pair.client
                .send(from, Signal::Always, round)
                .expect("posted");
            pair.client.cq().next(WAIT).expect("sent");
            let completion = rcq.next(WAIT).expect("received");
            completion.result().expect("a success");
            assert_eq!(
                (completion.op_context(), completion.qp_num()),
                (round, pair.server.qp_num())
            );
        }
    }
    // The connections keep it.
    srq.recv(memory.as_span(), 7).expect("posted");
    drop((srq, config));
    let from = regions[1].client.as_span();
    pairs[1]
        .client
        .send(from, Signal::Always, 7)
        .expect("posted");
    assert_eq!(rcq.next(WAIT).expect("received").op_context(), 7);
    drop((pairs, regions, memory, rcq, server_peer));
    fake.finish();
}

#[test]
fn a_limit_of_a_shared_receive_queue_gives_an_event_and_none_above_its_size() {
    let fake = control::session();
    let peer = peer().expect("a peer");
    let events = peer.device().context().async_events().expect("events");
    let srq = SharedReceiveQueue::new(&peer, &SrqConfig::default()).expect("a queue");
    let above = srq.rq_size() + 1;
    let error = srq.arm_limit(above).expect_err("above the size");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    let mut config = ConnectionConfig::default();
    config.set_srq(Some(&srq));
    let pair = pairs(1, &peer, &config).pop().expect("one");
    let memory = LocalRegion::alloc(&peer, 64, Usage::RECV).expect("memory");
    for id in 0..3 {
        srq.recv(memory.as_span(), id).expect("posted");
    }
    srq.arm_limit(2).expect("armed");
    let regions = Regions::new(&pair, 8).expect("regions");
    for id in 0..2 {
        assert_eq!(events.try_next().expect("no failure"), None, "before {id}");
        let from = regions.client.as_span();
        pair.client.send(from, Signal::Always, id).expect("posted");
    }
    let event = events.try_next().expect("no failure").expect("an event");
    let source = cm::verbs::AsyncEventSource::SharedReceiveQueue(Some(srq.as_verbs().id()));
    assert_eq!(event.source(), source);
    drop((pair, regions, memory, config));
    srq.close().expect("unused");
    drop((events, peer));
    fake.finish();
}

#[test]
fn queues_that_were_not_drained_are_named_again_and_in_turn() {
    let fake = control::session();
    let server_peer = peer().expect("a peer");
    let channel = CompletionChannel::new(&server_peer).expect("a channel");
    let queue = || {
        let queue = CompletionQueue::builder(&server_peer, 64).channel(&channel);
        queue.build().expect("a queue")
    };
    let queues = [queue(), queue()];
    let ends: Vec<_> = queues
        .iter()
        .map(|queue| {
            let mut config = ConnectionConfig::default();
            config.set_cq(Some(queue));
            let pair = pairs(1, &server_peer, &config).pop().expect("one");
            let regions = Regions::new(&pair, 8).expect("regions");
            (pair, regions)
        })
        .collect();
    let nobody = |what: &str| {
        assert_eq!(channel.try_wait().expect("no failure"), None, "{what}");
    };
    nobody("before anything was posted");
    for id in 0..5 {
        for (pair, regions) in &ends {
            write(pair, regions, id);
        }
    }
    // One completion a wait, and of each queue in turn.
    let mut left = [5_u32, 5];
    while left != [0, 0] {
        let ready = channel.wait(WAIT).expect("not all came yet");
        let index = usize::from(ready == queues[1]);
        // The last one of a queue does not tell that it was the last.
        if ready.poll_one().expect("no failure").is_some() {
            left[index] -= 1;
        }
        assert!(left[0].abs_diff(left[1]) <= 2, "{left:?}");
    }
    for queue in &queues {
        assert!(queue.poll_one().expect("no failure").is_none());
    }
    nobody("drained");
    channel.wait(MOMENT).expect_err("nothing is there");

    // One that has gone with its event is named no more.
    write(&ends[0].0, &ends[0].1, 9);
    drop((ends, queues));
    nobody("gone");
    drop((channel, server_peer));
    fake.finish();
}

#[test]
fn who_waits_for_one_connection_leaves_to_others_what_is_theirs() {
    let fake = control::session();
    let server_peer = peer().expect("a peer");
    let channel = CompletionChannel::new(&server_peer).expect("a channel");
    let ends: Vec<_> = (0..2)
        .map(|_| {
            let queue = CompletionQueue::builder(&server_peer, 64).channel(&channel);
            let mut config = ConnectionConfig::default();
            config.set_cq(Some(&queue.build().expect("a queue")));
            pairs(1, &server_peer, &config).pop().expect("one")
        })
        .collect();
    let regions = Regions::new(&ends[1], 8).expect("regions");
    write(&ends[1], &regions, 5);
    let error = ends[0].server.wait(MOMENT).expect_err("not of this one");
    assert_eq!(error.code(), -100_005, "{error}");
    let ready = ends[1].server.wait(WAIT).expect("of this one");
    assert!(!ready.is_rcq());
    let completion = ready.queue().poll_one().expect("no failure");
    assert_eq!(completion.expect("one").op_context(), 5);
    drop((regions, ends, channel, server_peer));
    fake.finish();
}

#[test]
fn one_completion_a_wait_never_leaves_one_behind_and_acknowledges_in_batches() {
    let fake = control::session();
    let pair = Pair::new().expect("a connection");
    let regions = Regions::new(&pair, 8).expect("regions");
    let cq = pair.server.cq();
    let rounds = if control::hurried() { 3 } else { 40 };
    let before = fake.count("ibv_ack_cq_events");
    for round in 0..rounds {
        for id in 0..8 {
            write(&pair, &regions, id);
        }
        for id in 0..8 {
            let completion = loop {
                cq.wait(WAIT).expect("not all came yet");
                // A wait may turn out to be for what was taken before.
                if let Some(completion) = cq.poll_one().expect("no failure") {
                    break completion;
                }
            };
            assert_eq!(completion.op_context(), id, "round {round}");
        }
    }
    assert!(cq.poll_one().expect("no failure").is_none());
    // The event of the first completion of a round may be left; then nothing is.
    while cq.try_wait().expect("no failure") {
        assert!(cq.poll_one().expect("no failure").is_none());
    }
    cq.wait(MOMENT).expect_err("nothing is there");
    assert!(fake.count("ibv_ack_cq_events") - before <= 1);
    drop((pair, regions));
    fake.finish();
}
