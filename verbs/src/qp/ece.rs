//! Options that both ends of a connection agree on, and the order in which data is written.

use rdma_core_sys as sys;

use super::QueuePair;
use super::opcodes::WrOpcode;
use crate::error::{Error, from_return};

/// Options of a vendor that both ends of a connection agree on while they connect.
#[doc(alias = "ibv_ece")]
#[doc(alias = "enhanced connection establishment")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ece {
    /// Whose options these are, by the vendor's number.
    pub vendor_id: u32,
    /// The options, whose meaning is the vendor's.
    pub options: u32,
}

impl QueuePair {
    /// What this end offers; to be told to the peer.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) where provider or library have no
    /// such options.
    #[doc(alias = "ibv_query_ece")]
    pub fn query_ece(&self) -> Result<Ece, Error> {
        let verb = "ibv_query_ece";
        let qp = self.owned.raw_checked(verb)?;
        let mut raw = sys::ibv_ece::default();
        // SAFETY: the queue pair is live, and the place is valid.
        let ret = unsafe { sys::ibv_query_ece(qp, &mut raw) };
        from_return(verb, ret)?;
        Ok(Ece {
            vendor_id: raw.vendor_id,
            options: raw.options,
        })
    }

    /// Takes up what the peer offers, before the transition to RTR; what both ends have is returned,
    /// to be told to the peer.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) where provider or library have no
    /// such options; EINVAL for those of another vendor.
    #[doc(alias = "ibv_set_ece")]
    pub fn set_ece(&self, ece: Ece) -> Result<Ece, Error> {
        let verb = "ibv_set_ece";
        let qp = self.owned.raw_checked(verb)?;
        let mut raw = sys::ibv_ece {
            vendor_id: ece.vendor_id,
            options: ece.options,
            comp_mask: 0,
        };
        // SAFETY: the queue pair is live, and the struct is filled.
        let ret = unsafe { sys::ibv_set_ece(qp, &mut raw) };
        from_return(verb, ret).map_err(|e| e.with_detail(format!("{ece:?}")))?;
        Ok(Ece {
            vendor_id: raw.vendor_id,
            options: raw.options,
        })
    }

    /// Whether the bytes that `opcode` writes into memory appear there in the order of their
    /// addresses, so that the last one stands for all. Without this, only a completion says that
    /// data is there.
    ///
    /// # Errors
    /// [`ErrorKind::Forked`](crate::ErrorKind::Forked).
    #[doc(alias = "ibv_query_qp_data_in_order")]
    pub fn writes_in_order(&self, opcode: WrOpcode) -> Result<bool, Error> {
        let qp = self.owned.raw_checked("ibv_query_qp_data_in_order")?;
        // SAFETY: the queue pair is live.
        let answer =
            unsafe { sys::ibv_query_qp_data_in_order(qp, sys::ibv_wr_opcode(opcode.raw()), 0) };
        // With no flag asked for, the answer is 1 or 0; a library that fails means 0.
        Ok(answer == 1)
    }
}
