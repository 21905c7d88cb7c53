//! Rules of the crate `verbs`.

mod async_events;
mod busy;
mod by_hand;
mod device_events;
mod devices;
mod draining;
mod errors;
mod events;
mod extended;
mod extended_completions;
mod extended_native;
mod extended_operations;
mod limits;
mod lost;
mod misuse;
mod native;
mod objects;
mod optional;
mod ports;
mod posting;
mod running;
mod sizes;
mod together;
mod types;
mod unsupported;
mod waiting;
mod windows;

use harness::{Role, Test};

pub(crate) use self::events::Flushing;
pub(crate) use self::ports::OwnDevice;

pub(crate) fn roles() -> Vec<Role> {
    [
        ports::ROLES,
        busy::ROLES,
        devices::ROLES,
        device_events::ROLES,
    ]
    .concat()
}

pub(crate) fn tests() -> Vec<Test> {
    [
        objects::tests(),
        limits::tests(),
        native::tests(),
        extended_operations::tests(),
        extended_completions::tests(),
        extended_native::tests(),
        ports::tests(),
        posting::tests(),
        events::tests(),
        running::tests(),
        types::tests(),
        unsupported::tests(),
        optional::tests(),
        windows::tests(),
        device_events::tests(),
        draining::tests(),
        errors::tests(),
        lost::tests(),
        busy::tests(),
        misuse::tests(),
        devices::tests(),
        together::tests(),
        sizes::tests(),
        waiting::tests(),
        async_events::tests(),
    ]
    .into_iter()
    .flatten()
    .collect()
}
