//! Many threads at once: what each object promises to those who share it.

use std::sync::Mutex;
use std::thread;
use std::time::Instant;

use cm::verbs::sys::fake::control;
use rpma::{
    ConnectionConfig, ConnectionRequest, Endpoint, LocalRegion, PeerConfig, PrivateData,
    RemoteRegion, SharedReceiveQueue, Signal, SrqConfig, Usage,
};

use super::common::{Pair, Regions, WAIT, addr, completed, peer};

fn threads() -> usize {
    if control::hurried() { 2 } else { 8 }
}

#[test]
fn one_peer_endpoint_and_configuration_serve_threads_with_connections_of_their_own() {
    let fake = control::session();
    let rounds = if control::hurried() { 1 } else { 5 };
    let (client_peer, server_peer) = (peer().expect("a peer"), peer().expect("a peer"));
    let endpoint = Endpoint::listen(&server_peer, addr(0)).expect("a listener");
    let mut config = ConnectionConfig::default();
    config.set_rcq_size(16);
    thread::scope(|scope| {
        for _ in 0..threads() {
            scope.spawn(|| {
                for _ in 0..rounds {
                    let memory = LocalRegion::alloc(&server_peer, 64, Usage::all());
                    let memory = memory.expect("memory");
                    let request = endpoint.next_connection_request(&config, WAIT);
                    let request = request.expect("a request");
                    request.recv(memory.as_span(), 1).expect("posted");
                    let asked = request.private_data()[0];
                    let data = PrivateData::new(&memory.descriptor()).expect("short");
                    let server = request.connect(data).expect("accepted");
                    server.wait_established(WAIT).expect("established");
                    let rcq = server.rcq().expect("a queue for receives");
                    assert_eq!(completed(rcq).op_context(), 1);
                    let mut found = [0];
                    memory.load(0, &mut found).expect("inside");
                    assert_eq!(found[0], asked, "of another connection");
                    server.apply_remote_peer_config(&PeerConfig::default());
                    server.disconnect().expect("disconnected");
                }
            });
            scope.spawn(|| {
                for round in 0..rounds {
                    let memory = LocalRegion::alloc(&client_peer, 64, Usage::all());
                    let memory = memory.expect("memory");
                    let to = endpoint.local_addr();
                    let request = ConnectionRequest::new(&client_peer, to, &config);
                    let data = PrivateData::new(&[round]).expect("short");
                    let client = request.expect("a request").connect(data).expect("begun");
                    client.wait_established(WAIT).expect("established");
                    let target = RemoteRegion::from_descriptor(client.private_data());
                    let target = target.expect("a descriptor");
                    memory.store(0, &[round]).expect("inside");
                    let span = |range| memory.span(range).expect("inside");
                    let of = target.span(32..40).expect("inside");
                    client
                        .write(of, span(32..40), Signal::OnError, 2)
                        .expect("posted");
                    client.send(span(0..32), Signal::Always, 3).expect("posted");
                    assert_eq!(completed(client.cq()).op_context(), 3);
                    client.next_event(WAIT).expect("the end");
                }
            });
        }
    });
    drop((endpoint, config, client_peer, server_peer));
    fake.finish();
}

#[test]
fn a_connection_behind_a_mutex_is_posted_to_by_threads_while_others_poll() {
    let fake = control::session();
    let mut config = ConnectionConfig::default();
    config.set_sq_size(16);
    let pair = Pair::with(&config).expect("a connection");
    let regions = Regions::new(&pair, 8).expect("regions");
    let Pair {
        client,
        server,
        client_peer,
        server_peer,
    } = pair;
    let cq = client.cq().clone();
    let client = Mutex::new(client);
    let each = if control::hurried() { 2 } else { 200_u64 };
    let count = 2 * each;
    thread::scope(|scope| {
        for half in 0..2 {
            let (client, regions) = (&client, &regions);
            scope.spawn(move || {
                let end = Instant::now() + WAIT;
                for n in 0..each {
                    let (to, from) = (regions.of_server.as_span(), regions.client.as_span());
                    // Full for as long as nobody has polled.
                    while client
                        .lock()
                        .expect("no panic")
                        .write(to, from, Signal::Always, half * each + n)
                        .is_err()
                    {
                        assert!(Instant::now() < end, "nobody polls");
                        thread::yield_now();
                    }
                }
            });
        }
        let pollers: Vec<_> = (0..2)
            .map(|_| {
                let cq = &cq;
                scope.spawn(move || {
                    let took = (0..each).map(|_| completed(cq).op_context());
                    took.collect::<Vec<_>>()
                })
            })
            .collect();
        let mut found: Vec<_> = pollers
            .into_iter()
            .flat_map(|poller| poller.join().expect("no panic"))
            .collect();
        found.sort_unstable();
        assert!(found.into_iter().eq(0..count), "lost or taken twice");
    });
    drop((client, server, cq, regions, client_peer, server_peer));
    fake.finish();
}

#[test]
fn threads_post_to_one_shared_receive_queue_and_register_with_one_peer() {
    let fake = control::session();
    let peer = peer().expect("a peer");
    let each = if control::hurried() { 2 } else { 32 };
    let mut sizes = SrqConfig::default();
    let receives = each * u32::try_from(threads()).expect("few");
    sizes.set_rq_size(receives).set_rcq_size(receives);
    let srq = SharedReceiveQueue::new(&peer, &sizes).expect("a queue");
    thread::scope(|scope| {
        for _ in 0..threads() {
            scope.spawn(|| {
                let memory = LocalRegion::alloc(&peer, 64, Usage::RECV).expect("memory");
                for id in 0..each {
                    srq.recv(memory.as_span(), id.into()).expect("room");
                }
                memory.descriptor();
                assert!(srq.rcq().expect("a queue").poll_one().is_ok());
            });
        }
    });
    drop((srq, peer));
    fake.finish();
}
