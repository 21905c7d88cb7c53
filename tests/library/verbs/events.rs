//! Completion events: counted, acknowledged in batches, and never waited for on drop.

use std::mem::MaybeUninit;
use std::thread;
use std::time::{Duration, Instant};

use harness::{Failed, Need, Outcome, SECOND, Test, WAIT, ensure, ensure_eq, phase, test};
use rpma::cm::verbs::{
    CompletionChannel, CompletionQueue, Deadline, ErrorKind, InitAttributes, ProtectionDomain,
    QpState, QpType, QueuePair, SendRequest,
};

use super::objects::open;
use crate::raw::poll;

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test(
            "events_past_a_batch_of_acknowledgements_do_not_hang_the_drop",
            &[Need::Device],
            many_events,
        ),
        test(
            "an_event_that_nobody_took_does_not_hang_the_drop",
            &[Need::Device],
            an_event_nobody_took,
        ),
        test(
            "a_queue_may_be_dropped_while_another_thread_waits_on_its_channel",
            &[Need::Device],
            dropped_while_another_waits,
        ),
        test(
            "an_event_names_its_queue_among_those_of_a_shared_channel",
            &[Need::Device],
            a_shared_channel,
        ),
        test(
            "a_wait_for_a_completion_ends_at_its_deadline",
            &[Need::Device],
            a_wait_ends,
        ),
    ]
}

/// A queue pair in the error state: each send posted to it completes at once, as flushed.
///
/// Not a receive: SoftRoCE does not look at its receive queue again once it is in that state.
pub(crate) struct Flushing {
    qp: QueuePair,
    pub(crate) cq: CompletionQueue,
    pub(super) channel: CompletionChannel,
}

impl Flushing {
    fn new() -> Result<Self, Failed> {
        Self::sized(4)
    }

    /// With room for `sends` completions at once.
    pub(crate) fn sized(sends: u32) -> Result<Self, Failed> {
        let context = open()?;
        let channel = CompletionChannel::new(&context)?;
        Self::on(&channel, false, sends)
    }

    fn on(channel: &CompletionChannel, shared: bool, sends: u32) -> Result<Self, Failed> {
        let context = channel.context();
        let pd = ProtectionDomain::new(context)?;
        // Newer kernels grant a queue pair what its rings hold, rounded up to a power of two, and a
        // completion queue needs room for what was granted.
        let builder = CompletionQueue::builder(context, (sends + 1).next_power_of_two() + 12);
        let cq = if shared {
            builder.shared_channel(channel)
        } else {
            builder.own_channel(channel)
        }
        .build()?;
        let qp = QueuePair::builder(&pd, QpType::RC, &cq, &cq)
            .max_send_wr(sends)
            .max_recv_wr(4)
            .build()?;
        qp.to_init(&InitAttributes::new(harness::device().port))?;
        qp.set_error()?;
        ensure_eq!(qp.state(), QpState::ERR, "state");
        Ok(Self {
            qp,
            cq,
            channel: channel.clone(),
        })
    }

    /// Makes one completion.
    pub(super) fn complete(&self, wr_id: u64) -> Result<(), Failed> {
        // SAFETY: the request has no memory.
        Ok(unsafe { self.qp.post_send(&mut SendRequest::send(wr_id, &[])) }?)
    }

    /// Makes one completion with its event, and takes both.
    pub(crate) fn event(&self, wr_id: u64) -> Result<(), Failed> {
        self.cq.arm()?;
        self.complete(wr_id)?;
        let event = self.channel.next_event(Deadline::after(WAIT))?;
        ensure_eq!(event.queue(), self.cq.id(), "the queue of the event");
        let completion = poll(&self.cq)?;
        ensure_eq!(completion.wr_id(), wr_id, "the completion");
        ensure!(
            completion.result().is_err_and(|e| e.is_flushed()),
            "{completion:?}"
        );
        Ok(())
    }
}

/// Drops what is given, which must take less than two seconds.
fn dropped_quickly<T>(what: &str, value: T) -> Outcome {
    phase(format!("dropping {what}"));
    let start = Instant::now();
    drop(value);
    ensure!(
        start.elapsed() < 2 * SECOND,
        "dropping {what} took {:?}",
        start.elapsed()
    );
    Ok(())
}

fn many_events() -> Outcome {
    // One below, at, and one above the batch, and past the second one.
    for count in [1_u64, 255, 256, 257, 520] {
        let flushing = Flushing::new()?;
        for n in 0..count {
            flushing.event(n)?;
        }
        let Flushing { qp, cq, channel } = flushing;
        dropped_quickly("the queue pair", qp)?;
        dropped_quickly("the queue", cq)?;
        dropped_quickly("the channel", channel)?;
    }
    Ok(())
}

fn an_event_nobody_took() -> Outcome {
    let flushing = Flushing::new()?;
    flushing.cq.arm()?;
    flushing.complete(1)?;
    poll(&flushing.cq)?;
    let Flushing { qp, cq, channel } = flushing;
    dropped_quickly("the queue pair", qp)?;
    dropped_quickly("the queue", cq)?;
    // The event of a queue that is gone must not come out of the channel.
    ensure!(
        channel.try_next_event()?.is_none(),
        "an event of a queue that is gone"
    );
    dropped_quickly("the channel", channel)
}

fn dropped_while_another_waits() -> Outcome {
    let mut taken = 0;
    for round in 0..harness::rounds(20, 500) {
        let Flushing { qp, cq, channel } = Flushing::new()?;
        let waiting = channel.clone();
        let waiter = thread::spawn(move || {
            let deadline = Deadline::after(Duration::from_millis(200));
            let mut events = 0_u64;
            loop {
                match waiting.next_event(deadline) {
                    Ok(_) => events += 1,
                    Err(error) if error.kind() == ErrorKind::TimedOut => return Ok(events),
                    Err(error) => return Err(error),
                }
            }
        });
        let mut made = 0;
        let until = Instant::now() + Duration::from_millis(20);
        let mut out = [MaybeUninit::uninit(); 4];
        while Instant::now() < until {
            cq.arm()?;
            // SAFETY: the request has no memory.
            if unsafe { qp.post_send(&mut SendRequest::send(made, &[])) }.is_ok() {
                made += 1;
            }
            cq.poll(&mut out)?;
        }
        dropped_quickly("the queue pair", qp)?;
        dropped_quickly("the queue", cq)?;
        let events = waiter.join().map_err(|_| "the waiting thread panicked")??;
        ensure!(
            events <= made,
            "round {round}: {events} events of {made} completions"
        );
        // In a single round the other thread may have been too late for any.
        taken += events;
        dropped_quickly("the channel", channel)?;
    }
    ensure!(taken > 0, "the other thread never took an event");
    Ok(())
}

fn a_shared_channel() -> Outcome {
    let context = open()?;
    let channel = CompletionChannel::new(&context)?;
    let (a, b) = (
        Flushing::on(&channel, true, 4)?,
        Flushing::on(&channel, true, 4)?,
    );
    for n in 0..5 {
        a.event(n)?;
        b.event(n)?;
    }
    let error =
        a.cq.wait(&mut [MaybeUninit::uninit()], Deadline::after(SECOND))
            .err();
    ensure_eq!(
        error.map(|e| e.kind()),
        Some(ErrorKind::SharedChannel),
        "waiting on one of two"
    );
    // The first queue goes; the second still works.
    drop(a);
    b.event(9)
}

fn a_wait_ends() -> Outcome {
    let flushing = Flushing::new()?;
    for millis in [0, 50, 300] {
        let limit = Duration::from_millis(millis);
        let start = Instant::now();
        let error = flushing
            .cq
            .wait(&mut [MaybeUninit::uninit()], Deadline::after(limit))
            .err()
            .ok_or("a completion from nowhere")?;
        let took = start.elapsed();
        ensure_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        ensure!(
            took >= limit && took < limit + Duration::from_millis(500),
            "{limit:?} took {took:?}"
        );
    }
    flushing.complete(3)?;
    let mut out = [MaybeUninit::uninit(); 4];
    let got = flushing.cq.wait(&mut out, Deadline::after(WAIT))?;
    ensure_eq!(got.len(), 1, "completions");
    Ok(())
}
