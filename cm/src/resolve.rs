//! From an address to a device and a route, for connections and datagrams alike.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use verbs::{Context, Deadline};

use crate::address::{lacks_scope, with_scope};
use crate::connect::{ConnectOptions, Progress};
use crate::error::Error;
use crate::event::{Event, EventKind};
use crate::id::{Home, Id};
use crate::port_space::PortSpace;
use crate::source::{EventSource, Lane};

/// An address and route being looked for.
#[derive(Debug)]
pub(crate) struct Search<S> {
    // Before the channel that its events arrive on.
    pub(crate) id: Id,
    pub(crate) events: S,
    peer: SocketAddr,
    source: Option<SocketAddr>,
    /// How long the kernel may look for the address before it is asked again.
    patience: Duration,
    /// When it was asked, and how long it may look.
    asked: (Instant, Duration),
    has_address: bool,
    deadline: Deadline,
}

/// How long the kernel may look for an address at first, and at most: twice as long each time.
///
/// It looks at the neighbour once more when it hears from it, or when its time is up. When the answer is there before the
/// kernel has noted who waits for it, as over a virtual wire on one processor, only the time is left.
const FIRST_PATIENCE: Duration = Duration::from_millis(100);
const LAST_PATIENCE: Duration = Duration::from_secs(2);

/// A device and a route.
#[derive(Debug)]
pub(crate) struct Found<S> {
    // Before the channel that its events arrive on.
    pub(crate) id: Id,
    pub(crate) events: S,
    pub(crate) context: Context,
    pub(crate) peer: SocketAddr,
    pub(crate) local: Option<SocketAddr>,
}

impl<S: EventSource> Search<S> {
    pub(crate) fn begin(
        events: S,
        home: &Home,
        lane: Option<Arc<Lane>>,
        space: PortSpace,
        peer: SocketAddr,
        options: &ConnectOptions,
        deadline: Deadline,
    ) -> Result<Self, Error> {
        let id = Id::new(space, home, lane)?;
        id.set_options(&options.id)?;
        Self::of(id, events, options.source, peer, deadline)
    }

    /// Starts to look, with an id that is as it shall be.
    pub(crate) fn of(
        id: Id,
        events: S,
        source: Option<SocketAddr>,
        peer: SocketAddr,
        deadline: Deadline,
    ) -> Result<Self, Error> {
        // No event is pending that would write the id's address.
        let peer = with_scope(peer, source.or_else(|| id.addresses().0));
        if lacks_scope(peer) {
            // As sockets do. The kernel takes whichever interface its routes name first.
            let errno = libc::EINVAL;
            return Err(Error::AddressNotResolved { peer, errno });
        }
        let mut this = Self {
            id,
            events,
            peer,
            source,
            patience: FIRST_PATIENCE,
            asked: (Instant::now(), Duration::ZERO),
            has_address: false,
            deadline,
        };
        this.ask()?;
        Ok(this)
    }

    /// Lets the kernel look for the address for a while.
    fn ask(&mut self) -> Result<(), Error> {
        let until = self.deadline.min(Deadline::after(self.patience));
        self.asked = (Instant::now(), until.remaining());
        self.patience = (2 * self.patience).min(LAST_PATIENCE);
        let asked = self.id.resolve_addr(self.source, self.peer, until);
        asked.map_err(|error| error.or_removed(self.peer))
    }

    /// What to do when the kernel has not found the address in time: ask again while there is some left.
    fn not_in_time(&mut self) -> Result<(), Error> {
        let (when, patience) = self.asked;
        if when.elapsed() < patience / 2 {
            // It did not look for as long as it might have, so it would say the same again.
            return Err(Error::AddressNotResolved {
                peer: self.peer,
                errno: libc::ETIMEDOUT,
            });
        }
        if self.deadline.has_passed() {
            return Err(self.timed_out());
        }
        self.ask()
    }

    /// Whether the address is known.
    pub(crate) fn has_address(&self) -> bool {
        self.has_address
    }

    /// Goes on as far as possible without waiting.
    pub(crate) fn try_advance(mut self) -> Result<Progress<Self, Found<S>>, Error> {
        while let Some(arrived) = self.events.try_next()? {
            if self.step(&arrived.event)? {
                return Ok(Progress::Done(self.found()?));
            }
        }
        if self.deadline.has_passed() {
            return Err(self.timed_out());
        }
        Ok(Progress::Pending(self))
    }

    /// Waits until address and route are known, or the deadline has passed.
    pub(crate) fn wait(mut self) -> Result<Found<S>, Error> {
        while let Some(arrived) = self.events.next(self.deadline)? {
            if self.step(&arrived.event)? {
                return self.found();
            }
        }
        Err(self.timed_out())
    }

    /// Takes one event; `true` when everything is resolved.
    fn step(&mut self, event: &Event) -> Result<bool, Error> {
        let (peer, errno) = (self.peer, event.errno());
        match event.kind() {
            EventKind::ADDR_RESOLVED => {
                // SAFETY: the address has just been resolved, so the id has a device.
                let started = unsafe { self.id.resolve_route(self.deadline) };
                // A loopback address is given any device, which then has no interface for it.
                started.map_err(|error| match &error {
                    Error::Call(call) if call.errno() == Some(libc::ENODEV) => {
                        Error::RouteNotResolved {
                            peer,
                            errno: libc::ENODEV,
                        }
                    }
                    _ => error.or_removed(peer),
                })?;
                self.has_address = true;
                Ok(false)
            }
            EventKind::ROUTE_RESOLVED => Ok(true),
            EventKind::ADDR_ERROR if errno == libc::ETIMEDOUT => {
                self.not_in_time()?;
                Ok(false)
            }
            EventKind::ADDR_ERROR => Err(Error::AddressNotResolved { peer, errno }),
            EventKind::ROUTE_ERROR => Err(Error::RouteNotResolved { peer, errno }),
            EventKind::DEVICE_REMOVAL => Err(Error::DeviceRemoved { peer }),
            kind => {
                tracing::debug!(%kind, status = event.status(), "event ignored while resolving");
                Ok(false)
            }
        }
    }

    fn found(self) -> Result<Found<S>, Error> {
        let peer = self.peer;
        // Both events are in, so none is pending that would write these fields.
        let context = self.id.context()?.ok_or(Error::AddressNotResolved {
            peer,
            errno: libc::ENODEV,
        })?;
        let (local, _) = self.id.addresses();
        Ok(Found {
            id: self.id,
            events: self.events,
            context,
            peer,
            local,
        })
    }

    fn timed_out(&self) -> Error {
        Error::TimedOut {
            what: format!("resolving the address or route of {}", self.peer),
        }
    }
}
