//! A device that is taken out of the machine while it is used.

use std::thread;
use std::time::{Duration, Instant};

use verbs::sys::fake::control;
use verbs::{
    AsyncEventKind, AsyncEventSource, CompletionChannel, ErrorKind, RecvRequest, SendFlags,
    SendRequest, SharedReceiveQueue,
};

use super::common::{Memory, Pair, everything, outcomes, soon, to_init};

#[test]
fn leaks_everything_when_the_device_is_gone_and_neither_hangs_nor_frees_under_it() {
    let fake = control::session();
    let pair = Pair::new().expect("a pair");
    let memory = Memory::new(64);
    let region = memory.register(&pair.pd, everything()).expect("a region");
    let srq = SharedReceiveQueue::new(&pair.pd, 4, 1).expect("a shared queue");
    let events = pair.context.async_events().expect("events");
    // SAFETY: the request names no memory.
    unsafe { pair.b.post_recv(&mut RecvRequest::new(1, &[])) }.expect("a receive");
    let before = fake.left_over();
    fake.remove_devices();
    let begun = Instant::now();
    drop((srq, region, events, pair));
    assert!(
        begun.elapsed() < control::within(1),
        "{:?}",
        begun.elapsed()
    );
    assert_eq!(fake.left_over(), before, "all leaked, nothing freed");
    assert_eq!(fake.count("ibv_close_device"), 0, "objects are left of it");
    assert_eq!(fake.count("ibv_destroy_qp"), 2, "tried once each");
    // The region may still be written: its memory has to stay as well.
    std::mem::forget(memory);
    fake.discard();
}

#[test]
fn leaks_what_a_close_gives_back_with_the_reason() {
    let fake = control::session();
    let pair = Pair::new().expect("a pair");
    let memory = Memory::new(64);
    let region = memory.register(&pair.pd, everything()).expect("a region");
    fake.remove_devices();
    let failed = region.close().expect_err("the device is gone");
    assert_eq!(
        (failed.error.verb(), failed.error.errno()),
        ("ibv_dereg_mr", Some(libc::EIO))
    );
    let Pair { a, b, .. } = pair;
    let refused = a.close().expect_err("the device is gone");
    assert_eq!(
        (refused.error.verb(), refused.error.errno()),
        ("ibv_destroy_qp", Some(libc::EIO))
    );
    drop((failed, refused, b));
    std::mem::forget(memory);
    fake.discard();
}

#[test]
fn leaks_nothing_more_while_it_says_what_has_happened_and_what_has_arrived() {
    let fake = control::session();
    let pair = Pair::new().expect("a pair");
    let events = pair.context.async_events().expect("events");
    let mut send = SendRequest::send(3, &[]).with_flags(SendFlags::SIGNALED);
    for wr_id in 1..=2 {
        // SAFETY: the request names no memory.
        unsafe { pair.b.post_recv(&mut RecvRequest::new(wr_id, &[])) }.expect("a receive");
    }
    // SAFETY: as above.
    unsafe { pair.a.post_send(&mut send) }.expect("a send");
    fake.remove_devices();
    let event = events.next(soon()).expect("an event");
    assert_eq!(
        (event.kind(), event.source()),
        (AsyncEventKind::DEVICE_FATAL, AsyncEventSource::Device)
    );
    for _ in 0..2 {
        let begun = Instant::now();
        let error = events.next(soon()).expect_err("no more events");
        assert_eq!(error.errno(), Some(libc::EIO), "{error}");
        assert!(begun.elapsed() < control::within(1));
    }
    // What had completed can still be polled.
    assert_eq!(outcomes(&pair.a_cq), [(3, 0)]);
    assert_eq!(outcomes(&pair.b_cq), [(1, 0)]);
    // SAFETY: as above.
    let error = unsafe { pair.a.post_send(&mut send) }.expect_err("the device is gone");
    assert_eq!(error.kind, verbs::PostErrorKind::Provider(libc::EIO));
    let gone = [
        pair.a.query().err(),
        pair.a.set_error().err(),
        pair.a_cq.arm().err(),
        pair.a_cq.resize(64).err(),
        pair.context.query_port(1).err(),
        verbs::ProtectionDomain::new(&pair.context).err(),
        CompletionChannel::new(&pair.context).err(),
    ];
    for error in gone {
        let error = error.expect("the device is gone");
        assert_eq!(error.errno(), Some(libc::EIO), "{error}");
        assert_eq!(error.kind(), ErrorKind::Provider, "{error}");
    }
    drop((events, pair));
    fake.discard();
}

#[test]
fn leaks_no_thread_that_waits() {
    let fake = control::session();
    let pair = Pair::in_reset().expect("a pair");
    to_init(&pair.a).expect("INIT");
    let events = pair.context.async_events().expect("events");
    thread::scope(|scope| {
        let completion = scope.spawn(|| {
            let mut out = [std::mem::MaybeUninit::uninit(); 4];
            pair.a_cq.wait(&mut out, soon()).err()
        });
        let event = scope.spawn(|| {
            let fatal = events.next(soon()).map(|event| event.kind());
            (fatal, events.next(soon()).err())
        });
        thread::sleep(Duration::from_millis(20));
        fake.remove_devices();
        let error = completion.join().expect("no panic").expect("an error");
        assert_eq!(error.errno(), Some(libc::EIO), "{error}");
        let (fatal, error) = event.join().expect("no panic");
        assert_eq!(fatal.expect("an event"), AsyncEventKind::DEVICE_FATAL);
        assert_eq!(error.and_then(|error| error.errno()), Some(libc::EIO));
    });
    drop((events, pair));
    fake.discard();
}
