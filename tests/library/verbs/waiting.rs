//! Waiting for completions: none is missed, whatever comes while a thread looks or sleeps.

use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use harness::{Failed, Need, Outcome, SECOND, Test, WAIT, device, ensure, ensure_eq, test};
use rpma::cm::verbs::{
    AsyncEventKind, AsyncEventSource, CompletionChannel, CompletionQueue, Deadline, ErrorKind,
    InitAttributes, ProtectionDomain, QpType, QueuePair, SendRequest, WcStatus, wait_readable,
};

use super::by_hand::{QKEY, handle};
use super::events::Flushing;
use super::objects::open;
use crate::raw::Buffer;

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test(
            "completions_that_collected_come_out_of_waits_with_less_room",
            &[Need::Device],
            collected,
        ),
        test(
            "one_event_for_several_completions_loses_none_of_them",
            &[Need::Device],
            several_for_one_event,
        ),
        test(
            "a_wait_on_a_queue_that_has_overrun_ends_at_its_deadline",
            &[Need::Device],
            overrun,
        ),
        test(
            "two_threads_that_wait_on_one_queue_get_a_completion_each_at_once",
            &[Need::Device],
            two_threads,
        ),
        test(
            "a_wait_that_an_event_has_ended_leaves_the_queue_armed",
            &[Need::Device],
            armed_after_a_wait,
        ),
        test(
            "a_datagram_wakes_its_receiver_by_an_event",
            &[Need::Device],
            datagram_event,
        ),
        test(
            "a_channel_without_an_event_is_nothing_yet_and_no_error",
            &[Need::Device],
            empty_channel,
        ),
        test(
            "a_channel_of_the_device_opened_again_is_refused_by_name",
            &[Need::Device],
            foreign_channel,
        ),
    ]
}

fn collected() -> Outcome {
    for count in [33, 64, 100] {
        let flushing = Flushing::sized(128)?;
        flushing.cq.arm()?;
        for wr_id in 0..count {
            flushing.complete(wr_id)?;
        }
        let start = Instant::now();
        let mut numbers = Vec::new();
        while numbers.len() < usize::try_from(count)? {
            let mut out = [MaybeUninit::uninit(); 16];
            let got = flushing.cq.wait(&mut out, Deadline::after(SECOND))?;
            numbers.extend(got.iter().map(|completion| completion.wr_id()));
        }
        ensure!(start.elapsed() < SECOND, "{count}: {:?}", start.elapsed());
        ensure_eq!(numbers, (0..count).collect::<Vec<_>>(), "order");
    }
    Ok(())
}

fn several_for_one_event() -> Outcome {
    let flushing = Flushing::sized(64)?;
    // The numbers come in order; the answer is how many there were.
    let poll_all = |mut next: u64| -> Result<u64, Failed> {
        loop {
            let mut out = [MaybeUninit::uninit(); 4];
            let polled = flushing.cq.poll(&mut out)?;
            if polled.is_empty() {
                return Ok(next);
            }
            for completion in polled.iter() {
                ensure_eq!(completion.wr_id(), next, "order");
                next += 1;
            }
        }
    };
    let (mut made, mut got, mut events, mut empty) = (0, 0, 0, 0);
    flushing.cq.arm()?;
    while got < 1000 {
        for _ in 0..2 {
            flushing.complete(made)?;
            made += 1;
        }
        let deadline = Deadline::after(WAIT);
        while got < made {
            flushing.channel.next_event(deadline)?;
            events += 1;
            let before = got;
            got = poll_all(got)?;
            empty += u64::from(got == before);
            flushing.cq.arm()?;
            // What came between the poll and the arming gives no event.
            got = poll_all(got)?;
        }
    }
    ensure_eq!(got, made, "completions");
    // An event may find the queue empty, since what it was for came out with the one before.
    ensure!(
        events - empty <= made,
        "{events} events, {empty} of them for nothing"
    );
    Ok(())
}

fn overrun() -> Outcome {
    let context = open()?;
    let events = context.async_events()?;
    let pd = ProtectionDomain::new(&context)?;
    let channel = CompletionChannel::new(&context)?;
    let cq = CompletionQueue::builder(&context, 2)
        .allow_overrun(true)
        .own_channel(&channel)
        .build()?;
    let qp = QueuePair::builder(&pd, QpType::RC, &cq, &cq)
        .max_send_wr(64)
        .max_recv_wr(1)
        .build()?;
    qp.to_init(&InitAttributes::new(device().port))?;
    qp.set_error()?;
    let posted = u64::from(cq.entries()) + 8;
    for wr_id in 0..posted {
        // SAFETY: the request has no memory.
        unsafe { qp.post_send(&mut SendRequest::send(wr_id, &[])) }?;
    }
    let deadline = Deadline::after(WAIT);
    loop {
        let event = events.next(deadline)?;
        if event.kind() == AsyncEventKind::CQ_ERR {
            let ours = AsyncEventSource::CompletionQueue(Some(cq.id()));
            ensure_eq!(event.source(), ours, "source");
            break;
        }
    }
    // What there was room for comes out, if the device still gives it; then the wait ends.
    let limit = Duration::from_millis(400);
    let start = Instant::now();
    let mut got = 0;
    let error = loop {
        let mut out = [MaybeUninit::uninit(); 4];
        match cq.wait(&mut out, Deadline::after(limit)) {
            Ok(completions) => got += completions.len() as u64,
            Err(error) => break error,
        }
        ensure!(got < posted, "nothing was lost");
    };
    ensure!(start.elapsed() < 2 * SECOND, "took {:?}", start.elapsed());
    // SoftRoCE goes on with the queue; elsewhere it may be of no further use.
    ensure!(
        matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::Provider),
        "{error}"
    );
    Ok(())
}

fn two_threads() -> Outcome {
    for round in 0..harness::rounds(5, 100) {
        let flushing = Flushing::sized(16)?;
        // They sleep before the completions come: the channel is silent and the queue armed.
        let start = Instant::now();
        let mut got = thread::scope(|scope| {
            let wait = || -> Result<(u64, Duration), String> {
                let mut out = [MaybeUninit::uninit(); 1];
                let got = flushing.cq.wait(&mut out, Deadline::after(WAIT));
                let got = got.map_err(|error| error.to_string())?;
                Ok((got[0].wr_id(), start.elapsed()))
            };
            let threads = [scope.spawn(wait), scope.spawn(wait)];
            for wr_id in 0..2 {
                flushing.complete(wr_id)?;
            }
            threads
                .into_iter()
                .map(|thread| Ok(thread.join().map_err(|_| "a waiting thread panicked")??))
                .collect::<Result<Vec<_>, Failed>>()
        })?;
        got.sort_unstable();
        let numbers: Vec<_> = got.iter().map(|(number, _)| *number).collect();
        ensure_eq!(numbers, [0, 1], "round {round}");
        let slowest = got.iter().map(|(_, took)| *took).max();
        // A lost wake-up is found within 100 ms; the rest is room for a busy machine.
        ensure!(
            slowest < Some(Duration::from_millis(600)),
            "round {round}: {slowest:?}"
        );
    }
    Ok(())
}

fn armed_after_a_wait() -> Outcome {
    let flushing = Flushing::sized(16)?;
    let mut by_event = 0;
    for round in 0..20 {
        let got = thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let mut out = [MaybeUninit::uninit(); 4];
                let got = flushing.cq.wait(&mut out, Deadline::after(WAIT));
                got.map(|got| got.len()).map_err(|error| error.to_string())
            });
            // Give it the time to fall asleep: only then is it the event that ends the wait.
            thread::sleep(Duration::from_millis(20));
            flushing.complete(2 * round)?;
            Ok::<_, Failed>(
                waiting
                    .join()
                    .map_err(|_| "the waiting thread panicked")??,
            )
        })?;
        ensure_eq!(got, 1, "completions");
        flushing.complete(2 * round + 1)?;
        let event = flushing
            .channel
            .next_event(Deadline::after(Duration::from_millis(100)));
        by_event += u32::from(event.is_ok());
        let mut out = [MaybeUninit::uninit(); 4];
        ensure_eq!(flushing.cq.poll(&mut out)?.len(), 1, "completions");
    }
    // On a busy machine some waits find their completion without having slept.
    ensure!(by_event > 0, "no second completion gave an event");
    Ok(())
}

fn datagram_event() -> Outcome {
    let context = open()?;
    let pd = ProtectionDomain::new(&context)?;
    let channel = CompletionChannel::new(&context)?;
    let cq = CompletionQueue::builder(&context, 16)
        .own_channel(&channel)
        .build()?;
    let end = |cq: &CompletionQueue| -> Result<QueuePair, Failed> {
        let qp = QueuePair::builder(&pd, QpType::UD, cq, cq)
            .max_send_wr(4)
            .max_recv_wr(4)
            .build()?;
        let mut init = InitAttributes::new(device().port);
        init.qkey = QKEY;
        qp.to_init(&init)?;
        qp.to_rtr_datagram()?;
        qp.to_rts(&rpma::cm::verbs::RtsAttributes::new(0))?;
        Ok(qp)
    };
    let silent = CompletionQueue::builder(&context, 16).build()?;
    let (receiver, sender) = (end(&cq)?, end(&silent)?);
    let buffer = Buffer::new(&pd, 4096)?;
    let address = handle(&pd)?;
    for round in 0..5 {
        let sges = [buffer.sge(0, 100)];
        let mut request = rpma::cm::verbs::RecvRequest::new(round, &sges);
        // SAFETY: the buffer is registered memory to which no reference is formed.
        unsafe { receiver.post_recv(&mut request) }?;
        cq.arm()?;
        let sges = [buffer.sge(200, 8)];
        let mut request = SendRequest::datagram(1, &sges, &address, receiver.number(), QKEY);
        // SAFETY: as above; the address lives to the end.
        unsafe { sender.post_send(&mut request) }?;
        let event = channel.next_event(Deadline::after(WAIT))?;
        ensure_eq!(event.queue(), cq.id(), "queue");
        let mut out = [MaybeUninit::uninit(); 4];
        let got = cq.poll(&mut out)?;
        ensure_eq!(got.len(), 1, "completions");
        ensure_eq!(got[0].wr_id(), round, "receive");
        ensure_eq!(got[0].result()?.byte_len(), 48, "bytes");
    }
    Ok(())
}

fn empty_channel() -> Outcome {
    let flushing = Flushing::sized(16)?;
    for _ in 0..3 {
        ensure!(flushing.channel.try_next_event()?.is_none(), "an event");
    }
    let fd = [flushing.channel.as_fd()];
    let [readable] = wait_readable(fd, Deadline::after(Duration::ZERO))?;
    ensure!(!readable, "readable without an event");
    flushing.cq.arm()?;
    flushing.complete(1)?;
    let [readable] = wait_readable(fd, Deadline::after(WAIT))?;
    ensure!(readable, "not readable with an event");
    ensure!(flushing.channel.try_next_event()?.is_some(), "no event");
    ensure!(flushing.channel.try_next_event()?.is_none(), "two events");
    let mut out = [MaybeUninit::uninit(); 4];
    let got = flushing.cq.poll(&mut out)?;
    ensure_eq!(got[0].status(), WcStatus::WR_FLUSH_ERR, "status");
    Ok(())
}

fn foreign_channel() -> Outcome {
    let (context, again) = (open()?, open()?);
    let channel = CompletionChannel::new(&again)?;
    for shared in [false, true] {
        let builder = CompletionQueue::builder(&context, 16);
        let builder = if shared {
            builder.shared_channel(&channel)
        } else {
            builder.own_channel(&channel)
        };
        let error = builder.build().err().ok_or("a channel of another device")?;
        ensure_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        ensure!(error.to_string().contains("completion channel"), "{error}");
    }
    CompletionQueue::builder(&again, 16)
        .own_channel(&channel)
        .build()?;
    Ok(())
}
