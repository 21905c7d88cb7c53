//! The three ways in which C reports a failure: whichever it is, the errno of the failure is told,
//! and not what an earlier call has left behind.

use verbs::sys::fake::control::{self, Session};
use verbs::{
    AsyncEvents, CloseError, CompletionChannel, CompletionQueue, Context, DeviceList, Error,
    PollError, PostError, PostErrorKind, ProtectionDomain, QpType, QueuePair, RecvRequest,
    SendRequest, SharedReceiveQueue,
};

use super::common::{Memory, Pair, everything, to_init};

/// An errno that no call gives by itself.
const ODD: i32 = 77;

fn set_errno(value: i32) {
    // SAFETY: the call has no precondition.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: the place is the calling thread's own, and always there.
    unsafe { *place = value };
}

/// What makes a call.
type Run<'a> = &'a dyn Fn() -> Result<(), Error>;

/// Fails `call` with what earlier calls may have left in errno.
fn fails(fake: &Session, call: &'static str, run: Run<'_>) {
    for stale in [0, 5] {
        fake.fail(call, 0, ODD);
        set_errno(stale);
        let error = run().expect_err(call);
        assert!(fake.faults_happened(), "{call} was not called");
        assert_eq!(
            error.errno(),
            Some(ODD),
            "{call} with errno {stale}: {error}"
        );
        assert!(error.to_string().contains("errno 77"), "{error}");
        run().unwrap_or_else(|error| panic!("{call} still fails: {error}"));
    }
}

fn closed<T: std::fmt::Debug>(result: Result<(), CloseError<T>>, call: &str) {
    let failed = result.expect_err(call);
    assert_eq!(failed.error.errno(), Some(ODD), "{call}: {}", failed.error);
    // What is given back is as good as before, and its drop destroys it.
    drop(failed.handle);
}

#[test]
fn every_call_tells_the_errno_of_its_own_failure() {
    let fake = control::session();
    let memory = Memory::new(64);
    let pair = Pair::new().expect("a pair");
    let Pair { pd, context, .. } = &pair;
    let srq = SharedReceiveQueue::new(pd, 8, 1).expect("a shared receive queue");
    let events: AsyncEvents = context.async_events().expect("events");
    let open = || DeviceList::new()?.by_name("fake0")?.open();
    let run: [(&'static str, Run<'_>); 20] = [
        // NULL, and errno.
        ("ibv_get_device_list", &|| DeviceList::new().map(drop)),
        ("ibv_open_device", &|| open().map(drop)),
        ("ibv_alloc_pd", &|| ProtectionDomain::new(context).map(drop)),
        ("ibv_reg_mr_iova2", &|| {
            memory.register(pd, everything()).map(drop)
        }),
        ("ibv_create_comp_channel", &|| {
            CompletionChannel::new(context).map(drop)
        }),
        ("ibv_create_cq", &|| queue(context).map(drop)),
        ("ibv_create_qp", &|| queue_pair(pd, context).map(drop)),
        ("ibv_create_srq", &|| {
            SharedReceiveQueue::new(pd, 8, 1).map(drop)
        }),
        // The errno itself.
        ("ibv_query_device", &|| open().map(drop)),
        ("ibv_query_port", &|| context.query_port(1).map(drop)),
        ("ibv_req_notify_cq", &|| pair.a_cq.arm()),
        ("ibv_modify_qp", &|| to_init(&queue_pair(pd, context)?)),
        ("ibv_query_qp", &|| pair.a.query().map(drop)),
        ("ibv_resize_cq", &|| pair.a_cq.resize(20)),
        ("ibv_modify_srq", &|| srq.arm_limit(1)),
        ("ibv_query_srq", &|| srq.query().map(drop)),
        ("ibv_post_send", &|| {
            // SAFETY: the request names no memory.
            posted(unsafe { pair.b.post_send(&mut SendRequest::send(1, &[])) })
        }),
        ("ibv_post_recv", &|| {
            // SAFETY: the request names no memory.
            posted(unsafe { pair.a.post_recv(&mut RecvRequest::new(1, &[])) })
        }),
        // -1, and errno.
        ("ibv_get_cq_event", &|| {
            let channel = pair.a_cq.own_channel()?;
            channel.try_next_event().map(drop)
        }),
        ("ibv_get_async_event", &|| events.try_next().map(drop)),
    ];
    for (call, run) in run {
        fails(&fake, call, run);
    }

    // A number of its own.
    fake.fail("ibv_poll_cq", 0, ODD);
    let error = pair.a_cq.poll(&mut []).expect_err("made to fail");
    assert_eq!(error, PollError::Provider(-ODD));
    drop((srq, events, pair));
    fake.finish();
}

fn queue(context: &Context) -> Result<CompletionQueue, Error> {
    CompletionQueue::builder(context, 16).build()
}

fn queue_pair(pd: &ProtectionDomain, context: &Context) -> Result<QueuePair, Error> {
    let cq = queue(context)?;
    QueuePair::builder(pd, QpType::RC, &cq, &cq)
        .max_send_wr(4)
        .max_recv_wr(4)
        .build()
}

/// The error of a post, which is small and kept apart.
fn posted(result: Result<(), PostError>) -> Result<(), Error> {
    match result {
        Err(error) if error.kind == PostErrorKind::Provider(ODD) => Err(error.into()),
        Err(error) => panic!("{error}"),
        Ok(()) => Ok(()),
    }
}

#[test]
fn every_destroy_tells_the_errno_of_its_own_failure_and_may_be_repeated() {
    let fake = control::session();
    let memory = Memory::new(64);
    let context = DeviceList::new()
        .and_then(|list| list.by_name("fake0")?.open())
        .expect("open");
    for stale in [0, 5] {
        let pd = ProtectionDomain::new(&context).expect("a domain");
        let cq = queue(&context).expect("a queue");
        let qp = queue_pair(&pd, &context).expect("a queue pair");
        let region = memory.register(&pd, everything()).expect("a region");
        let srq = SharedReceiveQueue::new(&pd, 8, 1).expect("a queue");
        let fail = |call| {
            fake.fail(call, 0, ODD);
            set_errno(stale);
        };
        fail("ibv_destroy_qp");
        closed(qp.close(), "ibv_destroy_qp");
        fail("ibv_destroy_cq");
        closed(cq.close(), "ibv_destroy_cq");
        fail("ibv_dereg_mr");
        closed(region.close(), "ibv_dereg_mr");
        fail("ibv_destroy_srq");
        closed(srq.close(), "ibv_destroy_srq");
        fail("ibv_dealloc_pd");
        closed(pd.close(), "ibv_dealloc_pd");
    }
    drop(context);
    fake.finish();
}
