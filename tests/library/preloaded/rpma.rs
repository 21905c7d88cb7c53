//! Connecting, with each call of the three layers failing in turn; and how many calls completions cost.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use harness::{
    Baseline, Failed, Need, Outcome, Pair, Role, Targets, Test, WAIT, ensure, ensure_eq, full,
    phase, role_argument, test,
};
use rpma::cm::Deadline;
use rpma::{Completion, CompletionQueue, Connection, ConnectionConfig, Error, Signal};

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
        test(
            "waiting_for_completions_costs_a_call_for_many_and_polling_none",
            &[Need::Device, Need::C],
            || child("waiting", ""),
        )
        .long(),
    ]
}

pub(super) const ROLES: &[Role] = &[("failing_call", failing_call), ("waiting", waiting)];

/// How many operations are posted at once.
const BATCH: u32 = 32;

fn waiting() -> Outcome {
    let fault = Fault::find()?;
    let mut config = ConnectionConfig::default();
    config.set_sq_size(BATCH);
    let pair = Pair::with(&config)?;
    let targets = Targets::new(&pair, 64)?;
    let Pair {
        mut client, server, ..
    } = pair;
    let cq = client.cq().clone();
    // 100,000 in the three ways together.
    let count = 33_344;
    type Take = fn(&CompletionQueue, &mut [MaybeUninit<Completion>]) -> Result<usize, Error>;
    let ways: [(&str, Take, u64); 3] = [
        ("polling", |cq, out| Ok(cq.poll(out)?.len()), 0),
        (
            "poll_wait",
            |cq, out| Ok(cq.poll_wait(out, WAIT)?.len()),
            count / 8,
        ),
        (
            "wait, then poll",
            |cq, out| {
                cq.wait(WAIT)?;
                Ok(cq.poll(out)?.len())
            },
            count / 8,
        ),
    ];
    // More than there ever are, so that the queue is known to be drained.
    let mut room = [MaybeUninit::uninit(); 2 * BATCH as usize];
    for (what, take, limit) in ways {
        phase(what);
        let before = fault.counts();
        let end = Deadline::after(Duration::from_secs(150));
        let mut left = count;
        // Another thread posts, so that this one really waits.
        let done = AtomicU64::new(0);
        thread::scope(|scope| {
            let (done, client, targets) = (&done, &mut client, &targets);
            let poster = scope.spawn(move || {
                (0..count / u64::from(BATCH)).try_for_each(|batch| {
                    while done.load(Ordering::Acquire) < batch * u64::from(BATCH) {
                        if end.has_passed() {
                            return Ok(());
                        }
                        thread::yield_now();
                    }
                    post(client, targets)
                })
            });
            while left > 0 {
                ensure!(!end.has_passed(), "{what}: {left} do not come");
                let took = take(&cq, &mut room)? as u64;
                left -= took;
                done.fetch_add(took, Ordering::Release);
            }
            poster.join().map_err(|_| "the poster panicked")??;
            Ok::<_, Failed>(())
        })?;
        let counts = fault.counts();
        for (call, before, after) in [
            ("ibv_get_cq_event", before.cq_got, counts.cq_got),
            (
                "ibv_ack_cq_events",
                before.cq_ack_calls,
                counts.cq_ack_calls,
            ),
            ("ibv_req_notify_cq", before.cq_armed, counts.cq_armed),
        ] {
            let calls = after - before;
            ensure!(
                calls <= limit,
                "{what}: {calls} calls of {call} for {count} completions"
            );
        }
    }
    ensure!(
        fault.counts().cq_armed > 0,
        "no call of ibv_req_notify_cq was counted"
    );
    drop((client, server, targets, cq));
    fault.balanced()
}

fn post(client: &Connection, targets: &Targets) -> Result<(), Error> {
    client.batch(|batch| {
        for n in 0..u64::from(BATCH) {
            let (to, from) = (targets.of_server.as_span(), targets.client.as_span());
            batch.write(to, from, Signal::Always, n)?;
        }
        Ok(())
    })
}

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
