//! Rules of the crate `rpma`.

mod c_peers;
mod connecting;
mod ending;
mod forked;
mod lost_confirmation;
mod queues;
mod refused;
mod regions;
mod transfer;

use harness::Test;

pub(crate) fn tests() -> Vec<Test> {
    [
        transfer::tests(),
        refused::tests(),
        queues::tests(),
        regions::tests(),
        connecting::tests(),
        lost_confirmation::tests(),
        ending::tests(),
        forked::tests(),
        c_peers::tests(),
    ]
    .into_iter()
    .flatten()
    .collect()
}
