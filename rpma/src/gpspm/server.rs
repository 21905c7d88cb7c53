//! The side that has the memory, and answers.

use std::ops::Range;
use std::time::Duration;

use super::exchange::Exchange;
use super::{Error, FlushRequest, FlushResponse};
use crate::connection::{Connection, ConnectionRequest};
use crate::cq::Completion;
use crate::peer::Peer;
use crate::private_data::PrivateData;

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Served {
    /// The range is persistent, and the client was told.
    Persisted(FlushRequest),
    /// The client will not ask again.
    End,
}

/// The server: answers one client's requests.
///
/// It takes completions out of the connection's queues, which must be the connection's own. Those
/// of other operations that it meets are kept: see [`take_others`](Self::take_others).
#[derive(Debug)]
pub struct Server {
    exchange: Exchange,
    /// Bytes of the region that clients name ranges of.
    size: u64,
    done: bool,
}

impl Server {
    /// Accepts a connection; the first request has room before the client can send. `size` is that
    /// of the region that ranges are counted in, `private_data` usually its
    /// [`Announcement`](super::Announcement).
    ///
    /// # Errors
    /// The failed step; the request is then rejected. With a shared receive queue it is refused,
    /// since messages of several clients would come there.
    pub fn accept(
        peer: &Peer,
        request: ConnectionRequest,
        private_data: PrivateData,
        size: u64,
    ) -> Result<Self, Error> {
        Ok(Self {
            exchange: Exchange::accept(peer, request, private_data)?,
            size,
            done: false,
        })
    }

    /// Waits for the next request, has `persist` do it, and answers. `persist` is given a range
    /// that lies in the region, counted in bytes from its start.
    ///
    /// There is no message for a failure: then the client gets no answer. End the connection, so
    /// that it does not wait in vain.
    ///
    /// # Errors
    /// [`Error::TimedOut`] when no request came, [`Error::NoSuchMessage`] and [`Error::OutOfBounds`]
    /// for one that is none, [`Error::NotPersistent`] with the error of `persist`,
    /// [`Error::Failed`] when the connection has ended.
    pub fn answer<E>(
        &mut self,
        timeout: Duration,
        persist: impl FnOnce(Range<u64>) -> Result<(), E>,
    ) -> Result<Served, Error>
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        self.exchange.check()?;
        if self.done {
            return Ok(Served::End);
        }
        self.exchange
            .wait_sent("end of the message before", timeout)?;
        let request =
            self.exchange
                .wait_received("request of the client", timeout, FlushRequest::decode)?;
        if request.is_end() {
            self.done = true;
            return Ok(Served::End);
        }
        let range = request
            .within(self.size)
            .map_err(|error| self.exchange.end(error))?;
        if let Err(source) = persist(range) {
            return Err(self.exchange.end(Error::NotPersistent {
                offset: request.offset,
                length: request.length,
                source: source.into(),
            }));
        }
        let (exchange, op_context) = (&mut self.exchange, request.op_context);
        exchange
            .post_receive()
            .map_err(|error| exchange.end(error))?;
        exchange
            .send(&FlushResponse { op_context }.encode())
            .map_err(|error| exchange.end(error))?;
        match exchange.wait_sent("end of the answer", timeout) {
            // The request was served, and its answer is under way.
            Err(error) if error.is_timeout() => Ok(Served::Persisted(request)),
            sent => sent.map(|()| Served::Persisted(request)),
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

    /// The connection alone. A request that is still to come then finds no memory.
    pub fn into_connection(self) -> Connection {
        self.exchange.into_connection()
    }
}
