//! Every kind of event in every phase, expected there or not: acknowledged, never waited for, never
//! fatal.

use std::time::Duration;

use cm::verbs::sys::fake::control::{self, Target};
use cm::{
    ConnectOptions, ConnectionEvent, ConnectionState, Deadline, EventKind, Progress, Resolving,
};

use super::common::{accept, accepted, connect, established, iwarp, listen, roce, soon};

/// All kinds that the headers know, some that they do not, and data that may come with them.
fn every_event(mut run: impl FnMut(u32, i32, Option<&[u8]>)) {
    // In a hurry, those that change the most, and one unknown.
    let few = [4, 9, 11, 16];
    let kinds = (0..=20).filter(|kind| !control::hurried() || few.contains(kind));
    for kind in kinds.chain([u32::MAX]) {
        run(kind, 0, None);
        if !control::hurried() {
            run(kind, -libc::ETIMEDOUT, None);
            run(kind, 28, Some(&[5; 148]));
        }
    }
}

fn at_once() -> Deadline {
    Deadline::after(Duration::ZERO)
}

#[test]
fn while_an_address_is_resolved() {
    let fake = control::session();
    every_event(|kind, status, data| {
        let listener = listen(roce()).expect("a listener");
        let to = listener.local_addr();
        let resolving = Resolving::start(to, &ConnectOptions::default(), soon()).expect("started");
        fake.inject(Target::Unconnected, kind, status, data);
        let end = [1, 3, 11].contains(&kind);
        match resolving.try_advance() {
            Ok(Progress::Done(_)) => assert!(!end, "{kind}"),
            Ok(Progress::Pending(_)) => panic!("{kind}: nothing is left to wait for"),
            // A second ADDR_RESOLVED starts a second look for the route, which is refused.
            Err(error) => assert!(end || kind == 0, "{kind}: {error}"),
        }
        drop(listener);
        assert_eq!(fake.left_over(), Vec::<String>::new(), "{kind}");
    });
    fake.finish();
}

#[test]
fn while_listening() {
    let fake = control::session();
    every_event(|kind, status, data| {
        let listener = listen(roce()).expect("a listener");
        fake.inject(Target::Listener, kind, status, data);
        let result = listener.try_next_request();
        if EventKind::from_raw(kind) == EventKind::DEVICE_REMOVAL {
            result.expect_err("the device has gone");
        } else {
            assert!(result.expect("no error").is_none(), "{kind}");
            let client = connect(listener.local_addr(), b"").expect("a request");
            drop(listener.next_request(soon()).expect("the listener goes on"));
            drop(client);
        }
        drop(listener);
        assert_eq!(fake.left_over(), Vec::<String>::new(), "{kind}");
    });
    fake.finish();
}

#[test]
fn between_request_and_acceptance() {
    let fake = control::session();
    every_event(|kind, status, data| {
        let listener = listen(roce()).expect("a listener");
        let client = connect(listener.local_addr(), b"").expect("a request");
        let request = listener.next_request(soon()).expect("the request");
        // The kernel holds these back; should one come, it moves with the id.
        fake.inject(Target::Passive, kind, status, data);
        let server = accept(request, b"").expect("accepted");
        let _ = server.next_event(at_once());
        drop((client, server, listener));
        assert_eq!(fake.left_over(), Vec::<String>::new(), "{kind}");
    });
    fake.finish();
}

#[test]
fn while_the_client_waits_for_the_answer() {
    let fake = control::session();
    every_event(|kind, status, data| {
        let listener = listen(roce()).expect("a listener");
        let client = connect(listener.local_addr(), b"").expect("a request");
        fake.inject(Target::Active, kind, status, data);
        let _ = client.next_event(at_once());
        let ends = [
            EventKind::CONNECT_ERROR,
            EventKind::UNREACHABLE,
            EventKind::REJECTED,
            EventKind::DISCONNECTED,
            EventKind::DEVICE_REMOVAL,
            // Without an answer it cannot be carried out.
            EventKind::CONNECT_RESPONSE,
        ];
        let state = client.state();
        match EventKind::from_raw(kind) {
            kind if ends.contains(&kind) => assert_eq!(state, ConnectionState::Closed, "{kind}"),
            EventKind::ESTABLISHED => assert_eq!(state, ConnectionState::Established),
            kind => assert_eq!(state, ConnectionState::Connecting, "{kind}"),
        }
        drop((client, listener));
        assert_eq!(fake.left_over(), Vec::<String>::new(), "{kind}");
    });
    fake.finish();
}

#[test]
fn while_the_server_waits_for_the_confirmation() {
    let fake = control::session();
    let both = [roce(), iwarp()];
    let some = if control::hurried() {
        &both[..1]
    } else {
        &both[..]
    };
    for &addr in some {
        every_event(|kind, status, data| {
            let (client, server) = accepted(addr).expect("accepted");
            fake.inject(Target::Passive, kind, status, data);
            let _ = client.wait_established(soon());
            for _ in 0..3 {
                let _ = server.next_event(at_once());
            }
            drop((client, server));
            assert_eq!(fake.left_over(), Vec::<String>::new(), "{kind}");
        });
    }
    fake.finish();
}

#[test]
fn while_the_connection_stands() {
    let fake = control::session();
    for target in [Target::Active, Target::Passive] {
        every_event(|kind, status, data| {
            let (client, server) = established(roce()).expect("established");
            fake.inject(target, kind, status, data);
            let end = if target == Target::Active {
                &client
            } else {
                &server
            };
            let told = end.next_event(at_once());
            let ends = [
                EventKind::CONNECT_ERROR,
                EventKind::REJECTED,
                EventKind::DISCONNECTED,
                EventKind::DEVICE_REMOVAL,
            ];
            let closed = ends.contains(&EventKind::from_raw(kind));
            assert_eq!(end.state() == ConnectionState::Closed, closed, "{kind}");
            // Whatever the status says, as when the peer did not answer any more: that is a clean end.
            match EventKind::from_raw(kind) {
                EventKind::DISCONNECTED => assert_eq!(told, Ok(ConnectionEvent::Disconnected)),
                EventKind::TIMEWAIT_EXIT => assert_eq!(told, Ok(ConnectionEvent::TimewaitExit)),
                _ => {}
            }
            drop((client, server));
            assert_eq!(fake.left_over(), Vec::<String>::new(), "{kind}");
        });
    }
    fake.finish();
}

#[test]
fn after_the_end_of_the_connection() {
    let fake = control::session();
    every_event(|kind, status, data| {
        let (client, server) = established(roce()).expect("established");
        client.disconnect().expect("disconnected");
        fake.inject(Target::Active, kind, status, data);
        let _ = client.next_event(at_once());
        assert_eq!(client.state(), ConnectionState::Closed, "{kind}");
        // Events that nobody takes go with their id.
        fake.inject(Target::Passive, kind, status, data);
        drop((client, server));
        assert_eq!(fake.left_over(), Vec::<String>::new(), "{kind}");
    });
    fake.finish();
}
