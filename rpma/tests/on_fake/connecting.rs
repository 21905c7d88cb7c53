//! Connections made and not made.

use std::time::{Duration, Instant};

use cm::verbs::sys::fake::control::{self, Target};
use rpma::{
    ConnectionConfig, ConnectionEvent, ConnectionRequest, Endpoint, ErrorKind, PrivateData, Signal,
};

use super::common::{Pair, Regions, WAIT, addr, begin, completed, peer};

#[test]
fn private_data_goes_both_ways() {
    let fake = control::session();
    let (client_peer, server_peer) = (peer().expect("a peer"), peer().expect("a peer"));
    let endpoint = Endpoint::listen(&server_peer, addr(0)).expect("a listener");
    let config = ConnectionConfig::default();
    let request =
        ConnectionRequest::new(&client_peer, endpoint.local_addr(), &config).expect("a request");
    let data = |bytes: &[u8]| PrivateData::new(bytes).expect("short enough");
    let client = request.connect(data(b"from the client")).expect("begun");
    let request = endpoint
        .next_connection_request(&config, WAIT)
        .expect("the request");
    assert!(request.private_data().starts_with(b"from the client\0"));
    let server = request.connect(data(b"from the server")).expect("accepted");
    client.wait_established(WAIT).expect("established");
    server.wait_established(WAIT).expect("established");
    assert!(client.private_data().starts_with(b"from the server\0"));
    assert!(server.private_data().starts_with(b"from the client\0"));
    drop((client, server, endpoint, client_peer, server_peer));
    fake.finish();
}

#[test]
fn the_end_of_a_connection_is_told_once() {
    let fake = control::session();
    let Pair { client, server, .. } = Pair::new().expect("a connection");
    client.disconnect().expect("disconnected");
    assert_eq!(
        server.next_event(WAIT).expect("an event"),
        ConnectionEvent::Closed
    );
    assert_eq!(server.try_next_event().expect("no error"), None);
    drop((client, server));
    fake.finish();
}

#[test]
fn nobody_listening_and_no_request_are_told() {
    let fake = control::session();
    let peer = peer().expect("a peer");
    let endpoint = Endpoint::listen(&peer, addr(0)).expect("a listener");
    let config = ConnectionConfig::default();
    let error = endpoint
        .next_connection_request(&config, Duration::from_millis(20))
        .expect_err("nobody asks");
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    let to = endpoint.local_addr();
    drop(endpoint);
    let request = ConnectionRequest::new(&peer, to, &config).expect("a request");
    let client = request.connect(PrivateData::none()).expect("begun");
    let error = client.wait_established(WAIT).expect_err("nobody is there");
    assert_eq!(error.kind(), ErrorKind::NoListener);
    drop((client, peer));
    fake.finish();
}

#[test]
fn data_that_comes_before_a_lost_confirmation_establishes_the_connection() {
    let fake = control::session();
    // Once for who waits, once for who never blocks.
    for blocks in [true, false] {
        let (client_peer, server_peer) = (peer().expect("a peer"), peer().expect("a peer"));
        let endpoint = Endpoint::listen(&server_peer, addr(0)).expect("a listener");
        let config = ConnectionConfig::default();
        let client = begin(&client_peer, &endpoint, &config).expect("begun");
        let request = endpoint
            .next_connection_request(&config, WAIT)
            .expect("the request");
        let server = request.connect(PrivateData::none()).expect("accepted");
        fake.lose_confirmation();
        client.wait_established(WAIT).expect("established");
        let pair = Pair {
            client,
            server,
            client_peer,
            server_peer,
        };
        let regions = Regions::new(&pair, 64).expect("regions");
        pair.server
            .recv(regions.server.as_span(), 1)
            .expect("posted");
        pair.server
            .wait_established(Duration::from_millis(20))
            .expect_err("no confirmation");
        pair.client
            .send(regions.client.as_span(), Signal::Always, 2)
            .expect("posted");
        if blocks {
            pair.server
                .wait_established(WAIT)
                .expect("established by data");
        } else {
            let end = Instant::now() + WAIT;
            let event = loop {
                if let Some(event) = pair.server.try_next_event().expect("no error") {
                    break event;
                }
                assert!(Instant::now() < end, "not established by data");
                std::thread::sleep(Duration::from_millis(1));
            };
            assert_eq!(event, ConnectionEvent::Established);
        }
        assert_eq!(completed(pair.server.cq()).op_context(), 1);
        drop((pair, regions, endpoint));
    }
    fake.finish();
}

#[test]
fn a_device_that_goes_away_ends_the_connection() {
    let fake = control::session();
    let pair = Pair::new().expect("a connection");
    fake.inject(Target::Passive, 11, 0, None);
    assert_eq!(
        pair.server.next_event(WAIT).expect("an event"),
        ConnectionEvent::DeviceRemoved
    );
    drop(pair);
    fake.finish();
}

#[test]
fn a_peer_of_another_device_is_refused_and_the_request_rejected() {
    let fake = control::session();
    let other = rpma::Peer::new(&rpma::Device::local([198, 51, 100, 1].into()).expect("fake1"));
    let other = other.expect("a peer");
    let server_peer = peer().expect("a peer");
    let endpoint = Endpoint::listen(&server_peer, addr(0)).expect("a listener");
    let config = ConnectionConfig::default();
    let error = ConnectionRequest::new(&other, endpoint.local_addr(), &config);
    assert_eq!(
        error.expect_err("another device").kind(),
        ErrorKind::InvalidArgument
    );
    drop((other, endpoint, server_peer));
    fake.finish();
}
