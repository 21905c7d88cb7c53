//! Messages of either side over one connection: one is sent at a time, and one received.

use std::ops::RangeInclusive;
use std::time::Duration;

use cm::Deadline;

use super::Error;
use crate::connection::{Connection, ConnectionRequest, Signal};
use crate::cq::{Completion, CompletionQueue};
use crate::error::ErrorKind;
use crate::memory::{LocalRegion, Span, Usage};
use crate::peer::Peer;

/// The numbers that this method posts with. Give others to operations of your own on the same
/// connection: completions are told apart by them.
pub const OP_CONTEXTS: RangeInclusive<u64> = RECEIVE..=SEND;

const RECEIVE: u64 = u64::MAX - 1;
const SEND: u64 = u64::MAX;

/// The longest message, as in the examples of librpma.
const LONGEST: usize = 512;

/// What is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Awaited {
    Sent,
    Received,
}

/// A connection and the two messages that are under way on it.
#[derive(Debug)]
pub(super) struct Exchange {
    // Ends before the memory that its messages lie in, so that none of them fails.
    connection: Connection,
    /// A message to send, then room for one to receive.
    messages: LocalRegion,
    receiving: bool,
    sending: bool,
    /// The length of a message that has come and was not taken yet.
    received: Option<u32>,
    /// Completions of operations that are not this method's.
    others: Vec<Completion>,
    /// After an error that leaves the two sides without common ground.
    ended: bool,
}

impl Exchange {
    /// Posts the first receive on a request, and accepts it.
    pub(super) fn accept(
        peer: &Peer,
        request: ConnectionRequest,
        private_data: crate::PrivateData,
    ) -> Result<Self, Error> {
        let messages = memory(peer)?;
        request.recv(room(&messages)?, RECEIVE)?;
        let connection = request.connect(private_data)?;
        let mut exchange = Self::over(connection, messages);
        exchange.receiving = true;
        Ok(exchange)
    }

    /// Over a connection on which nothing of this method is posted.
    pub(super) fn new(connection: Connection) -> Result<Self, Error> {
        let messages = memory(connection.peer())?;
        Ok(Self::over(connection, messages))
    }

    fn over(connection: Connection, messages: LocalRegion) -> Self {
        Self {
            connection,
            messages,
            receiving: false,
            sending: false,
            received: None,
            others: Vec::new(),
            ended: false,
        }
    }

    pub(super) fn connection(&self) -> &Connection {
        &self.connection
    }

    pub(super) fn into_connection(self) -> Connection {
        self.connection
    }

    pub(super) fn take_others(&mut self) -> Vec<Completion> {
        std::mem::take(&mut self.others)
    }

    /// Refuses to go on after an error.
    pub(super) fn check(&self) -> Result<(), Error> {
        if self.ended {
            Err(Error::Ended)
        } else {
            Ok(())
        }
    }

    /// The error, after which nothing goes on.
    pub(super) fn end(&mut self, error: Error) -> Error {
        self.ended = true;
        error
    }

    /// Makes room for the next message, unless there is.
    pub(super) fn post_receive(&mut self) -> Result<(), Error> {
        if !self.receiving {
            self.connection.recv(room(&self.messages)?, RECEIVE)?;
            self.receiving = true;
        }
        Ok(())
    }

    /// Sends a message; the one before must have been sent.
    pub(super) fn send(&mut self, message: &[u8]) -> Result<(), Error> {
        self.messages.store(0, message)?;
        let span = self.messages.span(..message.len() as u64)?;
        match self.connection.send(span, Signal::Always, SEND) {
            Ok(()) => {
                self.sending = true;
                Ok(())
            }
            // Nothing was posted.
            Err(error) if error.kind() == ErrorKind::QueueFull => Err(error.into()),
            Err(error) => Err(self.end(error.into())),
        }
    }

    /// Waits until the message sent last has arrived.
    pub(super) fn wait_sent(&mut self, what: &'static str, timeout: Duration) -> Result<(), Error> {
        let deadline = Deadline::after(timeout);
        while self.sending {
            self.step(Awaited::Sent, what, deadline, timeout)?;
        }
        Ok(())
    }

    /// Waits for a message and reads it with `decode`.
    pub(super) fn wait_received<T>(
        &mut self,
        what: &'static str,
        timeout: Duration,
        decode: impl FnOnce(&[u8]) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let deadline = Deadline::after(timeout);
        let len = loop {
            match self.received.take() {
                Some(len) => break len,
                None => self.step(Awaited::Received, what, deadline, timeout)?,
            }
        };
        let mut bytes = [0; LONGEST];
        // The device puts no more than the room into it.
        let bytes = &mut bytes[..(len as usize).min(LONGEST)];
        self.messages.load(LONGEST, bytes)?;
        decode(bytes).map_err(|error| self.end(error))
    }

    /// Takes one completion, waited for if there is none.
    fn step(
        &mut self,
        awaited: Awaited,
        what: &'static str,
        deadline: Deadline,
        timeout: Duration,
    ) -> Result<(), Error> {
        let over = deadline.has_passed();
        if let Some(completion) = self.poll()? {
            return self.take(&completion);
        }
        let late = Error::TimedOut { what, timeout };
        if over {
            return Err(late);
        }
        match self.wait(awaited, deadline) {
            Ok(Some(completion)) => self.take(&completion),
            Ok(None) => Ok(()),
            Err(error) if error.kind() == ErrorKind::TimedOut => Err(late),
            Err(error) => Err(error.into()),
        }
    }

    fn poll(&self) -> Result<Option<Completion>, Error> {
        if let Some(rcq) = self.connection.rcq()
            && let Some(completion) = rcq.poll_one()?
        {
            return Ok(Some(completion));
        }
        Ok(self.connection.cq().poll_one()?)
    }

    /// Waits where the completion must come. (A queue that shares its channel is polled afterwards.)
    fn wait(
        &self,
        awaited: Awaited,
        deadline: Deadline,
    ) -> Result<Option<Completion>, crate::Error> {
        match self.connection.wait(deadline.remaining()) {
            Ok(_) => return Ok(None),
            Err(crate::Error::NotSharedChannel) => {}
            Err(error) => return Err(error),
        }
        let queue: &CompletionQueue = match (awaited, self.connection.rcq()) {
            (Awaited::Received, Some(rcq)) => rcq,
            _ => self.connection.cq(),
        };
        queue.next(deadline.remaining()).map(Some)
    }

    fn take(&mut self, completion: &Completion) -> Result<(), Error> {
        let ours = completion.qp_num() == self.connection.qp_num();
        let what = match completion.op_context() {
            RECEIVE if ours => {
                self.receiving = false;
                "receive of a message"
            }
            SEND if ours => {
                self.sending = false;
                "sending of a message"
            }
            _ => {
                self.others.push(*completion);
                return Ok(());
            }
        };
        match completion.result() {
            Ok(done) => {
                if completion.op_context() == RECEIVE {
                    self.received = Some(done.byte_len());
                }
                Ok(())
            }
            Err(status) => Err(self.end(Error::Failed { what, status })),
        }
    }
}

fn memory(peer: &Peer) -> Result<LocalRegion, crate::Error> {
    LocalRegion::alloc(peer, 2 * LONGEST, Usage::SEND | Usage::RECV)
}

fn room(messages: &LocalRegion) -> Result<Span<'_>, crate::Error> {
    messages.span(LONGEST as u64..)
}
