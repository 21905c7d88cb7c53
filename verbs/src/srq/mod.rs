//! Shared receive queues: receives for any of several queue pairs.

mod create;

use std::collections::HashMap;
use std::fmt;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rdma_core_sys as sys;

use crate::context::Context;
use crate::cq::{CqInner, CqRoom};
use crate::error::{CloseError, Error, ErrorKind, from_return};
use crate::owned::{Destroy, Owned};
use crate::pd::ProtectionDomain;
use crate::qp::{PostError, RecvRequest, check_receive_sges, link_receives, posted_receives};
use crate::registry::Registered;
use crate::slots::PostSrqRecv;
use crate::xrc::XrcDomain;

// SAFETY: ibv_destroy_srq returns EBUSY and changes nothing while a queue pair uses the queue, and
// otherwise returns when the device takes no more receives from it.
unsafe impl Destroy for sys::ibv_srq {
    const VERB: &'static str = "ibv_destroy_srq";

    unsafe fn destroy(object: *mut Self) -> i32 {
        // SAFETY: forwarded to the caller.
        unsafe { sys::ibv_destroy_srq(object) }
    }
}

/// The identity of a shared receive queue, never used twice in a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SrqId(u64);

impl SrqId {
    pub(crate) fn from_number(number: u64) -> Self {
        Self(number)
    }
}

/// Sizes of a shared receive queue and its limit.
#[doc(alias = "ibv_srq_attr")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SrqAttributes {
    /// Outstanding receives.
    pub max_wr: u32,
    /// SGEs of one receive.
    pub max_sge: u32,
    /// How many receives may be left before the event; 0 when no event is armed.
    pub limit: u32,
}

/// A shared receive queue. Cloning gives another handle to the same one; queue pairs keep it alive.
///
/// Receives in it belong to no queue pair until a message takes one: they are not flushed when a
/// queue pair fails, and dropping the queue drops them without a completion.
///
/// # Example
///
/// ```no_run
/// use verbs::{CompletionQueue, ProtectionDomain, QpType, QueuePair, SharedReceiveQueue};
///
/// # fn example(pd: &ProtectionDomain, cq: &CompletionQueue) -> Result<(), verbs::Error> {
/// let srq = SharedReceiveQueue::new(pd, 128, 1)?;
/// let qps: Vec<QueuePair> = (0..8)
///     .map(|_| QueuePair::builder(pd, QpType::RC, cq, cq).srq(&srq).build())
///     .collect::<Result<_, _>>()?;
/// // An event of the device says when fewer than 16 receives are left.
/// srq.arm_limit(16)?;
/// # Ok(())
/// # }
/// ```
#[doc(alias = "ibv_srq")]
#[derive(Clone)]
pub struct SharedReceiveQueue(Arc<Inner>);

struct Inner {
    // Dropped in this order: no event finds the queue once it is being destroyed.
    registered: Registered,
    owned: Owned<sys::ibv_srq, Parents>,
    post_recv: PostSrqRecv,
    id: SrqId,
    max_sge: u32,
    /// As granted, or as the last resize has left it.
    max_wr: AtomicU32,
    /// Room in the completion queues of the attached queue pairs: once for each, since a receive
    /// completes in one of them only, however many queue pairs share it.
    room: Mutex<Rooms>,
}

/// Room in completion queues, by their address.
type Rooms = HashMap<usize, Weak<Mutex<CqRoom>>>;

/// What a shared receive queue needs.
struct Parents {
    /// Of one for extended reliable connections: room in its completion queue, which keeps that
    /// alive, and its domain.
    xrc: Option<(SharedRoom, XrcDomain)>,
    pd: ProtectionDomain,
}

/// A queue pair's share in the room that a shared receive queue has in its completion queue.
pub(crate) type SharedRoom = Arc<Mutex<CqRoom>>;

impl SharedReceiveQueue {
    /// Posts one receive.
    ///
    /// # Errors
    /// [`PostErrorKind`](crate::PostErrorKind).
    ///
    /// # Safety
    /// Until the receive has completed, this queue is destroyed, or the region is closed, no Rust
    /// reference exists to any range of its SGEs.
    #[doc(alias = "ibv_post_srq_recv")]
    #[inline(always)]
    pub unsafe fn post_recv(&self, request: &mut RecvRequest<'_>) -> Result<(), PostError> {
        // SAFETY: forwarded to the caller.
        unsafe { self.post_recv_list(std::slice::from_mut(request)) }
    }

    /// Posts a list of receives in one call.
    ///
    /// # Errors
    /// As [`post_recv`](Self::post_recv).
    ///
    /// # Safety
    /// As [`post_recv`](Self::post_recv), for every request.
    #[inline(always)]
    pub unsafe fn post_recv_list(&self, requests: &mut [RecvRequest<'_>]) -> Result<(), PostError> {
        let owned = &self.0.owned;
        if !owned.origin().is_current() {
            return Err(PostError::forked());
        }
        let (mut first, sges) = link_receives(requests);
        // Not less than the largest of them.
        if sges > self.0.max_sge {
            check_receive_sges(requests, self.0.max_sge)?;
            // Anew: the links made before ended when the requests were borrowed again.
            first = link_receives(requests).0;
        }
        if first.is_null() {
            return Ok(());
        }
        let mut bad = ptr::null_mut();
        // SAFETY: the queue is live, the list is linked and ends in NULL; the caller answers for the
        // memory.
        let ret = unsafe { (self.0.post_recv)(owned.raw(), first, &mut bad) };
        posted_receives(requests, ret, bad)
    }

    /// Asks for one [`SRQ_LIMIT_REACHED`](crate::AsyncEventKind::SRQ_LIMIT_REACHED) event, once
    /// fewer than `limit` receives are left; 0 asks for none. The event disarms it.
    ///
    /// # Errors
    /// [`ErrorKind::Limit`] for a limit above the size of the queue.
    #[doc(alias = "ibv_modify_srq")]
    pub fn arm_limit(&self, limit: u32) -> Result<(), Error> {
        if limit > self.max_wr() {
            return Err(Error::refused(
                "ibv_modify_srq",
                ErrorKind::Limit,
                format!("limit {limit}, the queue holds {} receives", self.max_wr()),
            ));
        }
        let attributes = sys::ibv_srq_attr {
            srq_limit: limit,
            ..Default::default()
        };
        self.modify(attributes, sys::ibv_srq_attr_mask::IBV_SRQ_LIMIT)
    }

    /// Makes the queue at least `max_wr` receives large.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] where the device cannot resize, [`ErrorKind::Limit`] for a size
    /// above the device's, and when a completion queue of an attached queue pair has not enough room for it (the shared receive
    /// queue has its new size nevertheless), EINVAL when more receives are posted.
    #[doc(alias = "ibv_modify_srq")]
    pub fn resize(&self, max_wr: u32) -> Result<(), Error> {
        let verb = "ibv_modify_srq";
        let device = self.pd().context();
        let max = device.attributes().max_srq_wr();
        check_limit(verb, device, "max_wr", max_wr, max)?;
        // Nobody attaches to the old size meanwhile.
        let rooms = self.rooms();
        let live: Vec<_> = rooms.values().filter_map(Weak::upgrade).collect();
        for room in &live {
            lock(room).grow(verb, max_wr)?;
        }
        let attributes = sys::ibv_srq_attr {
            max_wr,
            ..Default::default()
        };
        self.modify(attributes, sys::ibv_srq_attr_mask::IBV_SRQ_MAX_WR)
            .map_err(|error| error.with_detail(format!("{max_wr} receives")))?;
        // A device may make it larger than asked.
        let granted = self.query()?.max_wr.max(max_wr);
        self.0.max_wr.store(granted, Ordering::Release);
        for room in &live {
            lock(room).grow(verb, granted)?;
        }
        Ok(())
    }

    fn modify(
        &self,
        mut attributes: sys::ibv_srq_attr,
        mask: sys::ibv_srq_attr_mask,
    ) -> Result<(), Error> {
        let verb = "ibv_modify_srq";
        let raw = self.0.owned.raw_checked(verb)?;
        let mask = mask.0.cast_signed();
        // SAFETY: the queue is live; the attributes named by the mask are set.
        let ret = unsafe { sys::ibv_modify_srq(raw, &mut attributes, mask) };
        from_return(verb, ret)
    }

    /// Its sizes and limit as the device has them.
    ///
    /// # Errors
    /// The errno of the call.
    #[doc(alias = "ibv_query_srq")]
    pub fn query(&self) -> Result<SrqAttributes, Error> {
        let verb = "ibv_query_srq";
        let raw = self.0.owned.raw_checked(verb)?;
        let mut attributes = sys::ibv_srq_attr::default();
        // SAFETY: the queue is live, and the place is valid.
        let ret = unsafe { sys::ibv_query_srq(raw, &mut attributes) };
        from_return(verb, ret)?;
        Ok(SrqAttributes {
            max_wr: attributes.max_wr,
            max_sge: attributes.max_sge,
            limit: attributes.srq_limit,
        })
    }

    /// Outstanding receives it was granted, at least what was asked for.
    pub fn max_wr(&self) -> u32 {
        self.0.max_wr.load(Ordering::Acquire)
    }

    /// SGEs of one receive it was granted.
    pub fn max_sge(&self) -> u32 {
        self.0.max_sge
    }

    /// Its identity in [`AsyncEventSource`](crate::AsyncEventSource).
    pub fn id(&self) -> SrqId {
        self.0.id
    }

    /// The domain it belongs to.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.0.owned.parents().pd
    }

    /// The domain of extended reliable connections that it belongs to, if it was made for those.
    pub fn xrc_domain(&self) -> Option<&XrcDomain> {
        self.0
            .owned
            .parents()
            .xrc
            .as_ref()
            .map(|(_, domain)| domain)
    }

    /// The number by which senders name it
    /// ([`SendRequest::to_xrc_srq`](crate::SendRequest::to_xrc_srq)), 24 bits.
    ///
    /// # Errors
    /// An errno for a queue that was not made by [`new_xrc`](Self::new_xrc).
    #[doc(alias = "ibv_get_srq_num")]
    pub fn xrc_number(&self) -> Result<u32, Error> {
        let verb = "ibv_get_srq_num";
        let raw = self.0.owned.raw_checked(verb)?;
        if self.xrc_domain().is_none() {
            // Providers look for the number where other queues have something else.
            return Err(Error::from_errno(verb, libc::EINVAL)
                .with_detail("the shared receive queue has no number: it is not for XRC"));
        }
        let mut number = 0;
        // SAFETY: the queue is live, and the place is valid.
        let ret = unsafe { sys::ibv_get_srq_num(raw, &mut number) };
        from_return(verb, ret)?;
        Ok(number)
    }

    /// Destroys the queue now; receives in it are dropped without a completion.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] while other handles or queue pairs use it.
    #[doc(alias = "ibv_destroy_srq")]
    pub fn close(self) -> Result<(), CloseError<Self>> {
        let inner = Arc::try_unwrap(self.0).map_err(|inner| CloseError {
            error: Error::refused(
                "ibv_destroy_srq",
                ErrorKind::Busy,
                "other handles or queue pairs still use the shared receive queue",
            ),
            handle: Self(inner),
        })?;
        let Inner {
            registered,
            owned,
            post_recv,
            id,
            max_sge,
            max_wr,
            room,
        } = inner;
        drop(registered);
        owned.close().map_err(|(error, owned)| CloseError {
            error,
            handle: Self(Arc::new(Inner {
                registered: Registered::new(owned.raw(), id.0, owned.origin()),
                owned,
                post_recv,
                id,
                max_sge,
                max_wr,
                room,
            })),
        })
    }

    /// The C queue, for calls that this crate does not have. It must not be destroyed.
    pub fn as_raw(&self) -> *mut sys::ibv_srq {
        self.0.owned.raw()
    }

    fn rooms(&self) -> std::sync::MutexGuard<'_, Rooms> {
        self.0.room.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The room of this queue's receives in `cq`, promised when the first queue pair asks for it.
    pub(crate) fn room_in(
        &self,
        verb: &'static str,
        cq: &Arc<CqInner>,
    ) -> Result<SharedRoom, Error> {
        let mut rooms = self.rooms();
        rooms.retain(|_, room| room.strong_count() > 0);
        let key = Arc::as_ptr(cq).addr();
        if let Some(room) = rooms.get(&key).and_then(Weak::upgrade) {
            return Ok(room);
        }
        let room = Arc::new(Mutex::new(CqRoom::reserve(verb, cq, self.max_wr())?));
        rooms.insert(key, Arc::downgrade(&room));
        Ok(room)
    }
}

fn check_limit(
    verb: &'static str,
    device: &Context,
    name: &str,
    asked: u32,
    max: u32,
) -> Result<(), Error> {
    if asked <= max {
        return Ok(());
    }
    Err(Error::from_errno(verb, libc::EINVAL)
        .with_kind(ErrorKind::Limit)
        .with_detail(format!(
            "{name} {asked} exceeds what device {} allows, {max}",
            device.name()
        ))
        .with_hint(format!("ask for a {name} of at most {max}")))
}

fn lock(room: &Mutex<CqRoom>) -> std::sync::MutexGuard<'_, CqRoom> {
    room.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for SharedReceiveQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedReceiveQueue")
            .field("id", &self.0.id)
            .field("max_wr", &self.max_wr())
            .field("max_sge", &self.0.max_sge)
            .finish_non_exhaustive()
    }
}
