//! Connections one after the other, each id with an event channel of its own.

use std::time::Instant;

use harness::{Baseline, Child, Need, Outcome, Role, SECOND, Test, WAIT, ensure, ensure_eq, test};
use rpma::cm::{ConnectionEvent, Deadline, Listener};

use super::rounds::{accept, serves};
use crate::raw::{begin, listener};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test(
            "more_connections_than_descriptors_follow_one_another_at_the_same_pace",
            &[Need::Device],
            || {
                let child = Child::role("cycles_with_few_descriptors", "", &[])?;
                let finished = child.finish(850 * SECOND)?.success()?;
                print!("{}", finished.stdout);
                Ok(())
            },
        )
        .limit(90)
        .long(),
    ]
}

pub(crate) const ROLES: &[Role] = &[("cycles_with_few_descriptors", few_descriptors)];

/// What a process may have open; every connection takes four of them, two of which are event channels.
const DESCRIPTORS: libc::rlim_t = 1024;
/// More connections than that.
const CYCLES: usize = 1100;
const TENTH: usize = CYCLES / 11;

fn few_descriptors() -> Outcome {
    let limit = libc::rlimit {
        rlim_cur: DESCRIPTORS,
        rlim_max: DESCRIPTORS,
    };
    // SAFETY: the struct is valid for the call.
    let ret = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) };
    ensure_eq!(ret, 0, "setrlimit");
    let listener = listener()?;
    serves(&listener)?;
    let baseline = Baseline::take()?;
    let mut middles = Vec::new();
    for hundred in 0..CYCLES / TENTH {
        let mut times = Vec::new();
        for n in 0..TENTH {
            let start = Instant::now();
            cycle(&listener, n % 2 == 0)?;
            times.push(start.elapsed());
        }
        times.sort_unstable();
        middles.push(times[TENTH / 2]);
        baseline
            .check()
            .map_err(|text| format!("after {} connections: {text}", (hundred + 1) * TENTH))?;
    }
    println!("the middle of {TENTH} connections at a time: {middles:?}");
    let (first, last) = (middles[0], middles[middles.len() - 1]);
    // What costs more with each connection would cost ten times as much; less may be the machine.
    ensure!(last < 3 * first, "slower: {first:?}, then {last:?}");
    Ok(())
}

fn cycle(listener: &Listener, client_ends: bool) -> Outcome {
    let soon = || Deadline::after(WAIT);
    let (client, _client_queues) = begin(listener.local_addr(), &[])?;
    let (server, _server_queues) = accept(listener.next_request(soon())?)?;
    client.wait_established(soon())?;
    server.wait_established(soon())?;
    let (ends, is_told) = if client_ends {
        (&client, &server)
    } else {
        (&server, &client)
    };
    ends.disconnect()?;
    for end in [is_told, ends] {
        let event = end.next_event(soon())?;
        ensure_eq!(event, ConnectionEvent::Disconnected, "the end");
    }
    Ok(())
}
