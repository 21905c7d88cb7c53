//! Each operation twice: by `verbs`, and by the inline functions of `rdma-core-sys` on a zeroed request.
//!
//! The functions have plain symbols, by which callgrind finds them. Each ends at the first failure, as programs do, and gives
//! the number of rounds that succeeded.

use std::mem::MaybeUninit;
use std::ptr;

use verbs::{
    ExtendedCompletion, InlineRequest, LocalKey, RecvRequest, SendFlags, SendRequest, Sge,
    WorkCompletion, sys,
};

use super::rig::Rig;
use crate::harness::operations;
use crate::harness::provider::LENGTH;
use crate::harness::raw::{
    INLINE, NONE, SIGNALED, raw_atomic, raw_poll, raw_post, raw_rdma, raw_recv, raw_send, raw_sge,
};

operations! {
    "write, unsignaled", +0.0, 0 ready:
    measured_raw_write = |rig, round| {
        raw_rdma(rig, round, sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE, NONE)
    }
    measured_verbs_write = |rig, round| {
        let sges = [sge(rig, round)];
        post(rig, SendRequest::write(round, &sges, rig.remote))
    }

    "write, signaled", +0.0, 0 ready:
    measured_raw_write_signaled = |rig, round| {
        raw_rdma(rig, round, sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE, SIGNALED)
    }
    measured_verbs_write_signaled = |rig, round| {
        let sges = [sge(rig, round)];
        let request = SendRequest::write(round, &sges, rig.remote);
        post(rig, request.with_flags(SendFlags::SIGNALED))
    }

    "read", +0.0, 0 ready:
    measured_raw_read = |rig, round| {
        raw_rdma(rig, round, sys::ibv_wr_opcode::IBV_WR_RDMA_READ, SIGNALED)
    }
    measured_verbs_read = |rig, round| {
        let sges = [sge(rig, round)];
        let request = SendRequest::read(round, &sges, rig.remote);
        post(rig, request.with_flags(SendFlags::SIGNALED))
    }

    "send", +0.0, 0 ready:
    measured_raw_send = |rig, round| {
        let mut sge = raw_sge(rig, round);
        let mut wr = raw_send(round, &mut sge, sys::ibv_wr_opcode::IBV_WR_SEND, SIGNALED);
        raw_post(rig, &mut wr)
    }
    measured_verbs_send = |rig, round| {
        let sges = [sge(rig, round)];
        post(rig, SendRequest::send(round, &sges).with_flags(SendFlags::SIGNALED))
    }

    "send, inline", +0.0, 0 ready:
    measured_raw_send_inline = |rig, round| {
        let data = round.to_ne_bytes();
        let mut sge = sys::ibv_sge {
            addr: data.as_ptr().expose_provenance() as u64,
            length: LENGTH,
            lkey: 0,
        };
        let mut wr = raw_send(round, &mut sge, sys::ibv_wr_opcode::IBV_WR_SEND, INLINE);
        raw_post(rig, &mut wr)
    }
    measured_verbs_send_inline = |rig, round| {
        let data = round.to_ne_bytes();
        rig.pair.a.post_inline(&InlineRequest::send(round, &data)).is_ok()
    }

    "compare and swap", +0.0, 0 ready:
    measured_raw_compare_and_swap = |rig, round| {
        raw_atomic(rig, round, sys::ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP, round + 1)
    }
    measured_verbs_compare_and_swap = |rig, round| {
        let sges = [sge(rig, round)];
        let request = SendRequest::compare_and_swap(round, &sges, rig.remote, round, round + 1);
        post(rig, request.with_flags(SendFlags::SIGNALED))
    }

    "fetch and add", +0.0, 0 ready:
    measured_raw_fetch_and_add = |rig, round| {
        raw_atomic(rig, round, sys::ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD, 0)
    }
    measured_verbs_fetch_and_add = |rig, round| {
        let sges = [sge(rig, round)];
        let request = SendRequest::fetch_and_add(round, &sges, rig.remote, round);
        post(rig, request.with_flags(SendFlags::SIGNALED))
    }

    "16 writes, one doorbell", +0.0, 0 ready:
    measured_raw_list = |rig, round| {
        let mut sges: [_; LIST] = std::array::from_fn(|at| raw_sge(rig, round + at as u64));
        let mut list: [_; LIST] = std::array::from_fn(|at| {
            let opcode = sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE;
            let mut wr = raw_send(round + at as u64, &mut sges[at], opcode, NONE);
            wr.wr.rdma.remote_addr = rig.remote.addr;
            wr.wr.rdma.rkey = rig.remote.rkey.0;
            wr
        });
        for at in 1..LIST {
            list[at - 1].next = &mut list[at];
        }
        raw_post(rig, &mut list[0])
    }
    measured_verbs_list = |rig, round| {
        let sges: [_; LIST] = std::array::from_fn(|at| [sge(rig, round + at as u64)]);
        let mut list: [_; LIST] = std::array::from_fn(|at| {
            SendRequest::write(round + at as u64, &sges[at], rig.remote)
        });
        // SAFETY: the region covers every place, and the provider reaches none of them.
        unsafe { rig.pair.a.post_send_list(&mut list) }.is_ok()
    }

    "receive", +0.0, 0 ready:
    measured_raw_recv = |rig, round| {
        let mut sge = raw_sge(rig, round);
        let mut wr = raw_recv(round, &mut sge);
        let mut bad = ptr::null_mut();
        // SAFETY: queue pair and list are live; the provider reaches no memory.
        unsafe { sys::ibv_post_recv(rig.qp, &mut wr, &mut bad) == 0 }
    }
    measured_verbs_recv = |rig, round| {
        let sges = [sge(rig, round)];
        let mut request = RecvRequest::new(round, &sges);
        // SAFETY: the region covers the place, and the provider does not reach it.
        unsafe { rig.pair.a.post_recv(&mut request) }.is_ok()
    }

    "receive, shared queue", +0.0, 0 ready:
    measured_raw_srq_recv = |rig, round| {
        let mut sge = raw_sge(rig, round);
        let mut wr = raw_recv(round, &mut sge);
        let mut bad = ptr::null_mut();
        // SAFETY: queue and list are live; the provider reaches no memory.
        unsafe { sys::ibv_post_srq_recv(rig.raw_srq, &mut wr, &mut bad) == 0 }
    }
    measured_verbs_srq_recv = |rig, round| {
        let sges = [sge(rig, round)];
        let mut request = RecvRequest::new(round, &sges);
        // SAFETY: the region covers the place, and the provider does not reach it.
        unsafe { rig.srq.post_recv(&mut request) }.is_ok()
    }

    "poll, 1 of 1", +3.0, 1 ready:
    measured_raw_poll_1 = |rig, _round| { raw_poll::<1>(rig) == Some(1) }
    measured_verbs_poll_1 = |rig, _round| { poll::<1>(rig) == Some(1) }

    "poll, 16 of 16", +0.0, 16 ready:
    measured_raw_poll_16 = |rig, _round| { raw_poll::<16>(rig) == Some(16) }
    measured_verbs_poll_16 = |rig, _round| { poll::<16>(rig) == Some(16) }

    "poll, empty", +5.0, 0 ready:
    measured_raw_poll_empty = |rig, _round| { raw_poll::<16>(rig) == Some(0) }
    measured_verbs_poll_empty = |rig, _round| { poll::<16>(rig) == Some(0) }

    "write, signaled, and poll", +0.0, 1 ready:
    measured_raw_write_and_poll = |rig, round| {
        raw_rdma(rig, round, sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE, SIGNALED)
            && raw_poll::<1>(rig) == Some(1)
    }
    measured_verbs_write_and_poll = |rig, round| {
        let sges = [sge(rig, round)];
        let request = SendRequest::write(round, &sges, rig.remote);
        post(rig, request.with_flags(SendFlags::SIGNALED)) && poll::<1>(rig) == Some(1)
    }

    "batch of 1 write", +100.0, 0 ready:
    measured_raw_batch_1 = |rig, round| { raw_batch(rig, round, 1) }
    measured_verbs_batch_1 = |rig, round| { batch(rig, round, 1) }

    "batch of 16 writes", +180.0, 0 ready:
    measured_raw_batch_16 = |rig, round| { raw_batch(rig, round, 16) }
    measured_verbs_batch_16 = |rig, round| { batch(rig, round, 16) }

    "extended poll, 1 of 1", +150.0, 1 ready:
    measured_raw_extended_poll_1 = |rig, _round| { raw_extended_poll::<1>(rig, 1) }
    measured_verbs_extended_poll_1 = |rig, _round| { extended_poll::<1>(rig, 1) }

    "extended poll, empty", +45.0, 0 ready:
    measured_raw_extended_poll_empty = |rig, _round| { raw_extended_poll::<16>(rig, 0) }
    measured_verbs_extended_poll_empty = |rig, _round| { extended_poll::<16>(rig, 0) }
}

/// Requests of a list.
const LIST: usize = 16;

#[inline(always)]
fn batch(rig: &Rig, round: u64, requests: u64) -> bool {
    // SAFETY: one loop runs at a time, and nothing else uses the queue pair.
    let qp = unsafe { &mut *rig.extended.get() };
    let posted = qp.post_batch(|batch| {
        for at in 0..requests {
            let sges = [sge(rig, round + at)];
            let request = batch.write(round + at, rig.remote);
            // SAFETY: the region covers the place, and the provider does not reach it.
            unsafe { request.flags(SendFlags::SIGNALED).sges(&sges) }?;
        }
        Ok::<_, verbs::PostError>(())
    });
    posted.is_ok()
}

#[inline(always)]
fn raw_batch(rig: &Rig, round: u64, requests: u64) -> bool {
    let qp = rig.raw_extended;
    // SAFETY: the queue pair is live, and no batch is begun.
    unsafe { sys::ibv_wr_start(qp) };
    for at in 0..requests {
        let sge = raw_sge(rig, round + at);
        // SAFETY: the queue pair is live.
        unsafe { (*qp).wr_id = round + at };
        // SAFETY: as above.
        unsafe { (*qp).wr_flags = SIGNALED.0 };
        // SAFETY: a batch is begun.
        unsafe { sys::ibv_wr_rdma_write(qp, rig.remote.rkey.0, rig.remote.addr) };
        // SAFETY: an operation was added; the provider reaches no memory.
        unsafe { sys::ibv_wr_set_sge(qp, sge.lkey, sge.addr, sge.length) };
    }
    // SAFETY: a batch is begun.
    unsafe { sys::ibv_wr_complete(qp) == 0 }
}

/// Polls an extended queue, and says whether what it found is as told.
#[inline(always)]
fn extended_poll<const N: usize>(rig: &Rig, expected: usize) -> bool {
    let mut out = [const { MaybeUninit::<ExtendedCompletion>::uninit() }; N];
    let Ok(completions) = rig.extended_cq.poll(&mut out) else {
        return false;
    };
    let told = |wc: &ExtendedCompletion| {
        wc.result()
            .is_ok_and(|success| success.byte_len() == Some(0) && wc.wr_id() == 1)
    };
    completions.len() == expected && completions.iter().all(told)
}

#[inline(always)]
fn raw_extended_poll<const N: usize>(rig: &Rig, expected: usize) -> bool {
    let cq = rig.extended_cq.as_raw();
    let (mut got, mut good) = (0, true);
    while got < N {
        let mut attr = sys::ibv_poll_cq_attr { comp_mask: 0 };
        // SAFETY: the queue is live, and no batch is begun.
        if unsafe { sys::ibv_start_poll(cq, &mut attr) } != 0 {
            break;
        }
        // SAFETY: a batch is begun, at a completion.
        good &= unsafe { (*cq).status } == sys::ibv_wc_status::IBV_WC_SUCCESS;
        // SAFETY: as above.
        good &= unsafe { (*cq).wr_id } == 1;
        // SAFETY: as above.
        let opcode = unsafe { sys::ibv_wc_read_opcode(cq) };
        // SAFETY: as above.
        let flags = unsafe { sys::ibv_wc_read_wc_flags(cq) };
        // SAFETY: as above.
        good &= unsafe { sys::ibv_wc_read_byte_len(cq) } == 0;
        std::hint::black_box((opcode, flags));
        // SAFETY: as above.
        unsafe { sys::ibv_end_poll(cq) };
        got += 1;
    }
    good && got == expected
}

#[inline(always)]
fn sge(rig: &Rig, round: u64) -> Sge {
    Sge::new(rig.place(round), LENGTH, LocalKey(rig.lkey))
}

#[inline(always)]
fn post(rig: &Rig, mut request: SendRequest<'_>) -> bool {
    // SAFETY: the region covers the place, and the provider does not reach it.
    unsafe { rig.pair.a.post_send(&mut request) }.is_ok()
}

/// Polls into an array, and gives the number of completions if all are successes.
#[inline(always)]
fn poll<const N: usize>(rig: &Rig) -> Option<usize> {
    let mut out = [const { MaybeUninit::<WorkCompletion>::uninit() }; N];
    let completions = rig.pair.a_cq.poll(&mut out).ok()?;
    let successes = completions.iter().all(|wc| wc.result().is_ok());
    successes.then_some(completions.len())
}
