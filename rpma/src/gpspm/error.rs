//! What can go wrong between the two sides.

use std::time::Duration;

/// An error of this method.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A call failed.
    #[error(transparent)]
    Rpma(#[from] crate::Error),
    /// A message of this side failed, which ends the connection.
    #[error("the {what} failed: {status}")]
    Failed {
        /// Which.
        what: &'static str,
        /// The status of its completion.
        status: crate::CompletionError,
    },
    /// The other side has sent something that is no such message.
    #[error("{len} bytes are no {what}: {why}")]
    NoSuchMessage {
        /// What was waited for.
        what: &'static str,
        /// How many bytes came.
        len: usize,
        /// What is wrong with them.
        why: String,
    },
    /// The client asks for a range that does not lie in the region.
    #[error(
        "bytes {offset} to {offset}+{length} were asked for, the region has {size}; the client is wrong or hostile"
    )]
    OutOfBounds {
        /// First byte asked for.
        offset: u64,
        /// Number of bytes asked for.
        length: u64,
        /// Bytes of the region.
        size: u64,
    },
    /// The server answers a request that was not made.
    #[error("the server answers request {found:#x}, the one made is {expected:#x}")]
    WrongNumber {
        /// The number in the response.
        found: u64,
        /// The number in the request.
        expected: u64,
    },
    /// The range could not be made persistent; the client got no response.
    #[error("bytes {offset} to {offset}+{length} were not made persistent: {source}")]
    NotPersistent {
        /// First byte asked for.
        offset: u64,
        /// Number of bytes asked for.
        length: u64,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The other side did not answer, or ask, in time. The wait may be repeated.
    #[error("no {what} came within {timeout:?}")]
    TimedOut {
        /// What was waited for.
        what: &'static str,
        /// For how long.
        timeout: Duration,
    },
    /// After an error that leaves the two sides without common ground.
    #[error("the exchange has ended with an error before: end the connection")]
    Ended,
}

impl Error {
    /// Whether waiting again may help.
    pub fn is_timeout(&self) -> bool {
        matches!(self, Self::TimedOut { .. })
    }
}
