//! Queue pair states and the attributes that a transition sets.

use std::fmt;
use std::mem::MaybeUninit;

use rdma_core_sys as sys;

use super::transition::PathMtu;
use crate::ah::Address;
use crate::flags::{AccessFlags, open_enum};

open_enum! {
    /// The state of a queue pair.
    #[doc(alias = "ibv_qp_state")]
    QpState(u32) {
        /// Just made; takes no requests.
        RESET = sys::ibv_qp_state::IBV_QPS_RESET.0, "RESET";
        /// Takes receives.
        INIT = sys::ibv_qp_state::IBV_QPS_INIT.0, "INIT";
        /// Ready to receive.
        RTR = sys::ibv_qp_state::IBV_QPS_RTR.0, "RTR";
        /// Ready to send as well.
        RTS = sys::ibv_qp_state::IBV_QPS_RTS.0, "RTS";
        /// The send queue is draining.
        SQD = sys::ibv_qp_state::IBV_QPS_SQD.0, "SQD";
        /// The send queue has failed (UC and UD).
        SQE = sys::ibv_qp_state::IBV_QPS_SQE.0, "SQE";
        /// Failed or closed: everything posted is flushed.
        ERR = sys::ibv_qp_state::IBV_QPS_ERR.0, "ERR";
    }
}

open_enum! {
    /// The transport of a queue pair.
    #[doc(alias = "ibv_qp_type")]
    QpType(u32) {
        /// Reliable connection.
        RC = sys::ibv_qp_type::IBV_QPT_RC.0, "RC";
        /// Unreliable connection.
        UC = sys::ibv_qp_type::IBV_QPT_UC.0, "UC";
        /// Unreliable datagram.
        UD = sys::ibv_qp_type::IBV_QPT_UD.0, "UD";
        /// The sending end of an extended reliable connection.
        #[doc(alias = "XRC_INI")]
        XRC_SEND = sys::ibv_qp_type::IBV_QPT_XRC_SEND.0, "XRC_SEND";
        /// The receiving end of an extended reliable connection.
        #[doc(alias = "XRC_TGT")]
        XRC_RECV = sys::ibv_qp_type::IBV_QPT_XRC_RECV.0, "XRC_RECV";
    }
}

/// Attributes to set in one [`QueuePair::modify`](super::QueuePair::modify), with the mask that
/// names them: each setter sets both.
///
/// The kernel checks that a transition gets just the attributes it needs.
#[doc(alias = "ibv_qp_attr")]
#[derive(Clone, Copy)]
pub struct QpAttributes {
    raw: sys::ibv_qp_attr,
    mask: i32,
}

impl QpAttributes {
    /// No attribute at all.
    pub fn new() -> Self {
        Self {
            // SAFETY: the struct holds only integers and byte arrays, for which zero is a value.
            raw: unsafe { MaybeUninit::zeroed().assume_init() },
            mask: 0,
        }
    }

    /// Attributes as C has them, for example from `rdma_init_qp_attr`, with the `ibv_qp_attr_mask`
    /// bits that say which are set.
    pub fn from_raw(raw: sys::ibv_qp_attr, mask: i32) -> Self {
        Self { raw, mask }
    }

    pub(super) fn set(&mut self, bit: sys::ibv_qp_attr_mask) -> &mut sys::ibv_qp_attr {
        self.mask |= bit.0.cast_signed();
        &mut self.raw
    }

    fn has(&self, bit: sys::ibv_qp_attr_mask) -> bool {
        self.mask & bit.0.cast_signed() != 0
    }

    /// The state to go to.
    pub fn set_state(&mut self, state: QpState) -> &mut Self {
        self.set(sys::ibv_qp_attr_mask::IBV_QP_STATE).qp_state = sys::ibv_qp_state(state.raw());
        self
    }

    /// The state to go to, if it is among the attributes.
    pub fn state(&self) -> Option<QpState> {
        self.has(sys::ibv_qp_attr_mask::IBV_QP_STATE)
            .then(|| QpState::from_raw(self.raw.qp_state.0))
    }

    /// Reads and atomics in flight as initiator, at most `max`; only where the attribute is set.
    pub fn clamp_max_rd_atomic(&mut self, max: u8) -> &mut Self {
        if self.has(sys::ibv_qp_attr_mask::IBV_QP_MAX_QP_RD_ATOMIC) {
            self.raw.max_rd_atomic = self.raw.max_rd_atomic.min(max);
        }
        self
    }

    /// What the peer may do.
    pub fn set_access(&mut self, access: AccessFlags) -> &mut Self {
        self.set(sys::ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS)
            .qp_access_flags = access.bits();
        self
    }

    /// Reads and atomics in flight as target, at most `max`; only where the attribute is set.
    pub fn clamp_max_dest_rd_atomic(&mut self, max: u8) -> &mut Self {
        if self.has(sys::ibv_qp_attr_mask::IBV_QP_MAX_DEST_RD_ATOMIC) {
            self.raw.max_dest_rd_atomic = self.raw.max_dest_rd_atomic.min(max);
        }
        self
    }

    /// Reads and atomics in flight as target.
    pub fn max_dest_rd_atomic(&self) -> u8 {
        self.raw.max_dest_rd_atomic
    }

    /// Reads and atomics in flight as initiator.
    pub fn max_rd_atomic(&self) -> u8 {
        self.raw.max_rd_atomic
    }

    /// How long a peer waits before it sends again to a receiver that was not ready: a 5-bit code
    /// of the specification (12 is 0.64 ms, 0 is 655.36 ms).
    pub fn set_min_rnr_timer(&mut self, code: u8) -> &mut Self {
        self.set(sys::ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER)
            .min_rnr_timer = code;
        self
    }

    /// How long an acknowledgement is waited for: 4.096 µs · 2^`exponent`, 0 for ever.
    pub fn set_timeout(&mut self, exponent: u8) -> &mut Self {
        self.set(sys::ibv_qp_attr_mask::IBV_QP_TIMEOUT).timeout = exponent;
        self
    }

    /// How often an unacknowledged request is sent again, 0 to 7.
    pub fn set_retry_count(&mut self, count: u8) -> &mut Self {
        self.set(sys::ibv_qp_attr_mask::IBV_QP_RETRY_CNT).retry_cnt = count;
        self
    }

    /// How often a request is sent again to a receiver that is not ready, 0 to 6, or 7 for ever.
    pub fn set_rnr_retry(&mut self, count: u8) -> &mut Self {
        self.set(sys::ibv_qp_attr_mask::IBV_QP_RNR_RETRY).rnr_retry = count;
        self
    }

    /// The path to the peer.
    pub fn address(&self) -> Address {
        Address::from_raw(&self.raw.ah_attr)
    }

    /// The largest payload of a packet.
    pub fn path_mtu(&self) -> PathMtu {
        PathMtu::from_raw(self.raw.path_mtu.0)
    }

    /// The number of the peer's queue pair.
    pub fn dest_qp_number(&self) -> u32 {
        self.raw.dest_qp_num
    }

    /// The number of the next packet expected.
    pub fn rq_psn(&self) -> u32 {
        self.raw.rq_psn
    }

    /// The number of the next packet sent.
    pub fn sq_psn(&self) -> u32 {
        self.raw.sq_psn
    }

    /// What the peer may do.
    pub fn access(&self) -> AccessFlags {
        AccessFlags::from_bits_retain(self.raw.qp_access_flags)
    }

    /// The port of the device.
    pub fn port(&self) -> u8 {
        self.raw.port_num
    }

    /// The key that datagrams must carry.
    pub fn qkey(&self) -> u32 {
        self.raw.qkey
    }

    /// Whether the send queue has not drained yet, after it was told to.
    pub fn is_draining(&self) -> bool {
        self.raw.sq_draining != 0
    }

    /// The C struct and its mask.
    pub fn as_raw(&self) -> (&sys::ibv_qp_attr, i32) {
        (&self.raw, self.mask)
    }
}

impl Default for QpAttributes {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for QpAttributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QpAttributes")
            .field("state", &self.state())
            .field("mask", &format_args!("{:#x}", self.mask))
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_and_type_is_data() {
        for raw in (0..=255).chain([u32::MAX]) {
            assert_eq!(QpState::from_raw(raw).name().is_some(), raw <= 6);
            assert_eq!(
                QpType::from_raw(raw).name().is_some(),
                matches!(raw, 2..=4 | 9 | 10)
            );
        }
    }

    #[test]
    fn a_peers_offer_is_clamped_and_only_where_it_was_made() {
        let mut raw = *QpAttributes::new().as_raw().0;
        (raw.max_rd_atomic, raw.max_dest_rd_atomic) = (255, 255);
        let mask = sys::ibv_qp_attr_mask::IBV_QP_MAX_DEST_RD_ATOMIC
            .0
            .cast_signed();
        let mut attributes = QpAttributes::from_raw(raw, mask);
        attributes
            .clamp_max_rd_atomic(128)
            .clamp_max_dest_rd_atomic(128);
        assert_eq!(attributes.max_dest_rd_atomic(), 128);
        assert_eq!(attributes.max_rd_atomic(), 255, "not among the attributes");
        assert_eq!(attributes.as_raw().1, mask);
    }
}
