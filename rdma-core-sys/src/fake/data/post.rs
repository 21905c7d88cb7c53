//! Posting: what is taken into the queues.

use core::ffi::c_int;
use std::prelude::rust_2024::*;

use super::super::control::{PostedRecv, PostedSge};
use super::super::memory;
use super::super::qp::{Destination, Rqe, Wqe};
use super::super::violation;
use super::super::windows::Bind;
use super::super::world::{World, lock};
use super::{completion_opcode, is, is_atomic, total};
use crate::bindings::{
    ibv_mw_type, ibv_qp, ibv_qp_state, ibv_qp_type, ibv_recv_wr, ibv_send_flags, ibv_send_wr,
    ibv_sge, ibv_srq, ibv_wr_opcode,
};

/// # Safety
/// - `list` points to `count` entries.
pub(in crate::fake) unsafe fn sges_of(list: *const ibv_sge, count: usize) -> Vec<ibv_sge> {
    // SAFETY: the caller vouches for the entries.
    (0..count)
        .map(|index| unsafe { list.wrapping_add(index).read() })
        .collect()
}

pub(in crate::fake) unsafe extern "C" fn post_send(
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
    let mut world = super::super::ext_qp::wait_for_end(world, call, address);
    let mut next = wr;
    while !next.is_null() {
        // SAFETY: the list is made of whole requests.
        let request = unsafe { next.read() };
        if super::is_native(request.opcode.0) {
            world.progress(address);
            return refuse(libc::EINVAL, next);
        }
        // SAFETY: as the caller of this function promised for every request.
        if let Err(errno) = unsafe { world.enqueue(address, &request) } {
            // What was queued before is carried out.
            world.progress(address);
            return refuse(errno, next);
        }
        next = request.next;
    }
    match ring(&mut world, address) {
        Ok(()) => 0,
        Err(errno) => refuse(errno, core::ptr::null_mut()),
    }
}

/// Tells the device that there are requests. When that fails they stay in the queue.
pub(in crate::fake) fn ring(world: &mut World, address: usize) -> Result<(), c_int> {
    if core::mem::take(&mut world.knobs.lose_doorbell) {
        return Err(libc::EINVAL);
    }
    if !matches!(
        world.qps.at("a doorbell", address).state,
        ibv_qp_state::IBV_QPS_RTS | ibv_qp_state::IBV_QPS_SQD | ibv_qp_state::IBV_QPS_ERR
    ) {
        // Refused, and carried out once the queue pair may send: SoftRoCE does so.
        return Err(libc::EINVAL);
    }
    world.progress(address);
    Ok(())
}

/// Takes a list of receives, each by `take`, up to the first that is refused.
///
/// # Safety
/// - The list is made of whole requests, and there is a place for the one that is refused.
unsafe fn receives(
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
    mut take: impl FnMut(&ibv_recv_wr, usize) -> Result<(), c_int>,
) -> c_int {
    let mut next = wr;
    while !next.is_null() {
        // SAFETY: the list is made of whole requests.
        let request = unsafe { next.read() };
        let count = usize::try_from(request.num_sge).unwrap_or(usize::MAX);
        if let Err(errno) = take(&request, count) {
            // SAFETY: the caller gives a place for the pointer.
            unsafe { bad_wr.write(next) };
            return errno;
        }
        next = request.next;
    }
    0
}

pub(in crate::fake) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    let call = "ibv_post_recv";
    let mut world = lock();
    let failed = world.record(call);
    let address = qp.addr();
    let take = |request: &ibv_recv_wr, count| {
        failed?;
        let state = world.qps.of(call, qp);
        if state.srq.is_some()
            || state.state == ibv_qp_state::IBV_QPS_RESET
            || count > state.cap().max_recv_sge as usize
        {
            return Err(libc::EINVAL);
        }
        if state.recv.is_full() {
            return Err(libc::ENOMEM);
        }
        // SAFETY: the list has as many entries as the request says.
        let sges = unsafe { sges_of(request.sg_list, count) };
        state.recv.posted += 1;
        let number = state.recv.posted;
        let record = PostedRecv {
            qp_num: state.number,
            wr_id: request.wr_id,
            sges: PostedSge::list(&sges),
        };
        state.recvs.push_back(Rqe {
            wr_id: request.wr_id,
            sges,
            number,
        });
        world.recvs.push(record);
        Ok(())
    };
    // SAFETY: as the caller of this function promised.
    let result = unsafe { receives(wr, bad_wr, take) };
    if failed.is_ok() {
        let (number, other) = {
            let qp = world.qps.of(call, qp);
            (qp.number, qp.attr.dest_qp_num)
        };
        world.progress(address);
        // The peer may have waited for it.
        world.progress_peer(number, other);
    }
    result
}

pub(in crate::fake) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    let call = "ibv_post_srq_recv";
    let mut world = lock();
    let failed = world.record(call);
    let take = |request: &ibv_recv_wr, count| {
        failed?;
        let state = world.srqs.of(call, srq);
        if count > state.attr.max_sge as usize {
            return Err(libc::EINVAL);
        }
        if state.is_full() {
            return Err(libc::ENOMEM);
        }
        // SAFETY: the list has as many entries as the request says.
        let sges = unsafe { sges_of(request.sg_list, count) };
        let record = PostedRecv {
            qp_num: 0,
            wr_id: request.wr_id,
            sges: PostedSge::list(&sges),
        };
        state.recvs.push_back(Rqe {
            wr_id: request.wr_id,
            sges,
            number: 0,
        });
        world.recvs.push(record);
        Ok(())
    };
    // SAFETY: as the caller of this function promised.
    let result = unsafe { receives(wr, bad_wr, take) };
    if failed.is_ok() {
        // Peers of any of its queue pairs may have waited for it.
        world.progress_srq_peers(srq.addr());
    }
    result
}

impl World {
    /// Takes a request into the queue, or gives the errno.
    ///
    /// # Safety
    /// - The request's list is whole, and for an inline request the memory that it names is readable.
    pub(in crate::fake) unsafe fn enqueue(
        &mut self,
        address: usize,
        request: &ibv_send_wr,
    ) -> Result<(), c_int> {
        let call = "ibv_post_send";
        let qp = self.qps.at(call, address);
        let qp_type = qp.qp_type;
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
        // SAFETY: every operation writes target and key, or zeroes in their place.
        let rdma = unsafe { request.wr.rdma };
        let atomic = if is_atomic(request.opcode.0) {
            // SAFETY: the operation says that this arm is written.
            unsafe { request.wr.atomic }
        } else {
            Default::default()
        };
        // SAFETY: as above.
        let imm = unsafe { request.__bindgen_anon_1.imm_data };
        let rkey = if is_atomic(request.opcode.0) {
            atomic.rkey
        } else {
            rdma.rkey
        };
        let bind = if request.opcode == ibv_wr_opcode::IBV_WR_BIND_MW {
            // SAFETY: as above.
            let wanted = unsafe { request.__bindgen_anon_2.bind_mw };
            let bind = Bind::new(call, wanted.mw, wanted.rkey, &wanted.bind_info);
            // SoftRoCE wants the unused union to be zero, and type 1 to be bound by its own call.
            if imm != 0 || self.mws.of(call, wanted.mw).kind != ibv_mw_type::IBV_MW_TYPE_2 {
                return Err(libc::EINVAL);
            }
            Some(bind)
        } else {
            None
        };
        let datagram = if qp_type == ibv_qp_type::IBV_QPT_UD {
            // SAFETY: as above.
            let to = unsafe { request.wr.ud };
            if to.ah.is_null() {
                violation(
                    "ibv_post_send of a datagram without an address handle: SoftRoCE's library follows the pointer",
                );
            }
            self.ahs.of(call, to.ah);
            Some(Destination {
                ah: to.ah.addr(),
                number: to.remote_qpn,
                qkey: to.remote_qkey,
            })
        } else {
            None
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
            bind,
            datagram,
            number: 0,
        };
        self.put(address, wqe);
        Ok(())
    }
}
