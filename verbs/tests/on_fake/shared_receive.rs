//! Shared receive queues.

use std::ops::Range;

use verbs::sys::fake::control;
use verbs::{
    AsyncEventKind, AsyncEventSource, CompletionQueue, Error, ErrorKind, PostErrorKind,
    ProtectionDomain, QpType, QueuePair, RecvRequest, SendFlags, SendRequest, SharedReceiveQueue,
    WcStatus,
};

use super::common::{Memory, connect, drain, everything, open, outcomes, sge, soon};
use super::failing::{fail_each_call, fail_each_destroy};

/// A queue of eight receives shared by two queue pairs, each connected to a client; all complete in one queue for each side.
struct Shared {
    servers: [QueuePair; 2],
    clients: [QueuePair; 2],
    server_cq: CompletionQueue,
    client_cq: CompletionQueue,
    srq: SharedReceiveQueue,
}

impl Shared {
    fn new() -> Result<Self, Error> {
        let context = open()?;
        let pd = ProtectionDomain::new(&context)?;
        let srq = SharedReceiveQueue::new(&pd, 8, 2)?;
        let cq = || CompletionQueue::builder(&context, 64).build();
        let (server_cq, client_cq) = (cq()?, cq()?);
        let server = || {
            QueuePair::builder(&pd, QpType::RC, &server_cq, &server_cq)
                .max_send_wr(4)
                .srq(&srq)
                .build()
        };
        let client = || QueuePair::builder(&pd, QpType::RC, &client_cq, &client_cq).build();
        let shared = Self {
            servers: [server()?, server()?],
            clients: [client()?, client()?],
            server_cq,
            client_cq,
            srq,
        };
        for (server, client) in shared.servers.iter().zip(&shared.clients) {
            connect(server, client, 7)?;
        }
        Ok(shared)
    }

    fn recv(&self, wr_ids: Range<u64>) -> Result<(), Error> {
        for wr_id in wr_ids {
            // SAFETY: the request names no memory.
            unsafe { self.srq.post_recv(&mut RecvRequest::new(wr_id, &[])) }?;
        }
        Ok(())
    }

    fn send(&self, client: usize) -> Result<(), Error> {
        let mut request = SendRequest::send(1, &[]).with_flags(SendFlags::SIGNALED);
        // SAFETY: the request names no memory.
        Ok(unsafe { self.clients[client].post_send(&mut request) }?)
    }

    /// Which receives were taken, each with the queue pair that took it.
    fn taken(&self) -> Vec<(u64, u32)> {
        let all = drain(&self.server_cq);
        all.iter().for_each(|wc| {
            wc.result().expect("a success");
        });
        all.iter().map(|wc| (wc.wr_id(), wc.qp_num())).collect()
    }
}

#[test]
fn receives_serve_every_queue_pair_in_their_order() {
    let fake = control::session();
    let shared = Shared::new().expect("a shared queue");
    shared.recv(0..8).expect("receives");
    for client in [0, 1, 1, 0] {
        shared.send(client).expect("a message");
    }
    let [one, two] = [0, 1].map(|n| shared.servers[n].number());
    assert_eq!(shared.taken(), [(0, one), (1, two), (2, two), (3, one)]);
    // A receive for the queue pair itself would never be taken.
    // SAFETY: the request names no memory.
    let refused = unsafe { shared.servers[0].post_recv(&mut RecvRequest::new(9, &[])) };
    assert_eq!(
        refused.expect_err("no queue of its own").kind,
        PostErrorKind::SharedReceives
    );
    assert_eq!(fake.count("ibv_post_recv"), 0);
    drop(shared);
    fake.finish();
}

#[test]
fn a_message_goes_into_the_memory_of_the_receive_that_it_takes() {
    let fake = control::session();
    let shared = Shared::new().expect("a shared queue");
    let memory = Memory::new(32);
    let region = memory
        .register(shared.srq.pd(), everything())
        .expect("a region");
    let (short, long) = ([sge(&region, 8)], [sge(&region, 16)]);
    for (wr_id, sges) in [(1, &long), (2, &short)] {
        // SAFETY: the region is live until the end of the test, and its memory not borrowed.
        unsafe { shared.srq.post_recv(&mut RecvRequest::new(wr_id, sges)) }.expect("a receive");
    }
    let posted: Vec<_> = fake.recvs().iter().map(|recv| recv.sges.len()).collect();
    assert_eq!(posted, [1, 1]);
    for wr_id in 0..2 {
        let mut request = SendRequest::send(wr_id, &long).with_flags(SendFlags::SIGNALED);
        // SAFETY: as above.
        unsafe { shared.clients[0].post_send(&mut request) }.expect("a message");
    }
    let statuses: Vec<_> = drain(&shared.server_cq)
        .iter()
        .map(verbs::WorkCompletion::status)
        .collect();
    assert_eq!(statuses, [WcStatus::SUCCESS, WcStatus::LOC_LEN_ERR]);
    assert_eq!(
        outcomes(&shared.client_cq),
        [(0, 0), (1, WcStatus::REM_INV_REQ_ERR.raw())]
    );
    drop((region, shared));
    fake.finish();
}

#[test]
fn a_failed_queue_pair_flushes_nothing_shared_and_says_when_it_takes_no_more() {
    let fake = control::session();
    let shared = Shared::new().expect("a shared queue");
    let events = shared.srq.pd().context().async_events().expect("events");
    shared.recv(0..3).expect("receives");
    shared.servers[0].set_error().expect("ERR");
    let event = events.try_next().expect("no error").expect("an event");
    assert_eq!(event.kind(), AsyncEventKind::QP_LAST_WQE_REACHED);
    let number = shared.servers[0].number();
    assert_eq!(event.source(), AsyncEventSource::QueuePair(number));
    shared.servers[0].set_error().expect("ERR again");
    assert_eq!(events.try_next().expect("no error"), None, "once");
    assert_eq!(shared.taken(), []);
    shared.send(1).expect("a message");
    assert_eq!(shared.taken(), [(0, shared.servers[1].number())]);
    drop((shared, events));
    fake.finish();
}

#[test]
fn a_message_waits_until_the_shared_queue_has_a_receive() {
    let fake = control::session();
    let shared = Shared::new().expect("a shared queue");
    shared.send(1).expect("posted");
    shared.send(0).expect("posted");
    assert_eq!(outcomes(&shared.client_cq), []);
    shared.recv(5..7).expect("receives");
    assert_eq!(outcomes(&shared.client_cq), [(1, 0), (1, 0)]);
    assert_eq!(shared.taken().len(), 2);
    drop(shared);
    fake.finish();
}

#[test]
fn the_limit_gives_one_event_for_each_arming() {
    let fake = control::session();
    let shared = Shared::new().expect("a shared queue");
    let events = shared.srq.pd().context().async_events().expect("events");
    shared.recv(0..8).expect("receives");
    for round in 0..3 {
        shared.srq.arm_limit(6).expect("armed");
        assert_eq!(shared.srq.query().expect("a query").limit, 6);
        for n in 0..4 {
            assert_eq!(
                events.try_next().expect("no error").is_some(),
                n == 3,
                "{round} {n}"
            );
            shared.send(0).expect("a message");
            if n == 2 {
                assert_eq!(shared.srq.query().expect("a query").limit, 0, "disarmed");
            }
        }
        assert_eq!(events.try_next().expect("no error"), None);
        shared.recv(0..4).expect("receives");
        drain(&shared.server_cq);
        drain(&shared.client_cq);
    }
    shared.srq.arm_limit(8).expect("armed");
    shared.srq.arm_limit(0).expect("disarmed");
    shared.send(0).expect("a message");
    assert_eq!(
        events.try_next().expect("no error"),
        None,
        "disarmed by hand"
    );
    let before = fake.count("ibv_modify_srq");
    let error = shared.srq.arm_limit(9).expect_err("above the size");
    assert_eq!(error.kind(), ErrorKind::Limit, "{error}");
    assert_eq!(fake.count("ibv_modify_srq"), before);
    drop((shared, events));
    fake.finish();
}

#[test]
fn the_event_of_the_limit_names_its_queue() {
    let fake = control::session();
    let shared = Shared::new().expect("a shared queue");
    let events = shared.srq.pd().context().async_events().expect("events");
    shared.recv(0..1).expect("a receive");
    shared.srq.arm_limit(1).expect("armed");
    shared.send(0).expect("a message");
    let event = events.next(soon()).expect("an event");
    assert_eq!(event.kind(), AsyncEventKind::SRQ_LIMIT_REACHED);
    let source = AsyncEventSource::SharedReceiveQueue(Some(shared.srq.id()));
    assert_eq!(event.source(), source);
    drop((shared, events));
    fake.finish();
}

#[test]
fn a_full_queue_says_so_and_how_much_of_the_list_it_took() {
    let fake = control::session();
    let shared = Shared::new().expect("a shared queue");
    let mut list: Vec<_> = (0..10).map(|id| RecvRequest::new(id, &[])).collect();
    // SAFETY: the requests name no memory.
    let error = unsafe { shared.srq.post_recv_list(&mut list) }.expect_err("eight fit");
    assert_eq!((error.kind, error.queued), (PostErrorKind::QueueFull, 8));
    assert_eq!(fake.recvs().len(), 8);
    let memory = Memory::new(8);
    let region = memory
        .register(shared.srq.pd(), everything())
        .expect("a region");
    let three = [sge(&region, 1); 3];
    // SAFETY: the request is refused.
    let error = unsafe { shared.srq.post_recv(&mut RecvRequest::new(1, &three)) };
    let (given, max) = (3, 2);
    assert_eq!(
        error.expect_err("two fit").kind,
        PostErrorKind::TooManySges { given, max }
    );
    drop((region, shared));
    fake.finish();
}

#[test]
fn a_queue_grows_but_not_below_its_content_nor_over_its_completion_queues() {
    let fake = control::session();
    let shared = Shared::new().expect("a shared queue");
    shared.srq.resize(20).expect("larger");
    assert_eq!(shared.srq.max_wr(), 20);
    shared.recv(0..20).expect("receives");
    let error = shared.srq.resize(19).expect_err("below its content");
    assert_eq!(error.errno(), Some(libc::EINVAL), "{error}");
    assert_eq!(shared.srq.query().expect("a query").max_wr, 20);
    let before = fake.count("ibv_modify_srq");
    // 64 entries, of which the send queues of two servers have four each.
    let error = shared.srq.resize(57).expect_err("no room for completions");
    assert_eq!(error.kind(), ErrorKind::Limit, "{error}");
    assert_eq!(fake.count("ibv_modify_srq"), before, "not even tried");
    shared.srq.resize(56).expect("just enough");
    drop(shared);
    fake.finish();
}

#[test]
fn closing_a_queue_in_use_gives_it_back_and_its_receives_go_with_it() {
    let fake = control::session();
    let shared = Shared::new().expect("a shared queue");
    shared.recv(0..4).expect("receives");
    let Shared {
        servers,
        clients,
        server_cq,
        client_cq,
        srq,
    } = shared;
    let failed = srq.close().expect_err("two queue pairs use it");
    assert_eq!(failed.error.kind(), ErrorKind::Busy);
    let srq = failed.handle;
    drop(servers);
    srq.close().expect("nobody uses it");
    assert_eq!(outcomes(&server_cq), [], "dropped without a completion");
    drop((clients, server_cq, client_cq));
    fake.finish();
}

#[test]
fn a_queue_of_another_opening_of_the_device_is_refused() {
    let fake = control::session();
    let shared = Shared::new().expect("a shared queue");
    let context = open().expect("a context");
    let pd = ProtectionDomain::new(&context).expect("a domain");
    let cq = CompletionQueue::builder(&context, 64)
        .build()
        .expect("a queue");
    let before = fake.count("ibv_create_qp");
    let error = QueuePair::builder(&pd, QpType::RC, &cq, &cq)
        .srq(&shared.srq)
        .build()
        .expect_err("another device");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert_eq!(fake.count("ibv_create_qp"), before);
    drop((shared, cq, pd, context));
    fake.finish();
}

#[test]
fn handles_may_be_dropped_in_any_order() {
    let fake = control::session();
    for rotation in 0..5 {
        let shared = Shared::new().expect("a shared queue");
        shared.recv(0..2).expect("receives");
        let pd = shared.srq.pd().clone();
        let Shared {
            servers,
            clients,
            server_cq,
            client_cq,
            srq,
        } = shared;
        let mut handles: Vec<Box<dyn std::any::Any>> = vec![
            Box::new(srq),
            Box::new(pd),
            Box::new(servers),
            Box::new((server_cq, client_cq)),
            Box::new(clients),
        ];
        handles.rotate_left(rotation);
        for handle in handles {
            drop(handle);
        }
        assert_eq!(fake.left_over(), Vec::<String>::new(), "{rotation}");
    }
    fake.finish();
}

fn everything_once() -> Result<(), Error> {
    let shared = Shared::new()?;
    shared.recv(0..2)?;
    shared.srq.arm_limit(1)?;
    shared.srq.resize(16)?;
    shared.send(0)
}

#[test]
fn a_failing_call_leaves_nothing_behind_and_names_itself_and_its_errno() {
    let fake = control::session();
    let tried = fail_each_call(&fake, everything_once);
    for call in [
        "ibv_create_srq",
        "ibv_modify_srq",
        "ibv_query_srq",
        "ibv_post_srq_recv",
    ] {
        assert!(tried.contains(&call), "{call}");
    }
    fake.finish();
}

#[test]
fn leaks_are_all_that_a_failing_destroy_does() {
    let fake = control::session();
    fail_each_destroy(&fake, everything_once);
    fake.discard();
}
