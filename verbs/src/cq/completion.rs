//! What became of a request.

use std::fmt;

use rdma_core_sys as sys;

use crate::flags::{WcFlags, open_enum};
use crate::mr::RemoteKey;

open_enum! {
    /// How a request ended.
    #[doc(alias = "ibv_wc_status")]
    WcStatus(u32) {
        /// Done.
        SUCCESS = 0, "success";
        /// The local buffer is too small for the message, or a message is too long.
        LOC_LEN_ERR = 1, "local length error";
        /// The queue pair cannot do this.
        LOC_QP_OP_ERR = 2, "local queue pair operation error";
        /// End-to-end context.
        LOC_EEC_OP_ERR = 3, "local EE context operation error";
        /// The local key does not allow this access to that range.
        LOC_PROT_ERR = 4, "local protection error";
        /// Dropped because the queue pair is in the error state.
        WR_FLUSH_ERR = 5, "flushed: the connection has ended";
        /// A memory window could not be bound.
        MW_BIND_ERR = 6, "memory window bind error";
        /// The peer sent something unexpected.
        BAD_RESP_ERR = 7, "bad response";
        /// The local buffer of a write with immediate.
        LOC_ACCESS_ERR = 8, "local access error";
        /// The peer refuses the request as such: too long, or reads not allowed.
        REM_INV_REQ_ERR = 9, "remote invalid request";
        /// The remote key does not allow this access to that range.
        REM_ACCESS_ERR = 10, "remote access error";
        /// The peer could not complete the request.
        REM_OP_ERR = 11, "remote operation error";
        /// The peer does not answer.
        RETRY_EXC_ERR = 12, "retries exceeded: the peer does not answer";
        /// The peer has no receive posted.
        RNR_RETRY_EXC_ERR = 13, "receiver-not-ready retries exceeded: the peer posts no receive";
        /// Reliable datagram.
        LOC_RDD_VIOL_ERR = 14, "local RDD violation";
        /// Reliable datagram.
        REM_INV_RD_REQ_ERR = 15, "remote invalid RD request";
        /// The request was aborted.
        REM_ABORT_ERR = 16, "remote abort";
        /// End-to-end context.
        INV_EECN_ERR = 17, "invalid EE context number";
        /// End-to-end context.
        INV_EEC_STATE_ERR = 18, "invalid EE context state";
        /// The device has failed.
        FATAL_ERR = 19, "fatal error";
        /// The response took too long.
        RESP_TIMEOUT_ERR = 20, "response timeout";
        /// Any other failure.
        GENERAL_ERR = 21, "general error";
        /// Tag matching.
        TM_ERR = 22, "tag matching error";
        /// Tag matching.
        TM_RNDV_INCOMPLETE = 23, "tag matching rendezvous incomplete";
    }
}

open_enum! {
    /// What kind of request completed. Bit 7 marks the receive side.
    #[doc(alias = "ibv_wc_opcode")]
    WcOpcode(u32) {
        /// A send.
        SEND = 0, "send";
        /// An RDMA write.
        RDMA_WRITE = 1, "RDMA write";
        /// An RDMA read.
        RDMA_READ = 2, "RDMA read";
        /// A compare-and-swap.
        COMP_SWAP = 3, "compare and swap";
        /// A fetch-and-add.
        FETCH_ADD = 4, "fetch and add";
        /// A bind of a memory window.
        BIND_MW = 5, "memory window bind";
        /// An invalidation of a local key.
        LOCAL_INV = 6, "local invalidate";
        /// A large send split by the device.
        TSO = 7, "TSO";
        /// A flush.
        FLUSH = 8, "flush";
        /// An atomic write.
        ATOMIC_WRITE = 9, "atomic write";
        /// A message received.
        RECV = 128, "receive";
        /// A write with immediate received.
        RECV_RDMA_WITH_IMM = 129, "receive of an RDMA write with immediate";
    }
}

/// One completion: `ibv_wc`, field for field.
///
/// On failure only [`wr_id`](Self::wr_id), [`status`](Self::status), [`qp_num`](Self::qp_num) and
/// [`vendor_err`](Self::vendor_err) mean anything; [`result`](Self::result) keeps it that way.
#[doc(alias = "ibv_wc")]
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct WorkCompletion(sys::ibv_wc);

impl WorkCompletion {
    /// The number that the request was posted with.
    #[inline]
    pub fn wr_id(&self) -> u64 {
        self.0.wr_id
    }

    /// How the request ended.
    #[inline]
    pub fn status(&self) -> WcStatus {
        WcStatus::from_raw(self.0.status.0)
    }

    /// The number of this side's queue pair.
    #[inline]
    pub fn qp_num(&self) -> u32 {
        self.0.qp_num
    }

    /// The vendor's code for a failure.
    pub fn vendor_err(&self) -> u32 {
        self.0.vendor_err
    }

    /// What was done, or why not.
    ///
    /// # Errors
    /// The status, when it is not success.
    #[inline]
    pub fn result(&self) -> Result<WcSuccess<'_>, WcError> {
        if self.status() == WcStatus::SUCCESS {
            Ok(WcSuccess(&self.0))
        } else {
            Err(WcError {
                status: self.status(),
                vendor_err: self.0.vendor_err,
            })
        }
    }

    /// The C struct.
    pub fn as_raw(&self) -> &sys::ibv_wc {
        &self.0
    }
}

impl From<sys::ibv_wc> for WorkCompletion {
    fn from(raw: sys::ibv_wc) -> Self {
        Self(raw)
    }
}

impl fmt::Debug for WorkCompletion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("WorkCompletion");
        out.field("wr_id", &self.wr_id())
            .field("status", &self.status());
        if let Ok(success) = self.result() {
            out.field("opcode", &success.opcode());
        }
        out.finish_non_exhaustive()
    }
}

/// The fields of a completion that are valid on success.
#[derive(Clone, Copy)]
pub struct WcSuccess<'a>(&'a sys::ibv_wc);

impl WcSuccess<'_> {
    /// What kind of request it was.
    #[inline]
    pub fn opcode(&self) -> WcOpcode {
        WcOpcode::from_raw(self.0.opcode.0)
    }

    /// Bytes received (receive side), or transferred where the device says so.
    #[inline]
    pub fn byte_len(&self) -> u32 {
        self.0.byte_len
    }

    /// Which of the other fields are valid.
    #[inline]
    pub fn flags(&self) -> WcFlags {
        WcFlags::from_bits_retain(self.0.wc_flags)
    }

    /// The immediate data in host order, if any came.
    #[inline]
    pub fn imm(&self) -> Option<u32> {
        self.flags().contains(WcFlags::WITH_IMM).then(|| {
            // SAFETY: the union is four bytes under either name, and C filled it: the flag says so.
            u32::from_be(unsafe { self.0.__bindgen_anon_1.imm_data })
        })
    }
}

impl WcSuccess<'_> {
    /// The key of ours that the message has invalidated, if the device says so (SoftRoCE does not).
    #[inline]
    pub fn invalidated_rkey(&self) -> Option<RemoteKey> {
        // SAFETY: the union is four bytes under either name, of integers for which any bits are a value.
        let key = RemoteKey(unsafe { self.0.__bindgen_anon_1.invalidated_rkey });
        self.flags().contains(WcFlags::WITH_INV).then_some(key)
    }

    /// The sender's queue pair (UD receives).
    #[inline]
    pub fn src_qp(&self) -> u32 {
        self.0.src_qp
    }

    /// The C struct.
    pub fn as_raw(&self) -> &sys::ibv_wc {
        self.0
    }
}

impl fmt::Debug for WcSuccess<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WcSuccess")
            .field("opcode", &self.opcode())
            .field("byte_len", &self.byte_len())
            .field("imm", &self.imm())
            .finish()
    }
}

/// Why a request failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[error("{status}")]
pub struct WcError {
    /// The status of the completion.
    pub status: WcStatus,
    /// The vendor's code, 0 where there is none.
    pub vendor_err: u32,
}

impl WcError {
    /// Whether the request was only dropped, because the queue pair had failed or been closed.
    pub fn is_flushed(&self) -> bool {
        self.status == WcStatus::WR_FLUSH_ERR
    }
}

#[cfg(test)]
mod tests {
    use std::mem::MaybeUninit;

    use super::*;

    fn completion(status: u32) -> WorkCompletion {
        // SAFETY: ibv_wc holds only integers, for which zero is a value.
        let mut raw: sys::ibv_wc = unsafe { MaybeUninit::zeroed().assume_init() };
        raw.status = sys::ibv_wc_status(status);
        raw.wr_id = 7;
        raw.__bindgen_anon_1.imm_data = 0x0102_0304_u32.to_be();
        raw.wc_flags = WcFlags::WITH_IMM.bits();
        WorkCompletion(raw)
    }

    #[test]
    fn every_status_and_opcode_is_data() {
        for raw in (0..=255).chain([u32::MAX]) {
            let wc = completion(raw);
            assert_eq!(wc.result().is_ok(), raw == 0);
            assert_eq!(wc.status().name().is_some(), raw <= 23, "{:?}", wc.status());
            let known = raw <= 9 || raw == 128 || raw == 129;
            assert_eq!(WcOpcode::from_raw(raw).name().is_some(), known);
        }
    }

    #[test]
    fn the_statuses_have_the_numbers_of_the_headers() {
        let pairs = [
            (
                WcStatus::LOC_PROT_ERR,
                sys::ibv_wc_status::IBV_WC_LOC_PROT_ERR,
            ),
            (
                WcStatus::WR_FLUSH_ERR,
                sys::ibv_wc_status::IBV_WC_WR_FLUSH_ERR,
            ),
            (
                WcStatus::REM_ACCESS_ERR,
                sys::ibv_wc_status::IBV_WC_REM_ACCESS_ERR,
            ),
            (
                WcStatus::RETRY_EXC_ERR,
                sys::ibv_wc_status::IBV_WC_RETRY_EXC_ERR,
            ),
            (
                WcStatus::RNR_RETRY_EXC_ERR,
                sys::ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR,
            ),
            (
                WcStatus::GENERAL_ERR,
                sys::ibv_wc_status::IBV_WC_GENERAL_ERR,
            ),
        ];
        for (ours, theirs) in pairs {
            assert_eq!(ours.raw(), theirs.0);
        }
        assert_eq!(WcOpcode::RECV.raw(), sys::ibv_wc_opcode::IBV_WC_RECV.0);
        assert_eq!(
            WcOpcode::RDMA_READ.raw(),
            sys::ibv_wc_opcode::IBV_WC_RDMA_READ.0
        );
    }

    #[test]
    fn immediate_data_comes_in_host_order() {
        assert_eq!(
            completion(0).result().expect("success").imm(),
            Some(0x0102_0304)
        );
    }

    #[test]
    fn a_flushed_request_says_so() {
        let error = completion(5).result().expect_err("flushed");
        assert!(error.is_flushed());
        assert_eq!(error.to_string(), "flushed: the connection has ended (5)");
    }
}
