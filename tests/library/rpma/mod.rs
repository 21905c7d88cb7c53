//! Rules of the crate `rpma`.

mod c_peers;
mod combinations;
mod connecting;
mod descriptors;
mod dice;
mod dropped;
mod ending;
mod event_loops;
mod everything_at_once;
mod faults;
mod flushing;
mod forked;
mod loops;
mod lost_confirmation;
mod memory;
mod native;
mod operations;
mod processes;
mod queues;
mod quiet;
mod refused;
mod regions;
mod rights;
mod threads;
mod transfer;

use harness::{Role, Test};

pub(crate) fn tests() -> Vec<Test> {
    [
        transfer::tests(),
        operations::tests(),
        native::tests(),
        refused::tests(),
        queues::tests(),
        combinations::tests(),
        regions::tests(),
        memory::tests(),
        connecting::tests(),
        lost_confirmation::tests(),
        dropped::tests(),
        ending::tests(),
        faults::tests(),
        event_loops::tests(),
        forked::tests(),
        c_peers::tests(),
        descriptors::tests(),
        processes::tests(),
        rights::tests(),
        threads::tests(),
        everything_at_once::tests(),
        flushing::tests(),
        loops::tests(),
        quiet::tests(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

pub(crate) fn roles() -> Vec<Role> {
    [
        memory::ROLES,
        processes::ROLES,
        rights::ROLES,
        forked::ROLES,
        quiet::ROLES,
        &faults::roles(),
    ]
    .concat()
}
