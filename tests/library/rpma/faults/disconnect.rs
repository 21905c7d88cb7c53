//! The connection is ended while operations are under way.

use harness::{
    End, LINK, Link, Outcome, Pair, Role, Targets, Test, WAIT, ensure, ensure_eq, phase, test,
};
use rpma::{Completion, ConnectionEvent, Signal};

use super::{ends, from_a};

pub(super) fn tests() -> Vec<Test> {
    vec![
        test(
            "each_operation_in_flight_at_a_disconnect_ends_once_and_what_succeeded_is_there",
            LINK,
            || Link::run("in_flight", ""),
        )
        .long(),
    ]
}

pub(super) const ROLES: &[Role] = &[("in_flight", in_flight)];

const WRITES: u64 = 64;
const RECEIVES: u64 = 8;
/// Bytes of a write.
const PART: u64 = 64 << 10;
/// What the receives are known by, from here on.
const FIRST_RECEIVE: u64 = 1000;

fn in_flight() -> Outcome {
    let (a, b, endpoint) = ends()?;
    let mut config = from_a();
    config.set_sq_size(64).set_rq_size(8);
    // A device does not wait for more than some hundred packets to be answered, so that the whole takes seconds.
    End::A.netem("delay 60ms")?;
    for who in ["this side", "the peer", "both"] {
        phase(who);
        let pair = Pair::between(a.clone(), b.clone(), &endpoint, &config, |_| Ok(()))?;
        let targets = Targets::new(&pair, usize::try_from(WRITES * PART)?)?;
        start(&pair, &targets)?;
        let first = pair.client.cq().next(WAIT)?;
        if who != "the peer" {
            pair.client.disconnect()?;
        }
        if who != "this side" {
            pair.server.disconnect()?;
        }
        // Who ended it is told when the other side has answered.
        let ends = match who {
            "this side" => [&pair.server, &pair.client],
            _ => [&pair.client, &pair.server],
        };
        for end in ends {
            let event = end.next_event(WAIT)?;
            ensure_eq!(event, ConnectionEvent::Closed, "{who}");
        }
        let mut fates = vec![first];
        while fates.len() < usize::try_from(WRITES + RECEIVES)? {
            fates.push(pair.client.cq().next(WAIT)?);
        }
        let one_more = pair.client.cq().poll_one()?;
        ensure!(one_more.is_none(), "{who}: {one_more:?}");
        what_was_done_is_there(&fates, &targets).map_err(|failed| {
            format!("ended by {who}: {}", failed.message().unwrap_or_default())
        })?;
        // Memory and peers are none the worse for it.
        drop(pair);
        let again = Pair::between(a.clone(), b.clone(), &endpoint, &config, |_| Ok(()))?;
        targets.client.store_u64(0, 77)?;
        let (to, from) = (targets.of_server.span(..8)?, targets.client.span(..8)?);
        again.client.write(to, from, Signal::Always, 0)?;
        harness::completed(again.client.cq())?;
        ensure_eq!(targets.server.load_u64(0)?, 77, "{who}: written again");
    }
    Ok(())
}

/// Where the first and the last word of write `n` are.
fn words_of(n: u64) -> [u64; 2] {
    [n * PART, n * PART + PART - 8]
}

/// Posts the receives, for which no message will come, and the writes, each with its number in its first and last word.
fn start(pair: &Pair, targets: &Targets) -> Outcome {
    for n in 0..RECEIVES {
        let to = targets.client.span(..8)?;
        pair.client.recv(to, FIRST_RECEIVE + n)?;
    }
    for n in 0..WRITES {
        for at in words_of(n) {
            targets.client.store_u64(usize::try_from(at)?, n + 1)?;
        }
        let part = n * PART..(n + 1) * PART;
        let to = targets.of_server.span(part.clone())?;
        let from = targets.client.span(part)?;
        pair.client.write(to, from, Signal::Always, n)?;
    }
    Ok(())
}

/// Each ended once and in its order; writes succeeded up to one of them, and what they wrote is there; all else was flushed.
fn what_was_done_is_there(fates: &[Completion], targets: &Targets) -> Outcome {
    let (receives, writes): (Vec<_>, Vec<_>) = fates
        .iter()
        .partition(|fate| fate.op_context() >= FIRST_RECEIVE);
    let order = |fates: &[&Completion]| Vec::from_iter(fates.iter().map(|fate| fate.op_context()));
    ensure_eq!(order(&writes), Vec::from_iter(0..WRITES), "writes");
    let expected = Vec::from_iter(FIRST_RECEIVE..FIRST_RECEIVE + RECEIVES);
    ensure_eq!(order(&receives), expected, "receives");
    let done = writes.partition_point(|fate| fate.result().is_ok());
    ensure!(done < writes.len(), "all was done before the end");
    for fate in receives.iter().chain(&writes[done..]) {
        let flushed = fate.result().is_err_and(|error| error.is_flushed());
        ensure!(flushed, "{done} writes succeeded: {fate:?}");
    }
    for n in 0..done as u64 {
        for at in words_of(n) {
            let word = targets.server.load_u64(usize::try_from(at)?)?;
            ensure_eq!(word, n + 1, "write {n}");
        }
    }
    Ok(())
}
