//! The id of a connection or listener: librdmacm's object, destroyed after its events.

use std::ffi::c_void;
use std::fmt;
use std::net::SocketAddr;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use verbs::{Context, Deadline, Origin, QpAttributes, QpState, QueuePair, sys};

use crate::address::{CAddr, from_c};
use crate::channel::EventChannel;
use crate::device::context_of;
use crate::error::Error;
use crate::params::{ConnParams, IdOptions};

/// An id. Clones share it; it is destroyed when the last one goes.
///
/// An event holds a clone of the id it is accounted to, and lets go of it after it is acknowledged:
/// so `rdma_destroy_id`, which waits for that, never waits for a caller of ours. A forgotten event
/// leaks its id.
#[derive(Clone)]
pub(crate) struct Id(Arc<Inner>);

/// What `rdma_cm_id.context` points to, as a `Weak`.
pub(crate) struct Inner {
    raw: NonNull<sys::rdma_cm_id>,
    origin: Origin,
    /// The channel its events arrive on, kept open. Changed only by a migration.
    channel: Mutex<EventChannel>,
}

// SAFETY: librdmacm allows any thread to use an id; calls on it lock in C where they must.
unsafe impl Send for Inner {}
// SAFETY: fields that `rdma_get_cm_event` rewrites are read only in phases in which no such event
// can be pending (see `Id::context` and `Id::addresses`).
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.origin.is_current() {
            return;
        }
        // SAFETY: the id is live; the field was set in `adopt` and is not changed by C.
        let context = unsafe { (*self.raw.as_ptr()).context };
        // SAFETY: this is the last handle, and nobody else destroys the id. An event got by
        // another thread at this moment finds the Weak dead and is acknowledged at once.
        let ret = unsafe { sys::rdma_destroy_id(self.raw.as_ptr()) };
        if ret == 0 {
            // SAFETY: the pointer came from `Weak::into_raw` in `adopt`; with the id destroyed no
            // event can refer to it any more.
            drop(unsafe { Weak::from_raw(context.cast::<Self>().cast_const()) });
        } else {
            let error = verbs::Error::last_os("rdma_destroy_id");
            tracing::warn!(%error, "id could not be destroyed; it is leaked with its channel");
            let channel = self
                .channel
                .get_mut()
                .unwrap_or_else(PoisonError::into_inner);
            std::mem::forget(channel.clone());
        }
    }
}

impl Id {
    /// A new id of port space TCP (reliable connections) on `channel`.
    pub(crate) fn new(channel: &EventChannel) -> Result<Self, Error> {
        let verb = "rdma_create_id";
        channel.origin().check(verb)?;
        let mut raw = ptr::null_mut();
        // SAFETY: the channel is live and `raw` a valid place.
        let ret = unsafe {
            sys::rdma_create_id(
                channel.raw(),
                &mut raw,
                ptr::null_mut(),
                sys::rdma_port_space::RDMA_PS_TCP,
            )
        };
        check(verb, ret)?;
        let raw = NonNull::new(raw).ok_or_else(|| verbs::Error::last_os(verb))?;
        // SAFETY: the id was just made on this channel and nobody else has it.
        Ok(unsafe { Self::adopt(raw, channel) })
    }

    /// Takes an id over and makes it findable from its events.
    ///
    /// # Safety
    /// - `raw` is a live id on `channel` that nobody else owns.
    /// - No event of it was got yet, and none is being got now.
    pub(crate) unsafe fn adopt(raw: NonNull<sys::rdma_cm_id>, channel: &EventChannel) -> Self {
        let inner = Arc::new(Inner {
            raw,
            origin: channel.origin(),
            channel: Mutex::new(channel.clone()),
        });
        let weak = Weak::into_raw(Arc::downgrade(&inner));
        // SAFETY: the id is live, and nobody reads the field now.
        unsafe { (*raw.as_ptr()).context = weak.cast_mut().cast::<c_void>() };
        Self(inner)
    }

    /// The id that an event is accounted to; `None` if its last handle is being dropped.
    ///
    /// # Safety
    /// - `raw` was adopted by [`adopt`](Self::adopt), and an event accounted to it is not yet
    ///   acknowledged.
    pub(crate) unsafe fn find(raw: NonNull<sys::rdma_cm_id>) -> Option<Self> {
        // SAFETY: the unacknowledged event keeps rdma_destroy_id from returning, so the id is live.
        let context = unsafe { (*raw.as_ptr()).context };
        // SAFETY: the pointer came from `Weak::into_raw` and is freed only after rdma_destroy_id
        // has returned. The `Weak` stays the id's: it is not dropped here.
        let weak = std::mem::ManuallyDrop::new(unsafe {
            Weak::from_raw(context.cast::<Inner>().cast_const())
        });
        weak.upgrade().map(Self)
    }

    pub(crate) fn raw(&self) -> *mut sys::rdma_cm_id {
        self.0.raw.as_ptr()
    }

    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn origin(&self) -> Origin {
        self.0.origin
    }

    /// Binds to a local address.
    pub(crate) fn bind(&self, addr: SocketAddr) -> Result<(), Error> {
        let verb = "rdma_bind_addr";
        self.origin().check(verb)?;
        let c = CAddr::from(addr);
        // SAFETY: the id is live, the address is whole.
        let ret = unsafe { sys::rdma_bind_addr(self.raw(), c.as_ptr()) };
        check(verb, ret).map_err(|error| match error.errno() {
            Some(libc::ENODEV | libc::EADDRNOTAVAIL) => Error::NoSuchAddress { addr },
            Some(libc::EADDRINUSE) => error
                .with_detail(format!("address {addr}"))
                .with_hint("another listener has this port: end it, or take another port")
                .into(),
            Some(libc::EACCES) => error
                .with_detail(format!("address {addr}"))
                .with_hint("ports below 1024 need root or CAP_NET_BIND_SERVICE: take a higher one")
                .into(),
            _ => error.with_detail(format!("address {addr}")).into(),
        })
    }

    /// Starts resolving `peer`; ADDR_RESOLVED or ADDR_ERROR follows.
    pub(crate) fn resolve_addr(
        &self,
        source: Option<SocketAddr>,
        peer: SocketAddr,
        deadline: Deadline,
    ) -> Result<(), Error> {
        let verb = "rdma_resolve_addr";
        self.origin().check(verb)?;
        let source = source.map(CAddr::from);
        let source = source.as_ref().map_or(ptr::null_mut(), CAddr::as_ptr);
        let target = CAddr::from(peer);
        // SAFETY: the id is live, the addresses are whole.
        let ret = unsafe {
            sys::rdma_resolve_addr(self.raw(), source, target.as_ptr(), millis(deadline))
        };
        check(verb, ret).map_err(|error| match error.errno() {
            Some(errno @ (libc::ENODEV | libc::ENETUNREACH | libc::EHOSTUNREACH)) => {
                Error::AddressNotResolved { peer, errno }
            }
            _ => error.with_detail(format!("address {peer}")).into(),
        })
    }

    /// Starts resolving the route; ROUTE_RESOLVED or ROUTE_ERROR follows.
    ///
    /// # Safety
    /// - The address is resolved: without a device librdmacm dereferences NULL.
    pub(crate) unsafe fn resolve_route(&self, deadline: Deadline) -> Result<(), Error> {
        let verb = "rdma_resolve_route";
        self.origin().check(verb)?;
        // SAFETY: the id is live; the caller vouches for the device.
        let ret = unsafe { sys::rdma_resolve_route(self.raw(), millis(deadline)) };
        Ok(check(verb, ret)?)
    }

    /// The device, once an address is bound or resolved.
    ///
    /// Must not run while an event that sets the device can be pending.
    pub(crate) fn context(&self) -> Result<Option<Context>, Error> {
        // SAFETY: the id is live, and no event is being got that would write the field.
        let raw = unsafe { (*self.raw()).verbs };
        NonNull::new(raw).map(context_of).transpose()
    }

    /// The local address and the peer's. Same condition as [`context`](Self::context).
    pub(crate) fn addresses(&self) -> (Option<SocketAddr>, Option<SocketAddr>) {
        // SAFETY: the id is live, so these are addresses of fields in it.
        let local = unsafe { sys::rdma_get_local_addr(self.raw()) };
        // SAFETY: as above.
        let peer = unsafe { sys::rdma_get_peer_addr(self.raw()) };
        // SAFETY: the fields are large enough for every family, and no event is being got that
        // would write them.
        let local = unsafe { from_c(local) };
        // SAFETY: as above.
        (local, unsafe { from_c(peer) })
    }

    /// Brings `qp` from RESET to INIT: from then on it takes receives.
    pub(crate) fn init_qp(&self, qp: &QueuePair) -> Result<(), Error> {
        let attributes = self.qp_attributes(QpState::INIT)?;
        Ok(qp.modify(&attributes)?)
    }

    /// Brings `qp` from INIT to RTR and RTS, as negotiated.
    pub(crate) fn ready_qp(&self, qp: &QueuePair, params: &ConnParams) -> Result<(), Error> {
        let limits = qp.context().attributes();
        let mut receive = self.qp_attributes(QpState::RTR)?;
        // The kernel hands the peer's offer through as it came.
        receive
            .clamp_max_dest_rd_atomic(limits.max_qp_rd_atom().min(params.responder_resources))
            .set_min_rnr_timer(params.min_rnr_timer);
        qp.modify(&receive)?;
        let mut send = self.qp_attributes(QpState::RTS)?;
        send.clamp_max_rd_atomic(limits.max_qp_init_rd_atom().min(params.initiator_depth))
            .set_timeout(params.ack_timeout)
            .set_retry_count(params.retry_count)
            .set_rnr_retry(params.rnr_retry);
        Ok(qp.modify(&send)?)
    }

    /// What the connection manager knows for a transition to `state`.
    fn qp_attributes(&self, state: QpState) -> Result<QpAttributes, Error> {
        let verb = "rdma_init_qp_attr";
        self.origin().check(verb)?;
        let mut wanted = QpAttributes::new();
        wanted.set_state(state);
        let mut raw = *wanted.as_raw().0;
        let mut mask = 0;
        // SAFETY: the id is live and has a device in every phase that calls this; both places are
        // valid.
        let ret = unsafe { sys::rdma_init_qp_attr(self.raw(), &mut raw, &mut mask) };
        check(verb, ret)?;
        Ok(QpAttributes::from_raw(raw, mask))
    }

    /// Moves the id, and events of it that wait, to another channel.
    pub(crate) fn migrate(&self, channel: &EventChannel) -> Result<(), Error> {
        let verb = "rdma_migrate_id";
        self.origin().check(verb)?;
        if Arc::strong_count(&self.0) > 1 {
            return Err(verbs::Error::refused(
                verb,
                verbs::ErrorKind::Busy,
                "an event of the id is still held, and the call would wait for it",
            )
            .into());
        }
        // SAFETY: id and channel are live, and this is the only handle: no event of the id is held
        // that the call would wait for.
        let ret = unsafe { sys::rdma_migrate_id(self.raw(), channel.raw()) };
        check(verb, ret)?;
        let mut own = self
            .0
            .channel
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *own = channel.clone();
        Ok(())
    }

    /// Sets options that must stand before the address is bound or resolved.
    pub(crate) fn set_options(&self, options: &IdOptions) -> Result<(), Error> {
        if let Some(tos) = options.type_of_service {
            self.set_option("type of service", sys::RDMA_OPTION_ID_TOS, &tos)?;
        }
        if options.reuse_address {
            self.set_option("reuse address", sys::RDMA_OPTION_ID_REUSEADDR, &1_i32)?;
        }
        if let Some(v6_only) = options.v6_only {
            let value = i32::from(v6_only);
            self.set_option("IPv6 only", sys::RDMA_OPTION_ID_AFONLY, &value)?;
        }
        Ok(())
    }

    fn set_option<T: Copy>(
        &self,
        name: &str,
        option: impl TryInto<i32>,
        value: &T,
    ) -> Result<(), Error> {
        let verb = "rdma_set_option";
        self.origin().check(verb)?;
        let level = i32::try_from(sys::RDMA_OPTION_ID).unwrap_or(0);
        let option = option.try_into().unwrap_or(-1);
        // SAFETY: the id is live and the length is that of the value, which C only reads.
        let ret = unsafe {
            sys::rdma_set_option(
                self.raw(),
                level,
                option,
                ptr::from_ref(value).cast_mut().cast(),
                size_of::<T>(),
            )
        };
        Ok(check(verb, ret).map_err(|e| e.with_detail(format!("option {name}")))?)
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Id({:p})", self.0.raw)
    }
}

/// For calls of librdmacm: -1 and errno on failure.
pub(crate) fn check(verb: &'static str, ret: i32) -> Result<(), verbs::Error> {
    if ret == 0 {
        Ok(())
    } else {
        Err(verbs::Error::last_os(verb))
    }
}

/// What is left until `deadline` in C's unit, at least 1 ms.
fn millis(deadline: Deadline) -> i32 {
    i32::try_from(deadline.remaining().as_millis())
        .unwrap_or(i32::MAX)
        .max(1)
}
