//! Memory windows of both types, and invalidation.

use verbs::sys::fake::control::{self, PostedBind};
use verbs::{
    AccessFlags, Error, ErrorKind, MemoryRegion, MemoryWindow, QpType, RemoteAddr, RemoteKey,
    SendFlags, SendRequest, WcFlags, WcOpcode, WcStatus, WindowBind, WindowType, WrOpcode,
};

use super::common::{Memory, drain, outcomes, to_init, to_rtr, to_rts};
use super::ends::{End, ends};
use super::failing::{fail_each_call, fail_each_destroy};

/// What a window's region needs: no remote access of its own.
const WINDOWED: AccessFlags = AccessFlags::LOCAL_WRITE.union(AccessFlags::MW_BIND);

/// Two connected ends, and a region of the second one without remote access.
struct Target {
    region: MemoryRegion,
    memory: Memory,
    one: End,
    two: End,
}

impl Target {
    fn new() -> Result<Self, Error> {
        let (one, two) = ends(QpType::RC)?;
        let memory = Memory::new(256);
        Ok(Self {
            region: memory.register(&two.pd, WINDOWED)?,
            memory,
            one,
            two,
        })
    }

    fn window(&self, window_type: WindowType) -> Result<MemoryWindow, Error> {
        MemoryWindow::new(&self.two.pd, window_type)
    }

    /// A bind of 64 bytes from 128 on for writing.
    fn wanted(&self) -> WindowBind<'_> {
        WindowBind {
            wr_id: 50,
            region: &self.region,
            offset: 128,
            len: 64,
            access: AccessFlags::REMOTE_WRITE,
            flags: SendFlags::SIGNALED,
        }
    }

    fn bind(&self, window: &MemoryWindow) -> RemoteKey {
        let key = self.two.qp.bind(window, &self.wanted()).expect("a bind");
        let [completion] = drain(&self.two.cq)[..] else {
            panic!("not one completion");
        };
        let success = completion.result().expect("a success");
        assert_eq!(
            (completion.wr_id(), success.opcode()),
            (50, WcOpcode::BIND_MW)
        );
        assert_eq!(window.rkey(), key);
        key
    }

    /// How a request of 8 bytes from the first end ends, by `key` at `offset`.
    fn reach(&self, key: RemoteKey, offset: u64, write: bool) -> WcStatus {
        let remote = RemoteAddr {
            addr: self.region.iova().wrapping_add(offset),
            rkey: key,
        };
        let sges = [self.one.sge(8)];
        let request = if write {
            SendRequest::write(60, &sges, remote)
        } else {
            SendRequest::read(60, &sges, remote)
        };
        self.one.post(request).expect("posted");
        drain(&self.one.cq)[0].status()
    }

    fn write(&self, key: RemoteKey, offset: u64) -> WcStatus {
        self.reach(key, offset, true)
    }
}

const BOTH: [WindowType; 2] = [WindowType::TYPE_1, WindowType::TYPE_2];

#[test]
fn a_window_gives_the_access_it_was_bound_for_and_no_other() {
    let fake = control::session();
    for window_type in BOTH {
        let refused = WcStatus::REM_ACCESS_ERR;
        for (offset, write, status) in [
            (128, true, WcStatus::SUCCESS),
            (184, true, WcStatus::SUCCESS),
            (185, true, refused),
            (120, true, refused),
            (u64::MAX - 4, true, refused),
            (128, false, refused),
        ] {
            let target = Target::new().expect("a target");
            let window = target.window(window_type).expect("a window");
            let key = target.bind(&window);
            let got = target.reach(key, offset, write);
            assert_eq!(got, status, "{window_type} at {offset}");
            drop((window, target));
        }
        let target = Target::new().expect("a target");
        let window = target.window(window_type).expect("a window");
        target.bind(&window);
        let own = target.region.rkey();
        assert_eq!(target.write(own, 128), refused, "the region gives nothing");
        assert_eq!(target.memory.get(), [0; 256]);
        drop((window, target));
    }
    fake.finish();
}

#[test]
fn a_bind_reaches_the_provider_field_for_field() {
    let fake = control::session();
    for window_type in BOTH {
        let target = Target::new().expect("a target");
        let window = target.window(window_type).expect("a window");
        let before = window.rkey();
        let key = target.bind(&window);
        assert_eq!(key.0, before.0 & !0xff | (before.0 + 1) & 0xff);
        let posted = fake.sends().last().cloned().expect("a request");
        assert_eq!(posted.opcode, WrOpcode::BIND_MW.raw());
        assert_eq!((posted.wr_id, posted.imm), (50, 0));
        let bind = PostedBind {
            rkey: key.0,
            addr: target.region.iova() + 128,
            len: 64,
            access: AccessFlags::REMOTE_WRITE.bits(),
        };
        assert_eq!(posted.bind, Some(bind));
        // SAFETY: the window is live, and nobody binds it now.
        let raw = unsafe { (*window.as_raw()).rkey };
        assert_eq!(raw, key.0, "the library's own record");
        drop((window, target));
    }
    fake.finish();
}

#[test]
fn an_invalidated_window_gives_no_access_whichever_side_invalidates() {
    let fake = control::session();
    for local in [true, false] {
        let target = Target::new().expect("a target");
        let window = target.window(WindowType::TYPE_2).expect("a window");
        let invalidate = |key| {
            if local {
                let request = SendRequest::local_invalidate(7, key);
                target.two.post(request).expect("posted");
                let [completion] = drain(&target.two.cq)[..] else {
                    panic!("not one completion");
                };
                let success = completion.result().expect("a success");
                assert_eq!(success.opcode(), WcOpcode::LOCAL_INV);
            } else {
                target.two.recv(8, 0).expect("a receive");
                let request = SendRequest::send_with_invalidate(7, &[], key);
                target.one.post(request).expect("posted");
                assert_eq!(outcomes(&target.one.cq), [(7, 0)]);
                let [completion] = drain(&target.two.cq)[..] else {
                    panic!("not one completion");
                };
                let success = completion.result().expect("a success");
                assert!(success.flags().contains(WcFlags::WITH_INV));
                assert_eq!(success.invalidated_rkey(), Some(key));
                assert_eq!(success.imm(), None);
            }
        };
        let key = target.bind(&window);
        invalidate(key);
        let again = target.bind(&window);
        assert_ne!(again, key);
        assert_eq!(target.write(again, 128), WcStatus::SUCCESS);
        invalidate(again);
        assert_eq!(target.write(again, 128), WcStatus::REM_ACCESS_ERR);
        drop((window, target));
    }
    fake.finish();
}

#[test]
fn a_key_that_cannot_be_invalidated_fails_the_request() {
    let fake = control::session();
    let target = Target::new().expect("a target");
    let first = target.window(WindowType::TYPE_1).expect("a window");
    let key = target.bind(&first);
    let request = SendRequest::local_invalidate(7, key);
    target.two.post(request).expect("posted");
    assert_eq!(
        outcomes(&target.two.cq),
        [(7, WcStatus::LOC_QP_OP_ERR.raw())]
    );
    drop((first, target));
    let target = Target::new().expect("a target");
    target.two.recv(8, 0).expect("a receive");
    let own = target.two.region.rkey();
    let request = SendRequest::send_with_invalidate(7, &[], own);
    target.one.post(request).expect("posted");
    assert_eq!(outcomes(&target.one.cq), [(7, WcStatus::REM_OP_ERR.raw())]);
    assert_eq!(
        outcomes(&target.two.cq),
        [(8, WcStatus::REM_INV_REQ_ERR.raw())]
    );
    drop(target);
    fake.finish();
}

#[test]
fn a_window_of_type_1_is_unbound_and_bound_again() {
    let fake = control::session();
    let target = Target::new().expect("a target");
    let window = target.window(WindowType::TYPE_1).expect("a window");
    let key = target.bind(&window);
    assert_eq!(target.write(key, 128), WcStatus::SUCCESS);
    // Any region of the domain may be named.
    let none = target
        .two
        .qp
        .unbind(&window, &target.two.region, 51, SendFlags::SIGNALED)
        .expect("unbound");
    assert_eq!(outcomes(&target.two.cq), [(51, 0)]);
    assert_ne!(none, key);
    assert_eq!(window.rkey(), none);
    let posted = fake.sends().last().cloned().expect("a request");
    let bind = posted.bind.expect("a bind");
    assert_eq!((bind.len, bind.access), (0, 0));
    let again = target.bind(&window);
    assert_eq!(target.write(again, 128), WcStatus::SUCCESS);
    target
        .two
        .qp
        .unbind(&window, &target.region, 52, SendFlags::empty())
        .expect("unbound");
    assert_eq!(target.write(again, 128), WcStatus::REM_ACCESS_ERR);
    // Nothing holds the region any more, though the window lives.
    let Target {
        region, one, two, ..
    } = target;
    region.close().expect("no window is bound to it");
    assert!(!window.is_freed());
    drop((window, one, two));
    fake.finish();
}

#[test]
fn an_unbind_that_can_never_be_right_is_refused_by_name() {
    let fake = control::session();
    let target = Target::new().expect("a target");
    let flags = SendFlags::SIGNALED;
    let second = target.window(WindowType::TYPE_2).expect("a window");
    let first = target.window(WindowType::TYPE_1).expect("a window");
    let before = fake.count("ibv_bind_mw");
    let error = target.two.qp.unbind(&second, &target.region, 1, flags);
    let error = error.expect_err("type 2");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert!(
        error
            .hint()
            .is_some_and(|hint| hint.contains("local_invalidate"))
    );
    let error = target.two.qp.unbind(&first, &target.one.region, 1, flags);
    let error = error.expect_err("another domain");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    let (foreign, peer) = ends(QpType::RC).expect("ends");
    drop(peer);
    let error = foreign.qp.unbind(&first, &target.region, 1, flags);
    let error = error.expect_err("another device");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    first.close().expect("closed");
    let error = target.two.qp.unbind(&first, &target.region, 1, flags);
    let error = error.expect_err("freed");
    assert!(error.to_string().contains("freed"), "{error}");
    assert_eq!(fake.count("ibv_bind_mw"), before);
    drop((first, second, target, foreign));
    fake.finish();
}

#[test]
fn a_bind_that_fails_keeps_the_key_and_one_that_the_device_refuses_ends_the_queue_pair() {
    let fake = control::session();
    for (window_type, call) in [
        (WindowType::TYPE_1, "ibv_bind_mw"),
        (WindowType::TYPE_2, "ibv_post_send"),
    ] {
        let target = Target::new().expect("a target");
        let window = target.window(window_type).expect("a window");
        let before = window.rkey();
        fake.fail(call, 0, libc::ENOMEM);
        let error = target.two.qp.bind(&window, &target.wanted());
        error.expect_err("made to fail");
        assert_eq!(window.rkey(), before);
        target.bind(&window);
        drop((window, target));
    }
    // A region that may not be bound to.
    let target = Target::new().expect("a target");
    let memory = Memory::new(64);
    let plain = memory
        .register(&target.two.pd, AccessFlags::LOCAL_WRITE)
        .expect("a region");
    let window = target.window(WindowType::TYPE_1).expect("a window");
    let bind = WindowBind {
        region: &plain,
        offset: 0,
        ..target.wanted()
    };
    target.two.qp.bind(&window, &bind).expect("posted");
    assert_eq!(
        outcomes(&target.two.cq),
        [(50, WcStatus::MW_BIND_ERR.raw())]
    );
    drop((window, plain, target));
    // A window of type 2 that is bound already.
    let target = Target::new().expect("a target");
    let window = target.window(WindowType::TYPE_2).expect("a window");
    target.bind(&window);
    target
        .two
        .qp
        .bind(&window, &target.wanted())
        .expect("posted");
    assert_eq!(
        outcomes(&target.two.cq),
        [(50, WcStatus::MW_BIND_ERR.raw())]
    );
    drop((window, target));
    fake.finish();
}

#[test]
fn a_region_with_a_window_is_not_closed_before_the_window() {
    let fake = control::session();
    for window_type in BOTH {
        let target = Target::new().expect("a target");
        let window = target.window(window_type).expect("a window");
        target.bind(&window);
        let Target {
            region,
            memory,
            one,
            two,
        } = target;
        let failed = region.close().expect_err("a window is bound to it");
        assert_eq!(failed.error.errno(), Some(libc::EINVAL));
        window.close().expect("freed, bound or not");
        failed.handle.close().expect("nothing is bound to it");
        drop((window, one, two, memory));
    }
    fake.finish();
}

#[test]
fn a_queue_pair_frees_the_windows_that_are_bound_to_it_before_itself() {
    let fake = control::session();
    for close in [true, false] {
        let target = Target::new().expect("a target");
        let bound = target.window(WindowType::TYPE_2).expect("a window");
        let unbound = target.window(WindowType::TYPE_2).expect("a window");
        let first = target.window(WindowType::TYPE_1).expect("a window");
        target.bind(&bound);
        target.bind(&first);
        let Target {
            region,
            memory,
            one,
            two,
        } = target;
        let End { qp, cq, .. } = two;
        if close {
            qp.close().expect("nothing is bound to it any more");
        } else {
            drop(qp);
        }
        assert!(bound.is_freed());
        assert!(!first.is_freed() && !unbound.is_freed());
        bound.close().expect("freed before");
        drop((bound, unbound, first, region, one, cq, memory));
    }
    fake.finish();
}

#[test]
fn leaks_a_queue_pair_whose_window_cannot_be_freed_instead_of_waiting_for_a_minute() {
    let fake = control::session();
    let target = Target::new().expect("a target");
    let window = target.window(WindowType::TYPE_2).expect("a window");
    target.bind(&window);
    let Target {
        region,
        memory,
        one,
        two,
    } = target;
    let End { qp, cq, .. } = two;
    fake.fail("ibv_dealloc_mw", 0, libc::EIO);
    let failed = qp.close().expect_err("the window stays");
    assert_eq!(
        (failed.error.verb(), failed.error.errno()),
        ("ibv_dealloc_mw", Some(libc::EIO))
    );
    assert_eq!(fake.count("ibv_destroy_qp"), 0, "it would wait");
    fake.fail("ibv_dealloc_mw", 0, libc::EIO);
    drop(failed);
    assert_eq!(fake.count("ibv_destroy_qp"), 0, "it would wait");
    assert!(!window.is_freed());
    window.close().expect("freed");
    drop((window, region, one, cq, memory));
    let left = fake.left_over();
    assert!(left.contains(&"1 queue pairs left".to_owned()), "{left:?}");
    fake.discard();
}

#[test]
fn leaks_a_queue_pair_whose_window_could_not_be_freed_with_its_last_handle() {
    let fake = control::session();
    let target = Target::new().expect("a target");
    let window = target.window(WindowType::TYPE_2).expect("a window");
    target.bind(&window);
    fake.fail_always("ibv_dealloc_mw", libc::EIO);
    drop(window);
    drop(target);
    assert_eq!(
        fake.count("ibv_destroy_qp"),
        1,
        "the other one; this one would wait"
    );
    let left = fake.left_over();
    assert!(left.contains(&"1 queue pairs left".to_owned()), "{left:?}");
    fake.discard();
}

#[test]
fn a_queue_pair_whose_window_could_not_be_freed_may_be_closed_again() {
    let fake = control::session();
    let target = Target::new().expect("a target");
    let windows = [(); 3].map(|()| {
        let window = target.window(WindowType::TYPE_2).expect("a window");
        target.bind(&window);
        window
    });
    let Target {
        region,
        memory,
        one,
        two,
    } = target;
    let End {
        qp,
        cq,
        region: own,
        memory: of_own,
        pd,
    } = two;
    fake.fail("ibv_dealloc_mw", 1, libc::EIO);
    let failed = qp.close().expect_err("one window stays");
    let freed = windows.each_ref().map(MemoryWindow::is_freed);
    assert_eq!(freed, [true, false, true]);
    failed.handle.close().expect("now it goes");
    assert!(windows[1].is_freed());
    drop((windows, region, own, one, cq, pd, memory, of_own));
    fake.finish();
}

#[test]
fn a_window_moves_to_another_queue_pair_and_goes_with_the_first_of_them() {
    let fake = control::session();
    let target = Target::new().expect("a target");
    let window = target.window(WindowType::TYPE_2).expect("a window");
    let key = target.bind(&window);
    let request = SendRequest::local_invalidate(7, key);
    target.two.post(request).expect("posted");
    drain(&target.two.cq);
    // Another queue pair of the same domain.
    let other =
        verbs::QueuePair::builder(&target.two.pd, QpType::RC, &target.two.cq, &target.two.cq)
            .build()
            .expect("a queue pair");
    to_init(&other).expect("INIT");
    to_rtr(&other, &other).expect("RTR");
    to_rts(&other, 7).expect("RTS");
    other.bind(&window, &target.wanted()).expect("bound");
    assert_eq!(outcomes(&target.two.cq), [(50, 0)]);
    // The first one has nothing to do with it any more: its peer gets no access.
    let key = window.rkey();
    assert_eq!(target.write(key, 128), WcStatus::REM_ACCESS_ERR);
    let Target {
        region,
        memory,
        one,
        two,
    } = target;
    let End {
        qp,
        cq,
        region: own,
        memory: of_own,
        pd,
    } = two;
    // That it was invalidated for the first one is not known: were it not, the drop would not end.
    drop(qp);
    assert!(window.is_freed());
    drop(other);
    drop((window, region, own, one, cq, pd, memory, of_own));
    fake.finish();
}

#[test]
fn types_and_devices_that_are_not_there_are_refused() {
    let fake = control::session();
    let target = Target::new().expect("a target");
    let error = target.window(WindowType::from_raw(9)).expect_err("no type");
    assert_eq!(
        (error.verb(), error.errno()),
        ("ibv_alloc_mw", Some(libc::EINVAL))
    );
    fake.fail("ibv_alloc_mw", 0, libc::EOPNOTSUPP);
    let error = target.window(WindowType::TYPE_1).expect_err("no windows");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    drop(target);
    fake.finish();
}

fn everything_once() -> Result<(), Error> {
    let target = Target::new()?;
    let (first, second) = (
        target.window(WindowType::TYPE_1)?,
        target.window(WindowType::TYPE_2)?,
    );
    let qp = &target.two.qp;
    qp.bind(&first, &target.wanted())?;
    qp.bind(&second, &target.wanted())?;
    qp.unbind(&first, &target.region, 1, SendFlags::empty())?;
    target
        .two
        .post(SendRequest::local_invalidate(7, second.rkey()))?;
    drop((first, second, target));
    Ok(())
}

#[test]
fn a_failing_call_leaves_nothing_behind_and_names_itself_and_its_errno() {
    let fake = control::session();
    let tried = fail_each_call(&fake, everything_once);
    for call in ["ibv_alloc_mw", "ibv_bind_mw"] {
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
