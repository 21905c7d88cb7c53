//! What rdma-core 45 added and programs ask for by name: the flush and the bits for it.
//!
//! The bindings are made from the headers of rdma-core 44, so these are written by hand; with the feature `bindgen` and newer
//! headers they come from there. Using them needs a library and a device that know them, which a refusal at creation tells.

use core::ffi::c_uint;

use crate::bindings::{
    ibv_access_flags, ibv_qp_create_send_ops_flags, ibv_wc_opcode, ibv_wr_opcode,
};

/// Where flushed bytes have to be.
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_placement_type(pub c_uint);

impl ibv_placement_type {
    /// Visible to all of the target.
    pub const IBV_FLUSH_GLOBAL: Self = Self(1 << 0);
    /// Safe from a loss of power.
    pub const IBV_FLUSH_PERSISTENT: Self = Self(1 << 1);
}

impl core::ops::BitOr for ibv_placement_type {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// How much a flush covers.
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_selectivity_level(pub c_uint);

impl ibv_selectivity_level {
    /// The range told.
    pub const IBV_FLUSH_RANGE: Self = Self(0);
    /// The whole region.
    pub const IBV_FLUSH_MR: Self = Self(1);
}

impl ibv_access_flags {
    /// The region may be flushed to global visibility.
    pub const IBV_ACCESS_FLUSH_GLOBAL: Self = Self(1 << 8);
    /// The region may be flushed to persistence.
    pub const IBV_ACCESS_FLUSH_PERSISTENT: Self = Self(1 << 9);
}

impl ibv_qp_create_send_ops_flags {
    /// Asks for [`ibv_wr_flush`](crate::ibv_wr_flush).
    pub const IBV_QP_EX_WITH_FLUSH: Self = Self(1 << 11);
}

impl ibv_wr_opcode {
    /// A flush.
    pub const IBV_WR_FLUSH: Self = Self(14);
}

impl ibv_wc_opcode {
    /// A flush has completed.
    pub const IBV_WC_FLUSH: Self = Self(8);
}
