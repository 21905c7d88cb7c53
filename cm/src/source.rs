//! Where the events of an id come from: its own channel, or a dispatcher that reads one for many.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crossbeam_channel::{Receiver, Sender};
use rustix::event::{EventfdFlags, eventfd};
use verbs::{Deadline, wait_for};

use crate::channel::EventChannel;
use crate::error::Error;
use crate::event::{Event, Unacknowledged};
use crate::id::{Home, Id};
use crate::incoming::IncomingId;

/// Where the events of a connection, listener or attempt come from: [`OwnChannel`] or [`Routed`].
///
/// Nobody else can implement it.
pub trait EventSource: fmt::Debug + Send + Sync + Sized + sealed::Source {}

pub(crate) mod sealed {
    use super::{Arrived, Deadline, Error, IncomingId};

    /// What the phases ask of a source.
    #[expect(unnameable_types, reason = "sealed")]
    pub trait Source: Sized {
        /// The next event if there is one; never blocks.
        fn try_next(&self) -> Result<Option<Arrived>, Error>;

        /// Waits for the next event; `None` once the deadline has passed.
        fn next(&self, deadline: Deadline) -> Result<Option<Arrived>, Error>;

        /// The source of an id that is about to be accepted.
        fn of_accepted(incoming: &mut IncomingId) -> Result<Self, Error>;
    }
}

/// An event that was taken, and is acknowledged.
#[expect(unnameable_types, reason = "only the sealed trait speaks of it")]
#[derive(Debug)]
pub struct Arrived {
    pub(crate) event: Event,
    /// The address of the id it is accounted to.
    pub(crate) accounted: usize,
    /// The new id that a request brings; dropped undecided, it rejects the request.
    pub(crate) incoming: Option<IncomingId>,
}

/// A channel of an id's own, with a descriptor ([`AsFd`]) that becomes readable with each event.
#[derive(Debug)]
pub struct OwnChannel(EventChannel);

impl OwnChannel {
    pub(crate) fn new() -> Result<Self, Error> {
        Ok(Self(EventChannel::new()?))
    }

    pub(crate) fn home(&self) -> Home {
        Home {
            channel: self.0.clone(),
            keeper: None,
        }
    }
}

impl EventSource for OwnChannel {}

impl sealed::Source for OwnChannel {
    fn try_next(&self) -> Result<Option<Arrived>, Error> {
        let Some(event) = self.0.try_get()? else {
            return Ok(None);
        };
        let adopt = |raw| {
            // SAFETY: the id came with this very event, on this channel, and gets no other before
            // it is accepted.
            IncomingId::new(unsafe { Id::adopt(raw, &self.home(), None) }, None)
        };
        Ok(Some(Arrived::of(&event, adopt)))
    }

    fn next(&self, deadline: Deadline) -> Result<Option<Arrived>, Error> {
        wait_for(self.as_fd(), deadline, || self.try_next())
    }

    fn of_accepted(incoming: &mut IncomingId) -> Result<Self, Error> {
        let own = Self::new()?;
        // Before accepting: afterwards ESTABLISHED could be taken from the listener's channel.
        incoming.id_mut().migrate(&own.0)?;
        Ok(own)
    }
}

impl AsFd for OwnChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Arrived {
    /// Copies an event; `adopt` takes over the new id that it may bring.
    pub(crate) fn of(
        event: &Unacknowledged,
        adopt: impl FnOnce(crate::event::RawId) -> IncomingId,
    ) -> Self {
        let ids = event.ids();
        Self {
            event: event.copy(),
            accounted: ids.map_or(0, |(accounted, _)| accounted.as_ptr().addr()),
            incoming: ids.and_then(|(_, new)| new).map(adopt),
        }
    }
}

/// The dispatcher's end of what leads to one id's owner.
#[derive(Debug)]
pub(crate) struct Lane {
    // Boxed: a channel takes room for 31 at once.
    sender: Sender<Box<Arrived>>,
    /// How many requests may wait, of a listener.
    room: usize,
    waiting: AtomicUsize,
    overflowed: AtomicU64,
    /// Readable when something waits, of a listener.
    bell: Option<OwnedFd>,
}

impl Lane {
    /// Hands an event on; never blocks. A request that finds no room is rejected at once, one that
    /// nobody will take as well.
    pub(crate) fn deliver(&self, arrived: Arrived) {
        if arrived.incoming.is_some() && self.waiting.fetch_add(1, Ordering::AcqRel) >= self.room {
            self.waiting.fetch_sub(1, Ordering::AcqRel);
            self.overflowed.fetch_add(1, Ordering::Relaxed);
            drop(arrived);
            return;
        }
        // The owner may be gone: then the event ends here.
        drop(self.sender.send(Box::new(arrived)));
        if let Some(bell) = &self.bell {
            // It fails only when so many have rung that it is readable in any case.
            let _ = rustix::io::write(bell, &1_u64.to_ne_bytes());
        }
    }
}

/// Events that a [`Dispatcher`](crate::Dispatcher) hands on. Only a listener has a descriptor to wait
/// for.
#[derive(Debug)]
pub struct Routed {
    // Dropped first: what waits in it is thrown away, requests are rejected.
    receiver: Receiver<Box<Arrived>>,
    lane: Arc<Lane>,
}

impl Routed {
    /// Both ends of a listener's, with a descriptor; `room` is how many requests may wait.
    pub(crate) fn of_listener(room: usize) -> Result<Self, Error> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| verbs::Error::from_errno("eventfd", errno.raw_os_error()))?;
        Ok(Self::with(room, Some(bell)))
    }

    /// Both ends, for an id that gets no requests.
    pub(crate) fn new() -> Self {
        Self::with(0, None)
    }

    fn with(room: usize, bell: Option<OwnedFd>) -> Self {
        let (sender, receiver) = crossbeam_channel::unbounded();
        Self {
            receiver,
            lane: Arc::new(Lane {
                sender,
                room,
                waiting: AtomicUsize::new(0),
                overflowed: AtomicU64::new(0),
                bell,
            }),
        }
    }

    pub(crate) fn lane(&self) -> Arc<Lane> {
        Arc::clone(&self.lane)
    }

    /// Readable when something may wait. Of a listener only.
    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        let bell = self.lane.bell.as_ref();
        bell.expect("every listener is made with one").as_fd()
    }

    /// How many requests found no room.
    pub(crate) fn overflowed(&self) -> u64 {
        self.lane.overflowed.load(Ordering::Relaxed)
    }

    fn taken(&self, got: Option<Box<Arrived>>) -> Option<Arrived> {
        let arrived = *got?;
        if arrived.incoming.is_some() {
            self.lane.waiting.fetch_sub(1, Ordering::AcqRel);
        }
        Some(arrived)
    }
}

impl EventSource for Routed {}

impl sealed::Source for Routed {
    fn try_next(&self) -> Result<Option<Arrived>, Error> {
        let mut got = self.receiver.try_recv().ok();
        if let (None, Some(bell)) = (&got, &self.lane.bell) {
            // Silenced before the second look: what comes after it rings again.
            let _ = rustix::io::read(bell, &mut [0_u8; 8]);
            got = self.receiver.try_recv().ok();
        }
        Ok(self.taken(got))
    }

    fn next(&self, deadline: Deadline) -> Result<Option<Arrived>, Error> {
        // It cannot be disconnected: the other end is kept here as well.
        let got = self.receiver.recv_timeout(deadline.remaining());
        Ok(self.taken(got.ok()))
    }

    fn of_accepted(incoming: &mut IncomingId) -> Result<Self, Error> {
        incoming.take_events().ok_or_else(|| {
            verbs::Error::refused(
                "rdma_accept",
                verbs::ErrorKind::InvalidArgument,
                "the request did not come from a dispatcher",
            )
            .into()
        })
    }
}
