//! An established connection, and waiting on it: for one completion at a time, within a deadline,
//! with an eye on the other end going away and on a request to stop.

use std::fmt;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rpma::{Completion, Connection, ConnectionEvent, ErrorKind};

use super::Operation;
use super::mailbox::{CONTROL_PLACES, Mailbox};
use crate::cli::units::format_seconds;
use crate::failure::Failure;
use crate::session::{Control, WireError};
use crate::stop::{SLICE, Stop};

/// How long a step goes on after a request to stop, so that a round that is under way can end.
const GRACE: Duration = Duration::from_millis(500);

/// Requests that may be outstanding on either queue: a write and its flush (which may be a read),
/// a message and a control frame; and on the other the receives of one round.
pub(super) const QUEUE_SIZE: u32 = 8;

/// Which of the requests a completion belongs to: the `op_context` of the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tag(u64);

impl Tag {
    pub(super) const CONTROL_OUT: Self = Self(0);
    pub(super) const DATA_OUT: Self = Self(1);
    pub(super) const DATA_IN: Self = Self(2);
    pub(super) const WRITE: Self = Self(3);
    pub(super) const READ: Self = Self(4);
    pub(super) const FLUSH: Self = Self(5);
    const FIRST_CONTROL_IN: u64 = 6;
    const COUNT: usize = 6 + CONTROL_PLACES;

    pub(super) const fn control_in(place: usize) -> Self {
        Self(Self::FIRST_CONTROL_IN + place as u64)
    }

    pub(super) const fn op_context(self) -> u64 {
        self.0
    }

    fn index(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

/// Where in a session something happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Step {
    /// The round.
    pub(super) sequence: u64,
    /// The operation, when it is about one.
    pub(super) operation: Option<Operation>,
    /// What is being waited for or done.
    pub(super) what: &'static str,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "round {}", self.sequence)?;
        if let Some(operation) = self.operation {
            write!(f, ", operation {operation}")?;
        }
        write!(f, ", {}", self.what)
    }
}

/// Why a session cannot go on.
#[derive(Debug)]
pub(super) enum Broken {
    /// The deadline of a step passed.
    TimedOut(Step),
    /// The other end closed the connection.
    Closed(Step),
    /// The connection is lost, with the status of the event.
    Lost(Step, i32),
    /// The device was removed.
    Removed(Step),
    /// The end was requested.
    Stopped,
    /// A request completed with an error.
    Completion(Step, String),
    /// A call of the library failed.
    Library(Step, rpma::Error),
    /// The other end sent what it must not.
    Protocol(Step, WireError),
    /// The other end sent a frame that is not due.
    OutOfStep(Step, Control),
}

impl Broken {
    /// The sentence for the user of the `other` end's partner.
    pub(super) fn into_failure(self, other: SocketAddr, limit: Duration) -> Failure {
        match self {
            Self::TimedOut(step) => Failure::failed(format!(
                "no answer from {other} within {} ({step})",
                format_seconds(limit)
            ))
            .with_hint(
                "the other end may be stopped or the link cut; -W of the client sets the limit",
            ),
            Self::Closed(step) => Failure::failed(format!(
                "the connection to {other} was closed by the other end ({step})"
            ))
            .with_hint("look at what the other end printed"),
            Self::Lost(step, status) => Failure::failed(format!(
                "the connection to {other} is lost (status {status}; {step})"
            ))
            .with_hint("its link may have been taken down"),
            Self::Removed(step) => Failure::failed(format!(
                "the connection to {other} is lost: this machine's RDMA device was removed ({step})"
            )),
            Self::Stopped => Failure::failed(format!("interrupted while serving {other}")),
            Self::Completion(step, error) => Failure::failed(format!(
                "an operation with {other} failed: {error} ({step})"
            ))
            .with_hint("the link may be cut, or the other end gone or out of memory keys"),
            Self::Library(step, error) => library(format!("failed with {other} ({step})"), &error),
            Self::Protocol(step, error) => {
                Failure::failed(format!("{other} breaks the protocol: {error} ({step})"))
                    .with_hint("use the same version of rpma-ping on both machines")
            }
            Self::OutOfStep(step, control) => Failure::failed(format!(
                "{other} breaks the protocol: {control:?} is not due ({step})"
            ))
            .with_hint("use the same version of rpma-ping on both machines"),
        }
    }
}

/// What a call of the library ended with, after the words that say what was being done.
pub(super) fn library(doing: impl fmt::Display, error: &rpma::Error) -> Failure {
    let failure = Failure::failed(format!("{doing}: {error}"));
    match error.hint() {
        Some(hint) => failure.with_hint(hint),
        None => failure,
    }
}

/// A connection with its mailbox.
#[derive(Debug)]
pub(super) struct Link {
    // Declared before the memory, so that no request is left when the memory goes.
    connection: Connection,
    mailbox: Mailbox,
    arrived: [Option<u32>; Tag::COUNT],
    deadline: Duration,
    stop: Stop,
}

impl Link {
    pub(super) fn new(
        connection: Connection,
        mailbox: Mailbox,
        deadline: Duration,
        stop: Stop,
    ) -> Self {
        Self {
            connection,
            mailbox,
            arrived: [None; Tag::COUNT],
            deadline,
            stop,
        }
    }

    pub(super) fn connection(&self) -> &Connection {
        &self.connection
    }

    pub(super) fn mailbox(&self) -> &Mailbox {
        &self.mailbox
    }

    /// Posts the receive of control frame number `place`.
    pub(super) fn post_control_in(&self, place: usize) -> Result<(), rpma::Error> {
        let (span, tag) = self.mailbox.control_in(place)?;
        self.connection.recv(span, tag.op_context())
    }

    /// Posts the receive of a message's data.
    pub(super) fn post_data_in(&self) -> Result<(), rpma::Error> {
        self.connection
            .recv(self.mailbox.data_in().span()?, Tag::DATA_IN.op_context())
    }

    /// Sends a control frame and waits until it has left.
    pub(super) fn send_control(&mut self, control: &Control, step: Step) -> Result<(), Broken> {
        let span = self
            .mailbox
            .control_out(control)
            .map_err(|e| Broken::Library(step, e))?;
        self.connection
            .send(span, rpma::Signal::Always, Tag::CONTROL_OUT.op_context())
            .map_err(|e| Broken::Library(step, e))?;
        self.wait(Tag::CONTROL_OUT, self.deadline, step).map(drop)
    }

    /// Waits for the control frame that arrives at `place`.
    pub(super) fn receive_control(
        &mut self,
        place: usize,
        limit: Duration,
        step: Step,
    ) -> Result<Control, Broken> {
        let len = self.wait(Tag::control_in(place), limit, step)?;
        self.mailbox
            .read_control(place, len)
            .map_err(|e| Broken::Library(step, e))?
            .map_err(|e| Broken::Protocol(step, e))
    }

    /// Changes the deadline of every step that has none of its own.
    pub(super) fn set_deadline(&mut self, deadline: Duration) {
        self.deadline = deadline;
    }

    /// Disconnects and closes the connection, before the memory goes.
    pub(super) fn close(self) -> Result<(), rpma::Error> {
        self.connection.close()
    }

    /// The deadline of every step that has none of its own.
    pub(super) fn deadline(&self) -> Duration {
        self.deadline
    }

    /// Waits for the completion of the request with this tag and gives the bytes that it moved.
    pub(super) fn wait(&mut self, tag: Tag, limit: Duration, step: Step) -> Result<u32, Broken> {
        let mut until = Instant::now() + limit;
        let mut stopping = false;
        loop {
            if let Some(len) = self.arrived[tag.index()].take() {
                return Ok(len);
            }
            if !stopping && self.stop.requested() {
                stopping = true;
                until = until.min(Instant::now() + GRACE);
            }
            let left = until.saturating_duration_since(Instant::now());
            match self.connection.cq().next(left.min(SLICE)) {
                Ok(completion) => self.note(&completion, step)?,
                Err(error) if error.kind() == ErrorKind::TimedOut => {
                    self.still_there(Duration::ZERO, step)?;
                    if left.is_zero() {
                        return Err(if stopping {
                            Broken::Stopped
                        } else {
                            Broken::TimedOut(step)
                        });
                    }
                }
                Err(error) => return Err(Broken::Library(step, error)),
            }
        }
    }

    fn note(&mut self, completion: &Completion, step: Step) -> Result<(), Broken> {
        match completion.result() {
            Ok(success) => {
                let index = Tag(completion.op_context()).index();
                if let Some(place) = self.arrived.get_mut(index) {
                    *place = Some(success.byte_len());
                }
                Ok(())
            }
            // When the other end goes, requests fail before or after the news of it: a moment
            // for the news gives the better sentence.
            Err(error) => {
                self.still_there(Duration::from_millis(100), step)?;
                Err(Broken::Completion(step, error.to_string()))
            }
        }
    }

    /// Looks for news, waiting for it a while, and makes an error of news that the connection is
    /// over.
    fn still_there(&self, wait: Duration, step: Step) -> Result<(), Broken> {
        match self.connection.next_event(wait) {
            Ok(ConnectionEvent::Closed | ConnectionEvent::Rejected { .. }) => {
                Err(Broken::Closed(step))
            }
            Ok(ConnectionEvent::Lost { status }) => Err(Broken::Lost(step, status)),
            Ok(ConnectionEvent::DeviceRemoved) => Err(Broken::Removed(step)),
            // The rest changes nothing for a connection that stands.
            Ok(_) => Ok(()),
            Err(error) if error.kind() == ErrorKind::TimedOut => Ok(()),
            Err(error) if error.kind() == ErrorKind::Disconnected => Err(Broken::Closed(step)),
            Err(error) => Err(Broken::Library(step, error)),
        }
    }
}
