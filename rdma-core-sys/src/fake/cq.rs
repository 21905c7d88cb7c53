//! Completion channels and completion queues.

use core::ffi::{c_int, c_uint, c_void};
use core::time::Duration;
use std::collections::VecDeque;
use std::prelude::rust_2024::*;

use super::async_events::{Acks, Class, settle};
use super::ext_cq::Polling;
use super::readiness::Readiness;
use super::table::CBox;
use super::world::{World, changed, lock, sleep, wait_until};
use super::{by_errno, by_return, enter, null, violation};
use crate::bindings::{
    ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex, ibv_event_type, ibv_wc, ibv_wc_opcode,
};

#[derive(Debug)]
pub(super) struct Channel {
    pub(super) c: CBox<ibv_comp_channel>,
    pub(super) context: usize,
    ready: Readiness,
    /// Queues that have something, in order.
    events: VecDeque<usize>,
    users: usize,
    /// The device is gone: readable for ever.
    closed: bool,
}

impl Channel {
    fn show(&mut self) {
        self.ready.show(self.closed || !self.events.is_empty());
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Armed {
    No,
    Solicited,
    Any,
}

#[derive(Debug)]
pub(super) struct Cq {
    /// Extended ones and others: a plain one is the first part.
    pub(super) c: CBox<ibv_cq_ex>,
    pub(super) polling: Polling,
    pub(super) context: usize,
    channel: Option<usize>,
    entries: VecDeque<Entry>,
    size: usize,
    armed: Armed,
    /// Events that were got, and that were acknowledged.
    got: u32,
    acknowledged: u32,
    pub(super) users: usize,
    pub(super) asyncs: Acks,
    /// Being destroyed: gives no more events.
    pub(super) dying: bool,
}

/// A completion, and what becomes free when it is polled.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) wc: ibv_wc,
    pub(super) solicited: bool,
    /// The queue pair, whether it is of its send queue, and how many requests are over with it.
    pub(super) frees: (usize, bool, u64),
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    let mut world = match enter("ibv_create_comp_channel") {
        Ok(world) => world,
        Err(errno) => return null(errno),
    };
    world.devices.check("ibv_create_comp_channel", context);
    let ready = match Readiness::new() {
        Ok(ready) => ready,
        Err(errno) => return null(errno),
    };
    let c = CBox::new(ibv_comp_channel {
        context,
        fd: ready.fd(),
        refcnt: 0,
    });
    let pointer = c.as_ptr();
    let channel = Channel {
        c,
        context: context.addr(),
        ready,
        events: VecDeque::new(),
        users: 0,
        closed: false,
    };
    world.channels.insert(pointer.addr(), channel);
    pointer
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    by_return(enter("ibv_destroy_comp_channel").and_then(|mut world| {
        if world.channels.of("ibv_destroy_comp_channel", channel).users > 0 {
            return Err(libc::EBUSY);
        }
        if let Some(channel) = world.channels.remove(channel.addr()) {
            channel.c.retire();
        }
        Ok(())
    }))
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    let call = "ibv_create_cq";
    enter(call)
        .and_then(|mut world| {
            create(
                &mut world,
                call,
                ibv_cq_ex {
                    context,
                    channel,
                    cq_context,
                    cqe,
                    ..ibv_cq_ex::default()
                },
                comp_vector,
            )
        })
        .map_or_else(null, <*mut ibv_cq_ex>::cast)
}

/// Makes a completion queue with what the struct says of it.
pub(super) fn create(
    world: &mut World,
    call: &str,
    mut new: ibv_cq_ex,
    comp_vector: c_int,
) -> Result<*mut ibv_cq_ex, c_int> {
    let (context, channel, cqe) = (new.context, new.channel, new.cqe);
    world.devices.check(call, context);
    let size = match usize::try_from(cqe) {
        Ok(asked @ 1..)
            if cqe.cast_unsigned() <= super::device::MAX_CQE && (0..2).contains(&comp_vector) =>
        {
            asked
        }
        _ => return Err(libc::EINVAL),
    };
    if !channel.is_null() {
        world.channels.of(call, channel).users += 1;
    }
    new.handle = world.number();
    let c = CBox::new(new);
    let pointer = c.as_ptr();
    let cq = Cq {
        c,
        polling: Polling::default(),
        context: context.addr(),
        channel: (!channel.is_null()).then(|| channel.addr()),
        entries: VecDeque::new(),
        size,
        armed: Armed::No,
        got: 0,
        acknowledged: 0,
        users: 0,
        asyncs: Acks::default(),
        dying: false,
    };
    world.cqs.insert(pointer.addr(), cq);
    Ok(pointer)
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    let call = "ibv_destroy_cq";
    by_return(enter(call).and_then(|mut world| {
        let address = cq.addr();
        let state = world.cqs.of(call, cq);
        if state.users > 0 {
            return Err(libc::EBUSY);
        }
        state.dying = true;
        let channel = state.channel;
        if let Some(channel) = channel {
            let channel = world.channels.at(call, channel);
            channel.events.retain(|&of| of != address);
            channel.show();
        }
        let why = "events of the completion queue were got and never acknowledged";
        let mut world = wait_until(world, call, why, |world| {
            let cq = world.cqs.at(call, address);
            cq.got == cq.acknowledged
        });
        world = settle(world, call, Class::Cq, address);
        if let Some(channel) = channel {
            world.channels.at(call, channel).users -= 1;
        }
        if let Some(cq) = world.cqs.remove(address) {
            cq.c.retire();
        }
        Ok(())
    }))
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    let call = "ibv_resize_cq";
    by_return(enter(call).and_then(|mut world| {
        let state = world.cqs.of(call, cq);
        let size = usize::try_from(cqe).map_err(|_| libc::EINVAL)?;
        let fits = (1..=super::device::MAX_CQE as usize).contains(&size);
        if !fits || size < state.entries.len() {
            return Err(libc::EINVAL);
        }
        state.size = size;
        // SAFETY: the queue is in the table, so it is live; resizes of one queue come one after another.
        unsafe { (*cq).cqe = cqe };
        Ok(())
    }))
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    let call = "ibv_get_cq_event";
    by_errno(enter(call).and_then(|mut world| {
        let address = loop {
            let state = world.channels.of(call, channel);
            if let Some(address) = state.events.pop_front() {
                state.show();
                break address;
            }
            if state.closed {
                return Err(libc::EIO);
            }
            if state.ready.is_non_blocking() {
                return Err(libc::EAGAIN);
            }
            world = sleep(world, Duration::from_millis(100));
        };
        let state = world.cqs.at(call, address);
        state.got += 1;
        let pointer: *mut ibv_cq = state.c.as_ptr().cast();
        // SAFETY: the queue is in the table, so it is live; the field is set once.
        let context = unsafe { (*pointer).cq_context };
        // SAFETY: the caller gives a place for the pointer.
        unsafe { cq.write(pointer) };
        // SAFETY: the caller gives a place for the pointer.
        unsafe { cq_context.write(context) };
        Ok(())
    }))
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, nevents: c_uint) {
    let call = "ibv_ack_cq_events";
    if let Ok(mut world) = enter(call) {
        let cq = world.cqs.of(call, cq);
        cq.acknowledged += nevents;
        if cq.acknowledged > cq.got {
            let (got, acknowledged) = (cq.got, cq.acknowledged);
            violation(&std::format!(
                "{call}: {acknowledged} events acknowledged, {got} were got"
            ));
        }
        changed();
    }
}

pub(super) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    let call = "ibv_req_notify_cq";
    by_return(enter(call).map(|mut world| {
        let cq = world.cqs.of(call, cq);
        if solicited_only == 0 {
            cq.armed = Armed::Any;
        } else if cq.armed == Armed::No {
            cq.armed = Armed::Solicited;
        }
    }))
}

pub(super) unsafe extern "C" fn poll_cq(
    cq: *mut ibv_cq,
    num_entries: c_int,
    wc: *mut ibv_wc,
) -> c_int {
    let call = "ibv_poll_cq";
    let mut world = lock();
    if let Err(errno) = world.record(call) {
        return -errno;
    }
    let mut world = super::ext_cq::wait_for_end(world, call, cq.addr());
    let room = usize::try_from(num_entries).unwrap_or(0);
    let mut got = 0;
    while got < room {
        let Some(entry) = world.take_completion(call, cq.addr()) else {
            break;
        };
        // SAFETY: the caller gives room for that many completions.
        unsafe { wc.wrapping_add(got).write(entry.wc) };
        got += 1;
    }
    got.try_into().unwrap_or(c_int::MAX)
}

impl World {
    /// Takes the oldest completion out of a queue, which frees its request's slot.
    pub(super) fn take_completion(&mut self, call: &str, cq: usize) -> Option<Entry> {
        let entry = self.cqs.at(call, cq).entries.pop_front()?;
        let (qp, is_send, over) = entry.frees;
        if let Some(qp) = self.qps.find(qp) {
            qp.free(is_send, over);
        }
        Some(entry)
    }

    /// Ends all waits for completion events: the device is gone.
    pub(super) fn close_channels(&mut self) {
        for channel in self.channels.iter_mut() {
            channel.closed = true;
            channel.show();
        }
    }

    /// Takes the completions of a queue pair out of its queues.
    pub(super) fn purge(&mut self, qp: usize, cqs: [usize; 2]) {
        for cq in cqs.into_iter().filter(|&cq| cq != 0) {
            let cq = self.cqs.at("a purge", cq);
            cq.entries.retain(|entry| entry.frees.0 != qp);
        }
    }

    /// Puts a completion into a queue, and an event into its channel where one was asked for.
    pub(super) fn complete(&mut self, cq: usize, mut entry: Entry) {
        if let Some(opcode) = self.knobs.opcodes.pop_front() {
            entry.wc.opcode = ibv_wc_opcode(opcode.cast_signed().cast_unsigned());
        }
        // A queue pair outlives neither of its queues.
        let state = self.cqs.at("a completion", cq);
        if state.entries.len() >= state.size {
            self.overruns += 1;
            self.raise_cq(ibv_event_type::IBV_EVENT_CQ_ERR, cq);
            return;
        }
        let wakes = match state.armed {
            Armed::No => false,
            Armed::Solicited => entry.solicited || entry.wc.status.0 != 0,
            Armed::Any => true,
        };
        state.entries.push_back(entry);
        let Some(channel) = state.channel.filter(|_| wakes && !state.dying) else {
            return;
        };
        state.armed = Armed::No;
        let channel = self.channels.at("a completion event", channel);
        channel.events.push_back(cq);
        channel.show();
        changed();
    }
}
