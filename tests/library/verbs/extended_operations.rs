//! Extended queue pairs: each operation, and what is refused.

use harness::{Need, Outcome, Test, ensure, ensure_eq, phase, test};
use rpma::cm::verbs::{
    AccessFlags, Batch, CompletionQueue, DeviceCapFlags, Error, ErrorKind, ExtendedCompletion,
    InlineRequest, MemoryWindow, PollError, PostError, PostErrorKind, ProtectionDomain, QpState,
    QpType, QueuePair, RemoteAddr, RemoteKey, SendFlags, SendOps, WcFlags, WcOpcode, WcStatus,
    WindowBind, WindowType,
};

use super::by_hand::{QKEY, handle};
use super::extended::{Extended, USUAL, at, classic, pair, pair_of};
use super::objects::open;
use crate::raw::Buffer;

pub(crate) fn tests() -> Vec<Test> {
    let needs = &[Need::Device];
    let rxe = &[Need::Device, Need::SoftRoce];
    vec![
        test(
            "a_batch_carries_messages_writes_and_reads_with_their_bytes",
            needs,
            messages,
        ),
        test("a_batch_carries_atomics", needs, atomics),
        test(
            "a_batch_binds_windows_and_invalidates_their_keys_from_either_side",
            needs,
            windows,
        ),
        test(
            "a_batch_sends_datagrams_to_the_address_that_each_names",
            needs,
            datagrams,
        ),
        test(
            "a_batch_of_a_uc_queue_pair_sends_and_writes",
            needs,
            unreliable,
        ),
        test(
            "a_batch_is_refused_before_rts_and_a_request_beyond_the_limits_alone",
            needs,
            refused,
        ),
        test(
            "a_batch_that_does_not_fit_posts_nothing_of_itself",
            needs,
            full,
        ),
        test(
            "batches_that_are_dropped_leave_no_trace_in_the_queue",
            needs,
            aborted,
        ),
        test(
            "pieces_of_equal_length_arrive_and_others_are_refused_on_softroce",
            rxe,
            lists,
        ),
        test(
            "a_fork_while_a_batch_is_built_leaves_it_to_the_parent",
            needs,
            forked,
        ),
        test(
            "flush_and_atomic_write_are_offered_as_the_capabilities_say",
            needs,
            native_as_capabilities_say,
        ),
    ]
}

const SIGNALED: SendFlags = SendFlags::SIGNALED;

/// The one way in which these tests post memory: of buffers that live as long as their ends.
macro_rules! of_buffer {
    ($request:expr, $sges:expr) => {{
        // SAFETY: a buffer of the test is registered memory to which no reference is formed, and it
        // lives until after the completion.
        unsafe { $request.sges($sges) }
    }};
}

fn messages() -> Outcome {
    let (mut one, two) = pair(classic(), USUAL)?;
    let target = Buffer::with_access(&two.pd, 4096, USUAL)?;
    one.buffer.store(0, b"from a region");
    for id in [10, 11, 12, 13] {
        two.recv(id)?;
    }
    let piece = [one.buffer.sge(0, 13)];
    let back = [one.buffer.sge(100, 13)];
    one.qp.post_batch(|batch| -> Result<(), PostError> {
        of_buffer!(batch.send(1).flags(SIGNALED), &piece)?;
        batch.send_with_imm(2, 0x0102_0304).inline(b"inline")?;
        batch.send(3).empty()?;
        of_buffer!(batch.write(4, at(&target, 0)).flags(SIGNALED), &piece)?;
        batch.write(5, at(&target, 64)).inline(b"inline")?;
        batch.write(6, at(&target, 0)).empty()?;
        batch
            .write_with_imm(7, at(&target, 128), 9)
            .inline(&[7; 64])?;
        of_buffer!(batch.read(8, at(&target, 0)).flags(SIGNALED), &back)
    })?;
    let opcode =
        |completion: ExtendedCompletion| completion.result().map(|success| success.opcode());
    ensure_eq!(opcode(one.done(1)?)?, WcOpcode::SEND, "sent");
    ensure_eq!(opcode(one.done(4)?)?, WcOpcode::RDMA_WRITE, "written");
    ensure_eq!(opcode(one.done(8)?)?, WcOpcode::RDMA_READ, "read");
    for (id, len, imm, opcode) in [
        (10, 13, None, WcOpcode::RECV),
        (11, 6, Some(0x0102_0304), WcOpcode::RECV),
        (12, 0, None, WcOpcode::RECV),
        (13, 64, Some(9), WcOpcode::RECV_RDMA_WITH_IMM),
    ] {
        let completion = two.done(id)?;
        let success = completion.result()?;
        ensure_eq!(success.byte_len(), Some(len), "length of {id}");
        ensure_eq!(success.imm(), imm, "immediate of {id}");
        ensure_eq!(success.opcode(), opcode, "opcode of {id}");
        ensure_eq!(completion.qp_num(), Some(two.number()), "queue pair");
    }
    // Each receive was into the same place, and the empty message changed nothing.
    ensure_eq!(
        two.buffer.load(4096, 13),
        b"inline region".to_vec(),
        "messages"
    );
    ensure_eq!(target.load(0, 13), b"from a region".to_vec(), "written");
    ensure_eq!(target.load(64, 6), b"inline".to_vec(), "written inline");
    ensure_eq!(target.load(128, 64), vec![7; 64], "as long as it may be");
    ensure_eq!(one.buffer.load(100, 13), b"from a region".to_vec(), "read");
    // The classic way goes on after it.
    two.recv(14)?;
    let request = InlineRequest::send(9, b"classic").with_flags(SIGNALED);
    one.qp.queue_pair().post_inline(&request)?;
    one.done(9)?;
    two.done(14)?;
    ensure_eq!(two.buffer.load(4096, 7), b"classic".to_vec(), "classic");
    Ok(())
}

fn number(buffer: &Buffer, offset: usize) -> Result<u64, harness::Failed> {
    let bytes: [u8; 8] = buffer.load(offset, 8).try_into().map_err(|_| "8 bytes")?;
    Ok(u64::from_ne_bytes(bytes))
}

fn atomics() -> Outcome {
    let (mut one, two) = pair(classic(), USUAL)?;
    let target = Buffer::with_access(&two.pd, 4096, USUAL)?;
    target.store(8, &41_u64.to_ne_bytes());
    let [first, second, third] = [0, 8, 16].map(|offset| [one.buffer.sge(offset, 8)]);
    one.qp.post_batch(|batch| -> Result<(), PostError> {
        of_buffer!(batch.fetch_and_add(1, at(&target, 8), 1), &first)?;
        of_buffer!(batch.compare_and_swap(2, at(&target, 8), 7, 1), &second)?;
        let swap = batch.compare_and_swap(3, at(&target, 8), 42, u64::MAX);
        of_buffer!(swap.flags(SIGNALED), &third)
    })?;
    let completion = one.done(3)?;
    ensure_eq!(completion.result()?.opcode(), WcOpcode::COMP_SWAP, "opcode");
    for (offset, before) in [(0, 41), (8, 42), (16, 42)] {
        ensure_eq!(number(&one.buffer, offset)?, before, "before, at {offset}");
    }
    ensure_eq!(number(&target, 8)?, u64::MAX, "after");
    Ok(())
}

fn windows() -> Outcome {
    let windowed = AccessFlags::LOCAL_WRITE | AccessFlags::MW_BIND;
    let (mut one, mut two) = pair(classic(), USUAL)?;
    let target = Buffer::with_access(&two.pd, 4096, windowed)?;
    let window = MemoryWindow::new(&two.pd, WindowType::TYPE_2)?;
    let bind = WindowBind {
        wr_id: 50,
        region: target.region(),
        offset: 128,
        len: 64,
        access: AccessFlags::REMOTE_WRITE,
        flags: SIGNALED,
    };
    // By a message of the peer, and by a request of this side, which can be in one batch.
    for by_peer in [true, false] {
        phase(format!("invalidated by the peer: {by_peer}"));
        let key = two.qp.post_batch(|batch| batch.bind(&window, &bind))?;
        two.done(50)?;
        ensure_eq!(key, window.rkey(), "the key");
        let remote = RemoteAddr {
            addr: target.region().iova() + 128,
            rkey: key,
        };
        one.qp
            .post_batch(|batch| batch.write(1, remote).flags(SIGNALED).inline(b"window"))?;
        one.done(1)?;
        ensure_eq!(target.load(128, 6), b"window".to_vec(), "written");
        if by_peer {
            two.recv(10)?;
            one.qp.post_batch(|batch| {
                batch
                    .send_with_invalidate(2, key)
                    .flags(SIGNALED)
                    .inline(b"")
            })?;
            one.done(2)?;
            two.done(10)?;
        } else {
            two.qp
                .post_batch(|batch| batch.local_invalidate(3, key).flags(SIGNALED).add())?;
            two.done(3)?;
        }
        if by_peer {
            continue;
        }
        one.qp
            .post_batch(|batch| batch.write(4, remote).flags(SIGNALED).inline(b"closed"))?;
        ensure_eq!(
            one.next()?.status(),
            WcStatus::REM_ACCESS_ERR,
            "invalidated"
        );
        ensure_eq!(target.load(128, 6), b"window".to_vec(), "unchanged");
    }
    // A window of type 1 is not for batches, and a batch that fails takes the window all the same.
    let (_one, mut two) = pair(classic(), USUAL)?;
    let target = Buffer::with_access(&two.pd, 4096, windowed)?;
    let bind = WindowBind {
        region: target.region(),
        ..bind
    };
    let first = MemoryWindow::new(&two.pd, WindowType::TYPE_1)?;
    let error = two.qp.post_batch(|batch| batch.bind(&first, &bind)).err();
    let error = error.ok_or("bound")?;
    ensure_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    let second = MemoryWindow::new(&two.pd, WindowType::TYPE_2)?;
    let refused = two.qp.post_batch(|batch| {
        batch.bind(&second, &bind)?;
        Err::<(), _>(Error::refused("test", ErrorKind::Limit, "dropped"))
    });
    ensure!(refused.is_err(), "posted");
    let Extended { qp, .. } = two;
    qp.close()?;
    ensure!(second.is_freed(), "it belonged to the queue pair");
    ensure!(!first.is_freed(), "this did not");
    first.close()?;
    Ok(())
}

fn datagrams() -> Outcome {
    let ops = SendOps::SEND | SendOps::SEND_WITH_IMM;
    let (mut one, two) = pair_of(QpType::UD, ops, AccessFlags::empty())?;
    let three = Extended::new(QpType::UD, ops, AccessFlags::empty(), |qp| qp)?;
    three.connect(&one)?;
    let address = handle(&one.pd)?;
    one.buffer.store(0, b"datagram");
    two.recv(10)?;
    three.recv(11)?;
    let piece = [one.buffer.sge(0, 8)];
    let (second, third) = (two.number(), three.number());
    one.qp.post_batch(|batch| -> Result<(), PostError> {
        let error = batch.send(1).inline(b"lost").err();
        assert_eq!(
            error.map(|error| error.kind),
            Some(PostErrorKind::NoAddress)
        );
        of_buffer!(
            batch.send(2).flags(SIGNALED).to(&address, second, QKEY),
            &piece
        )?;
        let imm = batch.send_with_imm(3, 77).flags(SIGNALED);
        imm.to(&address, third, QKEY).inline(b"inline")
    })?;
    one.done(2)?;
    one.done(3)?;
    for (end, id, len, imm, bytes) in [
        (&two, 10, 48, None, &b"datagram"[..]),
        (&three, 11, 46, Some(77), &b"inline"[..]),
    ] {
        let completion = end.done(id)?;
        let success = completion.result()?;
        ensure_eq!(success.byte_len(), Some(len), "with 40 bytes of header");
        ensure_eq!(success.imm(), imm, "immediate of {id}");
        ensure_eq!(success.src_qp(), Some(one.number()), "sender");
        ensure!(
            success.flags().contains(WcFlags::GRH),
            "{:?}",
            success.flags()
        );
        ensure_eq!(
            end.buffer.load(4096 + 40, bytes.len()),
            bytes.to_vec(),
            "bytes"
        );
    }
    // The other way round: an address where none belongs.
    let (mut connected, _peer) = pair(ops, USUAL)?;
    let address = handle(&connected.pd)?;
    connected.qp.post_batch(|batch| -> Result<(), PostError> {
        let error = batch.send(1).to(&address, 1, QKEY).inline(b"").err();
        assert_eq!(
            error.map(|error| error.kind),
            Some(PostErrorKind::UnexpectedAddress)
        );
        Ok(())
    })?;
    Ok(())
}

fn unreliable() -> Outcome {
    let ops = SendOps::SEND | SendOps::RDMA_WRITE;
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
    let (mut one, two) = pair_of(QpType::UC, ops, access)?;
    let target = Buffer::with_access(&two.pd, 4096, access)?;
    two.recv(10)?;
    one.qp.post_batch(|batch| -> Result<(), PostError> {
        batch.write(1, at(&target, 0)).inline(b"written")?;
        batch.send(2).flags(SIGNALED).inline(b"sent")
    })?;
    one.done(2)?;
    two.done(10)?;
    ensure_eq!(target.load(0, 7), b"written".to_vec(), "written");
    ensure_eq!(two.buffer.load(4096, 4), b"sent".to_vec(), "sent");
    Ok(())
}

/// The kind of a request that must be refused.
fn kind(result: Result<(), PostError>) -> Option<PostErrorKind> {
    result.err().map(|error| error.kind)
}

fn refused() -> Outcome {
    let mut early = Extended::new(QpType::RC, SendOps::SEND, USUAL, |qp| qp)?;
    let error = early.qp.post_batch(|batch| batch.send(1).empty()).err();
    let error = error.ok_or("posted in INIT")?;
    ensure_eq!(error.kind, PostErrorKind::State(QpState::INIT), "{error}");

    let (mut one, two) = pair(SendOps::SEND | SendOps::ATOMIC_FETCH_AND_ADD, USUAL)?;
    let most = one.qp.queue_pair().capabilities().max_inline_data;
    let sges = one.qp.queue_pair().capabilities().max_send_sge;
    let long = vec![1; most as usize + 1];
    let many = vec![one.buffer.sge(0, 1); sges as usize + 1];
    let four = [one.buffer.sge(0, 4)];
    let remote = at(&two.buffer, 0);
    two.recv(10)?;
    let kinds = one
        .qp
        .post_batch(|batch: &mut Batch<'_>| -> Result<_, PostError> {
            let kinds = [
                kind(batch.send(1).inline(&long)),
                kind(of_buffer!(batch.send(1), &many)),
                kind(of_buffer!(batch.fetch_and_add(1, remote, 1), &four)),
                kind(batch.write(1, remote).empty()),
                kind(batch.local_invalidate(1, RemoteKey(1)).add()),
            ];
            batch.send(2).flags(SIGNALED).inline(&long[1..])?;
            Ok(kinds)
        })?;
    let given = u64::from(most) + 1;
    ensure_eq!(
        kinds[0],
        Some(PostErrorKind::InlineTooLong { given, max: most }),
        "inline"
    );
    let given = sges + 1;
    ensure_eq!(
        kinds[1],
        Some(PostErrorKind::TooManySges { given, max: sges }),
        "SGEs"
    );
    let addr = remote.addr;
    ensure_eq!(
        kinds[2],
        Some(PostErrorKind::NotEightBytes { addr, len: 4 }),
        "atomic"
    );
    for other in &kinds[3..] {
        ensure!(
            matches!(other, Some(PostErrorKind::NotAskedFor(_))),
            "{other:?}"
        );
    }
    one.done(2)?;
    ensure_eq!(
        two.done(10)?.result()?.byte_len(),
        Some(most),
        "what was left"
    );

    // In ERR a batch is taken and flushed.
    one.qp.queue_pair().set_error()?;
    one.qp.post_batch(|batch| batch.send(3).empty())?;
    ensure_eq!(one.next()?.status(), WcStatus::WR_FLUSH_ERR, "flushed");
    Ok(())
}

fn full() -> Outcome {
    let depth = 7;
    let one = Extended::new(QpType::RC, SendOps::SEND, USUAL, |qp| qp.max_send_wr(depth))?;
    let two = Extended::new(QpType::RC, SendOps::SEND, USUAL, |qp| qp)?;
    one.connect(&two)?;
    two.connect(&one)?;
    let mut one = one;
    let depth = one.qp.queue_pair().capabilities().max_send_wr;
    let error = one
        .qp
        .post_batch(|batch| (0..=depth).try_for_each(|_| batch.send(1).empty()))
        .err()
        .ok_or("more than the queue has")?;
    ensure_eq!(
        (error.kind, error.queued),
        (PostErrorKind::QueueFull, 0),
        "{error}"
    );

    // Without a receive at the peer all stay in the queue.
    one.qp
        .post_batch(|batch| (0..depth).try_for_each(|_| batch.send(2).flags(SIGNALED).empty()))?;
    let error = one.qp.post_batch(|batch| batch.send(3).empty()).err();
    let error = error.ok_or("one more than fit")?;
    ensure_eq!(
        (error.kind, error.queued),
        (PostErrorKind::QueueFull, 0),
        "{error}"
    );
    for id in 0..u64::from(depth) {
        two.recv(id)?;
    }
    for id in 0..u64::from(depth) {
        one.done(2)?;
        two.done(id)?;
    }
    two.recv(100)?;
    one.qp
        .post_batch(|batch| batch.send(4).flags(SIGNALED).empty())?;
    one.done(4)?;
    two.done(100)?;
    Ok(())
}

fn aborted() -> Outcome {
    let (mut one, two) = pair(SendOps::SEND, USUAL)?;
    // More than the queue has in all, so that every place was written to.
    for round in 0..50 {
        let dropped: Result<(), PostError> = one.qp.post_batch(|batch| {
            batch.send(1).inline(b"dropped")?;
            batch.send(1).inline(b"dropped")?;
            Err(PostError {
                kind: PostErrorKind::QueueFull,
                queued: 0,
            })
        });
        ensure!(dropped.is_err(), "posted");
        two.recv(round)?;
        one.qp
            .post_batch(|batch| batch.send(2).flags(SIGNALED).inline(&round.to_le_bytes()))?;
        one.done(2)?;
        ensure_eq!(two.done(round)?.result()?.byte_len(), Some(8), "length");
        ensure_eq!(
            two.buffer.load(4096, 8),
            round.to_le_bytes().to_vec(),
            "bytes"
        );
    }
    Ok(())
}

fn forked() -> Outcome {
    let (mut one, two) = pair(SendOps::SEND, USUAL)?;
    two.recv(10)?;
    let child = one.qp.post_batch(|batch| -> Result<i32, PostError> {
        batch.send(1).flags(SIGNALED).inline(b"of the parent")?;
        // SAFETY: the child runs no code that takes locks of other threads, and leaves by _exit.
        Ok(unsafe { libc::fork() })
    });
    let child = match child {
        Ok(child) => child,
        // Only the child comes here: the batch is not its own.
        Err(error) if error.kind == PostErrorKind::Forked => {
            let again = one.qp.post_batch(|batch| batch.send(2).empty());
            let polled = one
                .cq
                .poll(&mut [std::mem::MaybeUninit::uninit()])
                .map(|_| ());
            let forked = again.is_err_and(|error| error.kind == PostErrorKind::Forked)
                && polled == Err(PollError::Forked);
            drop((one, two));
            // SAFETY: ends the child without running anything else.
            unsafe { libc::_exit(if forked { 0 } else { 1 }) };
        }
        Err(error) => return Err(error.into()),
    };
    ensure!(child > 0, "fork: {}", std::io::Error::last_os_error());
    let mut status = 0;
    // SAFETY: our own child, and a valid place for its status.
    let waited = unsafe { libc::waitpid(child, &mut status, 0) };
    ensure_eq!(waited, child, "waitpid");
    ensure_eq!(status, 0, "the child did not answer Forked");
    one.done(1)?;
    two.done(10)?;
    ensure_eq!(two.buffer.load(4096, 13), b"of the parent".to_vec(), "once");
    two.recv(11)?;
    one.qp
        .post_batch(|batch| batch.send(3).flags(SIGNALED).empty())?;
    one.done(3)?;
    two.done(11)?;
    Ok(())
}

fn lists() -> Outcome {
    let (mut one, two) = pair(SendOps::SEND, USUAL)?;
    one.buffer.store(0, b"first");
    one.buffer.store(100, b"other");
    two.recv(10)?;
    let equal = [one.buffer.sge(0, 5), one.buffer.sge(100, 5)];
    let unequal = [one.buffer.sge(0, 5), one.buffer.sge(100, 4)];
    let refused = one.qp.post_batch(|batch| -> Result<_, PostError> {
        let refused = kind(of_buffer!(batch.send(1), &unequal));
        of_buffer!(batch.send(2).flags(SIGNALED), &equal)?;
        Ok(refused)
    })?;
    ensure_eq!(refused, Some(PostErrorKind::UnequalSges), "unequal");
    one.done(2)?;
    ensure_eq!(two.done(10)?.result()?.byte_len(), Some(10), "length");
    ensure_eq!(two.buffer.load(4096, 10), b"firstother".to_vec(), "both");
    Ok(())
}

fn native_as_capabilities_say() -> Outcome {
    let context = open()?;
    let has = context.query_extended()?.capabilities();
    let pd = ProtectionDomain::new(&context)?;
    let cq = CompletionQueue::builder(&context, 64).build()?;
    for (op, any_of, name) in [
        (
            SendOps::FLUSH,
            DeviceCapFlags::FLUSH_GLOBAL | DeviceCapFlags::FLUSH_PERSISTENT,
            "FLUSH_GLOBAL",
        ),
        (
            SendOps::ATOMIC_WRITE,
            DeviceCapFlags::ATOMIC_WRITE,
            "ATOMIC_WRITE",
        ),
    ] {
        match QueuePair::builder(&pd, QpType::RC, &cq, &cq).build_extended(SendOps::SEND | op) {
            Ok(_) => ensure!(has.intersects(any_of), "made without {name}"),
            Err(error) => {
                ensure_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
                if has.intersects(any_of) {
                    // The device has it, and the library does not know it.
                    ensure_eq!(op, SendOps::FLUSH, "{error}");
                    ensure!(
                        error
                            .hint()
                            .is_some_and(|hint| hint.contains("rdma-core 45")),
                        "{error:?}"
                    );
                } else {
                    ensure!(error.to_string().contains(name), "{error}");
                    ensure!(error.to_string().contains(context.name()), "{error}");
                }
            }
        }
    }
    QueuePair::builder(&pd, QpType::RC, &cq, &cq).build_extended(SendOps::SEND)?;
    Ok(())
}
