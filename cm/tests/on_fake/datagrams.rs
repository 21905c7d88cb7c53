//! Addresses of datagram queue pairs, asked for and told; multicast groups.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use cm::verbs::sys::fake::control::{self, Session, Target};
use cm::verbs::{
    CompletionQueue, Context, ErrorKind, ProtectionDomain, QpState, QpType, QueuePair,
};
use cm::{
    ConnectOptions, DatagramListener, DatagramPeer, DatagramResolving, Deadline, Dispatcher, Error,
    EventSource, GroupState, IdOptions, JoinKind, ListenOptions, Multicast, MulticastEvent,
    PortSpace, Progress, RejectReason,
};

use super::common::{iwarp, queue_pair, roce, soon};

/// The key that librdmacm gives to all of its port space.
const QKEY: u32 = 0x0123_4567;

fn ud(context: &Context) -> QueuePair {
    let pd = ProtectionDomain::new(context).expect("a domain");
    let cq = CompletionQueue::builder(context, 8)
        .build()
        .expect("a queue");
    QueuePair::builder(&pd, QpType::UD, &cq, &cq)
        .max_send_wr(2)
        .max_recv_wr(2)
        .build()
        .expect("a queue pair")
}

fn listen() -> DatagramListener {
    DatagramListener::bind(roce(), &ListenOptions::default()).expect("a listener")
}

fn ask(to: SocketAddr, data: &[u8]) -> cm::DatagramLookup {
    let options = ConnectOptions::default();
    let resolving = DatagramResolving::start(to, &options, soon()).expect("started");
    let resolved = resolving.wait().expect("resolved");
    assert_eq!(resolved.peer_addr(), to);
    resolved.ask(data).expect("asked")
}

fn is_refused(error: &Error) -> bool {
    matches!(error, Error::Call(call) if call.kind() == ErrorKind::InvalidArgument)
}

fn group(n: u8) -> IpAddr {
    IpAddr::from([239, 1, 2, n])
}

fn bound() -> Multicast {
    Multicast::bind(roce(), &IdOptions::default()).expect("an address")
}

fn member<S: EventSource>(multicast: &Multicast<S>) -> Arc<QueuePair> {
    let qp = ud(multicast.context());
    multicast.init_qp(&qp).expect("RTS");
    Arc::new(qp)
}

fn joins(fake: &Session) -> (usize, usize) {
    (
        fake.count("ibv_attach_mcast"),
        fake.count("ibv_detach_mcast"),
    )
}

#[test]
fn the_answer_says_path_number_and_key_and_the_data_of_both_sides_is_padded() {
    let fake = control::session();
    let listener = listen();
    let asking = ask(listener.local_addr(), b"who");
    let request = listener.next_request(soon()).expect("the request");
    assert!(request.private_data().starts_with(b"who\0"));
    assert_eq!(request.private_data().len(), 180);
    let qp = ud(request.context());
    request.init_qp(&qp).expect("RTS");
    assert_eq!(qp.state(), QpState::RTS);
    let Progress::Pending(asking) = asking.try_answer().expect("no answer yet") else {
        panic!("answered by nobody")
    };
    request.accept(&qp, b"me").expect("told");
    let DatagramPeer {
        remote,
        private_data,
        ..
    } = asking.wait(soon()).expect("the answer");
    assert_eq!((remote.qp_number, remote.qkey), (qp.number(), QKEY));
    let route = remote.address.route.expect("RoCE has the global part");
    assert_eq!(&route.dgid.0[12..], [192, 0, 2, 1]);
    assert!(private_data.starts_with(b"me\0"));
    assert_eq!(private_data.len(), 136);
    drop((listener, qp));
    fake.finish();
}

#[test]
fn one_queue_pair_answers_many_and_its_address_makes_a_handle() {
    let fake = control::session();
    let listener = listen();
    let mut qp = None;
    for _ in 0..3 {
        let asking = ask(listener.local_addr(), b"");
        let request = listener.next_request(soon()).expect("the request");
        let qp = qp.get_or_insert_with(|| {
            let qp = ud(request.context());
            request.init_qp(&qp).expect("RTS");
            qp
        });
        let pd = ProtectionDomain::new(request.context()).expect("a domain");
        request.accept(qp, b"").expect("told");
        let peer = asking.wait(soon()).expect("the answer");
        assert_eq!(peer.remote.qp_number, qp.number());
        drop(peer.address_handle(&pd).expect("a handle"));
    }
    drop((listener, qp));
    fake.finish();
}

#[test]
fn nobody_listening_and_a_refusal_are_told_apart() {
    let fake = control::session();
    let mut nowhere = roce();
    nowhere.set_port(9);
    let error = ask(nowhere, b"").wait(soon()).expect_err("nobody listens");
    assert!(matches!(error, Error::NoListener { .. }), "{error}");

    // A listener for connections is another one.
    let other = super::common::listen(roce()).expect("a listener");
    let error = ask(other.local_addr(), b"").wait(soon());
    assert!(matches!(error, Err(Error::NoListener { .. })));

    let listener = listen();
    for said in [Some(&b"busy"[..]), None] {
        let asking = ask(listener.local_addr(), b"");
        let request = listener.next_request(soon()).expect("the request");
        match said {
            Some(data) => request.reject(data).expect("refused"),
            None => drop(request),
        }
        match asking.wait(soon()) {
            Err(Error::Rejected {
                reason,
                private_data,
                ..
            }) => {
                assert_eq!(reason, RejectReason::CONSUMER);
                assert!(private_data.starts_with(said.unwrap_or_default()));
            }
            other => panic!("{other:?}"),
        }
    }
    let asking = ask(listener.local_addr(), b"");
    fake.inject(Target::Active, 7, -libc::ETIMEDOUT, None);
    let error = asking.wait(soon()).expect_err("silence");
    assert!(
        matches!(error, Error::Unreachable { status: -110, .. }),
        "{error}"
    );
    drop((other, listener));
    fake.finish();
}

#[test]
fn what_does_not_fit_is_refused_before_c_and_the_request_refused() {
    let fake = control::session();
    let listener = listen();
    let to = listener.local_addr();
    let options = ConnectOptions::default();
    let resolved = DatagramResolving::start(to, &options, soon()).expect("started");
    let resolved = resolved.wait().expect("resolved");
    let rc = queue_pair(resolved.context()).expect("a queue pair");
    assert!(is_refused(&resolved.init_qp(&rc).expect_err("RC")));
    let error = resolved.ask(&[0; 181]).expect_err("too long");
    assert!(error.to_string().contains("181 bytes"), "{error}");

    type Answer = fn(cm::DatagramRequest, &QueuePair, &QueuePair) -> Result<(), Error>;
    let wrong: [Answer; 4] = [
        |request, rc, _| request.accept(rc, b""),
        |request, _, reset| request.accept(reset, b""),
        |request, _, qp| {
            request.init_qp(qp)?;
            request.accept(qp, &[0; 137])
        },
        |request, _, _| request.reject(&[0; 137]),
    ];
    for answer in wrong {
        let asking = ask(to, b"");
        let request = listener.next_request(soon()).expect("the request");
        let qp = ud(request.context());
        answer(request, &rc, &qp).expect_err("does not fit");
        let error = asking.wait(soon()).expect_err("refused");
        assert!(matches!(error, Error::Rejected { .. }), "{error}");
    }
    let mut options = ListenOptions::default();
    options.id.port_space = Some(PortSpace::TCP);
    let error = DatagramListener::bind(roce(), &options).expect_err("not for datagrams");
    assert!(is_refused(&error), "{error}");
    drop((rc, listener));
    fake.finish();
}

#[test]
fn datagrams_go_through_a_dispatcher_too() {
    let fake = control::session();
    let dispatcher = Dispatcher::new().expect("a dispatcher");
    let listener = dispatcher
        .listen_datagram(roce(), &ListenOptions::default())
        .expect("a listener");
    let to = listener.local_addr();
    let options = ConnectOptions::default();
    let resolving = dispatcher.resolve_datagram(to, &options, soon());
    let resolved = resolving
        .and_then(DatagramResolving::wait)
        .expect("resolved");
    let asking = resolved.ask(b"").expect("asked");
    let request = listener.next_request(soon()).expect("the request");
    let qp = ud(request.context());
    request.init_qp(&qp).expect("RTS");
    request.accept(&qp, b"").expect("told");
    let peer = asking.wait(soon()).expect("the answer");
    assert_eq!(peer.remote.qp_number, qp.number());

    let multicast = dispatcher
        .multicast(roce(), &IdOptions::default())
        .expect("an address");
    let joined = multicast
        .join(group(1), &member(&multicast), JoinKind::FullMember)
        .expect("asked");
    joined.wait_joined(soon()).expect("joined");
    drop((dispatcher, multicast, listener, qp, joined));
    fake.finish();
}

#[test]
fn a_group_is_received_from_until_it_is_left() {
    let fake = control::session();
    for addr in [group(1), "ff0e::1:2".parse().expect("a group")] {
        let before = joins(&fake);
        let multicast = bound();
        let qp = member(&multicast);
        let joined = multicast
            .join(addr, &qp, JoinKind::FullMember)
            .expect("asked");
        assert_eq!(joined.state(), GroupState::Joining);
        let remote = joined.wait_joined(soon()).expect("joined");
        assert_eq!(joined.state(), GroupState::Joined(remote));
        assert_eq!((remote.qp_number, remote.qkey), (0xff_ffff, QKEY));
        assert_eq!(joins(&fake), (before.0 + 1, before.1));
        joined.leave().expect("left");
        assert_eq!(joins(&fake), (before.0 + 1, before.1 + 1));
        // Once more, and left by going.
        let joined = multicast.join(addr, &qp, JoinKind::FullMember);
        let joined = joined.expect("asked again");
        joined.wait_joined(soon()).expect("joined");
        drop((qp, multicast, joined));
        assert_eq!(fake.left_over(), Vec::<String>::new());
    }
    fake.finish();
}

#[test]
fn who_only_sends_is_not_attached() {
    let fake = control::session();
    let multicast = bound();
    let qp = Arc::new(ud(multicast.context()));
    let joined = multicast
        .join(group(1), &qp, JoinKind::SendOnly)
        .expect("asked");
    joined.wait_joined(soon()).expect("joined");
    assert_eq!(fake.count("rdma_join_multicast_ex"), 1);
    drop((joined, multicast, qp));
    assert_eq!(joins(&fake), (0, 0));
    fake.finish();
}

#[test]
fn groups_do_not_take_each_others_events_and_none_is_lost() {
    let fake = control::session();
    let multicast = bound();
    let qp = member(&multicast);
    let groups: Vec<_> = (1..=4)
        .map(|n| multicast.join(group(n), &qp, JoinKind::FullMember))
        .collect::<Result<_, _>>()
        .expect("asked");
    groups[3].wait_joined(soon()).expect("joined");
    // Those that were met on the way are there for who asks, and the others are as they are.
    for n in 1..=3 {
        match multicast.next_event(soon()).expect("kept") {
            MulticastEvent::Joined { group: of, .. } => assert_eq!(of, group(n)),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(multicast.try_next_event().expect("no error"), None);
    assert!(
        groups
            .iter()
            .all(|group| matches!(group.state(), GroupState::Joined(_)))
    );

    fake.lose_group(group(2), 2, -libc::ENETDOWN);
    let event = multicast.next_event(soon()).expect("an event");
    let status = -libc::ENETDOWN;
    assert_eq!(
        event,
        MulticastEvent::Lost {
            group: group(2),
            status
        }
    );
    assert_eq!(groups[1].state(), GroupState::Lost(status));
    groups[1].wait_joined(soon()).expect_err("lost");
    drop((groups, multicast, qp));
    fake.finish();
}

#[test]
fn a_group_goes_in_any_order_and_with_events_untaken() {
    let fake = control::session();
    for order in 0..6 {
        for taken in [true, false] {
            let multicast = bound();
            let qp = member(&multicast);
            let joined = multicast
                .join(group(1), &qp, JoinKind::FullMember)
                .expect("asked");
            if taken {
                multicast.next_event(soon()).expect("joined");
            }
            let mut handles: Vec<Box<dyn Send>> =
                vec![Box::new(multicast), Box::new(qp), Box::new(joined)];
            let start = Instant::now();
            for at in [order % 3, order / 3, 0] {
                drop(handles.remove(at));
            }
            assert!(start.elapsed() < control::within(1));
            assert_eq!(fake.left_over(), Vec::<String>::new(), "{order} {taken}");
        }
    }
    fake.finish();
}

#[test]
fn a_group_is_left_while_another_thread_takes_events() {
    let fake = control::session();
    let multicast = bound();
    let qp = member(&multicast);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let _ = multicast.next_event(Deadline::after(Duration::from_millis(5)));
            }
        });
        for round in 0..if control::hurried() { 2 } else { 300 } {
            let joined = multicast
                .join(group(1), &qp, JoinKind::FullMember)
                .expect("asked");
            if round % 2 == 0 {
                joined.wait_joined(soon()).expect("joined");
            }
            drop(joined);
        }
        done.store(true, Ordering::Relaxed);
    });
    drop((multicast, qp));
    fake.finish();
}

#[test]
fn a_join_that_cannot_be_is_refused_by_name_and_leaves_nothing() {
    let fake = control::session();
    let multicast = bound();
    let qp = member(&multicast);
    let no_group = multicast.join(roce().ip(), &qp, JoinKind::FullMember);
    let error = no_group.expect_err("no group");
    assert!(
        error.to_string().contains("no multicast address"),
        "{error}"
    );
    let reset = Arc::new(ud(multicast.context()));
    let error = multicast
        .join(group(1), &reset, JoinKind::FullMember)
        .expect_err("receives nothing");
    assert!(is_refused(&error), "{error}");
    let joined = multicast.join(group(1), &qp, JoinKind::FullMember);
    let joined = joined.expect("asked");
    let twice = multicast.join(group(1), &qp, JoinKind::FullMember);
    assert!(is_refused(&twice.expect_err("joined already")));
    drop(joined);

    for call in ["rdma_join_multicast", "ibv_attach_mcast"] {
        fake.fail(call, 0, libc::ENOMEM);
        let joined = multicast.join(group(1), &qp, JoinKind::FullMember);
        let error = joined.and_then(|joined| joined.wait_joined(soon()));
        let error = error.expect_err("made to fail").to_string();
        assert!(error.contains("239.1.2.1"), "{error}");
    }
    let wildcard = SocketAddr::from(([0, 0, 0, 0], 0));
    let error = Multicast::bind(wildcard, &IdOptions::default()).expect_err("no device");
    assert!(matches!(error, Error::NoSuchAddress { .. }), "{error}");
    drop((multicast, qp, reset));
    fake.finish();
}

#[test]
fn events_of_every_kind_are_taken_in_every_phase_of_datagrams() {
    let fake = control::session();
    for kind in (0..=20).filter(|kind| !control::hurried() || [4, 8, 12].contains(kind)) {
        let listener = listen();
        fake.inject(Target::Listener, kind, 0, Some(&[5; 56]));
        let result = listener.try_next_request();
        assert_eq!(result.is_err(), kind == 11, "{kind}");
        let asking = ask(listener.local_addr(), b"");
        fake.inject(Target::Active, kind, -libc::EIO, None);
        let a_while = Deadline::after(Duration::from_millis(1));
        let ends = [6, 7, 9, 11].contains(&kind);
        let error = asking.wait(a_while).err();
        let timed_out = matches!(error, Some(Error::TimedOut { .. }));
        assert_eq!(timed_out, !ends, "{kind}: {error:?}");
        drop(listener);

        let multicast = bound();
        fake.inject(Target::Unconnected, kind, 0, None);
        let event = multicast.try_next_event().expect("no error");
        // Of a group that there is not.
        assert_eq!(
            event.is_none(),
            [12, 13].contains(&kind),
            "{kind}: {event:?}"
        );
        drop(multicast);
        assert_eq!(fake.left_over(), Vec::<String>::new(), "{kind}");
    }
    fake.finish();
}

#[test]
fn iwarp_has_no_datagrams() {
    let fake = control::session();
    let resolving = DatagramResolving::start(iwarp(), &ConnectOptions::default(), soon());
    let resolved = resolving
        .and_then(DatagramResolving::wait)
        .expect("resolved");
    let error = resolved.ask(b"").expect_err("no datagrams");
    assert!(error.to_string().contains("rdma_connect"), "{error}");
    fake.finish();
}
