//! What a device does by itself: events, a port that goes down, a removal, and how it treats requests and completions.

use core::ffi::c_int;
use std::prelude::rust_2024::*;

use super::super::async_events::{About, Class, Event};
use super::super::world::{World, changed, lock};
use super::Session;
use crate::bindings::{ibv_context, ibv_cq, ibv_event_type, ibv_qp, ibv_srq};

/// What an asynchronous event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AsyncTarget {
    /// A completion queue.
    CompletionQueue(*mut ibv_cq),
    /// A queue pair.
    QueuePair(*mut ibv_qp),
    /// A shared receive queue.
    SharedReceiveQueue(*mut ibv_srq),
    /// A port of a context, or any number in its place: what kinds without an object carry.
    Port(*mut ibv_context, c_int),
}

impl Session {
    /// Puts an asynchronous event of any kind in. A kind that is not known may be about anything: to the library its object is
    /// a number.
    ///
    /// # Panics
    /// When the kind is about another class of objects than the target.
    pub fn inject_async(&self, kind: u32, target: AsyncTarget) {
        let mut world = lock();
        let (given, about) = match target {
            AsyncTarget::CompletionQueue(cq) => (Class::Cq, About::Object(cq.addr())),
            AsyncTarget::QueuePair(qp) => (Class::Qp, About::Object(qp.addr())),
            AsyncTarget::SharedReceiveQueue(srq) => (Class::Srq, About::Object(srq.addr())),
            AsyncTarget::Port(_, port) => (Class::None, About::Port(port)),
        };
        let class = Class::of(kind);
        assert!(
            class == given || class == Class::None,
            "kind {kind} is not about {target:?}"
        );
        let context = context_of(&mut world, target);
        world.raise(context, Event { kind, about });
    }

    /// Takes every port down, or up again, and says so to every context.
    pub fn set_port(&self, up: bool) {
        let mut world = lock();
        world.port_down = !up;
        let kind = if up {
            ibv_event_type::IBV_EVENT_PORT_ACTIVE
        } else {
            ibv_event_type::IBV_EVENT_PORT_ERR
        };
        tell_all(&mut world, kind, 1);
    }

    /// Removes the devices, as a driver does that can while programs use them: each context gets DEVICE_FATAL, and from then on
    /// every command of libibverbs answers EIO and changes nothing. What is in completion queues can still be polled, closing a
    /// context frees it, and waits for events end.
    pub fn remove_devices(&self) {
        let mut world = lock();
        tell_all(&mut world, ibv_event_type::IBV_EVENT_DEVICE_FATAL, 0);
        world.removed = true;
        for queue in world.devices.async_queues() {
            queue.close();
        }
        world.close_channels();
        changed();
    }

    /// Keeps requests in their queues from now on, as a device that is slow, or carries out what it has kept.
    pub fn hold_requests(&self, hold: bool) {
        let mut world = lock();
        world.knobs.held = hold;
        if !hold {
            let all: Vec<usize> = world.qps.iter().map(|(&address, _)| address).collect();
            for address in all {
                world.progress(address);
            }
        }
    }

    /// Takes the completions of a queue pair out of their queues when it is destroyed or reset, as mlx5 does. SoftRoCE leaves
    /// them there, and so does the fake otherwise.
    pub fn purge_completions(&self) {
        lock().knobs.purges = true;
    }

    /// Lets receives that are posted in the error state stay in the queue until that state is set again, as SoftRoCE does.
    pub fn flush_receives_late(&self) {
        lock().knobs.late_receives = true;
    }

    /// How many completions full queues have lost since this was asked last.
    #[must_use]
    pub fn lost_completions(&self) -> usize {
        core::mem::take(&mut lock().overruns)
    }
}

fn context_of(world: &mut World, target: AsyncTarget) -> usize {
    let call = "an injected event";
    let pd = match target {
        AsyncTarget::CompletionQueue(cq) => return world.cqs.of(call, cq).context,
        AsyncTarget::Port(context, _) => return context.addr(),
        AsyncTarget::QueuePair(qp) => world.qps.of(call, qp).pd,
        AsyncTarget::SharedReceiveQueue(srq) => world.srqs.of(call, srq).pd,
    };
    world.pds.at(call, pd).context
}

fn tell_all(world: &mut World, kind: ibv_event_type, port: c_int) {
    for queue in world.devices.async_queues() {
        queue.push(Event {
            kind: kind.0,
            about: About::Port(port),
        });
    }
    changed();
}
