//! Requests: posted, carried out, completed.

mod carry;
mod datagram;
mod native_ext;
mod post;

use std::collections::VecDeque;
use std::prelude::rust_2024::*;

pub(super) use self::native_ext::is_native;
pub(super) use self::post::{post_recv, post_send, post_srq_recv, ring, sges_of};

use self::carry::Outcome;
use super::cq::Entry;
use super::qp::Wqe;
use super::world::World;
use crate::bindings::{
    ibv_event_type, ibv_qp_state, ibv_send_flags, ibv_sge, ibv_wc, ibv_wc_opcode, ibv_wc_status,
    ibv_wr_opcode,
};

const SUCCESS: ibv_wc_status = ibv_wc_status::IBV_WC_SUCCESS;

fn is(flags: u32, flag: ibv_send_flags) -> bool {
    flags & flag.0 != 0
}

fn has_immediate(opcode: u32) -> bool {
    opcode == ibv_wr_opcode::IBV_WR_SEND_WITH_IMM.0
        || opcode == ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM.0
}

/// The opcode of a completion, or `None` for a request that is not modelled.
fn completion_opcode(opcode: u32) -> Option<ibv_wc_opcode> {
    Some(match ibv_wr_opcode(opcode) {
        ibv_wr_opcode::IBV_WR_SEND
        | ibv_wr_opcode::IBV_WR_SEND_WITH_IMM
        | ibv_wr_opcode::IBV_WR_SEND_WITH_INV => ibv_wc_opcode::IBV_WC_SEND,
        ibv_wr_opcode::IBV_WR_LOCAL_INV => ibv_wc_opcode::IBV_WC_LOCAL_INV,
        ibv_wr_opcode::IBV_WR_BIND_MW => ibv_wc_opcode::IBV_WC_BIND_MW,
        ibv_wr_opcode::IBV_WR_RDMA_WRITE | ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM => {
            ibv_wc_opcode::IBV_WC_RDMA_WRITE
        }
        ibv_wr_opcode::IBV_WR_RDMA_READ => ibv_wc_opcode::IBV_WC_RDMA_READ,
        ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP => ibv_wc_opcode::IBV_WC_COMP_SWAP,
        ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD => ibv_wc_opcode::IBV_WC_FETCH_ADD,
        ibv_wr_opcode::IBV_WR_FLUSH => ibv_wc_opcode::IBV_WC_FLUSH,
        ibv_wr_opcode::IBV_WR_ATOMIC_WRITE => ibv_wc_opcode::IBV_WC_ATOMIC_WRITE,
        _ => return None,
    })
}

fn is_atomic(opcode: u32) -> bool {
    opcode == ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP.0
        || opcode == ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD.0
}

fn total(sges: &[ibv_sge]) -> u64 {
    sges.iter().map(|sge| u64::from(sge.length)).sum()
}

impl World {
    /// Carries out what can be carried out of a queue pair's send queue.
    pub(super) fn progress(&mut self, address: usize) {
        while !self.knobs.held {
            let Some(qp) = self.qps.find(address) else {
                return;
            };
            if qp.state == ibv_qp_state::IBV_QPS_ERR {
                self.flush(address, !self.knobs.late_receives);
                return;
            }
            let drains = match (qp.state, qp.draining) {
                (ibv_qp_state::IBV_QPS_RTS, _) => None,
                (ibv_qp_state::IBV_QPS_SQD, Some(draining)) => Some(draining),
                _ => return,
            };
            let next = qp.sends.front();
            let next = next.filter(|wqe| drains.is_none_or(|drains| wqe.number <= drains.last));
            let Some(wqe) = next.cloned() else {
                if let Some(drained) = drains {
                    qp.draining = None;
                    if drained.tell {
                        self.raise_qp(ibv_event_type::IBV_EVENT_SQ_DRAINED, address);
                    }
                }
                return;
            };
            match self.execute(address, &wqe) {
                Outcome::Wait => return,
                Outcome::Done(status) => self.finish_send(address, &wqe, status),
                Outcome::Both(status) => {
                    let peer = self.qps.find(address).map_or(0, |qp| qp.attr.dest_qp_num);
                    // In this order, or the peer's end would set off the same request again.
                    self.finish_send(address, &wqe, status);
                    if let Some(&peer) = self.numbers.get(&peer) {
                        self.fail(peer);
                    }
                }
            }
        }
    }

    /// Goes on with the other end, if it is connected with this one.
    pub(super) fn progress_peer(&mut self, number: u32, other: u32) {
        let Some(&address) = self.numbers.get(&other) else {
            return;
        };
        if self
            .qps
            .find(address)
            .is_some_and(|qp| qp.attr.dest_qp_num == number)
        {
            self.progress(address);
        }
    }

    fn finish_send(&mut self, address: usize, wqe: &Wqe, status: ibv_wc_status) {
        let Some(qp) = self.qps.find(address) else {
            return;
        };
        qp.sends.pop_front();
        let signaled = qp.signals_all() || is(wqe.flags, ibv_send_flags::IBV_SEND_SIGNALED);
        let (cq, number) = (qp.send_cq, qp.number);
        if signaled || status != SUCCESS {
            let len = total(&wqe.sges);
            let opcode = completion_opcode(wqe.opcode).unwrap_or(ibv_wc_opcode(0));
            let wc = completion(wqe.wr_id, status, opcode, number, len);
            self.complete(
                cq,
                Entry {
                    wc,
                    solicited: false,
                    frees: (address, true, wqe.number),
                },
            );
        }
        if status != SUCCESS {
            self.fail(address);
        }
    }

    /// Brings a queue pair to ERR, as the device does when a request fails.
    fn fail(&mut self, address: usize) {
        let Some(qp) = self.qps.find(address) else {
            return;
        };
        let before = core::mem::replace(&mut qp.state, ibv_qp_state::IBV_QPS_ERR);
        let (number, other) = (qp.number, qp.attr.dest_qp_num);
        self.flush(address, true);
        if before != ibv_qp_state::IBV_QPS_ERR {
            self.last_receive_taken(address);
        }
        self.progress_peer(number, other);
    }

    /// Ends everything in the send queue of a queue pair in ERR, and in its receive queue.
    pub(super) fn flush(&mut self, address: usize, receives: bool) {
        let Some(qp) = self.qps.find(address) else {
            return;
        };
        let (send_cq, recv_cq, number) = (qp.send_cq, qp.recv_cq, qp.number);
        qp.draining = None;
        let sends = core::mem::take(&mut qp.sends);
        let recvs = if receives {
            core::mem::take(&mut qp.recvs)
        } else {
            VecDeque::new()
        };
        let flushed = ibv_wc_status::IBV_WC_WR_FLUSH_ERR;
        for wqe in sends {
            let wc = completion(wqe.wr_id, flushed, ibv_wc_opcode::IBV_WC_SEND, number, 0);
            self.complete(
                send_cq,
                Entry {
                    wc,
                    solicited: false,
                    frees: (address, true, wqe.number),
                },
            );
        }
        for rqe in recvs {
            let wc = completion(rqe.wr_id, flushed, ibv_wc_opcode::IBV_WC_RECV, number, 0);
            self.complete(
                recv_cq,
                Entry {
                    wc,
                    solicited: false,
                    frees: (address, false, rqe.number),
                },
            );
        }
    }
}

/// A completion. Of a failed one, all that is not defined is garbage.
fn completion(
    wr_id: u64,
    status: ibv_wc_status,
    opcode: ibv_wc_opcode,
    qp_num: u32,
    len: u64,
) -> ibv_wc {
    const GARBAGE: u32 = 0x5a5a_5a5a;
    let mut wc = ibv_wc {
        wr_id,
        status,
        qp_num,
        ..ibv_wc::default()
    };
    if status == SUCCESS {
        wc.opcode = opcode;
        wc.byte_len = u32::try_from(len).unwrap_or(u32::MAX);
    } else {
        wc.opcode = ibv_wc_opcode(GARBAGE);
        wc.byte_len = GARBAGE;
        wc.wc_flags = GARBAGE;
        wc.__bindgen_anon_1.imm_data = GARBAGE;
    }
    wc
}
