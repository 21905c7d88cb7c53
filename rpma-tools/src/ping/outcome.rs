//! What a run leaves behind, for the reports.

use std::net::SocketAddr;
use std::time::Duration;

use super::{Fault, Operation, OperationSet};
use crate::failure::{Exit, Failure};
use crate::measure::Summary;
use crate::session::Hello;

/// Rounds, by how they ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Rounds begun.
    pub sent: u64,
    /// Rounds of which everything came back, right or wrong.
    pub received: u64,
    /// Rounds in which something was wrong.
    pub wrong: u64,
}

impl Tally {
    /// Rounds begun of which not everything came back.
    pub fn lost(&self) -> u64 {
        self.sent.saturating_sub(self.received)
    }
}

/// The first faults of a run, and how many there were.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Faults {
    first: Vec<Fault>,
    total: u64,
}

impl Faults {
    /// How many faults are kept; the rest are counted.
    pub const KEPT: usize = 16;

    /// Takes one more in.
    pub fn push(&mut self, fault: Fault) {
        self.total = self.total.saturating_add(1);
        if self.first.len() < Self::KEPT {
            self.first.push(fault);
        }
    }

    /// The first ones.
    pub fn first(&self) -> &[Fault] {
        &self.first
    }

    /// How many there were.
    pub fn total(&self) -> u64 {
        self.total
    }
}

/// One round that came back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Round {
    /// Its number, from 0.
    pub sequence: u64,
    /// Bytes that each operation moved.
    pub size: usize,
    /// Whether something was wrong in it.
    pub wrong: bool,
    times: [Option<Duration>; 4],
}

impl Round {
    /// A round in which nothing has happened yet.
    pub fn new(sequence: u64, size: usize) -> Self {
        Self {
            sequence,
            size,
            wrong: false,
            times: [None; 4],
        }
    }

    /// Notes how long an operation took.
    pub fn set_time(&mut self, operation: Operation, time: Duration) {
        self.times[operation as usize] = Some(time);
    }

    /// How long an operation took, if the round has it.
    pub fn time(&self, operation: Operation) -> Option<Duration> {
        self.times[operation as usize]
    }

    /// The times of all operations together, without the checks between them.
    pub fn total(&self) -> Duration {
        self.times.iter().flatten().sum()
    }
}

/// The times of all rounds that came back.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Times {
    operations: [Summary; 4],
    round: Summary,
}

impl Times {
    /// Takes a round in.
    pub fn record(&mut self, round: &Round) {
        for operation in Operation::ALL {
            if let Some(time) = round.time(operation) {
                self.operations[operation as usize].record(time);
            }
        }
        self.round.record(round.total());
    }

    /// The times of one kind of operation.
    pub fn operation(&self, operation: Operation) -> &Summary {
        &self.operations[operation as usize]
    }

    /// The times of the operations of a round together.
    pub fn round(&self) -> &Summary {
        &self.round
    }
}

/// What a client's run leaves behind.
#[derive(Debug, Clone, PartialEq)]
pub struct ClientOutcome {
    /// The server, as an address once it is known and as the user wrote it before.
    pub peer: String,
    /// The device in use, once it is known.
    pub device: Option<String>,
    /// Bytes that each operation moves.
    pub size: usize,
    /// The rounds that were asked for.
    pub count: Option<u64>,
    /// From the start of one round to the start of the next.
    pub interval: Duration,
    /// How long each step could take.
    pub deadline: Duration,
    /// The operations of every round.
    pub operations: OperationSet,
    /// Rounds, by how they ended.
    pub tally: Tally,
    /// How long the operations took.
    pub times: Times,
    /// From the first round's start to the last one's end.
    pub elapsed: Duration,
    /// Whether the user ended it.
    pub interrupted: bool,
    /// What was wrong.
    pub faults: Faults,
    /// What ended the run before its time.
    pub failure: Option<Failure>,
}

impl ClientOutcome {
    /// How the process is to end.
    pub fn exit(&self) -> Exit {
        match &self.failure {
            Some(failure) => failure.exit(),
            None if self.tally.lost() > 0 || self.faults.total() > 0 => Exit::Failed,
            // Interrupted before anything came back: nothing shows that all is right.
            None if self.tally.received == 0 => Exit::Failed,
            None => Exit::Success,
        }
    }
}

/// What one client's session leaves behind on the server.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionOutcome {
    /// The client.
    pub peer: SocketAddr,
    /// What it asked for.
    pub hello: Hello,
    /// Rounds, by how they ended, as the server saw them.
    pub tally: Tally,
    /// What was wrong.
    pub faults: Faults,
    /// What ended the session other than the client's goodbye.
    pub failure: Option<Failure>,
}

impl SessionOutcome {
    /// Whether all was right for this client.
    pub fn exit(&self) -> Exit {
        if self.failure.is_some() || self.faults.total() > 0 || self.tally.lost() > 0 {
            Exit::Failed
        } else {
            Exit::Success
        }
    }
}

/// What a server's run leaves behind.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ServerOutcome {
    /// Where it listened, once it did, and the devices of those addresses.
    pub listening: Vec<(SocketAddr, String)>,
    /// Clients served to their end, right or wrong.
    pub clients: u64,
    /// Clients refused.
    pub refused: u64,
    /// Clients for whom not all was right.
    pub failed: u64,
    /// The rounds of all clients.
    pub tally: Tally,
    /// The session of a server that serves one client.
    pub session: Option<SessionOutcome>,
    /// What kept the server from serving.
    pub failure: Option<Failure>,
}

impl ServerOutcome {
    /// How the process is to end. What went wrong for one client is the end of a server that
    /// serves only one, and no matter for one that goes on.
    pub fn exit(&self) -> Exit {
        match (&self.failure, &self.session) {
            (Some(failure), _) => failure.exit(),
            (None, Some(session)) => session.exit(),
            (None, None) => Exit::Success,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ping::{Defect, Side};

    fn outcome() -> ClientOutcome {
        ClientOutcome {
            peer: "192.0.2.1:7204".to_owned(),
            device: None,
            size: 64,
            count: None,
            interval: Duration::ZERO,
            deadline: Duration::from_secs(1),
            operations: OperationSet::ALL,
            tally: Tally {
                sent: 3,
                received: 3,
                wrong: 0,
            },
            times: Times::default(),
            elapsed: Duration::ZERO,
            interrupted: false,
            faults: Faults::default(),
            failure: None,
        }
    }

    fn fault() -> Fault {
        let defect = Defect::WrongLength {
            expected: 1,
            found: 2,
        };
        Fault {
            side: Side::Client,
            operation: Operation::Send,
            sequence: 0,
            defect,
        }
    }

    #[test]
    fn only_rounds_that_all_came_back_right_are_a_success() {
        assert_eq!(outcome().exit(), Exit::Success);
        assert_eq!(
            ClientOutcome {
                interrupted: true,
                ..outcome()
            }
            .exit(),
            Exit::Success
        );
        let lost = Tally {
            sent: 3,
            received: 2,
            wrong: 0,
        };
        assert_eq!(
            ClientOutcome {
                tally: lost,
                ..outcome()
            }
            .exit(),
            Exit::Failed
        );
        let none = Tally::default();
        assert_eq!(
            ClientOutcome {
                tally: none,
                ..outcome()
            }
            .exit(),
            Exit::Failed
        );
        let mut wrong = outcome();
        wrong.faults.push(fault());
        assert_eq!(wrong.exit(), Exit::Failed);
        let failure = Some(Failure::usage("size"));
        assert_eq!(
            ClientOutcome {
                failure,
                ..outcome()
            }
            .exit(),
            Exit::Usage
        );
    }

    #[test]
    fn the_first_faults_are_kept_and_all_are_counted() {
        let mut faults = Faults::default();
        for _ in 0..100 {
            faults.push(fault());
        }
        assert_eq!((faults.first().len(), faults.total()), (Faults::KEPT, 100));
    }

    #[test]
    fn a_round_adds_up_the_operations_that_it_has() {
        let mut round = Round::new(0, 64);
        round.set_time(Operation::Write, Duration::from_micros(2));
        round.set_time(Operation::Flush, Duration::from_micros(5));
        let mut times = Times::default();
        times.record(&round);
        assert_eq!(times.round().mean_ns(), Some(7000.0));
        assert_eq!(times.operation(Operation::Flush).max_ns(), Some(5000));
        assert_eq!(times.operation(Operation::Send).samples(), 0);
    }
}
