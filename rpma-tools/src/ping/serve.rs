//! One client's session on the server, in a thread of its own.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rpma::{
    Connection, ConnectionRequest, ErrorKind, LocalRegion, Peer, PrivateData, Signal, Usage,
};

use super::link::{Broken, Link, Step, Tag, library};
use super::mailbox::Mailbox;
use super::outcome::{Faults, SessionOutcome, Tally};
use super::schedule::{Receive, prepare, receives};
use super::window::Window;
use super::{Defect, Direction, Fault, Hooks, Operation, Pattern, Side};
use crate::cli::units::format_seconds;
use crate::failure::Failure;
use crate::session::{Control, Hello, Refusal, RefusalReason, Welcome};
use crate::stop::{SLICE, Stop};

/// What a client gets beyond its own times before the server gives it up.
const SLACK: Duration = Duration::from_secs(1);

/// How long an accepted client may take to confirm its connection, at most.
const ESTABLISH: Duration = Duration::from_secs(10);

/// A client that is about to be accepted.
#[derive(Debug)]
pub(super) struct Admission {
    pub(super) request: ConnectionRequest,
    pub(super) peer: Peer,
    pub(super) client: SocketAddr,
    pub(super) hello: Hello,
    pub(super) hooks: Hooks,
    pub(super) stop: Stop,
}

/// Serves one client to its end; `on_fault` hears of everything that was wrong.
pub(super) fn serve(admission: Admission, on_fault: impl FnMut(Fault)) -> SessionOutcome {
    let Admission {
        request,
        peer,
        client,
        hello,
        hooks,
        stop,
    } = admission;
    let mut outcome = SessionOutcome {
        peer: client,
        hello,
        tally: Tally::default(),
        faults: Faults::default(),
        failure: None,
    };
    // The command line bounds a client's size, the handshake has checked it.
    let size = usize::try_from(hello.size).unwrap_or(usize::MAX);
    let memory = match Memory::new(&peer, size) {
        Ok(memory) => memory,
        Err(error) => {
            let failure = library(
                format!("cannot get memory for {client} ({size} bytes)"),
                &error,
            );
            let refusal = Refusal {
                reason: RefusalReason::RESOURCES,
                value: hello.size,
                limit: 0,
            };
            // The client hears of it by the reject; should that fail too, by its deadline.
            let _ = reject(request, &refusal);
            outcome.failure = Some(failure);
            return outcome;
        }
    };
    let Memory {
        mailbox,
        target,
        source,
    } = memory;
    let mut session = match Session::open(request, mailbox, &target, &source, hello, hooks, stop) {
        Ok(session) => session,
        Err(error) => {
            outcome.failure = Some(library(format!("cannot accept {client}"), &error));
            return outcome;
        }
    };
    let result = session
        .establish(client)
        .and_then(|()| session.rounds(&mut outcome, on_fault));
    if let Err(failure) = result {
        outcome.failure = Some(failure);
    }
    if let (Err(error), None) = (session.link.close(), &outcome.failure) {
        outcome.failure = Some(library(
            format!("cannot close the connection to {client}"),
            &error,
        ));
    }
    outcome
}

/// Refuses a client with a reason that it can show.
pub(super) fn reject(request: ConnectionRequest, refusal: &Refusal) -> Result<(), rpma::Error> {
    request.reject(PrivateData::new(&refusal.encode())?)
}

struct Memory {
    mailbox: Mailbox,
    target: LocalRegion,
    source: LocalRegion,
}

impl Memory {
    fn new(peer: &Peer, size: usize) -> Result<Self, rpma::Error> {
        Ok(Self {
            mailbox: Mailbox::new(peer, size)?,
            target: LocalRegion::alloc(peer, size, Usage::WRITE_DST | Usage::FLUSH_VISIBILITY)?,
            source: LocalRegion::alloc(peer, size, Usage::READ_SRC)?,
        })
    }
}

struct Session<'a> {
    link: Link,
    target: Window<'a>,
    source: Window<'a>,
    hello: Hello,
    hooks: Hooks,
    stop: Stop,
}

impl<'a> Session<'a> {
    /// Posts the receives of the first round, prepares its first operation, and accepts.
    fn open(
        request: ConnectionRequest,
        mailbox: Mailbox,
        target: &'a LocalRegion,
        source: &'a LocalRegion,
        hello: Hello,
        hooks: Hooks,
        stop: Stop,
    ) -> Result<Self, rpma::Error> {
        let size = target.len();
        let welcome = Welcome {
            target: target.descriptor(),
            source: source.descriptor(),
        };
        let (target, source) = (Window::new(target, 0, size), Window::new(source, 0, size));
        for receive in receives(hello.operations) {
            match receive {
                Receive::Control(place) => {
                    let (span, tag) = mailbox.control_in(place)?;
                    request.recv(span, tag.op_context())?;
                }
                Receive::Data => {
                    request.recv(mailbox.data_in().span()?, Tag::DATA_IN.op_context())?
                }
            }
        }
        if let Some(first) = hello.operations.iter().next() {
            prepare(&mailbox, target, source, hooks, first, 0)?;
        }
        let connection = request.connect(PrivateData::new(&welcome.encode())?)?;
        let deadline = Duration::from_millis(hello.deadline_ms.into()) + SLACK;
        let link = Link::new(connection, mailbox, deadline, stop.clone());
        Ok(Self {
            link,
            target,
            source,
            hello,
            hooks,
            stop,
        })
    }

    fn connection(&self) -> &Connection {
        self.link.connection()
    }

    fn establish(&self, client: SocketAddr) -> Result<(), Failure> {
        let limit = self.link.deadline().min(ESTABLISH);
        let until = Instant::now() + limit;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if self.stop.requested() {
                return Err(Broken::Stopped.into_failure(client, left));
            }
            match self.connection().wait_established(left.min(SLICE)) {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::TimedOut && !left.is_zero() => {}
                Err(error) if error.kind() == ErrorKind::TimedOut => {
                    return Err(Failure::failed(format!(
                        "{client} did not complete its connection within {}",
                        format_seconds(limit)
                    )));
                }
                Err(error) => {
                    return Err(library(
                        format!("the connection of {client} did not come about"),
                        &error,
                    ));
                }
            }
        }
    }

    fn rounds(
        &mut self,
        outcome: &mut SessionOutcome,
        mut on_fault: impl FnMut(Fault),
    ) -> Result<(), Failure> {
        let client = outcome.peer;
        let idle = Duration::from_millis(self.hello.interval_ms.into()) + self.link.deadline();
        loop {
            // A client that pings fast never lets a wait run out.
            if self.stop.requested() {
                return Err(Broken::Stopped.into_failure(client, idle));
            }
            let sequence = outcome.tally.sent;
            let step = Step {
                sequence,
                operation: None,
                what: "waiting for the round to begin",
            };
            match self.link.receive_control(0, idle, step) {
                Ok(Control::Begin { sequence: theirs }) if theirs == sequence => {}
                Ok(Control::Bye { .. }) => return Ok(()),
                Ok(other) => {
                    return Err(Broken::OutOfStep(step, other).into_failure(client, idle));
                }
                Err(error) => return Err(error.into_failure(client, idle)),
            }
            outcome.tally.sent += 1;
            let faults = &mut outcome.faults;
            let mut wrong = false;
            self.round(sequence, |fault| {
                wrong = true;
                faults.push(fault);
                on_fault(fault);
            })
            .map_err(|error| error.into_failure(client, self.link.deadline()))?;
            outcome.tally.received += 1;
            outcome.tally.wrong += u64::from(wrong);
        }
    }

    fn round(&mut self, sequence: u64, mut on_fault: impl FnMut(Fault)) -> Result<(), Broken> {
        let mut operations = self.hello.operations.iter().enumerate().peekable();
        while let Some((place, operation)) = operations.next() {
            let step = |what| Step {
                sequence,
                operation: Some(operation),
                what,
            };
            let length = match operation {
                Operation::Send => Some(self.answer(step)?),
                Operation::Write | Operation::Read | Operation::Flush => None,
            };
            let reporting = step("waiting for the client's report");
            let theirs =
                match self
                    .link
                    .receive_control(place + 1, self.link.deadline(), reporting)?
                {
                    Control::Report {
                        sequence: round,
                        operation: kind,
                        defect,
                    } if (round, kind) == (sequence, operation) => defect,
                    other => return Err(Broken::OutOfStep(reporting, other)),
                };
            let checking = step("checking memory");
            let defect = self
                .check(operation, sequence, length)
                .map_err(|e| Broken::Library(checking, e))?;
            for (side, defect) in [(Side::Client, theirs), (Side::Server, defect)] {
                if let Some(defect) = defect {
                    on_fault(Fault {
                        side,
                        operation,
                        sequence,
                        defect,
                    });
                }
            }
            // The verdict lets the client go on, so all that comes next must be ready before it.
            let next = operations.peek().map(|(_, next)| *next);
            self.get_ready(next, sequence)
                .map_err(|e| Broken::Library(step("preparing what comes next"), e))?;
            let verdict = Control::Verdict {
                sequence,
                operation,
                defect,
            };
            self.link
                .send_control(&verdict, step("telling the client what was found"))?;
        }
        Ok(())
    }

    /// Waits for the client's message and sends the one that was prepared; gives the length of
    /// what arrived. The check comes after, so that its time is not in the client's.
    fn answer(&mut self, step: impl Fn(&'static str) -> Step) -> Result<u32, Broken> {
        let deadline = self.link.deadline();
        let length = self
            .link
            .wait(Tag::DATA_IN, deadline, step("waiting for the message"))?;
        let span = self.link.mailbox().data_out().span();
        span.and_then(|span| {
            self.connection()
                .send(span, Signal::Always, Tag::DATA_OUT.op_context())
        })
        .map_err(|e| Broken::Library(step("posting the message back"), e))?;
        self.link.wait(
            Tag::DATA_OUT,
            deadline,
            step("waiting for the message to have left"),
        )?;
        Ok(length)
    }

    fn check(
        &self,
        operation: Operation,
        sequence: u64,
        length: Option<u32>,
    ) -> Result<Option<Defect>, rpma::Error> {
        let pattern = Pattern::new(sequence, operation, Direction::ToServer);
        match operation {
            Operation::Send => {
                let (expected, found) = (self.hello.size, u64::from(length.unwrap_or(0)));
                if expected != found {
                    return Ok(Some(Defect::WrongLength { expected, found }));
                }
                self.link.mailbox().data_in().check(pattern)
            }
            Operation::Write | Operation::Flush => {
                if let Some(offset) = self.hooks.flip_at(Side::Server, operation, sequence) {
                    self.target.flip(offset)?;
                }
                self.target.check(pattern)
            }
            // What was read is the client's to check.
            Operation::Read => Ok(None),
        }
    }

    /// Makes the next operation of this round ready, or the next round with its first operation.
    fn get_ready(&self, next: Option<Operation>, sequence: u64) -> Result<(), rpma::Error> {
        let ready = |operation, sequence| {
            prepare(
                self.link.mailbox(),
                self.target,
                self.source,
                self.hooks,
                operation,
                sequence,
            )
        };
        if let Some(operation) = next {
            return ready(operation, sequence);
        }
        for receive in receives(self.hello.operations) {
            match receive {
                Receive::Control(place) => self.link.post_control_in(place)?,
                Receive::Data => self.link.post_data_in()?,
            }
        }
        self.hello
            .operations
            .iter()
            .next()
            .map_or(Ok(()), |first| ready(first, sequence + 1))
    }
}
