//! Verbs that fail, and events of completion queues counted.

use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

use harness::{Baseline, Need, Outcome, Role, SECOND, Test, ensure, ensure_eq, rounds, test};
use rpma::cm::verbs::{Deadline, ErrorKind as VerbsErrorKind};
use rpma::{ErrorKind, LocalRegion, Peer, Usage};

use super::stage::Stage;
use super::{Fault, child};
use crate::verbs::Flushing;

pub(super) fn tests() -> Vec<Test> {
    vec![
        test(
            "a_failing_registration_or_domain_leaves_nothing",
            &[Need::Device, Need::C],
            || child("failing_registration", ""),
        ),
        test(
            "every_completion_event_that_was_got_is_acknowledged_before_its_queue_goes",
            &[Need::Device, Need::C],
            || child("counted_events", ""),
        ),
    ]
}

pub(super) const ROLES: &[Role] = &[
    ("failing_registration", failing_registration),
    ("counted_events", counted_events),
];

fn failing_registration() -> Outcome {
    let fault = Fault::find()?;
    let stage = Stage::new()?;
    stage.works()?;
    let baseline = Baseline::take()?;
    for _ in 0..rounds(20, 100) {
        // Which of the two registers memory is the header's choice.
        for name in ["ibv_reg_mr", "ibv_reg_mr_iova2"] {
            fault.arm(name, 1, libc::ENOMEM)?;
            let region = LocalRegion::alloc(&stage.client_peer, 4096, Usage::all());
            if let Err(error) = &region {
                ensure_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
                ensure!(error.hint().is_some(), "no hint");
            }
            ensure_eq!(
                u32::from(region.is_err()),
                fault.hits(),
                "failed registrations"
            );
        }
        for name in ["ibv_alloc_pd", "ibv_reg_mr"] {
            fault.arm(name, 1, libc::ENOMEM)?;
            let peer = Peer::new(stage.client_peer.device());
            ensure_eq!(
                u32::from(peer.is_err()),
                fault.hits(),
                "failed calls of {name}"
            );
        }
    }
    fault.arm("", 0, 0)?;
    baseline.check()?;
    stage.works()?;
    drop(stage);
    fault.balanced()
}

fn counted_events() -> Outcome {
    let fault = Fault::find()?;
    let count = rounds(1000, 10_000) as u64;
    let flushing = Flushing::sized(4)?;
    let mut timed_out = 0;
    for n in 0..count {
        flushing.event(n)?;
        if n % (count / 100) == 0 {
            let mut out = [MaybeUninit::uninit(); 4];
            let moment = Deadline::after(Duration::from_millis(1));
            let error = flushing.cq.wait(&mut out, moment).err();
            let error = error.ok_or("a completion from nowhere")?;
            ensure_eq!(error.kind(), VerbsErrorKind::TimedOut, "{error}");
            timed_out += 1;
        }
    }
    ensure_eq!(timed_out, 100, "waits that ended at their deadline");
    let got = fault.counts().cq_got;
    ensure_eq!(got, count, "events got");
    let start = Instant::now();
    drop(flushing);
    ensure!(start.elapsed() < SECOND, "took {:?}", start.elapsed());
    let counts = fault.counts();
    ensure_eq!(counts.cq_acked, counts.cq_got, "events acknowledged");
    ensure_eq!(counts.busy, 0, "releases refused as busy");
    Ok(())
}
