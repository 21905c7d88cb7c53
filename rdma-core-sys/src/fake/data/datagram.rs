//! Datagrams: to one queue pair or to a group, and lost without a word.

use std::prelude::rust_2024::*;

use super::super::ah::{GRH, header, ip_of};
use super::super::device::{ACTIVE_MTU, Devices};
use super::super::multicast::is_group;
use super::super::qp::Wqe;
use super::super::world::World;
use super::SUCCESS;
use super::carry::Outcome;
use crate::bindings::{ibv_qp_state, ibv_qp_type, ibv_wc_opcode, ibv_wc_status};

/// The number that datagrams to a group go to.
const GROUP_NUMBER: u32 = 0xff_ffff;

impl World {
    /// Sends a datagram. Whatever becomes of it, its sender has done its part.
    pub(super) fn datagram(&mut self, address: usize, wqe: &Wqe, data: &[u8]) -> Outcome {
        let qp = self.qps.at("a datagram", address);
        let (own, own_qkey, pd) = (qp.number, qp.attr.qkey, qp.pd);
        let context = self.pds.at("a datagram", pd).context;
        let Some(to) = wqe.datagram else {
            return Outcome::Done(ibv_wc_status::IBV_WC_LOC_QP_OP_ERR);
        };
        let attr = self.ahs.at("a datagram", to.ah).attr;
        let source = self.devices.ip_at(context, attr.sgid_index.into());
        let Some(source) = source.filter(|_| data.len() <= ACTIVE_MTU) else {
            return Outcome::Done(SUCCESS);
        };
        // A key with the highest bit stands for the sender's own.
        let qkey = if to.qkey >> 31 == 1 {
            own_qkey
        } else {
            to.qkey
        };
        let whole = [&header(source, &attr, data.len()), data].concat();
        let group = is_group(attr.dgid) && to.number == GROUP_NUMBER;
        let here = Devices::of_ip(ip_of(attr.dgid)).is_some();
        let meant = self.qps.iter().filter(|(_, qp)| {
            let addressed = if group {
                qp.groups.iter().any(|&(gid, _)| gid == attr.dgid)
            } else {
                here && qp.number == to.number
            };
            let listens = !matches!(
                qp.state,
                ibv_qp_state::IBV_QPS_RESET
                    | ibv_qp_state::IBV_QPS_INIT
                    | ibv_qp_state::IBV_QPS_ERR
            );
            let is_datagram = qp.qp_type == ibv_qp_type::IBV_QPT_UD;
            addressed && listens && is_datagram && !qp.dying && qp.attr.qkey == qkey
        });
        let meant: Vec<usize> = meant.map(|(&address, _)| address).collect();
        for target in meant {
            self.receive_datagram(target, wqe, own, &whole);
        }
        Outcome::Done(SUCCESS)
    }

    fn receive_datagram(&mut self, target: usize, wqe: &Wqe, from: u32, whole: &[u8]) {
        let Some((pd, recv)) = self.next_recv(target) else {
            return;
        };
        debug_assert!(whole.len() >= GRH, "the header is part of it");
        if super::total(&recv.sges) < whole.len() as u64 {
            return;
        }
        let status = if self.scatter(pd, &recv.sges, whole) {
            SUCCESS
        } else {
            ibv_wc_status::IBV_WC_LOC_PROT_ERR
        };
        let opcode = ibv_wc_opcode::IBV_WC_RECV;
        self.finish_recv(target, wqe, status, opcode, whole.len() as u64, Some(from));
        if status != SUCCESS {
            self.fail(target);
        }
    }
}
