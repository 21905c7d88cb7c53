//! Verbs that fail, and events of completion queues counted.

use harness::{Baseline, Need, Outcome, Role, Test, ensure, ensure_eq, rounds, test};
use rpma::{ErrorKind, LocalRegion, Peer, Usage};

use super::stage::Stage;
use super::{Fault, child};

pub(super) fn tests() -> Vec<Test> {
    vec![test(
        "a_failing_registration_or_domain_leaves_nothing",
        &[Need::Device, Need::C],
        || child("failing_registration", ""),
    )]
}

pub(super) const ROLES: &[Role] = &[("failing_registration", failing_registration)];

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
