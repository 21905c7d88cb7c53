//! Completion queues that change their size.

use verbs::sys::fake::control;
use verbs::{CompletionQueue, Error, ErrorKind, QpType, QueuePair, RecvRequest};

use super::common::{Pair, open, outcomes};
use super::failing::fail_each_call;

/// A queue with `count` completions in it, whose queue pair is gone: nothing of it is promised any more.
fn filled(count: u64) -> CompletionQueue {
    let context = open().expect("a context");
    let pd = verbs::ProtectionDomain::new(&context).expect("a domain");
    let cq = CompletionQueue::builder(&context, 32)
        .build()
        .expect("a queue");
    let qp = QueuePair::builder(&pd, QpType::RC, &cq, &cq)
        .max_recv_wr(16)
        .max_send_wr(1)
        .build()
        .expect("a queue pair");
    super::common::to_init(&qp).expect("INIT");
    for wr_id in 0..count {
        // SAFETY: the request names no memory.
        unsafe { qp.post_recv(&mut RecvRequest::new(wr_id, &[])) }.expect("a receive");
    }
    qp.set_error().expect("ERR");
    cq
}

#[test]
fn a_queue_keeps_its_content_and_is_not_made_smaller_than_that() {
    let fake = control::session();
    let cq = filled(10);
    let error = cq.resize(9).expect_err("ten are in it");
    assert_eq!(
        (error.verb(), error.errno()),
        ("ibv_resize_cq", Some(libc::EINVAL))
    );
    assert!(error.to_string().contains("9 entries"), "{error}");
    assert_eq!(cq.entries(), 32, "as before");
    cq.resize(10).expect("just enough");
    assert_eq!(cq.entries(), 10);
    cq.resize(100).expect("larger");
    assert_eq!(cq.entries(), 100);
    let numbers: Vec<_> = outcomes(&cq).iter().map(|&(wr_id, _)| wr_id).collect();
    assert_eq!(numbers, (0..10).collect::<Vec<_>>());
    drop(cq);
    fake.finish();
}

#[test]
fn what_is_promised_is_kept_and_what_came_by_a_resize_can_be_promised() {
    let fake = control::session();
    let pair = Pair::new().expect("a pair");
    // Four sends and four receives.
    let error = pair.a_cq.resize(7).expect_err("eight are promised");
    assert_eq!(error.kind(), ErrorKind::Limit, "{error}");
    assert_eq!(fake.count("ibv_resize_cq"), 0, "not even tried");
    pair.a_cq.resize(8).expect("just enough");
    let another = || {
        QueuePair::builder(&pair.pd, QpType::RC, &pair.a_cq, &pair.a_cq)
            .max_send_wr(1)
            .max_recv_wr(1)
            .build()
    };
    let error = another().expect_err("no room");
    assert_eq!(error.kind(), ErrorKind::Limit, "{error}");
    pair.a_cq.resize(10).expect("larger");
    drop(another().expect("room"));
    for entries in [0, pair.context.attributes().max_cqe() + 1] {
        let error = pair.a_cq.resize(entries).expect_err("no size");
        assert_eq!(error.kind(), ErrorKind::Limit, "{error}");
    }
    drop(pair);
    fake.finish();
}

#[test]
fn a_resize_that_fails_leaves_the_size_and_the_promises_as_they_were() {
    let fake = control::session();
    let pair = Pair::new().expect("a pair");
    for (errno, kind) in [
        (libc::EOPNOTSUPP, ErrorKind::Unsupported),
        (libc::ENOMEM, ErrorKind::Provider),
    ] {
        for entries in [8, 64] {
            fake.fail("ibv_resize_cq", 0, errno);
            let error = pair.a_cq.resize(entries).expect_err("made to fail");
            assert_eq!((error.kind(), error.errno()), (kind, Some(errno)));
            assert_eq!(pair.a_cq.entries(), 16);
        }
    }
    // All sixteen can be promised still.
    let rest = QueuePair::builder(&pair.pd, QpType::RC, &pair.a_cq, &pair.a_cq)
        .max_send_wr(4)
        .max_recv_wr(4)
        .build();
    drop(rest.expect("room"));
    drop(pair);
    fake.finish();
}

fn everything_once() -> Result<(), Error> {
    Pair::new()?.a_cq.resize(64)
}

#[test]
fn a_failing_call_leaves_nothing_behind_and_names_itself_and_its_errno() {
    let fake = control::session();
    assert!(fail_each_call(&fake, everything_once).contains(&"ibv_resize_cq"));
    fake.finish();
}
