//! Extended queue pairs: what reaches the provider, in which order, and what does not.

use std::panic::{AssertUnwindSafe, catch_unwind};

use verbs::sys::fake::control::{self, PostedFlush, Session};
use verbs::{
    AccessFlags, Batch, CompletionQueue, Context, DeviceList, Error, ErrorKind, ExtendedQueuePair,
    FlushLevel, FlushPlacement, MemoryRegion, PostError, PostErrorKind, ProtectionDomain,
    QpAttributes, QpState, QpType, QueuePair, QueuePairBuilder, RecvRequest, RemoteAddr, RemoteKey,
    SendFlags, SendOps, SendRequest, Sge, WcOpcode, WcStatus, WrOpcode, sys,
};

use super::common::{Memory, drain, outcomes, sge, target, to_rtr, to_rts};

/// Everything that a peer can be allowed.
fn all_access() -> AccessFlags {
    AccessFlags::LOCAL_WRITE
        | AccessFlags::REMOTE_WRITE
        | AccessFlags::REMOTE_READ
        | AccessFlags::REMOTE_ATOMIC
        | AccessFlags::FLUSH_GLOBAL
        | AccessFlags::FLUSH_PERSISTENT
}

fn to_init(qp: &QueuePair, access: AccessFlags) {
    use sys::ibv_qp_attr_mask as A;
    let raw = sys::ibv_qp_attr {
        qp_state: sys::ibv_qp_state::IBV_QPS_INIT,
        port_num: 1,
        qp_access_flags: access.bits(),
        ..Default::default()
    };
    let mask = A::IBV_QP_STATE | A::IBV_QP_PKEY_INDEX | A::IBV_QP_PORT | A::IBV_QP_ACCESS_FLAGS;
    let attributes = QpAttributes::from_raw(raw, mask.0.cast_signed());
    qp.modify(&attributes).expect("INIT");
}

/// An extended queue pair connected with a plain one.
struct Pair {
    a: ExtendedQueuePair,
    b: QueuePair,
    a_cq: CompletionQueue,
    b_cq: CompletionQueue,
    pd: ProtectionDomain,
}

fn domain(device: &str) -> (Context, ProtectionDomain) {
    let devices = DeviceList::new().expect("devices");
    let device = devices.by_name(device).expect("the device");
    let context = device.open().expect("open");
    let pd = ProtectionDomain::new(&context).expect("a domain");
    (context, pd)
}

fn sizes(builder: QueuePairBuilder<'_>) -> QueuePairBuilder<'_> {
    builder
        .max_send_wr(4)
        .max_recv_wr(4)
        .max_send_sge(2)
        .max_inline_data(16)
}

impl Pair {
    fn in_reset(device: &str, ops: SendOps) -> Result<Self, Error> {
        let (context, pd) = domain(device);
        let a_cq = CompletionQueue::builder(&context, 16).build()?;
        let b_cq = CompletionQueue::builder(&context, 16).build()?;
        let of = |cq| sizes(QueuePair::builder(&pd, QpType::RC, cq, cq));
        let a = of(&a_cq).build_extended(ops)?;
        let b = of(&b_cq).build()?;
        Ok(Self {
            a,
            b,
            a_cq,
            b_cq,
            pd,
        })
    }

    fn with_peer_access(device: &str, ops: SendOps, access: AccessFlags) -> Self {
        let pair = Self::in_reset(device, ops).expect("a pair");
        for (qp, peer) in [
            (pair.a.queue_pair(), &pair.b),
            (&pair.b, pair.a.queue_pair()),
        ] {
            to_init(qp, access);
            to_rtr(qp, peer).expect("RTR");
            to_rts(qp, 7).expect("RTS");
        }
        pair
    }

    fn new(ops: SendOps) -> Self {
        Self::with_peer_access("fake0", ops, all_access())
    }

    fn recv(&self, wr_id: u64) {
        // SAFETY: the request names no memory.
        unsafe { self.b.post_recv(&mut RecvRequest::new(wr_id, &[])) }.expect("a receive");
    }

    fn region(&self, memory: &Memory) -> MemoryRegion {
        memory.register(&self.pd, all_access()).expect("a region")
    }

    fn post(
        &mut self,
        build: impl FnOnce(&mut Batch<'_>) -> Result<(), PostError>,
    ) -> Result<(), PostError> {
        self.a.post_batch(build)
    }
}

/// The calls of a batch since `from`.
fn building(fake: &Session, from: usize) -> Vec<&'static str> {
    let calls = fake.calls();
    let of = calls[from..]
        .iter()
        .filter(|name| name.starts_with("ibv_wr"));
    of.copied().collect()
}

const SIGNALED: SendFlags = SendFlags::SIGNALED;

#[test]
fn a_batch_reaches_the_provider_piece_by_piece_and_is_posted_by_one_call() {
    let fake = control::session();
    let mut pair = Pair::new(SendOps::all() & known());
    let (here, there) = (Memory::new(64), Memory::new(64));
    let (own, other) = (pair.region(&here), pair.region(&there));
    let to = target(&other);
    let at = |offset| RemoteAddr {
        addr: to.addr + offset,
        ..to
    };
    let (one, result) = ([sge(&own, 8)], [sge(&own, 8)]);
    let two = [sge(&own, 8), Sge::new(own.addr() as u64 + 8, 8, own.lkey())];
    let before = fake.calls().len();
    pair.post(|batch| {
        assert!(batch.is_empty());
        // SAFETY: the region is live until the end of the test, and its memory not borrowed.
        unsafe { batch.write(1, to).sges(&two) }?;
        batch.write(2, at(16)).flags(SIGNALED).inline(b"inline")?;
        // SAFETY: as above.
        unsafe { batch.read(3, at(16)).flags(SIGNALED).sges(&one) }?;
        batch.send(4).flags(SendFlags::FENCE | SIGNALED).empty()?;
        assert_eq!(batch.len(), 4);
        Ok(())
    })
    .expect("a batch");
    let calls = [
        "ibv_wr_start",
        "ibv_wr_rdma_write",
        "ibv_wr_set_sge_list",
        "ibv_wr_rdma_write",
        "ibv_wr_set_inline_data",
        "ibv_wr_rdma_read",
        "ibv_wr_set_sge",
        "ibv_wr_send",
        "ibv_wr_set_sge",
        "ibv_wr_complete",
    ];
    assert_eq!(building(&fake, before), calls);
    let sent = fake.sends();
    let fields: Vec<_> = sent
        .iter()
        .map(|s| {
            (
                s.wr_id,
                s.opcode,
                s.flags,
                s.sges.len(),
                s.remote_addr,
                s.rkey,
            )
        })
        .collect();
    assert_eq!(
        fields,
        [
            (1, 0, 0, 2, to.addr, to.rkey.0),
            (2, 0, 2 | 8, 1, to.addr + 16, to.rkey.0),
            (3, 4, 2, 1, to.addr + 16, to.rkey.0),
            (4, 2, 1 | 2, 0, 0, 0),
        ]
    );
    assert_eq!(sent[1].inline.as_deref(), Some(&b"inline"[..]));
    assert_eq!(outcomes(&pair.a_cq), [(2, 0), (3, 0)], "the signaled");
    assert_eq!(&there.get()[16..22], b"inline");
    assert_eq!(&here.get()[..6], b"inline", "read back");

    pair.recv(100);
    assert_eq!(
        outcomes(&pair.b_cq),
        [(100, 0)],
        "the message waited for it"
    );
    assert_eq!(outcomes(&pair.a_cq), [(4, 0)]);
    pair.recv(101);
    pair.recv(102);
    pair.post(|batch| {
        batch.send_with_imm(5, 0x0102_0304).inline(b"")?;
        batch.write_with_imm(6, at(40), 7).inline(b"imm")?;
        // SAFETY: as above.
        unsafe { batch.fetch_and_add(7, at(48), 5).sges(&result) }?;
        // SAFETY: as above.
        unsafe {
            batch
                .compare_and_swap(8, at(48), 5, 9)
                .flags(SIGNALED)
                .sges(&result)
        }
    })
    .expect("a batch");
    let received: Vec<_> = drain(&pair.b_cq)
        .iter()
        .map(|wc| wc.result().expect("a success").imm())
        .collect();
    assert_eq!(received, [Some(0x0102_0304), Some(7)]);
    assert_eq!(outcomes(&pair.a_cq), [(8, 0)]);
    drop((own, other));
    assert_eq!(there.get()[48], 9);
    assert_eq!(here.get()[0], 5, "what it was before");
    drop(pair);
    fake.finish();
}

/// All operations with a name.
fn known() -> SendOps {
    SendOps::from_bits_retain(0x1fff & !(1 << 10))
}

#[test]
fn a_batch_that_fails_or_panics_posts_nothing_and_frees_the_queue() {
    let fake = control::session();
    let mut pair = Pair::new(SendOps::SEND);
    let before = fake.calls().len();
    let error = pair
        .a
        .post_batch(|batch| {
            batch.send(1).empty()?;
            Err::<(), _>(Error::refused("mine", ErrorKind::Limit, "not today"))
        })
        .expect_err("the builder's error");
    assert_eq!(error.verb(), "mine");
    assert_eq!(building(&fake, before).last(), Some(&"ibv_wr_abort"));

    let panicked = catch_unwind(AssertUnwindSafe(|| {
        pair.post(|batch| {
            batch.send(2).empty()?;
            panic!("in the middle")
        })
    }));
    assert!(panicked.is_err());
    // A batch of nothing needs no doorbell.
    assert_eq!(pair.a.post_batch(|_| Ok::<_, PostError>(7)), Ok(7));
    assert_eq!(fake.count("ibv_wr_abort"), 3);
    assert_eq!(fake.count("ibv_wr_complete"), 0);
    assert_eq!(fake.sends().len(), 0);

    // The queue is free for both ways of posting, and numbers come in order.
    pair.recv(10);
    pair.recv(11);
    pair.post(|batch| batch.send(3).flags(SIGNALED).empty())
        .expect("a batch");
    let mut classic = SendRequest::send(4, &[]).with_flags(SIGNALED);
    // SAFETY: the request names no memory.
    unsafe { pair.a.queue_pair().post_send(&mut classic) }.expect("a classic post");
    assert_eq!(outcomes(&pair.a_cq), [(3, 0), (4, 0)]);
    drop(pair);
    fake.finish();
}

#[test]
fn what_is_refused_is_refused_before_the_provider_and_leaves_the_batch_as_it_was() {
    let fake = control::session();
    let mut pair = Pair::new(SendOps::SEND | SendOps::ATOMIC_FETCH_AND_ADD | SendOps::ATOMIC_WRITE);
    let memory = Memory::new(64);
    let region = pair.region(&memory);
    let to = target(&region);
    let long = [0; 17];
    let three = [sge(&region, 4); 3];
    let unequal = [sge(&region, 4), sge(&region, 8)];
    let four = [sge(&region, 4)];
    pair.recv(10);
    let before = fake.calls().len();
    pair.post(|batch| {
        let mut refused = Vec::new();
        refused.push(batch.send(1).inline(&long));
        // SAFETY: the region is live until the end of the test, and its memory not borrowed.
        refused.push(unsafe { batch.send(1).sges(&three) });
        // SAFETY: as above.
        refused.push(unsafe { batch.send(1).sges(&unequal) });
        // SAFETY: as above.
        refused.push(unsafe { batch.fetch_and_add(1, to, 1).sges(&four) });
        let crooked = RemoteAddr {
            addr: to.addr + 4,
            ..to
        };
        refused.push(batch.atomic_write(1, crooked, [1; 8]).add());
        refused.push(batch.write(1, to).empty());
        refused.push(batch.local_invalidate(1, RemoteKey(1)).add());
        let kinds: Vec<_> = refused
            .into_iter()
            .map(|result| {
                let error = result.expect_err("refused");
                assert_eq!(error.queued, 0);
                error.kind
            })
            .collect();
        let expected = [
            PostErrorKind::InlineTooLong { given: 17, max: 16 },
            PostErrorKind::TooManySges { given: 3, max: 2 },
            PostErrorKind::UnequalSges,
            PostErrorKind::NotEightBytes {
                addr: to.addr,
                len: 4,
            },
            PostErrorKind::NotEightBytes {
                addr: to.addr + 4,
                len: 8,
            },
            PostErrorKind::NotAskedFor(WrOpcode::RDMA_WRITE),
            PostErrorKind::NotAskedFor(WrOpcode::LOCAL_INV),
        ];
        assert_eq!(kinds, expected);
        // INLINE is set where the data is inline, and nowhere else.
        let flags = SIGNALED | SendFlags::INLINE;
        // SAFETY: as above.
        unsafe { batch.send(2).flags(flags).sges(&[]) }
    })
    .expect("what is left of it");
    let calls = [
        "ibv_wr_start",
        "ibv_wr_send",
        "ibv_wr_set_sge",
        "ibv_wr_complete",
    ];
    assert_eq!(building(&fake, before), calls);
    assert_eq!(fake.sends()[0].flags, SIGNALED.bits());
    assert_eq!(outcomes(&pair.a_cq), [(2, 0)]);
    drop((region, pair));
    fake.finish();
}

#[test]
fn lists_of_any_lengths_reach_hardware() {
    let fake = control::session();
    let ops = SendOps::RDMA_WRITE;
    let mut pair = Pair::with_peer_access("fake1", ops, all_access());
    let (here, there) = (Memory::new(16), Memory::new(16));
    let (own, other) = (pair.region(&here), pair.region(&there));
    let list = [sge(&own, 4), Sge::new(own.addr() as u64 + 4, 8, own.lkey())];
    pair.post(|batch| {
        // SAFETY: the region is live until the end of the test, and its memory not borrowed.
        unsafe { batch.write(1, target(&other)).flags(SIGNALED).sges(&list) }
    })
    .expect("a batch");
    assert_eq!(outcomes(&pair.a_cq), [(1, 0)]);
    drop((own, other, pair));
    fake.finish();
}

#[test]
fn nothing_is_begun_before_rts() {
    let fake = control::session();
    let mut pair = Pair::in_reset("fake0", SendOps::SEND).expect("a pair");
    let error = pair.post(|_| panic!("not called")).expect_err("in RESET");
    assert_eq!(error.kind, PostErrorKind::State(QpState::RESET));
    assert_eq!(fake.count("ibv_wr_start"), 0);
    drop(pair);
    fake.finish();
}

#[test]
fn a_full_queue_takes_none_of_the_batch() {
    let fake = control::session();
    let mut pair = Pair::new(SendOps::SEND);
    // More than the queue has at all.
    let error = pair
        .post(|batch| (0..5).try_for_each(|id| batch.send(id).empty()))
        .expect_err("four fit");
    assert_eq!((error.kind, error.queued), (PostErrorKind::QueueFull, 0));
    assert_eq!(fake.sends().len(), 0);
    // More than is free: the messages wait for receives.
    pair.post(|batch| (0..3).try_for_each(|id| batch.send(id).flags(SIGNALED).empty()))
        .expect("three");
    let error = pair
        .post(|batch| (3..5).try_for_each(|id| batch.send(id).empty()))
        .expect_err("one is free");
    assert_eq!((error.kind, error.queued), (PostErrorKind::QueueFull, 0));
    assert_eq!(fake.sends().len(), 3);
    (0..3).for_each(|id| pair.recv(id));
    assert_eq!(outcomes(&pair.a_cq), [(0, 0), (1, 0), (2, 0)]);
    drop(pair);
    fake.finish();
}

#[test]
fn a_failed_completion_of_a_batch_says_what_may_still_be_carried_out() {
    let fake = control::session();
    // Hardware has no doorbell that needs memory; a program that plays a device may have one.
    for (device, errno, kind, queued) in [
        (
            "fake0",
            libc::ENOMEM,
            PostErrorKind::Provider(libc::ENOMEM),
            2,
        ),
        ("fake1", libc::ENOMEM, PostErrorKind::QueueFull, 0),
        (
            "fake1",
            -libc::EINVAL,
            PostErrorKind::Provider(libc::EINVAL),
            2,
        ),
        ("fake0", libc::ENOSPC, PostErrorKind::QueueFull, 0),
    ] {
        let mut pair = Pair::with_peer_access(device, SendOps::SEND, all_access());
        fake.fail("ibv_wr_complete", 0, errno);
        let error = pair
            .post(|batch| (1..3).try_for_each(|id| batch.send(id).empty()))
            .expect_err("made to fail");
        assert_eq!(
            (error.kind, error.queued),
            (kind, queued),
            "{device} {errno}"
        );
    }

    let mut pair = Pair::new(SendOps::SEND);
    pair.recv(10);
    pair.recv(11);
    fake.lose_doorbell();
    let error = pair
        .post(|batch| batch.send(1).flags(SIGNALED).empty())
        .expect_err("lost");
    assert_eq!(
        (error.kind, error.queued),
        (PostErrorKind::Provider(libc::EINVAL), 1)
    );
    assert_eq!(outcomes(&pair.a_cq), []);
    pair.post(|batch| batch.send(2).flags(SIGNALED).empty())
        .expect("the doorbell rings");
    assert_eq!(outcomes(&pair.a_cq), [(1, 0), (2, 0)]);
    drop(pair);
    fake.finish();
}

#[test]
fn an_operation_that_the_device_does_not_have_refuses_the_queue_pair() {
    let fake = control::session();
    let build = |ops| Pair::in_reset("fake0", ops).map(drop);
    fake.refuse_send_ops(SendOps::FLUSH.bits());
    let error = build(SendOps::SEND | SendOps::FLUSH).expect_err("refused at creation");
    assert_eq!(
        (error.verb(), error.kind(), error.errno()),
        (
            "ibv_create_qp_ex",
            ErrorKind::Unsupported,
            Some(libc::EOPNOTSUPP)
        )
    );
    assert!(
        error
            .hint()
            .is_some_and(|hint| hint.contains("rdma-core 45")),
        "{error:?}"
    );
    build(SendOps::SEND).expect("without it");
    fake.refuse_send_ops(0);

    for (op, slot) in [
        (SendOps::FLUSH, "wr_flush"),
        (SendOps::SEND, "wr_send"),
        (SendOps::ATOMIC_WRITE, "wr_atomic_write"),
        (SendOps::BIND_MW, "wr_bind_mw"),
    ] {
        fake.leave_out_send_ops(op.bits());
        let error = build(known()).expect_err("accepted, and NULL");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains(&format!("no {slot}")), "{error}");
        build(known() - op).expect("without it");
    }
    fake.leave_out_send_ops(0);
    let error = build(SendOps::from_bits_retain(1 << 40)).expect_err("a bit that nobody knows");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    fake.fail("ibv_qp_to_qp_ex", 0, libc::EINVAL);
    let error = build(SendOps::SEND).expect_err("no extended one");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    fake.fail("ibv_create_qp_ex", 0, libc::ENOMEM);
    let error = build(SendOps::SEND).expect_err("made to fail");
    assert_eq!(error.errno(), Some(libc::ENOMEM));
    assert!(
        error.hint().is_some_and(|hint| hint.contains("memory")),
        "{error:?}"
    );
    fake.finish();
}

#[test]
fn native_operations_need_the_devices_capability() {
    let fake = control::session();
    let build = |ops| Pair::in_reset("fake0", ops).map(drop);
    let both = SendOps::FLUSH | SendOps::ATOMIC_WRITE;
    build(both).expect("the device has both");
    fake.set_capabilities(1 << 40);
    let error = build(SendOps::SEND | both).expect_err("no flush");
    assert_eq!(
        (error.kind(), error.errno()),
        (ErrorKind::Unsupported, None)
    );
    assert!(error.to_string().contains("FLUSH_GLOBAL"), "{error}");
    assert!(error.to_string().contains("fake0"), "{error}");
    build(SendOps::ATOMIC_WRITE).expect("that it has");
    for flush in [38, 39] {
        fake.set_capabilities(1 << flush);
        build(SendOps::FLUSH).expect("either kind will do");
        let error = build(SendOps::ATOMIC_WRITE).expect_err("no atomic write");
        assert!(
            error.to_string().contains("ATOMIC_WRITE (bit 40"),
            "{error}"
        );
        assert!(
            error.hint().is_some_and(|hint| hint.contains("6.2")),
            "{error:?}"
        );
    }
    // Refused before creation: such a device makes the queue pair, and fails the request.
    fake.set_capabilities(0);
    let made = fake.count("ibv_create_qp_ex");
    build(both).expect_err("neither");
    assert_eq!(fake.count("ibv_create_qp_ex"), made);
    fake.fail("ibv_query_device_ex", 0, libc::EIO);
    let error = build(both).expect_err("not known");
    assert_eq!(
        (error.verb(), error.errno()),
        ("ibv_query_device_ex", Some(libc::EIO))
    );
    fake.finish();
}

#[test]
fn flushes_and_atomic_writes_are_carried_out_field_for_field() {
    let fake = control::session();
    let mut pair = Pair::new(SendOps::FLUSH | SendOps::ATOMIC_WRITE);
    let memory = Memory::new(64);
    let region = pair.region(&memory);
    let to = target(&region);
    let qp_num = pair.a.queue_pair().number();
    pair.post(|batch| {
        batch
            .atomic_write(1, to, *b"8 bytes!")
            .flags(SIGNALED)
            .add()?;
        let (placement, level) = (FlushPlacement::GLOBAL, FlushLevel::RANGE);
        batch
            .flush(2, to, 64, placement, level)
            .flags(SIGNALED)
            .add()?;
        let placement = FlushPlacement::GLOBAL_AND_PERSISTENT;
        batch
            .flush(3, to, 0, placement, FlushLevel::REGION)
            .flags(SIGNALED)
            .add()
    })
    .expect("a batch");
    let opcodes: Vec<_> = drain(&pair.a_cq)
        .iter()
        .map(|wc| (wc.wr_id(), wc.result().expect("a success").opcode()))
        .collect();
    assert_eq!(
        opcodes,
        [
            (1, WcOpcode::ATOMIC_WRITE),
            (2, WcOpcode::FLUSH),
            (3, WcOpcode::FLUSH)
        ]
    );
    let flush = |wr_id, len, placement, level| PostedFlush {
        qp_num,
        wr_id,
        remote_addr: to.addr,
        rkey: to.rkey.0,
        len,
        placement,
        level,
    };
    assert_eq!(fake.flushes(), [flush(2, 64, 1, 0), flush(3, 0, 3, 1)]);
    drop(region);
    assert_eq!(&memory.get()[..8], b"8 bytes!");
    drop(pair);
    fake.finish();
}

#[test]
fn a_flush_ends_as_the_targets_rights_say() {
    let fake = control::session();
    let global = AccessFlags::FLUSH_GLOBAL;
    let usual = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
    for (of_qp, of_region, placement, expected) in [
        (global, global, FlushPlacement::GLOBAL, WcStatus::SUCCESS),
        (
            global,
            usual,
            FlushPlacement::GLOBAL,
            WcStatus::REM_ACCESS_ERR,
        ),
        (
            all_access(),
            global,
            FlushPlacement::PERSISTENT,
            WcStatus::REM_ACCESS_ERR,
        ),
        (
            usual,
            all_access(),
            FlushPlacement::GLOBAL,
            WcStatus::REM_INV_REQ_ERR,
        ),
        (
            all_access(),
            all_access(),
            FlushPlacement::from_raw(0),
            WcStatus::REM_INV_REQ_ERR,
        ),
    ] {
        let mut pair = Pair::with_peer_access("fake0", SendOps::FLUSH, of_qp | usual);
        let memory = Memory::new(64);
        let region = memory
            .register(&pair.pd, of_region | usual)
            .expect("a region");
        let to = target(&region);
        pair.post(|batch| {
            batch
                .flush(1, to, 64, placement, FlushLevel::RANGE)
                .flags(SIGNALED)
                .add()
        })
        .expect("a batch");
        assert_eq!(
            outcomes(&pair.a_cq),
            [(1, expected.raw())],
            "{of_qp:?} {of_region:?}"
        );
    }
    fake.finish();
}

#[test]
fn an_operation_that_the_transport_does_not_have_is_refused_by_name() {
    let fake = control::session();
    let ops = SendOps::SEND_WITH_IMM | SendOps::SEND;
    let mut pair = Pair::with_peer_access("fake1", ops, all_access());
    pair.post(|batch| {
        let error = batch
            .send_with_imm(1, 1)
            .empty()
            .expect_err("iWARP has none");
        assert_eq!(
            error.kind,
            PostErrorKind::Unsupported(WrOpcode::SEND_WITH_IMM)
        );
        Ok(())
    })
    .expect("nothing posted");
    drop(pair);
    fake.finish();
}

#[test]
fn the_handle_can_be_closed_and_given_back() {
    let fake = control::session();
    let pair = Pair::new(SendOps::SEND);
    assert_eq!(pair.a.ops(), SendOps::SEND);
    assert!(format!("{:?}", pair.a).contains("SEND"));
    let Pair {
        a,
        b,
        a_cq,
        b_cq,
        pd,
    } = pair;
    fake.fail_always("ibv_destroy_qp", libc::EINVAL);
    let failed = a.close().expect_err("made to fail");
    fake.heal();
    let mut a = failed.handle;
    a.post_batch(|batch| batch.send(1).inline(b"x"))
        .expect("as usable as before");
    a.close().expect("closed");
    drop((b, a_cq, b_cq, pd));
    fake.finish();
}
