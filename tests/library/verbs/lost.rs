//! Work that gives no completion, or gives it to nobody: after a reset, a destroy, a deregistration.

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use harness::{Failed, Need, Outcome, SECOND, Test, WAIT, ensure, ensure_eq, test};
use rpma::cm::verbs::{
    AccessFlags, CompletionQueue, Deadline, InitAttributes, ProtectionDomain, QpState, QpType,
    RecvRequest, RemoteAddr, SendFlags, SendRequest, WcStatus, WorkCompletion, sys,
};

use super::by_hand::{End, pair};
use super::objects::open;
use crate::raw::{Buffer, poll, try_poll};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test(
            "a_reset_forgets_what_was_posted_and_the_queue_pair_works_again",
            &[Need::Device],
            reset_forgets,
        ),
        test(
            "completions_of_a_queue_pair_that_is_gone_are_plain_data",
            &[Need::Device],
            stale_completions,
        ),
        test(
            "a_send_that_the_device_refused_before_rts_may_go_out_later",
            &[Need::Device],
            refused_and_sent_later,
        ),
        test(
            "a_request_without_the_signaled_flag_completes_when_it_is_flushed",
            &[Need::Device],
            unsignaled_flushed,
        ),
        test(
            "a_region_goes_under_a_posted_receive_and_nothing_is_written",
            &[Need::Device],
            region_under_a_receive,
        ),
        test(
            "all_work_for_a_peer_that_has_gone_comes_back_once",
            &[Need::Device],
            a_peer_that_has_gone,
        ),
        test(
            "a_drain_ends_while_the_peer_still_sends",
            &[Need::Device],
            drained_under_fire,
        ),
    ]
}

/// All that is in a queue now.
fn all(cq: &CompletionQueue) -> Result<Vec<WorkCompletion>, Failed> {
    let mut out = [MaybeUninit::uninit(); 64];
    Ok(cq.poll(&mut out)?.to_vec())
}

fn reset_forgets() -> Outcome {
    let (one, two) = pair(QpType::RC)?;
    for wr_id in 0..8 {
        one.recv(wr_id)?;
    }
    // Nobody receives these.
    for wr_id in 10..14 {
        one.post(SendRequest::send(wr_id, &[]))?;
    }
    one.qp.reset()?;
    two.qp.reset()?;
    ensure_eq!(one.qp.state(), QpState::RESET, "state");
    for end in [&one, &two] {
        let mut init = InitAttributes::new(harness::device().port);
        init.access = AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE;
        end.qp.to_init(&init)?;
    }
    one.connect(&two)?;
    two.connect(&one)?;
    // The first receive now takes the first message now: none of the old ones is there any more.
    for wr_id in 20..24 {
        one.recv(wr_id)?;
        two.post(SendRequest::send(wr_id, &[]))?;
        two.sent(wr_id)?;
        one.received(wr_id)?;
    }
    for end in [&one, &two] {
        let left = (try_poll(&end.send_cq)?, try_poll(&end.recv_cq)?);
        ensure!(matches!(left, (None, None)), "left: {left:?}");
    }
    Ok(())
}

fn stale_completions() -> Outcome {
    let (one, two) = pair(QpType::RC)?;
    for wr_id in 0..4 {
        one.recv(wr_id)?;
    }
    one.qp.set_error()?;
    for wr_id in 4..8 {
        one.post(SendRequest::send(wr_id, &[]))?;
    }
    let End {
        qp,
        send_cq,
        recv_cq,
        ..
    } = one;
    let number = qp.number();
    qp.close()?;
    // SoftRoCE leaves them, other devices take them out: nobody may count on either.
    for (cq, numbers) in [(&recv_cq, 0..4), (&send_cq, 4..8)] {
        for completion in all(cq)? {
            ensure_eq!(completion.qp_num(), number, "queue pair");
            ensure!(numbers.contains(&completion.wr_id()), "{completion:?}");
            ensure_eq!(completion.status(), WcStatus::WR_FLUSH_ERR, "status");
        }
        ensure!(all(cq)?.is_empty(), "more than were posted");
    }
    // The queues serve the next one.
    let pd = two.pd.clone();
    let next = rpma::cm::verbs::QueuePair::builder(&pd, QpType::RC, &send_cq, &recv_cq).build()?;
    next.to_init(&InitAttributes::new(harness::device().port))?;
    // SAFETY: the request has no memory.
    unsafe { next.post_recv(&mut RecvRequest::new(9, &[])) }?;
    next.set_error()?;
    let completion = poll(&recv_cq)?;
    ensure_eq!(completion.wr_id(), 9, "of the next");
    ensure_eq!(completion.qp_num(), next.number(), "of the next");
    Ok(())
}

/// Why a post before RTS never reaches the device, and why a refusal without the request's address
/// counts as posted.
fn refused_and_sent_later() -> Outcome {
    let context = open()?;
    let one = End::new(&ProtectionDomain::new(&context)?, QpType::RC, |qp| qp)?;
    let two = End::new(&ProtectionDomain::new(&context)?, QpType::RC, |qp| qp)?;
    // SAFETY: integers, pointers and unions of them, for which zero is a value.
    let mut request: sys::ibv_send_wr = unsafe { MaybeUninit::zeroed().assume_init() };
    request.wr_id = 41;
    request.opcode = sys::ibv_wr_opcode::IBV_WR_SEND;
    request.send_flags = SendFlags::SIGNALED.bits();
    let mut bad = ptr::null_mut();
    // SAFETY: the queue pair is live, and the request whole, alone and without memory.
    let ret = unsafe { sys::ibv_post_send(one.qp.as_raw(), &mut request, &mut bad) };
    ensure!(ret != 0, "a send was taken in INIT");
    two.recv(7)?;
    one.connect(&two)?;
    two.connect(&one)?;
    if bad.is_null() {
        // SoftRoCE: it was in the ring already when the doorbell failed.
        one.post(SendRequest::send(42, &[]))?;
        two.recv(8)?;
        for (sent, received) in [(41, 7), (42, 8)] {
            one.sent(sent)?;
            two.received(received)?;
        }
    } else {
        one.post(SendRequest::send(42, &[]))?;
        one.sent(42)?;
        two.received(7)?;
    }
    Ok(())
}

fn unsignaled_flushed() -> Outcome {
    let (one, _two) = pair(QpType::RC)?;
    let mut requests: Vec<_> = (0..5).map(|n| SendRequest::send(n, &[])).collect();
    // SAFETY: the requests have no memory.
    unsafe { one.qp.post_send_list(&mut requests) }?;
    one.qp.set_error()?;
    for n in 0..5 {
        let completion = poll(&one.send_cq)?;
        ensure_eq!(completion.wr_id(), n, "order");
        ensure_eq!(completion.status(), WcStatus::WR_FLUSH_ERR, "status");
    }
    Ok(())
}

fn region_under_a_receive() -> Outcome {
    let (one, two) = pair(QpType::RC)?;
    let mut gone = Buffer::new(&two.pd, 4096)?;
    let sges = [gone.sge(0, 64)];
    // SAFETY: the buffer is registered memory to which no reference is formed.
    unsafe { two.qp.post_recv(&mut RecvRequest::new(5, &sges)) }?;
    gone.deregister()?;
    one.buffer.store(0, &[9; 64]);
    one.post(SendRequest::send(6, &[one.buffer.sge(0, 64)]))?;
    let (sent, received) = (poll(&one.send_cq)?, poll(&two.recv_cq)?);
    ensure_eq!(sent.status(), WcStatus::REM_OP_ERR, "the sender");
    ensure_eq!(received.wr_id(), 5, "the receive");
    ensure!(
        [WcStatus::LOC_QP_OP_ERR, WcStatus::LOC_PROT_ERR].contains(&received.status()),
        "the receiver: {received:?}"
    );
    ensure_eq!(gone.load(0, 64), vec![0; 64], "the memory");
    Ok(())
}

/// The numbers that a drain gives back, which must take less than a second.
fn drained(end: &End) -> Result<Vec<u64>, Failed> {
    let mut numbers = Vec::new();
    let start = Instant::now();
    end.qp.drain(Deadline::after(2 * SECOND), |completion| {
        numbers.push(completion.wr_id());
    })?;
    ensure!(start.elapsed() < SECOND, "took {:?}", start.elapsed());
    numbers.sort_unstable();
    Ok(numbers)
}

fn a_peer_that_has_gone() -> Outcome {
    let (one, two) = pair(QpType::RC)?;
    let target = RemoteAddr {
        addr: two.buffer.region().iova(),
        rkey: two.buffer.region().rkey(),
    };
    drop(two);
    for wr_id in 0..16 {
        one.recv(wr_id)?;
    }
    let sges = [one.buffer.sge(0, 64)];
    for wr_id in 16..20 {
        one.post(SendRequest::write(wr_id, &sges, target))?;
    }
    ensure_eq!(drained(&one)?, (0..20).collect::<Vec<_>>(), "requests");
    // Nothing is left for whoever looks again, also after a reset.
    one.qp.reset()?;
    let left = (all(&one.send_cq)?.len(), all(&one.recv_cq)?.len());
    ensure_eq!(left, (0, 0), "completions left");
    Ok(())
}

fn drained_under_fire() -> Outcome {
    let (one, two) = pair(QpType::RC)?;
    for wr_id in 0..16 {
        one.recv(wr_id)?;
    }
    let over = AtomicBool::new(false);
    let begun = AtomicBool::new(false);
    let numbers = std::thread::scope(|scope| {
        let sender = scope.spawn(|| -> Result<(), String> {
            let limit = Deadline::after(WAIT);
            while !over.load(Ordering::Acquire) && !limit.has_passed() {
                let mut request = SendRequest::send(1, &[]).with_flags(SendFlags::SIGNALED);
                // SAFETY: the request has no memory. A full queue is tried again.
                let _ = unsafe { two.qp.post_send(&mut request) };
                if let Some(ended) = try_poll(&two.send_cq)
                    .map_err(|e| e.message().unwrap_or_default().to_owned())?
                {
                    begun.store(true, Ordering::Release);
                    if ended.status() != WcStatus::SUCCESS {
                        return Ok(());
                    }
                }
            }
            Ok(())
        });
        let limit = Deadline::after(WAIT);
        while !begun.load(Ordering::Acquire) && !limit.has_passed() {
            std::thread::yield_now();
        }
        let numbers = drained(&one);
        over.store(true, Ordering::Release);
        sender.join().map_err(|_| "the sender panicked")??;
        numbers
    })?;
    ensure_eq!(numbers, (0..16).collect::<Vec<_>>(), "receives");
    Ok(())
}
