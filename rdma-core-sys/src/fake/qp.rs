//! Queue pairs and their states.

use core::ffi::{c_int, c_void};
use std::collections::VecDeque;
use std::prelude::rust_2024::*;

use super::async_events::{Acks, Class, settle};
use super::control::PostedSend;
use super::device::{MAX_INLINE, MAX_SGE, MAX_WR};
use super::ext_qp::{Building, QpMemory};
use super::multicast::Group;
use super::table::CBox;
use super::windows::Bind;
use super::world::World;
use super::{by_return, enter, null, transitions, violation};
use crate::bindings::{
    ibv_context, ibv_event_type, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_cap,
    ibv_qp_init_attr, ibv_qp_state, ibv_qp_type, ibv_sge,
};

/// A send request in the queue.
#[derive(Debug, Clone, Default)]
pub(super) struct Wqe {
    pub(super) wr_id: u64,
    pub(super) opcode: u32,
    pub(super) flags: u32,
    pub(super) sges: Vec<ibv_sge>,
    /// The bytes of an inline request.
    pub(super) inline: Option<Vec<u8>>,
    pub(super) imm: u32,
    pub(super) remote_addr: u64,
    pub(super) rkey: u32,
    /// Operands of an atomic.
    pub(super) operands: [u64; 2],
    /// What a bind of a memory window asks for.
    pub(super) bind: Option<Bind>,
    /// Where a datagram goes.
    pub(super) datagram: Option<Destination>,
    /// How many requests were posted up to and with this one.
    pub(super) number: u64,
}

/// Where a datagram goes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Destination {
    pub(super) ah: usize,
    pub(super) number: u32,
    pub(super) qkey: u32,
}

/// A receive in the queue.
#[derive(Debug, Clone)]
pub(super) struct Rqe {
    pub(super) wr_id: u64,
    pub(super) sges: Vec<ibv_sge>,
    pub(super) number: u64,
}

/// One of the two queues: how many requests were posted, and how many of those are known to be over.
#[derive(Debug, Default)]
pub(super) struct Slots {
    pub(super) posted: u64,
    over: u64,
    pub(super) size: u64,
}

impl Slots {
    pub(super) fn is_full(&self) -> bool {
        self.is_full_with(0)
    }

    /// Whether there is no room once so many more are posted.
    pub(super) fn is_full_with(&self, more: u64) -> bool {
        self.posted - self.over + more >= self.size
    }
}

#[derive(Debug)]
pub(super) struct Qp {
    /// Extended ones and others: a plain one is the first part.
    pub(super) c: CBox<QpMemory>,
    pub(super) building: Building,
    pub(super) pd: usize,
    pub(super) send_cq: usize,
    pub(super) recv_cq: usize,
    pub(super) number: u32,
    pub(super) qp_type: ibv_qp_type,
    /// Where its receives come from, if not from its own queue.
    pub(super) srq: Option<usize>,
    /// The driver checks transitions itself, and the kernel's table does not apply.
    iwarp: bool,
    pub(super) state: ibv_qp_state,
    /// What was set so far.
    pub(super) attr: ibv_qp_attr,
    init: ibv_qp_init_attr,
    pub(super) send: Slots,
    pub(super) recv: Slots,
    pub(super) sends: VecDeque<Wqe>,
    pub(super) recvs: VecDeque<Rqe>,
    /// The last request to be carried out in SQD, and whether the end of it is to be told.
    pub(super) draining: Option<Draining>,
    pub(super) groups: Vec<Group>,
    pub(super) asyncs: Acks,
    /// Being destroyed: gives no more events.
    pub(super) dying: bool,
}

/// What is left to do for a send queue that was told to drain.
#[derive(Debug, Clone, Copy)]
pub(super) struct Draining {
    pub(super) last: u64,
    pub(super) tell: bool,
}

// SAFETY: the pointers in `init` are only handed back to who gave them.
unsafe impl Send for Qp {}

impl Qp {
    /// Gives slots back: all up to the request whose completion was polled.
    pub(super) fn free(&mut self, is_send: bool, over: u64) {
        let slots = if is_send {
            &mut self.send
        } else {
            &mut self.recv
        };
        slots.over = slots.over.max(over);
    }

    /// Drops what is posted, without a completion.
    pub(super) fn forget(&mut self) {
        self.sends.clear();
        self.recvs.clear();
        (self.send.over, self.recv.over) = (self.send.posted, self.recv.posted);
        self.draining = None;
    }

    pub(super) fn signals_all(&self) -> bool {
        self.init.sq_sig_all != 0
    }

    pub(super) fn is_iwarp(&self) -> bool {
        self.iwarp
    }

    pub(super) fn cap(&self) -> &ibv_qp_cap {
        &self.init.cap
    }
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_qp(
    pd: *mut ibv_pd,
    qp_init_attr: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    let call = "ibv_create_qp";
    enter(call)
        .and_then(|mut world| {
            // SAFETY: the caller gives a filled struct, which may be written to.
            let init = unsafe { &mut *qp_init_attr };
            create(&mut world, call, pd, init)
        })
        .map_or_else(null, <*mut QpMemory>::cast)
}

/// Makes a queue pair, and writes the granted sizes into `init`.
pub(super) fn create(
    world: &mut World,
    call: &str,
    pd: *mut ibv_pd,
    init: &mut ibv_qp_init_attr,
) -> Result<*mut QpMemory, c_int> {
    let context = world.pds.of(call, pd).context;
    let iwarp = world.devices.is_iwarp(context);
    let (send_cq, recv_cq) = (init.send_cq, init.recv_cq);
    let xrc = init.qp_type == ibv_qp_type::IBV_QPT_XRC_SEND;
    if recv_cq.is_null() != xrc {
        return Err(libc::EINVAL);
    }
    for cq in [send_cq, recv_cq].into_iter().filter(|cq| !cq.is_null()) {
        if world.cqs.of(call, cq).context != context {
            return Err(libc::EINVAL);
        }
    }
    let cap = &mut init.cap;
    if iwarp && init.qp_type != ibv_qp_type::IBV_QPT_RC {
        return Err(libc::EOPNOTSUPP);
    }
    if cap.max_send_wr > MAX_WR
        || cap.max_recv_wr > MAX_WR
        || cap.max_send_sge > MAX_SGE
        || cap.max_recv_sge > MAX_SGE
        || cap.max_inline_data > MAX_INLINE
    {
        return Err(libc::EINVAL);
    }
    let srq = (!init.srq.is_null()).then(|| init.srq.addr());
    if let Some(srq) = srq {
        let pd = world.srqs.at(call, srq).pd;
        if world.pds.at(call, pd).context != context {
            return Err(libc::EINVAL);
        }
        // There is no receive queue beside it.
        (init.cap.max_recv_wr, init.cap.max_recv_sge) = (0, 0);
        world.srqs.at(call, srq).users += 1;
    }
    world.pds.of(call, pd).users += 1;
    for cq in [send_cq, recv_cq].into_iter().filter(|cq| !cq.is_null()) {
        world.cqs.of(call, cq).users += 1;
    }
    Ok(insert(world, context, pd, init, None))
}

/// Makes a handle of the receiving end of an extended reliable connection, which has neither domain nor queues: a new end, or
/// the one of a number.
pub(super) fn create_target(
    world: &mut World,
    context: *mut ibv_context,
    number: Option<u32>,
) -> *mut ibv_qp {
    let init = ibv_qp_init_attr {
        qp_type: ibv_qp_type::IBV_QPT_XRC_RECV,
        ..ibv_qp_init_attr::default()
    };
    insert(world, context.addr(), core::ptr::null_mut(), &init, number).cast()
}

/// Enters a queue pair, with a new number unless it has one.
fn insert(
    world: &mut World,
    context: usize,
    pd: *mut ibv_pd,
    init: &ibv_qp_init_attr,
    number: Option<u32>,
) -> *mut QpMemory {
    let (send_cq, recv_cq) = (init.send_cq, init.recv_cq);
    let handle = world.number();
    let opened = number.is_some();
    let number = number.unwrap_or(handle + 16);
    let c = CBox::new(QpMemory::new(ibv_qp {
        context: world.devices.context(context),
        qp_context: init.qp_context,
        pd,
        send_cq,
        recv_cq,
        srq: init.srq,
        handle,
        qp_num: number,
        state: ibv_qp_state::IBV_QPS_RESET,
        qp_type: init.qp_type,
        ..ibv_qp::default()
    }));
    let (pointer, address) = (c.as_ptr(), c.address());
    let slots = |size: u32| Slots {
        size: size.into(),
        ..Slots::default()
    };
    let qp = Qp {
        c,
        building: Building::default(),
        pd: pd.addr(),
        send_cq: send_cq.addr(),
        recv_cq: recv_cq.addr(),
        number,
        qp_type: init.qp_type,
        srq: (!init.srq.is_null()).then(|| init.srq.addr()),
        iwarp: world.devices.is_iwarp(context),
        state: ibv_qp_state::IBV_QPS_RESET,
        attr: ibv_qp_attr::default(),
        send: slots(init.cap.max_send_wr),
        recv: slots(init.cap.max_recv_wr),
        init: *init,
        sends: VecDeque::new(),
        recvs: VecDeque::new(),
        draining: None,
        groups: Vec::new(),
        asyncs: Acks::default(),
        dying: false,
    };
    if !opened {
        world.numbers.insert(number, address);
    }
    world.qps.insert(address, qp);
    pointer
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    let call = "ibv_destroy_qp";
    by_return(enter(call).and_then(|mut world| {
        let address = qp.addr();
        let state = world.qps.of(call, qp);
        if !state.groups.is_empty() {
            return Err(libc::EBUSY);
        }
        if world.has_windows(address) {
            violation("ibv_destroy_qp would block for a minute: a memory window of type 2 is bound to the queue pair");
        }
        let state = world.qps.of(call, qp);
        state.dying = true;
        // Gone for its peer from here on.
        state.state = ibv_qp_state::IBV_QPS_RESET;
        state.forget();
        let (number, other) = (state.number, state.attr.dest_qp_num);
        let cqs = [state.send_cq, state.recv_cq];
        if world.numbers.get(&number) == Some(&address) {
            world.numbers.remove(&number);
        }
        if world.knobs.purges {
            world.purge(address, cqs);
        }
        let mut world = settle(world, call, Class::Qp, address);
        let Some(qp) = world.qps.remove(address) else {
            return Ok(());
        };
        // The ends of extended reliable connections lack some of these.
        if qp.pd != 0 {
            world.pds.at(call, qp.pd).users -= 1;
        }
        for cq in [qp.send_cq, qp.recv_cq].into_iter().filter(|&cq| cq != 0) {
            world.cqs.at(call, cq).users -= 1;
        }
        world.release_xrc_target(call, address);
        if let Some(srq) = qp.srq {
            world.srqs.at(call, srq).users -= 1;
        }
        qp.c.retire();
        // What the peer has under way towards it now ends.
        world.progress_peer(number, other);
        Ok(())
    }))
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    attr_mask: c_int,
) -> c_int {
    let call = "ibv_modify_qp";
    by_return(enter(call).and_then(|mut world| {
        // SAFETY: the caller gives a filled struct.
        let attr = unsafe { attr.read() };
        let address = qp.addr();
        world.qps.of(call, qp);
        world
            .optional
            .note(call, std::format!("mask={attr_mask:#x}"));
        world.modify(address, &attr, attr_mask.cast_unsigned())?;
        let state = world.qps.of(call, qp).state;
        if attr_mask.cast_unsigned() & ibv_qp_attr_mask::IBV_QP_STATE.0 != 0 {
            // SAFETY: the queue pair is in the table, so it is live; the library writes the field as well.
            unsafe { (*qp).state = state };
        }
        if state == ibv_qp_state::IBV_QPS_ERR && !world.knobs.held {
            world.flush(address, true);
        }
        world.progress(address);
        let (number, other) = {
            let qp = world.qps.of(call, qp);
            (qp.number, qp.attr.dest_qp_num)
        };
        world.progress_peer(number, other);
        Ok(())
    }))
}

impl World {
    /// Puts a request into the send queue, which has room for it.
    pub(super) fn put(&mut self, address: usize, mut wqe: Wqe) {
        let qp = self.qps.at("a post", address);
        qp.send.posted += 1;
        wqe.number = qp.send.posted;
        let record = PostedSend::of(qp.number, &wqe);
        qp.sends.push_back(wqe);
        self.sends.push(record);
    }

    /// Checks the attributes against the kernel's table and sets them.
    pub(super) fn modify(
        &mut self,
        address: usize,
        attr: &ibv_qp_attr,
        mask: u32,
    ) -> Result<(), c_int> {
        use ibv_qp_attr_mask as A;

        let qp = self.qps.at("ibv_modify_qp", address);
        let has = |bit: A| mask & bit.0 != 0;
        let to = if has(A::IBV_QP_STATE) {
            attr.qp_state
        } else {
            qp.state
        };
        if !qp.iwarp {
            let (required, optional) =
                transitions::attributes(qp.qp_type, qp.state, to).ok_or(libc::EINVAL)?;
            let given = mask & !A::IBV_QP_STATE.0;
            if given & required != required || given & !(required | optional) != 0 {
                return Err(libc::EINVAL);
            }
        }
        if has(A::IBV_QP_PORT) && attr.port_num != 1
            || has(A::IBV_QP_PKEY_INDEX) && attr.pkey_index != 0
            || has(A::IBV_QP_AV) && attr.ah_attr.is_global != 1
            || has(A::IBV_QP_TIMEOUT) && attr.timeout > 31
            || has(A::IBV_QP_RETRY_CNT) && attr.retry_cnt > 7
            || has(A::IBV_QP_RNR_RETRY) && attr.rnr_retry > 7
            || has(A::IBV_QP_MIN_RNR_TIMER) && attr.min_rnr_timer > 31
            || has(A::IBV_QP_MAX_QP_RD_ATOMIC) && attr.max_rd_atomic > super::device::MAX_READS
            || has(A::IBV_QP_MAX_DEST_RD_ATOMIC)
                && attr.max_dest_rd_atomic > super::device::MAX_READS
        {
            return Err(libc::EINVAL);
        }
        macro_rules! set {
            ($($bit:ident => $field:ident),* $(,)?) => {
                $(if has(A::$bit) { qp.attr.$field = attr.$field; })*
            };
        }
        set! {
            IBV_QP_ACCESS_FLAGS => qp_access_flags,
            IBV_QP_PKEY_INDEX => pkey_index,
            IBV_QP_PORT => port_num,
            IBV_QP_QKEY => qkey,
            IBV_QP_AV => ah_attr,
            IBV_QP_PATH_MTU => path_mtu,
            IBV_QP_TIMEOUT => timeout,
            IBV_QP_RETRY_CNT => retry_cnt,
            IBV_QP_RNR_RETRY => rnr_retry,
            IBV_QP_RQ_PSN => rq_psn,
            IBV_QP_MAX_QP_RD_ATOMIC => max_rd_atomic,
            IBV_QP_MIN_RNR_TIMER => min_rnr_timer,
            IBV_QP_SQ_PSN => sq_psn,
            IBV_QP_MAX_DEST_RD_ATOMIC => max_dest_rd_atomic,
            IBV_QP_DEST_QPN => dest_qp_num,
        }
        let from = qp.state;
        qp.state = to;
        match to {
            ibv_qp_state::IBV_QPS_RESET => {
                qp.forget();
                let cqs = [qp.send_cq, qp.recv_cq];
                if self.knobs.purges {
                    self.purge(address, cqs);
                }
            }
            ibv_qp_state::IBV_QPS_SQD if from != to => {
                qp.draining = Some(Draining {
                    last: qp.send.posted,
                    tell: has(A::IBV_QP_EN_SQD_ASYNC_NOTIFY) && attr.en_sqd_async_notify != 0,
                });
            }
            ibv_qp_state::IBV_QPS_ERR if from != to => self.last_receive_taken(address),
            _ => {}
        }
        Ok(())
    }

    /// Says that a queue pair that has failed takes no more receives from its shared queue.
    pub(super) fn last_receive_taken(&mut self, address: usize) {
        let shares = self.qps.find(address).is_some_and(|qp| qp.srq.is_some());
        if shares {
            self.raise_qp(ibv_event_type::IBV_EVENT_QP_LAST_WQE_REACHED, address);
        }
    }

    /// Brings a queue pair to RTS as an iWARP connection does, by number.
    pub(super) fn iwarp_ready(&mut self, number: u32, peer: u32) {
        let Some(&address) = self.numbers.get(&number) else {
            return;
        };
        let qp = self.qps.at("an iWARP connection", address);
        qp.state = ibv_qp_state::IBV_QPS_RTS;
        qp.attr.dest_qp_num = peer;
        qp.attr.max_dest_rd_atomic = super::device::MAX_READS;
        qp.attr.rnr_retry = 7;
        self.progress(address);
    }
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _attr_mask: c_int,
    init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    let call = "ibv_query_qp";
    by_return(enter(call).map(|mut world| {
        let state = world.qps.of(call, qp);
        let mut now = state.attr;
        now.qp_state = state.state;
        now.cur_qp_state = state.state;
        now.cap = state.init.cap;
        now.sq_draining = u8::from(state.draining.is_some());
        // SAFETY: the caller gives a place for the struct.
        unsafe { attr.write(now) };
        // SAFETY: the caller gives a place for the struct.
        unsafe { init_attr.write(state.init) };
        // SAFETY: the queue pair is in the table, so it is live; the library writes the field as well.
        unsafe { (*qp).state = state.state };
    }))
}

const _: () = assert!(
    size_of::<*mut c_void>() == 8,
    "addresses are carried in 64 bits"
);
