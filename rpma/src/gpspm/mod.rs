//! The general purpose server persistency method (GPSPM): the client writes, then asks the server
//! by a message to make a range persistent, and waits for the answer.
//!
//! It needs nothing of the hardware, since the server's CPU does the work: the method for servers
//! whose writes from the network do not reach the persistence domain by themselves
//! ([`PeerConfig`](crate::PeerConfig)). Messages and private data are those of the examples of
//! librpma, so that either side may be one of them.
//!
//! | message | bytes | layout |
//! |---|---|---|
//! | [`FlushRequest`] | 27 | `09` offset, `11` length, `19` number, each a `u64` in little-endian order |
//! | [`FlushResponse`] | 9 | `09` number |
//!
//! The order of a reliable connection makes it work: what was written before the request was sent
//! is there when the request is received.
//!
//! # Example
//!
//! ```no_run
//! use std::ops::Range;
//! use std::time::Duration;
//!
//! use rpma::gpspm::{Announcement, Client, Error, Served, Server};
//! use rpma::{Connection, ConnectionRequest, LocalRegion, Signal};
//!
//! const WAIT: Duration = Duration::from_secs(10);
//!
//! /// `persist` makes a range of the region survive a loss of power.
//! fn serve(
//!     request: ConnectionRequest,
//!     region: &LocalRegion,
//!     mut persist: impl FnMut(Range<u64>) -> Result<(), rpma::Error>,
//! ) -> Result<(), Error> {
//!     let announced = Announcement::of(region, 0, None)?;
//!     let size = region.len() as u64;
//!     let mut server = Server::accept(region.peer(), request, announced, size)?;
//!     server.connection().wait_established(WAIT)?;
//!     while let Served::Persisted(_) = server.answer(WAIT, &mut persist)? {}
//!     Ok(())
//! }
//!
//! fn write(connection: Connection, from: &LocalRegion) -> Result<(), Error> {
//!     let to = Announcement::decode(connection.private_data())?.region;
//!     let mut client = Client::new(connection)?;
//!     client.connection().write(to.span(..64)?, from.span(..64)?, Signal::OnError, 1)?;
//!     client.persist(0..64, WAIT)?;
//!     client.end(WAIT)
//! }
//! ```

mod announcement;
mod client;
mod error;
mod exchange;
mod message;
mod server;

pub use self::announcement::Announcement;
pub use self::client::Client;
pub use self::error::Error;
pub use self::exchange::OP_CONTEXTS;
pub use self::message::{FlushRequest, FlushResponse};
pub use self::server::{Served, Server};
