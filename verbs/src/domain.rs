//! Thread domains, and protection domains made of others.

use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rdma_core_sys as sys;

use crate::context::Context;
use crate::error::{CloseError, Error, ErrorKind, from_pointer};
use crate::owned::{Destroy, Owned, close_shared};
use crate::pd::{Parents, ProtectionDomain};

// SAFETY: ibv_dealloc_td returns EBUSY and changes nothing while a parent domain uses it.
unsafe impl Destroy for sys::ibv_td {
    const VERB: &'static str = "ibv_dealloc_td";

    unsafe fn destroy(object: *mut Self) -> i32 {
        // SAFETY: forwarded to the caller.
        unsafe { sys::ibv_dealloc_td(object) }
    }
}

/// A promise to use objects from one thread at a time, for which the provider leaves its locks out.
/// Cloning gives another handle to the same one.
///
/// By itself it is used by nothing: see [`ProtectionDomain::with_thread_domain`].
#[doc(alias = "ibv_td")]
#[derive(Clone)]
pub struct ThreadDomain(Arc<Owned<sys::ibv_td, Context>>);

impl ThreadDomain {
    /// Allocates a thread domain on `context`.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] where the device has none.
    #[doc(alias = "ibv_alloc_td")]
    pub fn new(context: &Context) -> Result<Self, Error> {
        let verb = "ibv_alloc_td";
        let raw = context.raw_checked(verb)?;
        let mut attributes = sys::ibv_td_init_attr { comp_mask: 0 };
        // SAFETY: the context is open, and the attributes ask for nothing more.
        let raw = unsafe { sys::ibv_alloc_td(raw, &mut attributes) };
        let raw = from_pointer(verb, raw)?;
        // SAFETY: the domain was just made and needs its context, which is its parent.
        let owned = unsafe { Owned::new(raw, context.origin(), context.clone()) };
        Ok(Self(Arc::new(owned)))
    }

    /// Takes over a thread domain that other code has made.
    ///
    /// # Safety
    /// - `raw` is a live thread domain of `context` that nobody else frees.
    pub unsafe fn from_raw(raw: NonNull<sys::ibv_td>, context: &Context) -> Self {
        // SAFETY: the caller gives it over; it needs its context, which is its parent.
        let owned = unsafe { Owned::new(raw, context.origin(), context.clone()) };
        Self(Arc::new(owned))
    }

    /// The device it is of.
    pub fn context(&self) -> &Context {
        self.0.parents()
    }

    /// Frees it now.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] while other handles or a parent domain live.
    #[doc(alias = "ibv_dealloc_td")]
    pub fn close(self) -> Result<(), CloseError<Self>> {
        close_shared(
            self.0,
            "other handles or a parent domain still use the thread domain",
        )
        .map_err(|(error, shared)| CloseError {
            error,
            handle: Self(shared),
        })
    }

    /// The C thread domain, for calls that this crate does not have. It must not be freed.
    pub fn as_raw(&self) -> *mut sys::ibv_td {
        self.0.raw()
    }
}

impl fmt::Debug for ThreadDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ThreadDomain").field(&self.0).finish()
    }
}

impl ProtectionDomain {
    /// A parent domain: it stands for `pd` wherever a protection domain is asked for, and keeps it
    /// alive.
    ///
    /// The allocator that C takes here is not offered.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] where the device has none.
    #[doc(alias = "ibv_alloc_parent_domain")]
    pub fn with_parent(pd: &ProtectionDomain) -> Result<Self, Error> {
        parent_domain(pd, None)
    }

    /// A parent domain whose objects the provider does not lock. It keeps `pd` and `thread` alive.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] where the device has none, [`ErrorKind::InvalidArgument`] when
    /// both are not of one device.
    ///
    /// # Safety
    /// - No two threads use objects made of this domain, or of another one with the same thread
    ///   domain, at the same time: neither one object nor two different ones. (Handles of this
    ///   crate are `Sync`, so nothing else keeps threads apart.) Dropping one is a use.
    /// - The same goes for queue pairs of it and whoever polls their completion queues.
    #[doc(alias = "ibv_alloc_parent_domain")]
    pub unsafe fn with_thread_domain(
        pd: &ProtectionDomain,
        thread: &ThreadDomain,
    ) -> Result<Self, Error> {
        if thread.context() != pd.context() {
            return Err(Error::refused(
                "ibv_alloc_parent_domain",
                ErrorKind::InvalidArgument,
                "the thread domain is of another device",
            ));
        }
        parent_domain(pd, Some(thread))
    }
}

fn parent_domain(
    pd: &ProtectionDomain,
    thread: Option<&ThreadDomain>,
) -> Result<ProtectionDomain, Error> {
    let verb = "ibv_alloc_parent_domain";
    let context = pd.context();
    let raw_context = context.raw_checked(verb)?;
    let mut attributes = sys::ibv_parent_domain_init_attr {
        pd: pd.as_raw(),
        td: thread.map_or(ptr::null_mut(), ThreadDomain::as_raw),
        ..Default::default()
    };
    // SAFETY: the context is open; both domains are live and of it; the mask is 0, so there is no
    // allocator.
    let raw = unsafe { sys::ibv_alloc_parent_domain(raw_context, &mut attributes) };
    let raw = from_pointer(verb, raw)?;
    let parents = Parents {
        made_of: Some((pd.clone(), thread.cloned())),
        context: context.clone(),
    };
    // SAFETY: the domain was just made, and needs what it was made of and its context.
    Ok(unsafe { ProtectionDomain::own(raw, parents) })
}
