//! The link is lost.

use std::time::{Duration, Instant};

use harness::{
    End, LINK, Link, Outcome, Role, SECOND, Targets, Test, ensure, ensure_eq, phase, role_argument,
    test,
};
use rpma::{ErrorKind, Signal, Status};

use super::traffic::Operation;
use super::{LIMIT, all_operations, dropped_within, ends, from_a, step};

pub(super) fn tests() -> Vec<Test> {
    vec![
        test(
            "a_long_write_whose_link_is_cut_and_whose_target_is_dropped_first_ends_in_time",
            LINK,
            || Link::run("long_write", ""),
        )
        .long(),
        test(
            "each_operation_whose_link_is_lost_ends_with_the_cause_and_nothing_half_done_counts",
            LINK,
            || {
                for how in [
                    "requests lost",
                    "answers lost",
                    "own link down",
                    "peer's link down",
                ] {
                    phase(how);
                    Link::run("link_lost", how).map_err(|failed| {
                        format!("{how}: {}", failed.message().unwrap_or_default())
                    })?;
                }
                Ok(())
            },
        )
        .long(),
    ]
}

pub(super) const ROLES: &[Role] = &[("link_lost", link_lost), ("long_write", long_write)];

/// How long packets of a queue pair may wait for a neighbour that does not answer (three questions, a second each). SoftRoCE
/// does not destroy the queue pair before.
const NEIGHBOUR: Duration = Duration::from_secs(5);

fn link_lost() -> Outcome {
    let mut all = all_operations()?;
    let how = role_argument();
    let cause = match &*how {
        "own link down" => Status::LOC_QP_OP_ERR,
        _ => Status::RETRY_EXC_ERR,
    };
    match &*how {
        "requests lost" => End::A.netem("loss 100%")?,
        "answers lost" => End::B.netem("loss 100%")?,
        "own link down" => End::A.down()?,
        "peer's link down" => End::B.down()?,
        _ => return Err("no such fault".into()),
    }
    let start = Instant::now();
    phase("waiting for the ends of the operations");
    let goes_on = |operation| operation == Operation::Recv;
    while all
        .iter()
        .any(|(active, _)| active.fate.is_none() && !goes_on(active.operation))
    {
        ensure!(start.elapsed() < LIMIT, "not all ended: {all:?}");
        step(&mut all)?;
    }
    println!("{how}: all ended after {:?}", start.elapsed());
    for (active, passive) in &mut all {
        let operation = active.operation;
        passive.agrees_with(active)?;
        // Nothing tells of it but the operations themselves: a receive waits as long as its owner wants.
        let told = active.connection.next_event(SECOND / 20);
        let kind = told.as_ref().err().map(rpma::Error::kind);
        ensure_eq!(kind, Some(ErrorKind::TimedOut), "{operation:?}: {told:?}");
        if !goes_on(operation) {
            let error = active.fate.ok_or("no fate")?;
            ensure_eq!(error.status, cause, "{operation:?}: {error}");
            active.is_over()?;
        }
        active.connection.disconnect()?;
        if goes_on(operation) {
            let error = active.connection.cq().next(SECOND)?.result().err();
            let error = error.ok_or("a message came after the end")?;
            ensure!(error.is_flushed(), "{operation:?}: {error}");
        }
    }
    dropped_within(NEIGHBOUR, "everything", all)
}

fn long_write() -> Outcome {
    let (a, b, endpoint) = ends()?;
    let len = (a.max_message_size() as usize).min(8 << 20);
    let pair = harness::Pair::between(a, b, &endpoint, &from_a(), |_| Ok(()))?;
    let Targets {
        client: source,
        server: target,
        of_server,
        ..
    } = Targets::new(&pair, len)?;
    // A device does not wait for more than some hundred packets to be answered, so that the whole takes seconds.
    End::A.netem("delay 60ms")?;
    let counter = "hw_counters/sent_pkts";
    let before = End::A.counter(counter)?;
    let (to, from) = (of_server.as_span(), source.as_span());
    pair.client.write(to, from, Signal::Always, 1)?;
    let start = Instant::now();
    while End::A.counter(counter)? < before + 50 {
        ensure!(start.elapsed() < LIMIT, "nothing is sent");
    }
    // What is on the way still arrives, but no answer comes back.
    for end in End::BOTH {
        end.netem("loss 100%")?;
    }
    let start = Instant::now();
    dropped_within(SECOND, "the target", target)?;
    phase("waiting for the end of the write");
    let completion = pair.client.cq().next(LIMIT)?;
    let error = completion.result().err().ok_or("the write succeeded")?;
    ensure_eq!(error.status, Status::RETRY_EXC_ERR, "{error}");
    ensure!(
        error.to_string().contains("the peer does not answer"),
        "{error}"
    );
    ensure!(start.elapsed() < LIMIT, "took {:?}", start.elapsed());
    dropped_within(SECOND, "the source", source)?;
    dropped_within(2 * SECOND, "both ends", pair)
}
