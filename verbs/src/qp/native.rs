//! Flush and atomic write, posted one by one on a queue pair that others hold as well.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;

use rdma_core_sys as sys;

use super::QueuePair;
use super::extended::{Begun, ExtendedQueuePair, refusal};
use super::extended_ops::{FlushLevel, FlushPlacement, SendOps};
use super::opcodes::{OpcodeSet, WrOpcode};
use super::post::{PostError, PostErrorKind};
use super::state::QpState;
use crate::flags::SendFlags;
use crate::mr::RemoteAddr;

/// The part of an [`ExtendedQueuePair`] that posts what the classic calls cannot: flush and atomic
/// write, each with a doorbell of its own. The queue pair itself is shared
/// ([`queue_pair`](Self::queue_pair)), so that a connection may have it.
///
/// `Send`, but not `Sync`: one thread at a time posts through it. Others may post to the queue pair
/// the classic way meanwhile. In the queue all requests are in the order in which they were posted.
pub struct NativeQueuePair {
    qp: Arc<QueuePair>,
    ex: NonNull<sys::ibv_qp_ex>,
    ops: SendOps,
    granted: OpcodeSet,
    /// Number and flags of a request stand in the C object while it is built.
    one_thread: PhantomData<Cell<()>>,
}

// SAFETY: the pointer is to the object that `qp` owns, which may be used from any thread.
unsafe impl Send for NativeQueuePair {}

impl NativeQueuePair {
    /// `ex` is that of `qp`, made for `ops`, of which `granted` are looked up.
    pub(super) fn new(
        qp: QueuePair,
        ex: NonNull<sys::ibv_qp_ex>,
        ops: SendOps,
        granted: OpcodeSet,
    ) -> Self {
        Self {
            qp: Arc::new(qp),
            ex,
            ops,
            granted,
            one_thread: PhantomData,
        }
    }

    /// Posts a flush: as [`Batch::flush`](super::Batch::flush).
    ///
    /// # Errors
    /// A [`PostError`], as for [`ExtendedQueuePair::post_batch`].
    #[inline]
    pub fn flush(
        &self,
        wr_id: u64,
        remote: RemoteAddr,
        len: u32,
        placement: FlushPlacement,
        level: FlushLevel,
        flags: SendFlags,
    ) -> Result<(), PostError> {
        self.post(WrOpcode::FLUSH, wr_id, flags, |ex| {
            let (len, placement, level) = (len as usize, placement.raw(), level.raw());
            // SAFETY: a batch is begun, and the slot was looked up when the queue pair was made.
            unsafe { sys::ibv_wr_flush(ex, remote.rkey.0, remote.addr, len, placement, level) };
        })
    }

    /// Posts an atomic write: as [`Batch::atomic_write`](super::Batch::atomic_write).
    ///
    /// # Errors
    /// [`PostErrorKind::NotEightBytes`] for an address that is no multiple of 8; otherwise as
    /// [`flush`](Self::flush).
    #[inline]
    pub fn atomic_write(
        &self,
        wr_id: u64,
        remote: RemoteAddr,
        value: [u8; 8],
        flags: SendFlags,
    ) -> Result<(), PostError> {
        let addr = remote.addr;
        if !addr.is_multiple_of(8) {
            return Err(PostError::refused(PostErrorKind::NotEightBytes {
                addr,
                len: 8,
            }));
        }
        self.post(WrOpcode::ATOMIC_WRITE, wr_id, flags, |ex| {
            let bytes = value.as_ptr().cast();
            // SAFETY: a batch is begun, and the slot was looked up when the queue pair was made; the
            // 8 bytes are copied by the call.
            unsafe { sys::ibv_wr_atomic_write(ex, remote.rkey.0, addr, bytes) };
        })
    }

    /// Posts one request, which `build` adds. Neither of them looks at memory of ours later.
    #[inline(always)]
    fn post(
        &self,
        opcode: WrOpcode,
        wr_id: u64,
        flags: SendFlags,
        build: impl FnOnce(*mut sys::ibv_qp_ex),
    ) -> Result<(), PostError> {
        self.qp.check_post(QpState::RTS)?;
        if !self.granted.contains(opcode) {
            return Err(PostError::refused(PostErrorKind::NotAskedFor(opcode)));
        }
        let ex = self.ex.as_ptr();
        // SAFETY: the queue pair is live and extended. No batch is begun by this thread, and this
        // object is not shared: each ends in this function.
        unsafe { sys::ibv_wr_start(ex) };
        let begun = Begun::new(ex, self.qp.owned.origin());
        // SAFETY: the queue pair is live, and the batch is this thread's.
        unsafe { (*ex).wr_id = wr_id };
        // SAFETY: as above.
        unsafe { (*ex).wr_flags = (flags - SendFlags::INLINE).bits() };
        build(ex);
        let software = || self.qp.context().attributes().is_of_software();
        begun
            .complete()
            .map_err(|errno| refusal(errno, 1, software()))
    }

    /// What it was made for.
    pub fn ops(&self) -> SendOps {
        self.ops
    }

    /// The queue pair.
    #[inline]
    pub fn queue_pair(&self) -> &Arc<QueuePair> {
        &self.qp
    }
}

impl fmt::Debug for NativeQueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NativeQueuePair")
            .field("qp", &self.qp)
            .field("ops", &self.ops)
            .finish_non_exhaustive()
    }
}

impl From<ExtendedQueuePair> for NativeQueuePair {
    fn from(extended: ExtendedQueuePair) -> Self {
        extended.into_native()
    }
}
