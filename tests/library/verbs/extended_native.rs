//! Flush and atomic write as operations of the device.

use harness::{Failed, Need, Outcome, Test, ensure, ensure_eq, phase, test};
use rpma::cm::verbs::{
    AccessFlags, FlushLevel, FlushPlacement, PostError, PostErrorKind, RemoteAddr, SendFlags,
    SendOps, WcOpcode, WcStatus,
};

use super::extended::{Extended, USUAL, at, pair};
use crate::raw::Buffer;

pub(crate) fn tests() -> Vec<Test> {
    let needs = &[Need::Device, Need::Native];
    vec![
        test(
            "native_flush_of_a_range_and_of_a_region_makes_writes_visible",
            needs,
            flushes,
        ),
        test(
            "native_flush_to_persistence_is_refused_for_ordinary_memory",
            needs,
            persistence,
        ),
        test(
            "native_flush_needs_the_right_of_region_and_queue_pair",
            needs,
            rights,
        ),
        test(
            "native_flush_outside_the_region_is_refused_by_the_peer",
            needs,
            outside,
        ),
        test("native_atomic_write_writes_8_bytes", needs, atomic_write),
        test(
            "native_atomic_write_to_a_crooked_or_short_place_is_refused",
            needs,
            bad_atomic_write,
        ),
        test(
            "native_operations_follow_writes_in_one_batch",
            needs,
            in_one_batch,
        ),
    ]
}

const SIGNALED: SendFlags = SendFlags::SIGNALED;
const OPS: SendOps = SendOps::FLUSH
    .union(SendOps::ATOMIC_WRITE)
    .union(SendOps::RDMA_WRITE);
const FLUSHABLE: AccessFlags = USUAL.union(AccessFlags::FLUSH_GLOBAL);

/// How a flush ends.
fn flush(
    end: &mut Extended,
    remote: RemoteAddr,
    len: u32,
    placement: FlushPlacement,
    level: FlushLevel,
) -> Result<WcStatus, Failed> {
    end.qp.post_batch(|batch| {
        let request = batch.flush(7, remote, len, placement, level);
        request.flags(SIGNALED).add()
    })?;
    let completion = end.next()?;
    if let Ok(success) = completion.result() {
        ensure_eq!(success.opcode(), WcOpcode::FLUSH, "opcode");
    }
    ensure_eq!(completion.wr_id(), 7, "number");
    Ok(completion.status())
}

fn flushes() -> Outcome {
    let (mut one, two) = pair(OPS, FLUSHABLE)?;
    let target = Buffer::with_access(&two.pd, 8192, FLUSHABLE)?;
    for (offset, len, level) in [
        (0, 64, FlushLevel::RANGE),
        (4000, 200, FlushLevel::RANGE),
        (0, 8192, FlushLevel::RANGE),
        (0, 0, FlushLevel::REGION),
        (64, 1, FlushLevel::REGION),
    ] {
        one.qp
            .post_batch(|batch| batch.write(1, at(&target, offset)).inline(b"flushed"))?;
        let remote = at(&target, offset);
        let status = flush(&mut one, remote, len, FlushPlacement::GLOBAL, level)?;
        ensure_eq!(
            status,
            WcStatus::SUCCESS,
            "{len} bytes at {offset}, {level}"
        );
        let offset = usize::try_from(offset)?;
        ensure_eq!(target.load(offset, 7), b"flushed".to_vec(), "written");
    }
    Ok(())
}

fn persistence() -> Outcome {
    let persistent = FLUSHABLE | AccessFlags::FLUSH_PERSISTENT;
    let (mut one, two) = pair(OPS, persistent)?;
    let error = Buffer::with_access(&two.pd, 4096, persistent).err();
    let error = error.ok_or("ordinary memory was registered as persistent")?;
    let text = error.message().unwrap_or_default();
    ensure!(
        text.contains("FLUSH_PERSISTENT") && text.contains("22"),
        "{text}"
    );
    let target = Buffer::with_access(&two.pd, 4096, FLUSHABLE)?;
    let placement = FlushPlacement::PERSISTENT;
    let status = flush(&mut one, at(&target, 0), 64, placement, FlushLevel::RANGE)?;
    ensure_eq!(
        status,
        WcStatus::REM_ACCESS_ERR,
        "the region is not persistent"
    );
    Ok(())
}

fn rights() -> Outcome {
    for (of_qp, of_region) in [(FLUSHABLE, USUAL), (USUAL, FLUSHABLE)] {
        phase(format!("queue pair {of_qp:?}, region {of_region:?}"));
        let (mut one, two) = pair(OPS, of_qp)?;
        let target = Buffer::with_access(&two.pd, 4096, of_region)?;
        let placement = FlushPlacement::GLOBAL;
        let status = flush(&mut one, at(&target, 0), 64, placement, FlushLevel::RANGE)?;
        let expected = if of_region == USUAL {
            WcStatus::REM_ACCESS_ERR
        } else {
            WcStatus::REM_INV_REQ_ERR
        };
        ensure_eq!(
            status,
            expected,
            "queue pair {of_qp:?}, region {of_region:?}"
        );
    }
    Ok(())
}

fn outside() -> Outcome {
    for (offset, len) in [(4096, 1), (0, 4097), (u64::MAX / 2, 8)] {
        let (mut one, two) = pair(OPS, FLUSHABLE)?;
        let target = Buffer::with_access(&two.pd, 4096, FLUSHABLE)?;
        let remote = RemoteAddr {
            addr: target.region().iova().wrapping_add(offset),
            rkey: target.region().rkey(),
        };
        let placement = FlushPlacement::GLOBAL;
        let status = flush(&mut one, remote, len, placement, FlushLevel::RANGE)?;
        ensure_eq!(status, WcStatus::REM_ACCESS_ERR, "{len} bytes at {offset}");
    }
    Ok(())
}

fn atomic_write() -> Outcome {
    let (mut one, two) = pair(OPS, USUAL)?;
    let target = Buffer::with_access(&two.pd, 4096, USUAL)?;
    target.store(0, &[0xee; 32]);
    for (offset, value) in [(8, *b"8 bytes!"), (4088, [0xff; 8])] {
        let remote = at(&target, offset);
        one.qp
            .post_batch(|batch| batch.atomic_write(1, remote, value).flags(SIGNALED).add())?;
        let completion = one.done(1)?;
        ensure_eq!(
            completion.result()?.opcode(),
            WcOpcode::ATOMIC_WRITE,
            "opcode"
        );
        ensure_eq!(
            target.load(usize::try_from(offset)?, 8),
            value.to_vec(),
            "written"
        );
    }
    ensure_eq!(target.load(0, 8), vec![0xee; 8], "before it");
    ensure_eq!(target.load(16, 16), vec![0xee; 16], "behind it");
    Ok(())
}

fn bad_atomic_write() -> Outcome {
    let (mut one, two) = pair(OPS, USUAL)?;
    // 4 bytes are left of the region at a multiple of 8.
    let target = Buffer::with_access(&two.pd, 4100, USUAL)?;
    for offset in [1, 4, 12] {
        let remote = at(&target, offset);
        let refused = one.qp.post_batch(|batch| -> Result<_, PostError> {
            Ok(batch.atomic_write(1, remote, [1; 8]).add().err())
        })?;
        let error = refused.ok_or("taken")?;
        let addr = remote.addr;
        ensure_eq!(
            error.kind,
            PostErrorKind::NotEightBytes { addr, len: 8 },
            "{error}"
        );
    }
    let remote = at(&target, 4096);
    one.qp
        .post_batch(|batch| batch.atomic_write(2, remote, [1; 8]).flags(SIGNALED).add())?;
    ensure_eq!(one.next()?.status(), WcStatus::REM_ACCESS_ERR, "short");
    ensure_eq!(target.load(4090, 10), vec![0; 10], "untouched");

    let (mut one, two) = pair(OPS, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ)?;
    let target = Buffer::with_access(&two.pd, 4096, USUAL)?;
    let remote = at(&target, 0);
    one.qp
        .post_batch(|batch| batch.atomic_write(3, remote, [1; 8]).flags(SIGNALED).add())?;
    let status = one.next()?.status();
    ensure!(
        matches!(status, WcStatus::REM_INV_REQ_ERR | WcStatus::REM_ACCESS_ERR),
        "the queue pair takes no writes: {status}"
    );
    ensure_eq!(target.load(0, 8), vec![0; 8], "untouched");
    Ok(())
}

fn in_one_batch() -> Outcome {
    let (mut one, two) = pair(OPS, FLUSHABLE)?;
    let target = Buffer::with_access(&two.pd, 4096, FLUSHABLE)?;
    // A record, flushed, and then the word that says so: the pattern that both are for.
    for round in 1..=20_u64 {
        let bytes = round.to_le_bytes();
        one.qp.post_batch(|batch| -> Result<(), PostError> {
            batch.write(1, at(&target, 64)).inline(&[bytes[0]; 48])?;
            let (placement, level) = (FlushPlacement::GLOBAL, FlushLevel::RANGE);
            batch
                .flush(2, at(&target, 64), 48, placement, level)
                .add()?;
            batch
                .atomic_write(3, at(&target, 0), bytes)
                .flags(SIGNALED)
                .add()
        })?;
        one.done(3)?;
        ensure_eq!(target.load(0, 8), bytes.to_vec(), "word");
        ensure_eq!(target.load(64, 48), vec![bytes[0]; 48], "record");
    }
    Ok(())
}
