//! Safe calls in orders and with values that nobody means: refused or harmless, and never for long.

use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

use harness::{Failed, Need, Outcome, SECOND, Test, ensure, ensure_eq, phase, test};
use rpma::cm::verbs::{
    AccessFlags, CompletionChannel, CompletionQueue, Deadline, ErrorKind, InitAttributes,
    MemoryRegion, MemoryWindow, ProtectionDomain, QpType, QueuePair, SendFlags, SendRequest,
    SharedReceiveQueue, WindowBind, WindowType,
};

use super::by_hand::{End, pair};
use super::objects::open;
use crate::raw::{Buffer, poll};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test(
            "a_drain_needs_no_more_room_than_the_queues_were_promised",
            &[Need::Device],
            drained_in_little_room,
        ),
        test(
            "a_drain_does_not_take_the_end_of_an_earlier_one_for_its_own",
            &[Need::Device],
            earlier_markers,
        ),
        test(
            "a_queue_pair_goes_at_once_though_its_window_was_tried_with_another",
            &[Need::Device],
            window_of_another,
        ),
        test(
            "a_region_named_up_to_the_end_of_the_address_space_is_refused",
            &[Need::Device],
            end_of_the_address_space,
        ),
        test(
            "a_wait_without_room_for_a_completion_is_refused",
            &[Need::Device],
            wait_without_room,
        ),
        test(
            "sizes_of_0_and_of_4_gib_are_granted_or_refused_and_nothing_else",
            &[Need::Device],
            extreme_sizes,
        ),
        test("a_bind_is_never_inline", &[Need::Device], inline_bind),
    ]
}

/// Connected ends, the first of which has one completion queue with just the room it needs.
fn tight(sends: u32, receives: u32) -> Result<(QueuePair, CompletionQueue, End), Failed> {
    let context = open()?;
    let pd = ProtectionDomain::new(&context)?;
    let peer = End::new(&pd, QpType::RC, |qp| qp)?;
    let made = |entries| -> Result<_, Failed> {
        let cq = CompletionQueue::builder(&context, entries).build()?;
        let qp = QueuePair::builder(&pd, QpType::RC, &cq, &cq)
            .max_send_wr(sends)
            .max_recv_wr(receives)
            .build()?;
        Ok((qp, cq))
    };
    // Newer kernels grant more than was asked for: how much, the first one tells.
    let granted = *made(4 * (sends + receives))?.0.capabilities();
    let (qp, cq) = made(granted.max_send_wr + granted.max_recv_wr)?;
    qp.to_init(&InitAttributes::new(harness::device().port))?;
    Ok((qp, cq, peer))
}

fn drained_in_little_room() -> Outcome {
    // As many entries as SoftRoCE has for that many, so that not one is to spare.
    for (sends, receives) in [(8, 7), (1, 14), (14, 1), (31, 32), (0, 15)] {
        for polled in [false, true] {
            phase(format!("{sends} + {receives}, polled before: {polled}"));
            let (qp, cq, _peer) = tight(sends, receives)?;
            let (sends, receives) = (qp.capabilities().max_send_wr, qp.capabilities().max_recv_wr);
            // The address of nobody: what is sent stays in the queue.
            let context = qp.context().clone();
            let path = super::by_hand::loopback(&context)?;
            let mtu = rpma::cm::verbs::PathMtu::MTU_256;
            qp.to_rtr(&rpma::cm::verbs::RtrAttributes::new(
                path, mtu, 0xff_fff0, 1,
            ))?;
            let mut rts = rpma::cm::verbs::RtsAttributes::new(1);
            rts.retry_count = 7;
            qp.to_rts(&rts)?;
            for wr_id in 0..receives {
                let mut request = rpma::cm::verbs::RecvRequest::new(wr_id.into(), &[]);
                // SAFETY: the request has no memory.
                unsafe { qp.post_recv(&mut request) }?;
            }
            for wr_id in 0..sends {
                let mut request = SendRequest::send(u64::from(receives + wr_id), &[])
                    .with_flags(SendFlags::SIGNALED);
                // SAFETY: the request has no memory.
                unsafe { qp.post_send(&mut request) }?;
            }
            let mut numbers = Vec::new();
            if !polled {
                // All of them have completed when the drain begins, and fill the queue.
                qp.set_error()?;
                std::thread::sleep(Duration::from_millis(20));
            }
            let result = qp.drain(Deadline::after(2 * SECOND), |completion| {
                numbers.push(completion.wr_id());
            });
            numbers.sort_unstable();
            let all: Vec<_> = (0..u64::from(sends + receives)).collect();
            ensure_eq!(numbers, all, "{sends} + {receives} of {}", cq.entries());
            result?;
        }
    }
    Ok(())
}

fn earlier_markers() -> Outcome {
    let context = open()?;
    let pd = ProtectionDomain::new(&context)?;
    let (one, two) = (
        End::new(&pd, QpType::RC, |qp| qp.max_recv_wr(32))?,
        End::new(&pd, QpType::RC, |qp| qp)?,
    );
    let again = || -> Outcome {
        for end in [&one, &two] {
            end.qp.reset()?;
            let init = InitAttributes::new(harness::device().port);
            end.qp.to_init(&init)?;
        }
        one.connect(&two)?;
        two.connect(&one)
    };
    for round in 0..3 {
        phase(format!("round {round}"));
        again()?;
        // Given up at its first completion, it leaves its own last request behind.
        for wr_id in 100..120 {
            one.recv(wr_id)?;
        }
        let given_up = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            one.qp.drain(Deadline::after(2 * SECOND), |_| {
                std::panic::resume_unwind(Box::new(()))
            })
        }));
        ensure!(given_up.is_err(), "it has seen no completion");
        again()?;
        for wr_id in 0..32 {
            one.recv(wr_id)?;
        }
        let mut numbers = Vec::new();
        one.qp.drain(Deadline::after(2 * SECOND), |completion| {
            numbers.push(completion.wr_id());
        })?;
        numbers.sort_unstable();
        numbers.retain(|&wr_id| wr_id < 100);
        ensure_eq!(numbers, (0..32).collect::<Vec<_>>(), "round {round}");
    }
    Ok(())
}

const WINDOWED: AccessFlags = AccessFlags::LOCAL_WRITE.union(AccessFlags::MW_BIND);

fn bind_of(region: &MemoryRegion) -> WindowBind<'_> {
    WindowBind {
        wr_id: 50,
        region,
        offset: 0,
        len: 64,
        access: AccessFlags::REMOTE_WRITE,
        flags: SendFlags::SIGNALED,
    }
}

fn window_of_another() -> Outcome {
    let (first, _peer) = pair(QpType::RC)?;
    let second = End::new(&first.pd, QpType::RC, |qp| qp)?;
    let third = End::new(&first.pd, QpType::RC, |qp| qp)?;
    second.connect(&third)?;
    third.connect(&second)?;
    let target = Buffer::with_access(&first.pd, 4096, WINDOWED)?;
    let window = MemoryWindow::new(&first.pd, WindowType::TYPE_2)?;
    first.qp.bind(&window, &bind_of(target.region()))?;
    first.sent(50)?;
    // Not invalidated, it stays bound to the first: the device refuses this in the completion.
    second.qp.bind(&window, &bind_of(target.region()))?;
    let completion = poll(&second.send_cq)?;
    ensure!(completion.result().is_err(), "{completion:?}");
    // The one that it is bound to goes at once, which takes a minute with a bound window.
    let End { qp, .. } = first;
    let start = Instant::now();
    drop(qp);
    ensure!(start.elapsed() < 2 * SECOND, "took {:?}", start.elapsed());
    ensure!(window.is_freed(), "it was bound through the queue pair");
    Ok(())
}

fn end_of_the_address_space() -> Outcome {
    let (one, _two) = pair(QpType::RC)?;
    let memory = Buffer::new(&one.pd, 8192)?;
    for iova in [0xffff_ffff_ffff_e000, 0xffff_ffff_ffff_f000] {
        // SAFETY: the memory is freed after the region, and no reference to it is formed.
        let region = unsafe {
            MemoryRegion::register_at(&one.pd, memory.region().addr(), 8192, iova, WINDOWED)
        };
        let error = region.err().ok_or("a region past the last address")?;
        ensure_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        ensure!(error.to_string().contains(&format!("{iova:#x}")), "{error}");
    }
    // Up to the last but one page all is well, a window over the last byte included.
    let iova = 0xffff_ffff_ffff_c000;
    // SAFETY: as above.
    let region = unsafe {
        MemoryRegion::register_at(&one.pd, memory.region().addr(), 8192, iova, WINDOWED)
    }?;
    let window = MemoryWindow::new(&one.pd, WindowType::TYPE_2)?;
    let bind = WindowBind {
        offset: 8191,
        len: 1,
        ..bind_of(&region)
    };
    one.qp.bind(&window, &bind)?;
    one.sent(50)?;
    window.close()?;
    Ok(region.close()?)
}

fn wait_without_room() -> Outcome {
    let context = open()?;
    let channel = CompletionChannel::new(&context)?;
    let cq = CompletionQueue::builder(&context, 8)
        .own_channel(&channel)
        .build()?;
    let start = Instant::now();
    let mut none: [MaybeUninit<_>; 0] = [];
    let error = cq.wait(&mut none, Deadline::after(Duration::MAX)).err();
    let error = error.ok_or("it came back")?;
    ensure_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    ensure!(start.elapsed() < SECOND, "took {:?}", start.elapsed());
    ensure!(cq.poll(&mut none)?.is_empty(), "completions");
    Ok(())
}

fn extreme_sizes() -> Outcome {
    let context = open()?;
    let pd = ProtectionDomain::new(&context)?;
    let cq = CompletionQueue::builder(&context, 256).build()?;
    let extremes = [0, 1, i32::MAX.cast_unsigned(), 1 << 31, u32::MAX];
    for n in extremes {
        phase(format!("size {n}"));
        let builder = || QueuePair::builder(&pd, QpType::RC, &cq, &cq);
        for builder in [
            builder().max_send_wr(n),
            builder().max_recv_wr(n),
            builder().max_send_sge(n),
            builder().max_recv_sge(n),
            builder().max_inline_data(n),
            builder()
                .max_send_wr(n)
                .max_recv_wr(n)
                .max_send_sge(n)
                .max_recv_sge(n)
                .max_inline_data(n),
        ] {
            match builder.build() {
                Ok(qp) => {
                    ensure!(n <= 1, "{n} was granted: {qp:?}");
                    // Whatever was granted, the queue pair can be used up and drained.
                    qp.to_init(&InitAttributes::new(harness::device().port))?;
                    let mut receives = 0;
                    let mut request = rpma::cm::verbs::RecvRequest::new(9, &[]);
                    // SAFETY: the request has no memory.
                    while receives < 100 && unsafe { qp.post_recv(&mut request) }.is_ok() {
                        receives += 1;
                    }
                    let mut back = 0;
                    qp.drain(Deadline::after(2 * SECOND), |_| back += 1)?;
                    ensure_eq!(back, receives, "receives");
                }
                Err(error) => {
                    ensure!(n > 1, "{n} was refused: {error}");
                    ensure!(error.to_string().contains(&n.to_string()), "{error}");
                }
            }
        }
        match SharedReceiveQueue::new(&pd, n, n.min(1)) {
            Ok(srq) => {
                ensure!(n <= 1, "{n} was granted: {srq:?}");
                for more in [i32::MAX.cast_unsigned(), u32::MAX] {
                    let error = srq.resize(more).err().ok_or("resized")?;
                    ensure_eq!(error.kind(), ErrorKind::Limit, "{error}");
                    ensure!(error.to_string().contains(&more.to_string()), "{error}");
                    srq.arm_limit(more).err().ok_or("armed")?;
                }
            }
            // A queue of no receives is the device's to grant: SoftRoCE does not.
            Err(error) => ensure!(n != 1, "{n} was refused: {error}"),
        }
        if n > 1 {
            cq.resize(n).err().ok_or("resized")?;
            context
                .gid_entry(harness::device().port, n)
                .err()
                .ok_or("a GID")?;
        }
    }
    // SAFETY: there is no such memory, which the device finds out.
    let region = unsafe {
        MemoryRegion::register(
            &pd,
            std::ptr::without_provenance_mut(4096),
            usize::MAX,
            AccessFlags::LOCAL_WRITE,
        )
    };
    let error = region.err().ok_or("the whole address space")?;
    ensure!(error.errno().is_some(), "{error}");
    Ok(())
}

fn inline_bind() -> Outcome {
    let (one, _two) = pair(QpType::RC)?;
    let target = Buffer::with_access(&one.pd, 4096, WINDOWED)?;
    for window_type in [WindowType::TYPE_1, WindowType::TYPE_2] {
        let window = MemoryWindow::new(&one.pd, window_type)?;
        let bind = WindowBind {
            flags: SendFlags::SIGNALED | SendFlags::INLINE,
            ..bind_of(target.region())
        };
        let error = one.qp.bind(&window, &bind).err().ok_or("bound inline")?;
        ensure!(error.to_string().contains("inline"), "{error}");
        one.qp.bind(&window, &bind_of(target.region()))?;
        one.sent(50)?;
        window.close()?;
    }
    Ok(())
}
