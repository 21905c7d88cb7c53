//! What an extended completion queue tells of a request: the fields that were asked for, no others.

use std::fmt;
use std::time::Duration;

use bitflags::bitflags;
use rdma_core_sys as sys;
use sys::ibv_create_cq_wc_flags as Flag;

use super::completion::{WcError, WcOpcode, WcStatus};
use crate::flags::WcFlags;
use crate::mr::RemoteKey;

bitflags! {
    /// What the completions of an [`ExtendedCompletionQueue`](super::ExtendedCompletionQueue) tell,
    /// besides number, status, opcode, flags and vendor's code, which they always tell.
    #[doc(alias = "ibv_create_cq_wc_flags")]
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct CompletionFields: u64 {
        /// Bytes received or transferred.
        const BYTE_LEN = Flag::IBV_WC_EX_WITH_BYTE_LEN.0 as u64;
        /// Immediate data, or the key that a message has invalidated.
        const IMM = Flag::IBV_WC_EX_WITH_IMM.0 as u64;
        /// This side's queue pair.
        const QP_NUM = Flag::IBV_WC_EX_WITH_QP_NUM.0 as u64;
        /// The sender's queue pair (datagrams).
        const SRC_QP = Flag::IBV_WC_EX_WITH_SRC_QP.0 as u64;
        /// The sender's local identifier (InfiniBand datagrams).
        const SLID = Flag::IBV_WC_EX_WITH_SLID.0 as u64;
        /// The service level (datagrams).
        const SL = Flag::IBV_WC_EX_WITH_SL.0 as u64;
        /// Path bits of the destination (InfiniBand datagrams).
        const DLID_PATH_BITS = Flag::IBV_WC_EX_WITH_DLID_PATH_BITS.0 as u64;
        /// When it completed, by the device's clock.
        const TIMESTAMP = Flag::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP.0 as u64;
        /// The VLAN tag that the device has removed (raw packets).
        const CVLAN = Flag::IBV_WC_EX_WITH_CVLAN.0 as u64;
        /// The tag of the flow's rule (raw packets).
        const FLOW_TAG = Flag::IBV_WC_EX_WITH_FLOW_TAG.0 as u64;
        /// Tag matching.
        const TM_INFO = Flag::IBV_WC_EX_WITH_TM_INFO.0 as u64;
        /// When it completed, by the wall clock.
        const WALLCLOCK = Flag::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK.0 as u64;
        const _ = !0;
    }
}

impl Default for CompletionFields {
    /// What every [`WorkCompletion`](crate::WorkCompletion) tells.
    #[doc(alias = "IBV_WC_STANDARD_FLAGS")]
    fn default() -> Self {
        Self::BYTE_LEN
            | Self::IMM
            | Self::QP_NUM
            | Self::SRC_QP
            | Self::SLID
            | Self::SL
            | Self::DLID_PATH_BITS
    }
}

/// One completion of an [`ExtendedCompletionQueue`](super::ExtendedCompletionQueue).
///
/// A field that the queue was not asked for is `None`. On failure only the ones that are here mean
/// anything; [`result`](Self::result) leads to the others.
#[derive(Clone, Copy)]
pub struct ExtendedCompletion {
    pub(super) wr_id: u64,
    pub(super) timestamp: u64,
    pub(super) wallclock_ns: u64,
    pub(super) fields: CompletionFields,
    pub(super) tag: sys::ibv_wc_tm_info,
    pub(super) status: sys::ibv_wc_status,
    pub(super) opcode: sys::ibv_wc_opcode,
    pub(super) vendor_err: u32,
    pub(super) flags: u32,
    pub(super) byte_len: u32,
    /// As C has it: big endian, or a key.
    pub(super) imm: u32,
    pub(super) qp_num: u32,
    pub(super) src_qp: u32,
    pub(super) slid: u32,
    pub(super) flow_tag: u32,
    pub(super) cvlan: u16,
    pub(super) sl: u8,
    pub(super) dlid_path_bits: u8,
}

impl ExtendedCompletion {
    /// The number that the request was posted with.
    #[inline]
    pub fn wr_id(&self) -> u64 {
        self.wr_id
    }

    /// How the request ended.
    #[inline]
    pub fn status(&self) -> WcStatus {
        WcStatus::from_raw(self.status.0)
    }

    /// The number of this side's queue pair, with [`CompletionFields::QP_NUM`].
    #[inline]
    pub fn qp_num(&self) -> Option<u32> {
        self.told(CompletionFields::QP_NUM, self.qp_num)
    }

    /// The vendor's code for a failure.
    pub fn vendor_err(&self) -> u32 {
        self.vendor_err
    }

    /// When it completed, in ticks of the device's clock, with [`CompletionFields::TIMESTAMP`].
    ///
    /// Of the bits those of
    /// [`completion_timestamp_mask`](crate::ExtendedAttributes::completion_timestamp_mask) count, so
    /// the value begins again at 0 after them. The clock's rate is
    /// [`hca_core_clock`](crate::ExtendedAttributes::hca_core_clock), and
    /// [`Context::raw_clock`](crate::Context::raw_clock) says what it shows now.
    #[doc(alias = "ibv_wc_read_completion_ts")]
    #[inline]
    pub fn timestamp(&self) -> Option<u64> {
        self.told(CompletionFields::TIMESTAMP, self.timestamp)
    }

    /// When it completed, as the time since 1970-01-01 UTC, with [`CompletionFields::WALLCLOCK`].
    #[doc(alias = "ibv_wc_read_completion_wallclock_ns")]
    #[inline]
    pub fn wallclock(&self) -> Option<Duration> {
        let time = Duration::from_nanos(self.wallclock_ns);
        self.told(CompletionFields::WALLCLOCK, time)
    }

    /// What was done, or why not.
    ///
    /// # Errors
    /// The status, when it is not success.
    #[inline]
    pub fn result(&self) -> Result<ExtendedSuccess<'_>, WcError> {
        if self.status() == WcStatus::SUCCESS {
            Ok(ExtendedSuccess(self))
        } else {
            Err(WcError {
                status: self.status(),
                vendor_err: self.vendor_err,
            })
        }
    }

    #[inline]
    fn told<T>(&self, field: CompletionFields, value: T) -> Option<T> {
        self.fields.contains(field).then_some(value)
    }
}

impl fmt::Debug for ExtendedCompletion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("ExtendedCompletion");
        out.field("wr_id", &self.wr_id())
            .field("status", &self.status());
        if let Ok(success) = self.result() {
            out.field("opcode", &success.opcode());
        }
        out.finish_non_exhaustive()
    }
}

/// The fields of an [`ExtendedCompletion`] that are valid on success.
#[derive(Clone, Copy)]
pub struct ExtendedSuccess<'a>(&'a ExtendedCompletion);

impl ExtendedSuccess<'_> {
    /// What kind of request it was.
    #[doc(alias = "ibv_wc_read_opcode")]
    #[inline]
    pub fn opcode(&self) -> WcOpcode {
        WcOpcode::from_raw(self.0.opcode.0)
    }

    /// Which of the other fields are valid.
    #[doc(alias = "ibv_wc_read_wc_flags")]
    #[inline]
    pub fn flags(&self) -> WcFlags {
        WcFlags::from_bits_retain(self.0.flags)
    }

    /// Bytes received (receive side), or transferred where the device says so, with
    /// [`CompletionFields::BYTE_LEN`].
    #[doc(alias = "ibv_wc_read_byte_len")]
    #[inline]
    pub fn byte_len(&self) -> Option<u32> {
        self.0.told(CompletionFields::BYTE_LEN, self.0.byte_len)
    }

    /// The immediate data in host order, if any came, with [`CompletionFields::IMM`].
    #[doc(alias = "ibv_wc_read_imm_data")]
    #[inline]
    pub fn imm(&self) -> Option<u32> {
        let imm = u32::from_be(self.0.imm);
        self.flags()
            .contains(WcFlags::WITH_IMM)
            .then_some(imm)
            .filter(|_| self.0.fields.contains(CompletionFields::IMM))
    }

    /// The key of ours that the message has invalidated, if the device says so, with
    /// [`CompletionFields::IMM`].
    #[doc(alias = "ibv_wc_read_invalidated_rkey")]
    #[inline]
    pub fn invalidated_rkey(&self) -> Option<RemoteKey> {
        self.flags()
            .contains(WcFlags::WITH_INV)
            .then_some(RemoteKey(self.0.imm))
            .filter(|_| self.0.fields.contains(CompletionFields::IMM))
    }

    /// The sender's queue pair (datagrams), with [`CompletionFields::SRC_QP`].
    #[doc(alias = "ibv_wc_read_src_qp")]
    #[inline]
    pub fn src_qp(&self) -> Option<u32> {
        self.0.told(CompletionFields::SRC_QP, self.0.src_qp)
    }

    /// The sender's local identifier (InfiniBand datagrams), with [`CompletionFields::SLID`].
    #[doc(alias = "ibv_wc_read_slid")]
    pub fn slid(&self) -> Option<u32> {
        self.0.told(CompletionFields::SLID, self.0.slid)
    }

    /// The service level (datagrams), with [`CompletionFields::SL`].
    #[doc(alias = "ibv_wc_read_sl")]
    pub fn sl(&self) -> Option<u8> {
        self.0.told(CompletionFields::SL, self.0.sl)
    }

    /// Path bits of the destination (InfiniBand datagrams), with
    /// [`CompletionFields::DLID_PATH_BITS`].
    #[doc(alias = "ibv_wc_read_dlid_path_bits")]
    pub fn dlid_path_bits(&self) -> Option<u8> {
        let bits = self.0.dlid_path_bits;
        self.0.told(CompletionFields::DLID_PATH_BITS, bits)
    }

    /// The VLAN tag that the device has removed, with [`CompletionFields::CVLAN`].
    #[doc(alias = "ibv_wc_read_cvlan")]
    pub fn cvlan(&self) -> Option<u16> {
        self.0.told(CompletionFields::CVLAN, self.0.cvlan)
    }

    /// The tag of the flow's rule, with [`CompletionFields::FLOW_TAG`].
    #[doc(alias = "ibv_wc_read_flow_tag")]
    pub fn flow_tag(&self) -> Option<u32> {
        self.0.told(CompletionFields::FLOW_TAG, self.0.flow_tag)
    }

    /// Tag and private word of a matched message, with [`CompletionFields::TM_INFO`].
    #[doc(alias = "ibv_wc_read_tm_info")]
    pub fn matched_tag(&self) -> Option<(u64, u32)> {
        let tag = (self.0.tag.tag, self.0.tag.priv_);
        self.0.told(CompletionFields::TM_INFO, tag)
    }
}

impl fmt::Debug for ExtendedSuccess<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExtendedSuccess")
            .field("opcode", &self.opcode())
            .field("byte_len", &self.byte_len())
            .field("imm", &self.imm())
            .finish_non_exhaustive()
    }
}
