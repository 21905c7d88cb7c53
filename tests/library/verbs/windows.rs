//! Atomics, inline requests, memory windows and invalidation.

use std::time::Instant;

use harness::{Failed, Need, Outcome, SECOND, Test, ensure, ensure_eq, phase, test};
use rpma::cm::verbs::{
    AccessFlags, ErrorKind, InlineRequest, MemoryWindow, PostErrorKind, QpState, QpType, QueuePair,
    RemoteAddr, RemoteKey, SendFlags, SendRequest, WcStatus, WindowBind, WindowType,
};

use super::by_hand::{End, pair};
use crate::raw::{Buffer, poll};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test(
            "atomics_give_the_old_value_in_host_order_and_lose_no_update",
            &[Need::Device],
            atomics,
        ),
        test(
            "an_atomic_that_is_not_8_aligned_bytes_is_refused_before_the_device",
            &[Need::Device],
            bad_atomics,
        ),
        test(
            "inline_data_is_copied_before_the_call_returns_and_is_limited_to_what_was_granted",
            &[Need::Device],
            inline,
        ),
        test(
            "a_window_of_either_type_gives_the_access_that_its_region_does_not",
            &[Need::Device],
            windows,
        ),
        test(
            "an_invalidated_window_gives_no_access_whichever_side_invalidates",
            &[Need::Device],
            invalidated,
        ),
        test(
            "a_queue_pair_frees_the_windows_bound_to_it_and_goes_at_once",
            &[Need::Device],
            freed_with_its_queue_pair,
        ),
        test(
            "a_bind_that_can_never_be_right_is_refused_by_name",
            &[Need::Device],
            bad_binds,
        ),
        test(
            "a_window_of_type_1_is_unbound_without_freeing_it_and_bound_again",
            &[Need::Device],
            unbound,
        ),
        test(
            "a_region_with_a_window_is_not_closed_before_the_window",
            &[Need::Device],
            region_with_a_window,
        ),
    ]
}

const EVERYTHING: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_ATOMIC)
    .union(AccessFlags::MW_BIND);

fn at(buffer: &Buffer, offset: u64) -> RemoteAddr {
    RemoteAddr {
        addr: buffer.region().iova() + offset,
        rkey: buffer.region().rkey(),
    }
}

fn number(buffer: &Buffer, offset: usize) -> Result<u64, Failed> {
    let bytes = buffer.load(offset, 8).try_into().map_err(|_| "length")?;
    Ok(u64::from_ne_bytes(bytes))
}

fn atomics() -> Outcome {
    let (one, two) = pair(QpType::RC)?;
    let target = Buffer::with_access(&two.pd, 4096, EVERYTHING)?;
    target.store(8, &41_u64.to_ne_bytes());
    let result = [one.buffer.sge(0, 8)];
    one.post(SendRequest::fetch_and_add(1, &result, at(&target, 8), 1))?;
    one.sent(1)?;
    ensure_eq!(number(&one.buffer, 0)?, 41, "the value before");
    ensure_eq!(number(&target, 8)?, 42, "the value after");
    for (compare, before, after) in [(7, 42, 42), (42, 42, u64::MAX)] {
        let request = SendRequest::compare_and_swap(2, &result, at(&target, 8), compare, u64::MAX);
        one.post(request)?;
        one.sent(2)?;
        ensure_eq!(number(&one.buffer, 0)?, before, "the value before");
        ensure_eq!(number(&target, 8)?, after, "the value after");
    }
    one.post(SendRequest::fetch_and_add(3, &result, at(&target, 8), 2))?;
    one.sent(3)?;
    ensure_eq!(number(&target, 8)?, 1, "no carry beyond the 8 bytes");

    // Two queue pairs add to the same word, with several requests of each under way.
    target.store(8, &0_u64.to_ne_bytes());
    let server = End::new(&two.pd, QpType::RC, |qp| qp)?;
    let other = End::new(&one.pd, QpType::RC, |qp| qp)?;
    server.connect(&other)?;
    other.connect(&server)?;
    let rounds = harness::rounds(50, 1_000);
    for _ in 0..rounds {
        for wr_id in 0..8 {
            for end in [&one, &other] {
                let result = [end.buffer.sge(8, 8)];
                end.post(SendRequest::fetch_and_add(
                    wr_id,
                    &result,
                    at(&target, 8),
                    1,
                ))?;
            }
        }
        for wr_id in 0..8 {
            one.sent(wr_id)?;
            other.sent(wr_id)?;
        }
    }
    ensure_eq!(number(&target, 8)?, rounds as u64 * 16, "the sum");
    Ok(())
}

fn bad_atomics() -> Outcome {
    let (one, two) = pair(QpType::RC)?;
    let target = Buffer::with_access(&two.pd, 4096, EVERYTHING)?;
    for (offset, len) in [(4, 8), (0, 4), (1, 8), (0, 16)] {
        let sges = [one.buffer.sge(0, len)];
        let remote = at(&target, offset);
        let requests = [
            SendRequest::fetch_and_add(1, &sges, remote, 1),
            SendRequest::compare_and_swap(1, &sges, remote, 0, 1),
        ];
        for mut request in requests {
            // SAFETY: the buffer is registered memory to which no reference is formed.
            let refused = unsafe { one.qp.post_send(&mut request) };
            let error = refused.err().ok_or("posted")?;
            let (addr, len) = (remote.addr, len as u64);
            ensure_eq!(
                error.kind,
                PostErrorKind::NotEightBytes { addr, len },
                "{error}"
            );
        }
    }
    ensure_eq!(one.qp.query()?.0.state(), Some(QpState::RTS), "state");
    Ok(())
}

fn inline() -> Outcome {
    let (one, two) = pair(QpType::RC)?;
    let target = Buffer::with_access(&two.pd, 4096, EVERYTHING)?;
    let most = one.qp.capabilities().max_inline_data as usize;
    let mut data = vec![7_u8; most + 1];
    let request = InlineRequest::send(1, &data);
    let error = one.qp.post_inline(&request).err().ok_or("one byte more")?;
    let (given, max) = (most as u64 + 1, one.qp.capabilities().max_inline_data);
    ensure_eq!(
        error.kind,
        PostErrorKind::InlineTooLong { given, max },
        "{error}"
    );

    two.recv(4)?;
    let flags = SendFlags::SIGNALED;
    one.qp
        .post_inline(&InlineRequest::write(2, &data[..most], at(&target, 0)).with_flags(flags))?;
    one.qp
        .post_inline(&InlineRequest::send_with_imm(3, &data[..5], 9).with_flags(flags))?;
    // The data is no longer needed, whatever the device is doing.
    data.fill(0);
    one.sent(2)?;
    one.sent(3)?;
    let completion = two.received(4)?;
    ensure_eq!(completion.result()?.imm(), Some(9), "immediate");
    ensure_eq!(two.buffer.load(4096, 5), vec![7; 5], "message");
    ensure_eq!(target.load(0, most), vec![7; most], "written");
    Ok(())
}

/// Binds 64 bytes from 128 on for writing, and waits for the completion.
fn bind(end: &End, window: &MemoryWindow, target: &Buffer) -> Result<RemoteKey, Failed> {
    let key = end.qp.bind(
        window,
        &WindowBind {
            wr_id: 50,
            region: target.region(),
            offset: 128,
            len: 64,
            access: AccessFlags::REMOTE_WRITE,
            flags: SendFlags::SIGNALED,
        },
    )?;
    end.sent(50)?;
    ensure_eq!(key, window.rkey(), "the key");
    Ok(key)
}

/// How a write of 8 bytes ends.
fn write(from: &End, target: &Buffer, key: RemoteKey, offset: u64) -> Result<WcStatus, Failed> {
    let remote = RemoteAddr {
        addr: target.region().iova() + offset,
        rkey: key,
    };
    from.post(SendRequest::write(60, &[from.buffer.sge(0, 8)], remote))?;
    Ok(poll(&from.send_cq)?.status())
}

/// What a window's region needs: no remote access of its own.
const WINDOWED: AccessFlags = AccessFlags::LOCAL_WRITE.union(AccessFlags::MW_BIND);

fn windows() -> Outcome {
    for window_type in [WindowType::TYPE_1, WindowType::TYPE_2] {
        phase(window_type.to_string());
        for outside in [false, true] {
            let (one, two) = pair(QpType::RC)?;
            let target = Buffer::with_access(&two.pd, 4096, WINDOWED)?;
            let window = MemoryWindow::new(&two.pd, window_type)?;
            let key = bind(&two, &window, &target)?;
            one.buffer.store(0, b"windowed");
            ensure_eq!(write(&one, &target, key, 128)?, WcStatus::SUCCESS, "first");
            ensure_eq!(write(&one, &target, key, 184)?, WcStatus::SUCCESS, "last");
            ensure_eq!(target.load(184, 8), b"windowed", "data");
            // SoftRoCE holds a window to the end of its region, not to its own.
            let (offset, by) = if outside {
                (4092, key)
            } else {
                (128, target.region().rkey())
            };
            let status = write(&one, &target, by, offset)?;
            ensure_eq!(
                status,
                WcStatus::REM_ACCESS_ERR,
                "{window_type}, at {offset} by {by:?}, window {key:?}"
            );
            ensure_eq!(target.load(4088, 8), vec![0; 8], "untouched");
            window.close()?;
            ensure!(window.is_freed(), "freed");
            window.close()?;
        }
    }
    Ok(())
}

fn invalidated() -> Outcome {
    for local in [true, false] {
        let (one, two) = pair(QpType::RC)?;
        let target = Buffer::with_access(&two.pd, 4096, WINDOWED)?;
        let window = MemoryWindow::new(&two.pd, WindowType::TYPE_2)?;
        let key = bind(&two, &window, &target)?;
        ensure_eq!(write(&one, &target, key, 128)?, WcStatus::SUCCESS, "bound");
        let invalidate = |key| -> Outcome {
            if local {
                two.post(SendRequest::local_invalidate(7, key))?;
                two.sent(7)?;
            } else {
                two.recv(8)?;
                one.post(SendRequest::send_with_invalidate(7, &[], key))?;
                one.sent(7)?;
                let completion = two.received(8)?;
                // SoftRoCE says it with the kernel's flag, which means something else to libibverbs.
                let told = completion.result()?.invalidated_rkey();
                ensure!(told.is_none_or(|told| told == key), "{told:?}");
            }
            Ok(())
        };
        invalidate(key)?;
        // Bound again it has another key, and the old one stays dead.
        let again = bind(&two, &window, &target)?;
        ensure!(again != key, "the key must change");
        ensure_eq!(
            write(&one, &target, again, 128)?,
            WcStatus::SUCCESS,
            "bound again"
        );
        invalidate(again)?;
        let status = write(&one, &target, again, 128)?;
        ensure_eq!(
            status,
            WcStatus::REM_ACCESS_ERR,
            "invalidated, local {local}"
        );
    }
    Ok(())
}

fn freed_with_its_queue_pair() -> Outcome {
    type End = fn(QueuePair) -> Outcome;
    let ends: [End; 2] = [
        |qp| {
            drop(qp);
            Ok(())
        },
        |qp| Ok(qp.close()?),
    ];
    for end in ends {
        let (one, two) = pair(QpType::RC)?;
        let target = Buffer::with_access(&two.pd, 4096, WINDOWED)?;
        let window = MemoryWindow::new(&two.pd, WindowType::TYPE_2)?;
        let unbound = MemoryWindow::new(&two.pd, WindowType::TYPE_2)?;
        let other = MemoryWindow::new(&two.pd, WindowType::TYPE_1)?;
        bind(&two, &window, &target)?;
        bind(&two, &other, &target)?;
        let super::by_hand::End { qp, .. } = two;
        phase("ending a queue pair with a bound window");
        let start = Instant::now();
        end(qp)?;
        ensure!(start.elapsed() < 2 * SECOND, "took {:?}", start.elapsed());
        ensure!(window.is_freed(), "it belonged to the queue pair");
        ensure!(!unbound.is_freed() && !other.is_freed(), "these did not");
        window.close()?;
        drop(one);
    }
    Ok(())
}

fn bad_binds() -> Outcome {
    let (one, two) = pair(QpType::RC)?;
    let target = Buffer::with_access(&two.pd, 4096, WINDOWED)?;
    let foreign = Buffer::with_access(&one.pd, 4096, WINDOWED)?;
    for window_type in [WindowType::TYPE_1, WindowType::TYPE_2] {
        let window = MemoryWindow::new(&two.pd, window_type)?;
        for (region, offset, len) in [
            (&target, 0, 0),
            (&target, 4096, 1),
            (&target, 0, 4097),
            (&target, usize::MAX, 2),
            (&foreign, 0, 8),
        ] {
            let bind = WindowBind {
                wr_id: 1,
                region: region.region(),
                offset,
                len,
                access: AccessFlags::REMOTE_READ,
                flags: SendFlags::SIGNALED,
            };
            let error = two.qp.bind(&window, &bind).err().ok_or("bound")?;
            ensure_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        }
        // The queue pair is as it was.
        bind(&two, &window, &target)?;
        window.close()?;
        let bind = WindowBind {
            wr_id: 1,
            region: target.region(),
            offset: 0,
            len: 8,
            access: AccessFlags::REMOTE_READ,
            flags: SendFlags::SIGNALED,
        };
        let error = two.qp.bind(&window, &bind).err().ok_or("bound")?;
        ensure_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        ensure!(error.to_string().contains("freed"), "{error}");
    }
    Ok(())
}

fn unbound() -> Outcome {
    for same_region in [true, false] {
        let (one, two) = pair(QpType::RC)?;
        let mut target = Buffer::with_access(&two.pd, 4096, WINDOWED)?;
        let window = MemoryWindow::new(&two.pd, WindowType::TYPE_1)?;
        let other = MemoryWindow::new(&two.pd, WindowType::TYPE_2)?;
        let unbind = |window: &MemoryWindow| {
            let named = if same_region { &target } else { &two.buffer };
            let flags = SendFlags::SIGNALED;
            two.qp.unbind(window, named.region(), 51, flags)
        };
        let error = unbind(&other).err().ok_or("type 2 was unbound by a call")?;
        ensure_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        let first = bind(&two, &window, &target)?;
        ensure_eq!(
            write(&one, &target, first, 128)?,
            WcStatus::SUCCESS,
            "bound"
        );
        let none = unbind(&window)?;
        two.sent(51)?;
        ensure!(
            none != first && none == window.rkey(),
            "the key must change"
        );
        let again = bind(&two, &window, &target)?;
        ensure_eq!(
            write(&one, &target, again, 128)?,
            WcStatus::SUCCESS,
            "again"
        );
        let none = unbind(&window)?;
        two.sent(51)?;
        ensure!(none != again, "the key must change");
        let status = write(&one, &target, again, 128)?;
        ensure_eq!(status, WcStatus::REM_ACCESS_ERR, "unbound");
        // The region has no window any more, though the window lives.
        target.deregister()?;
        ensure!(!window.is_freed(), "the window is still there");
    }
    Ok(())
}

fn region_with_a_window() -> Outcome {
    let (_one, two) = pair(QpType::RC)?;
    let mut target = Buffer::with_access(&two.pd, 4096, WINDOWED)?;
    let window = MemoryWindow::new(&two.pd, WindowType::TYPE_2)?;
    bind(&two, &window, &target)?;
    let error = target.deregister().err().ok_or("the region was closed")?;
    ensure!(
        matches!(error.errno(), Some(libc::EBUSY | libc::EINVAL)),
        "{error}"
    );
    window.close()?;
    target.deregister()?;
    Ok(())
}
