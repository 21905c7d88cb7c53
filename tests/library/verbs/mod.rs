//! Rules of the crate `verbs`.

mod async_events;
mod by_hand;
mod draining;
mod errors;
mod events;
mod limits;
mod lost;
mod objects;
mod optional;
mod ports;
mod posting;
mod sizes;
mod types;
mod waiting;
mod windows;

use harness::Test;

pub(crate) use self::ports::ROLES;

pub(crate) fn tests() -> Vec<Test> {
    [
        objects::tests(),
        limits::tests(),
        ports::tests(),
        posting::tests(),
        events::tests(),
        types::tests(),
        optional::tests(),
        windows::tests(),
        draining::tests(),
        errors::tests(),
        lost::tests(),
        sizes::tests(),
        waiting::tests(),
        async_events::tests(),
    ]
    .into_iter()
    .flatten()
    .collect()
}
