//! How requests fail: which status each fault gives at either side, and what it leaves behind.

use harness::{
    Failed, Need, Outcome, Test, WAIT, ensure, ensure_eq, hardware_counter, phase, test,
};
use rpma::cm::verbs::{
    AccessFlags, Deadline, ErrorKind, ProtectionDomain, QpState, QpType, RecvRequest, RemoteAddr,
    RemoteKey, SendFlags, SendRequest, WcOpcode, WcStatus, WorkCompletion,
};

use super::by_hand::{End, pair, pair_with};
use super::objects::open;
use crate::raw::{Buffer, poll, try_poll};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test(
            "a_flushed_receive_has_its_number_and_its_status_and_nothing_else",
            &[Need::Device],
            flushed_receives,
        ),
        test(
            "the_first_failure_is_told_first_and_what_follows_it_is_flushed",
            &[Need::Device],
            first_failure_first,
        ),
        test(
            "rights_that_contradict_each_other_are_not_registered",
            &[Need::Device],
            contradictory_rights,
        ),
        test(
            "memory_without_local_write_takes_no_message",
            &[Need::Device],
            receive_without_local_write,
        ),
        test(
            "a_write_or_read_past_what_the_peer_gave_ends_its_own_connection_only",
            &[Need::Device],
            outside_the_peers_memory,
        ),
        test(
            "a_message_longer_than_its_receive_ends_both_sides",
            &[Need::Device],
            longer_than_its_receive,
        ),
        test(
            "a_receiver_that_is_never_ready_is_given_up_or_waited_for_as_asked",
            &[Need::Device],
            receiver_not_ready,
        ),
        test(
            "a_write_with_immediate_takes_a_receive_and_reports_the_bytes_written",
            &[Need::Device],
            write_with_immediate,
        ),
        test(
            "an_atomic_that_the_peer_does_not_allow_changes_nothing",
            &[Need::Device],
            atomics_not_allowed,
        ),
        test(
            "a_read_of_a_peer_that_takes_none_is_refused_by_it",
            &[Need::Device],
            reads_not_taken,
        ),
    ]
}

/// Both sides' rights and this side's.
const OPEN: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_ATOMIC);

fn at(buffer: &Buffer, offset: u64) -> RemoteAddr {
    RemoteAddr {
        addr: buffer.region().iova().wrapping_add(offset),
        rkey: buffer.region().rkey(),
    }
}

/// How a request ends that is posted alone.
fn outcome(end: &End, request: SendRequest<'_>) -> Result<WcStatus, Failed> {
    end.post(request)?;
    Ok(poll(&end.send_cq)?.status())
}

/// What comes after a failure is flushed, and the queue pair says so.
fn is_over(end: &End) -> Outcome {
    ensure_eq!(end.qp.query()?.0.state(), Some(QpState::ERR), "state");
    let status = outcome(end, SendRequest::send(77, &[]))?;
    ensure_eq!(status, WcStatus::WR_FLUSH_ERR, "a request after the end");
    Ok(())
}

/// All completions until there are `count`.
fn polled(end: &End, count: usize) -> Result<Vec<WorkCompletion>, Failed> {
    (0..count).map(|_| poll(&end.send_cq)).collect()
}

fn flushed_receives() -> Outcome {
    let (one, _two) = pair(QpType::RC)?;
    for wr_id in 10..14 {
        one.recv(wr_id)?;
    }
    one.qp.set_error()?;
    for wr_id in 10..14 {
        let completion = poll(&one.recv_cq)?;
        ensure_eq!(completion.wr_id(), wr_id, "number");
        ensure_eq!(completion.status(), WcStatus::WR_FLUSH_ERR, "status");
        ensure_eq!(completion.qp_num(), one.qp.number(), "queue pair");
        let error = completion.result().err().ok_or("a success")?;
        ensure!(error.is_flushed(), "{error}");
        // SoftRoCE leaves the opcode at 0 here, which would read as a send.
        let text = format!("{completion:?}");
        ensure!(!text.contains("opcode"), "{text}");
    }
    ensure!(try_poll(&one.recv_cq)?.is_none(), "one more");
    Ok(())
}

fn first_failure_first() -> Outcome {
    let (one, two) = pair(QpType::RC)?;
    let target = Buffer::with_access(&two.pd, 4096, OPEN)?;
    one.buffer.store(0, &[7; 64]);
    let sges = [one.buffer.sge(0, 64)];
    let nowhere = RemoteAddr {
        rkey: RemoteKey(target.region().rkey().0 ^ 0x00ff_ff00),
        ..at(&target, 0)
    };
    let mut requests: Vec<_> = (0..16)
        .map(|n| {
            let to = if n == 0 { nowhere } else { at(&target, 0) };
            SendRequest::write(n, &sges, to).with_flags(SendFlags::SIGNALED)
        })
        .collect();
    // SAFETY: the buffer is registered memory to which no reference is formed.
    unsafe { one.qp.post_send_list(&mut requests) }?;
    for (n, completion) in (0..).zip(polled(&one, 16)?) {
        let expected = if n == 0 {
            WcStatus::REM_ACCESS_ERR
        } else {
            WcStatus::WR_FLUSH_ERR
        };
        ensure_eq!(completion.wr_id(), n, "order");
        ensure_eq!(completion.status(), expected, "request {n}");
    }
    ensure_eq!(target.load(0, 64), vec![0; 64], "what follows did nothing");
    Ok(())
}

fn contradictory_rights() -> Outcome {
    let pd = ProtectionDomain::new(&open()?)?;
    for access in [
        AccessFlags::REMOTE_WRITE,
        AccessFlags::REMOTE_ATOMIC,
        AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ,
        AccessFlags::REMOTE_ATOMIC | AccessFlags::MW_BIND,
    ] {
        let failed = Buffer::with_access(&pd, 4096, access).err();
        let failed = failed.ok_or(format!("{access:?} was registered"))?;
        let text = failed.message().unwrap_or_default();
        ensure!(
            text.contains("errno 22") && text.contains("REMOTE"),
            "{text}"
        );
    }
    Ok(())
}

fn receive_without_local_write() -> Outcome {
    let (one, two) = pair(QpType::RC)?;
    let read_only = Buffer::with_access(&two.pd, 4096, AccessFlags::empty())?;
    let sges = [read_only.sge(0, 64)];
    // SAFETY: the buffer is registered memory to which no reference is formed.
    unsafe { two.qp.post_recv(&mut RecvRequest::new(5, &sges)) }?;
    one.buffer.store(0, &[9; 64]);
    let status = outcome(&one, SendRequest::send(6, &[one.buffer.sge(0, 64)]))?;
    ensure_eq!(status, WcStatus::REM_OP_ERR, "the sender");
    let received = poll(&two.recv_cq)?;
    ensure_eq!(received.wr_id(), 5, "the receive");
    // SoftRoCE says the first, others the second.
    ensure!(
        [WcStatus::LOC_QP_OP_ERR, WcStatus::LOC_PROT_ERR].contains(&received.status()),
        "the receiver: {received:?}"
    );
    ensure_eq!(read_only.load(0, 64), vec![0; 64], "untouched");
    is_over(&one)?;
    is_over(&two)
}

fn outside_the_peers_memory() -> Outcome {
    const LEN: usize = 4096;
    type Change = fn(RemoteAddr) -> RemoteAddr;
    let unchanged: Change = |at| at;
    let no_read = OPEN.difference(AccessFlags::REMOTE_READ);
    let no_write = OPEN.difference(AccessFlags::REMOTE_WRITE);
    // What is wrong, the rights, whether the region is gone, the length, the place.
    let cases: [(&str, AccessFlags, bool, usize, Change); 7] = [
        ("one byte more", OPEN, false, LEN + 1, unchanged),
        ("8 bytes further on", OPEN, false, LEN, |at| RemoteAddr {
            addr: at.addr + 8,
            ..at
        }),
        ("1 byte before", OPEN, false, 8, |at| RemoteAddr {
            addr: at.addr - 1,
            ..at
        }),
        ("at the end of the address space", OPEN, false, 8, |at| {
            RemoteAddr {
                addr: u64::MAX - 3,
                ..at
            }
        }),
        ("another key", OPEN, false, LEN, |at| RemoteAddr {
            rkey: RemoteKey(at.rkey.0 ^ 0x00ff_ff00),
            ..at
        }),
        (
            "the key of a region that is gone",
            OPEN,
            true,
            LEN,
            unchanged,
        ),
        ("no right", no_read, false, LEN, unchanged),
    ];
    for (what, access, gone, len, change) in cases {
        for read in [false, true] {
            phase(format!("{what}, read {read}"));
            let access = match (access == no_read, read) {
                (true, false) => no_write,
                _ => access,
            };
            let (one, two) = pair(QpType::RC)?;
            let (others, _their_peer) = pair(QpType::RC)?;
            let mut target = Buffer::with_access(&two.pd, LEN, access)?;
            target.store(0, &[1; LEN]);
            one.buffer.store(0, &[2; 8192]);
            let place = change(at(&target, 0));
            if gone {
                target.deregister()?;
            }
            let sges = [one.buffer.sge(0, len)];
            let request = if read {
                SendRequest::read(3, &sges, place)
            } else {
                SendRequest::write(3, &sges, place)
            };
            ensure_eq!(
                outcome(&one, request)?,
                WcStatus::REM_ACCESS_ERR,
                "{what}, read {read}"
            );
            is_over(&one)?;
            ensure_eq!(target.load(0, LEN), vec![1; LEN], "{what}: the target");
            ensure_eq!(one.buffer.load(0, 8192), vec![2; 8192], "{what}: here");
            ensure_eq!(
                others.qp.query()?.0.state(),
                Some(QpState::RTS),
                "{what}: others"
            );
        }
    }
    Ok(())
}

fn longer_than_its_receive() -> Outcome {
    for len in [65, 64] {
        let (one, two) = pair(QpType::RC)?;
        let sges = [two.buffer.sge(0, 64)];
        // SAFETY: the buffer is registered memory to which no reference is formed.
        unsafe { two.qp.post_recv(&mut RecvRequest::new(1, &sges)) }?;
        one.buffer.store(0, &[3; 65]);
        let status = outcome(&one, SendRequest::send(2, &[one.buffer.sge(0, len)]))?;
        let received = poll(&two.recv_cq)?;
        ensure_eq!(two.buffer.load(64, 1), [0], "behind the receive");
        if len == 64 {
            ensure_eq!(status, WcStatus::SUCCESS, "just fits");
            ensure_eq!(received.result()?.byte_len(), 64, "just fits");
            continue;
        }
        // The specification says the first, SoftRoCE of kernel 6.1 the second.
        let told = [
            (WcStatus::REM_INV_REQ_ERR, WcStatus::LOC_LEN_ERR),
            (WcStatus::REM_OP_ERR, WcStatus::LOC_QP_OP_ERR),
        ];
        let both = (status, received.status());
        ensure!(told.contains(&both), "sender and receiver: {both:?}");
        is_over(&one)?;
        is_over(&two)?;
    }
    Ok(())
}

/// Connected ends that try a receiver that is not ready so often. For an answer at all they wait for
/// ever: on a busy machine it may come too late.
fn impatient(rnr_retry: u8) -> Result<(End, End), Failed> {
    pair_with(QpType::RC, |_, rts| {
        (rts.rnr_retry, rts.retry_count) = (rnr_retry, 7);
    })
}

fn receiver_not_ready() -> Outcome {
    for rnr_retry in [0, 3] {
        phase(format!("rnr_retry {rnr_retry}"));
        let before = hardware_counter("send_rnr_err")?;
        let (one, _two) = impatient(rnr_retry)?;
        // Unsignaled: on failure and when flushed they complete all the same.
        let mut requests: Vec<_> = (0..4).map(|n| SendRequest::send(n, &[])).collect();
        // SAFETY: the requests have no memory.
        unsafe { one.qp.post_send_list(&mut requests) }?;
        let statuses: Vec<_> = polled(&one, 4)?
            .iter()
            .map(|completion| (completion.wr_id(), completion.status()))
            .collect();
        let expected: Vec<_> = (0..4)
            .map(|n| match n {
                0 => (n, WcStatus::RNR_RETRY_EXC_ERR),
                _ => (n, WcStatus::WR_FLUSH_ERR),
            })
            .collect();
        ensure_eq!(statuses, expected, "rnr_retry {rnr_retry}");
        is_over(&one)?;
        // The kernel reads its counters no more often than every 10 ms.
        let limit = Deadline::after(WAIT);
        while hardware_counter("send_rnr_err")? <= before {
            ensure!(!limit.has_passed(), "the device does not count it");
            std::thread::yield_now();
        }
    }
    // For ever: the wait for it has its own end, after which all goes on.
    let (one, two) = impatient(7)?;
    one.post(SendRequest::send(1, &[]))?;
    let until = Deadline::after(WAIT / 20);
    while !until.has_passed() {
        let ended = try_poll(&one.send_cq)?;
        ensure!(ended.is_none(), "ended with no receive: {ended:?}");
        std::thread::yield_now();
    }
    ensure_eq!(one.qp.query()?.0.state(), Some(QpState::RTS), "state");
    two.recv(2)?;
    one.sent(1)?;
    two.received(2)?;
    Ok(())
}

fn write_with_immediate() -> Outcome {
    let (one, two) = impatient(0)?;
    let target = Buffer::with_access(&two.pd, 4096, OPEN)?;
    let sges = [one.buffer.sge(0, 4096)];
    let request = SendRequest::write_with_imm(1, &sges, at(&target, 0), 0x0102_0304);
    ensure_eq!(
        outcome(&one, request)?,
        WcStatus::RNR_RETRY_EXC_ERR,
        "without a receive"
    );

    let (one, two) = impatient(0)?;
    let target = Buffer::with_access(&two.pd, 4096, OPEN)?;
    one.buffer.store(0, &harness::pattern::bytes(8, 4096));
    // The receive needs no memory: the data goes where the write says.
    // SAFETY: the request has no memory.
    unsafe { two.qp.post_recv(&mut RecvRequest::new(5, &[])) }?;
    let sges = [one.buffer.sge(0, 4096)];
    let request = SendRequest::write_with_imm(1, &sges, at(&target, 0), 0x0102_0304);
    ensure_eq!(outcome(&one, request)?, WcStatus::SUCCESS, "with a receive");
    let completion = two.received(5)?;
    let success = completion.result()?;
    ensure_eq!(success.opcode(), WcOpcode::RECV_RDMA_WITH_IMM, "opcode");
    ensure_eq!(success.byte_len(), 4096, "bytes");
    ensure_eq!(success.imm(), Some(0x0102_0304), "immediate");
    Ok(harness::pattern::check(&target.load(0, 4096), 8)?)
}

/// Two connected ends, of which the second allows its peer just `access`.
fn allowing(access: AccessFlags) -> Result<(End, End), Failed> {
    let context = open()?;
    let one = End::new(&ProtectionDomain::new(&context)?, QpType::RC, |qp| qp)?;
    let pd = ProtectionDomain::new(&context)?;
    let two = End::with_access(&pd, QpType::RC, access, |qp| qp)?;
    one.connect(&two)?;
    two.connect(&one)?;
    Ok((one, two))
}

fn atomics_not_allowed() -> Outcome {
    let remote = AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE;
    let with_atomics = remote | AccessFlags::REMOTE_ATOMIC;
    let no_atomics = AccessFlags::LOCAL_WRITE | remote;
    // Of the queue pair, of the region, whether the key is wrong, and what the requester is told.
    let cases = [
        (remote, OPEN, false, WcStatus::REM_INV_REQ_ERR),
        (with_atomics, no_atomics, false, WcStatus::REM_ACCESS_ERR),
        (with_atomics, OPEN, true, WcStatus::REM_ACCESS_ERR),
    ];
    for (of_pair, of_region, wrong_key, expected) in cases {
        for add in [false, true] {
            let (one, two) = allowing(of_pair)?;
            let target = Buffer::with_access(&two.pd, 4096, of_region)?;
            let mut place = at(&target, 8);
            if wrong_key {
                place.rkey.0 ^= 0x00ff_ff00;
            }
            let sges = [one.buffer.sge(0, 8)];
            let request = if add {
                SendRequest::fetch_and_add(1, &sges, place, 1)
            } else {
                SendRequest::compare_and_swap(1, &sges, place, 0, 1)
            };
            ensure_eq!(
                outcome(&one, request)?,
                expected,
                "{of_pair:?}, {of_region:?}, wrong key {wrong_key}, add {add}"
            );
            ensure_eq!(target.load(8, 8), vec![0; 8], "the target");
            is_over(&one)?;
        }
    }
    Ok(())
}

fn reads_not_taken() -> Outcome {
    let (one, two) = pair_with(QpType::RC, |rtr, _| rtr.max_dest_rd_atomic = 0)?;
    let (attributes, _) = two.qp.query()?;
    let taken = attributes.as_raw().0.max_dest_rd_atomic;
    ensure_eq!(taken, 0, "reads of the peer");
    let target = Buffer::with_access(&two.pd, 4096, OPEN)?;
    let sges = [one.buffer.sge(0, 8)];
    let status = outcome(&one, SendRequest::read(1, &sges, at(&target, 0)))?;
    ensure_eq!(status, WcStatus::REM_INV_REQ_ERR, "read");
    is_over(&one)?;
    // More than the device has is refused before it is asked.
    let most = one.pd.context().attributes().max_qp_rd_atom();
    if let Some(more) = most.checked_add(1) {
        let end = End::new(&one.pd, QpType::RC, |qp| qp)?;
        let failed = end.connect_with(&two, |rtr, _| rtr.max_dest_rd_atomic = more);
        let text = failed.err().ok_or("more reads than the device has")?;
        let text = text.message().unwrap_or_default();
        ensure!(
            text.contains("max_dest_rd_atomic") && text.contains(&more.to_string()),
            "{text}"
        );
        ensure_eq!(end.qp.state(), QpState::INIT, "state");
        let error = end.qp.to_rtr_datagram().err().ok_or("RC as UD")?;
        ensure_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    }
    Ok(())
}
