//! Protection domains: what may be used together.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use rdma_core_sys as sys;

use crate::context::Context;
use crate::domain::ThreadDomain;
use crate::error::{CloseError, Error, from_pointer};
use crate::owned::{Destroy, Owned, close_shared};

// SAFETY: ibv_dealloc_pd returns EBUSY and changes nothing while the domain is in use.
unsafe impl Destroy for sys::ibv_pd {
    const VERB: &'static str = "ibv_dealloc_pd";

    unsafe fn destroy(object: *mut Self) -> i32 {
        // SAFETY: forwarded to the caller.
        unsafe { sys::ibv_dealloc_pd(object) }
    }
}

/// A protection domain. Cloning gives another handle to the same one.
#[doc(alias = "ibv_pd")]
#[derive(Clone)]
pub struct ProtectionDomain(Arc<Owned<sys::ibv_pd, Parents>>);

/// What a protection domain needs.
pub(crate) struct Parents {
    /// What a parent domain was made of.
    pub(crate) made_of: Option<(ProtectionDomain, Option<ThreadDomain>)>,
    pub(crate) context: Context,
}

impl ProtectionDomain {
    /// Allocates a domain on `context`.
    ///
    /// # Errors
    /// ENOMEM when the device has no more.
    #[doc(alias = "ibv_alloc_pd")]
    pub fn new(context: &Context) -> Result<Self, Error> {
        let raw = context.raw_checked("ibv_alloc_pd")?;
        // SAFETY: the context is open.
        let raw = unsafe { sys::ibv_alloc_pd(raw) };
        let raw = from_pointer("ibv_alloc_pd", raw)?;
        let parents = Parents {
            made_of: None,
            context: context.clone(),
        };
        // SAFETY: the domain was just made and needs its context, which is its parent.
        Ok(unsafe { Self::own(raw, parents) })
    }

    /// Takes over a domain that other code has made.
    ///
    /// # Safety
    /// - `raw` is a live domain of `context` that nobody else frees; for a parent domain, what it
    ///   was made of outlives it, and its thread domain, if it has one, is used as
    ///   [`with_thread_domain`](Self::with_thread_domain) says.
    pub unsafe fn from_raw(raw: NonNull<sys::ibv_pd>, context: &Context) -> Self {
        let parents = Parents {
            made_of: None,
            context: context.clone(),
        };
        // SAFETY: forwarded to the caller.
        unsafe { Self::own(raw, parents) }
    }

    /// # Safety
    /// - `raw` is a live domain that nobody else frees.
    /// - `parents` is all that it needs.
    pub(crate) unsafe fn own(raw: NonNull<sys::ibv_pd>, parents: Parents) -> Self {
        let origin = parents.context.origin();
        // SAFETY: forwarded to the caller.
        Self(Arc::new(unsafe { Owned::new(raw, origin, parents) }))
    }

    /// The device this domain is of.
    pub fn context(&self) -> &Context {
        &self.0.parents().context
    }

    /// The domain that this [parent domain](Self::with_parent) was made of, if it is one.
    pub fn parent(&self) -> Option<&ProtectionDomain> {
        self.0.parents().made_of.as_ref().map(|(pd, _)| pd)
    }

    /// Frees the domain now.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`](crate::ErrorKind::Busy) while other handles or objects of this domain live.
    #[doc(alias = "ibv_dealloc_pd")]
    pub fn close(self) -> Result<(), CloseError<Self>> {
        close_shared(
            self.0,
            "other handles or objects still use the protection domain",
        )
        .map_err(|(error, shared)| CloseError {
            error,
            handle: Self(shared),
        })
    }

    /// The domain, for the call `verb`, unless this is a forked child.
    pub(crate) fn raw_checked(&self, verb: &'static str) -> Result<*mut sys::ibv_pd, Error> {
        self.0.raw_checked(verb)
    }

    /// The C domain, for calls that this crate does not have. It must not be freed.
    #[inline]
    pub fn as_raw(&self) -> *mut sys::ibv_pd {
        self.0.raw()
    }
}

impl PartialEq for ProtectionDomain {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for ProtectionDomain {}

impl fmt::Debug for ProtectionDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ProtectionDomain").field(&self.0).finish()
    }
}
