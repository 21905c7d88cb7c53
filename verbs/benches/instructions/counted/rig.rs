//! Objects of the fake device under a provider that does next to nothing.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::ops::Deref;

use verbs::{
    CompletionFields, CompletionQueue, Error, ExtendedCompletionQueue, ExtendedQueuePair,
    MemoryRegion, QpType, QueuePair, RemoteAddr, SendOps, SharedReceiveQueue, sys,
};

use crate::harness::provider::{LENGTH, count_one, install, ready};
use crate::harness::raw::{PLACES, Raw};

use super::common::{Memory, Pair, connect, everything, open, to_init, to_rtr, to_rts};

/// Two connected queue pairs and what a request needs.
pub(crate) struct Rig {
    pub(crate) pair: Pair,
    raw: Raw,
    pub(crate) raw_srq: *mut sys::ibv_srq,
    pub(crate) srq: SharedReceiveQueue,
    /// Of queue pairs that the tests of the checks make.
    pub(crate) spare_cq: CompletionQueue,
    /// Posts take it mutably, and one loop runs at a time.
    pub(crate) extended: UnsafeCell<ExtendedQueuePair>,
    pub(crate) raw_extended: *mut sys::ibv_qp_ex,
    pub(crate) extended_cq: ExtendedCompletionQueue,
    _region: MemoryRegion,
    _memory: Memory,
}

impl Deref for Rig {
    type Target = Raw;

    #[inline(always)]
    fn deref(&self) -> &Raw {
        &self.raw
    }
}

impl Rig {
    pub(crate) fn new() -> Result<Self, Error> {
        let context = open()?;
        install(&context);
        let pair = Pair::of(context)?;
        connect(&pair.a, &pair.b, 7)?;
        let srq = SharedReceiveQueue::new(&pair.pd, 16, 1)?;
        let memory = Memory::new(usize::try_from(PLACES * u64::from(LENGTH)).expect("small"));
        let region = memory.register(&pair.pd, everything())?;
        let fields = CompletionFields::BYTE_LEN;
        let extended_cq = CompletionQueue::builder(&pair.context, 64).build_extended(fields)?;
        let extended = QueuePair::builder(
            &pair.pd,
            QpType::RC,
            extended_cq.queue(),
            extended_cq.queue(),
        )
        .max_send_wr(16)
        .max_recv_wr(1)
        .build_extended(SendOps::RDMA_WRITE)?;
        to_init(extended.queue_pair())?;
        to_rtr(extended.queue_pair(), &pair.b)?;
        to_rts(extended.queue_pair(), 7)?;
        // SAFETY: both are live, and no other thread uses them.
        unsafe { install_extended(extended.as_raw(), extended_cq.as_raw()) };
        Ok(Self {
            raw_extended: extended.as_raw(),
            extended: extended.into(),
            extended_cq,
            raw: Raw {
                qp: pair.a.as_raw(),
                cq: pair.a_cq.as_raw(),
                lkey: region.lkey().0,
                remote: RemoteAddr {
                    addr: region.iova(),
                    rkey: region.rkey(),
                },
                start: region.iova(),
            },
            spare_cq: CompletionQueue::builder(&pair.context, 256).build()?,
            raw_srq: srq.as_raw(),
            srq,
            pair,
            _region: region,
            _memory: memory,
        })
    }
}

/// Puts a provider that does nothing under an extended queue pair and an extended completion queue.
///
/// # Safety
/// - Both are live, and no other thread uses them.
unsafe fn install_extended(qp: *mut sys::ibv_qp_ex, cq: *mut sys::ibv_cq_ex) {
    // SAFETY: as the caller says.
    let qp = unsafe { &mut *qp };
    qp.wr_start = Some(wr_start);
    qp.wr_rdma_write = Some(wr_rdma_write);
    qp.wr_set_sge = Some(wr_set_sge);
    qp.wr_complete = Some(wr_complete);
    // SAFETY: as the caller says.
    let cq = unsafe { &mut *cq };
    (cq.status, cq.wr_id) = (sys::ibv_wc_status::IBV_WC_SUCCESS, 1);
    cq.start_poll = Some(start_poll);
    cq.end_poll = Some(end_poll);
    cq.read_opcode = Some(read_opcode);
    cq.read_wc_flags = Some(read_number);
    cq.read_byte_len = Some(read_number);
}

unsafe extern "C" fn wr_start(_qp: *mut sys::ibv_qp_ex) {}

unsafe extern "C" fn wr_rdma_write(_qp: *mut sys::ibv_qp_ex, _rkey: u32, _addr: u64) {
    count_one();
}

unsafe extern "C" fn wr_set_sge(_qp: *mut sys::ibv_qp_ex, _lkey: u32, _addr: u64, _length: u32) {}

unsafe extern "C" fn wr_complete(_qp: *mut sys::ibv_qp_ex) -> c_int {
    0
}

unsafe extern "C" fn start_poll(
    _cq: *mut sys::ibv_cq_ex,
    _attr: *mut sys::ibv_poll_cq_attr,
) -> c_int {
    if ready() > 0 { 0 } else { libc::ENOENT }
}

unsafe extern "C" fn end_poll(_cq: *mut sys::ibv_cq_ex) {}

unsafe extern "C" fn read_opcode(_cq: *mut sys::ibv_cq_ex) -> sys::ibv_wc_opcode {
    sys::ibv_wc_opcode::IBV_WC_RDMA_WRITE
}

unsafe extern "C" fn read_number(_cq: *mut sys::ibv_cq_ex) -> u32 {
    0
}
