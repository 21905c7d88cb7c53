//! Waiting in a tokio runtime.

use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;

use crate::channel::CompletionChannel;
use crate::connection::{Connection, ConnectionConfig, ConnectionEvent, ConnectionRequest, LOOK};
use crate::cq::{Completion, CompletionQueue};
use crate::endpoint::Endpoint;
use crate::error::Error;

/// Something with a descriptor, waited for in a tokio runtime: no thread is held up meanwhile.
///
/// A future may be dropped at any time, as `tokio::time::timeout` and `select!` do: what it waited
/// for is there for the next one. That is how these waits get a deadline. What the value itself offers is
/// behind [`get_ref`](Self::get_ref).
///
/// Needs the feature `tokio`, and a runtime with its I/O and time drivers.
///
/// ```no_run
/// # async fn example(connection: rpma::Connection) -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
///
/// let second = Duration::from_secs(1);
/// let mut completions = rpma::Async::new(connection.cq().clone())?;
/// let mut events = rpma::Async::with_events(connection)?;
/// events.wait_established().await?;
/// // … post by `events.get_ref()` …
/// match tokio::time::timeout(second, completions.next()).await {
///     Ok(completion) => println!("operation {}", completion?.op_context()),
///     Err(_) => println!("none, and none is lost"),
/// }
/// # Ok(())
/// # }
/// ```
pub struct Async<T>(cm::Async<T>);

impl<T: AsFd> Async<T> {
    /// Registers the descriptor of `value` with the runtime.
    ///
    /// # Errors
    /// The failed call, as when there are too many descriptors.
    ///
    /// # Panics
    /// Outside a tokio runtime that has its I/O driver enabled.
    pub fn new(value: T) -> Result<Self, Error> {
        Ok(Self(cm::Async::new(value)?))
    }
}

impl<T> Async<T> {
    /// The value, for what does not wait. What is taken through it is taken.
    pub fn get_ref(&self) -> &T {
        self.0.get_ref()
    }
}

impl Async<CompletionQueue> {
    /// Waits for the next completion.
    ///
    /// # Errors
    /// As [`CompletionQueue::wait`], without the deadline.
    pub async fn next(&mut self) -> Result<Completion, Error> {
        self.0
            .attempt(|queue| {
                loop {
                    if let Some(completion) = queue.poll_one()? {
                        return Ok(Some(completion));
                    }
                    if !queue.try_wait()? {
                        return Ok(None);
                    }
                }
            })
            .await
    }

    /// Takes completions as [`CompletionQueue::poll`] does, and waits until there is at least one.
    ///
    /// # Errors
    /// As [`next`](Self::next); [`Error::Invalid`] for an `out` without room.
    pub async fn poll<'a>(
        &mut self,
        out: &'a mut [MaybeUninit<Completion>],
    ) -> Result<&'a [Completion], Error> {
        let Some((place, rest)) = out.split_first_mut() else {
            return Err(Error::Invalid(
                "a wait for completions was given no room for any".into(),
            ));
        };
        place.write(self.next().await?);
        // Nothing waits from here on, so nothing is in hand when the future is dropped.
        let more = self.get_ref().poll(rest)?.len();
        // SAFETY: the first was written above, and the poll filled as many behind it.
        Ok(unsafe { std::slice::from_raw_parts(out.as_ptr().cast(), more + 1) })
    }
}

impl Async<CompletionChannel> {
    /// Waits until one of the channel's queues has something to poll, and says which.
    ///
    /// # Errors
    /// As [`CompletionChannel::try_wait`].
    pub async fn wait(&mut self) -> Result<CompletionQueue, Error> {
        self.0.attempt(CompletionChannel::try_wait).await
    }
}

impl Async<Endpoint> {
    /// Waits for a request, and makes the queues that `config` asks for.
    ///
    /// # Errors
    /// As [`Endpoint::try_next_connection_request`].
    pub async fn next_connection_request(
        &mut self,
        config: &ConnectionConfig,
    ) -> Result<ConnectionRequest, Error> {
        self.0
            .attempt(|endpoint| endpoint.try_next_connection_request(config))
            .await
    }
}

impl Async<Connection> {
    /// Registers the descriptor of the connection's events with the runtime.
    ///
    /// # Errors
    /// As [`new`](Self::new); [`Error::NoEventDescriptor`] for a connection of a peer with a
    /// dispatcher.
    ///
    /// # Panics
    /// As [`new`](Self::new).
    pub fn with_events(connection: Connection) -> Result<Self, Error> {
        cm::Async::with_descriptor(connection, Connection::event_fd).map(Self)
    }

    /// Waits for the next event; carries the handshake out on the way.
    ///
    /// # Errors
    /// As [`Connection::try_next_event`].
    pub async fn next_event(&mut self) -> Result<ConnectionEvent, Error> {
        while self.get_ref().awaits_data() {
            // The last message of the handshake may be lost, and then nothing shows on the descriptor.
            let event = self.0.attempt(Connection::try_next_event);
            if let Ok(event) = tokio::time::timeout(LOOK, event).await {
                return event;
            }
        }
        self.0.attempt(Connection::try_next_event).await
    }

    /// Waits until data can flow.
    ///
    /// # Errors
    /// As [`Connection::wait_established`], without the deadline.
    pub async fn wait_established(&mut self) -> Result<(), Error> {
        while self.get_ref().awaits_data() {
            let connection = self.0.attempt(Connection::try_established);
            if let Ok(established) = tokio::time::timeout(LOOK, connection).await {
                return established;
            }
        }
        self.0.attempt(Connection::try_established).await
    }
}

impl<T: fmt::Debug> fmt::Debug for Async<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
