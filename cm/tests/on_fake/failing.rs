//! Every call made to fail, on either side: the error names it, and nothing is left.

use std::net::SocketAddr;
use std::time::Duration;

use cm::verbs::sys::fake::control::{self, Session, Target};
use cm::{ConnParams, ConnectionEvent, Deadline, Error, ListenOptions, Listener};

use super::common::{
    accepted, connect, established, iwarp, listen, queue_pair, resolve, roce, soon,
};

/// A connection from its beginning to its end; the first error ends it.
fn a_whole_connection(addr: SocketAddr) -> Result<(), Error> {
    let mut options = ListenOptions::default();
    options.id.type_of_service = Some(4);
    let listener = Listener::bind(addr, &options)?;
    let resolved = resolve(listener.local_addr())?;
    let qp = queue_pair(resolved.context())?;
    resolved.init_qp(&qp)?;
    let client = resolved.connect(qp, &ConnParams::default(), b"request")?;
    let request = listener.next_request(soon())?;
    let qp = queue_pair(request.context())?;
    request.init_qp(&qp)?;
    let server = request.accept(qp, &ConnParams::default(), b"answer")?;
    client.wait_established(soon())?;
    server.wait_established(soon())?;
    client.disconnect()?;
    for end in [&server, &client] {
        // Nobody answers where the other side's answer was made to fail.
        let a_while = Deadline::after(Duration::from_millis(300));
        assert_eq!(end.next_event(a_while)?, ConnectionEvent::Disconnected);
    }
    Ok(())
}

/// A request that is refused.
fn a_rejection(addr: SocketAddr) -> Result<(), Error> {
    let listener = Listener::bind(addr, &ListenOptions::default())?;
    let resolved = resolve(listener.local_addr())?;
    let qp = queue_pair(resolved.context())?;
    resolved.init_qp(&qp)?;
    let client = resolved.connect(qp, &ConnParams::default(), b"")?;
    listener.next_request(soon())?.reject(b"no")?;
    match client.wait_established(soon()) {
        Err(Error::Rejected { .. }) => Ok(()),
        Err(error) => Err(error),
        Ok(_) => panic!("rejected and established"),
    }
}

/// Those tell nobody, or leak by design.
fn tells_nobody(call: &str) -> bool {
    ["ibv_de", "rdma_destroy", "rdma_free", "rdma_ack"]
        .iter()
        .any(|prefix| call.starts_with(prefix))
}

fn each_call_fails(fake: &Session, run: impl Fn() -> Result<(), Error>, expected: usize) {
    run().expect("the devices become known");
    let before = fake.calls().len();
    run().expect("nothing fails");
    let calls = fake.calls().split_off(before);
    let mut names = calls.clone();
    names.sort_unstable();
    names.dedup();
    names.retain(|name| !tells_nobody(name));
    assert!(names.len() >= expected, "{names:?}");
    for name in names {
        let count = calls.iter().filter(|call| **call == name).count();
        // In a hurry, the steps that have the most to undo.
        let few = ["rdma_init_qp_attr", "rdma_accept", "rdma_establish"];
        let count = match (control::hurried(), few.contains(&name)) {
            (true, false) => 0,
            (true, true) => 1,
            (false, _) => count,
        };
        for after in 0..count {
            for errno in [libc::EIO, libc::ENOMEM] {
                fake.fail(name, after, errno);
                let result = run();
                fake.heal();
                let what = format!("{name} {after} {errno}: {result:?}");
                assert_eq!(fake.left_over(), Vec::<String>::new(), "{what}");
                match result {
                    Err(Error::Call(error)) => {
                        assert_eq!((error.verb(), error.errno()), (name, Some(errno)), "{what}");
                    }
                    // The error was met where nobody is there to be told, as in a drop.
                    Ok(()) => {
                        let quiet = ["ibv_modify_qp", "rdma_disconnect", "rdma_reject"];
                        assert!(quiet.contains(&name), "{what}");
                    }
                    Err(Error::TimedOut { .. }) if name == "rdma_disconnect" => {}
                    Err(_) => panic!("{what}"),
                }
            }
        }
    }
}

#[test]
fn each_call_of_a_connection_fails() {
    let fake = control::session();
    each_call_fails(&fake, || a_whole_connection(roce()), 18);
    fake.finish();
}

#[test]
fn each_call_of_a_connection_on_iwarp_fails() {
    let fake = control::session();
    each_call_fails(&fake, || a_whole_connection(iwarp()), 17);
    fake.finish();
}

#[test]
fn each_call_of_a_rejection_fails() {
    let fake = control::session();
    each_call_fails(&fake, || a_rejection(roce()), 14);
    fake.finish();
}

#[test]
fn a_failed_acceptance_and_a_refusal_say_all_that_is_known() {
    let fake = control::session();
    let listener = super::common::listen(roce()).expect("a listener");
    let to = listener.local_addr();
    for call in ["rdma_accept", "rdma_init_qp_attr", "ibv_modify_qp"] {
        let client = super::common::connect(to, b"").expect("a request");
        let request = listener.next_request(soon()).expect("the request");
        let qp = queue_pair(request.context()).expect("a queue pair");
        request.init_qp(&qp).expect("INIT");
        let number = qp.number();
        fake.fail(call, 0, libc::EINVAL);
        let error = request
            .accept(qp, &ConnParams::default(), b"")
            .expect_err("made to fail");
        let text = error.to_string();
        let from = client.local_addr().expect("an address");
        for part in [
            call.to_owned(),
            format!("peer {from}"),
            format!("local address {to}"),
            format!("queue pair {number}"),
            "(errno 22)".to_owned(),
        ] {
            assert!(text.contains(&part), "no {part} in: {text}");
        }
        // So the kernel says that the request is over.
        let given_up = matches!(error, Error::GaveUp { peer, .. } if peer == from);
        assert_eq!(given_up, call != "ibv_modify_qp", "{text}");
        let text = client
            .wait_established(soon())
            .expect_err("rejected")
            .to_string();
        for part in ["event rejected", "by the application (28)", &to.to_string()] {
            assert!(text.contains(part), "no {part} in: {text}");
        }
        assert!(!text.contains('\n'), "{text}");
    }
    let client = super::common::connect(to, b"").expect("a request");
    let server = super::common::accept(listener.next_request(soon()).expect("it"), b"");
    let number = client.qp().number();
    fake.fail("rdma_establish", 0, libc::EIO);
    let text = client.wait_established(soon()).expect_err("made to fail");
    let text = text.to_string();
    assert!(text.contains(&format!("queue pair {number}")), "{text}");
    drop((client, server, listener));
    fake.finish();
}

#[test]
fn leaks_an_id_that_cannot_be_destroyed_and_goes_on() {
    let fake = control::session();
    a_whole_connection(roce()).expect("nothing fails");
    let count = fake.count("rdma_destroy_id");
    for after in 0..count {
        fake.fail("rdma_destroy_id", after, libc::EIO);
        a_whole_connection(roce()).expect("a drop tells nobody");
        assert!(fake.faults_happened());
    }
    fake.discard();
}

#[test]
fn an_answer_that_was_taken_back_before_it_was_read_is_a_rejection() {
    let fake = control::session();
    let (client, server) = accepted(roce()).expect("accepted");
    // The kernel has the rejection already when the answer is taken, and does not know the connection any more.
    fake.inject(Target::Active, 8, 28, Some(b"no"));
    fake.fail("rdma_init_qp_attr", 0, libc::EINVAL);
    let error = client.wait_established(soon()).expect_err("no connection");
    assert!(
        matches!(&error, Error::Rejected { reason, .. } if reason.raw() == 28),
        "{error}"
    );
    drop((client, server));
    fake.finish();
}

#[test]
fn a_device_that_goes_away_is_told_by_whichever_call_meets_it_first() {
    let fake = control::session();
    for call in [
        "rdma_resolve_route",
        "rdma_init_qp_attr",
        "rdma_connect",
        "rdma_migrate_id",
        "rdma_accept",
        "rdma_establish",
    ] {
        fake.fail(call, 0, libc::ENXIO);
        let error = a_whole_connection(roce()).expect_err(call);
        assert!(
            matches!(error, Error::DeviceRemoved { .. }),
            "{call}: {error}"
        );
    }
    let listener = listen(roce()).expect("a listener");
    let client = connect(listener.local_addr(), b"").expect("a request");
    let request = listener.next_request(soon()).expect("a request");
    fake.fail("rdma_reject", 0, libc::ENXIO);
    let error = request.reject(b"").expect_err("no device");
    assert!(matches!(error, Error::DeviceRemoved { .. }), "{error}");
    drop((client, listener));
    // Nothing is left to be ended.
    let (client, server) = established(roce()).expect("a connection");
    fake.fail("rdma_disconnect", 0, libc::ENXIO);
    client.disconnect().expect("no failure");
    drop((client, server));
    fake.finish();
}
