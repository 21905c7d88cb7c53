//! Options of ids and capabilities of devices.

use cm::verbs::ErrorKind;
use cm::verbs::sys::fake::control;
use cm::{
    ConnParams, ConnectOptions, Ece, Error, ListenOptions, Listener, PortSpace, RejectReason,
    Request, Resolved, Resolving,
};

use super::common::{accept, listen, queue_pair, resolve, roce, soon};

fn kind(error: &Error) -> Option<ErrorKind> {
    match error {
        Error::Call(error) => Some(error.kind()),
        _ => None,
    }
}

#[test]
fn an_option_that_the_kernel_does_not_know_is_unsupported_and_ends_nothing() {
    let fake = control::session();
    let listener = listen(roce()).expect("a listener");
    for errno in [libc::ENOSYS, libc::EOPNOTSUPP] {
        let to = listener.local_addr();
        let resolving = Resolving::start(to, &ConnectOptions::default(), soon()).expect("started");
        fake.fail("rdma_set_option", 0, errno);
        let error = resolving.set_ack_timeout(14).expect_err("not known");
        assert_eq!(kind(&error), Some(ErrorKind::Unsupported), "{error}");
        assert!(error.to_string().contains("ack timeout"), "{error}");
        let resolved = resolving.wait().expect("it goes on");
        let qp = queue_pair(resolved.context()).expect("a queue pair");
        resolved.init_qp(&qp).expect("INIT");
        let params = ConnParams::default();
        let client = resolved.connect(qp, &params, b"").expect("a request");
        let server = accept(listener.next_request(soon()).expect("it"), b"").expect("accepted");
        client.wait_established(soon()).expect("established");
        drop((client, server));
    }
    // Without the option nothing is asked of the kernel.
    let before = fake.count("rdma_set_option");
    drop(resolve(listener.local_addr()).expect("resolved"));
    assert_eq!(fake.count("rdma_set_option"), before);
    drop(listener);
    fake.finish();
}

#[test]
fn an_option_that_the_kernel_refuses_is_a_failed_call_and_ends_nothing() {
    let fake = control::session();
    let listener = listen(roce()).expect("a listener");
    let to = listener.local_addr();
    let resolving = Resolving::start(to, &ConnectOptions::default(), soon()).expect("started");
    fake.fail("rdma_set_option", 0, libc::EINVAL);
    // Kernels that do not know an option answer ENOSYS: this one knows it and does not take the value.
    match resolving.set_ack_timeout(14) {
        Err(Error::Call(error)) => {
            assert_eq!(error.errno(), Some(libc::EINVAL));
            assert_ne!(error.kind(), ErrorKind::Unsupported);
            assert!(error.to_string().contains("ack timeout"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    drop(resolving.wait().expect("it goes on"));
    drop(listener);
    fake.finish();
}

/// Two threads with a `&Request` would write what librdmacm keeps without a lock.
#[test]
fn capabilities_are_told_by_one_thread_at_a_time() {
    let _: fn(&mut Request, Ece) -> Result<(), Error> = Request::set_local_ece;
    let _: fn(&mut Resolved, Ece) -> Result<(), Error> = Resolved::set_local_ece;
}

#[test]
fn an_ack_timeout_is_set_before_the_route_is_asked_for() {
    let fake = control::session();
    let listener = listen(roce()).expect("a listener");
    let options = ConnectOptions::default();
    let resolving = Resolving::start(listener.local_addr(), &options, soon()).expect("started");
    resolving.set_ack_timeout(31).expect("set");
    let error = resolving.set_ack_timeout(32).expect_err("out of range");
    assert_eq!(kind(&error), Some(ErrorKind::InvalidArgument));
    drop(resolving.wait().expect("resolved"));
    let calls = fake.calls();
    let at = |name| calls.iter().position(|call| *call == name);
    assert!(
        at("rdma_set_option") < at("rdma_resolve_route"),
        "{calls:?}"
    );
    assert_eq!(fake.count("rdma_set_option"), 1);
    drop(listener);
    fake.finish();
}

#[test]
fn a_datagram_port_space_makes_no_connection() {
    let fake = control::session();
    for space in [PortSpace::UDP, PortSpace::IPOIB] {
        let mut options = ListenOptions::default();
        options.id.port_space = Some(space);
        let error = Listener::bind(roce(), &options).expect_err("no connection");
        assert_eq!(kind(&error), Some(ErrorKind::InvalidArgument), "{error}");
        let mut options = ConnectOptions::default();
        options.id.port_space = Some(space);
        let error = Resolving::start(roce(), &options, soon()).expect_err("no connection");
        assert_eq!(kind(&error), Some(ErrorKind::InvalidArgument), "{error}");
    }
    fake.finish();
}

#[test]
fn capabilities_of_one_side_are_read_by_the_other() {
    let fake = control::session();
    let (ours, theirs) = (
        Ece {
            vendor_id: 0x15b3,
            options: 1,
        },
        Ece {
            vendor_id: 0x15b3,
            options: 2,
        },
    );
    let listener = listen(roce()).expect("a listener");
    let mut resolved = resolve(listener.local_addr()).expect("resolved");
    let qp = queue_pair(resolved.context()).expect("a queue pair");
    resolved.init_qp(&qp).expect("INIT");
    resolved.set_local_ece(ours).expect("set");
    let client = resolved
        .connect(qp, &ConnParams::default(), b"")
        .expect("a request");
    let error = client.remote_ece().expect_err("the answer is on its way");
    assert_eq!(kind(&error), Some(ErrorKind::InvalidArgument), "{error}");
    let mut request = listener.next_request(soon()).expect("the request");
    assert_eq!(request.remote_ece().expect("told"), ours);
    request.set_local_ece(theirs).expect("set");
    let server = accept(request, b"").expect("accepted");
    client.wait_established(soon()).expect("established");
    server.wait_established(soon()).expect("established");
    assert_eq!(client.remote_ece().expect("told"), theirs);
    assert_eq!(server.remote_ece().expect("told"), ours);
    drop((client, server));

    let client = super::common::connect(listener.local_addr(), b"").expect("a request");
    let request = listener.next_request(soon()).expect("the request");
    assert_eq!(request.remote_ece().expect("none told"), Ece::default());
    request.reject_ece(b"no").expect("rejected");
    match client.wait_established(soon()) {
        Err(Error::Rejected {
            reason,
            private_data,
            ..
        }) => {
            assert_eq!(reason, RejectReason::VENDOR_OPTION);
            assert!(private_data.starts_with(b"no"));
        }
        other => panic!("{other:?}"),
    }
    drop((client, listener));
    fake.finish();
}
