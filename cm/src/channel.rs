//! The channel that events of ids arrive on.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{Mode, OFlags};
use verbs::{Origin, sys};

use crate::error::Error;
use crate::event::Unacknowledged;

/// The device file of the kernel's connection manager.
const DEVICE_FILE: &str = "/dev/infiniband/rdma_cm";

/// An event channel: of one id (and a listener's new ids until they move away), or of a dispatcher's.
#[derive(Clone)]
pub(crate) struct EventChannel(Arc<Inner>);

struct Inner {
    raw: NonNull<sys::rdma_event_channel>,
    origin: Origin,
    /// Held while an event is got, which changes its id in this very thread.
    reading: Mutex<()>,
}

// SAFETY: librdmacm's channel is a descriptor in a struct that never changes.
unsafe impl Send for Inner {}
// SAFETY: reading events from several threads is allowed in C; we serialise it all the same.
unsafe impl Sync for Inner {}

impl EventChannel {
    /// A non-blocking channel.
    pub(crate) fn new() -> Result<Self, Error> {
        let verb = "rdma_create_event_channel";
        check_connection_manager()?;
        let origin = Origin::current(verb)?;
        // SAFETY: the call has no precondition.
        let raw = unsafe { sys::rdma_create_event_channel() };
        let raw = NonNull::new(raw).ok_or_else(|| verbs::Error::last_os(verb))?;
        let channel = Self(Arc::new(Inner {
            raw,
            origin,
            reading: Mutex::new(()),
        }));
        rustix::fs::fcntl_setfl(channel.as_fd(), OFlags::NONBLOCK)
            .map_err(|e| verbs::Error::from_errno("fcntl", e.raw_os_error()))?;
        Ok(channel)
    }

    /// The next event if there is one, not acknowledged yet; never blocks.
    pub(crate) fn try_get(&self) -> Result<Option<Unacknowledged>, Error> {
        let verb = "rdma_get_cm_event";
        self.0.origin.check(verb)?;
        let _reading = self
            .0
            .reading
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        loop {
            let mut event = ptr::null_mut();
            // SAFETY: the channel is live and `event` a valid place.
            let ret = unsafe { sys::rdma_get_cm_event(self.0.raw.as_ptr(), &mut event) };
            if ret != 0 {
                let error = verbs::Error::last_os(verb);
                return match error.errno() {
                    Some(libc::EAGAIN) => Ok(None),
                    Some(libc::EINTR) => continue,
                    _ => Err(error.into()),
                };
            }
            // SAFETY: the event was just got.
            return Ok(NonNull::new(event).map(|event| unsafe { Unacknowledged::new(event) }));
        }
    }

    pub(crate) fn raw(&self) -> *mut sys::rdma_event_channel {
        self.0.raw.as_ptr()
    }

    pub(crate) fn origin(&self) -> Origin {
        self.0.origin
    }
}

impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is live; its descriptor is set at creation.
        let fd = unsafe { (*self.0.raw.as_ptr()).fd };
        // SAFETY: the descriptor is open as long as the channel, which `self` keeps alive.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }
}

impl fmt::Debug for EventChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EventChannel({:p})", self.0.raw)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.origin.is_current() {
            // SAFETY: every id on the channel holds a clone, so they are all gone.
            unsafe { sys::rdma_destroy_event_channel(self.raw.as_ptr()) };
        }
    }
}

/// Whether the kernel's connection manager can be reached, said in our words.
///
/// librdmacm would wait seconds for the file to appear and write warnings to stderr.
pub(crate) fn check_connection_manager() -> Result<(), Error> {
    static FOUND: AtomicBool = AtomicBool::new(false);
    // The fake device needs no kernel.
    if cfg!(rdma_fake) || FOUND.load(Ordering::Relaxed) {
        return Ok(());
    }
    match rustix::fs::open(DEVICE_FILE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        Ok(_) => {
            FOUND.store(true, Ordering::Relaxed);
            Ok(())
        }
        Err(errno) => Err(Error::NoConnectionManager {
            path: DEVICE_FILE,
            errno: errno.raw_os_error(),
        }),
    }
}
