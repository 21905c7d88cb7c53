//! Requests that are built while the provider has the send queue locked.

use std::fmt;
use std::marker::PhantomData;

use rdma_core_sys as sys;

use super::extended::ExtendedQueuePair;
use super::extended_ops::{FlushLevel, FlushPlacement};
use super::extended_request::{AnyData, NoData, Operation, RegisteredData, Request};
use super::opcodes::WrOpcode;
use super::post::{PostError, PostErrorKind};
use crate::error::{Error, ErrorKind};
use crate::flags::SendFlags;
use crate::mr::{RemoteAddr, RemoteKey};
use crate::mw::{MemoryWindow, WindowBind, WindowType};

/// The requests that one [`post_batch`](ExtendedQueuePair::post_batch) is going to post.
///
/// Each operation gives a [`Request`], whose last call says what its data is, and adds it. Limits are
/// checked before the provider is called, so a request that is refused leaves the batch as it was.
pub struct Batch<'q> {
    pub(super) qp: &'q ExtendedQueuePair,
    /// How many requests were added.
    pub(super) count: u32,
    /// The provider's lock belongs to this thread.
    not_send: PhantomData<*mut ()>,
}

impl<'q> Batch<'q> {
    pub(super) fn new(qp: &'q ExtendedQueuePair) -> Self {
        Self {
            qp,
            count: 0,
            not_send: PhantomData,
        }
    }

    /// How many requests were added.
    pub fn len(&self) -> u32 {
        self.count
    }

    /// Whether none was added.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    #[inline]
    fn request<D>(&mut self, wr_id: u64, operation: Operation) -> Request<'_, 'q, D> {
        Request::new(self, wr_id, operation)
    }

    /// Sends a message. On a queue pair of type UD it needs a
    /// [destination](Request::to).
    #[doc(alias = "ibv_wr_send")]
    #[inline]
    pub fn send(&mut self, wr_id: u64) -> Request<'_, 'q, AnyData> {
        self.request(wr_id, Operation::Send)
    }

    /// Sends a message with `imm`, given and received in host order.
    #[doc(alias = "ibv_wr_send_imm")]
    #[inline]
    pub fn send_with_imm(&mut self, wr_id: u64, imm: u32) -> Request<'_, 'q, AnyData> {
        self.request(wr_id, Operation::SendImm(imm.to_be()))
    }

    /// Sends a message, and invalidates `key` of the peer: a bound memory window's.
    #[doc(alias = "ibv_wr_send_inv")]
    #[inline]
    pub fn send_with_invalidate(&mut self, wr_id: u64, key: RemoteKey) -> Request<'_, 'q, AnyData> {
        self.request(wr_id, Operation::SendInv(key))
    }

    /// Writes to `remote`.
    #[doc(alias = "ibv_wr_rdma_write")]
    #[inline]
    pub fn write(&mut self, wr_id: u64, remote: RemoteAddr) -> Request<'_, 'q, AnyData> {
        self.request(wr_id, Operation::Write(remote))
    }

    /// Writes, and completes a receive of the peer with `imm`.
    #[doc(alias = "ibv_wr_rdma_write_imm")]
    #[inline]
    pub fn write_with_imm(
        &mut self,
        wr_id: u64,
        remote: RemoteAddr,
        imm: u32,
    ) -> Request<'_, 'q, AnyData> {
        self.request(wr_id, Operation::WriteImm(remote, imm.to_be()))
    }

    /// Reads from `remote`.
    #[doc(alias = "ibv_wr_rdma_read")]
    #[inline]
    pub fn read(&mut self, wr_id: u64, remote: RemoteAddr) -> Request<'_, 'q, RegisteredData> {
        self.request(wr_id, Operation::Read(remote))
    }

    /// Swaps the 8 bytes at `remote` for `swap` if they are `compare`; what they were goes into the
    /// 8 bytes of the data. As [`SendRequest::compare_and_swap`](crate::SendRequest::compare_and_swap).
    #[doc(alias = "ibv_wr_atomic_cmp_swp")]
    #[inline]
    pub fn compare_and_swap(
        &mut self,
        wr_id: u64,
        remote: RemoteAddr,
        compare: u64,
        swap: u64,
    ) -> Request<'_, 'q, RegisteredData> {
        self.request(wr_id, Operation::CompareSwap(remote, compare, swap))
    }

    /// Adds `add` to the 8 bytes at `remote`; what they were goes into the 8 bytes of the data.
    #[doc(alias = "ibv_wr_atomic_fetch_add")]
    #[inline]
    pub fn fetch_and_add(
        &mut self,
        wr_id: u64,
        remote: RemoteAddr,
        add: u64,
    ) -> Request<'_, 'q, RegisteredData> {
        self.request(wr_id, Operation::FetchAdd(remote, add))
    }

    /// Invalidates `key` of this side: a bound memory window's.
    #[doc(alias = "ibv_wr_local_inv")]
    #[inline]
    pub fn local_invalidate(&mut self, wr_id: u64, key: RemoteKey) -> Request<'_, 'q, NoData> {
        self.request(wr_id, Operation::LocalInv(key))
    }

    /// Waits at the peer until what was written before to the `len` bytes at `remote` is where
    /// `placement` says. It completes when that is so.
    ///
    /// The region and the peer's queue pair must allow the placement
    /// ([`AccessFlags::FLUSH_GLOBAL`](crate::AccessFlags::FLUSH_GLOBAL),
    /// [`FLUSH_PERSISTENT`](crate::AccessFlags::FLUSH_PERSISTENT)), or it ends in
    /// [`REM_ACCESS_ERR`](crate::WcStatus::REM_ACCESS_ERR).
    #[doc(alias = "ibv_wr_flush")]
    #[inline]
    pub fn flush(
        &mut self,
        wr_id: u64,
        remote: RemoteAddr,
        len: u32,
        placement: FlushPlacement,
        level: FlushLevel,
    ) -> Request<'_, 'q, NoData> {
        self.request(wr_id, Operation::Flush(remote, len, placement, level))
    }

    /// Writes 8 bytes to `remote`, a multiple of 8, so that nobody ever sees a part of them.
    #[doc(alias = "ibv_wr_atomic_write")]
    #[inline]
    pub fn atomic_write(
        &mut self,
        wr_id: u64,
        remote: RemoteAddr,
        value: [u8; 8],
    ) -> Request<'_, 'q, NoData> {
        self.request(wr_id, Operation::AtomicWrite(remote, value))
    }

    /// Adds a request that binds `window`, of type 2, and gives the key for the peer. As
    /// [`QueuePair::bind`](crate::QueuePair::bind), which also binds windows of type 1.
    ///
    /// The window belongs to this queue pair from here on, also when the batch is not posted.
    ///
    /// # Errors
    /// Those of [`QueuePair::bind`](crate::QueuePair::bind).
    #[doc(alias = "ibv_wr_bind_mw")]
    pub fn bind(
        &mut self,
        window: &MemoryWindow,
        bind: &WindowBind<'_>,
    ) -> Result<RemoteKey, Error> {
        if window.window_type() == WindowType::TYPE_1 {
            return Err(Error::refused(
                "ibv_wr_bind_mw",
                ErrorKind::InvalidArgument,
                "a window of type 1 is bound by QueuePair::bind, not in a batch",
            ));
        }
        self.check_room()?;
        self.qp.check_operation(WrOpcode::BIND_MW)?;
        let qp = self.qp.queue_pair();
        let info = qp.prepare_bind("ibv_wr_bind_mw", window, bind)?;
        let ex = self.qp.as_raw();
        let key = window.bind_with(qp.number(), |mw, old| {
            let rkey = sys::ibv_inc_rkey(old.0);
            self.set_fields(bind.wr_id, bind.flags);
            // SAFETY: a batch is begun, which this object stands for, and the slot was looked up at
            // creation. Window and region are live and of one domain.
            unsafe { sys::ibv_wr_bind_mw(ex, mw, rkey, &info) };
            // SAFETY: the window is live and its lock is held, without which nothing reads the key.
            unsafe { (*mw).rkey = rkey };
            Ok(RemoteKey(rkey))
        })?;
        self.count += 1;
        Ok(key)
    }

    /// Whether the queue can have one more: whether it is full, the provider says at the end.
    #[inline]
    pub(super) fn check_room(&self) -> Result<(), PostError> {
        if self.count < self.qp.queue_pair().capabilities().max_send_wr {
            return Ok(());
        }
        Err(PostError::refused(PostErrorKind::QueueFull))
    }

    /// Sets what the next operation takes from the queue pair's own fields.
    #[inline]
    pub(super) fn set_fields(&self, wr_id: u64, flags: SendFlags) {
        let ex = self.qp.as_raw();
        // SAFETY: the queue pair is live, and the batch is this thread's.
        unsafe { (*ex).wr_id = wr_id };
        // SAFETY: as above.
        unsafe { (*ex).wr_flags = flags.bits() };
    }
}

impl fmt::Debug for Batch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("count", &self.count).finish()
    }
}
