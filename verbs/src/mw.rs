//! Memory windows: access for a peer to a part of a region, given and taken back by requests.

use std::fmt;
use std::ptr;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rdma_core_sys as sys;

use crate::error::{Error, ErrorKind, from_pointer};
use crate::flags::{AccessFlags, SendFlags, open_enum};
use crate::mr::{MemoryRegion, RemoteKey};
use crate::owned::{Destroy, Owned};
use crate::pd::ProtectionDomain;
use crate::process::Origin;

// SAFETY: ibv_dealloc_mw returning 0 has ended all access through the window; a failure leaves it as
// it was.
unsafe impl Destroy for sys::ibv_mw {
    const VERB: &'static str = "ibv_dealloc_mw";

    unsafe fn destroy(object: *mut Self) -> i32 {
        // SAFETY: forwarded to the caller.
        unsafe { sys::ibv_dealloc_mw(object) }
    }
}

open_enum! {
    /// How a window is bound.
    #[doc(alias = "ibv_mw_type")]
    WindowType(u32) {
        /// By a call, for any queue pair of the domain.
        TYPE_1 = sys::ibv_mw_type::IBV_MW_TYPE_1.0, "type 1";
        /// By a request, for the queue pair it is posted to; taken back by an invalidation.
        TYPE_2 = sys::ibv_mw_type::IBV_MW_TYPE_2.0, "type 2";
    }
}

/// A memory window. Cloning gives another handle to the same one.
///
/// A window of type 2 is freed ([`is_freed`](Self::is_freed)) with the first queue pair to go of those
/// that it was ever bound through: it may still be bound to that one, and a device waits for minutes
/// then. So use a window for each queue pair, where they go at different times. A region cannot be closed while a window is bound to it: unbind,
/// invalidate or close the window first. On SoftRoCE a
/// write past a window of type 1 succeeds as long as it stays inside the region.
///
/// # Example
///
/// A key for 64 bytes of a region, which is taken back without touching the region:
///
/// ```no_run
/// use verbs::*;
///
/// # fn example(qp: &QueuePair, region: &MemoryRegion) -> Result<(), Error> {
/// let window = MemoryWindow::new(qp.pd(), WindowType::TYPE_2)?;
/// let key = qp.bind(&window, &WindowBind {
///     wr_id: 1,
///     region,
///     offset: 4096,
///     len: 64,
///     access: AccessFlags::REMOTE_READ,
///     flags: SendFlags::SIGNALED,
/// })?;
/// // Give `key` to the peer once the bind has completed. Later:
/// let mut invalidate = SendRequest::local_invalidate(2, key).with_flags(SendFlags::SIGNALED);
/// // SAFETY: the request names no memory.
/// unsafe { qp.post_send(&mut invalidate)? };
/// # Ok(())
/// # }
/// ```
#[doc(alias = "ibv_mw")]
#[derive(Clone)]
pub struct MemoryWindow(Arc<Inner>);

struct Inner {
    /// Shared with the queue pairs that it was bound through: they must not go before it, also when it
    /// could not be freed with its last handle.
    state: SharedState,
    /// Our own record: the C field is written by a bind.
    rkey: AtomicU32,
    window_type: WindowType,
    pd: ProtectionDomain,
}

#[derive(Debug, Clone)]
struct SharedState(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    /// Gone once the window is freed.
    owned: Option<Owned<sys::ibv_mw, ProtectionDomain>>,
    /// The numbers of the queue pairs that a window of type 2 was bound through. To which of them it is
    /// bound is not known: a peer may have invalidated it, and a bind may fail in its completion.
    through: Vec<u32>,
}

/// What a window is bound to, and how.
#[doc(alias = "ibv_mw_bind")]
#[doc(alias = "ibv_mw_bind_info")]
#[derive(Debug, Clone, Copy)]
pub struct WindowBind<'a> {
    /// The number of the request, for its completion.
    pub wr_id: u64,
    /// The region, registered with [`AccessFlags::MW_BIND`] in the window's domain.
    pub region: &'a MemoryRegion,
    /// Where the window begins in the region, in bytes.
    pub offset: usize,
    /// How long it is, in bytes; not 0: [`QueuePair::unbind`](crate::QueuePair::unbind) takes the
    /// access back.
    pub len: usize,
    /// What the peer may do: remote flags, of which writes and atomics need a region with local
    /// write.
    pub access: AccessFlags,
    /// The modifiers of the request.
    pub flags: SendFlags,
}

impl MemoryWindow {
    /// Allocates a window.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] where the device has no windows.
    #[doc(alias = "ibv_alloc_mw")]
    pub fn new(pd: &ProtectionDomain, window_type: WindowType) -> Result<Self, Error> {
        let verb = "ibv_alloc_mw";
        let raw_pd = pd.raw_checked(verb)?;
        // SAFETY: the domain is live.
        let raw = unsafe { sys::ibv_alloc_mw(raw_pd, sys::ibv_mw_type(window_type.raw())) };
        let raw = from_pointer(verb, raw).map_err(|e| e.with_detail(window_type.to_string()))?;
        // SAFETY: the window was just made, of this domain.
        Ok(unsafe { Self::from_raw(raw, pd) })
    }

    /// Takes over a window that other code has made.
    ///
    /// # Safety
    /// - `raw` is a live window of `pd` that nobody else frees or binds.
    /// - If it is of type 2, no queue pair has it bound, and no request that binds it is under way.
    pub unsafe fn from_raw(raw: NonNull<sys::ibv_mw>, pd: &ProtectionDomain) -> Self {
        // SAFETY: the caller gives the window over; it needs its domain, which is its parent.
        let owned = unsafe { Owned::new(raw, pd.context().origin(), pd.clone()) };
        // SAFETY: the window is live, and nobody else binds it.
        let rkey = unsafe { (*owned.raw()).rkey };
        // SAFETY: as above; the type never changes.
        let window_type = unsafe { (*owned.raw()).type_ };
        let window_type = WindowType::from_raw(window_type.0);
        Self(Arc::new(Inner {
            state: SharedState(Arc::new(Mutex::new(State {
                owned: Some(owned),
                through: Vec::new(),
            }))),
            rkey: AtomicU32::new(rkey),
            window_type,
            pd: pd.clone(),
        }))
    }

    /// The key for the peer, of the last bind.
    pub fn rkey(&self) -> RemoteKey {
        RemoteKey(self.0.rkey.load(Ordering::Acquire))
    }

    /// How it is bound.
    pub fn window_type(&self) -> WindowType {
        self.0.window_type
    }

    /// The domain it belongs to.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.0.pd
    }

    /// Whether it was freed, by [`close`](Self::close) or with its queue pair.
    pub fn is_freed(&self) -> bool {
        self.0.state.lock().owned.is_none()
    }

    /// Frees the window now, bound or not, for all handles: the peer's access has ended then. Does
    /// nothing when it was freed before.
    ///
    /// # Errors
    /// The errno of the call; the window stays.
    #[doc(alias = "ibv_dealloc_mw")]
    pub fn close(&self) -> Result<(), Error> {
        self.0.pd.raw_checked("ibv_dealloc_mw")?;
        self.0.state.free(|_| true)
    }

    /// The C window, for calls that this crate does not have; NULL once the window was freed, which
    /// [`close`](Self::close) of another handle or the end of its queue pair may do at any time. It
    /// must not be freed.
    pub fn as_raw(&self) -> *mut sys::ibv_mw {
        let state = self.0.state.lock();
        state.owned.as_ref().map_or(ptr::null_mut(), Owned::raw)
    }

    /// Runs `bind` with the C window and its present key, and records the key that it gives. Its error
    /// says whether the request may be carried out all the same.
    pub(crate) fn bind_with(
        &self,
        qp_number: u32,
        bind: impl FnOnce(*mut sys::ibv_mw, RemoteKey) -> Result<RemoteKey, (Error, bool)>,
    ) -> Result<RemoteKey, Error> {
        let mut state = self.0.state.lock();
        let Some(owned) = &state.owned else {
            return Err(Error::refused(
                "ibv_bind_mw",
                ErrorKind::InvalidArgument,
                "the memory window was freed, by a call or with its queue pair",
            ));
        };
        let result = bind(owned.raw(), self.rkey());
        let queued = !matches!(result, Err((_, false)));
        let of_pair = self.0.window_type != WindowType::TYPE_1;
        if of_pair && queued && !state.through.contains(&qp_number) {
            state.through.push(qp_number);
        }
        let rkey = result.map_err(|(error, _)| error)?;
        self.0.rkey.store(rkey.0, Ordering::Release);
        Ok(rkey)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // In a forked child the lock may be held by a thread that does not exist.
        if !self.pd.context().origin().is_current() {
            return;
        }
        // Tried here for windows that a queue pair knows, since it keeps their state alive.
        if let Err(error) = self.state.free(|through| !through.is_empty()) {
            tracing::warn!(%error, "a memory window stays until its queue pair goes");
        }
    }
}

impl SharedState {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Frees the window if `concerned` by the queue pairs that it was bound through.
    fn free(&self, concerned: impl FnOnce(&[u32]) -> bool) -> Result<(), Error> {
        let mut state = self.lock();
        if !concerned(&state.through) {
            return Ok(());
        }
        let Some(owned) = state.owned.take() else {
            return Ok(());
        };
        owned.close().map_err(|(error, owned)| {
            state.owned = Some(owned);
            error
        })
    }
}

impl fmt::Debug for MemoryWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryWindow")
            .field("window_type", &self.0.window_type)
            .field("rkey", &self.rkey())
            .finish_non_exhaustive()
    }
}

impl WindowBind<'_> {
    /// The C struct, if the range lies in the region and the region in the window's domain.
    pub(crate) fn to_raw(
        self,
        verb: &'static str,
        window: &MemoryWindow,
    ) -> Result<sys::ibv_mw_bind_info, Error> {
        let refused =
            |detail: String| Err(Error::refused(verb, ErrorKind::InvalidArgument, detail));
        if self.region.pd() != window.pd() {
            return refused("the memory region is of another protection domain".to_owned());
        }
        let size = self.region.len();
        // An empty window unbinds, and some providers take the region for granted all the same.
        if self.len == 0
            || self
                .offset
                .checked_add(self.len)
                .is_none_or(|end| end > size)
        {
            return refused(format!(
                "a window of {} bytes at {} does not lie in a region of {size} bytes",
                self.len, self.offset
            ));
        }
        let Some(addr) = self.region.iova().checked_add(self.offset as u64) else {
            return refused(format!(
                "a window at {} of a region at {:#x} is not within 64 bits",
                self.offset,
                self.region.iova()
            ));
        };
        Ok(sys::ibv_mw_bind_info {
            mr: self.region.as_raw(),
            addr,
            length: self.len as u64,
            mw_access_flags: self.access.bits(),
        })
    }
}

/// The windows of type 2 bound through a queue pair; freed before it.
#[derive(Debug)]
pub(crate) struct BoundWindows {
    number: u32,
    origin: Origin,
    windows: Mutex<Vec<SharedState>>,
}

impl BoundWindows {
    pub(crate) fn new(number: u32, origin: Origin) -> Self {
        Self {
            number,
            origin,
            windows: Mutex::default(),
        }
    }

    /// Remembers a window that is about to be bound.
    pub(crate) fn add(&self, window: &MemoryWindow) {
        let mut windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        let new = &window.0.state;
        if !windows.iter().any(|known| Arc::ptr_eq(&known.0, &new.0)) {
            windows.retain(|known| known.lock().owned.is_some());
            windows.push(new.clone());
        }
    }

    /// Frees those that were bound through this queue pair; those that cannot be freed stay.
    pub(crate) fn free(&mut self) -> Result<(), Error> {
        // In a forked child the locks may be held by threads that do not exist.
        if !self.origin.is_current() {
            return Ok(());
        }
        let windows = self
            .windows
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        let mut result = Ok(());
        windows.retain(|window| {
            let freed = window.free(|through| through.contains(&self.number));
            let failed = freed.is_err();
            result = std::mem::replace(&mut result, Ok(())).and(freed);
            failed
        });
        result
    }
}
