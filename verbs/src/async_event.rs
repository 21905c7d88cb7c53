//! Asynchronous events: what happens to a device and its objects without a request.

use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};

use rdma_core_sys as sys;

use crate::context::Context;
use crate::cq::CqId;
use crate::deadline::{Deadline, wait_for};
use crate::error::{Error, ErrorKind, last_errno};
use crate::flags::open_enum;
use crate::registry;
use crate::srq::SrqId;

open_enum! {
    /// What has happened.
    #[doc(alias = "ibv_event_type")]
    AsyncEventKind(u32) {
        /// A completion queue has lost completions.
        CQ_ERR = sys::ibv_event_type::IBV_EVENT_CQ_ERR.0, "completion queue error";
        /// A queue pair has failed, and completions may be missing.
        QP_FATAL = sys::ibv_event_type::IBV_EVENT_QP_FATAL.0, "queue pair has failed";
        /// A peer's request was malformed.
        QP_REQ_ERR = sys::ibv_event_type::IBV_EVENT_QP_REQ_ERR.0, "invalid request";
        /// A peer's request was not allowed.
        QP_ACCESS_ERR = sys::ibv_event_type::IBV_EVENT_QP_ACCESS_ERR.0, "access violation";
        /// Data came before the connection was established.
        COMM_EST = sys::ibv_event_type::IBV_EVENT_COMM_EST.0, "communication established";
        /// The send queue has drained after it was told to.
        SQ_DRAINED = sys::ibv_event_type::IBV_EVENT_SQ_DRAINED.0, "send queue drained";
        /// The queue pair uses its alternate path now.
        PATH_MIG = sys::ibv_event_type::IBV_EVENT_PATH_MIG.0, "path migrated";
        /// The alternate path could not be taken.
        PATH_MIG_ERR = sys::ibv_event_type::IBV_EVENT_PATH_MIG_ERR.0, "path migration failed";
        /// The device has failed or was removed: close everything of it.
        DEVICE_FATAL = sys::ibv_event_type::IBV_EVENT_DEVICE_FATAL.0, "device has failed";
        /// A port can carry traffic now.
        PORT_ACTIVE = sys::ibv_event_type::IBV_EVENT_PORT_ACTIVE.0, "port active";
        /// A port no longer carries traffic.
        PORT_ERR = sys::ibv_event_type::IBV_EVENT_PORT_ERR.0, "port down";
        /// A port has another LID.
        LID_CHANGE = sys::ibv_event_type::IBV_EVENT_LID_CHANGE.0, "LID changed";
        /// The table of partition keys has changed.
        PKEY_CHANGE = sys::ibv_event_type::IBV_EVENT_PKEY_CHANGE.0, "partition keys changed";
        /// Another subnet manager is in charge.
        SM_CHANGE = sys::ibv_event_type::IBV_EVENT_SM_CHANGE.0, "subnet manager changed";
        /// A shared receive queue has failed.
        SRQ_ERR = sys::ibv_event_type::IBV_EVENT_SRQ_ERR.0, "shared receive queue error";
        /// Fewer receives are left in a shared receive queue than its limit; the limit is off now.
        SRQ_LIMIT_REACHED = sys::ibv_event_type::IBV_EVENT_SRQ_LIMIT_REACHED.0, "shared receive queue limit reached";
        /// A failed queue pair takes no more receives from its shared receive queue.
        QP_LAST_WQE_REACHED = sys::ibv_event_type::IBV_EVENT_QP_LAST_WQE_REACHED.0, "last receive taken";
        /// The subnet manager asks for registrations to be made again.
        CLIENT_REREGISTER = sys::ibv_event_type::IBV_EVENT_CLIENT_REREGISTER.0, "registrations lost";
        /// The GID table has changed: indices may mean other addresses now.
        GID_CHANGE = sys::ibv_event_type::IBV_EVENT_GID_CHANGE.0, "GID table changed";
        /// A work queue has failed.
        WQ_FATAL = sys::ibv_event_type::IBV_EVENT_WQ_FATAL.0, "work queue has failed";
    }
}

/// What an event is about.
///
/// An object that was not made by this crate, or is being dropped, has no identity: `None`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AsyncEventSource {
    /// A completion queue.
    CompletionQueue(Option<CqId>),
    /// The queue pair of this number, which a later one may get as well.
    QueuePair(u32),
    /// A shared receive queue.
    SharedReceiveQueue(Option<SrqId>),
    /// A work queue of a receive-side scaling table.
    WorkQueue,
    /// The port of this number, from 1.
    Port(u32),
    /// The device.
    Device,
    /// Not known for a kind that this version does not know.
    Unknown,
}

/// Something that happened to a device or one of its objects.
#[doc(alias = "ibv_async_event")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AsyncEvent {
    kind: AsyncEventKind,
    source: AsyncEventSource,
}

impl AsyncEvent {
    /// What has happened.
    pub fn kind(&self) -> AsyncEventKind {
        self.kind
    }

    /// What it happened to.
    pub fn source(&self) -> AsyncEventSource {
        self.source
    }
}

impl fmt::Display for AsyncEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:?}", self.kind, self.source)
    }
}

/// The asynchronous events of a device; see [`Context::async_events`].
///
/// The descriptor ([`AsFd`]) is non-blocking and becomes readable with an event. An event read from
/// it by other means is never acknowledged, and dropping its object then waits for ever.
///
/// # Example
///
/// ```no_run
/// use std::time::Duration;
/// use verbs::{AsyncEventKind, Context, Deadline, Error};
///
/// # fn example(context: &Context) -> Result<(), Error> {
/// let events = context.async_events()?;
/// let event = events.next(Deadline::after(Duration::from_secs(60)))?;
/// if event.kind() == AsyncEventKind::DEVICE_FATAL {
///     println!("the device is gone");
/// }
/// println!("{event}");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct AsyncEvents(Context);

impl AsyncEvents {
    pub(crate) fn new(context: Context) -> Result<Self, Error> {
        context.raw_checked("ibv_get_async_event")?;
        let events = Self(context);
        // Said of the open file, so of every handle of the device: nobody is blocked by a read.
        rustix::fs::fcntl_getfl(events.as_fd())
            .and_then(|flags| {
                rustix::fs::fcntl_setfl(events.as_fd(), flags | rustix::fs::OFlags::NONBLOCK)
            })
            .map_err(|e| Error::from_errno("fcntl", e.raw_os_error()))?;
        Ok(events)
    }

    /// The next event if there is one; never blocks.
    ///
    /// The event is acknowledged before this returns, so dropping its object never waits for it.
    ///
    /// # Errors
    /// EIO when the device has gone.
    #[doc(alias = "ibv_get_async_event")]
    #[doc(alias = "ibv_ack_async_event")]
    pub fn try_next(&self) -> Result<Option<AsyncEvent>, Error> {
        let verb = "ibv_get_async_event";
        let raw = self.0.raw_checked(verb)?;
        let mut event = MaybeUninit::<sys::ibv_async_event>::zeroed();
        // SAFETY: the context is open, and the place is valid.
        let ret = unsafe { sys::ibv_get_async_event(raw, event.as_mut_ptr()) };
        if ret != 0 {
            return match last_errno() {
                libc::EAGAIN | libc::EINTR => Ok(None),
                errno => Err(Error::from_errno(verb, errno)),
            };
        }
        // SAFETY: the call filled it, and any bit pattern is a value of integers and pointers.
        let unacknowledged = Unacknowledged(unsafe { event.assume_init() });
        let kind = AsyncEventKind::from_raw(unacknowledged.0.event_type.0);
        // SAFETY: the event was got from C and is acknowledged only after this.
        let source = unsafe { source(kind, &unacknowledged.0.element) };
        Ok(Some(AsyncEvent { kind, source }))
    }

    /// Waits for the next event.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`] once the deadline has passed; EIO when the device has gone.
    pub fn next(&self, deadline: Deadline) -> Result<AsyncEvent, Error> {
        wait_for(self.as_fd(), deadline, || self.try_next())?.ok_or_else(|| {
            Error::refused(
                "ibv_get_async_event",
                ErrorKind::TimedOut,
                "no asynchronous event came before the deadline",
            )
        })
    }

    /// The device.
    pub fn context(&self) -> &Context {
        &self.0
    }
}

impl AsFd for AsyncEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the context is open; its descriptor is set when it was opened.
        let fd = unsafe { (*self.0.as_raw()).async_fd };
        // SAFETY: the descriptor is open as long as the context, which `self` keeps open.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }
}

impl fmt::Debug for AsyncEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AsyncEvents").field(&self.0).finish()
    }
}

/// An event got from C; its object cannot be destroyed before the drop.
struct Unacknowledged(sys::ibv_async_event);

impl Drop for Unacknowledged {
    fn drop(&mut self) {
        // SAFETY: the struct is as ibv_get_async_event filled it, and acknowledged only here.
        unsafe { sys::ibv_ack_async_event(&mut self.0) };
    }
}

/// What the union of an event says, by the kind of event.
///
/// # Safety
/// - The element is of an event of that kind, as C filled it, that is not acknowledged yet.
unsafe fn source(kind: AsyncEventKind, element: &sys::ibv_async_event_element) -> AsyncEventSource {
    use AsyncEventKind as Kind;

    match kind {
        Kind::CQ_ERR => {
            // SAFETY: this kind carries a completion queue.
            let cq = unsafe { element.cq };
            AsyncEventSource::CompletionQueue(registry::find(cq).map(CqId::from_number))
        }
        Kind::SRQ_ERR | Kind::SRQ_LIMIT_REACHED => {
            // SAFETY: these kinds carry a shared receive queue.
            let srq = unsafe { element.srq };
            AsyncEventSource::SharedReceiveQueue(registry::find(srq).map(SrqId::from_number))
        }
        Kind::QP_FATAL
        | Kind::QP_REQ_ERR
        | Kind::QP_ACCESS_ERR
        | Kind::COMM_EST
        | Kind::SQ_DRAINED
        | Kind::PATH_MIG
        | Kind::PATH_MIG_ERR
        | Kind::QP_LAST_WQE_REACHED => {
            // SAFETY: these kinds carry a queue pair.
            let qp = unsafe { element.qp };
            // SAFETY: a queue pair is not destroyed before its events are acknowledged, and its
            // number never changes.
            AsyncEventSource::QueuePair(unsafe { (*qp).qp_num })
        }
        Kind::PORT_ACTIVE
        | Kind::PORT_ERR
        | Kind::LID_CHANGE
        | Kind::PKEY_CHANGE
        | Kind::SM_CHANGE
        | Kind::CLIENT_REREGISTER
        | Kind::GID_CHANGE => {
            // SAFETY: these kinds carry a port number.
            let port = unsafe { element.port_num };
            AsyncEventSource::Port(u32::try_from(port).unwrap_or(0))
        }
        Kind::WQ_FATAL => AsyncEventSource::WorkQueue,
        Kind::DEVICE_FATAL => AsyncEventSource::Device,
        _ => AsyncEventSource::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::*;
    use crate::process::Origin;
    use crate::registry::Registered;

    fn seen(raw: u32, element: sys::ibv_async_event_element) -> AsyncEventSource {
        // SAFETY: each test gives the element that the kind carries, or a null pointer where the
        // kind's pointer is only looked up.
        unsafe { source(AsyncEventKind::from_raw(raw), &element) }
    }

    #[test]
    fn every_kind_that_is_not_known_is_data_and_its_union_is_left_alone() {
        for raw in (20..=255).chain([u32::MAX]) {
            let kind = AsyncEventKind::from_raw(raw);
            assert_eq!((kind.raw(), kind.name()), (raw, None));
            let element = sys::ibv_async_event_element { port_num: -1 };
            assert_eq!(seen(raw, element), AsyncEventSource::Unknown);
        }
        for raw in 0..20 {
            assert!(AsyncEventKind::from_raw(raw).name().is_some(), "{raw}");
        }
    }

    #[test]
    fn a_queue_of_somebody_else_has_no_identity() {
        let element = sys::ibv_async_event_element {
            cq: ptr::null_mut(),
        };
        let kind = AsyncEventKind::CQ_ERR.raw();
        assert_eq!(seen(kind, element), AsyncEventSource::CompletionQueue(None));
    }

    #[test]
    fn a_queue_of_ours_is_named() {
        let mut place = 0_u64;
        let srq: *mut sys::ibv_srq = (&raw mut place).cast();
        let origin = Origin::current("test").expect("origin");
        let _entered = Registered::new(srq, 5, origin);
        assert_eq!(
            seen(
                AsyncEventKind::SRQ_LIMIT_REACHED.raw(),
                sys::ibv_async_event_element { srq }
            ),
            AsyncEventSource::SharedReceiveQueue(Some(SrqId::from_number(5)))
        );
    }

    #[test]
    fn port_events_name_the_port() {
        for kind in [AsyncEventKind::PORT_ERR, AsyncEventKind::GID_CHANGE] {
            let element = sys::ibv_async_event_element { port_num: 2 };
            assert_eq!(seen(kind.raw(), element), AsyncEventSource::Port(2));
        }
    }
}
