//! Each operation twice: by this crate, and by the inline functions of `rdma-core-sys` on a zeroed request.
//!
//! What is written or read is a whole region; that a part of one is within it is checked where the part is made, which is
//! counted with the sequences that end in a poll.
//!
//! Aimed at are +15 for a write and a read and +10 for a receive. Where the limit is above that, it is what is reached now, so
//! that it gets no worse.

use std::mem::MaybeUninit;
use std::ptr;

use rpma::{Completion, Error, FlushType, Signal, Span};
use verbs::sys;

use super::rig::Rig;
use crate::harness::operations;
use crate::harness::provider::LENGTH;
use crate::harness::raw::{
    NONE, PLACES, SIGNALED, raw_poll, raw_post, raw_rdma, raw_recv, raw_send, raw_sge,
};

const FENCE: sys::ibv_send_flags = sys::ibv_send_flags(
    sys::ibv_send_flags::IBV_SEND_INLINE.0 | sys::ibv_send_flags::IBV_SEND_FENCE.0,
);

operations! {
    "write, on error", +22.0, 0 ready:
    measured_raw_write = |rig, round| {
        raw_rdma(rig, round, sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE, NONE)
    }
    measured_rpma_write = |rig, round| {
        rig.client.write(rig.target, rig.word.as_span(), Signal::OnError, round).is_ok()
    }

    "write", +20.0, 0 ready:
    measured_raw_write_signaled = |rig, round| {
        raw_rdma(rig, round, sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE, SIGNALED)
    }
    measured_rpma_write_signaled = |rig, round| {
        rig.client.write(rig.target, rig.word.as_span(), Signal::Always, round).is_ok()
    }

    "read", +19.0, 0 ready:
    measured_raw_read = |rig, round| {
        raw_rdma(rig, round, sys::ibv_wr_opcode::IBV_WR_RDMA_READ, SIGNALED)
    }
    measured_rpma_read = |rig, round| {
        rig.client.read(rig.word.as_span(), rig.target, Signal::Always, round).is_ok()
    }

    "send", +15.0, 0 ready:
    measured_raw_send = |rig, round| {
        let mut sge = raw_sge(rig, round);
        let mut wr = raw_send(round, &mut sge, sys::ibv_wr_opcode::IBV_WR_SEND, SIGNALED);
        raw_post(rig, &mut wr)
    }
    measured_rpma_send = |rig, round| {
        rig.client.send(rig.word.as_span(), Signal::Always, round).is_ok()
    }

    "atomic write", +15.0, 0 ready:
    measured_raw_atomic_write = |rig, round| {
        let data = round.to_ne_bytes();
        let mut sge = sys::ibv_sge {
            addr: data.as_ptr().expose_provenance() as u64,
            length: LENGTH,
            lkey: 0,
        };
        let flags = sys::ibv_send_flags(FENCE.0 | SIGNALED.0);
        let opcode = sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE;
        let mut wr = raw_send(round, &mut sge, opcode, flags);
        wr.wr.rdma.remote_addr = rig.remote.addr;
        wr.wr.rdma.rkey = rig.remote.rkey.0;
        raw_post(rig, &mut wr)
    }
    measured_rpma_atomic_write = |rig, round| {
        let value = round.to_ne_bytes();
        rig.client.atomic_write(rig.target, value, Signal::Always, round).is_ok()
    }

    "flush", +15.0, 0 ready:
    measured_raw_flush = |rig, round| {
        // Always into the same bytes, which nobody looks at.
        let mut sge = raw_sge(rig, 0);
        let opcode = sys::ibv_wr_opcode::IBV_WR_RDMA_READ;
        let mut wr = raw_send(round, &mut sge, opcode, SIGNALED);
        wr.wr.rdma.remote_addr = rig.remote.addr;
        wr.wr.rdma.rkey = rig.remote.rkey.0;
        raw_post(rig, &mut wr)
    }
    measured_rpma_flush = |rig, round| { flush(rig, round) }

    "16 writes, one doorbell", +1320.0, 0 ready:
    measured_raw_list = |rig, round| {
        let mut sges: [_; 16] = std::array::from_fn(|at| raw_sge(rig, round + at as u64));
        let mut list: [_; 16] = std::array::from_fn(|at| {
            let opcode = sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE;
            let mut wr = raw_send(round + at as u64, &mut sges[at], opcode, SIGNALED);
            wr.wr.rdma.remote_addr = rig.remote.addr;
            wr.wr.rdma.rkey = rig.remote.rkey.0;
            wr
        });
        for at in 1..16 {
            list[at - 1].next = &mut list[at];
        }
        raw_post(rig, &mut list[0])
    }
    measured_rpma_list = |rig, round| {
        let posted = rig.client.batch(|batch| -> Result<(), Error> {
            for round in round..round + 16 {
                batch.write(rig.target, at(rig, round)?, Signal::Always, round)?;
            }
            Ok(())
        });
        posted.is_ok()
    }

    "receive", +18.0, 0 ready:
    measured_raw_recv = |rig, round| {
        let mut sge = raw_sge(rig, round);
        let mut wr = raw_recv(round, &mut sge);
        let mut bad = ptr::null_mut();
        // SAFETY: queue pair and list are live; the provider reaches no memory.
        unsafe { sys::ibv_post_recv(rig.qp, &mut wr, &mut bad) == 0 }
    }
    measured_rpma_recv = |rig, round| {
        rig.client.recv(rig.word.as_span(), round).is_ok()
    }

    "poll, 1 of 1", +10.0, 1 ready:
    measured_raw_poll_1 = |rig, _round| { raw_poll::<1>(rig) == Some(1) }
    measured_rpma_poll_1 = |rig, _round| { poll::<1>(rig) == Some(1) }

    "poll, 16 of 16", +10.0, 16 ready:
    measured_raw_poll_16 = |rig, _round| { raw_poll::<16>(rig) == Some(16) }
    measured_rpma_poll_16 = |rig, _round| { poll::<16>(rig) == Some(16) }

    "poll, empty", +10.0, 0 ready:
    measured_raw_poll_empty = |rig, _round| { raw_poll::<16>(rig) == Some(0) }
    measured_rpma_poll_empty = |rig, _round| { poll::<16>(rig) == Some(0) }

    "write and poll", +25.0, 1 ready:
    measured_raw_write_and_poll = |rig, round| {
        raw_rdma(rig, round, sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE, SIGNALED)
            && raw_poll::<1>(rig) == Some(1)
    }
    measured_rpma_write_and_poll = |rig, round| {
        write(rig, round) && poll::<1>(rig) == Some(1)
    }

    "write, flush and poll", +60.0, 1 ready:
    measured_raw_write_flush_and_poll = |rig, round| {
        raw_rdma(rig, round, sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE, NONE)
            && raw_rdma(rig, round, sys::ibv_wr_opcode::IBV_WR_RDMA_READ, SIGNALED)
            && raw_poll::<1>(rig) == Some(1)
    }
    measured_rpma_write_flush_and_poll = |rig, round| {
        at(rig, round)
            .and_then(|from| rig.client.write(rig.target, from, Signal::OnError, round))
            .is_ok()
            && flush(rig, round)
            && poll::<1>(rig) == Some(1)
    }
}

/// The part of the region that a round uses.
#[inline(always)]
fn at(rig: &Rig, round: u64) -> Result<Span<'_>, Error> {
    let start = round % PLACES * u64::from(LENGTH);
    rig.region.span(start..start + u64::from(LENGTH))
}

#[inline(always)]
fn write(rig: &Rig, round: u64) -> bool {
    at(rig, round)
        .and_then(|from| rig.client.write(rig.target, from, Signal::Always, round))
        .is_ok()
}

#[inline(always)]
fn flush(rig: &Rig, round: u64) -> bool {
    rig.client
        .flush(rig.target, FlushType::Visibility, Signal::Always, round)
        .is_ok()
}

/// Polls into an array, and gives the number of completions if all are successes.
#[inline(always)]
fn poll<const N: usize>(rig: &Rig) -> Option<usize> {
    let mut out = [const { MaybeUninit::<Completion>::uninit() }; N];
    let completions = rig.client.cq().poll(&mut out).ok()?;
    let successes = completions.iter().all(|done| done.result().is_ok());
    successes.then_some(completions.len())
}
