//! Completions and their events.

use std::mem::MaybeUninit;
use std::thread;
use std::time::{Duration, Instant};

use verbs::sys::fake::control;
use verbs::{
    CompletionChannel, CompletionQueue, Deadline, ErrorKind, RecvRequest, SendFlags, SendRequest,
    WcOpcode,
};

use super::common::{Pair, drain, outcomes, soon};

/// Sends an empty message from `a` to `b`, with a receive posted.
fn send(pair: &Pair, id: u64) {
    // SAFETY: the request names no memory.
    unsafe { pair.b.post_recv(&mut RecvRequest::new(id, &[])) }.expect("a receive");
    let mut request = SendRequest::send(id, &[]).with_flags(SendFlags::SIGNALED);
    // SAFETY: the request names no memory.
    unsafe { pair.a.post_send(&mut request) }.expect("a send");
}

#[test]
fn a_status_that_nobody_knows_is_data() {
    let fake = control::session();
    for status in [24, 200, 0x7fff_ffff, u32::MAX] {
        let pair = Pair::new().expect("a pair");
        fake.next_status(status);
        send(&pair, 5);
        let [completion] = drain(&pair.a_cq)[..] else {
            panic!("not one completion");
        };
        assert_eq!((completion.wr_id(), completion.status().raw()), (5, status));
        let error = completion.result().expect_err("no success");
        assert!(error.to_string().contains(&status.to_string()), "{error}");
    }
    fake.finish();
}

#[test]
fn an_opcode_that_nobody_knows_is_data() {
    let fake = control::session();
    for opcode in [3000, 0x7fff_ffff, u32::MAX] {
        let pair = Pair::new().expect("a pair");
        // The receive completes first, and then the send.
        fake.next_opcode(opcode);
        send(&pair, 5);
        let [completion] = drain(&pair.b_cq)[..] else {
            panic!("not one completion");
        };
        let success = completion.result().expect("a success");
        assert_eq!(success.opcode(), WcOpcode::from_raw(opcode));
        assert_eq!(success.opcode().name(), None);
    }
    fake.finish();
}

#[test]
fn a_wait_is_woken_by_a_completion_of_another_thread() {
    let fake = control::session();
    let pair = Pair::new().expect("a pair");
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let mut out = [MaybeUninit::uninit(); 4];
            let got = pair.b_cq.wait(&mut out, soon()).expect("a completion");
            got.iter()
                .map(verbs::WorkCompletion::wr_id)
                .collect::<Vec<_>>()
        });
        thread::sleep(Duration::from_millis(20));
        send(&pair, 7);
        assert_eq!(waiting.join().expect("no panic"), [7]);
    });
    drop(pair);
    fake.finish();
}

#[test]
fn a_wait_ends_at_its_deadline() {
    let fake = control::session();
    let pair = Pair::new().expect("a pair");
    let begun = Instant::now();
    let mut out = [MaybeUninit::uninit(); 4];
    let error = pair
        .b_cq
        .wait(&mut out, Deadline::after(Duration::from_millis(50)));
    assert_eq!(error.expect_err("nothing came").kind(), ErrorKind::TimedOut);
    assert!((50..2000).contains(&begun.elapsed().as_millis()));
    drop(pair);
    fake.finish();
}

#[test]
fn two_threads_that_wait_get_a_completion_each() {
    let fake = control::session();
    let pair = Pair::new().expect("a pair");
    thread::scope(|scope| {
        let wait = || {
            let mut out = [MaybeUninit::uninit(); 1];
            pair.b_cq.wait(&mut out, soon()).expect("a completion")[0].wr_id()
        };
        let (one, two) = (scope.spawn(wait), scope.spawn(wait));
        thread::sleep(Duration::from_millis(20));
        send(&pair, 1);
        send(&pair, 2);
        let mut got = [one.join().expect("no panic"), two.join().expect("no panic")];
        got.sort_unstable();
        assert_eq!(got, [1, 2]);
    });
    drop(pair);
    fake.finish();
}

#[test]
fn a_shared_channel_names_the_queue_and_every_event_is_acknowledged() {
    let fake = control::session();
    let pair = Pair::new().expect("a pair");
    let channel = CompletionChannel::new(&pair.context).expect("a channel");
    let queue = || {
        CompletionQueue::builder(&pair.context, 8)
            .shared_channel(&channel)
            .build()
            .expect("a queue")
    };
    let (first, second) = (queue(), queue());
    let qp = |cq: &CompletionQueue| {
        verbs::QueuePair::builder(&pair.pd, verbs::QpType::RC, cq, cq)
            .max_send_wr(4)
            .max_recv_wr(4)
            .build()
            .expect("a queue pair")
    };
    let (one, two) = (qp(&first), qp(&second));
    for (qp, cq) in [(&two, &second), (&one, &first)] {
        super::common::to_init(qp).expect("INIT");
        cq.arm().expect("armed");
        // SAFETY: the request names no memory.
        unsafe { qp.post_recv(&mut RecvRequest::new(1, &[])) }.expect("a receive");
        qp.set_error().expect("ERR");
    }
    assert_eq!(
        channel.next_event(soon()).expect("an event").queue(),
        second.id()
    );
    assert_eq!(
        channel.next_event(soon()).expect("an event").queue(),
        first.id()
    );
    assert_eq!(channel.try_next_event().expect("no error"), None);
    assert_eq!(outcomes(&first).len() + outcomes(&second).len(), 2);
    drop((one, two, first, second, channel, pair));
    fake.finish();
}

#[test]
fn more_events_than_one_acknowledgement_covers_are_all_acknowledged() {
    let fake = control::session();
    let pair = Pair::new().expect("a pair");
    let rounds = if control::hurried() { 10 } else { 600 };
    for id in 0..rounds {
        pair.b_cq.arm().expect("armed");
        send(&pair, id);
        let channel = pair.b_cq.channel().expect("its channel");
        channel.next_event(soon()).expect("an event");
        assert_eq!(outcomes(&pair.b_cq), [(id, 0)]);
        drain(&pair.a_cq);
    }
    assert_eq!(
        fake.count("ibv_ack_cq_events"),
        usize::from(rounds > 512) * 2
    );
    drop(pair);
    fake.finish();
}
