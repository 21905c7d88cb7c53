//! Asynchronous events.

use std::thread;
use std::time::{Duration, Instant};

use verbs::sys::fake::control::{self, AsyncTarget, Session};
use verbs::{
    AsyncEvent, AsyncEventKind, AsyncEventSource, AsyncEvents, CompletionQueue, Deadline, Error,
    ErrorKind, PortState, QpAttributes, QpState, QpType, QueuePair, RecvRequest, SendFlags,
    SendRequest, SharedReceiveQueue, sys,
};

use super::common::{Pair, open, outcomes, soon, to_init};
use super::failing::fail_each_call;

/// An object of each kind that has events.
struct Objects {
    events: AsyncEvents,
    srq: SharedReceiveQueue,
    pair: Pair,
}

impl Objects {
    fn new() -> Result<Self, Error> {
        let pair = Pair::new()?;
        Ok(Self {
            events: pair.context.async_events()?,
            srq: SharedReceiveQueue::new(&pair.pd, 4, 1)?,
            pair,
        })
    }

    fn cq(&self) -> AsyncTarget {
        AsyncTarget::CompletionQueue(self.pair.a_cq.as_raw())
    }

    fn qp(&self) -> AsyncTarget {
        AsyncTarget::QueuePair(self.pair.a.as_raw())
    }

    fn srq(&self) -> AsyncTarget {
        AsyncTarget::SharedReceiveQueue(self.srq.as_raw())
    }

    fn port(&self, number: i32) -> AsyncTarget {
        AsyncTarget::Port(self.pair.context.as_raw(), number)
    }

    fn next(&self) -> Option<AsyncEvent> {
        self.events.try_next().expect("no error")
    }

    /// What an event that is put in comes out as.
    fn seen(&self, fake: &Session, kind: u32, target: AsyncTarget) -> AsyncEventSource {
        fake.inject_async(kind, target);
        let event = self.next().expect("an event");
        assert_eq!(event.kind(), AsyncEventKind::from_raw(kind));
        assert_eq!(self.next(), None, "one event");
        event.source()
    }
}

#[test]
fn every_kind_names_what_it_is_about() {
    let fake = control::session();
    let objects = Objects::new().expect("objects");
    let cq = AsyncEventSource::CompletionQueue(Some(objects.pair.a_cq.id()));
    let qp = AsyncEventSource::QueuePair(objects.pair.a.number());
    let srq = AsyncEventSource::SharedReceiveQueue(Some(objects.srq.id()));
    assert_eq!(objects.seen(&fake, 0, objects.cq()), cq);
    for kind in (1..=7).chain([16]) {
        assert_eq!(objects.seen(&fake, kind, objects.qp()), qp, "{kind}");
    }
    for kind in [14, 15] {
        assert_eq!(objects.seen(&fake, kind, objects.srq()), srq, "{kind}");
    }
    for kind in (9..=13).chain([17, 18]) {
        let source = objects.seen(&fake, kind, objects.port(3));
        assert_eq!(source, AsyncEventSource::Port(3), "{kind}");
    }
    let source = objects.seen(&fake, 8, objects.port(0));
    assert_eq!(source, AsyncEventSource::Device);
    let source = objects.seen(&fake, 19, objects.port(0));
    assert_eq!(source, AsyncEventSource::WorkQueue);
    assert_eq!(
        fake.count("ibv_ack_async_event"),
        fake.count("ibv_get_async_event") / 2,
        "every event got is acknowledged"
    );
    drop(objects);
    fake.finish();
}

#[test]
fn a_kind_that_nobody_knows_is_data_whatever_it_carries() {
    let fake = control::session();
    let objects = Objects::new().expect("objects");
    for kind in [20, 255, 0x7fff_ffff, u32::MAX] {
        for target in [
            objects.cq(),
            objects.qp(),
            objects.srq(),
            objects.port(-1),
            objects.port(i32::MAX),
        ] {
            let source = objects.seen(&fake, kind, target);
            assert_eq!(source, AsyncEventSource::Unknown, "{kind} {target:?}");
        }
    }
    drop(objects);
    fake.finish();
}

#[test]
fn an_object_of_other_code_has_no_identity() {
    let fake = control::session();
    let objects = Objects::new().expect("objects");
    let context = objects.pair.context.as_raw();
    let null = std::ptr::null_mut();
    // SAFETY: the context is open, and the other arguments say "no channel".
    let foreign = unsafe { sys::ibv_create_cq(context, 4, null, null.cast(), 0) };
    assert!(!foreign.is_null());
    let source = objects.seen(&fake, 0, AsyncTarget::CompletionQueue(foreign));
    assert_eq!(source, AsyncEventSource::CompletionQueue(None));
    // SAFETY: the queue was made above, and nobody else has it.
    assert_eq!(unsafe { sys::ibv_destroy_cq(foreign) }, 0);
    drop(objects);
    fake.finish();
}

#[test]
fn events_come_in_order_and_those_nobody_got_hold_nothing_up() {
    let fake = control::session();
    let objects = Objects::new().expect("objects");
    for kind in [1, 2, 3] {
        fake.inject_async(kind, objects.qp());
    }
    fake.inject_async(0, objects.cq());
    fake.inject_async(15, objects.srq());
    assert_eq!(objects.next().map(|event| event.kind().raw()), Some(1));
    assert_eq!(objects.next().map(|event| event.kind().raw()), Some(2));
    let Objects { events, srq, pair } = objects;
    drop((srq, pair));
    assert_eq!(events.try_next().expect("no error"), None, "gone with it");
    drop(events);
    fake.finish();
}

#[test]
fn a_wait_is_woken_by_an_event_and_ends_at_its_deadline() {
    let fake = control::session();
    let objects = Objects::new().expect("objects");
    let begun = Instant::now();
    let error = objects
        .events
        .next(Deadline::after(Duration::from_millis(50)))
        .expect_err("nothing came");
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    assert!((50..2000).contains(&begun.elapsed().as_millis()));
    let events = objects.events.clone();
    let waiting = thread::spawn(move || events.next(soon()).expect("an event").kind());
    thread::sleep(Duration::from_millis(20));
    fake.inject_async(2, objects.qp());
    assert_eq!(
        waiting.join().expect("no panic"),
        AsyncEventKind::QP_REQ_ERR
    );
    drop(objects);
    fake.finish();
}

#[test]
fn an_event_reaches_the_context_of_its_object_and_no_other() {
    let fake = control::session();
    let objects = Objects::new().expect("objects");
    let other = open().expect("a context").async_events().expect("events");
    fake.inject_async(1, objects.qp());
    assert_eq!(other.try_next().expect("no error"), None);
    assert!(objects.next().is_some());
    drop((objects, other));
    fake.finish();
}

#[test]
fn a_queue_that_overruns_says_so_once_for_each_completion_that_is_lost() {
    let fake = control::session();
    let context = open().expect("a context");
    let events = context.async_events().expect("events");
    let pd = verbs::ProtectionDomain::new(&context).expect("a domain");
    let cq = CompletionQueue::builder(&context, 2)
        .allow_overrun(true)
        .build()
        .expect("a queue");
    let qp = QueuePair::builder(&pd, QpType::RC, &cq, &cq)
        .max_send_wr(8)
        .max_recv_wr(1)
        .build()
        .expect("a queue pair");
    to_init(&qp).expect("INIT");
    qp.set_error().expect("ERR");
    for wr_id in 0..5 {
        // SAFETY: the request names no memory.
        unsafe { qp.post_send(&mut SendRequest::send(wr_id, &[])) }.expect("posted");
    }
    for _ in 0..3 {
        let event = events.try_next().expect("no error").expect("an event");
        assert_eq!(event.kind(), AsyncEventKind::CQ_ERR);
        assert_eq!(
            event.source(),
            AsyncEventSource::CompletionQueue(Some(cq.id()))
        );
    }
    assert_eq!(events.try_next().expect("no error"), None);
    assert_eq!(fake.lost_completions(), 3);
    // The queue goes on, as SoftRoCE's does.
    let flushed = verbs::WcStatus::WR_FLUSH_ERR.raw();
    assert_eq!(outcomes(&cq), [(0, flushed), (1, flushed)]);
    // SAFETY: the request names no memory.
    unsafe { qp.post_send(&mut SendRequest::send(9, &[])) }.expect("posted");
    assert_eq!(outcomes(&cq), [(9, flushed)]);
    drop((qp, cq, pd, events, context));
    fake.finish();
}

/// To SQD, with an event once the send queue has drained.
fn drain_queue(qp: &QueuePair) -> Result<(), Error> {
    use sys::ibv_qp_attr_mask as A;
    let raw = sys::ibv_qp_attr {
        qp_state: sys::ibv_qp_state::IBV_QPS_SQD,
        en_sqd_async_notify: 1,
        ..Default::default()
    };
    let mask = A::IBV_QP_STATE | A::IBV_QP_EN_SQD_ASYNC_NOTIFY;
    qp.modify(&QpAttributes::from_raw(raw, mask.0.cast_signed()))
}

#[test]
fn a_send_queue_says_when_it_has_drained() {
    let fake = control::session();
    let objects = Objects::new().expect("objects");
    let pair = &objects.pair;
    let send = |wr_id| {
        let mut request = SendRequest::send(wr_id, &[]).with_flags(SendFlags::SIGNALED);
        // SAFETY: the request names no memory.
        unsafe { pair.a.post_send(&mut request) }.expect("posted");
    };
    // One that waits for its receive.
    send(1);
    drain_queue(&pair.a).expect("SQD");
    assert!(pair.a.query().expect("a query").0.is_draining());
    assert_eq!(objects.next(), None, "not yet");
    // One that comes too late for it.
    send(2);
    for wr_id in 1..=2 {
        // SAFETY: the request names no memory.
        unsafe { pair.b.post_recv(&mut RecvRequest::new(wr_id, &[])) }.expect("a receive");
    }
    let event = objects.next().expect("an event");
    assert_eq!(event.kind(), AsyncEventKind::SQ_DRAINED);
    assert_eq!(event.source(), AsyncEventSource::QueuePair(pair.a.number()));
    assert!(!pair.a.query().expect("a query").0.is_draining());
    assert_eq!(outcomes(&pair.a_cq), [(1, 0)]);
    assert_eq!(pair.a.state(), QpState::SQD);
    pair.a
        .modify(QpAttributes::new().set_state(QpState::RTS))
        .expect("RTS");
    assert_eq!(outcomes(&pair.a_cq), [(2, 0)]);
    assert_eq!(objects.next(), None);
    drop(objects);
    fake.finish();
}

#[test]
fn a_port_that_goes_down_and_comes_back_says_so_and_is_told_by_a_query() {
    let fake = control::session();
    let objects = Objects::new().expect("objects");
    let context = &objects.pair.context;
    for (up, kind, state) in [
        (false, AsyncEventKind::PORT_ERR, PortState::DOWN),
        (true, AsyncEventKind::PORT_ACTIVE, PortState::ACTIVE),
    ] {
        fake.set_port(up);
        let event = objects.next().expect("an event");
        assert_eq!(
            (event.kind(), event.source()),
            (kind, AsyncEventSource::Port(1))
        );
        assert_eq!(context.query_port(1).expect("a query").state(), state);
        match context.active_port(1) {
            Ok(_) => assert!(up),
            Err(error) => assert_eq!(error.kind(), ErrorKind::PortDown, "{error}"),
        }
    }
    drop(objects);
    fake.finish();
}

fn everything_once() -> Result<(), Error> {
    let objects = Objects::new()?;
    objects.pair.a.set_error()?;
    objects.events.try_next()?;
    Ok(())
}

#[test]
fn a_failing_call_leaves_nothing_behind_and_names_itself_and_its_errno() {
    let fake = control::session();
    let tried = fail_each_call(&fake, everything_once);
    assert!(tried.contains(&"ibv_get_async_event"), "{tried:?}");
    fake.finish();
}
