//! Flush and atomic write.

use std::prelude::rust_2024::*;

use super::super::memory;
use super::super::qp::Wqe;
use super::super::world::World;
use super::SUCCESS;
use super::carry::Outcome;
use crate::{
    ibv_access_flags as A, ibv_placement_type, ibv_selectivity_level, ibv_wc_status, ibv_wr_opcode,
};

/// Whether it is a flush or an atomic write, which only extended queue pairs can post.
pub(in crate::fake) fn is_native(opcode: u32) -> bool {
    opcode == ibv_wr_opcode::IBV_WR_FLUSH.0 || opcode == ibv_wr_opcode::IBV_WR_ATOMIC_WRITE.0
}

impl World {
    /// Carries out a flush or an atomic write at a peer that is ready.
    pub(super) fn execute_native(&mut self, wqe: &Wqe, peer: usize, rights: u32) -> Outcome {
        let refused = Outcome::Both(ibv_wc_status::IBV_WC_REM_INV_REQ_ERR);
        let no_access = Outcome::Both(ibv_wc_status::IBV_WC_REM_ACCESS_ERR);
        if wqe.opcode == ibv_wr_opcode::IBV_WR_FLUSH.0 {
            let [len, how] = wqe.operands;
            let (placement, level) = (how & 0xff, how >> 8);
            let mut needed = 0;
            if placement & u64::from(ibv_placement_type::IBV_FLUSH_GLOBAL.0) != 0 {
                needed |= A::IBV_ACCESS_FLUSH_GLOBAL.0;
            }
            if placement & u64::from(ibv_placement_type::IBV_FLUSH_PERSISTENT.0) != 0 {
                needed |= A::IBV_ACCESS_FLUSH_PERSISTENT.0;
            }
            if needed == 0 || rights & needed != needed {
                return refused;
            }
            let whole = level == u64::from(ibv_selectivity_level::IBV_FLUSH_MR.0);
            // A whole region is named by any of its bytes; no byte at all needs a valid key, too.
            let (addr, len) = (wqe.remote_addr, if whole { 1 } else { len.max(1) });
            return match self.remote(peer, wqe.rkey, addr, len, needed) {
                Some(_) => Outcome::Done(SUCCESS),
                None => no_access,
            };
        }
        let needed = A::IBV_ACCESS_REMOTE_WRITE.0;
        if rights & needed == 0 || wqe.remote_addr & 7 != 0 {
            return refused;
        }
        let Some(bytes) = wqe.inline.as_deref().filter(|bytes| bytes.len() == 8) else {
            return Outcome::Done(ibv_wc_status::IBV_WC_LOC_LEN_ERR);
        };
        let Some(remote) = self.remote(peer, wqe.rkey, wqe.remote_addr, 8, needed) else {
            return no_access;
        };
        // SAFETY: the region allows it, so its owner keeps the memory mapped.
        unsafe { memory::write(remote, bytes) };
        Outcome::Done(SUCCESS)
    }
}
