//! Events of the connection manager: whatever they are, each is acknowledged once.

use harness::{
    Baseline, Need, Outcome, Pair, Role, Test, WAIT, ensure, ensure_eq, listen, rounds, test,
};
use rpma::cm::verbs::ErrorKind as VerbsErrorKind;
use rpma::cm::{ConnParams, ConnectOptions, Deadline, Error, EventKind, Resolving};
use rpma::{ConnectionRequest, ErrorKind, PrivateData};

use super::stage::{NEWS, Stage};
use super::{Fault, child};
use crate::raw::{Queues, RawPair, begin, listener};

pub(super) fn tests() -> Vec<Test> {
    vec![
        test(
            "a_failing_rejection_still_ends_the_clients_wait",
            &[Need::Device, Need::C],
            || child("failing_rejection", ""),
        ),
        test(
            "every_event_is_acknowledged_once_whatever_becomes_of_the_connection",
            &[Need::Device, Need::C],
            || child("refusals", ""),
        ),
        test(
            "an_event_that_ends_a_handshake_becomes_the_error_of_its_kind",
            &[Need::Device, Need::C],
            || child("events", ""),
        ),
        test(
            "an_option_or_an_acceptance_that_the_kernel_refuses_is_told_in_full_and_ends_nothing",
            &[Need::Device, Need::C],
            || child("told_in_full", ""),
        )
        .long(),
    ]
}

pub(super) const ROLES: &[Role] = &[
    ("failing_rejection", failing_rejection),
    ("refusals", refusals),
    ("events", events),
    ("told_in_full", told_in_full),
];

fn failing_rejection() -> Outcome {
    let fault = Fault::find()?;
    let stage = Stage::new()?;
    let baseline = Baseline::take()?;
    let to = stage.endpoint.local_addr();
    for round in 0..rounds(20, 100) {
        let client = ConnectionRequest::new(&stage.client_peer, to, &stage.config)?
            .connect(PrivateData::none())?;
        let request = stage
            .endpoint
            .next_connection_request(&stage.config, WAIT)?;
        fault.arm("rdma_reject", 1, libc::EIO)?;
        if round % 2 == 0 {
            drop(request);
        } else {
            let error = request
                .reject(PrivateData::none())
                .err()
                .ok_or("rejected")?;
            ensure!(error.to_string().contains("rdma_reject"), "{error}");
        }
        ensure!(fault.hits() >= 1, "round {round}: nothing was rejected");
        let error = client.wait_established(NEWS).err().ok_or("connected")?;
        ensure_eq!(error.kind(), ErrorKind::Rejected, "round {round}: {error}");
    }
    baseline.check()?;
    stage.works()?;
    drop(stage);
    fault.balanced()
}

fn refusals() -> Outcome {
    let fault = Fault::find()?;
    let stage = Stage::new()?;
    let config = &stage.config;
    let connect =
        |to| ConnectionRequest::new(&stage.client_peer, to, config)?.connect(PrivateData::none());
    let nobody = listen()?.1.local_addr();
    for _ in 0..rounds(10, 100) {
        let error = connect(nobody)?
            .wait_established(WAIT)
            .err()
            .ok_or("connected")?;
        ensure_eq!(error.kind(), ErrorKind::NoListener, "{error}");

        let client = connect(stage.endpoint.local_addr())?;
        stage
            .endpoint
            .next_connection_request(config, WAIT)?
            .reject(PrivateData::new(b"no")?)?;
        let error = client.wait_established(WAIT).err().ok_or("connected")?;
        ensure_eq!(error.kind(), ErrorKind::Rejected, "{error}");

        for (from, to) in [
            (EventKind::ADDR_RESOLVED, EventKind::ADDR_ERROR),
            (EventKind::ROUTE_RESOLVED, EventKind::ROUTE_ERROR),
        ] {
            // After another errno, ETIMEDOUT, the address is asked for again, which this kernel has found already.
            fault.rewrite(from, to, -libc::EHOSTUNREACH)?;
            let error = connect(nobody).err().ok_or("resolved")?;
            ensure_eq!(error.kind(), ErrorKind::NoSuchAddress, "{error}");
        }
        fault.no_rewrite();
        stage.works()?;
        // Established, and neither side takes an event again.
        let pair = Pair::new()?;
        drop(pair);
    }
    drop(stage);
    fault.balanced()
}

fn events() -> Outcome {
    let fault = Fault::find()?;
    let stage = Stage::new()?;
    let cases = [
        (
            EventKind::CONNECT_RESPONSE,
            EventKind::CONNECT_ERROR,
            -libc::EINVAL,
            ErrorKind::Disconnected,
        ),
        (
            EventKind::CONNECT_RESPONSE,
            EventKind::UNREACHABLE,
            -libc::ETIMEDOUT,
            ErrorKind::Unreachable,
        ),
        (
            EventKind::CONNECT_RESPONSE,
            EventKind::REJECTED,
            10,
            ErrorKind::Rejected,
        ),
        (
            EventKind::CONNECT_RESPONSE,
            EventKind::REJECTED,
            8,
            ErrorKind::NoListener,
        ),
        (
            EventKind::CONNECT_RESPONSE,
            EventKind::DISCONNECTED,
            0,
            ErrorKind::Disconnected,
        ),
        (
            EventKind::CONNECT_RESPONSE,
            EventKind::DEVICE_REMOVAL,
            0,
            ErrorKind::DeviceRemoved,
        ),
        (
            EventKind::ADDR_RESOLVED,
            EventKind::DEVICE_REMOVAL,
            0,
            ErrorKind::DeviceRemoved,
        ),
        (
            EventKind::ROUTE_RESOLVED,
            EventKind::ROUTE_ERROR,
            -libc::ETIMEDOUT,
            ErrorKind::NoSuchAddress,
        ),
    ];
    for (from, to, status, kind) in cases {
        fault.rewrite(from, to, status)?;
        let error = stage
            .attempt()?
            .ok_or(format!("{to} instead of {from}: connected"))?;
        ensure_eq!(error.kind(), kind, "{to} instead of {from}: {error}");
        fault.no_rewrite();
        stage.works()?;
    }
    drop(stage);
    fault.balanced()
}

fn told_in_full() -> Outcome {
    let fault = Fault::find()?;
    let listener = listener()?;
    let to = listener.local_addr();
    let soon = || Deadline::after(WAIT);

    // What the kernel does not know is told as unsupported, what it does not take by its errno; the attempt goes on.
    for (errno, unsupported) in [(libc::ENOSYS, true), (libc::EINVAL, false)] {
        let resolving = Resolving::start(to, &ConnectOptions::default(), soon())?;
        fault.arm("rdma_set_option", 1, errno)?;
        let error = resolving.set_ack_timeout(14).err().ok_or("set")?;
        ensure_eq!(fault.hits(), 1, "options asked for");
        let text = error.to_string();
        ensure!(
            text.contains("option ack timeout") && text.contains(&format!("errno {errno}")),
            "{text}"
        );
        ensure!(
            matches!(&error, Error::Call(call)
                if (call.kind() == VerbsErrorKind::Unsupported) == unsupported),
            "{error:?}"
        );
        drop(resolving.wait()?);
    }
    // Without a wish nothing is asked.
    fault.arm("rdma_set_option", 1, libc::ENOSYS)?;
    drop(RawPair::new()?);
    ensure_eq!(fault.hits(), 0, "options asked for that nobody wished");

    let (client, _queues) = begin(to, &[])?;
    let request = listener.next_request(soon())?;
    let (_server_queues, qp) = Queues::new(request.context())?;
    request.init_qp(&qp)?;
    let number = qp.number();
    fault.arm("rdma_accept", 1, libc::EINVAL)?;
    let accepted = request.accept(qp, &ConnParams::default(), &[]);
    let server_says = accepted.err().ok_or("accepted")?.to_string();
    let from = client.local_addr().ok_or("no local address")?;
    let client_says = client.wait_established(soon()).err().ok_or("connected")?;
    let client_says = client_says.to_string();
    for (text, parts) in [
        (
            server_says,
            [
                "rdma_accept".to_owned(),
                "errno 22".to_owned(),
                format!("peer {from}"),
                format!("local address {to}"),
                format!("queue pair {number}"),
            ],
        ),
        (
            client_says,
            [
                "event rejected".to_owned(),
                "by the application (28)".to_owned(),
                to.to_string(),
                String::new(),
                String::new(),
            ],
        ),
    ] {
        for part in &parts {
            ensure!(text.contains(part), "no {part:?} in: {text}");
        }
        ensure!(!text.contains('\n'), "more than a line: {text}");
    }
    fault.arm("", 0, 0)?;
    drop(RawPair::at(
        &listener,
        &ConnectOptions::default(),
        &ConnParams::default(),
    )?);
    drop((client, listener));
    fault.balanced()
}
