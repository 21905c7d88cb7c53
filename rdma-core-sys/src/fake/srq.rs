//! Shared receive queues.

use core::ffi::{c_int, c_void};
use std::collections::VecDeque;
use std::prelude::rust_2024::*;

use super::async_events::{Acks, Class, settle};
use super::qp::Rqe;
use super::table::CBox;
use super::world::World;
use super::{by_return, enter, null};
use crate::bindings::{
    ibv_event_type, ibv_pd, ibv_srq, ibv_srq_attr, ibv_srq_attr_mask, ibv_srq_init_attr,
};

/// Receives of a queue, and SGEs of one of them: fewer than a queue pair's own, as on SoftRoCE.
pub(super) const MAX_SRQ_WR: u32 = 1 << 14;
pub(super) const MAX_SRQ_SGE: u32 = 27;

#[derive(Debug)]
pub(super) struct Srq {
    pub(super) c: CBox<ibv_srq>,
    pub(super) pd: usize,
    pub(super) recvs: VecDeque<Rqe>,
    pub(super) attr: ibv_srq_attr,
    /// Queue pairs.
    pub(super) users: usize,
    pub(super) asyncs: Acks,
    /// Being destroyed: gives no more events.
    pub(super) dying: bool,
}

impl Srq {
    pub(super) fn is_full(&self) -> bool {
        self.recvs.len() >= self.attr.max_wr as usize
    }
}

impl World {
    /// Makes a queue, or gives the errno; the sizes granted are in the attributes then.
    pub(super) fn new_srq(
        &mut self,
        call: &str,
        pd: *mut ibv_pd,
        srq_context: *mut c_void,
        attr: ibv_srq_attr,
    ) -> Result<*mut ibv_srq, c_int> {
        let context = self.pds.of(call, pd).context;
        if attr.max_wr == 0
            || attr.max_wr > MAX_SRQ_WR
            || attr.max_sge > MAX_SRQ_SGE
            || attr.srq_limit > attr.max_wr
        {
            return Err(libc::EINVAL);
        }
        let handle = self.number();
        let c = CBox::new(ibv_srq {
            context: self.devices.context(context),
            srq_context,
            pd,
            handle,
            ..ibv_srq::default()
        });
        let pointer = c.as_ptr();
        self.pds.of(call, pd).users += 1;
        let srq = Srq {
            c,
            pd: pd.addr(),
            recvs: VecDeque::new(),
            attr,
            users: 0,
            asyncs: Acks::default(),
            dying: false,
        };
        self.srqs.insert(pointer.addr(), srq);
        Ok(pointer)
    }

    /// Says once that a queue has fewer receives than its limit.
    pub(super) fn check_srq_limit(&mut self, address: usize) {
        let Some(srq) = self.srqs.find(address) else {
            return;
        };
        if srq.recvs.len() < srq.attr.srq_limit as usize {
            srq.attr.srq_limit = 0;
            self.raise_srq(ibv_event_type::IBV_EVENT_SRQ_LIMIT_REACHED, address);
        }
    }

    /// Goes on with the peers of all queue pairs that take their receives from a queue.
    pub(super) fn progress_srq_peers(&mut self, address: usize) {
        let served: Vec<_> = self
            .qps
            .iter()
            .filter(|(_, qp)| qp.srq == Some(address))
            .map(|(_, qp)| (qp.number, qp.attr.dest_qp_num))
            .collect();
        for (number, other) in served {
            self.progress_peer(number, other);
        }
    }
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_srq(
    pd: *mut ibv_pd,
    srq_init_attr: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    let call = "ibv_create_srq";
    let mut world = match enter(call) {
        Ok(world) => world,
        Err(errno) => return null(errno),
    };
    // SAFETY: the caller gives a filled struct.
    let init = unsafe { srq_init_attr.read() };
    match world.new_srq(call, pd, init.srq_context, init.attr) {
        Ok(srq) => srq,
        Err(errno) => null(errno),
    }
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_srq(
    srq: *mut ibv_srq,
    srq_attr: *mut ibv_srq_attr,
    srq_attr_mask: c_int,
) -> c_int {
    let call = "ibv_modify_srq";
    by_return(enter(call).and_then(|mut world| {
        // SAFETY: the caller gives a struct with the attributes that the mask names.
        let wanted = unsafe { srq_attr.read() };
        let srq = world.srqs.of(call, srq);
        let has = |bit: ibv_srq_attr_mask| srq_attr_mask.cast_unsigned() & bit.0 != 0;
        let mut now = srq.attr;
        if has(ibv_srq_attr_mask::IBV_SRQ_MAX_WR) {
            let fits = (1..=MAX_SRQ_WR).contains(&wanted.max_wr)
                && wanted.max_wr as usize >= srq.recvs.len()
                && wanted.max_wr >= now.srq_limit;
            if !fits {
                return Err(libc::EINVAL);
            }
            now.max_wr = wanted.max_wr;
        }
        if has(ibv_srq_attr_mask::IBV_SRQ_LIMIT) {
            if wanted.srq_limit > now.max_wr {
                return Err(libc::EINVAL);
            }
            now.srq_limit = wanted.srq_limit;
        }
        srq.attr = now;
        Ok(())
    }))
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, srq_attr: *mut ibv_srq_attr) -> c_int {
    let call = "ibv_query_srq";
    by_return(enter(call).map(|mut world| {
        let attr = world.srqs.of(call, srq).attr;
        // SAFETY: the caller gives a place for the struct.
        unsafe { srq_attr.write(attr) };
    }))
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    let call = "ibv_destroy_srq";
    by_return(enter(call).and_then(|mut world| {
        let state = world.srqs.of(call, srq);
        if state.users > 0 {
            return Err(libc::EBUSY);
        }
        state.dying = true;
        let mut world = settle(world, call, Class::Srq, srq.addr());
        if let Some(srq) = world.srqs.remove(srq.addr()) {
            world.pds.at(call, srq.pd).users -= 1;
            world.release_xrc_srq(call, srq.c.address());
            srq.c.retire();
        }
        Ok(())
    }))
}
