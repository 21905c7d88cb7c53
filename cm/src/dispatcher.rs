//! One event channel and one thread for any number of ids.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::{self, JoinHandle, ThreadId};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use verbs::{Deadline, wait_readable};

use crate::channel::EventChannel;
use crate::connect::{ConnectOptions, Resolving};
use crate::connector::Connector;
use crate::datagram::{DatagramListener, DatagramResolving, Multicast};
use crate::error::Error;
use crate::event::RawId;
use crate::id::{Home, Id};
use crate::incoming::IncomingId;
use crate::listen::{ListenOptions, Listener};
use crate::params::IdOptions;
use crate::source::{Arrived, Routed};

/// Reads the events of many ids from one channel in a thread of its own, and hands each to the
/// connection, listener or attempt that it belongs to.
///
/// So thousands of connections need one descriptor, and no id moves from channel to channel when it
/// is accepted. Events are copied and acknowledged before they are handed on: whoever takes them
/// late, or never, holds up nobody else. What is made by a dispatcher has no descriptor to wait for,
/// but for its listeners; waits take a [`Deadline`] as everywhere, and `try_` methods never block.
///
/// Clones share the thread. It ends when the last clone and the last thing made by it are gone, in
/// whatever order and thread they go.
///
/// # Example
///
/// ```no_run
/// # fn main() -> Result<(), cm::Error> {
/// use std::time::Duration;
///
/// use cm::{Deadline, Dispatcher, ListenOptions};
///
/// let dispatcher = Dispatcher::new()?;
/// let addr = "192.0.2.1:7204".parse().expect("an address");
/// let listener = dispatcher.listen(addr, &ListenOptions::default())?;
/// let request = listener.next_request(Deadline::after(Duration::from_secs(5)))?;
/// println!("{} asks; {} found no room", request.peer_addr(), listener.overflowed());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Dispatcher(Arc<Running>);

/// The thread, which ends with the last of those who need it.
#[derive(Debug)]
pub(crate) struct Running {
    channel: EventChannel,
    /// Written to end the thread.
    stop: Arc<OwnedFd>,
    thread: Mutex<Option<JoinHandle<()>>>,
    failure: Arc<Mutex<Option<Error>>>,
}

/// How many requests may wait when the listener leaves it to the system, as in the kernel.
const DEFAULT_BACKLOG: usize = 1024;

/// How long the thread rests after events could not be read.
const REST: Duration = Duration::from_millis(10);

/// How often the thread wakes up for nothing.
const LONG: Duration = Duration::from_secs(3600);

impl Dispatcher {
    /// Opens the channel and starts the thread.
    ///
    /// # Errors
    /// [`Error::NoConnectionManager`], or the failed call, as when there are too many descriptors or
    /// threads.
    pub fn new() -> Result<Self, Error> {
        let channel = EventChannel::new()?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| verbs::Error::from_errno("eventfd", errno.raw_os_error()))?;
        let running = Arc::new(Running {
            channel,
            stop: Arc::new(stop),
            thread: Mutex::new(None),
            failure: Arc::default(),
        });
        let reader = Reader {
            channel: running.channel.clone(),
            stop: Arc::clone(&running.stop),
            failure: Arc::clone(&running.failure),
            owner: Arc::downgrade(&running),
        };
        let thread = thread::Builder::new()
            .name("rdma-cm-events".to_owned())
            .spawn(move || reader.run())
            .map_err(|error| {
                let errno = error.raw_os_error().unwrap_or(libc::EAGAIN);
                verbs::Error::from_errno("pthread_create", errno)
            })?;
        *running
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(thread);
        Ok(Self(running))
    }

    /// Starts to look for a device and a route to `peer`, as [`Resolving::start`].
    ///
    /// # Errors
    /// As [`Resolving::start`].
    pub fn resolve(
        &self,
        peer: SocketAddr,
        options: &ConnectOptions,
        deadline: Deadline,
    ) -> Result<Resolving<Routed>, Error> {
        let events = Routed::new();
        let lane = events.lane();
        Resolving::begin(events, &self.home(), Some(lane), peer, options, deadline)
    }

    /// Makes an id that is going to connect, as [`Connector::new`].
    ///
    /// # Errors
    /// As [`Connector::new`].
    pub fn connector(&self, options: &IdOptions) -> Result<Connector<Routed>, Error> {
        let events = Routed::new();
        let lane = events.lane();
        Connector::begin(events, &self.home(), Some(lane), options)
    }

    /// Listens at `addr`, as [`Listener::bind`]. [`ListenOptions::backlog`] requests wait for
    /// [`next_request`](Listener::next_request); what comes on top is rejected at once, and counted.
    ///
    /// # Errors
    /// As [`Listener::bind`].
    pub fn listen(
        &self,
        addr: SocketAddr,
        options: &ListenOptions,
    ) -> Result<Listener<Routed>, Error> {
        let events = Routed::of_listener(room(options))?;
        let lane = events.lane();
        Listener::begin(events, &self.home(), Some(lane), addr, options)
    }

    /// Starts to look for a device and a route to `peer`, as [`DatagramResolving::start`].
    ///
    /// # Errors
    /// As [`DatagramResolving::start`].
    pub fn resolve_datagram(
        &self,
        peer: SocketAddr,
        options: &ConnectOptions,
        deadline: Deadline,
    ) -> Result<DatagramResolving<Routed>, Error> {
        let events = Routed::new();
        let lane = events.lane();
        DatagramResolving::begin(events, &self.home(), Some(lane), peer, options, deadline)
    }

    /// Listens for questions at `addr`, as [`DatagramListener::bind`]; the queue is bounded as that
    /// of [`listen`](Self::listen).
    ///
    /// # Errors
    /// As [`DatagramListener::bind`].
    pub fn listen_datagram(
        &self,
        addr: SocketAddr,
        options: &ListenOptions,
    ) -> Result<DatagramListener<Routed>, Error> {
        let events = Routed::of_listener(room(options))?;
        let lane = events.lane();
        DatagramListener::begin(events, &self.home(), Some(lane), addr, options)
    }

    /// Binds to a local address for multicast, as [`Multicast::bind`].
    ///
    /// # Errors
    /// As [`Multicast::bind`].
    pub fn multicast(
        &self,
        addr: SocketAddr,
        options: &IdOptions,
    ) -> Result<Multicast<Routed>, Error> {
        let events = Routed::new();
        let lane = events.lane();
        Multicast::begin(events, &self.home(), Some(lane), addr, options)
    }

    /// Why events could not be read, the last time that happened. The thread goes on trying.
    pub fn last_error(&self) -> Option<Error> {
        self.0
            .failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(crate) fn home(&self) -> Home {
        Home {
            channel: self.0.channel.clone(),
            keeper: Some(Arc::clone(&self.0)),
        }
    }
}

/// How many requests may wait.
fn room(options: &ListenOptions) -> usize {
    match options.backlog {
        0 => DEFAULT_BACKLOG,
        room => usize::from(room),
    }
}

impl Running {
    fn thread_id(&mut self) -> Option<ThreadId> {
        let thread = self
            .thread
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        thread.as_ref().map(|thread| thread.thread().id())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let own = self.thread_id() == Some(thread::current().id());
        let thread = self
            .thread
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        let Some(thread) = thread.take() else { return };
        if !self.channel.origin().is_current() {
            // There is no such thread in a forked child.
            std::mem::forget(thread);
            return;
        }
        if let Err(error) = rustix::io::write(&*self.stop, &1_u64.to_ne_bytes()) {
            tracing::warn!(%error, "the thread that reads events cannot be told to end");
            return;
        }
        // The last of those who needed it may have gone in the thread itself.
        if !own && thread.join().is_err() {
            tracing::warn!("the thread that reads events has panicked");
        }
    }
}

/// What the thread works with. It keeps nobody's id alive.
struct Reader {
    channel: EventChannel,
    stop: Arc<OwnedFd>,
    failure: Arc<Mutex<Option<Error>>>,
    owner: Weak<Running>,
}

impl Reader {
    fn run(self) {
        let mut rest = false;
        loop {
            let waited = if rest {
                wait_readable([self.stop.as_fd()], Deadline::after(REST))
                    .map(|[stop]| [!stop, stop])
            } else {
                wait_readable(
                    [self.channel.as_fd(), self.stop.as_fd()],
                    Deadline::after(LONG),
                )
            };
            rest = match waited {
                Ok([_, true]) => return,
                Ok([false, _]) => false,
                Ok([true, _]) => self.hand_out().map_err(|error| self.failed(error)).is_err(),
                Err(error) => {
                    self.failed(error.into());
                    // Not even the order to stop could be waited for.
                    thread::sleep(REST);
                    true
                }
            };
        }
    }

    /// Hands on all that is there.
    fn hand_out(&self) -> Result<(), Error> {
        while let Some(event) = self.channel.try_get()? {
            let Some((accounted, _)) = event.ids() else {
                continue;
            };
            // SAFETY: every id on this channel was adopted, and the event is not acknowledged.
            let lane = unsafe { Id::lane_of(accounted) };
            let arrived = Arrived::of(&event, |raw| self.adopt(raw));
            // Its owner may destroy the id from here on.
            drop(event);
            if let Some(lane) = lane {
                lane.deliver(arrived);
            }
        }
        Ok(())
    }

    /// Takes over the id of a request.
    fn adopt(&self, raw: RawId) -> IncomingId {
        let events = Routed::new();
        let home = Home {
            channel: self.channel.clone(),
            // There while the listener is, which waits for its event's acknowledgement.
            keeper: self.owner.upgrade(),
        };
        // SAFETY: the id came with the event in hand, on this channel, and this thread alone gets
        // events from it.
        let id = unsafe { Id::adopt(raw, &home, Some(events.lane())) };
        IncomingId::new(id, Some(events))
    }

    fn failed(&self, error: Error) {
        tracing::warn!(%error, "events cannot be read");
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        *failure = Some(error);
    }
}
