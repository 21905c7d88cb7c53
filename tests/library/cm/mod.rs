//! Rules of the crate `cm`.

mod asynchronous;
mod backlog;
mod c_programs;
mod cycles;
mod datagrams;
mod dispatcher;
mod drops;
mod early_ends;
mod faults;
mod handshake;
mod limits;
mod options;
mod ports;
mod private_data;
mod raw_events;
mod refusals;
mod removal;
mod rounds;

use std::time::Instant;

use harness::{Outcome, Role, SECOND, Test, ensure, phase};

pub(crate) fn roles() -> Vec<Role> {
    [
        limits::ROLES,
        removal::ROLES,
        cycles::ROLES,
        drops::ROLES,
        &faults::roles(),
    ]
    .concat()
}

pub(crate) fn tests() -> Vec<Test> {
    [
        refusals::tests(),
        private_data::tests(),
        raw_events::tests(),
        handshake::tests(),
        limits::tests(),
        drops::tests(),
        dispatcher::tests(),
        datagrams::tests(),
        ports::tests(),
        options::tests(),
        backlog::tests(),
        rounds::tests(),
        cycles::tests(),
        early_ends::tests(),
        removal::tests(),
        c_programs::tests(),
        asynchronous::tests(),
        faults::tests(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Drops what is given, which must take less than two seconds.
pub(crate) fn dropped_quickly<T>(what: &str, value: T) -> Outcome {
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
