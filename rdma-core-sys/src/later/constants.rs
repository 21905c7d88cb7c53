//! Constants of later releases, each with the release that first has it where that is known.

use core::ffi::c_uint;

use crate::bindings::{
    ibv_access_flags, ibv_event_type, ibv_odp_transport_cap_bits, ibv_parent_domain_init_attr_mask,
    ibv_port_cap_flags2, ibv_qp_create_send_ops_flags, ibv_wc_opcode, ibv_wr_opcode,
    rdma_cm_event_type,
};

/// Newtypes over C enums, as the generator makes them.
macro_rules! enums {
    ($($(#[$doc:meta])* pub struct $name:ident;)*) => {$(
        $(#[$doc])*
        #[repr(transparent)]
        #[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
        pub struct $name(pub c_uint);
    )*};
}

/// The bit operators for those whose constants are bits.
macro_rules! bits {
    ($($name:ident)*) => {$(
        impl core::ops::BitOr for $name {
            type Output = Self;

            #[inline]
            fn bitor(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }
        }

        impl core::ops::BitOrAssign for $name {
            #[inline]
            fn bitor_assign(&mut self, other: Self) {
                self.0 |= other.0;
            }
        }

        impl core::ops::BitAnd for $name {
            type Output = Self;

            #[inline]
            fn bitand(self, other: Self) -> Self {
                Self(self.0 & other.0)
            }
        }

        impl core::ops::BitAndAssign for $name {
            #[inline]
            fn bitand_assign(&mut self, other: Self) {
                self.0 &= other.0;
            }
        }
    )*};
}

enums! {
    /// Where flushed bytes have to be (rdma-core 45).
    pub struct ibv_placement_type;
    /// How much a flush covers (rdma-core 45).
    pub struct ibv_selectivity_level;
    /// How `ibv_query_qp_data_in_order` is to answer (rdma-core 46).
    pub struct ibv_query_qp_data_in_order_flags;
    /// What `ibv_query_qp_data_in_order` answers when asked for capabilities (rdma-core 46).
    pub struct ibv_query_qp_data_in_order_caps;
    /// Which fields of [`ibv_mr_init_attr`](crate::ibv_mr_init_attr) count (rdma-core 59).
    pub struct ibv_mr_init_attr_mask;
    /// Which fields of [`ibv_dmah_init_attr`](crate::ibv_dmah_init_attr) count (rdma-core 59).
    pub struct ibv_dmah_init_attr_mask;
    /// What kind of memory steered writes go to (rdma-core 59).
    pub struct ibv_tph_mem_type;
    /// What a completion counter counts (rdma-core 65).
    pub struct ibv_comp_cntr_type;
    /// The operations that a completion counter counts (rdma-core 65).
    pub struct ibv_qp_attach_comp_cntr_op;
}

bits! {
    ibv_placement_type
    ibv_query_qp_data_in_order_flags
    ibv_query_qp_data_in_order_caps
    ibv_mr_init_attr_mask
    ibv_dmah_init_attr_mask
    ibv_qp_attach_comp_cntr_op
}

impl ibv_placement_type {
    /// Visible to all of the target.
    pub const IBV_FLUSH_GLOBAL: Self = Self(1 << 0);
    /// Safe from a loss of power.
    pub const IBV_FLUSH_PERSISTENT: Self = Self(1 << 1);
}

impl ibv_selectivity_level {
    /// The range told.
    pub const IBV_FLUSH_RANGE: Self = Self(0);
    /// The whole region.
    pub const IBV_FLUSH_MR: Self = Self(1);
}

impl ibv_access_flags {
    /// The region may be flushed to global visibility (rdma-core 45).
    pub const IBV_ACCESS_FLUSH_GLOBAL: Self = Self(1 << 8);
    /// The region may be flushed to persistence (rdma-core 45).
    pub const IBV_ACCESS_FLUSH_PERSISTENT: Self = Self(1 << 9);
}

impl ibv_qp_create_send_ops_flags {
    /// Asks for [`ibv_wr_flush`](crate::ibv_wr_flush) (rdma-core 45).
    pub const IBV_QP_EX_WITH_FLUSH: Self = Self(1 << 11);
}

impl ibv_wr_opcode {
    /// A flush (rdma-core 45).
    pub const IBV_WR_FLUSH: Self = Self(14);
}

impl ibv_wc_opcode {
    /// A flush has completed (rdma-core 45).
    pub const IBV_WC_FLUSH: Self = Self(8);
}

impl ibv_odp_transport_cap_bits {
    /// Flushes may name memory that is paged on demand (after rdma-core 56).
    pub const IBV_ODP_SUPPORT_FLUSH: Self = Self(1 << 6);
    /// Atomic writes may name memory that is paged on demand (after rdma-core 56).
    pub const IBV_ODP_SUPPORT_ATOMIC_WRITE: Self = Self(1 << 7);
}

impl ibv_query_qp_data_in_order_flags {
    /// Answer with capabilities, not with 1 or 0.
    pub const IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS: Self = Self(1 << 0);
    /// Only what the device does counts, not the platform (rdma-core 60).
    pub const IBV_QUERY_QP_DATA_IN_ORDER_DEVICE_ONLY: Self = Self(1 << 1);
}

impl ibv_query_qp_data_in_order_caps {
    /// A whole message is written in order.
    pub const IBV_QUERY_QP_DATA_IN_ORDER_WHOLE_MSG: Self = Self(1 << 0);
    /// Aligned blocks of 128 bytes are written in order.
    pub const IBV_QUERY_QP_DATA_IN_ORDER_ALIGNED_128_BYTES: Self = Self(1 << 1);
}

impl ibv_port_cap_flags2 {
    /// The port can run at XDR speed (rdma-core 49).
    pub const IBV_PORT_LINK_SPEED_XDR_SUP: Self = Self(1 << 12);
}

impl ibv_event_type {
    /// The effective speed of a port has changed (after rdma-core 56).
    pub const IBV_EVENT_DEVICE_SPEED_CHANGE: Self = Self(20);
}

impl ibv_mr_init_attr_mask {
    /// `iova` is set.
    pub const IBV_REG_MR_MASK_IOVA: Self = Self(1 << 0);
    /// `addr` is set.
    pub const IBV_REG_MR_MASK_ADDR: Self = Self(1 << 1);
    /// `fd` is set.
    pub const IBV_REG_MR_MASK_FD: Self = Self(1 << 2);
    /// `fd_offset` is set.
    pub const IBV_REG_MR_MASK_FD_OFFSET: Self = Self(1 << 3);
    /// `dmah` is set.
    pub const IBV_REG_MR_MASK_DMAH: Self = Self(1 << 4);
    /// `buf` is set (rdma-core 64).
    pub const IBV_REG_MR_MASK_BUF: Self = Self(1 << 5);
}

impl ibv_dmah_init_attr_mask {
    /// `cpu_id` is set.
    pub const IBV_DMAH_INIT_ATTR_MASK_CPU_ID: Self = Self(1 << 0);
    /// `ph` is set.
    pub const IBV_DMAH_INIT_ATTR_MASK_PH: Self = Self(1 << 1);
    /// `tph_mem_type` is set.
    pub const IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE: Self = Self(1 << 2);
}

impl ibv_tph_mem_type {
    /// Volatile memory.
    pub const IBV_TPH_MEM_TYPE_VM: Self = Self(0);
    /// Persistent memory.
    pub const IBV_TPH_MEM_TYPE_PM: Self = Self(1);
}

impl ibv_parent_domain_init_attr_mask {
    /// Memory that confidential computing does not protect may be allocated (after rdma-core 56).
    pub const IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC: Self = Self(1 << 2);
}

impl ibv_comp_cntr_type {
    /// Work requests.
    pub const IBV_COMP_CNTR_TYPE_WRS: Self = Self(0);
    /// Bytes.
    pub const IBV_COMP_CNTR_TYPE_BYTES: Self = Self(1);
}

impl ibv_qp_attach_comp_cntr_op {
    /// Sends.
    pub const IBV_QP_ATTACH_COMP_CNTR_OP_SEND: Self = Self(1 << 0);
    /// Receives.
    pub const IBV_QP_ATTACH_COMP_CNTR_OP_RECV: Self = Self(1 << 1);
    /// Reads.
    pub const IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ: Self = Self(1 << 2);
    /// Reads by the peer.
    pub const IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ: Self = Self(1 << 3);
    /// Writes.
    pub const IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE: Self = Self(1 << 4);
    /// Writes by the peer.
    pub const IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE: Self = Self(1 << 5);
}

impl rdma_cm_event_type {
    /// `rdma_resolve_addrinfo` has found addresses (rdma-core 60).
    pub const RDMA_CM_EVENT_ADDRINFO_RESOLVED: Self = Self(16);
    /// `rdma_resolve_addrinfo` has found none (rdma-core 60).
    pub const RDMA_CM_EVENT_ADDRINFO_ERROR: Self = Self(17);
    /// A program wrote this event itself (rdma-core 60).
    pub const RDMA_CM_EVENT_USER: Self = Self(18);
    /// The library wrote this event itself (rdma-core 60).
    pub const RDMA_CM_EVENT_INTERNAL: Self = Self(19);
}

/// Bit of [`ibv_device_attr_ex::device_cap_flags_ex`](crate::ibv_device_attr_ex): in a confidential virtual machine, memory is
/// copied through unprotected buffers (after rdma-core 56).
pub const IBV_DEVICE_CC_DMA_BOUNCE: u64 = 1 << 41;

/// Hint of [`rdma_resolve_addrinfo`](crate::rdma_resolve_addrinfo): resolve through the subnet administrator (rdma-core 60).
pub const RAI_SA: u32 = 0x10;
/// Hint of [`rdma_resolve_addrinfo`](crate::rdma_resolve_addrinfo): resolve through DNS; not together with [`RAI_SA`]
/// (rdma-core 60).
pub const RAI_DNS: u32 = 0x20;
