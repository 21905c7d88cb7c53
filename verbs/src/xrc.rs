//! Extended reliable connections: one connection for each process at the other end, whose shared
//! receive queues are the sender's to choose.

use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use rdma_core_sys as sys;
use sys::ibv_qp_open_attr_mask as OpenMask;

use crate::context::Context;
use crate::error::{CloseError, Error, from_pointer};
use crate::owned::{Destroy, Owned, close_shared};
use crate::qp::change::{modify_raw, query_raw};
use crate::qp::{InitAttributes, QpAttributes, QpState, QpType, RtrAttributes, RtsAttributes};

// SAFETY: ibv_close_xrcd returns EBUSY and changes nothing while objects use the domain.
unsafe impl Destroy for sys::ibv_xrcd {
    const VERB: &'static str = "ibv_close_xrcd";

    unsafe fn destroy(object: *mut Self) -> i32 {
        // SAFETY: forwarded to the caller.
        unsafe { sys::ibv_close_xrcd(object) }
    }
}

/// What extended reliable connections may share. Cloning gives another handle to the same one.
///
/// A sender has one [`QueuePair`](crate::QueuePair) of type [`QpType::XRC_SEND`] for a whole
/// process, or machine, at the other end, where an [`XrcTarget`] takes what comes; the sender names
/// the [shared receive queue](crate::SharedReceiveQueue::new_xrc) with each request.
#[doc(alias = "ibv_xrcd")]
#[derive(Clone)]
pub struct XrcDomain(Arc<Owned<sys::ibv_xrcd, Context>>);

/// Whether a domain that processes share by a file is there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum XrcSharing {
    /// It has to be.
    Existing,
    /// It is made if it is not there.
    Create,
    /// It must not be, and is made.
    CreateNew,
}

impl XrcDomain {
    /// A domain of this process.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) where the device has none.
    #[doc(alias = "ibv_open_xrcd")]
    pub fn new(context: &Context) -> Result<Self, Error> {
        Self::open(context, -1, libc::O_CREAT)
    }

    /// The domain that the file `file` stands for, for all processes that open it. The descriptor
    /// may be closed afterwards.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) where the device has none; ENOENT
    /// or EINVAL when there is none that has to be, EINVAL or EEXIST when there is one that must
    /// not be.
    #[doc(alias = "ibv_open_xrcd")]
    pub fn shared(
        context: &Context,
        file: BorrowedFd<'_>,
        sharing: XrcSharing,
    ) -> Result<Self, Error> {
        let oflags = match sharing {
            XrcSharing::Existing => 0,
            XrcSharing::Create => libc::O_CREAT,
            XrcSharing::CreateNew => libc::O_CREAT | libc::O_EXCL,
        };
        Self::open(context, file.as_raw_fd(), oflags)
            .map_err(|e| e.with_detail(format!("descriptor {}, {sharing:?}", file.as_raw_fd())))
    }

    fn open(context: &Context, fd: i32, oflags: i32) -> Result<Self, Error> {
        let verb = "ibv_open_xrcd";
        let raw = context.raw_checked(verb)?;
        let mask = sys::ibv_xrcd_init_attr_mask::IBV_XRCD_INIT_ATTR_FD
            | sys::ibv_xrcd_init_attr_mask::IBV_XRCD_INIT_ATTR_OFLAGS;
        let mut attributes = sys::ibv_xrcd_init_attr {
            comp_mask: mask.0,
            fd,
            oflags,
        };
        // SAFETY: the context is open, and what the mask names is filled.
        let raw = unsafe { sys::ibv_open_xrcd(raw, &mut attributes) };
        let raw = from_pointer(verb, raw)?;
        // SAFETY: the domain was just opened and needs its context, which is its parent.
        let owned = unsafe { Owned::new(raw, context.origin(), context.clone()) };
        Ok(Self(Arc::new(owned)))
    }

    /// Takes over a domain that other code has opened.
    ///
    /// # Safety
    /// - `raw` is an open XRC domain of `context` that nobody else closes.
    pub unsafe fn from_raw(raw: NonNull<sys::ibv_xrcd>, context: &Context) -> Self {
        // SAFETY: the caller gives the domain over; it needs its context, which is its parent.
        let owned = unsafe { Owned::new(raw, context.origin(), context.clone()) };
        Self(Arc::new(owned))
    }

    /// The device it is of.
    pub fn context(&self) -> &Context {
        self.0.parents()
    }

    /// Closes it now.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`](crate::ErrorKind::Busy) while other handles, or objects of it, live.
    #[doc(alias = "ibv_close_xrcd")]
    pub fn close(self) -> Result<(), CloseError<Self>> {
        close_shared(self.0, "other handles or objects still use the XRC domain").map_err(
            |(error, shared)| CloseError {
                error,
                handle: Self(shared),
            },
        )
    }

    /// The C domain, for calls that this crate does not have. It must not be closed.
    pub fn as_raw(&self) -> *mut sys::ibv_xrcd {
        self.0.raw()
    }
}

impl fmt::Debug for XrcDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("XrcDomain").field(&self.0).finish()
    }
}

/// The receiving end of an extended reliable connection: no request is posted to it, and it has no
/// completion queue. What comes takes its receive from the shared receive queue that the sender
/// names. `Send` and `Sync`.
#[doc(alias = "XRC_TGT")]
pub struct XrcTarget {
    owned: Owned<sys::ibv_qp, XrcDomain>,
    number: u32,
    /// Held while C may write its copy of the state.
    modifying: Mutex<()>,
}

impl XrcTarget {
    /// Makes one in `domain`, in state RESET.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) where the device has none.
    #[doc(alias = "ibv_create_qp_ex")]
    pub fn new(domain: &XrcDomain) -> Result<Self, Error> {
        let verb = "ibv_create_qp_ex";
        let raw = domain.context().raw_checked(verb)?;
        let mut attributes = sys::ibv_qp_init_attr_ex {
            qp_type: sys::ibv_qp_type(QpType::XRC_RECV.raw()),
            comp_mask: sys::ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_XRCD.0,
            xrcd: domain.as_raw(),
            ..Default::default()
        };
        // SAFETY: the context is open, and what the mask names is filled with a live domain of it.
        let raw = unsafe { sys::ibv_create_qp_ex(raw, &mut attributes) };
        let raw = from_pointer(verb, raw)?;
        // SAFETY: the queue pair was just made.
        Ok(unsafe { Self::from_raw(raw, domain) })
    }

    /// Opens the one of the number `number` that another handle, or another process with the same
    /// domain, has made: it stays as long as any of them has it open.
    ///
    /// # Errors
    /// EINVAL when there is none; [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) where
    /// the device cannot.
    #[doc(alias = "ibv_open_qp")]
    pub fn open(domain: &XrcDomain, number: u32) -> Result<Self, Error> {
        let verb = "ibv_open_qp";
        let raw = domain.context().raw_checked(verb)?;
        let mask = OpenMask::IBV_QP_OPEN_ATTR_NUM
            | OpenMask::IBV_QP_OPEN_ATTR_XRCD
            | OpenMask::IBV_QP_OPEN_ATTR_TYPE;
        let mut attributes = sys::ibv_qp_open_attr {
            comp_mask: mask.0,
            qp_num: number,
            xrcd: domain.as_raw(),
            qp_type: sys::ibv_qp_type(QpType::XRC_RECV.raw()),
            ..Default::default()
        };
        // SAFETY: the context is open, and what the mask names is filled with a live domain of it.
        let raw = unsafe { sys::ibv_open_qp(raw, &mut attributes) };
        let raw = from_pointer(verb, raw)
            .map_err(|error| error.with_detail(format!("queue pair {number}")))?;
        // SAFETY: the queue pair was just opened.
        Ok(unsafe { Self::from_raw(raw, domain) })
    }

    /// Takes over a receiving end that other code has made or opened.
    ///
    /// # Safety
    /// - `raw` is a live queue pair of type XRC_RECV of `domain` that nobody else destroys, modifies
    ///   or queries through this pointer.
    /// - All asynchronous events got for it are acknowledged.
    pub unsafe fn from_raw(raw: NonNull<sys::ibv_qp>, domain: &XrcDomain) -> Self {
        let origin = domain.context().origin();
        // SAFETY: the caller gives the queue pair over; it needs its domain, which is its parent.
        let owned = unsafe { Owned::new(raw, origin, domain.clone()) };
        // SAFETY: the queue pair is live; its number never changes.
        let number = unsafe { (*owned.raw()).qp_num };
        Self {
            owned,
            number,
            modifying: Mutex::new(()),
        }
    }

    /// Sets attributes, usually a new state.
    ///
    /// # Errors
    /// As [`QueuePair::modify`](crate::QueuePair::modify).
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify(&self, attributes: &QpAttributes) -> Result<(), Error> {
        let qp = self.owned.raw_checked("ibv_modify_qp")?;
        let _modifying = self.lock();
        // SAFETY: the queue pair is live, and the lock keeps others away.
        unsafe { modify_raw(qp, attributes) }
            .map_err(|error| error.with_detail(format!("XRC target {}", self.number)))
    }

    /// To INIT.
    ///
    /// # Errors
    /// EINVAL from another state than RESET or INIT.
    pub fn to_init(&self, attributes: &InitAttributes) -> Result<(), Error> {
        self.modify(&attributes.attributes(QpType::XRC_RECV))
    }

    /// To RTR, where it receives from its peer.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) for a value out of range;
    /// EINVAL from another state than INIT.
    pub fn to_rtr(&self, attributes: &RtrAttributes) -> Result<(), Error> {
        let device = self.domain().context().attributes();
        self.modify(&attributes.attributes(QpType::XRC_RECV, device)?)
    }

    /// To RTS, which a target needs only for the timeout of its connection's repair.
    ///
    /// # Errors
    /// As [`to_rtr`](Self::to_rtr), from another state than RTR.
    pub fn to_rts(&self, attributes: &RtsAttributes) -> Result<(), Error> {
        let device = self.domain().context().attributes();
        self.modify(&attributes.attributes(QpType::XRC_RECV, device)?)
    }

    /// Accepts nothing from the peer any more.
    ///
    /// # Errors
    /// The errno of the call.
    pub fn set_error(&self) -> Result<(), Error> {
        self.modify(QpAttributes::new().set_state(QpState::ERR))
    }

    /// Back to RESET.
    ///
    /// # Errors
    /// The errno of the call.
    pub fn reset(&self) -> Result<(), Error> {
        self.modify(QpAttributes::new().set_state(QpState::RESET))
    }

    /// What the device says now.
    ///
    /// # Errors
    /// The errno of the call.
    #[doc(alias = "ibv_query_qp")]
    pub fn query(&self) -> Result<QpAttributes, Error> {
        let qp = self.owned.raw_checked("ibv_query_qp")?;
        let _modifying = self.lock();
        // SAFETY: the queue pair is live, and the lock keeps others away.
        let (attributes, _) = unsafe { query_raw(qp) }
            .map_err(|error| error.with_detail(format!("XRC target {}", self.number)))?;
        Ok(attributes)
    }

    /// Its number, 24 bits, which the peer addresses it by, and by which it is opened again.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The domain it belongs to.
    pub fn domain(&self) -> &XrcDomain {
        self.owned.parents()
    }

    /// Gives this handle's part in it up now; the last one destroys it.
    ///
    /// # Errors
    /// The errno of the call.
    #[doc(alias = "ibv_destroy_qp")]
    pub fn close(self) -> Result<(), CloseError<Self>> {
        let Self {
            owned,
            number,
            modifying,
        } = self;
        owned.close().map_err(|(error, owned)| CloseError {
            error,
            handle: Self {
                owned,
                number,
                modifying,
            },
        })
    }

    /// The C queue pair, for calls that this crate does not have. It must not be destroyed, nor
    /// modified or queried behind this handle's back.
    pub fn as_raw(&self) -> *mut sys::ibv_qp {
        self.owned.raw()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, ()> {
        self.modifying
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for XrcTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("XrcTarget")
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}
