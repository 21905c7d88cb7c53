//! Peers whose events a dispatcher reads.

use std::os::fd::AsFd;
use std::time::Duration;

use cm::verbs::sys::fake::control;
use cm::verbs::{Deadline, wait_readable};
use cm::{Dispatcher, ListenOptions};
use rpma::{
    ConnectionConfig, ConnectionEvent, ConnectionRequest, Device, Endpoint, Error, ErrorKind, Peer,
    PrivateData, Signal,
};

use super::common::{Pair, Regions, WAIT, addr, completed};

fn peer(dispatcher: &Dispatcher) -> Peer {
    let device = Device::local(addr(0).ip()).expect("a device");
    Peer::with_dispatcher(&device, dispatcher).expect("a peer")
}

#[test]
fn connections_of_a_dispatcher_work_without_channels_and_descriptors_of_their_own() {
    let fake = control::session();
    let dispatcher = Dispatcher::new().expect("a thread");
    let (client_peer, server_peer) = (peer(&dispatcher), peer(&dispatcher));
    drop(dispatcher);
    assert!(server_peer.dispatcher().is_some());
    let counts = || ["rdma_create_event_channel", "rdma_migrate_id"].map(|name| fake.count(name));
    let before = counts();
    let config = ConnectionConfig::default();
    let count = if control::hurried() { 2 } else { 30 };
    let pairs: Vec<_> = (0..count)
        .map(|_| Pair::between(client_peer.clone(), server_peer.clone(), &config, &config))
        .collect::<Result<_, _>>()
        .expect("connections");
    assert_eq!(counts(), before, "a channel of its own");
    for pair in &pairs {
        let refused = pair.server.event_fd().expect_err("no descriptor");
        assert!(matches!(refused, Error::NoEventDescriptor), "{refused}");
        let regions = Regions::new(pair, 64).expect("regions");
        let (to, from) = (regions.of_server.as_span(), regions.client.as_span());
        pair.client
            .write(to, from, Signal::Always, 1)
            .expect("posted");
        assert_eq!(completed(pair.client.cq()).op_context(), 1);
    }
    for pair in &pairs {
        pair.client.disconnect().expect("disconnected");
        let event = pair.server.next_event(WAIT).expect("an event");
        assert_eq!(event, ConnectionEvent::Closed);
    }
    // The thread ends with the last of them, in any order.
    drop(client_peer);
    drop(pairs);
    drop(server_peer);
    fake.finish();
}

#[test]
fn an_endpoint_of_a_dispatcher_has_a_descriptor_and_a_queue_of_requests() {
    let fake = control::session();
    let dispatcher = Dispatcher::new().expect("a thread");
    let peer = peer(&dispatcher);
    let mut options = ListenOptions::default();
    options.backlog = 2;
    let endpoint = Endpoint::listen_with(&peer, addr(0), &options).expect("a listener");
    assert_ne!(endpoint.local_addr().port(), 0);
    let config = ConnectionConfig::default();
    let readable = |limit: Duration| {
        let [readable] = wait_readable([endpoint.as_fd()], Deadline::after(limit)).expect("poll");
        readable
    };
    let next = || endpoint.try_next_connection_request(&config);
    assert!(next().expect("no failure").is_none());
    assert!(!readable(Duration::ZERO));
    let client = |number: u8| {
        let request = ConnectionRequest::new(&peer, endpoint.local_addr(), &config);
        let data = PrivateData::new(&[number]).expect("short");
        request.expect("a request").connect(data).expect("begun")
    };
    let clients = [client(1), client(2), client(3)];
    // More than the queue has room for is answered at once.
    let error = clients[2].wait_established(WAIT).expect_err("no room");
    assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
    for number in 1..=2 {
        assert!(readable(WAIT));
        let request = next().expect("no failure").expect("a request");
        assert_eq!(request.private_data()[0], number);
        // Dropped undecided, it is refused.
        drop(request);
    }
    assert!(next().expect("no failure").is_none());
    assert!(!readable(Duration::ZERO), "nothing waits any more");
    for client in &clients[..2] {
        let error = client.wait_established(WAIT).expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
    }
    drop((endpoint, clients, peer, dispatcher));
    fake.finish();
}
