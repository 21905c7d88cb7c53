//! The id of a connection or listener: librdmacm's object, destroyed after its events.

use std::ffi::c_void;
use std::fmt;
use std::net::SocketAddr;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use verbs::{AccessFlags, Context, Deadline, Origin, QpAttributes, QpState, QueuePair, sys};

use crate::address::{CAddr, from_c, lacks_scope};
use crate::channel::EventChannel;
use crate::device::context_of;
use crate::dispatcher::Running;
use crate::error::Error;
use crate::params::{ConnParams, Ece, IdOptions};
use crate::port_space::PortSpace;
use crate::source::Lane;

/// An id. Dropping it destroys it.
///
/// `rdma_destroy_id` waits for the acknowledgement of the id's events. Those are copied and
/// acknowledged by whoever gets them before anything else is done, so it never waits for a caller.
pub(crate) struct Id {
    raw: NonNull<sys::rdma_cm_id>,
    origin: Origin,
    /// Where its events arrive, kept open.
    home: Home,
    /// What `rdma_cm_id.context` points to, where somebody else gets the id's events.
    lane: Option<Arc<Lane>>,
}

/// What keeps the place alive where an id's events arrive.
#[derive(Debug, Clone)]
pub(crate) struct Home {
    pub(crate) channel: EventChannel,
    /// Whose channel it is, if not the id's own.
    #[expect(dead_code, reason = "held only to be dropped")]
    pub(crate) keeper: Option<Arc<Running>>,
}

// SAFETY: librdmacm allows any thread to use an id; calls on it lock in C where they must.
unsafe impl Send for Id {}
// SAFETY: fields that `rdma_get_cm_event` rewrites are read only in phases in which no such event
// can be pending (see `Id::context` and `Id::addresses`).
unsafe impl Sync for Id {}

impl Drop for Id {
    fn drop(&mut self) {
        if !self.origin.is_current() {
            std::mem::forget((self.home.clone(), self.lane.clone()));
            return;
        }
        // SAFETY: the id is live, and only this destroys it. Whoever has got an event of it at this
        // moment acknowledges it, and the call waits for that.
        let ret = unsafe { sys::rdma_destroy_id(self.raw.as_ptr()) };
        if ret != 0 {
            let error = verbs::Error::last_os("rdma_destroy_id");
            tracing::warn!(%error, "id could not be destroyed; it is leaked with its channel");
            std::mem::forget((self.home.clone(), self.lane.clone()));
        }
    }
}

impl Id {
    /// A new id whose events arrive at `home`, and from there go to `lane`.
    pub(crate) fn new(
        space: PortSpace,
        home: &Home,
        lane: Option<Arc<Lane>>,
    ) -> Result<Self, Error> {
        let verb = "rdma_create_id";
        home.channel.origin().check(verb)?;
        let mut raw = ptr::null_mut();
        // SAFETY: the channel is live and `raw` a valid place.
        let ret = unsafe {
            sys::rdma_create_id(
                home.channel.raw(),
                &mut raw,
                ptr::null_mut(),
                sys::rdma_port_space(space.raw()),
            )
        };
        check(verb, ret).map_err(|error| error.with_detail(format!("port space {space}")))?;
        let raw = NonNull::new(raw).ok_or_else(|| verbs::Error::last_os(verb))?;
        // SAFETY: the id was just made on this channel and nobody else has it.
        Ok(unsafe { Self::adopt(raw, home, lane) })
    }

    /// Takes an id over.
    ///
    /// # Safety
    /// - `raw` is a live id on the channel of `home` that nobody else owns.
    /// - No event of it was got yet, and none is being got now.
    pub(crate) unsafe fn adopt(
        raw: NonNull<sys::rdma_cm_id>,
        home: &Home,
        lane: Option<Arc<Lane>>,
    ) -> Self {
        let context = lane.as_ref().map_or(ptr::null(), Arc::as_ptr);
        // SAFETY: the id is live, and nobody reads the field now.
        unsafe { (*raw.as_ptr()).context = context.cast_mut().cast::<c_void>() };
        Self {
            raw,
            origin: home.channel.origin(),
            home: home.clone(),
            lane,
        }
    }

    /// Where events of an adopted id go; `None` for one whose events are nobody else's.
    ///
    /// # Safety
    /// - `raw` was adopted by [`adopt`](Self::adopt), and an event accounted to it is not yet
    ///   acknowledged.
    pub(crate) unsafe fn lane_of(raw: NonNull<sys::rdma_cm_id>) -> Option<Arc<Lane>> {
        // SAFETY: the unacknowledged event keeps rdma_destroy_id from returning, so the id is live;
        // the field was set in `adopt`.
        let context = unsafe { (*raw.as_ptr()).context };
        let lane = NonNull::new(context.cast::<Lane>())?;
        // SAFETY: the pointer is that of the `Arc` that the id holds until it is destroyed.
        unsafe { Arc::increment_strong_count(lane.as_ptr()) };
        // SAFETY: as above; the count was just raised for this one.
        Some(unsafe { Arc::from_raw(lane.as_ptr()) })
    }

    pub(crate) fn raw(&self) -> *mut sys::rdma_cm_id {
        self.raw.as_ptr()
    }

    /// Whether an event that was accounted to `raw` is its own.
    pub(crate) fn is(&self, raw: usize) -> bool {
        self.raw.as_ptr().addr() == raw
    }

    pub(crate) fn origin(&self) -> Origin {
        self.origin
    }

    /// Binds to a local address.
    pub(crate) fn bind(&self, addr: SocketAddr) -> Result<(), Error> {
        self.call_bind(addr).map_err(|error| match error.errno() {
            // Also the answer to a wildcard's port against that of one address.
            Some(libc::EADDRNOTAVAIL) if addr.port() != 0 && self.is_local(addr) => error
                .with_detail(format!("address {addr}"))
                .with_hint(
                    "another listener has this port at an address that overlaps (a wildcard has \
                     every address): end it, or take another port",
                )
                .into(),
            Some(libc::ENODEV | libc::EADDRNOTAVAIL) => Error::NoSuchAddress { addr },
            Some(libc::EINVAL) if lacks_scope(addr) => Error::NoSuchAddress { addr },
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

    fn call_bind(&self, addr: SocketAddr) -> Result<(), verbs::Error> {
        let verb = "rdma_bind_addr";
        self.origin().check(verb)?;
        let c = CAddr::from(addr);
        // SAFETY: the id is live, the address is whole.
        let ret = unsafe { sys::rdma_bind_addr(self.raw(), c.as_ptr()) };
        check(verb, ret)
    }

    /// Whether the address can be bound, with another port than its own.
    fn is_local(&self, mut addr: SocketAddr) -> bool {
        addr.set_port(0);
        Self::new(PortSpace::TCP, &self.home, None).is_ok_and(|probe| probe.call_bind(addr).is_ok())
    }

    /// Takes requests from now on.
    pub(crate) fn listen(&self, addr: SocketAddr, backlog: u16) -> Result<(), Error> {
        let verb = "rdma_listen";
        self.origin().check(verb)?;
        // SAFETY: the id is live and bound.
        let ret = unsafe { sys::rdma_listen(self.raw(), backlog.into()) };
        Ok(check(verb, ret).map_err(|error| {
            let in_use = error.errno() == Some(libc::EADDRINUSE);
            let error = error.with_detail(format!("address {addr}"));
            if in_use {
                error.with_hint("another listener has this port: end it, or take another port")
            } else {
                error
            }
        })?)
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

    /// What the peer may do, as far as the connection manager knows yet.
    pub(crate) fn peer_access(&self) -> Result<AccessFlags, Error> {
        Ok(self.qp_attributes(QpState::INIT)?.access())
    }

    /// Brings `qp` from INIT to RTR and RTS, as negotiated; with `access`, if it is not what INIT was
    /// told. Gives the number of the peer's first packet.
    pub(crate) fn ready_qp(
        &self,
        qp: &QueuePair,
        params: &ConnParams,
        access: Option<AccessFlags>,
    ) -> Result<u32, Error> {
        let limits = qp.context().attributes();
        let mut receive = self.qp_attributes(QpState::RTR)?;
        if let Some(access) = access {
            receive.set_access(access);
        }
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
        qp.modify(&send)?;
        Ok(receive.rq_psn())
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

    /// Moves the id, and events of it that wait, to a channel of its own.
    pub(crate) fn migrate(&mut self, channel: &EventChannel) -> Result<(), Error> {
        let verb = "rdma_migrate_id";
        self.origin.check(verb)?;
        // SAFETY: id and channel are live; events of the id that the call waits for are acknowledged
        // by whoever has got them.
        let ret = unsafe { sys::rdma_migrate_id(self.raw(), channel.raw()) };
        check(verb, ret)?;
        self.home = Home {
            channel: channel.clone(),
            keeper: None,
        };
        Ok(())
    }

    /// What the peer said of its extended connection capabilities.
    pub(crate) fn remote_ece(&self) -> Result<Ece, Error> {
        let verb = "rdma_get_remote_ece";
        self.origin().check(verb)?;
        let mut ece = sys::ibv_ece::default();
        // SAFETY: the id is live and has no queue pair of its own; the place is valid.
        let ret = unsafe { sys::rdma_get_remote_ece(self.raw(), &mut ece) };
        check(verb, ret)?;
        Ok(Ece {
            vendor_id: ece.vendor_id,
            options: ece.options,
        })
    }

    /// Says the extended connection capabilities with the next message of the handshake.
    pub(crate) fn set_local_ece(&mut self, ece: Ece) -> Result<(), Error> {
        let verb = "rdma_set_local_ece";
        self.origin().check(verb)?;
        let mut ece = sys::ibv_ece {
            vendor_id: ece.vendor_id,
            options: ece.options,
            comp_mask: 0,
        };
        // SAFETY: the id is live and has no queue pair of its own; C copies the struct.
        let ret = unsafe { sys::rdma_set_local_ece(self.raw(), &mut ece) };
        Ok(check(verb, ret)?)
    }

    /// How long an acknowledgement is waited for; stands before the route is resolved.
    pub(crate) fn set_ack_timeout(&self, code: u8) -> Result<(), Error> {
        self.set_option("ack timeout", sys::RDMA_OPTION_ID_ACK_TIMEOUT, &code)
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
        write!(f, "Id({:p})", self.raw)
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
