//! Extended completion queues: creation, the start–next–end way of polling, and the readers of the current completion.

use core::ffi::{c_int, c_uint};

use libc::EOPNOTSUPP;

use crate::bindings::{
    __be32, ibv_context, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_modify_cq_attr,
    ibv_poll_cq_attr, ibv_wc_opcode, ibv_wc_tm_info,
};
use crate::inline::missing;

extended_ops! {
    /// Creates an extended completion queue.
    ///
    /// Returns NULL and sets errno on failure.
    ///
    /// # Safety
    /// - `context` is an open context.
    /// - `cq_attr` points to a struct filled as its `comp_mask` says; its channel is NULL or a live one of the same context.
    fn ibv_create_cq_ex(context: *mut ibv_context, cq_attr: *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex
        = create_cq_ex of context else null_unsupported;

    /// Changes the attributes of a completion queue, such as moderation.
    ///
    /// Returns 0 or an errno value.
    ///
    /// # Safety
    /// - `cq` is a live completion queue.
    /// - `attr` points to a struct filled as its `attr_mask` says.
    fn ibv_modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int
        = modify_cq of cq.context else unsupported;
}

/// The same queue under its plain type: an extended completion queue begins with a plain one.
#[inline]
#[must_use]
pub const fn ibv_cq_ex_to_cq(cq: *mut ibv_cq_ex) -> *mut ibv_cq {
    cq.cast()
}

/// Begins a batch of completions at the first one.
///
/// Returns 0 when there is a completion; then `status` and `wr_id` of the queue and the readers tell about it, and the batch
/// must be ended with [`ibv_end_poll`]. Returns `ENOENT` when the queue is empty, or another errno value; then there is no
/// batch and nothing to end.
///
/// # Safety
/// - `cq` is a live extended completion queue with no batch begun.
/// - `attr` points to a filled struct.
#[inline]
pub unsafe fn ibv_start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: the completion queue is live.
    match unsafe { (*cq).start_poll } {
        // SAFETY: the caller's promises are the ones that the provider's function needs.
        Some(start) => unsafe { start(cq, attr) },
        None => EOPNOTSUPP,
    }
}

/// Moves on to the next completion of the batch.
///
/// Returns 0 when there is one, `ENOENT` when there is none, or another errno value; in each case the batch must still be
/// ended. (The rxe provider before rdma-core 59 does not survive `ENOENT` followed by the end: there, begin and end a batch
/// for each completion.)
///
/// # Safety
/// - `cq` is a live extended completion queue with a batch begun.
#[inline]
pub unsafe fn ibv_next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the completion queue is live.
    match unsafe { (*cq).next_poll } {
        // SAFETY: the caller's promise is the one that the provider's function needs.
        Some(next) => unsafe { next(cq) },
        None => EOPNOTSUPP,
    }
}

/// Ends the batch.
///
/// # Safety
/// - `cq` is a live extended completion queue with a batch begun.
///
/// # Panics
/// When the queue has no such function.
#[inline]
pub unsafe fn ibv_end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: the completion queue is live.
    match unsafe { (*cq).end_poll } {
        // SAFETY: the caller's promise is the one that the provider's function needs.
        Some(end) => unsafe { end(cq) },
        None => missing("ibv_cq_ex", "end_poll"),
    }
}

/// Readers of the current completion: each passes the queue, and what else it takes, on to a slot of the queue.
macro_rules! readers {
    ($(
        #[doc = $what:literal]
        fn $name:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)? = $slot:ident, asked for by $flag:literal;
    )*) => {$(
        #[doc = $what]
        ///
        /// # Safety
        /// - `cq` is a live extended completion queue with a batch begun, at a completion.
        $(#[doc = concat!("- `", stringify!($arg), "` is valid for a write.")])*
        ///
        /// # Panics
        #[doc = concat!("When the queue has no such reader: it is there ", $flag, ".")]
        #[inline]
        #[track_caller]
        pub unsafe fn $name(cq: *mut ibv_cq_ex $(, $arg: $ty)*) $(-> $ret)? {
            // SAFETY: the completion queue is live.
            match unsafe { (*cq).$slot } {
                // SAFETY: the caller's promises are the ones that the provider's function needs.
                Some(read) => unsafe { read(cq $(, $arg)*) },
                None => missing("ibv_cq_ex", stringify!($slot)),
            }
        }
    )*};
}

readers! {
    /// What kind of request has completed.
    fn ibv_wc_read_opcode() -> ibv_wc_opcode = read_opcode, asked for by "always";
    /// The provider's own error number.
    fn ibv_wc_read_vendor_err() -> u32 = read_vendor_err, asked for by "always";
    /// How many bytes were transferred.
    fn ibv_wc_read_byte_len() -> u32
        = read_byte_len, asked for by "when created with `IBV_WC_EX_WITH_BYTE_LEN`";
    /// The immediate data, big endian.
    fn ibv_wc_read_imm_data() -> __be32
        = read_imm_data, asked for by "when created with `IBV_WC_EX_WITH_IMM`";
    /// The key that the peer invalidated.
    fn ibv_wc_read_invalidated_rkey() -> u32
        = read_imm_data, asked for by "when created with `IBV_WC_EX_WITH_IMM`";
    /// The number of the local queue pair.
    fn ibv_wc_read_qp_num() -> u32
        = read_qp_num, asked for by "when created with `IBV_WC_EX_WITH_QP_NUM`";
    /// The number of the sender's queue pair (datagrams).
    fn ibv_wc_read_src_qp() -> u32
        = read_src_qp, asked for by "when created with `IBV_WC_EX_WITH_SRC_QP`";
    /// Bits of [`ibv_wc_flags`](crate::ibv_wc_flags).
    fn ibv_wc_read_wc_flags() -> c_uint = read_wc_flags, asked for by "always";
    /// The sender's local identifier (datagrams).
    fn ibv_wc_read_slid() -> u32
        = read_slid, asked for by "when created with `IBV_WC_EX_WITH_SLID`";
    /// The service level (datagrams).
    fn ibv_wc_read_sl() -> u8
        = read_sl, asked for by "when created with `IBV_WC_EX_WITH_SL`";
    /// The path bits of the destination (datagrams).
    fn ibv_wc_read_dlid_path_bits() -> u8
        = read_dlid_path_bits, asked for by "when created with `IBV_WC_EX_WITH_DLID_PATH_BITS`";
    /// When the request completed, in ticks of the device's clock.
    fn ibv_wc_read_completion_ts() -> u64
        = read_completion_ts, asked for by "when created with `IBV_WC_EX_WITH_COMPLETION_TIMESTAMP`";
    /// When the request completed, in nanoseconds of the wall clock.
    fn ibv_wc_read_completion_wallclock_ns() -> u64
        = read_completion_wallclock_ns, asked for by "when created with `IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK`";
    /// The VLAN tag that was stripped.
    fn ibv_wc_read_cvlan() -> u16
        = read_cvlan, asked for by "when created with `IBV_WC_EX_WITH_CVLAN`";
    /// The tag that a flow's rule gave the packet.
    fn ibv_wc_read_flow_tag() -> u32
        = read_flow_tag, asked for by "when created with `IBV_WC_EX_WITH_FLOW_TAG`";
    /// The tag matching information.
    fn ibv_wc_read_tm_info(tm_info: *mut ibv_wc_tm_info)
        = read_tm_info, asked for by "when created with `IBV_WC_EX_WITH_TM_INFO`";
}
