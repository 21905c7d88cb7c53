//! Waiting in a tokio runtime.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::connect::{Progress, Resolved, Resolving};
use crate::connection::{Connection, ConnectionEvent};
use crate::datagram::{
    DatagramListener, DatagramLookup, DatagramPeer, DatagramRequest, DatagramResolved,
    DatagramResolving, Multicast, MulticastEvent,
};
use crate::error::Error;
use crate::listen::{Listener, Request};

/// Something with a descriptor, waited for in a tokio runtime: no thread is held up meanwhile.
///
/// A future may be dropped at any time, as `tokio::time::timeout` and `select!` do: what it waited
/// for is there for the next one. That is how these waits get a deadline. They take `&mut self`,
/// because one taker would leave the other waiting for what is gone; what the value itself offers is
/// behind [`get_ref`](Self::get_ref).
///
/// Needs the feature `tokio`.
///
/// ```no_run
/// # async fn serve(listener: cm::Listener) -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
///
/// let mut listener = cm::Async::new(listener)?;
/// let second = Duration::from_secs(1);
/// match tokio::time::timeout(second, listener.next_request()).await {
///     Ok(request) => println!("{} asks", request?.peer_addr()),
///     Err(_) => println!("nobody, and none is lost"),
/// }
/// # Ok(())
/// # }
/// ```
pub struct Async<T> {
    // Let go of before the value, whose descriptor it shares.
    ready: AsyncFd<OwnedFd>,
    value: Option<T>,
}

impl<T: AsFd> Async<T> {
    /// Registers the descriptor of `value` with the runtime.
    ///
    /// # Errors
    /// The failed call, as when there are too many descriptors.
    ///
    /// # Panics
    /// Outside a tokio runtime that has its I/O driver enabled.
    pub fn new(value: T) -> Result<Self, Error> {
        Self::with_descriptor(value, |value| Ok(value.as_fd()))
    }
}

impl<T> Async<T> {
    /// Registers the descriptor that `of` finds in `value` with the runtime.
    ///
    /// # Errors
    /// That of `of`, and as [`new`](Self::new).
    ///
    /// # Panics
    /// As [`new`](Self::new).
    pub fn with_descriptor<E: From<Error>>(
        value: T,
        of: impl for<'a> FnOnce(&'a T) -> Result<BorrowedFd<'a>, E>,
    ) -> Result<Self, E> {
        let failed = |verb, error: std::io::Error| {
            let errno = error.raw_os_error().unwrap_or(libc::EIO);
            Error::from(verbs::Error::from_errno(verb, errno))
        };
        // A copy, which stays registered although the value moves.
        let fd = of(&value)?.try_clone_to_owned();
        let fd = fd.map_err(|error| failed("fcntl", error))?;
        // SAFETY: an owned descriptor is always the same one, and open until it is dropped, which the
        // registration does after it has taken the descriptor out of the runtime.
        let ready = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) };
        let ready = ready.map_err(|error| failed("epoll_ctl", error.into()))?;
        Ok(Self {
            ready,
            value: Some(value),
        })
    }

    /// Calls `attempt`, which never blocks, until it gives something, and sleeps until the descriptor is
    /// readable in between. What `attempt` has taken is given at once: nothing is lost when this is dropped.
    ///
    /// # Errors
    /// Those of `attempt`, and of the runtime.
    ///
    /// # Panics
    /// When the value was spent.
    pub async fn attempt<R, E: From<Error>>(
        &mut self,
        mut attempt: impl FnMut(&T) -> Result<Option<R>, E>,
    ) -> Result<R, E> {
        // Others have their turn also when there is always something.
        tokio::task::consume_budget().await;
        if let Some(got) = attempt(self.get_ref())? {
            return Ok(got);
        }
        self.until(|value| attempt(held(value))).await
    }

    /// The value, for what does not wait. An event that is taken through it is taken.
    ///
    /// # Panics
    /// When the value was spent: an attempt that came to its end.
    pub fn get_ref(&self) -> &T {
        self.value.as_ref().expect("the attempt came to its end")
    }

    /// The value, no longer registered; `None` when it was spent.
    pub fn into_inner(self) -> Option<T> {
        self.value
    }

    /// Calls `attempt` until it gives something.
    async fn until<R, E: From<Error>>(
        &mut self,
        mut attempt: impl FnMut(&mut Option<T>) -> Result<Option<R>, E>,
    ) -> Result<R, E> {
        loop {
            // Nothing is in hand while this waits.
            let readable = self.ready.readable().await;
            let mut ready = readable.map_err(|error| {
                let errno = error.raw_os_error().unwrap_or(libc::EIO);
                Error::from(verbs::Error::from_errno("epoll_wait", errno))
            })?;
            if let Some(got) = attempt(&mut self.value)? {
                return Ok(got);
            }
            ready.clear_ready();
        }
    }

    /// The same for a value that each attempt takes and gives back.
    async fn spend<R>(
        &mut self,
        attempt: impl Fn(T) -> Result<Progress<T, R>, Error>,
    ) -> Result<R, Error> {
        self.until(|value| {
            let taken = value.take().expect("the attempt came to its end");
            Ok(match attempt(taken)? {
                Progress::Pending(left) => {
                    *value = Some(left);
                    None
                }
                Progress::Done(got) => Some(got),
            })
        })
        .await
    }
}

impl Async<Listener> {
    /// Waits for the next request.
    ///
    /// # Errors
    /// As [`Listener::try_next_request`].
    pub async fn next_request(&mut self) -> Result<Request, Error> {
        self.until(|listener| held(listener).try_next_request())
            .await
    }
}

impl Async<Connection> {
    /// Waits for the next event.
    ///
    /// # Errors
    /// As [`Connection::try_next_event`].
    pub async fn next_event(&mut self) -> Result<ConnectionEvent, Error> {
        self.until(|connection| held(connection).try_next_event())
            .await
    }

    /// Waits until data can flow, and gives the private data of the acceptance.
    ///
    /// # Errors
    /// As [`Connection::wait_established`], without the deadline.
    pub async fn wait_established(&mut self) -> Result<Vec<u8>, Error> {
        while !self.get_ref().is_established()? {
            let event = self.next_event().await?;
            if let Some(private_data) = self.get_ref().established(event)? {
                return Ok(private_data);
            }
        }
        Ok(Vec::new())
    }
}

impl Async<Resolving> {
    /// Waits until address and route are known. The deadline is that of the attempt.
    ///
    /// # Errors
    /// As [`Resolving::try_advance`]; the attempt is spent then.
    ///
    /// # Panics
    /// When the attempt has come to its end before.
    pub async fn wait(&mut self) -> Result<Resolved, Error> {
        self.spend(Resolving::try_advance).await
    }
}

impl Async<DatagramResolving> {
    /// Waits until address and route are known. The deadline is that of the attempt.
    ///
    /// # Errors
    /// As [`DatagramResolving::try_advance`]; the attempt is spent then.
    ///
    /// # Panics
    /// When the attempt has come to its end before.
    pub async fn wait(&mut self) -> Result<DatagramResolved, Error> {
        self.spend(DatagramResolving::try_advance).await
    }
}

impl Async<DatagramLookup> {
    /// Waits for the answer.
    ///
    /// # Errors
    /// As [`DatagramLookup::try_answer`]; the question is spent then.
    ///
    /// # Panics
    /// When the question was answered before.
    pub async fn wait(&mut self) -> Result<DatagramPeer, Error> {
        self.spend(DatagramLookup::try_answer).await
    }
}

impl Async<DatagramListener> {
    /// Waits for the next request.
    ///
    /// # Errors
    /// As [`DatagramListener::try_next_request`].
    pub async fn next_request(&mut self) -> Result<DatagramRequest, Error> {
        self.until(|listener| held(listener).try_next_request())
            .await
    }
}

impl Async<Multicast> {
    /// Waits for the next event.
    ///
    /// # Errors
    /// As [`Multicast::try_next_event`].
    pub async fn next_event(&mut self) -> Result<MulticastEvent, Error> {
        self.until(|multicast| held(multicast).try_next_event())
            .await
    }
}

fn held<T>(value: &Option<T>) -> &T {
    value.as_ref().expect("only attempts come to an end")
}

impl<T: fmt::Debug> fmt::Debug for Async<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Async").field(&self.value).finish()
    }
}
