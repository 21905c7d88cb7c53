//! Operations that go on until a fault ends them, one at a time on each connection, so that one of each kind is always under
//! way. What the memory holds afterwards tells what was done.

use std::fmt;

use harness::{Failed, Outcome, ensure, ensure_eq};
use rpma::{CompletionError, Connection, FlushType, LocalRegion, RemoteRegion, Signal, Usage};

/// What a connection does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    Read,
    Write,
    WriteWithImm,
    Flush,
    Send,
    Recv,
    AtomicWrite,
    FetchAdd,
    CompareSwap,
}

impl Operation {
    pub(super) const ALL: [Self; 9] = [
        Self::Read,
        Self::Write,
        Self::WriteWithImm,
        Self::Flush,
        Self::Send,
        Self::Recv,
        Self::AtomicWrite,
        Self::FetchAdd,
        Self::CompareSwap,
    ];

    /// Whether the other side has something to do for it.
    fn takes_two(self) -> bool {
        matches!(self, Self::WriteWithImm | Self::Send | Self::Recv)
    }
}

/// Bytes that one operation moves, where it is not of 8 bytes: takes a while on the way.
pub(super) const LEN: usize = 512 << 10;

/// Memory of one side: room for two messages.
pub(super) fn memory(peer: &rpma::Peer) -> Result<LocalRegion, Failed> {
    Ok(LocalRegion::alloc(peer, 2 * LEN, Usage::all())?)
}

/// Where the message `number` lies: it is not overwritten before the next one has come.
fn at(number: u64) -> usize {
    if number.is_multiple_of(2) { 0 } else { LEN }
}

fn range(number: u64) -> std::ops::Range<u64> {
    let start = at(number) as u64;
    start..start + LEN as u64
}

/// Puts the number at both ends of the message.
fn mark(region: &LocalRegion, number: u64) -> Outcome {
    region.store_u64(at(number), number)?;
    Ok(region.store_u64(at(number) + LEN - 8, number)?)
}

/// The numbers at both ends of a message.
fn marks(region: &LocalRegion, number: u64) -> Result<(u64, u64), Failed> {
    let last = region.load_u64(at(number) + LEN - 8)?;
    Ok((region.load_u64(at(number))?, last))
}

/// The side that begins the operations.
pub(super) struct Active {
    pub(super) operation: Operation,
    pub(super) connection: Connection,
    own: LocalRegion,
    theirs: RemoteRegion,
    /// How many were posted, and how many succeeded.
    posted: u64,
    done: u64,
    /// How the last one ended.
    pub(super) fate: Option<CompletionError>,
}

impl fmt::Debug for Active {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            operation,
            posted,
            done,
            ..
        } = self;
        write!(f, "{operation:?} {posted} after {done} successes")?;
        self.fate
            .map_or(Ok(()), |error| write!(f, ", ended: {error}"))
    }
}

impl Active {
    pub(super) fn new(
        operation: Operation,
        connection: Connection,
        theirs: RemoteRegion,
    ) -> Result<Self, Failed> {
        Ok(Self {
            operation,
            own: memory(connection.peer())?,
            connection,
            theirs,
            posted: 0,
            done: 0,
            fate: None,
        })
    }

    fn post(&self, number: u64) -> Outcome {
        let (connection, always) = (&self.connection, Signal::Always);
        let (own, theirs) = (
            self.own.span(range(number))?,
            self.theirs.span(range(number))?,
        );
        let (word, counter) = (self.own.span(..8)?, self.theirs.span(..8)?);
        if !matches!(self.operation, Operation::Read | Operation::Recv) {
            mark(&self.own, number)?;
        }
        match self.operation {
            Operation::Read => connection.read(own, theirs, always, number)?,
            Operation::Write => connection.write(theirs, own, always, number)?,
            Operation::WriteWithImm => {
                let imm = u32::try_from(number)?;
                connection.write_with_imm(theirs, own, imm, always, number)?;
            }
            Operation::Flush => {
                connection.write(theirs, own, Signal::OnError, number)?;
                connection.flush(theirs, FlushType::Visibility, always, number)?;
            }
            Operation::Send => connection.send(own, always, number)?,
            Operation::Recv => connection.recv(own, number)?,
            Operation::AtomicWrite => {
                connection.atomic_write(counter, number.to_ne_bytes(), always, number)?;
            }
            Operation::FetchAdd => connection.fetch_add(word, counter, 1, always, number)?,
            Operation::CompareSwap => {
                connection.compare_swap(word, counter, number - 1, number, always, number)?;
            }
        }
        Ok(())
    }

    /// Takes the completion of what was posted, if it is there, and posts the next one. Never waits.
    pub(super) fn step(&mut self) -> Outcome {
        self.take()?;
        if self.fate.is_none() && self.posted == self.done {
            self.posted += 1;
            self.post(self.posted)?;
        }
        Ok(())
    }

    /// As [`step`](Self::step), without posting.
    pub(super) fn take(&mut self) -> Outcome {
        while let Some(completion) = self.connection.cq().poll_one()? {
            let number = completion.op_context();
            ensure_eq!(number, self.posted, "{:?}", self.operation);
            match completion.result() {
                Ok(_) => {
                    ensure!(self.fate.is_none(), "{self:?}: a success after an error");
                    self.done += 1;
                    self.succeeded(number)?;
                }
                // Behind a write that failed, the flush comes back as well.
                Err(error) if self.fate.is_some() => {
                    ensure!(
                        error.is_flushed() && self.operation == Operation::Flush,
                        "{self:?}: {error} as well"
                    );
                }
                Err(error) => self.fate = Some(error),
            }
        }
        Ok(())
    }

    fn succeeded(&self, number: u64) -> Outcome {
        match self.operation {
            Operation::Recv => {
                ensure_eq!(marks(&self.own, number)?, (number, number), "message");
            }
            Operation::FetchAdd | Operation::CompareSwap => {
                ensure_eq!(
                    self.own.load_u64(0)?,
                    number - 1,
                    "{:?} before",
                    self.operation
                );
            }
            _ => {}
        }
        Ok(())
    }

    /// How many succeeded.
    pub(super) fn done(&self) -> u64 {
        self.done
    }

    /// Posts once more where the connection is over: refused, or flushed, and nothing else.
    pub(super) fn is_over(&mut self) -> Outcome {
        match self.post(self.posted) {
            Err(_) => Ok(()),
            Ok(()) => {
                let error = self.connection.cq().next(harness::WAIT)?.result().err();
                let error = error.ok_or("a success after the end")?;
                ensure!(error.is_flushed(), "{self:?}: {error}");
                Ok(())
            }
        }
    }
}

/// The other side, which has the memory.
pub(super) struct Passive {
    operation: Operation,
    pub(super) connection: Connection,
    pub(super) memory: LocalRegion,
    posted: u64,
    done: u64,
    failed: bool,
}

impl fmt::Debug for Passive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            operation,
            posted,
            done,
            ..
        } = self;
        write!(
            f,
            "the other side of {operation:?}: {posted} posted, {done} done"
        )
    }
}

impl Passive {
    pub(super) fn new(operation: Operation, connection: Connection, memory: LocalRegion) -> Self {
        Self {
            operation,
            connection,
            memory,
            posted: 0,
            done: 0,
            failed: false,
        }
    }

    /// Does this side's part, where it has one. Never waits.
    pub(super) fn step(&mut self) -> Outcome {
        self.take()?;
        // A receive more than there can be messages.
        let ahead = if self.operation == Operation::Recv {
            1
        } else {
            2
        };
        while self.operation.takes_two() && !self.failed && self.posted < self.done + ahead {
            self.posted += 1;
            let span = self.memory.span(range(self.posted))?;
            let posted = if self.operation == Operation::Recv {
                mark(&self.memory, self.posted)?;
                self.connection.send(span, Signal::Always, self.posted)
            } else {
                self.connection.recv(span, self.posted)
            };
            if posted.is_err() {
                self.failed = true;
            }
        }
        Ok(())
    }

    fn take(&mut self) -> Outcome {
        while let Some(completion) = self.connection.cq().poll_one()? {
            let Ok(success) = completion.result() else {
                self.failed = true;
                continue;
            };
            ensure!(!self.failed, "{self:?}: a success after an error");
            self.done += 1;
            ensure_eq!(
                completion.op_context(),
                self.done,
                "order at the other side"
            );
            if self.operation != Operation::Recv {
                ensure_eq!(success.byte_len() as usize, LEN, "bytes");
                ensure_eq!(
                    marks(&self.memory, self.done)?,
                    (self.done, self.done),
                    "message"
                );
            }
            if self.operation == Operation::WriteWithImm {
                ensure_eq!(success.imm().map(u64::from), Some(self.done), "immediate");
            }
        }
        Ok(())
    }

    /// Whether this side has what the other one was told to be done, and at most one more: that one whose answer was lost.
    pub(super) fn agrees_with(&mut self, active: &Active) -> Outcome {
        self.take()?;
        let done = active.done;
        let here = match self.operation {
            Operation::Read => done,
            Operation::Write | Operation::Flush => {
                let whole = |number| Ok::<_, Failed>(marks(&self.memory, number)?.1);
                ensure!(done == 0 || whole(done)? == done, "{done} was not written");
                whole(done + 1)?.max(done)
            }
            Operation::WriteWithImm | Operation::Send => self.done,
            // The other way round: it may have come without this side's being told.
            Operation::Recv => return self.at_least(done, active),
            Operation::AtomicWrite | Operation::FetchAdd | Operation::CompareSwap => {
                self.memory.load_u64(0)?
            }
        };
        ensure!(
            here == done || here == done + 1,
            "{:?}: {done} were told to be done, {here} were done",
            self.operation
        );
        Ok(())
    }

    fn at_least(&self, received: u64, active: &Active) -> Outcome {
        ensure!(
            received == self.done || received == self.done + 1,
            "{received} messages came, {} were told to be sent: {active:?}",
            self.done
        );
        Ok(())
    }
}
