//! Carrying out the request at the head of a send queue.

use std::prelude::rust_2024::*;

use super::super::cq::Entry;
use super::super::device::MAX_MESSAGE;
use super::super::memory;
use super::super::qp::{Rqe, Wqe};
use super::super::world::World;
use super::{SUCCESS, completion, has_immediate, is, is_atomic, total};
use crate::bindings::{
    ibv_access_flags, ibv_qp_state, ibv_qp_type, ibv_send_flags, ibv_sge, ibv_wc_flags,
    ibv_wc_opcode, ibv_wc_status, ibv_wr_opcode,
};

/// What became of the request at the head of a send queue.
pub(super) enum Outcome {
    /// It waits for the peer.
    Wait,
    /// It is over.
    Done(ibv_wc_status),
    /// It is over, and the peer's queue pair fails with it.
    Both(ibv_wc_status),
}

use Outcome::{Both, Done, Wait};

impl World {
    /// Carries a request out as far as it goes now.
    pub(super) fn execute(&mut self, address: usize, wqe: &Wqe) -> Outcome {
        if let Some(status) = self.knobs.statuses.pop_front() {
            return Done(ibv_wc_status(status));
        }
        let Some(qp) = self.qps.find(address) else {
            return Wait;
        };
        let (pd, qp_type) = (qp.pd, qp.qp_type);
        let len = total(&wqe.sges);
        if len > MAX_MESSAGE.into() {
            return Done(ibv_wc_status::IBV_WC_LOC_LEN_ERR);
        }
        if !offers(qp_type, ibv_wr_opcode(wqe.opcode)) {
            return Done(ibv_wc_status::IBV_WC_LOC_QP_OP_ERR);
        }
        if let Some(bind) = &wqe.bind {
            return Done(self.bind_window(address, bind));
        }
        if wqe.opcode == ibv_wr_opcode::IBV_WR_LOCAL_INV.0 {
            return Done(if self.invalidate(address, wqe.imm) {
                SUCCESS
            } else {
                ibv_wc_status::IBV_WC_LOC_QP_OP_ERR
            });
        }
        let data = if reads(wqe.opcode) {
            match self.local(pd, &wqe.sges, ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0) {
                Some(_) => Vec::new(),
                None => return Done(ibv_wc_status::IBV_WC_LOC_PROT_ERR),
            }
        } else if let Some(inline) = &wqe.inline {
            inline.clone()
        } else {
            match self.gather(pd, &wqe.sges) {
                Some(data) => data,
                None => return Done(ibv_wc_status::IBV_WC_LOC_PROT_ERR),
            }
        };
        if qp_type == ibv_qp_type::IBV_QPT_UD {
            return self.datagram(address, wqe, &data);
        }
        let outcome = self.execute_at_peer(address, wqe, &data);
        if matches!(outcome, Done(SUCCESS)) {
            self.count_packet(address);
        }
        if qp_type == ibv_qp_type::IBV_QPT_UC {
            // Nobody answers: what the peer does not take is lost.
            return Done(SUCCESS);
        }
        outcome
    }

    /// The peer expects the next packet number now.
    fn count_packet(&mut self, address: usize) {
        let other = self.qps.at("a request", address).attr.dest_qp_num;
        let peer = self.numbers.get(&other).copied();
        if let Some(peer) = peer.and_then(|peer| self.qps.find(peer)) {
            peer.attr.rq_psn = (peer.attr.rq_psn + 1) & 0xff_ffff;
        }
    }

    /// The part of a request that the other end does.
    fn execute_at_peer(&mut self, address: usize, wqe: &Wqe, data: &[u8]) -> Outcome {
        let qp = self.qps.at("a request", address);
        let (own, other, pd, rnr_retry) =
            (qp.number, qp.attr.dest_qp_num, qp.pd, qp.attr.rnr_retry);
        let len = total(&wqe.sges);
        let opcode = ibv_wr_opcode(wqe.opcode);
        let reads = reads(wqe.opcode);
        let Some(&peer_address) = self.numbers.get(&other) else {
            return Done(ibv_wc_status::IBV_WC_RETRY_EXC_ERR);
        };
        let peer = self.qps.at("a request", peer_address);
        match peer.state {
            ibv_qp_state::IBV_QPS_RESET | ibv_qp_state::IBV_QPS_INIT => return Wait,
            ibv_qp_state::IBV_QPS_ERR => return Done(ibv_wc_status::IBV_WC_RETRY_EXC_ERR),
            _ if peer.attr.dest_qp_num != own => return Done(ibv_wc_status::IBV_WC_RETRY_EXC_ERR),
            _ => {}
        }
        let (rights, reads_allowed) = (peer.attr.qp_access_flags, peer.attr.max_dest_rd_atomic);
        if super::is_native(wqe.opcode) {
            return self.execute_native(wqe, peer_address, rights);
        }
        if matches!(
            opcode,
            ibv_wr_opcode::IBV_WR_SEND
                | ibv_wr_opcode::IBV_WR_SEND_WITH_IMM
                | ibv_wr_opcode::IBV_WR_SEND_WITH_INV
        ) {
            return self.deliver(peer_address, wqe, data, rnr_retry);
        }
        let needed = if is_atomic(wqe.opcode) {
            ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0
        } else if reads {
            ibv_access_flags::IBV_ACCESS_REMOTE_READ.0
        } else {
            ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0
        };
        let refused = rights & needed == 0
            || (reads && reads_allowed == 0)
            || (is_atomic(wqe.opcode) && wqe.remote_addr & 7 != 0);
        if refused {
            return Both(ibv_wc_status::IBV_WC_REM_INV_REQ_ERR);
        }
        let Some(remote) = self.remote(peer_address, wqe.rkey, wqe.remote_addr, len, needed) else {
            return Both(ibv_wc_status::IBV_WC_REM_ACCESS_ERR);
        };
        if is_atomic(wqe.opcode) {
            // SAFETY: the region allows it, so its owner keeps the memory mapped.
            let before = unsafe { memory::read(remote, 8) };
            let old = before
                .iter()
                .rev()
                .fold(0_u64, |value, byte| value << 8 | u64::from(*byte));
            let [operand, swap] = wqe.operands;
            let new = if opcode == ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD {
                old.wrapping_add(operand)
            } else if old == operand {
                swap
            } else {
                old
            };
            // SAFETY: as above, and it allows writing.
            unsafe { memory::write(remote, &new.to_le_bytes()) };
            self.scatter(pd, &wqe.sges, &before);
        } else if reads {
            #[allow(
                clippy::cast_possible_truncation,
                reason = "at most the longest message"
            )]
            // SAFETY: the region allows it, so its owner keeps the memory mapped.
            let data = unsafe { memory::read(remote, len as usize) };
            self.scatter(pd, &wqe.sges, &data);
        } else {
            if has_immediate(wqe.opcode) && self.next_recv(peer_address).is_none() {
                return not_ready(rnr_retry);
            }
            // SAFETY: the region allows it, so its owner keeps the memory mapped.
            unsafe { memory::write(remote, data) };
            if has_immediate(wqe.opcode) {
                let opcode = ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM;
                self.finish_recv(peer_address, wqe, SUCCESS, opcode, len, None);
            }
        }
        Done(SUCCESS)
    }

    /// Carries a message out at the peer.
    fn deliver(&mut self, peer: usize, wqe: &Wqe, data: &[u8], rnr_retry: u8) -> Outcome {
        let Some((pd, recv)) = self.next_recv(peer) else {
            return not_ready(rnr_retry);
        };
        let reliable = self.qps.at("a request", peer).qp_type == ibv_qp_type::IBV_QPT_RC;
        let opcode = ibv_wc_opcode::IBV_WC_RECV;
        let len = data.len() as u64;
        let fits = total(&recv.sges) >= len;
        if !fits && !reliable {
            // Dropped; the receive waits for another message.
            return Done(SUCCESS);
        }
        let (theirs, ours) = if !fits {
            (
                ibv_wc_status::IBV_WC_LOC_LEN_ERR,
                ibv_wc_status::IBV_WC_REM_INV_REQ_ERR,
            )
        } else if !self.scatter(pd, &recv.sges, data) {
            (
                ibv_wc_status::IBV_WC_LOC_PROT_ERR,
                ibv_wc_status::IBV_WC_REM_OP_ERR,
            )
        } else if is_invalidating(wqe.opcode) && !self.invalidate(peer, wqe.imm) {
            (
                ibv_wc_status::IBV_WC_REM_INV_REQ_ERR,
                ibv_wc_status::IBV_WC_REM_OP_ERR,
            )
        } else {
            (SUCCESS, SUCCESS)
        };
        self.finish_recv(peer, wqe, theirs, opcode, len, None);
        if ours == SUCCESS {
            Done(ours)
        } else if reliable {
            Both(ours)
        } else {
            self.fail(peer);
            Done(SUCCESS)
        }
    }

    /// The receive that the next message to a queue pair takes, and the domain of its keys.
    pub(super) fn next_recv(&mut self, address: usize) -> Option<(usize, Rqe)> {
        let qp = self.qps.at("a receive", address);
        match qp.srq {
            None => Some((qp.pd, qp.recvs.front()?.clone())),
            Some(srq) => {
                let srq = self.srqs.at("a receive", srq);
                Some((srq.pd, srq.recvs.front()?.clone()))
            }
        }
    }

    /// Takes that receive.
    fn take_recv(&mut self, address: usize) -> Option<Rqe> {
        let qp = self.qps.find(address)?;
        let Some(srq) = qp.srq else {
            return qp.recvs.pop_front();
        };
        let recv = self.srqs.at("a receive", srq).recvs.pop_front();
        self.check_srq_limit(srq);
        recv
    }

    /// Completes the receive at the head of a queue; `from` is the sender of a datagram.
    pub(super) fn finish_recv(
        &mut self,
        address: usize,
        by: &Wqe,
        status: ibv_wc_status,
        opcode: ibv_wc_opcode,
        len: u64,
        from: Option<u32>,
    ) {
        let Some(recv) = self.take_recv(address) else {
            return;
        };
        let qp = self.qps.at("a receive", address);
        let (cq, number) = (qp.recv_cq, qp.number);
        let mut wc = completion(recv.wr_id, status, opcode, number, len);
        if status == SUCCESS {
            wc.__bindgen_anon_1.imm_data = 0;
            if has_immediate(by.opcode) {
                wc.__bindgen_anon_1.imm_data = by.imm;
                wc.wc_flags = ibv_wc_flags::IBV_WC_WITH_IMM.0;
            } else if is_invalidating(by.opcode) {
                wc.__bindgen_anon_1.invalidated_rkey = by.imm;
                wc.wc_flags = ibv_wc_flags::IBV_WC_WITH_INV.0;
            }
            if let Some(from) = from {
                wc.src_qp = from;
                wc.wc_flags |= ibv_wc_flags::IBV_WC_GRH.0;
            }
        }
        let solicited = is(by.flags, ibv_send_flags::IBV_SEND_SOLICITED);
        self.complete(
            cq,
            Entry {
                wc,
                solicited,
                frees: (address, false, recv.number),
            },
        );
    }

    /// Where in memory the pieces of a request are, if their keys allow it.
    fn local(&mut self, pd: usize, sges: &[ibv_sge], access: u32) -> Option<Vec<(u64, usize)>> {
        let pieces = sges.iter().filter(|sge| sge.length > 0).map(|sge| {
            let region = *self.lkeys.get(&sge.lkey)?;
            let addr = self
                .region(region, pd)?
                .range(sge.addr, sge.length.into(), access)?;
            Some((addr, sge.length as usize))
        });
        pieces.collect()
    }

    fn gather(&mut self, pd: usize, sges: &[ibv_sge]) -> Option<Vec<u8>> {
        let pieces = self.local(pd, sges, 0)?;
        // SAFETY: the pieces lie in regions, whose owners keep the memory mapped.
        Some(
            pieces
                .into_iter()
                .flat_map(|(addr, len)| unsafe { memory::read(addr, len) })
                .collect(),
        )
    }

    /// Writes data into the pieces from the first on; `false` when their keys do not allow it.
    pub(super) fn scatter(&mut self, pd: usize, sges: &[ibv_sge], data: &[u8]) -> bool {
        let Some(pieces) = self.local(pd, sges, ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0) else {
            return false;
        };
        let mut data = data;
        for (addr, len) in pieces {
            let (now, rest) = data.split_at(len.min(data.len()));
            // SAFETY: the pieces lie in regions that allow writing, whose owners keep the memory mapped.
            unsafe { memory::write(addr, now) };
            data = rest;
        }
        true
    }

    /// Where in memory the target of a request is, if its key allows it.
    pub(super) fn remote(
        &mut self,
        qp: usize,
        rkey: u32,
        addr: u64,
        len: u64,
        access: u32,
    ) -> Option<u64> {
        if len == 0 {
            return Some(addr);
        }
        if let Some(region) = self.through_window(qp, rkey, addr, len, access) {
            // What the region itself does not give a peer, its window may.
            return self.mrs.find(region?)?.range(addr, len, 0);
        }
        let pd = self.qps.find(qp)?.pd;
        let region = *self.rkeys.get(&rkey)?;
        self.region(region, pd)?.range(addr, len, access)
    }
}

/// Whether a type of queue pair has an operation.
fn offers(qp_type: ibv_qp_type, opcode: ibv_wr_opcode) -> bool {
    use ibv_wr_opcode as W;

    match qp_type {
        ibv_qp_type::IBV_QPT_UD => matches!(opcode, W::IBV_WR_SEND | W::IBV_WR_SEND_WITH_IMM),
        ibv_qp_type::IBV_QPT_UC => {
            !reads(opcode.0) && !is_invalidating(opcode.0) && !super::is_native(opcode.0)
        }
        _ => true,
    }
}

fn reads(opcode: u32) -> bool {
    opcode == ibv_wr_opcode::IBV_WR_RDMA_READ.0 || is_atomic(opcode)
}

fn is_invalidating(opcode: u32) -> bool {
    opcode == ibv_wr_opcode::IBV_WR_SEND_WITH_INV.0
}

/// A peer without a receive: tried for ever, or given up at once, since no time passes here.
fn not_ready(rnr_retry: u8) -> Outcome {
    if rnr_retry == 7 {
        Wait
    } else {
        Done(ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR)
    }
}
