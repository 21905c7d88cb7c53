//! The first steps of the active side, one by one.

use cm::verbs::sys::fake::control;
use cm::{
    ConnParams, ConnectionEvent, Connector, Dispatcher, Error, IdOptions, PortSpace, Progress,
};

use super::common::{accept, listen, queue_pair, roce, soon};

#[test]
fn every_step_of_a_connector_is_taken_alone_with_a_channel_of_its_own_or_a_dispatcher() {
    let fake = control::session();
    {
        let listener = listen(roce()).expect("a listener");
        let options = IdOptions::default();
        let connector = Connector::new(&options).expect("an id");
        let source = connector.bind(roce()).expect("bound");
        assert_eq!(source.ip(), roce().ip());
        assert_ne!(source.port(), 0);
        let resolving = connector
            .resolve(listener.local_addr(), soon())
            .expect("begun");
        assert!(!resolving.has_address(), "nobody has taken an event");
        // The address comes, and the route not at once.
        fake.fail("rdma_get_cm_event", 1, libc::EAGAIN);
        let Progress::Pending(resolving) = resolving.try_advance().expect("under way") else {
            panic!("resolved already");
        };
        assert!(resolving.has_address(), "the address has come");
        let resolved = resolving.wait().expect("resolved");
        assert_eq!(resolved.local_addr(), Some(source));
        let qp = queue_pair(resolved.context()).expect("a queue pair");
        resolved.init_qp(&qp).expect("INIT");
        let client = resolved
            .connect(qp, &ConnParams::default(), b"")
            .expect("asked");
        let request = listener.next_request(soon()).expect("a request");
        assert_eq!(request.peer_addr(), source);
        let server = accept(request, b"").expect("accepted");
        client.wait_established(soon()).expect("established");
        server.wait_established(soon()).expect("established");

        let dispatcher = Dispatcher::new().expect("a dispatcher");
        let routed = dispatcher.connector(&options).expect("an id");
        drop(dispatcher);
        let resolved = routed
            .resolve(listener.local_addr(), soon())
            .expect("begun")
            .wait()
            .expect("resolved");
        assert_ne!(resolved.local_addr(), Some(source));
        client.disconnect().expect("disconnected");
        let event = server.next_event(soon()).expect("an event");
        assert_eq!(event, ConnectionEvent::Disconnected);
    }
    fake.finish();
}

#[test]
fn a_connector_that_cannot_be_made_bound_or_used_says_why_and_leaves_nothing() {
    let fake = control::session();
    {
        let options = IdOptions::default();
        for call in ["rdma_create_event_channel", "rdma_create_id"] {
            fake.fail(call, 0, libc::ENOMEM);
            assert!(Connector::new(&options).is_err(), "{call}");
        }
        let mut datagrams = IdOptions::default();
        datagrams.port_space = Some(PortSpace::UDP);
        let error = Connector::new(&datagrams).expect_err("not for connections");
        assert!(error.to_string().contains("datagrams"), "{error}");

        let connector = Connector::new(&options).expect("an id");
        let nowhere = "203.0.113.1:0".parse().expect("an address");
        let error = connector.bind(nowhere).expect_err("no such address");
        assert_eq!(error, Error::NoSuchAddress { addr: nowhere });
        let source = connector.bind(roce()).expect("bound");
        let error = connector.bind(roce()).expect_err("bound already");
        assert!(error.to_string().contains("rdma_bind_addr"), "{error}");
        let other = Connector::new(&options).expect("an id");
        let Error::Call(error) = other.bind(source).expect_err("taken") else {
            panic!("not a failed call");
        };
        assert_eq!(error.errno(), Some(libc::EADDRINUSE));
        drop(other);
        fake.fail("rdma_resolve_addr", 0, libc::ENODEV);
        let error = connector.resolve(roce(), soon()).expect_err("no way");
        assert!(
            matches!(error, Error::AddressNotResolved { .. }),
            "{error:?}"
        );
    }
    fake.finish();
}
