//! Rules of the crate `verbs`.

mod events;
mod limits;
mod objects;
mod ports;
mod posting;

use harness::Test;

pub(crate) use self::ports::ROLES;

pub(crate) fn tests() -> Vec<Test> {
    [
        objects::tests(),
        limits::tests(),
        ports::tests(),
        posting::tests(),
        events::tests(),
    ]
    .into_iter()
    .flatten()
    .collect()
}
