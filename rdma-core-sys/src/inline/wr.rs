//! Work requests built piece by piece on an extended queue pair.
//!
//! [`ibv_wr_start`], then for each request an operation and its setters, then [`ibv_wr_complete`] or [`ibv_wr_abort`]. The
//! fields `wr_id` and `wr_flags` of the queue pair are set before each operation. A setter with no operation before it edits a
//! request that may be in flight already.

use core::ffi::{c_int, c_void};
use core::mem::offset_of;

use crate::bindings::{__be32, ibv_ah, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp_ex, ibv_sge};
use crate::inline::missing;

/// Functions that pass the queue pair and their arguments on to a slot of it.
macro_rules! wr_ops {
    ($(
        $(#[$doc:meta])*
        fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? = $slot:ident, needs $promise:literal;
    )*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// - `qp` is a live queue pair that `ibv_qp_to_qp_ex` gave.
        #[doc = concat!("- ", $promise)]
        ///
        /// # Panics
        /// When the queue pair has no such function: the provider does not know it, or it was not asked for at creation.
        #[inline]
        #[track_caller]
        pub unsafe fn $name(qp: *mut ibv_qp_ex $(, $arg: $ty)*) $(-> $ret)? {
            // SAFETY: the queue pair is live, and long enough for this slot.
            match unsafe { (*qp).$slot } {
                // SAFETY: the caller's promises are the ones that the provider's function needs.
                Some(op) => unsafe { op(qp $(, $arg)*) },
                None => missing("ibv_qp_ex", stringify!($slot)),
            }
        }
    )*};
}

wr_ops! {
    /// Begins a batch; the queue is locked until it is completed or aborted.
    fn ibv_wr_start() = wr_start, needs "No batch is begun.";
    /// Posts the batch. Returns 0, or an errno value; then nothing of it was posted, as far as the provider can tell.
    fn ibv_wr_complete() -> c_int = wr_complete, needs
        "A batch is begun, and the memory that its requests name stays valid until they have completed.";
    /// Drops the batch.
    fn ibv_wr_abort() = wr_abort, needs "A batch is begun.";

    /// Adds an atomic compare-and-swap of 8 bytes.
    fn ibv_wr_atomic_cmp_swp(rkey: u32, remote_addr: u64, compare: u64, swap: u64)
        = wr_atomic_cmp_swp, needs "A batch is begun.";
    /// Adds an atomic fetch-and-add of 8 bytes.
    fn ibv_wr_atomic_fetch_add(rkey: u32, remote_addr: u64, add: u64)
        = wr_atomic_fetch_add, needs "A batch is begun.";
    /// Adds the binding of a type 2 memory window.
    fn ibv_wr_bind_mw(mw: *mut ibv_mw, rkey: u32, bind_info: *const ibv_mw_bind_info)
        = wr_bind_mw, needs "A batch is begun, `mw` is a live window, and `bind_info` points to a filled struct with a live region.";
    /// Adds the invalidation of a local key.
    fn ibv_wr_local_inv(invalidate_rkey: u32) = wr_local_inv, needs "A batch is begun.";
    /// Adds a read of remote memory.
    fn ibv_wr_rdma_read(rkey: u32, remote_addr: u64) = wr_rdma_read, needs "A batch is begun.";
    /// Adds a write to remote memory.
    fn ibv_wr_rdma_write(rkey: u32, remote_addr: u64) = wr_rdma_write, needs "A batch is begun.";
    /// Adds a write to remote memory with immediate data (big endian).
    fn ibv_wr_rdma_write_imm(rkey: u32, remote_addr: u64, imm_data: __be32)
        = wr_rdma_write_imm, needs "A batch is begun.";
    /// Adds a send.
    fn ibv_wr_send() = wr_send, needs "A batch is begun.";
    /// Adds a send with immediate data (big endian).
    fn ibv_wr_send_imm(imm_data: __be32) = wr_send_imm, needs "A batch is begun.";
    /// Adds a send that invalidates a key of the peer.
    fn ibv_wr_send_inv(invalidate_rkey: u32) = wr_send_inv, needs "A batch is begun.";
    /// Adds a segmented send.
    fn ibv_wr_send_tso(hdr: *mut c_void, hdr_sz: u16, mss: u16)
        = wr_send_tso, needs "A batch is begun, and `hdr` is valid for reads of `hdr_sz` bytes.";
    /// Adds an atomic write of 8 bytes; the slot exists since rdma-core 44.
    fn ibv_wr_atomic_write(rkey: u32, remote_addr: u64, atomic_wr: *const c_void)
        = wr_atomic_write, needs "A batch is begun, `atomic_wr` is valid for reads of 8 bytes, and the queue pair was created with \
            `IBV_QP_EX_WITH_ATOMIC_WRITE`, so that it is long enough to have the slot.";

    /// Sets the destination of a datagram.
    fn ibv_wr_set_ud_addr(ah: *mut ibv_ah, remote_qpn: u32, remote_qkey: u32)
        = wr_set_ud_addr, needs "An operation was added before this, and `ah` is live until it has completed.";
    /// Sets the remote shared receive queue of an XRC request.
    fn ibv_wr_set_xrc_srqn(remote_srqn: u32) = wr_set_xrc_srqn, needs "An operation was added before this.";
    /// Sets the payload by copying it.
    fn ibv_wr_set_inline_data(addr: *mut c_void, length: usize)
        = wr_set_inline_data, needs "An operation was added before this, and `addr` is valid for reads of `length` bytes, which are no \
            more than the queue pair takes inline.";
    /// Sets the payload by copying it from several buffers.
    fn ibv_wr_set_inline_data_list(num_buf: usize, buf_list: *const ibv_data_buf)
        = wr_set_inline_data_list, needs "An operation was added before this, and `buf_list` points to `num_buf` buffers, valid for reads \
            and together no more than the queue pair takes inline.";
    /// Sets the payload to one range of registered memory.
    fn ibv_wr_set_sge(lkey: u32, addr: u64, length: u32)
        = wr_set_sge, needs "An operation was added before this, and the memory stays valid until it has completed.";
    /// Sets the payload to several ranges of registered memory.
    fn ibv_wr_set_sge_list(num_sge: usize, sg_list: *const ibv_sge)
        = wr_set_sge_list, needs "An operation was added before this, `sg_list` points to `num_sge` entries, no more than the queue pair \
            takes, and the memory that they name stays valid until it has completed.";
}

/// The slot behind [`ibv_wr_flush`]: queue pair, remote key, remote address, length in bytes, placement type, selectivity level.
pub type ibv_wr_flush_fn = unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, usize, u8, u8);

/// Where rdma-core 45 and later have the slot `wr_flush`: right after the last one of rdma-core 44.
pub(crate) const WR_FLUSH_OFFSET: usize =
    offset_of!(ibv_qp_ex, wr_atomic_write) + size_of::<usize>();

/// The slot `wr_flush` of a queue pair, which lies past the end of the struct as rdma-core 44 has it.
///
/// # Safety
/// - `qp` is a live queue pair that `ibv_qp_to_qp_ex` gave.
/// - The queue pair was created with `IBV_QP_EX_WITH_FLUSH`. This is what makes it long enough to have the slot: a library or
///   provider older than rdma-core 45 refuses the bit, and its queue pairs end before the slot.
#[inline]
#[must_use]
pub unsafe fn wr_flush_slot(qp: *mut ibv_qp_ex) -> Option<ibv_wr_flush_fn> {
    let slot = qp
        .wrapping_byte_add(WR_FLUSH_OFFSET)
        .cast::<Option<ibv_wr_flush_fn>>();
    // SAFETY: the queue pair knows the flush, so it has the slot, which is as aligned as its neighbours.
    unsafe { slot.read() }
}

/// Adds a flush of `len` bytes of remote memory: `type_` is bits of [`ibv_placement_type`](crate::ibv_placement_type),
/// `level` one of [`ibv_selectivity_level`](crate::ibv_selectivity_level).
///
/// # Safety
/// - `qp` is a live queue pair that `ibv_qp_to_qp_ex` gave.
/// - A batch is begun.
/// - The queue pair was created with `IBV_QP_EX_WITH_FLUSH`, as for [`wr_flush_slot`].
///
/// # Panics
/// When the slot is NULL.
#[inline]
#[track_caller]
pub unsafe fn ibv_wr_flush(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    len: usize,
    type_: u8,
    level: u8,
) {
    // SAFETY: the caller's promises are the same ones.
    match unsafe { wr_flush_slot(qp) } {
        // SAFETY: the caller's promises are the ones that the provider's function needs.
        Some(op) => unsafe { op(qp, rkey, remote_addr, len, type_, level) },
        None => missing("ibv_qp_ex", "wr_flush"),
    }
}
