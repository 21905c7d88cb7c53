//! Operations that an extended queue pair is made for, and how a flush is told what to do.

use bitflags::bitflags;
use rdma_core_sys as sys;
use sys::ibv_qp_create_send_ops_flags as Op;

use super::opcodes::WrOpcode;
use crate::flags::open_enum;

bitflags! {
    /// Operations that an [`ExtendedQueuePair`](super::ExtendedQueuePair) can post.
    #[doc(alias = "ibv_qp_create_send_ops_flags")]
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct SendOps: u64 {
        /// [`Batch::write`](super::Batch::write).
        const RDMA_WRITE = Op::IBV_QP_EX_WITH_RDMA_WRITE.0 as u64;
        /// [`Batch::write_with_imm`](super::Batch::write_with_imm).
        const RDMA_WRITE_WITH_IMM = Op::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM.0 as u64;
        /// [`Batch::send`](super::Batch::send).
        const SEND = Op::IBV_QP_EX_WITH_SEND.0 as u64;
        /// [`Batch::send_with_imm`](super::Batch::send_with_imm).
        const SEND_WITH_IMM = Op::IBV_QP_EX_WITH_SEND_WITH_IMM.0 as u64;
        /// [`Batch::read`](super::Batch::read).
        const RDMA_READ = Op::IBV_QP_EX_WITH_RDMA_READ.0 as u64;
        /// [`Batch::compare_and_swap`](super::Batch::compare_and_swap).
        const ATOMIC_CMP_AND_SWP = Op::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP.0 as u64;
        /// [`Batch::fetch_and_add`](super::Batch::fetch_and_add).
        const ATOMIC_FETCH_AND_ADD = Op::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD.0 as u64;
        /// [`Batch::local_invalidate`](super::Batch::local_invalidate).
        const LOCAL_INV = Op::IBV_QP_EX_WITH_LOCAL_INV.0 as u64;
        /// [`Batch::bind`](super::Batch::bind).
        const BIND_MW = Op::IBV_QP_EX_WITH_BIND_MW.0 as u64;
        /// [`Batch::send_with_invalidate`](super::Batch::send_with_invalidate).
        const SEND_WITH_INV = Op::IBV_QP_EX_WITH_SEND_WITH_INV.0 as u64;
        /// [`Batch::flush`](super::Batch::flush): rdma-core 45, and a device with
        /// [`DeviceCapFlags::FLUSH_GLOBAL`](crate::DeviceCapFlags::FLUSH_GLOBAL) or
        /// [`FLUSH_PERSISTENT`](crate::DeviceCapFlags::FLUSH_PERSISTENT).
        const FLUSH = Op::IBV_QP_EX_WITH_FLUSH.0 as u64;
        /// [`Batch::atomic_write`](super::Batch::atomic_write): a device with
        /// [`DeviceCapFlags::ATOMIC_WRITE`](crate::DeviceCapFlags::ATOMIC_WRITE).
        const ATOMIC_WRITE = Op::IBV_QP_EX_WITH_ATOMIC_WRITE.0 as u64;
        const _ = !0;
    }
}

impl SendOps {
    /// The opcode of each operation.
    pub(super) const OPCODES: [(Self, WrOpcode); 12] = [
        (Self::RDMA_WRITE, WrOpcode::RDMA_WRITE),
        (Self::RDMA_WRITE_WITH_IMM, WrOpcode::RDMA_WRITE_WITH_IMM),
        (Self::SEND, WrOpcode::SEND),
        (Self::SEND_WITH_IMM, WrOpcode::SEND_WITH_IMM),
        (Self::RDMA_READ, WrOpcode::RDMA_READ),
        (Self::ATOMIC_CMP_AND_SWP, WrOpcode::ATOMIC_CMP_AND_SWP),
        (Self::ATOMIC_FETCH_AND_ADD, WrOpcode::ATOMIC_FETCH_AND_ADD),
        (Self::LOCAL_INV, WrOpcode::LOCAL_INV),
        (Self::BIND_MW, WrOpcode::BIND_MW),
        (Self::SEND_WITH_INV, WrOpcode::SEND_WITH_INV),
        (Self::FLUSH, WrOpcode::FLUSH),
        (Self::ATOMIC_WRITE, WrOpcode::ATOMIC_WRITE),
    ];

    /// Those that no classic post has: they are there when the device says so.
    pub(super) const NATIVE: Self = Self::FLUSH.union(Self::ATOMIC_WRITE);
}

open_enum! {
    /// Where flushed bytes have to be.
    #[doc(alias = "ibv_placement_type")]
    FlushPlacement(u8) {
        /// Where all of the target sees them: its processors and other devices.
        GLOBAL = sys::ibv_placement_type::IBV_FLUSH_GLOBAL.0.to_le_bytes()[0], "global visibility";
        /// Where they are safe from a loss of power; the target's memory must be persistent.
        PERSISTENT = sys::ibv_placement_type::IBV_FLUSH_PERSISTENT.0.to_le_bytes()[0], "persistence";
        /// Both.
        GLOBAL_AND_PERSISTENT = Self::GLOBAL.0 | Self::PERSISTENT.0, "global visibility and persistence";
    }
}

open_enum! {
    /// How much a flush covers.
    #[doc(alias = "ibv_selectivity_level")]
    FlushLevel(u8) {
        /// The range told.
        RANGE = sys::ibv_selectivity_level::IBV_FLUSH_RANGE.0.to_le_bytes()[0], "range";
        /// The whole region that the key is of; address and length do not matter.
        REGION = sys::ibv_selectivity_level::IBV_FLUSH_MR.0.to_le_bytes()[0], "region";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_operation_has_one_bit_and_one_opcode() {
        let mut ops = SendOps::empty();
        let mut opcodes = Vec::new();
        for (op, opcode) in SendOps::OPCODES {
            assert_eq!(op.bits().count_ones(), 1);
            assert!(!ops.intersects(op) && !opcodes.contains(&opcode));
            ops |= op;
            opcodes.push(opcode);
        }
        // All of C's but the segmented send, bit 10.
        assert_eq!(ops.bits(), 0x1fff & !(1 << 10));
    }
}
