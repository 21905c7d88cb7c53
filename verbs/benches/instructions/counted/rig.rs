//! Objects of the fake device under a provider that does next to nothing.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use verbs::{
    CompletionFields, CompletionQueue, Context, Error, ExtendedCompletionQueue, ExtendedQueuePair,
    LocalKey, MemoryRegion, QpType, QueuePair, RemoteAddr, SendOps, SharedReceiveQueue, sys,
};

use super::common::{Memory, Pair, connect, everything, open, to_init, to_rtr, to_rts};

/// Bytes of one message.
pub(crate) const LENGTH: u32 = 8;
/// Where the messages lie: this many places of `LENGTH` bytes.
const PLACES: u64 = 64;

/// Two connected queue pairs and what a request needs.
pub(crate) struct Rig {
    pub(crate) pair: Pair,
    pub(crate) qp: *mut sys::ibv_qp,
    pub(crate) cq: *mut sys::ibv_cq,
    pub(crate) raw_srq: *mut sys::ibv_srq,
    pub(crate) srq: SharedReceiveQueue,
    /// Of queue pairs that the tests of the checks make.
    pub(crate) spare_cq: CompletionQueue,
    /// Posts take it mutably, and one loop runs at a time.
    pub(crate) extended: UnsafeCell<ExtendedQueuePair>,
    pub(crate) raw_extended: *mut sys::ibv_qp_ex,
    pub(crate) extended_cq: ExtendedCompletionQueue,
    pub(crate) lkey: LocalKey,
    pub(crate) remote: RemoteAddr,
    start: u64,
    _region: MemoryRegion,
    _memory: Memory,
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
            qp: pair.a.as_raw(),
            cq: pair.a_cq.as_raw(),
            spare_cq: CompletionQueue::builder(&pair.context, 256).build()?,
            raw_srq: srq.as_raw(),
            srq,
            lkey: region.lkey(),
            remote: RemoteAddr {
                addr: region.iova(),
                rkey: region.rkey(),
            },
            start: region.iova(),
            pair,
            _region: region,
            _memory: memory,
        })
    }

    /// Where the data of a round lies: not the same address every time, or the compiler would
    /// prepare the request once.
    #[inline(always)]
    pub(crate) fn place(&self, round: u64) -> u64 {
        self.start + round % PLACES * u64::from(LENGTH)
    }
}

/// How many requests the provider was given.
pub(crate) fn taken() -> u64 {
    TAKEN.load(Ordering::Relaxed)
}

/// How many completions the next polls find.
pub(crate) fn set_ready(count: i32) {
    READY.store(count, Ordering::Relaxed);
}

static TAKEN: AtomicU64 = AtomicU64::new(0);
static READY: AtomicI32 = AtomicI32::new(1);

/// Before any queue is made: a queue goes by what it found then.
pub(crate) fn install(context: &Context) {
    let context = context.as_raw();
    // SAFETY: the context is open, and no other thread uses it.
    let ops = unsafe { &mut (*context).ops };
    ops.post_send = Some(post_send);
    ops.post_recv = Some(post_recv);
    ops.post_srq_recv = Some(post_srq_recv);
    ops.poll_cq = Some(poll_cq);
}

/// Not `fetch_add`: the proof that nothing is locked looks at this code, too.
fn count_one() {
    TAKEN.store(TAKEN.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

unsafe extern "C" fn post_send(
    _qp: *mut sys::ibv_qp,
    mut wr: *mut sys::ibv_send_wr,
    _bad: *mut *mut sys::ibv_send_wr,
) -> c_int {
    while !wr.is_null() {
        count_one();
        // SAFETY: the list is made of whole requests.
        wr = unsafe { (*wr).next };
    }
    0
}

unsafe extern "C" fn post_recv(
    _qp: *mut sys::ibv_qp,
    mut wr: *mut sys::ibv_recv_wr,
    _bad: *mut *mut sys::ibv_recv_wr,
) -> c_int {
    while !wr.is_null() {
        count_one();
        // SAFETY: the list is made of whole requests.
        wr = unsafe { (*wr).next };
    }
    0
}

unsafe extern "C" fn post_srq_recv(
    _srq: *mut sys::ibv_srq,
    wr: *mut sys::ibv_recv_wr,
    bad: *mut *mut sys::ibv_recv_wr,
) -> c_int {
    // SAFETY: forwarded to the caller; the queue pair is not looked at.
    unsafe { post_recv(std::ptr::null_mut(), wr, bad) }
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
    if READY.load(Ordering::Relaxed) > 0 {
        0
    } else {
        libc::ENOENT
    }
}

unsafe extern "C" fn end_poll(_cq: *mut sys::ibv_cq_ex) {}

unsafe extern "C" fn read_opcode(_cq: *mut sys::ibv_cq_ex) -> sys::ibv_wc_opcode {
    sys::ibv_wc_opcode::IBV_WC_RDMA_WRITE
}

unsafe extern "C" fn read_number(_cq: *mut sys::ibv_cq_ex) -> u32 {
    0
}

unsafe extern "C" fn poll_cq(_cq: *mut sys::ibv_cq, room: c_int, wc: *mut sys::ibv_wc) -> c_int {
    let count = READY.load(Ordering::Relaxed).min(room);
    for index in 0..count.cast_unsigned() {
        // SAFETY: every bit pattern is a value, and zero is a success.
        let mut completion: sys::ibv_wc = unsafe { MaybeUninit::zeroed().assume_init() };
        completion.wr_id = index.into();
        completion.byte_len = LENGTH;
        let place = wc.wrapping_add(index as usize);
        // SAFETY: the caller has room for that many.
        unsafe { place.write(completion) };
    }
    count
}
