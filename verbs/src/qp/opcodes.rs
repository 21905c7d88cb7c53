//! The operations, and which of them a queue pair offers: decided once, looked up at each post.

use rdma_core_sys as sys;

use super::state::QpType;
use crate::attributes::DeviceAttributes;
use crate::device::TransportType;
use crate::flags::open_enum;

open_enum! {
    /// What a send request does.
    #[doc(alias = "ibv_wr_opcode")]
    WrOpcode(u32) {
        /// Write into the peer's memory.
        RDMA_WRITE = sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE.0, "RDMA write";
        /// Write, and complete a receive of the peer with 4 bytes.
        RDMA_WRITE_WITH_IMM = sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM.0, "RDMA write with immediate";
        /// Send into a receive of the peer.
        SEND = sys::ibv_wr_opcode::IBV_WR_SEND.0, "send";
        /// Send with 4 bytes more.
        SEND_WITH_IMM = sys::ibv_wr_opcode::IBV_WR_SEND_WITH_IMM.0, "send with immediate";
        /// Read from the peer's memory.
        RDMA_READ = sys::ibv_wr_opcode::IBV_WR_RDMA_READ.0, "RDMA read";
        /// Swap 8 bytes of the peer's memory if they are as expected.
        ATOMIC_CMP_AND_SWP = sys::ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP.0, "compare and swap";
        /// Add to 8 bytes of the peer's memory.
        ATOMIC_FETCH_AND_ADD = sys::ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD.0, "fetch and add";
        /// Invalidate a key of this side.
        LOCAL_INV = sys::ibv_wr_opcode::IBV_WR_LOCAL_INV.0, "local invalidate";
        /// Bind a memory window.
        BIND_MW = sys::ibv_wr_opcode::IBV_WR_BIND_MW.0, "memory window bind";
        /// Send, and invalidate a key of the peer.
        SEND_WITH_INV = sys::ibv_wr_opcode::IBV_WR_SEND_WITH_INV.0, "send with invalidate";
        /// Wait until bytes are visible or persistent at the peer.
        FLUSH = sys::ibv_wr_opcode::IBV_WR_FLUSH.0, "flush";
        /// Write 8 bytes that nobody sees a part of.
        ATOMIC_WRITE = sys::ibv_wr_opcode::IBV_WR_ATOMIC_WRITE.0, "atomic write";
    }
}

impl WrOpcode {
    /// Whether it works on 8 bytes of the peer's memory.
    #[inline]
    pub(super) fn is_atomic(self) -> bool {
        matches!(self, Self::ATOMIC_CMP_AND_SWP | Self::ATOMIC_FETCH_AND_ADD)
    }

    /// Whether the data may be copied while posting.
    #[inline]
    pub(super) fn allows_inline(self) -> bool {
        matches!(
            self,
            Self::SEND
                | Self::SEND_WITH_IMM
                | Self::SEND_WITH_INV
                | Self::RDMA_WRITE
                | Self::RDMA_WRITE_WITH_IMM
        )
    }
}

/// A set of opcodes: one bit each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct OpcodeSet(u32);

const DATAGRAM: &[WrOpcode] = &[WrOpcode::SEND, WrOpcode::SEND_WITH_IMM];
const UNRELIABLE: &[WrOpcode] = &[WrOpcode::RDMA_WRITE, WrOpcode::RDMA_WRITE_WITH_IMM];
const RELIABLE: &[WrOpcode] = &[WrOpcode::RDMA_READ, WrOpcode::SEND_WITH_INV];
const ATOMIC: &[WrOpcode] = &[WrOpcode::ATOMIC_CMP_AND_SWP, WrOpcode::ATOMIC_FETCH_AND_ADD];
const KEYS: &[WrOpcode] = &[WrOpcode::LOCAL_INV, WrOpcode::BIND_MW];
/// iWARP has no immediate data.
const IWARP: &[WrOpcode] = &[
    WrOpcode::SEND,
    WrOpcode::SEND_WITH_INV,
    WrOpcode::RDMA_WRITE,
    WrOpcode::RDMA_READ,
];

impl OpcodeSet {
    /// What the transport defines for the type, as far as the device says that it has it.
    ///
    /// Providers look opcodes up in tables without a check, so nothing else may reach them.
    pub(super) fn new(
        transport: TransportType,
        qp_type: QpType,
        device: &DeviceAttributes,
    ) -> Self {
        let mut set = Self(0);
        let connected = matches!(qp_type, QpType::RC | QpType::UC);
        if transport == TransportType::IWARP {
            set = set.with_all(IWARP);
        } else {
            set = set.with_all(DATAGRAM);
            let reliable = matches!(qp_type, QpType::RC | QpType::XRC_SEND);
            if connected || reliable {
                set = set.with_all(UNRELIABLE);
            }
            if reliable {
                set = set.with_all(RELIABLE);
                if device.as_raw().atomic_cap != sys::ibv_atomic_cap::IBV_ATOMIC_NONE {
                    set = set.with_all(ATOMIC);
                }
            }
        }
        if connected && device.has_windows() {
            set = set.with_all(KEYS);
        }
        set
    }

    /// The set of just these.
    pub(super) fn of(opcodes: impl Iterator<Item = WrOpcode>) -> Self {
        opcodes.fold(Self(0), Self::with)
    }

    /// The set with these bits, one for each opcode.
    #[inline]
    pub(super) fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    #[inline]
    pub(super) fn bits(self) -> u32 {
        self.0
    }

    fn with_all(self, opcodes: &[WrOpcode]) -> Self {
        opcodes.iter().fold(self, |set, &opcode| set.with(opcode))
    }

    /// The set and this opcode, which is one with a name: their numbers are all below 32.
    #[inline]
    pub(super) fn with(self, opcode: WrOpcode) -> Self {
        Self(self.0 | 1_u32.wrapping_shl(opcode.raw()))
    }

    #[inline]
    pub(super) fn without_atomics(self) -> Self {
        let atomics = Self(0).with(WrOpcode::ATOMIC_CMP_AND_SWP);
        Self(self.0 & !atomics.with(WrOpcode::ATOMIC_FETCH_AND_ADD).0)
    }

    #[inline]
    pub(super) fn contains_all(self, others: Self) -> bool {
        others.0 & !self.0 == 0
    }

    #[inline]
    pub(super) fn contains(self, opcode: WrOpcode) -> bool {
        self.0 & bit(opcode) != 0
    }
}

/// The bit of an opcode; none for a number that no set holds.
#[inline]
fn bit(opcode: WrOpcode) -> u32 {
    1_u32.checked_shl(opcode.raw()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(windows: bool, atomics: bool) -> DeviceAttributes {
        let mut raw = sys::ibv_device_attr::default();
        if windows {
            raw.device_cap_flags = sys::ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2B.0;
        }
        if atomics {
            raw.atomic_cap = sys::ibv_atomic_cap::IBV_ATOMIC_HCA;
        }
        DeviceAttributes::from_raw(raw)
    }

    fn set(transport: TransportType, qp_type: QpType) -> Vec<u32> {
        let set = OpcodeSet::new(transport, qp_type, &device(true, true));
        (0..100)
            .filter(|&raw| set.contains(WrOpcode::from_raw(raw)))
            .collect()
    }

    #[test]
    fn each_type_offers_what_its_transport_defines() {
        let ib = TransportType::INFINIBAND;
        assert_eq!(set(ib, QpType::RC), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(set(ib, QpType::UC), [0, 1, 2, 3, 7, 8]);
        assert_eq!(set(ib, QpType::UD), [2, 3]);
        // Windows are bound to a queue pair that receives.
        assert_eq!(set(ib, QpType::XRC_SEND), [0, 1, 2, 3, 4, 5, 6, 9]);
        // No immediate data and no atomics.
        assert_eq!(set(TransportType::IWARP, QpType::RC), [0, 2, 4, 7, 8, 9]);
    }

    #[test]
    fn what_the_device_does_not_have_is_not_offered() {
        let set = OpcodeSet::new(TransportType::INFINIBAND, QpType::RC, &device(false, false));
        for opcode in ATOMIC.iter().chain(KEYS) {
            assert!(!set.contains(*opcode), "{opcode}");
        }
        let all = OpcodeSet(u32::MAX);
        assert!(
            !all.contains(WrOpcode::from_raw(32)),
            "no bit, so in no set"
        );
    }
}
