//! Two connected queue pairs, and memory for them.

use std::mem::MaybeUninit;

use verbs::sys::fake::control;
use verbs::{
    AccessFlags, CompletionChannel, CompletionQueue, Context, Deadline, DeviceList, Error,
    MemoryRegion, ProtectionDomain, QpAttributes, QpType, QueuePair, RemoteAddr, Sge,
    WorkCompletion, sys,
};

pub(crate) fn soon() -> Deadline {
    Deadline::after(control::within(5))
}

/// Memory for a region, at a multiple of 8, never borrowed while it is registered.
pub(crate) struct Memory {
    start: *mut u8,
    len: usize,
}

// SAFETY: the memory is this object's alone, and any thread may free it.
unsafe impl Send for Memory {}

impl Memory {
    pub(crate) fn new(len: usize) -> Self {
        let memory: Box<[u64]> = vec![0; len.div_ceil(8)].into();
        Self {
            start: Box::into_raw(memory).cast(),
            len,
        }
    }

    pub(crate) fn register(
        &self,
        pd: &ProtectionDomain,
        access: AccessFlags,
    ) -> Result<MemoryRegion, Error> {
        // SAFETY: the memory lives until the test drops it, after its regions, and is only reached
        // through raw pointers.
        unsafe { MemoryRegion::register(pd, self.start, self.len, access) }
    }

    pub(crate) fn get(&self) -> Vec<u8> {
        // SAFETY: the memory has that many bytes, and no request is under way.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }.to_vec()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let words = self.len.div_ceil(8);
        let memory = std::ptr::slice_from_raw_parts_mut(self.start.cast::<u64>(), words);
        // SAFETY: the memory came from a box of so many words.
        drop(unsafe { Box::from_raw(memory) });
    }
}

pub(crate) fn sge(region: &MemoryRegion, len: u32) -> Sge {
    Sge::new(region.addr() as u64, len, region.lkey())
}

pub(crate) fn target(region: &MemoryRegion) -> RemoteAddr {
    RemoteAddr {
        addr: region.addr() as u64,
        rkey: region.rkey(),
    }
}

pub(crate) fn everything() -> AccessFlags {
    AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ
}

pub(crate) fn to_init(qp: &QueuePair) -> Result<(), Error> {
    use sys::ibv_qp_attr_mask as A;
    let raw = sys::ibv_qp_attr {
        qp_state: sys::ibv_qp_state::IBV_QPS_INIT,
        port_num: 1,
        qp_access_flags: everything().bits(),
        ..Default::default()
    };
    let mask = A::IBV_QP_STATE | A::IBV_QP_PKEY_INDEX | A::IBV_QP_PORT | A::IBV_QP_ACCESS_FLAGS;
    qp.modify(&QpAttributes::from_raw(raw, mask.0.cast_signed()))
}

pub(crate) fn to_rtr(qp: &QueuePair, peer: &QueuePair) -> Result<(), Error> {
    use sys::ibv_qp_attr_mask as A;
    let mut raw = sys::ibv_qp_attr {
        qp_state: sys::ibv_qp_state::IBV_QPS_RTR,
        path_mtu: sys::ibv_mtu::IBV_MTU_1024,
        dest_qp_num: peer.number(),
        max_dest_rd_atomic: 1,
        min_rnr_timer: 12,
        ..Default::default()
    };
    raw.ah_attr.is_global = 1;
    raw.ah_attr.port_num = 1;
    let mask = A::IBV_QP_STATE
        | A::IBV_QP_AV
        | A::IBV_QP_PATH_MTU
        | A::IBV_QP_DEST_QPN
        | A::IBV_QP_RQ_PSN
        | A::IBV_QP_MAX_DEST_RD_ATOMIC
        | A::IBV_QP_MIN_RNR_TIMER;
    qp.modify(&QpAttributes::from_raw(raw, mask.0.cast_signed()))
}

pub(crate) fn to_rts(qp: &QueuePair, rnr_retry: u8) -> Result<(), Error> {
    use sys::ibv_qp_attr_mask as A;
    let raw = sys::ibv_qp_attr {
        qp_state: sys::ibv_qp_state::IBV_QPS_RTS,
        timeout: 14,
        retry_cnt: 6,
        rnr_retry,
        max_rd_atomic: 1,
        ..Default::default()
    };
    let mask = A::IBV_QP_STATE
        | A::IBV_QP_TIMEOUT
        | A::IBV_QP_RETRY_CNT
        | A::IBV_QP_RNR_RETRY
        | A::IBV_QP_SQ_PSN
        | A::IBV_QP_MAX_QP_RD_ATOMIC;
    qp.modify(&QpAttributes::from_raw(raw, mask.0.cast_signed()))
}

/// Connects two queue pairs with each other.
pub(crate) fn connect(one: &QueuePair, two: &QueuePair, rnr_retry: u8) -> Result<(), Error> {
    for (qp, peer) in [(one, two), (two, one)] {
        to_init(qp)?;
        to_rtr(qp, peer)?;
        to_rts(qp, rnr_retry)?;
    }
    Ok(())
}

/// The first device, opened.
pub(crate) fn open() -> Result<Context, Error> {
    DeviceList::new()?.by_name("fake0")?.open()
}

/// Two queue pairs, each with its own completion queue.
pub(crate) struct Pair {
    pub(crate) a: QueuePair,
    pub(crate) b: QueuePair,
    pub(crate) a_cq: CompletionQueue,
    pub(crate) b_cq: CompletionQueue,
    pub(crate) pd: ProtectionDomain,
    pub(crate) context: Context,
}

impl Pair {
    pub(crate) fn in_reset() -> Result<Self, Error> {
        Self::of(open()?)
    }

    pub(crate) fn of(context: Context) -> Result<Self, Error> {
        let pd = ProtectionDomain::new(&context)?;
        let cq = || {
            let channel = CompletionChannel::new(&context)?;
            CompletionQueue::builder(&context, 16)
                .own_channel(&channel)
                .build()
        };
        let (a_cq, b_cq) = (cq()?, cq()?);
        let qp = |cq: &CompletionQueue| {
            QueuePair::builder(&pd, QpType::RC, cq, cq)
                .max_send_wr(4)
                .max_recv_wr(4)
                .max_send_sge(2)
                .max_inline_data(16)
                .build()
        };
        Ok(Self {
            a: qp(&a_cq)?,
            b: qp(&b_cq)?,
            a_cq,
            b_cq,
            pd,
            context,
        })
    }

    pub(crate) fn new() -> Result<Self, Error> {
        Self::with_rnr_retry(7)
    }

    pub(crate) fn with_rnr_retry(rnr_retry: u8) -> Result<Self, Error> {
        let pair = Self::in_reset()?;
        connect(&pair.a, &pair.b, rnr_retry)?;
        Ok(pair)
    }
}

/// All completions that are there.
pub(crate) fn drain(cq: &CompletionQueue) -> Vec<WorkCompletion> {
    let mut out = [MaybeUninit::uninit(); 32];
    cq.poll(&mut out).expect("a poll").to_vec()
}

/// Status and number of all completions that are there.
pub(crate) fn outcomes(cq: &CompletionQueue) -> Vec<(u64, u32)> {
    let all = drain(cq);
    all.iter()
        .map(|wc| (wc.wr_id(), wc.status().raw()))
        .collect()
}
