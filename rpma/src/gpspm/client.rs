//! The side that writes, and asks.

use std::ops::Range;
use std::time::Duration;

use super::exchange::Exchange;
use super::{Error, FlushRequest, FlushResponse};
use crate::connection::Connection;
use crate::cq::Completion;

/// The client: writes over [`connection`](Self::connection), then [`persist`](Self::persist).
///
/// It takes completions out of the connection's queues, which must be the connection's own. Those
/// of other operations that it meets are kept: see [`take_others`](Self::take_others).
#[derive(Debug)]
pub struct Client {
    exchange: Exchange,
    /// The number of a request that was not answered yet.
    asked: Option<u64>,
    next: u64,
}

impl Client {
    /// Over an established connection that has room for one more operation and one receive.
    ///
    /// # Errors
    /// [`crate::Error::Memory`] and the like, when there is no memory for the messages.
    pub fn new(connection: Connection) -> Result<Self, Error> {
        Ok(Self {
            exchange: Exchange::new(connection)?,
            asked: None,
            next: 1,
        })
    }

    /// Has the server make a range persistent, counted in bytes from the start of its region. What
    /// was written there over this connection before survives once this returns.
    ///
    /// # Errors
    /// [`crate::Error::Invalid`] for an empty range, [`Error::TimedOut`] (the answer may still come;
    /// it is waited for first when you ask again), [`Error::Failed`] when the connection has ended,
    /// [`Error::NoSuchMessage`] and [`Error::WrongNumber`] for an answer that is none.
    pub fn persist(&mut self, range: Range<u64>, timeout: Duration) -> Result<(), Error> {
        if range.is_empty() {
            return Err(crate::Error::Invalid(format!(
                "bytes {} to {} are asked to be made persistent: give a range with at least 1 byte",
                range.start, range.end
            ))
            .into());
        }
        self.request(range.start, range.end - range.start, timeout)?;
        self.answer(timeout)
    }

    /// Says that no more requests follow, which nobody answers. The connection goes on.
    ///
    /// # Errors
    /// As [`persist`](Self::persist).
    pub fn end(&mut self, timeout: Duration) -> Result<(), Error> {
        self.request(0, 0, timeout)?;
        self.asked = None;
        self.exchange.wait_sent("end of the last message", timeout)
    }

    fn request(&mut self, offset: u64, length: u64, timeout: Duration) -> Result<(), Error> {
        self.exchange.check()?;
        if self.asked.is_some() {
            self.answer(timeout)?;
        }
        self.exchange
            .wait_sent("end of the message before", timeout)?;
        let request = FlushRequest {
            offset,
            length,
            op_context: self.next,
        };
        if !request.is_end() {
            self.exchange.post_receive()?;
        }
        self.exchange.send(&request.encode())?;
        self.asked = Some(self.next);
        self.next = self.next.wrapping_add(1);
        Ok(())
    }

    fn answer(&mut self, timeout: Duration) -> Result<(), Error> {
        let response =
            self.exchange
                .wait_received("answer of the server", timeout, FlushResponse::decode)?;
        let (found, expected) = (response.op_context, self.asked.take());
        match expected {
            Some(expected) if expected == found => Ok(()),
            _ => Err(self.exchange.end(Error::WrongNumber {
                found,
                expected: expected.unwrap_or_default(),
            })),
        }
    }

    /// The connection.
    pub fn connection(&self) -> &Connection {
        self.exchange.connection()
    }

    /// Completions of other operations on the connection that came while it waited.
    pub fn take_others(&mut self) -> Vec<Completion> {
        self.exchange.take_others()
    }

    /// The connection alone, when no more requests follow. A response that is still to come then
    /// finds no memory.
    pub fn into_connection(self) -> Connection {
        self.exchange.into_connection()
    }
}
