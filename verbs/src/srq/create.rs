//! How a shared receive queue comes to be: plain, for extended reliable connections, or handed over.

use std::collections::HashMap;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use rdma_core_sys as sys;

use super::{Inner, Parents, Rooms, SharedReceiveQueue, SrqId, check_limit, lock};
use crate::cq::{CompletionQueue, CqRoom};
use crate::error::{Error, ErrorKind, from_pointer, from_return};
use crate::owned::Owned;
use crate::pd::ProtectionDomain;
use crate::registry::Registered;
use crate::slots;
use crate::xrc::XrcDomain;

impl SharedReceiveQueue {
    /// Creates a queue of at least `max_wr` receives of at most `max_sge` SGEs each.
    ///
    /// # Errors
    /// [`ErrorKind::Limit`] names the size that exceeds the device's.
    #[doc(alias = "ibv_create_srq")]
    pub fn new(pd: &ProtectionDomain, max_wr: u32, max_sge: u32) -> Result<Self, Error> {
        Self::create("ibv_create_srq", pd, None, (max_wr, max_sge), |init| {
            // SAFETY: the extended struct begins with the plain one; the domain is live.
            unsafe { sys::ibv_create_srq(init.pd, ptr::from_mut(init).cast()) }
        })
    }

    /// Creates a queue for extended reliable connections, whose receives complete in `cq`: any
    /// [`XrcTarget`](crate::XrcTarget) of `domain` takes receives from it, as the sender says by its
    /// [number](Self::xrc_number). No [`QueuePair`](crate::QueuePair) does.
    ///
    /// # Errors
    /// As [`new`](Self::new); [`ErrorKind::Limit`] when `cq` has not room for all receives as well,
    /// [`ErrorKind::Unsupported`] where the device has none.
    #[doc(alias = "ibv_create_srq_ex")]
    pub fn new_xrc(
        pd: &ProtectionDomain,
        domain: &XrcDomain,
        cq: &CompletionQueue,
        max_wr: u32,
        max_sge: u32,
    ) -> Result<Self, Error> {
        use sys::ibv_srq_init_attr_mask as Mask;

        let verb = "ibv_create_srq_ex";
        let context = pd.context();
        let raw_context = context.raw_checked(verb)?;
        if domain.context() != context || cq.context() != context {
            return Err(Error::refused(
                verb,
                ErrorKind::InvalidArgument,
                "the XRC domain or the completion queue is of another device",
            ));
        }
        let mask = Mask::IBV_SRQ_INIT_ATTR_TYPE
            | Mask::IBV_SRQ_INIT_ATTR_PD
            | Mask::IBV_SRQ_INIT_ATTR_XRCD
            | Mask::IBV_SRQ_INIT_ATTR_CQ;
        Self::create(verb, pd, Some((domain, cq)), (max_wr, max_sge), |init| {
            init.comp_mask = mask.0;
            init.srq_type = sys::ibv_srq_type::IBV_SRQT_XRC;
            init.xrcd = domain.as_raw();
            init.cq = cq.as_raw();
            // SAFETY: the context is open, and the struct is filled as its mask says with live
            // objects of it.
            unsafe { sys::ibv_create_srq_ex(raw_context, init) }
        })
    }

    /// Creates a queue by `make`, which gets sizes and domain, writes the sizes granted into the
    /// struct, and returns the C queue or NULL with errno.
    fn create(
        verb: &'static str,
        pd: &ProtectionDomain,
        xrc: Option<(&XrcDomain, &CompletionQueue)>,
        (max_wr, max_sge): (u32, u32),
        make: impl FnOnce(&mut sys::ibv_srq_init_attr_ex) -> *mut sys::ibv_srq,
    ) -> Result<Self, Error> {
        let raw_pd = pd.raw_checked(verb)?;
        let device = pd.context();
        let limits = device.attributes();
        check_limit(verb, device, "max_wr", max_wr, limits.max_srq_wr())?;
        check_limit(verb, device, "max_sge", max_sge, limits.max_srq_sge())?;
        let mut rooms = HashMap::new();
        let xrc = match xrc {
            None => None,
            Some((domain, cq)) => {
                let room = CqRoom::reserve(verb, cq.inner(), max_wr)?;
                let room = Arc::new(Mutex::new(room));
                rooms.insert(Arc::as_ptr(cq.inner()).addr(), Arc::downgrade(&room));
                Some((room, domain.clone()))
            }
        };
        let parents = Parents {
            xrc,
            pd: pd.clone(),
        };
        let mut init = sys::ibv_srq_init_attr_ex {
            attr: sys::ibv_srq_attr {
                max_wr,
                max_sge,
                srq_limit: 0,
            },
            pd: raw_pd,
            ..Default::default()
        };
        let raw = make(&mut init);
        let raw = from_pointer(verb, raw)
            .map_err(|e| e.with_detail(format!("{max_wr} receives of {max_sge} SGEs")))?;
        // SAFETY: the queue was just made; its parents are all that it refers to.
        let owned = unsafe { Owned::new(raw, device.origin(), parents) };
        // A device may make it larger than asked, and then takes as many receives.
        if let Some((room, _)) = &owned.parents().xrc {
            lock(room).grow(verb, init.attr.max_wr)?;
        }
        Ok(Self::assemble(owned, &init.attr, rooms))
    }

    fn assemble(
        owned: Owned<sys::ibv_srq, Parents>,
        sizes: &sys::ibv_srq_attr,
        rooms: Rooms,
    ) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the queue is live.
        let post_recv = unsafe { slots::of_srq(owned.raw()) };
        Self(Arc::new(Inner {
            registered: Registered::new(owned.raw(), id, owned.origin()),
            owned,
            post_recv,
            id: SrqId(id),
            max_sge: sizes.max_sge,
            max_wr: AtomicU32::new(sizes.max_wr),
            room: Mutex::new(rooms),
        }))
    }

    /// Takes over a queue that other code has made, not for extended reliable connections.
    ///
    /// # Errors
    /// The errno of `ibv_query_srq`; the queue is still the caller's then.
    ///
    /// # Safety
    /// - `raw` is a live basic queue of `pd` that nobody else destroys or resizes, and no queue pair
    ///   but those handed over to this crate uses it.
    /// - The memory of receives that are in it, as [`post_recv`](Self::post_recv) says.
    /// - All asynchronous events got for it are acknowledged.
    pub unsafe fn from_raw(
        raw: NonNull<sys::ibv_srq>,
        pd: &ProtectionDomain,
    ) -> Result<Self, Error> {
        let verb = "ibv_query_srq";
        pd.raw_checked(verb)?;
        let mut sizes = sys::ibv_srq_attr::default();
        // SAFETY: the queue is live, and the place is valid.
        let ret = unsafe { sys::ibv_query_srq(raw.as_ptr(), &mut sizes) };
        from_return(verb, ret)?;
        let parents = Parents {
            xrc: None,
            pd: pd.clone(),
        };
        // SAFETY: the caller gives the queue over; it needs its domain.
        let owned = unsafe { Owned::new(raw, pd.context().origin(), parents) };
        Ok(Self::assemble(owned, &sizes, HashMap::new()))
    }
}
