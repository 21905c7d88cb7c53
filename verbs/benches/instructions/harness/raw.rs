//! The operations written with the inline functions of `rdma-core-sys`, on a zeroed request, as C
//! programs do.

use std::mem::MaybeUninit;
use std::ptr;

use verbs::{RemoteAddr, sys};

use super::provider::LENGTH;

/// Where messages lie: this many places of `LENGTH` bytes.
pub(crate) const PLACES: u64 = 64;

/// What a C program has of a connection.
pub(crate) struct Raw {
    pub(crate) qp: *mut sys::ibv_qp,
    pub(crate) cq: *mut sys::ibv_cq,
    pub(crate) lkey: u32,
    pub(crate) remote: RemoteAddr,
    pub(crate) start: u64,
}

impl Raw {
    /// Where the data of a round lies: not the same address every time, or the compiler would
    /// prepare the request once.
    #[inline(always)]
    pub(crate) fn place(&self, round: u64) -> u64 {
        self.start + round % PLACES * u64::from(LENGTH)
    }
}

pub(crate) const NONE: sys::ibv_send_flags = sys::ibv_send_flags(0);
pub(crate) const SIGNALED: sys::ibv_send_flags = sys::ibv_send_flags::IBV_SEND_SIGNALED;
pub(crate) const INLINE: sys::ibv_send_flags = sys::ibv_send_flags::IBV_SEND_INLINE;

#[inline(always)]
pub(crate) fn raw_sge(raw: &Raw, round: u64) -> sys::ibv_sge {
    sys::ibv_sge {
        addr: raw.place(round),
        length: LENGTH,
        lkey: raw.lkey,
    }
}

/// A zeroed request with the fields that all have.
#[inline(always)]
pub(crate) fn raw_send(
    wr_id: u64,
    sge: &mut sys::ibv_sge,
    opcode: sys::ibv_wr_opcode,
    flags: sys::ibv_send_flags,
) -> sys::ibv_send_wr {
    // SAFETY: the struct holds integers, pointers and unions of them: zero is a value.
    let mut wr: sys::ibv_send_wr = unsafe { MaybeUninit::zeroed().assume_init() };
    wr.wr_id = wr_id;
    wr.sg_list = sge;
    wr.num_sge = 1;
    wr.opcode = opcode;
    wr.send_flags = flags.0;
    wr
}

/// A zeroed receive with its fields.
#[inline(always)]
pub(crate) fn raw_recv(wr_id: u64, sge: &mut sys::ibv_sge) -> sys::ibv_recv_wr {
    // SAFETY: the struct holds integers and pointers: zero is a value.
    let mut wr: sys::ibv_recv_wr = unsafe { MaybeUninit::zeroed().assume_init() };
    wr.wr_id = wr_id;
    wr.sg_list = sge;
    wr.num_sge = 1;
    wr
}

#[inline(always)]
pub(crate) fn raw_post(raw: &Raw, wr: &mut sys::ibv_send_wr) -> bool {
    let mut bad = ptr::null_mut();
    // SAFETY: queue pair and list are live; the provider reaches no memory.
    unsafe { sys::ibv_post_send(raw.qp, wr, &mut bad) == 0 }
}

#[inline(always)]
pub(crate) fn raw_rdma(
    raw: &Raw,
    round: u64,
    opcode: sys::ibv_wr_opcode,
    flags: sys::ibv_send_flags,
) -> bool {
    let mut sge = raw_sge(raw, round);
    let mut wr = raw_send(round, &mut sge, opcode, flags);
    wr.wr.rdma.remote_addr = raw.remote.addr;
    wr.wr.rdma.rkey = raw.remote.rkey.0;
    raw_post(raw, &mut wr)
}

#[inline(always)]
pub(crate) fn raw_atomic(raw: &Raw, round: u64, opcode: sys::ibv_wr_opcode, swap: u64) -> bool {
    let mut sge = raw_sge(raw, round);
    let mut wr = raw_send(round, &mut sge, opcode, SIGNALED);
    wr.wr.atomic = sys::ibv_send_wr_atomic {
        remote_addr: raw.remote.addr,
        compare_add: round,
        swap,
        rkey: raw.remote.rkey.0,
    };
    raw_post(raw, &mut wr)
}

#[inline(always)]
pub(crate) fn raw_poll<const N: usize>(raw: &Raw) -> Option<usize> {
    let mut out = [const { MaybeUninit::<sys::ibv_wc>::uninit() }; N];
    let room = i32::try_from(N).expect("small");
    // SAFETY: the queue is live, and `out` has that much room.
    let got = unsafe { sys::ibv_poll_cq(raw.cq, room, out.as_mut_ptr().cast()) };
    let got = usize::try_from(got).ok()?;
    let filled = &out[..got];
    // SAFETY: the provider has filled that many.
    let completions =
        unsafe { std::slice::from_raw_parts(filled.as_ptr().cast::<sys::ibv_wc>(), got) };
    let success = sys::ibv_wc_status::IBV_WC_SUCCESS;
    let successes = completions.iter().all(|wc| wc.status == success);
    successes.then_some(got)
}
