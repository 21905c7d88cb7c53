//! What a forked child inherits, and may not touch.
#![cfg(not(miri))]

use cm::verbs::sys::fake::control;
use rpma::{LocalRegion, Usage};

use super::common::peer;

/// A log that is never to be written to: its lock may be held by a thread that does not exist.
struct NoLog;

impl tracing::Subscriber for NoLog {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, _: &tracing::Event<'_>) {
        // SAFETY: ends the process, which has nothing to finish.
        unsafe { libc::_exit(3) };
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn a_region_and_its_peer_are_dropped_in_a_child_without_a_word() {
    let fake = control::session();
    let peer = peer().expect("a peer");
    let region = LocalRegion::alloc(&peer, 4096, Usage::all()).expect("a region");
    // SAFETY: the child drops handles, which takes no lock of another thread, and leaves by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        tracing::subscriber::with_default(NoLog, || drop((region, peer)));
        // SAFETY: ends the child without running anything else.
        unsafe { libc::_exit(0) };
    }
    assert!(child > 0, "fork failed");
    let mut status = 0;
    // SAFETY: our own child, and a valid place for its status.
    let waited = unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!((waited, status), (child, 0), "the child has logged");
    region.close().expect("the parent keeps its region");
    peer.close().expect("nothing uses it");
    fake.finish();
}
