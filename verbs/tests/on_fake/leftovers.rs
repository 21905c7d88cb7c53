//! What is left of requests when their queue pair is reset or gone, or when the device did not hear of them.

use verbs::sys::fake::control;
use verbs::{
    MemoryWindow, PostErrorKind, QpState, QpType, RecvRequest, SendFlags, SendRequest, WcStatus,
    WindowType,
};

use super::common::{Pair, connect, outcomes, soon, to_init, to_rtr, to_rts};
use super::ends::ends;

const FLUSHED: u32 = WcStatus::WR_FLUSH_ERR.raw();

fn send(pair: &Pair, id: u64) {
    let mut request = SendRequest::send(id, &[]).with_flags(SendFlags::SIGNALED);
    // SAFETY: the request names no memory.
    unsafe { pair.a.post_send(&mut request) }.expect("posted");
}

fn recv(pair: &Pair, id: u64) {
    // SAFETY: the request names no memory.
    unsafe { pair.b.post_recv(&mut RecvRequest::new(id, &[])) }.expect("a receive");
}

#[test]
fn completions_of_a_queue_pair_that_is_gone_come_or_not_as_the_device_has_it() {
    let fake = control::session();
    for purges in [false, true] {
        if purges {
            fake.purge_completions();
        }
        let pair = Pair::new().expect("a pair");
        for id in 0..2 {
            recv(&pair, id);
            send(&pair, id);
        }
        let Pair {
            a,
            b,
            a_cq,
            b_cq,
            pd,
            context,
        } = pair;
        let numbers = (a.number(), b.number());
        drop((a, b));
        let expected: &[(u64, u32)] = if purges { &[] } else { &[(0, 0), (1, 0)] };
        for (cq, number) in [(&a_cq, numbers.0), (&b_cq, numbers.1)] {
            let left = super::common::drain(cq);
            let told: Vec<_> = left.iter().map(|wc| (wc.wr_id(), 0)).collect();
            assert_eq!(told, expected, "purges: {purges}");
            assert!(left.iter().all(|wc| wc.qp_num() == number));
        }
        drop((a_cq, b_cq, pd, context));
    }
    fake.finish();
}

#[test]
fn a_purge_takes_only_the_completions_of_its_queue_pair() {
    let fake = control::session();
    fake.purge_completions();
    let pair = Pair::in_reset().expect("a pair");
    let cq = verbs::CompletionQueue::builder(&pair.context, 64)
        .build()
        .expect("a queue");
    let qp = || {
        let qp = verbs::QueuePair::builder(&pair.pd, QpType::RC, &cq, &cq).build();
        let qp = qp.expect("a queue pair");
        to_init(&qp).expect("INIT");
        qp
    };
    let (one, two) = (qp(), qp());
    for (qp, id) in [(&one, 1), (&two, 2), (&one, 3)] {
        // SAFETY: the request names no memory.
        unsafe { qp.post_recv(&mut RecvRequest::new(id, &[])) }.expect("a receive");
    }
    for qp in [&one, &two] {
        qp.set_error().expect("ERR");
    }
    drop(one);
    assert_eq!(outcomes(&cq), [(2, FLUSHED)]);
    drop((two, cq, pair));
    fake.finish();
}

#[test]
fn a_reset_forgets_what_is_posted_without_a_completion_and_frees_its_slots() {
    let fake = control::session();
    for purges in [false, true] {
        if purges {
            fake.purge_completions();
        }
        let pair = Pair::new().expect("a pair");
        recv(&pair, 0);
        send(&pair, 0);
        // Waits for a receive, which never comes.
        send(&pair, 1);
        for id in 2..5 {
            // SAFETY: the request names no memory.
            unsafe { pair.a.post_recv(&mut RecvRequest::new(id, &[])) }.expect("a receive");
        }
        pair.a.reset().expect("RESET");
        assert_eq!(pair.a.state(), QpState::RESET);
        let done: &[(u64, u32)] = if purges { &[] } else { &[(0, 0)] };
        assert_eq!(outcomes(&pair.a_cq), done, "purges: {purges}");
        // Both queues are whole again.
        to_init(&pair.a).expect("INIT");
        for id in 10..14 {
            // SAFETY: the request names no memory.
            unsafe { pair.a.post_recv(&mut RecvRequest::new(id, &[])) }.expect("a receive");
        }
        to_rtr(&pair.a, &pair.b).expect("RTR");
        to_rts(&pair.a, 7).expect("RTS");
        for id in 20..24 {
            send(&pair, id);
        }
        assert_eq!(outcomes(&pair.a_cq), [], "nobody receives");
        pair.a.set_error().expect("ERR");
        let numbers: Vec<_> = outcomes(&pair.a_cq).iter().map(|&(id, _)| id).collect();
        assert_eq!(numbers, (20..24).chain(10..14).collect::<Vec<_>>());
        drop(pair);
    }
    fake.finish();
}

#[test]
fn a_slow_device_keeps_requests_and_the_end_of_the_queue_pair_drops_them() {
    let fake = control::session();
    fake.hold_requests(true);
    let pair = Pair::new().expect("a pair");
    recv(&pair, 0);
    send(&pair, 0);
    pair.a.set_error().expect("ERR");
    assert_eq!(outcomes(&pair.a_cq), [], "not even flushed yet");
    fake.hold_requests(false);
    assert_eq!(outcomes(&pair.a_cq), [(0, FLUSHED)]);
    fake.hold_requests(true);
    let other = Pair::new().expect("a pair");
    recv(&other, 0);
    send(&other, 0);
    let Pair {
        a,
        b,
        a_cq,
        b_cq,
        pd,
        context,
    } = other;
    drop((a, b));
    fake.hold_requests(false);
    assert_eq!(outcomes(&a_cq), [], "gone with the queue pair");
    drop((pair, a_cq, b_cq, pd, context));
    fake.finish();
}

#[test]
fn a_drain_gets_receives_back_that_a_device_flushes_late() {
    let fake = control::session();
    fake.flush_receives_late();
    let pair = Pair::new().expect("a pair");
    pair.b.set_error().expect("ERR");
    recv(&pair, 5);
    assert_eq!(outcomes(&pair.b_cq), [], "SoftRoCE does not look");
    let mut seen = Vec::new();
    pair.b
        .drain(soon(), |wc| seen.push((wc.wr_id(), wc.status().raw())))
        .expect("drained");
    assert!(seen.contains(&(5, FLUSHED)), "{seen:?}");
    drop(pair);
    fake.finish();
}

#[test]
fn a_lost_doorbell_in_the_middle_of_a_list_means_all_of_it() {
    let fake = control::session();
    let pair = Pair::new().expect("a pair");
    for id in 0..4 {
        recv(&pair, id);
    }
    fake.lose_doorbell();
    let mut list: Vec<_> = (0..3)
        .map(|id| SendRequest::send(id, &[]).with_flags(SendFlags::SIGNALED))
        .collect();
    // SAFETY: the requests name no memory.
    let error = unsafe { pair.a.post_send_list(&mut list) }.expect_err("lost");
    assert_eq!(
        (error.kind, error.queued),
        (PostErrorKind::Provider(libc::EINVAL), 3)
    );
    assert_eq!(outcomes(&pair.a_cq), []);
    // The error state flushes them, as it does what was posted well.
    pair.a.set_error().expect("ERR");
    let flushed = [(0, FLUSHED), (1, FLUSHED), (2, FLUSHED)];
    assert_eq!(outcomes(&pair.a_cq), flushed);
    drop(pair);
    fake.finish();
}

#[test]
fn a_bind_whose_doorbell_is_lost_leaves_a_window_that_can_be_closed() {
    let fake = control::session();
    for window_type in [WindowType::TYPE_1, WindowType::TYPE_2] {
        let (one, two) = ends(QpType::RC).expect("ends");
        let window = MemoryWindow::new(&two.pd, window_type).expect("a window");
        let bind = verbs::WindowBind {
            wr_id: 1,
            region: &two.region,
            offset: 0,
            len: 8,
            access: verbs::AccessFlags::REMOTE_READ,
            flags: SendFlags::SIGNALED,
        };
        fake.lose_doorbell();
        let error = two.qp.bind(&window, &bind).expect_err("lost");
        assert_eq!(error.errno(), Some(libc::EINVAL), "{error}");
        // It is carried out all the same, with the next request.
        two.post(SendRequest::write(
            2,
            &[],
            super::common::target(&one.region),
        ))
        .expect("posted");
        assert_eq!(outcomes(&two.cq), [(1, 0), (2, 0)]);
        // The queue pair knows that the window may be bound to it.
        let super::ends::End {
            qp,
            cq,
            region,
            memory,
            pd,
        } = two;
        qp.close().expect("no window holds it up");
        assert_eq!(window.is_freed(), window_type == WindowType::TYPE_2);
        window.close().expect("closed");
        drop((window, region, one, cq, pd, memory));
    }
    fake.finish();
}

#[test]
fn a_peer_that_is_gone_ends_what_is_under_way_to_it() {
    let fake = control::session();
    let pair = Pair::new().expect("a pair");
    send(&pair, 1);
    assert_eq!(outcomes(&pair.a_cq), [], "no receive yet");
    let Pair {
        a,
        b,
        a_cq,
        b_cq,
        pd,
        context,
    } = pair;
    drop(b);
    assert_eq!(outcomes(&a_cq), [(1, WcStatus::RETRY_EXC_ERR.raw())]);
    // It cannot be connected again before it was reset.
    assert!(connect(&a, &a, 7).is_err());
    drop((a, a_cq, b_cq, pd, context));
    fake.finish();
}
