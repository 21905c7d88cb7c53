//! Posting, and carrying requests out.

use core::ffi::c_int;
use std::prelude::rust_2024::*;

use super::control::{PostedRecv, PostedSend, PostedSge};
use super::cq::Entry;
use super::device::MAX_MESSAGE;
use super::memory;
use super::qp::{Rqe, Wqe};
use super::world::{World, lock};
use crate::bindings::{
    ibv_access_flags, ibv_qp, ibv_qp_state, ibv_recv_wr, ibv_send_flags, ibv_send_wr, ibv_sge,
    ibv_wc, ibv_wc_flags, ibv_wc_opcode, ibv_wc_status, ibv_wr_opcode,
};

/// What became of the request at the head of a send queue.
enum Outcome {
    /// It waits for the peer.
    Wait,
    /// It is over.
    Done(ibv_wc_status),
    /// It is over, and the peer's queue pair fails with it.
    Both(ibv_wc_status),
}

use Outcome::{Both, Done, Wait};

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
        ibv_wr_opcode::IBV_WR_SEND | ibv_wr_opcode::IBV_WR_SEND_WITH_IMM => {
            ibv_wc_opcode::IBV_WC_SEND
        }
        ibv_wr_opcode::IBV_WR_RDMA_WRITE | ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM => {
            ibv_wc_opcode::IBV_WC_RDMA_WRITE
        }
        ibv_wr_opcode::IBV_WR_RDMA_READ => ibv_wc_opcode::IBV_WC_RDMA_READ,
        ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP => ibv_wc_opcode::IBV_WC_COMP_SWAP,
        ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD => ibv_wc_opcode::IBV_WC_FETCH_ADD,
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

/// # Safety
/// - `list` points to `count` entries.
unsafe fn sges_of(list: *const ibv_sge, count: usize) -> Vec<ibv_sge> {
    // SAFETY: the caller vouches for the entries.
    (0..count)
        .map(|index| unsafe { list.wrapping_add(index).read() })
        .collect()
}

fn posted(sges: &[ibv_sge]) -> Vec<PostedSge> {
    sges.iter()
        .map(|sge| PostedSge {
            addr: sge.addr,
            length: sge.length,
            lkey: sge.lkey,
        })
        .collect()
}

pub(super) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    let call = "ibv_post_send";
    let mut world = lock();
    let refuse = |errno: c_int, bad: *mut ibv_send_wr| {
        // SAFETY: the caller gives a place for the pointer.
        unsafe { bad_wr.write(bad) };
        errno
    };
    if let Err(errno) = world.record(call) {
        return refuse(errno, wr);
    }
    let address = qp.addr();
    world.qps.of(call, qp);
    let mut next = wr;
    while !next.is_null() {
        // SAFETY: the list is made of whole requests.
        let request = unsafe { next.read() };
        // SAFETY: as the caller of this function promised for every request.
        if let Err(errno) = unsafe { world.enqueue(address, &request) } {
            // What was queued before is carried out.
            world.progress(address);
            return refuse(errno, next);
        }
        next = request.next;
    }
    let state = world.qps.of(call, qp).state;
    if core::mem::take(&mut world.knobs.lose_doorbell) {
        return refuse(libc::EINVAL, core::ptr::null_mut());
    }
    if !matches!(
        state,
        ibv_qp_state::IBV_QPS_RTS | ibv_qp_state::IBV_QPS_SQD | ibv_qp_state::IBV_QPS_ERR
    ) {
        // Refused, and carried out once the queue pair may send: SoftRoCE does so.
        return refuse(libc::EINVAL, core::ptr::null_mut());
    }
    world.progress(address);
    0
}

pub(super) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    let call = "ibv_post_recv";
    let mut world = lock();
    let refuse = |errno: c_int, bad: *mut ibv_recv_wr| {
        // SAFETY: the caller gives a place for the pointer.
        unsafe { bad_wr.write(bad) };
        errno
    };
    if let Err(errno) = world.record(call) {
        return refuse(errno, wr);
    }
    let address = qp.addr();
    let mut next = wr;
    let mut result = 0;
    while !next.is_null() {
        // SAFETY: the list is made of whole requests.
        let request = unsafe { next.read() };
        let state = world.qps.of(call, qp);
        let count = usize::try_from(request.num_sge).unwrap_or(usize::MAX);
        let errno = if state.state == ibv_qp_state::IBV_QPS_RESET
            || count > state.cap().max_recv_sge as usize
        {
            libc::EINVAL
        } else if state.recv.is_full() {
            libc::ENOMEM
        } else {
            0
        };
        if errno != 0 {
            result = refuse(errno, next);
            break;
        }
        // SAFETY: the list has as many entries as the request says.
        let sges = unsafe { sges_of(request.sg_list, count) };
        state.recv.posted += 1;
        let number = state.recv.posted;
        let record = PostedRecv {
            qp_num: state.number,
            wr_id: request.wr_id,
            sges: posted(&sges),
        };
        state.recvs.push_back(Rqe {
            wr_id: request.wr_id,
            sges,
            number,
        });
        world.recvs.push(record);
        next = request.next;
    }
    let (number, other) = {
        let qp = world.qps.of(call, qp);
        (qp.number, qp.attr.dest_qp_num)
    };
    world.progress(address);
    // The peer may have waited for it.
    world.progress_peer(number, other);
    result
}

impl World {
    /// Takes a request into the queue, or gives the errno.
    ///
    /// # Safety
    /// - The request's list is whole, and for an inline request the memory that it names is readable.
    unsafe fn enqueue(&mut self, address: usize, request: &ibv_send_wr) -> Result<(), c_int> {
        let qp = self.qps.at("ibv_post_send", address);
        let count = usize::try_from(request.num_sge).map_err(|_| libc::EINVAL)?;
        if count > qp.cap().max_send_sge as usize || completion_opcode(request.opcode.0).is_none() {
            return Err(libc::EINVAL);
        }
        // SAFETY: the list has as many entries as the request says.
        let sges = unsafe { sges_of(request.sg_list, count) };
        let is_inline = is(request.send_flags, ibv_send_flags::IBV_SEND_INLINE);
        if is_inline && total(&sges) > u64::from(qp.cap().max_inline_data) {
            return Err(libc::EINVAL);
        }
        if is_atomic(request.opcode.0) && total(&sges) != 8 {
            return Err(libc::EINVAL);
        }
        if qp.send.is_full() {
            return Err(libc::ENOMEM);
        }
        let inline = is_inline.then(|| {
            // SAFETY: the caller vouches for the memory of an inline request.
            sges.iter()
                .flat_map(|sge| unsafe { memory::copy(sge.addr, sge.length as usize) })
                .collect()
        });
        // SAFETY: every arm of the union is plain integers, and the request is written as a whole.
        let atomic = unsafe { request.wr.atomic };
        // SAFETY: as above.
        let rdma = unsafe { request.wr.rdma };
        // SAFETY: as above.
        let imm = unsafe { request.__bindgen_anon_1.imm_data };
        qp.send.posted += 1;
        let rkey = if is_atomic(request.opcode.0) {
            atomic.rkey
        } else {
            rdma.rkey
        };
        let wqe = Wqe {
            wr_id: request.wr_id,
            opcode: request.opcode.0,
            flags: request.send_flags,
            sges,
            inline,
            imm,
            remote_addr: rdma.remote_addr,
            rkey,
            operands: [atomic.compare_add, atomic.swap],
            number: qp.send.posted,
        };
        let record = PostedSend {
            qp_num: qp.number,
            wr_id: wqe.wr_id,
            opcode: wqe.opcode,
            flags: wqe.flags,
            sges: posted(&wqe.sges),
            inline: wqe.inline.clone(),
            imm: u32::from_be(imm),
            remote_addr: wqe.remote_addr,
            rkey,
        };
        qp.sends.push_back(wqe);
        self.sends.push(record);
        Ok(())
    }

    /// Carries out what can be carried out of a queue pair's send queue.
    pub(super) fn progress(&mut self, address: usize) {
        loop {
            let Some(qp) = self.qps.find(address) else {
                return;
            };
            if qp.state == ibv_qp_state::IBV_QPS_ERR {
                self.flush(address);
                return;
            }
            if qp.state != ibv_qp_state::IBV_QPS_RTS {
                return;
            }
            let Some(wqe) = qp.sends.front().cloned() else {
                return;
            };
            match self.execute(address, &wqe) {
                Wait => return,
                Done(status) => self.finish_send(address, &wqe, status),
                Both(status) => {
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
        qp.state = ibv_qp_state::IBV_QPS_ERR;
        let (number, other) = (qp.number, qp.attr.dest_qp_num);
        self.flush(address);
        self.progress_peer(number, other);
    }

    /// Ends everything in the queues of a queue pair in ERR.
    fn flush(&mut self, address: usize) {
        let Some(qp) = self.qps.find(address) else {
            return;
        };
        let (send_cq, recv_cq, number) = (qp.send_cq, qp.recv_cq, qp.number);
        let sends = core::mem::take(&mut qp.sends);
        let recvs = core::mem::take(&mut qp.recvs);
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

    fn execute(&mut self, address: usize, wqe: &Wqe) -> Outcome {
        if let Some(status) = self.knobs.statuses.pop_front() {
            return Done(ibv_wc_status(status));
        }
        let Some(qp) = self.qps.find(address) else {
            return Wait;
        };
        let (own, other, pd, rnr_retry) =
            (qp.number, qp.attr.dest_qp_num, qp.pd, qp.attr.rnr_retry);
        let len = total(&wqe.sges);
        if len > MAX_MESSAGE.into() {
            return Done(ibv_wc_status::IBV_WC_LOC_LEN_ERR);
        }
        let opcode = ibv_wr_opcode(wqe.opcode);
        let reads = opcode == ibv_wr_opcode::IBV_WR_RDMA_READ || is_atomic(wqe.opcode);
        let data = if reads {
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
        let (peer_pd, rights, reads_allowed) = (
            peer.pd,
            peer.attr.qp_access_flags,
            peer.attr.max_dest_rd_atomic,
        );
        if matches!(
            opcode,
            ibv_wr_opcode::IBV_WR_SEND | ibv_wr_opcode::IBV_WR_SEND_WITH_IMM
        ) {
            return self.deliver(peer_address, wqe, &data, rnr_retry);
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
        let Some(remote) = self.remote(peer_pd, wqe.rkey, wqe.remote_addr, len, needed) else {
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
            if has_immediate(wqe.opcode) {
                let waits = self.qps.at("a request", peer_address).recvs.is_empty();
                if waits {
                    return not_ready(rnr_retry);
                }
            }
            // SAFETY: the region allows it, so its owner keeps the memory mapped.
            unsafe { memory::write(remote, &data) };
            if has_immediate(wqe.opcode) {
                let opcode = ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM;
                self.finish_recv(peer_address, wqe, SUCCESS, opcode, len);
            }
        }
        Done(SUCCESS)
    }

    /// Carries a message out at the peer.
    fn deliver(&mut self, peer: usize, wqe: &Wqe, data: &[u8], rnr_retry: u8) -> Outcome {
        let qp = self.qps.at("a request", peer);
        let (pd, Some(recv)) = (qp.pd, qp.recvs.front().cloned()) else {
            return not_ready(rnr_retry);
        };
        let opcode = ibv_wc_opcode::IBV_WC_RECV;
        let len = data.len() as u64;
        let (theirs, ours) = if total(&recv.sges) < len {
            (
                ibv_wc_status::IBV_WC_LOC_LEN_ERR,
                ibv_wc_status::IBV_WC_REM_INV_REQ_ERR,
            )
        } else if self.scatter(pd, &recv.sges, data) {
            (SUCCESS, SUCCESS)
        } else {
            (
                ibv_wc_status::IBV_WC_LOC_PROT_ERR,
                ibv_wc_status::IBV_WC_REM_OP_ERR,
            )
        };
        self.finish_recv(peer, wqe, theirs, opcode, len);
        if ours == SUCCESS {
            Done(ours)
        } else {
            Both(ours)
        }
    }

    /// Completes the receive at the head of a queue.
    fn finish_recv(
        &mut self,
        address: usize,
        by: &Wqe,
        status: ibv_wc_status,
        opcode: ibv_wc_opcode,
        len: u64,
    ) {
        let Some(qp) = self.qps.find(address) else {
            return;
        };
        let Some(recv) = qp.recvs.pop_front() else {
            return;
        };
        let (cq, number) = (qp.recv_cq, qp.number);
        let mut wc = completion(recv.wr_id, status, opcode, number, len);
        if status == SUCCESS {
            wc.__bindgen_anon_1.imm_data = 0;
            if has_immediate(by.opcode) {
                wc.__bindgen_anon_1.imm_data = by.imm;
                wc.wc_flags = ibv_wc_flags::IBV_WC_WITH_IMM.0;
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
            let region = self.mrs.find(region).filter(|region| region.pd == pd)?;
            let addr = region.range(sge.addr, sge.length.into(), access)?;
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
    fn scatter(&mut self, pd: usize, sges: &[ibv_sge], data: &[u8]) -> bool {
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
    fn remote(&mut self, pd: usize, rkey: u32, addr: u64, len: u64, access: u32) -> Option<u64> {
        if len == 0 {
            return Some(addr);
        }
        let region = *self.rkeys.get(&rkey)?;
        let region = self.mrs.find(region).filter(|region| region.pd == pd)?;
        region.range(addr, len, access)
    }
}

/// A peer without a receive: tried for ever, or given up at once, since no time passes here.
fn not_ready(rnr_retry: u8) -> Outcome {
    if rnr_retry == 7 {
        Wait
    } else {
        Done(ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR)
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
