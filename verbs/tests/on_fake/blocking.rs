//! What would hang on a device is found out: each in a process of its own, which the fake ends.
#![cfg(not(miri))]

use std::mem::{ManuallyDrop, MaybeUninit};
use std::process::Command;
use std::ptr;
use std::time::Duration;

use verbs::sys;
use verbs::sys::fake::control::{self, AsyncTarget};
use verbs::{
    AccessFlags, CompletionQueue, MemoryWindow, QpType, RecvRequest, SendFlags, SendRequest,
    WindowBind, WindowType,
};

use super::common::{Pair, to_init};
use super::ends::{End, QKEY, ends, handle};

/// Runs one of the ignored tests below, and gives what it wrote on its way out.
fn stderr_of(test: &str) -> String {
    let output = Command::new(std::env::current_exe().expect("this program"))
        .args([
            "--ignored",
            "--exact",
            &format!("on_fake::blocking::{test}"),
        ])
        .output()
        .expect("the test starts");
    assert!(!output.status.success(), "{test} went well");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A queue with one event in its channel.
fn queue_with_event(pair: &Pair) -> &CompletionQueue {
    to_init(&pair.a).expect("INIT");
    pair.a_cq.arm().expect("armed");
    // SAFETY: the request names no memory.
    unsafe { pair.a.post_recv(&mut RecvRequest::new(1, &[])) }.expect("a receive");
    pair.a.set_error().expect("ERR");
    &pair.a_cq
}

#[test]
#[ignore = "run by the test below"]
fn takes_an_event_past_the_wrapper() {
    let fake = control::session();
    fake.set_patience(Duration::from_millis(50));
    let pair = Pair::in_reset().expect("a pair");
    let raw = queue_with_event(&pair).as_raw();
    // SAFETY: the queue is live and has a channel.
    let channel = unsafe { (*raw).channel };
    let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: the channel is live and both places are valid.
    let ret = unsafe { sys::ibv_get_cq_event(channel, &mut cq, &mut context) };
    assert_eq!(ret, 0);
    drop(pair);
    fake.finish();
}

#[test]
fn a_queue_that_is_destroyed_with_an_event_outstanding_is_reported() {
    let text = stderr_of("takes_an_event_past_the_wrapper");
    assert!(
        text.contains("ibv_destroy_cq would block for ever"),
        "{text}"
    );
}

/// An event of the pair's first queue pair, got from C.
fn async_event(fake: &control::Session, pair: &Pair) -> sys::ibv_async_event {
    fake.inject_async(1, AsyncTarget::QueuePair(pair.a.as_raw()));
    let mut event = MaybeUninit::zeroed();
    // SAFETY: the context is open and the place is valid.
    let ret = unsafe { sys::ibv_get_async_event(pair.context.as_raw(), event.as_mut_ptr()) };
    assert_eq!(ret, 0);
    // SAFETY: the call has filled it.
    unsafe { event.assume_init() }
}

#[test]
#[ignore = "run by the test below"]
fn keeps_an_asynchronous_event() {
    let fake = control::session();
    fake.set_patience(Duration::from_millis(50));
    let pair = Pair::new().expect("a pair");
    async_event(&fake, &pair);
    drop(pair);
    fake.finish();
}

#[test]
fn an_object_that_is_destroyed_with_an_asynchronous_event_outstanding_is_reported() {
    let text = stderr_of("keeps_an_asynchronous_event");
    assert!(
        text.contains("ibv_destroy_qp would block for ever"),
        "{text}"
    );
}

#[test]
#[ignore = "run by the test below"]
fn acknowledges_an_asynchronous_event_twice() {
    let fake = control::session();
    let pair = ManuallyDrop::new(Pair::new().expect("a pair"));
    let mut event = async_event(&fake, &pair);
    for _ in 0..2 {
        // SAFETY: the event was got; that it is acknowledged twice is what the fake is to find out.
        unsafe { sys::ibv_ack_async_event(&mut event) };
    }
}

#[test]
fn a_second_acknowledgement_of_an_asynchronous_event_is_reported() {
    let text = stderr_of("acknowledges_an_asynchronous_event_twice");
    assert!(text.contains("is acknowledged already"), "{text}");
}

#[test]
#[ignore = "run by the test below"]
fn acknowledges_an_event_too_many() {
    let _fake = control::session();
    let pair = ManuallyDrop::new(Pair::in_reset().expect("a pair"));
    // SAFETY: the queue is live; that no event was got is what the fake is to find out.
    unsafe { sys::ibv_ack_cq_events(pair.a_cq.as_raw(), 1) };
}

#[test]
fn an_acknowledgement_too_many_is_reported() {
    let text = stderr_of("acknowledges_an_event_too_many");
    assert!(text.contains("1 events acknowledged, 0 were got"), "{text}");
}

#[test]
#[ignore = "run by the test below"]
fn uses_a_queue_pair_after_its_end() {
    let _fake = control::session();
    let pair = Pair::in_reset().expect("a pair");
    let raw = pair.a.as_raw();
    drop(pair);
    // SAFETY: none; that the queue pair is gone is what the fake is to find out.
    unsafe { sys::ibv_destroy_qp(raw) };
}

#[test]
fn a_handle_used_after_its_end_is_reported() {
    let text = stderr_of("uses_a_queue_pair_after_its_end");
    assert!(
        text.contains("ibv_destroy_qp was given a queue pair that was destroyed"),
        "{text}"
    );
}

/// A window of type 2, bound.
fn bound(two: &End) -> MemoryWindow {
    let window = MemoryWindow::new(&two.pd, WindowType::TYPE_2).expect("a window");
    let bind = WindowBind {
        wr_id: 1,
        region: &two.region,
        offset: 0,
        len: 8,
        access: AccessFlags::REMOTE_READ,
        flags: SendFlags::empty(),
    };
    two.qp.bind(&window, &bind).expect("bound");
    window
}

#[test]
#[ignore = "run by the test below"]
fn destroys_a_queue_pair_under_its_window() {
    let _fake = control::session();
    let (one, two) = ends(QpType::RC).expect("ends");
    let kept = ManuallyDrop::new((bound(&two), one, two));
    // SAFETY: none; that a window is bound is what the fake is to find out.
    unsafe { sys::ibv_destroy_qp(kept.2.qp.as_raw()) };
}

#[test]
fn a_queue_pair_that_is_destroyed_under_a_bound_window_is_reported() {
    let text = stderr_of("destroys_a_queue_pair_under_its_window");
    assert!(
        text.contains("ibv_destroy_qp would block for a minute"),
        "{text}"
    );
}

#[test]
#[ignore = "run by the test below"]
fn binds_a_window_to_no_region() {
    let _fake = control::session();
    let (one, two) = ends(QpType::RC).expect("ends");
    let window = MemoryWindow::new(&two.pd, WindowType::TYPE_1).expect("a window");
    let kept = ManuallyDrop::new((window, one, two));
    let mut bind = sys::ibv_mw_bind::default();
    // SAFETY: none; that no region is named is what the fake is to find out.
    unsafe { sys::ibv_bind_mw(kept.2.qp.as_raw(), kept.0.as_raw(), &mut bind) };
}

#[test]
fn a_bind_to_no_region_is_reported() {
    let text = stderr_of("binds_a_window_to_no_region");
    assert!(
        text.contains("ibv_bind_mw without a window or a region"),
        "{text}"
    );
}

#[test]
#[ignore = "run by the test below"]
fn destroys_an_address_handle_too_early() {
    let fake = control::session();
    let (one, two) = ends(QpType::UD).expect("ends");
    let address = handle(&one.pd).expect("a handle");
    fake.hold_requests(true);
    one.post(SendRequest::datagram(1, &[], &address, 5, QKEY))
        .expect("posted");
    let _kept = ManuallyDrop::new((one, two));
    drop(address);
}

#[test]
fn an_address_handle_that_a_request_names_and_that_is_destroyed_is_reported() {
    let text = stderr_of("destroys_an_address_handle_too_early");
    assert!(text.contains("names the handle"), "{text}");
}
