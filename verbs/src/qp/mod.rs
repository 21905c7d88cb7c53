//! Queue pairs: the two ends of a connection.

mod builder;
mod post;
mod request;
mod state;

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rdma_core_sys as sys;

pub use self::builder::{Capabilities, QueuePairBuilder};
pub use self::post::{PostError, PostErrorKind};
pub use self::request::{RecvRequest, SendRequest, WrOpcode};
pub use self::state::{QpAttributes, QpState, QpType};

use crate::context::Context;
use crate::cq::{CompletionQueue, CqInner};
use crate::device::TransportType;
use crate::error::{CloseError, Error, from_return};
use crate::owned::{Destroy, Owned};
use crate::pd::ProtectionDomain;
use crate::process::Origin;

// SAFETY: after ibv_destroy_qp has returned 0 the device no longer works for the queue pair; a
// failure (EBUSY while attached to a multicast group) leaves it as it was.
unsafe impl Destroy for sys::ibv_qp {
    const VERB: &'static str = "ibv_destroy_qp";

    unsafe fn destroy(object: *mut Self) -> i32 {
        // SAFETY: forwarded to the caller.
        unsafe { sys::ibv_destroy_qp(object) }
    }
}

/// A queue pair: a send queue and a receive queue with their state. `Send` and `Sync`.
///
/// It keeps its protection domain and completion queues alive. Completions of requests that were
/// under way may still be polled after it is dropped; until then they take entries of the completion
/// queue, which nobody counts: poll it empty before another queue pair is attached to it.
#[doc(alias = "ibv_qp")]
pub struct QueuePair {
    owned: Owned<sys::ibv_qp, Parents>,
    origin: Origin,
    transport: TransportType,
    capabilities: Capabilities,
    number: u32,
    /// Our own record of the state: libibverbs writes its copy without a lock.
    state: AtomicU32,
    /// Held while the state is changed.
    modifying: Mutex<()>,
}

/// What a queue pair needs: dropped after it, entries given back first.
#[derive(Debug)]
struct Parents {
    /// Of the queue for sends, and of that for receives.
    room: [CqRoom; 2],
    pd: ProtectionDomain,
}

/// Entries of a completion queue that are promised to a queue pair.
struct CqRoom {
    cq: Arc<CqInner>,
    entries: u32,
}

impl CqRoom {
    fn reserve(cq: &CompletionQueue, entries: u32) -> Result<Self, Error> {
        cq.inner().reserve(entries)?;
        Ok(Self {
            cq: Arc::clone(cq.inner()),
            entries,
        })
    }

    /// Promises more, as many as the device has `granted` requests.
    fn grow(&mut self, granted: u32) -> Result<(), Error> {
        let Some(more) = granted.checked_sub(self.entries).filter(|&more| more > 0) else {
            return Ok(());
        };
        self.cq.reserve(more).map_err(|error| {
            error.with_hint(format!(
                "the device made a queue of {granted} requests where {} were asked: make the \
                 completion queue larger, or allow overrun explicitly",
                self.entries
            ))
        })?;
        self.entries = granted;
        Ok(())
    }
}

impl Drop for CqRoom {
    fn drop(&mut self) {
        self.cq.release(self.entries);
    }
}

impl fmt::Debug for CqRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CqRoom({} of {:p})", self.entries, self.cq.raw())
    }
}

impl QueuePair {
    /// Starts building a queue pair of `pd` whose completions go to `send_cq` and `recv_cq`.
    pub fn builder<'a>(
        pd: &'a ProtectionDomain,
        qp_type: QpType,
        send_cq: &'a CompletionQueue,
        recv_cq: &'a CompletionQueue,
    ) -> QueuePairBuilder<'a> {
        QueuePairBuilder::new(pd, qp_type, send_cq, recv_cq)
    }

    /// Sets attributes, usually a new state.
    ///
    /// # Errors
    /// EINVAL when the transition does not exist or gets too few or too many attributes: nothing
    /// has changed then. ETIMEDOUT when the peer's address cannot be resolved.
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify(&self, attributes: &QpAttributes) -> Result<(), Error> {
        let verb = "ibv_modify_qp";
        self.origin.check(verb)?;
        // Our record of the state takes the order in which the kernel took the calls.
        let _modifying = self
            .modifying
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let (raw, mask) = attributes.as_raw();
        let mut raw = *raw;
        // SAFETY: the queue pair is live; the attributes are a copy, and the kernel checks them.
        let ret = unsafe { sys::ibv_modify_qp(self.as_raw(), &mut raw, mask) };
        from_return(verb, ret).map_err(|error| match attributes.state() {
            Some(to) => error.with_detail(format!(
                "queue pair {} from {} to {to}",
                self.number,
                self.state()
            )),
            None => error,
        })?;
        if let Some(state) = attributes.state() {
            self.state.store(state.raw(), Ordering::Release);
        }
        Ok(())
    }

    /// Records a state that the kernel brought the queue pair to by itself, as it does on iWARP.
    ///
    /// # Safety
    /// - The queue pair is in that state: a send posted before RTS may be carried out much later,
    ///   when its memory is no longer what it was.
    pub unsafe fn record_state(&self, state: QpState) {
        self.state.store(state.raw(), Ordering::Release);
    }

    /// Ends all work: what is posted completes as flushed, and nothing is accepted from the peer.
    ///
    /// # Errors
    /// The errno of the call.
    pub fn set_error(&self) -> Result<(), Error> {
        self.modify(QpAttributes::new().set_state(QpState::ERR))
    }

    /// The state that the last [`modify`](Self::modify) reached. A device goes to ERR by itself
    /// when a request fails, which shows in the completions.
    #[inline]
    pub fn state(&self) -> QpState {
        QpState::from_raw(self.state.load(Ordering::Acquire))
    }

    /// Its number, 24 bits, which the peer addresses it by.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// What was granted, at least what was asked for.
    #[inline]
    pub fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// The protection domain it belongs to.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.owned.parents().pd
    }

    /// The device it is of.
    pub fn context(&self) -> &Context {
        self.pd().context()
    }

    /// Destroys the queue pair now. After `Ok` the device touches no memory through it.
    ///
    /// # Errors
    /// EBUSY while it is attached to a multicast group.
    #[doc(alias = "ibv_destroy_qp")]
    pub fn close(self) -> Result<(), CloseError<Self>> {
        let Self {
            owned,
            origin,
            transport,
            capabilities,
            number,
            state,
            modifying,
        } = self;
        owned.close().map_err(|(error, owned)| CloseError {
            error,
            handle: Self {
                owned,
                origin,
                transport,
                capabilities,
                number,
                state,
                modifying,
            },
        })
    }

    /// The C queue pair, for calls that this crate does not have. It must not be destroyed, and its
    /// state must not be changed behind this handle's back.
    #[inline]
    pub fn as_raw(&self) -> *mut sys::ibv_qp {
        self.owned.raw()
    }

    #[inline]
    fn origin(&self) -> Origin {
        self.origin
    }

    #[inline]
    fn transport(&self) -> TransportType {
        self.transport
    }
}

impl fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePair")
            .field("number", &self.number)
            .field("state", &self.state())
            .field("capabilities", &self.capabilities)
            .finish_non_exhaustive()
    }
}
