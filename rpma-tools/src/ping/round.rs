//! One round, from the client's side.

use std::time::Instant;

use rpma::{FlushType, RemoteSpan, Signal};

use super::link::{Broken, Link, Step, Tag};
use super::outcome::Round;
use super::window::Window;
use super::{Defect, Direction, Fault, Hooks, Operation, OperationSet, Pattern, Side};
use crate::session::Control;

/// What the rounds of a client work on.
#[derive(Debug)]
pub(super) struct Rounds<'a> {
    pub(super) link: &'a mut Link,
    /// What is written from.
    pub(super) outgoing: Window<'a>,
    /// What is read into.
    pub(super) incoming: Window<'a>,
    /// What is written to, on the server.
    pub(super) target: RemoteSpan,
    /// What is read from, on the server.
    pub(super) source: RemoteSpan,
    pub(super) size: usize,
    pub(super) operations: OperationSet,
    pub(super) hooks: Hooks,
}

impl Rounds<'_> {
    /// Runs round number `sequence`; `on_fault` hears of everything that was wrong in it.
    pub(super) fn run(
        &mut self,
        sequence: u64,
        mut on_fault: impl FnMut(Fault),
    ) -> Result<Round, Broken> {
        let mut round = Round::new(sequence, self.size);
        let step = Step {
            sequence,
            operation: None,
            what: "beginning the round",
        };
        self.post_receives().map_err(|e| Broken::Library(step, e))?;
        self.link.send_control(&Control::Begin { sequence }, step)?;
        for (place, operation) in self.operations.iter().enumerate() {
            let defect = self.operate(&mut round, operation)?;
            let theirs = self.compare(sequence, operation, defect, place)?;
            for (side, defect) in [(Side::Client, defect), (Side::Server, theirs)] {
                if let Some(defect) = defect {
                    round.wrong = true;
                    on_fault(Fault {
                        side,
                        operation,
                        sequence,
                        defect,
                    });
                }
            }
        }
        Ok(round)
    }

    /// Posts all receives of a round before the server can send anything in it.
    fn post_receives(&self) -> Result<(), rpma::Error> {
        for (place, operation) in self.operations.iter().enumerate() {
            if operation == Operation::Send {
                self.link.post_data_in()?;
            }
            self.link.post_control_in(place)?;
        }
        Ok(())
    }

    /// Prepares, runs and times one operation, and checks what this side received.
    fn operate(
        &mut self,
        round: &mut Round,
        operation: Operation,
    ) -> Result<Option<Defect>, Broken> {
        let sequence = round.sequence;
        let step = |what| Step {
            sequence,
            operation: Some(operation),
            what,
        };
        let library = |what| move |e| Broken::Library(step(what), e);
        let to_server = Pattern::new(sequence, operation, Direction::ToServer);
        let to_client = Pattern::new(sequence, operation, Direction::ToClient);
        let flip = self.hooks.flip_at(Side::Client, operation, sequence);
        let skip = self.hooks.skips(operation, sequence);

        let preparing = library("preparing memory");
        let (leaves, lands) = match operation {
            Operation::Send => (
                Some(self.link.mailbox().data_out()),
                Some(self.link.mailbox().data_in()),
            ),
            Operation::Write | Operation::Flush => (Some(self.outgoing), None),
            Operation::Read => (None, Some(self.incoming)),
        };
        if let Some(lands) = lands {
            lands.poison(to_client).map_err(preparing)?;
        }
        if let Some(leaves) = leaves {
            leaves.fill(to_server).map_err(preparing)?;
            if let Some(offset) = flip {
                leaves.flip(offset).map_err(preparing)?;
            }
        }

        let started = Instant::now();
        let length = match operation {
            Operation::Send => Some(self.exchange(step)?),
            _ if skip => None,
            Operation::Write => {
                self.write().map_err(library("posting the write"))?;
                self.finish(Tag::WRITE, step("waiting for the write to complete"))?;
                None
            }
            Operation::Read => {
                self.read().map_err(library("posting the read"))?;
                self.finish(Tag::READ, step("waiting for the read to complete"))?;
                None
            }
            Operation::Flush => {
                self.write().map_err(library("posting the write"))?;
                self.flush().map_err(library("posting the flush"))?;
                self.finish(Tag::FLUSH, step("waiting for the flush to complete"))?;
                None
            }
        };
        round.set_time(operation, started.elapsed());
        if !skip && operation == Operation::Flush {
            self.finish(Tag::WRITE, step("waiting for the write to complete"))?;
        }

        let checking = library("checking memory");
        match operation {
            Operation::Send => {
                self.finish(Tag::DATA_OUT, step("waiting for the message to have left"))?;
                let (expected, found) = (self.size as u64, u64::from(length.unwrap_or(0)));
                if expected != found {
                    return Ok(Some(Defect::WrongLength { expected, found }));
                }
                self.link
                    .mailbox()
                    .data_in()
                    .check(to_client)
                    .map_err(checking)
            }
            Operation::Read => {
                if let Some(offset) = flip {
                    self.incoming.flip(offset).map_err(checking)?;
                }
                self.incoming.check(to_client).map_err(checking)
            }
            Operation::Write | Operation::Flush => Ok(None),
        }
    }

    /// Sends a message and waits for the one that comes back; gives the length of that.
    fn exchange(&mut self, step: impl Fn(&'static str) -> Step) -> Result<u32, Broken> {
        let span = self.link.mailbox().data_out().span();
        span.and_then(|span| {
            self.link
                .connection()
                .send(span, Signal::Always, Tag::DATA_OUT.op_context())
        })
        .map_err(|e| Broken::Library(step("posting the message"), e))?;
        self.finish(Tag::DATA_IN, step("waiting for the message to come back"))
    }

    fn write(&self) -> Result<(), rpma::Error> {
        let from = self.outgoing.span()?;
        self.link
            .connection()
            .write(self.target, from, Signal::Always, Tag::WRITE.op_context())
    }

    fn read(&self) -> Result<(), rpma::Error> {
        let into = self.incoming.span()?;
        self.link
            .connection()
            .read(into, self.source, Signal::Always, Tag::READ.op_context())
    }

    fn flush(&self) -> Result<(), rpma::Error> {
        let tag = Tag::FLUSH.op_context();
        self.link
            .connection()
            .flush(self.target, FlushType::Visibility, Signal::Always, tag)
    }

    fn finish(&mut self, tag: Tag, step: Step) -> Result<u32, Broken> {
        self.link.wait(tag, self.link.deadline(), step)
    }

    /// Tells the server what this side found and asks what it found.
    fn compare(
        &mut self,
        sequence: u64,
        operation: Operation,
        defect: Option<Defect>,
        place: usize,
    ) -> Result<Option<Defect>, Broken> {
        let step = |what| Step {
            sequence,
            operation: Some(operation),
            what,
        };
        let report = Control::Report {
            sequence,
            operation,
            defect,
        };
        self.link
            .send_control(&report, step("telling the server what was found"))?;
        let step = step("waiting for the server's verdict");
        match self
            .link
            .receive_control(place, self.link.deadline(), step)?
        {
            Control::Verdict {
                sequence: theirs,
                operation: kind,
                defect,
            } if (theirs, kind) == (sequence, operation) => Ok(defect),
            other => Err(Broken::OutOfStep(step, other)),
        }
    }
}
