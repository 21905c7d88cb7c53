//! Queue pairs: the two ends of a connection.

mod adopt;
mod bind;
mod builder;
pub(crate) mod change;
mod check;
mod drain;
mod ece;
mod extended;
mod extended_batch;
mod extended_ops;
mod extended_request;
mod mask;
mod multicast;
mod native;
mod opcodes;
mod post;
mod request;
mod running;
mod state;
mod transition;

use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use rdma_core_sys as sys;

pub use self::bind::InlineRequest;
pub use self::builder::{Capabilities, QueuePairBuilder};
pub use self::ece::Ece;
pub use self::extended::ExtendedQueuePair;
pub use self::extended_batch::Batch;
pub use self::extended_ops::{FlushLevel, FlushPlacement, SendOps};
pub use self::extended_request::{AnyData, NoData, RegisteredData, Request};
pub use self::native::NativeQueuePair;
pub use self::opcodes::WrOpcode;
pub use self::post::{PostError, PostErrorKind};
pub use self::request::{RecvRequest, SendRequest};
pub use self::running::{AlternatePath, PathMigration, RtsChange, SqdChange};
pub use self::state::{QpAttributes, QpState, QpType};
pub use self::transition::{InitAttributes, PathMtu, RtrAttributes, RtsAttributes};

pub(crate) use self::check::check_receive_sges;
pub(crate) use self::post::{link_receives, posted_receives};

use self::check::Ready;
use self::multicast::Groups;
use self::opcodes::OpcodeSet;
use crate::context::Context;
use crate::cq::{CompletionQueue, CqInner, CqRoom};
use crate::error::{CloseError, Error};
use crate::mw::BoundWindows;
use crate::owned::{Destroy, Owned};
use crate::pd::ProtectionDomain;
use crate::slots::{PostRecv, PostSend};
use crate::srq::{SharedReceiveQueue, SharedRoom};

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
///
/// # Example
///
/// Connecting with a peer whose address, number and first packet number came another way, and
/// sending it a message:
///
/// ```no_run
/// use std::mem::MaybeUninit;
/// use verbs::*;
///
/// # fn example(pd: &ProtectionDomain, cq: &CompletionQueue, region: &MemoryRegion, peer: Gid, number: u32,
/// #     first_packet: u32, deadline: Deadline) -> Result<(), Box<dyn std::error::Error>> {
/// let qp = QueuePair::builder(pd, QpType::RC, cq, cq).build()?;
/// let sgid_index = pd.context().choose_gid(1, None)?.sgid_index()?;
/// let mtu = PathMtu::at_most(1024).ok_or("no MTU")?;
/// qp.to_init(&InitAttributes::new(1))?;
/// qp.to_rtr(&RtrAttributes::new(Address::roce(1, sgid_index, peer), mtu, number, first_packet))?;
/// qp.to_rts(&RtsAttributes::new(0))?;
///
/// let sges = [Sge::new(region.iova(), 5, region.lkey())];
/// let mut request = SendRequest::send(7, &sges).with_flags(SendFlags::SIGNALED);
/// // SAFETY: the region stays registered, and nothing changes its bytes, until the completion.
/// unsafe { qp.post_send(&mut request)? };
/// let mut completions = [const { MaybeUninit::uninit() }; 4];
/// for completion in cq.wait(&mut completions, deadline)? {
///     completion.result()?;
///     println!("request {} is done", completion.wr_id());
/// }
/// # Ok(())
/// # }
/// ```
#[doc(alias = "ibv_qp")]
pub struct QueuePair {
    attached: Box<Attached>,
    // The parents are boxed, since posting does not need them. Dropped by the drop of the whole, or
    // not at all while something is attached.
    owned: ManuallyDrop<Owned<sys::ibv_qp, Box<Parents>>>,
    facts: Facts,
}

/// What has to leave a queue pair before a device lets it go.
struct Attached {
    windows: BoundWindows,
    groups: Groups,
}

/// What is known of a queue pair without asking the device.
struct Facts {
    qp_type: QpType,
    /// What the device's transport offers for this type.
    opcodes: OpcodeSet,
    capabilities: Capabilities,
    number: u32,
    /// Whether there is no receive queue of its own.
    has_srq: bool,
    /// Our own record of the state: libibverbs writes its copy without a lock.
    state: AtomicU32,
    /// What follows from all this for a post.
    ready: Ready,
    post_send: PostSend,
    post_recv: PostRecv,
    /// Held while the state is changed.
    modifying: Mutex<()>,
}

/// What a queue pair needs: dropped after it, entries given back first.
#[derive(Debug)]
struct Parents {
    send_cq: Arc<CqInner>,
    recv_cq: Arc<CqInner>,
    send_room: CqRoom,
    recv_room: RecvRoom,
    srq: Option<SharedReceiveQueue>,
    pd: ProtectionDomain,
}

/// Entries of the completion queue for receives.
#[derive(Debug)]
enum RecvRoom {
    /// For this queue pair's own receives.
    Own(CqRoom),
    /// For those of a shared receive queue, together with its other queue pairs.
    Shared(#[expect(dead_code, reason = "held only to be dropped")] SharedRoom),
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
    #[inline]
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

    /// The shared receive queue it takes its receives from, if it has none of its own.
    pub fn srq(&self) -> Option<&SharedReceiveQueue> {
        self.owned.parents().srq.as_ref()
    }

    /// The device it is of.
    pub fn context(&self) -> &Context {
        self.pd().context()
    }

    /// Destroys the queue pair now. After `Ok` the device touches no memory through it.
    ///
    /// # Errors
    /// The errno of the call, or of freeing a window that is bound through it. Other windows bound
    /// through it are freed and groups are left already.
    #[doc(alias = "ibv_destroy_qp")]
    pub fn close(mut self) -> Result<(), CloseError<Self>> {
        if let Err(error) = self.attached.release() {
            return Err(CloseError {
                error,
                handle: self,
            });
        }
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is not dropped, and its place is filled again below or never looked at.
        let owned = unsafe { ManuallyDrop::take(&mut this.owned) };
        match owned.close() {
            Ok(()) => {
                // SAFETY: `this` is not dropped and not used any more, so this is the one drop of
                // the field; the others need none.
                unsafe { ptr::drop_in_place(&raw mut this.attached) };
                Ok(())
            }
            Err((error, owned)) => {
                this.owned = ManuallyDrop::new(owned);
                Err(CloseError {
                    error,
                    handle: ManuallyDrop::into_inner(this),
                })
            }
        }
    }

    /// The C queue pair, for calls that this crate does not have. It must not be destroyed, and its
    /// state must not be changed behind this handle's back.
    #[inline]
    pub fn as_raw(&self) -> *mut sys::ibv_qp {
        self.owned.raw()
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        if let Err(error) = self.attached.release() {
            // Destroyed with a window, a device waits for about a minute.
            tracing::warn!(%error, "a queue pair with a bound memory window is leaked with its parents");
            return;
        }
        // SAFETY: `close` takes the field only out of a handle that is not dropped, so this is its
        // one drop.
        unsafe { ManuallyDrop::drop(&mut self.owned) };
    }
}

impl Attached {
    /// Frees the windows and leaves the groups; an error when a window could not be freed.
    fn release(&mut self) -> Result<(), Error> {
        let freed = self.windows.free();
        self.groups.leave();
        freed
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
