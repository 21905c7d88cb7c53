//! Addresses: bound, resolved, taken.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use cm::verbs::sys::fake::control;
use cm::{ConnectOptions, Error, ListenOptions, Listener, Resolving};

use super::common::{accept, connect, established, listen, resolve, roce, soon};

fn at(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

#[test]
fn a_port_is_given_once_and_given_back_by_drop() {
    let fake = control::session();
    let first = listen(roce()).expect("a listener");
    let taken = first.local_addr();
    assert_ne!(taken.port(), 0);
    for addr in [taken, SocketAddr::new([0, 0, 0, 0].into(), taken.port())] {
        match listen(addr) {
            Err(Error::Call(error)) => {
                assert_eq!(error.errno(), Some(libc::EADDRINUSE));
                assert!(error.hint().is_some());
            }
            other => panic!("{other:?}"),
        }
    }
    drop(first);
    drop(listen(taken).expect("free again"));
    fake.finish();
}

#[test]
fn two_listeners_may_not_share_an_address_even_when_it_may_be_reused() {
    let fake = control::session();
    let mut options = ListenOptions::default();
    options.id.reuse_address = true;
    let first = Listener::bind(roce(), &options).expect("a listener");
    let error = Listener::bind(first.local_addr(), &options).expect_err("taken");
    assert!(
        matches!(&error, Error::Call(e) if e.errno() == Some(libc::EADDRINUSE)),
        "{error}"
    );
    drop(first);
    fake.finish();
}

#[test]
fn a_wildcard_takes_requests_for_every_device() {
    let fake = control::session();
    let listener = listen(at("0.0.0.0:0")).expect("a listener");
    let port = listener.local_addr().port();
    for ip in [[192, 0, 2, 1], [198, 51, 100, 1]] {
        let client = connect(SocketAddr::new(ip.into(), port), b"").expect("a request");
        let request = listener.next_request(soon()).expect("the request");
        let local = request.local_addr().expect("an address");
        assert_eq!(local, client.peer_addr());
        let server = accept(request, b"").expect("accepted");
        client.wait_established(soon()).expect("established");
        server.wait_established(soon()).expect("established");
        assert_eq!(client.qp().context(), server.qp().context());
    }
    drop(listener);
    fake.finish();
}

#[test]
fn an_address_of_no_device_is_named() {
    let fake = control::session();
    for text in [
        "203.0.113.1:0",
        "127.0.0.1:7",
        "[2001:db8::9]:0",
        "[fe80::1]:0",
        "[fe80::1%3]:0",
    ] {
        let addr = at(text);
        assert_eq!(listen(addr).expect_err(text), Error::NoSuchAddress { addr });
        assert_eq!(
            cm::device_of_local(addr)
                .err()
                .map(|e| matches!(e, Error::NoSuchAddress { .. })),
            Some(true)
        );
    }
    assert_eq!(
        cm::device_of_local(at("[fe80::1%7]:0"))
            .expect("its scope")
            .name(),
        "fake0"
    );
    assert_eq!(
        cm::device_of_local(at("198.51.100.1:0"))
            .expect("its address")
            .name(),
        "fake1"
    );
    fake.finish();
}

#[test]
fn an_address_that_nothing_leads_to_is_not_resolved() {
    let fake = control::session();
    for (text, errno) in [
        ("203.0.113.1:5", libc::ENODEV),
        ("192.0.2.77:5", libc::ETIMEDOUT),
    ] {
        let peer = at(text);
        assert_eq!(
            resolve(peer).expect_err(text),
            Error::AddressNotResolved { peer, errno }
        );
    }
    fake.finish();
}

#[test]
fn an_address_that_was_looked_for_in_vain_is_looked_for_again_until_the_deadline() {
    let fake = control::session();
    let peer = at("192.0.2.77:5");
    let options = ConnectOptions::default();
    let resolving = Resolving::start(peer, &options, soon()).expect("started");
    // As a kernel that gives up when the time is over that it was given; a later time it is too quick for that, unless this
    // machine is slow.
    thread::sleep(Duration::from_millis(60));
    let errno = libc::ETIMEDOUT;
    let error = resolving.wait().expect_err("nobody is there");
    assert_eq!(error, Error::AddressNotResolved { peer, errno });
    assert!(fake.count("rdma_resolve_addr") >= 2);
    fake.finish();
}

#[test]
fn a_connection_comes_from_the_address_asked_for() {
    let fake = control::session();
    let listener = listen(roce()).expect("a listener");
    let mut options = ConnectOptions::default();
    options.source = Some(at("192.0.2.1:45000"));
    let start = || Resolving::start(listener.local_addr(), &options, soon());
    let resolved = start().expect("started").wait().expect("resolved");
    assert_eq!(resolved.local_addr(), options.source);
    let error = start().expect_err("the port is taken");
    assert!(
        matches!(&error, Error::Call(e) if e.errno() == Some(libc::EADDRINUSE)),
        "{error}"
    );
    drop((resolved, listener));
    fake.finish();
}

#[test]
fn a_link_local_address_without_a_scope_is_asked_for_one() {
    let fake = control::session();
    let listener = listen(at("[::]:0")).expect("a listener");
    let port = listener.local_addr().port();
    let without = at(&format!("[fe80::1]:{port}"));
    let before = fake.calls().len();
    let error = resolve(without).expect_err("no scope");
    let errno = libc::EINVAL;
    assert_eq!(
        error,
        Error::AddressNotResolved {
            peer: without,
            errno
        }
    );
    assert!(error.hint().expect("advice").contains("%interface"));
    assert!(!fake.calls()[before..].contains(&"rdma_resolve_addr"));
    // The source may have it.
    let mut options = ConnectOptions::default();
    options.source = Some(at("[fe80::1%7]:0"));
    let resolved = Resolving::start(without, &options, soon())
        .expect("started")
        .wait()
        .expect("resolved");
    assert_eq!(resolved.peer_addr(), at(&format!("[fe80::1%7]:{port}")));
    // What comes to a wildcard has that of the interface.
    let client = connect(resolved.peer_addr(), b"").expect("a request");
    let request = listener.next_request(soon()).expect("the request");
    let from = client.local_addr().expect("an address").port();
    assert_eq!(request.peer_addr(), at(&format!("[fe80::1%7]:{from}")));
    assert_eq!(request.local_addr(), Some(client.peer_addr()));
    drop((resolved, client, request, listener));
    fake.finish();
}

#[test]
fn a_port_under_a_wildcard_is_told_from_an_address_that_is_not_there() {
    let fake = control::session();
    // The real answer where a wildcard and an address overlap.
    fake.fail("rdma_bind_addr", 0, libc::EADDRNOTAVAIL);
    match listen(at("192.0.2.1:7204")) {
        Err(Error::Call(error)) => {
            assert_eq!(error.errno(), Some(libc::EADDRNOTAVAIL));
            assert!(error.hint().is_some_and(|hint| hint.contains("overlaps")));
        }
        other => panic!("{other:?}"),
    }
    let addr = at("203.0.113.9:7204");
    let error = listen(addr).expect_err("nobody's address");
    assert_eq!(error, Error::NoSuchAddress { addr });
    fake.finish();
}

#[test]
fn link_local_and_global_ipv6_connect() {
    let fake = control::session();
    for text in ["[2001:db8::1]:0", "[fe80::1%7]:0"] {
        drop(established(at(text)).expect(text));
    }
    fake.finish();
}
