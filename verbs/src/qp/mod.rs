//! Queue pairs: the two ends of a connection.

mod builder;
mod opcodes;
mod post;
mod request;
mod state;

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use rdma_core_sys as sys;

pub use self::builder::{Capabilities, QueuePairBuilder};
pub use self::post::{PostError, PostErrorKind};
pub use self::request::{RecvRequest, SendRequest, WrOpcode};
pub use self::state::{QpAttributes, QpState, QpType};

use self::opcodes::OpcodeSet;
use crate::context::Context;
use crate::cq::{CompletionQueue, CqRoom};
use crate::error::{CloseError, Error, from_return};
use crate::owned::{Destroy, Owned};
use crate::pd::ProtectionDomain;

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
    facts: Facts,
}

/// What is known of a queue pair without asking the device.
struct Facts {
    qp_type: QpType,
    /// What the device's transport offers for this type.
    opcodes: OpcodeSet,
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
        let qp = self.owned.raw_checked(verb)?;
        // Our record of the state takes the order in which the kernel took the calls.
        let _modifying = self
            .facts
            .modifying
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let (raw, mask) = attributes.as_raw();
        let mut raw = *raw;
        // SAFETY: the queue pair is live; the attributes are a copy, and the kernel checks them.
        let ret = unsafe { sys::ibv_modify_qp(qp, &mut raw, mask) };
        from_return(verb, ret).map_err(|error| match attributes.state() {
            Some(to) => error.with_detail(format!(
                "queue pair {} from {} to {to}",
                self.facts.number,
                self.state()
            )),
            None => error,
        })?;
        if let Some(state) = attributes.state() {
            self.facts.state.store(state.raw(), Ordering::Release);
        }
        Ok(())
    }

    /// Records a state that the kernel brought the queue pair to by itself, as it does on iWARP.
    ///
    /// # Safety
    /// - The queue pair is in that state: a send posted before RTS may be carried out much later,
    ///   when its memory is no longer what it was.
    pub unsafe fn record_state(&self, state: QpState) {
        self.facts.state.store(state.raw(), Ordering::Release);
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
        QpState::from_raw(self.facts.state.load(Ordering::Acquire))
    }

    /// Its number, 24 bits, which the peer addresses it by.
    pub fn number(&self) -> u32 {
        self.facts.number
    }

    /// Its transport: RC, UC or UD.
    pub fn qp_type(&self) -> QpType {
        self.facts.qp_type
    }

    /// What was granted, at least what was asked for.
    #[inline]
    pub fn capabilities(&self) -> &Capabilities {
        &self.facts.capabilities
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
        let Self { owned, facts } = self;
        owned.close().map_err(|(error, owned)| CloseError {
            error,
            handle: Self { owned, facts },
        })
    }

    /// The C queue pair, for calls that this crate does not have. It must not be destroyed, and its
    /// state must not be changed behind this handle's back.
    #[inline]
    pub fn as_raw(&self) -> *mut sys::ibv_qp {
        self.owned.raw()
    }
}

impl fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePair")
            .field("number", &self.facts.number)
            .field("qp_type", &self.facts.qp_type)
            .field("state", &self.state())
            .field("capabilities", &self.facts.capabilities)
            .finish_non_exhaustive()
    }
}
