//! What the server must have ready before it lets the client go on.

use super::mailbox::Mailbox;
use super::window::Window;
use super::{Direction, Hooks, Operation, OperationSet, Pattern, Side};

/// A receive to post.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Receive {
    Control(usize),
    Data,
}

/// What arrives in one round, in its order: the beginning, then for every operation its message,
/// if it is one, and the client's report.
pub(super) fn receives(operations: OperationSet) -> impl Iterator<Item = Receive> + use<> {
    let operations = operations
        .iter()
        .enumerate()
        .flat_map(|(place, operation)| {
            (operation == Operation::Send)
                .then_some(Receive::Data)
                .into_iter()
                .chain([Receive::Control(place + 1)])
        });
    std::iter::once(Receive::Control(0)).chain(operations)
}

/// Poisons what the operation is to overwrite and fills what it is to fetch.
pub(super) fn prepare(
    mailbox: &Mailbox,
    target: Window<'_>,
    source: Window<'_>,
    hooks: Hooks,
    operation: Operation,
    sequence: u64,
) -> Result<(), rpma::Error> {
    let to_server = Pattern::new(sequence, operation, Direction::ToServer);
    let to_client = Pattern::new(sequence, operation, Direction::ToClient);
    let leaves = match operation {
        Operation::Send => {
            mailbox.data_in().poison(to_server)?;
            mailbox.data_out()
        }
        Operation::Write | Operation::Flush => return target.poison(to_server),
        Operation::Read => source,
    };
    leaves.fill(to_client)?;
    match hooks.flip_at(Side::Server, operation, sequence) {
        Some(offset) => leaves.flip(offset),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ping::link::QUEUE_SIZE;
    use crate::ping::mailbox::CONTROL_PLACES;

    #[test]
    fn receives_are_posted_in_the_order_in_which_the_client_sends() {
        let all: Vec<_> = receives(OperationSet::ALL).collect();
        let control = Receive::Control;
        let expected = [
            control(0),
            Receive::Data,
            control(1),
            control(2),
            control(3),
            control(4),
        ];
        assert_eq!(all, expected);
        let read: Vec<_> = receives(OperationSet::of(Operation::Read)).collect();
        assert_eq!(read, [control(0), control(1)]);
    }

    #[test]
    fn the_receives_of_any_round_fit_the_queue_and_the_mailbox() {
        for set in (1..=15).filter_map(OperationSet::from_bits) {
            assert!(receives(set).count() <= QUEUE_SIZE as usize);
            for receive in receives(set) {
                assert!(!matches!(receive, Receive::Control(place) if place >= CONTROL_PLACES));
            }
        }
    }
}
