//! Connecting, with each call of the three layers failing in turn.

use harness::{
    Baseline, Need, Outcome, Role, Test, ensure, ensure_eq, full, phase, role_argument, test,
};

use super::stage::Stage;
use super::{Fault, child};

pub(super) fn tests() -> Vec<Test> {
    vec![
        test(
            "a_failing_call_while_connecting_leaves_nothing_and_hangs_nobody",
            &[Need::Device, Need::C],
            failing_calls,
        )
        .limit(240),
    ]
}

pub(super) const ROLES: &[Role] = &[("failing_call", failing_call)];

/// The calls on the way to a connection of two ends in one process, with how many of each there
/// are: each of them fails in turn.
const CALLS: [(&str, u32, i32); 11] = [
    ("rdma_create_event_channel", 2, libc::EMFILE),
    ("rdma_create_id", 1, libc::ENOMEM),
    ("ibv_create_comp_channel", 2, libc::EMFILE),
    ("ibv_create_cq", 2, libc::ENOMEM),
    ("ibv_create_qp", 2, libc::ENOMEM),
    ("ibv_modify_qp", 6, libc::EINVAL),
    ("rdma_init_qp_attr", 7, libc::EINVAL),
    ("rdma_connect", 1, libc::EINVAL),
    ("rdma_migrate_id", 1, libc::ENOMEM),
    ("rdma_accept", 1, libc::EINVAL),
    ("rdma_establish", 1, libc::EINVAL),
];

fn failing_calls() -> Outcome {
    for (name, count, errno) in CALLS {
        phase(name);
        child("failing_call", &format!("{name} {count} {errno}"))
            .map_err(|failed| format!("{name}: {}", failed.message().unwrap_or_default()))?;
    }
    Ok(())
}

fn failing_call() -> Outcome {
    let argument = role_argument();
    let words: Vec<&str> = argument.split(' ').collect();
    let [name, count, errno] = words[..] else {
        return Err(format!("bad argument {argument:?}").into());
    };
    let (count, errno): (u32, i32) = (count.parse()?, errno.parse()?);
    let fault = Fault::find()?;
    let stage = Stage::new()?;
    stage.works()?;
    let baseline = Baseline::take()?;
    // Each of them once at least.
    for round in 0..if full() { 100 } else { count } {
        let nth = round % count + 1;
        fault.arm(name, nth, errno)?;
        let failed = stage.attempt().map_err(|failed| {
            format!(
                "call {nth}, round {round}: {}",
                failed.message().unwrap_or_default()
            )
        })?;
        let hits = fault.hits();
        fault.arm(name, 0, 0)?;
        ensure_eq!(hits, 1, "faults in call {nth} of {count}, with {failed:?}");
        let error = failed.ok_or(format!("call {nth} failed and nobody said so"))?;
        let text = error.to_string();
        ensure!(
            text.contains(name),
            "call {nth}: the error does not name it: {text}"
        );
        ensure!(
            text.contains(&format!("errno {errno}")),
            "call {nth}: no errno in: {text}"
        );
        if round < count {
            baseline
                .check()
                .map_err(|text| format!("call {nth}: {text}"))?;
            stage.works()?;
        }
    }
    // One more would be a call that is not tried.
    fault.arm(name, count + 1, errno)?;
    let failed = stage.attempt()?;
    ensure!(
        failed.is_none(),
        "there is a call {} too: {failed:?}",
        count + 1
    );
    fault.arm(name, 0, 0)?;
    stage.works()?;
    baseline.check()?;
    drop(stage);
    fault.balanced()
}
