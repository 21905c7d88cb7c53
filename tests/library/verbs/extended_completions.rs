//! Extended completion queues.

use std::mem::MaybeUninit;

use harness::{Failed, Need, Outcome, Test, WAIT, device, ensure, ensure_eq, rounds, test};
use rpma::cm::Deadline;
use rpma::cm::verbs::{
    CompletionChannel, CompletionFields, CompletionQueue, ErrorKind, ExtendedCompletionQueue,
    InitAttributes, InlineRequest, PollError, PostError, ProtectionDomain, QpType, QueuePair,
    QueuePairBuilder, RecvRequest, SendFlags, SendOps, WcOpcode, WcStatus,
};

use super::by_hand::{End, connect};
use super::extended::{USUAL, pair};
use super::objects::open;

pub(crate) fn tests() -> Vec<Test> {
    let needs = &[Need::Device];
    vec![
        test(
            "extended_polling_loses_and_repeats_nothing_round_a_small_queue",
            needs,
            wraps,
        )
        .limit(120),
        test(
            "an_extended_queue_is_waited_for_and_polled_either_way",
            needs,
            either_way,
        ),
        test(
            "threads_that_poll_an_extended_queue_share_its_completions",
            needs,
            threads,
        ),
        test(
            "a_failed_request_tells_its_status_through_an_extended_queue",
            needs,
            failed,
        ),
        test(
            "timestamps_are_unsupported_where_the_device_has_no_clock",
            needs,
            timestamps,
        ),
        test("extended_queues_keep_the_rules_of_plain_ones", needs, rules),
    ]
}

/// A queue pair that sends to itself, with its completions in one small extended queue.
struct Loop {
    qp: QueuePair,
    cq: ExtendedCompletionQueue,
    _end: ProtectionDomain,
}

impl Loop {
    fn new(entries: u32, channel: bool) -> Result<Self, Failed> {
        let context = open()?;
        let pd = ProtectionDomain::new(&context)?;
        let own = CompletionChannel::new(&context)?;
        let mut builder = CompletionQueue::builder(&context, entries);
        if channel {
            builder = builder.own_channel(&own);
        }
        let cq = builder.build_extended(CompletionFields::BYTE_LEN)?;
        let half = |qp: QueuePairBuilder<'_>| -> Result<QueuePair, Failed> {
            Ok(qp
                .max_send_wr(3)
                .max_recv_wr(3)
                .max_inline_data(16)
                .build()?)
        };
        let qp = half(QueuePair::builder(&pd, QpType::RC, cq.queue(), cq.queue()))?;
        let mut init = InitAttributes::new(device().port);
        init.access = USUAL;
        qp.to_init(&init)?;
        connect(&qp, qp.number(), |_, _| {})?;
        Ok(Self { qp, cq, _end: pd })
    }

    /// A message to itself: two completions.
    fn send(&self, id: u64) -> Outcome {
        // SAFETY: the request names no memory.
        unsafe { self.qp.post_recv(&mut RecvRequest::new(id, &[])) }?;
        let request = InlineRequest::send(id, b"");
        self.qp
            .post_inline(&request.with_flags(SendFlags::SIGNALED))?;
        Ok(())
    }
}

fn wraps() -> Outcome {
    let end = Loop::new(7, false)?;
    let entries = u64::from(end.cq.queue().entries());
    let messages = rounds(2_000, 50_000) as u64;
    ensure!(messages > 100 * entries, "the queue has {entries} entries");
    let mut seen = Vec::new();
    for id in 0..messages {
        end.send(id)?;
        let deadline = Deadline::after(WAIT);
        // Into room for one, two or three, and past an empty queue again and again.
        let mut out = [MaybeUninit::uninit(); 3];
        let room = 1 + usize::try_from(id % 3).unwrap_or(0);
        while seen.len() < 2 {
            for completion in end.cq.poll(&mut out[..room])? {
                let success = completion.result()?;
                ensure_eq!(success.byte_len(), Some(0), "length");
                seen.push((completion.wr_id(), success.opcode()));
            }
            ensure!(!deadline.has_passed(), "only {seen:?} of message {id}");
        }
        seen.sort_by_key(|(_, opcode)| opcode.raw());
        let expected = [(id, WcOpcode::SEND), (id, WcOpcode::RECV)];
        ensure_eq!(seen[..], expected[..], "completions of message {id}");
        seen.clear();
    }
    ensure!(
        end.cq.poll(&mut [MaybeUninit::uninit()])?.is_empty(),
        "one too many"
    );
    Ok(())
}

fn either_way() -> Outcome {
    let end = Loop::new(16, true)?;
    let deadline = Deadline::after(WAIT);
    for id in 0..20 {
        std::thread::scope(|scope| -> Outcome {
            let waiting = scope.spawn(|| {
                let mut out = [MaybeUninit::uninit()];
                end.cq.wait(&mut out, deadline).map(|got| got[0].wr_id())
            });
            end.send(id)?;
            let first = waiting.join().map_err(|_| "a panic")??;
            ensure_eq!(first, id, "waited for");
            Ok(())
        })?;
        let mut out = [MaybeUninit::uninit()];
        let second = end.cq.queue().wait(&mut out, deadline)?[0].wr_id();
        ensure_eq!(second, id, "the plain way");
    }
    let soon = Deadline::after(std::time::Duration::from_millis(50));
    let mut out = [MaybeUninit::uninit()];
    let error = end.cq.wait(&mut out, soon).err().ok_or("a completion")?;
    ensure_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    Ok(())
}

fn threads() -> Outcome {
    let end = Loop::new(16, false)?;
    let messages = rounds(300, 5_000);
    let deadline = Deadline::after(WAIT);
    let taken = std::sync::atomic::AtomicUsize::new(0);
    let order = std::sync::atomic::Ordering::Relaxed;
    let mut all = std::thread::scope(|scope| -> Result<Vec<u64>, Failed> {
        let take = || -> Result<Vec<u64>, PollError> {
            let mut mine = Vec::new();
            while taken.load(order) < 2 * messages && !deadline.has_passed() {
                let mut out = [MaybeUninit::uninit(); 2];
                let got = end.cq.poll(&mut out)?;
                taken.fetch_add(got.len(), order);
                mine.extend(got.iter().map(|completion| completion.wr_id()));
                std::thread::yield_now();
            }
            Ok(mine)
        };
        let takers = [scope.spawn(take), scope.spawn(take)];
        for sent in 0..messages {
            while taken.load(order) < 2 * sent && !deadline.has_passed() {
                std::thread::yield_now();
            }
            end.send(sent as u64)?;
        }
        let mut all = Vec::new();
        for taker in takers {
            all.extend(taker.join().map_err(|_| "a panic")??);
        }
        Ok(all)
    })?;
    all.sort_unstable();
    let expected: Vec<u64> = (0..messages as u64).flat_map(|id| [id, id]).collect();
    ensure!(
        all == expected,
        "{} of {} completions",
        all.len(),
        expected.len()
    );
    Ok(())
}

fn failed() -> Outcome {
    let (mut one, two) = pair(SendOps::RDMA_WRITE, USUAL)?;
    let remote = super::extended::at(&two.buffer, 0);
    one.qp.post_batch(|batch| -> Result<(), PostError> {
        // The peer's buffer is for its own device only.
        batch.write(1, remote).inline(b"no")?;
        batch.write(2, remote).empty()
    })?;
    let first = one.next()?;
    ensure_eq!(
        (first.wr_id(), first.status()),
        (1, WcStatus::REM_ACCESS_ERR),
        "first"
    );
    ensure_eq!(first.qp_num(), Some(one.number()), "queue pair");
    ensure!(first.result().is_err(), "a success");
    let second = one.next()?;
    ensure_eq!(
        (second.wr_id(), second.status()),
        (2, WcStatus::WR_FLUSH_ERR),
        "second"
    );
    let error = second.result().err().ok_or("a success")?;
    ensure!(error.is_flushed(), "{error}");
    Ok(())
}

fn timestamps() -> Outcome {
    let context = open()?;
    let attributes = context.query_extended()?;
    for field in [CompletionFields::TIMESTAMP, CompletionFields::WALLCLOCK] {
        let fields = CompletionFields::BYTE_LEN | field;
        match CompletionQueue::builder(&context, 8).build_extended(fields) {
            Ok(_) => ensure!(
                attributes.completion_timestamp_mask() != 0,
                "{field:?} without a clock"
            ),
            Err(error) => {
                ensure_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
                ensure!(
                    error.hint().is_some_and(|hint| hint.contains("timestamps")),
                    "{error:?}"
                );
            }
        }
    }
    match context.raw_clock() {
        Ok(first) => ensure!(context.raw_clock()? != first, "the clock stands at {first}"),
        Err(error) => {
            ensure_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            ensure!(error.to_string().contains(context.name()), "{error}");
        }
    }
    Ok(())
}

fn rules() -> Outcome {
    let context = open()?;
    let fields = CompletionFields::default();
    let max = context.attributes().max_cqe();
    for entries in [0, max + 1, u32::MAX] {
        let error = CompletionQueue::builder(&context, entries)
            .build_extended(fields)
            .err()
            .ok_or("made")?;
        ensure_eq!(error.kind(), ErrorKind::Limit, "{error}");
    }
    let unknown = CompletionFields::from_bits_retain(1 << 50);
    let error = CompletionQueue::builder(&context, 8)
        .build_extended(unknown)
        .err();
    let error = error.ok_or("made with a bit that nobody knows")?;
    ensure_eq!(error.kind(), ErrorKind::Unsupported, "{error}");

    let cq = CompletionQueue::builder(&context, 8).build_extended(fields)?;
    cq.queue().resize(40)?;
    ensure!(
        cq.queue().entries() >= 40,
        "{} entries",
        cq.queue().entries()
    );
    let pd = ProtectionDomain::new(&context)?;
    let qp = QueuePair::builder(&pd, QpType::RC, cq.queue(), cq.queue()).build()?;
    let error = QueuePair::builder(&pd, QpType::RC, cq.queue(), cq.queue())
        .max_send_wr(60)
        .build();
    let error = error.err().ok_or("more than there is room for")?;
    ensure_eq!(error.kind(), ErrorKind::Limit, "{error}");
    let failed = cq.close().err().ok_or("closed while it is in use")?;
    ensure_eq!(failed.error.kind(), ErrorKind::Busy, "{}", failed.error);
    drop(qp);
    failed.handle.close()?;
    // An end of plain queues is not disturbed by any of it.
    let end = End::new(&pd, QpType::RC, |qp| qp)?;
    drop(end);
    Ok(())
}
