//! Asynchronous events: raised by what happens here, or put in by a test.

use core::ffi::c_int;
use core::time::Duration;
use std::collections::VecDeque;
use std::prelude::rust_2024::*;

use super::readiness::Readiness;
use super::world::{World, changed, sleep, wait_until};
use super::{by_errno, enter, violation};
use crate::bindings::{ibv_async_event, ibv_context, ibv_event_type};
use crate::unions::ibv_async_event_element;

/// What an event carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum About {
    /// The address of an object.
    Object(usize),
    /// The number of a port, or whatever a kind without an object has in its place.
    Port(c_int),
}

/// An event, as C gives it out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) kind: u32,
    pub(super) about: About,
}

/// Which objects wait for the acknowledgement of a kind of event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    Cq,
    Qp,
    Srq,
    None,
}

impl Class {
    /// As the library sorts the kinds.
    pub(super) fn of(kind: u32) -> Self {
        use ibv_event_type as E;

        match ibv_event_type(kind) {
            E::IBV_EVENT_CQ_ERR => Self::Cq,
            E::IBV_EVENT_QP_FATAL
            | E::IBV_EVENT_QP_REQ_ERR
            | E::IBV_EVENT_QP_ACCESS_ERR
            | E::IBV_EVENT_COMM_EST
            | E::IBV_EVENT_SQ_DRAINED
            | E::IBV_EVENT_PATH_MIG
            | E::IBV_EVENT_PATH_MIG_ERR
            | E::IBV_EVENT_QP_LAST_WQE_REACHED => Self::Qp,
            E::IBV_EVENT_SRQ_ERR | E::IBV_EVENT_SRQ_LIMIT_REACHED => Self::Srq,
            _ => Self::None,
        }
    }
}

/// How many events of an object were got, and how many acknowledged.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Acks {
    got: u32,
    acknowledged: u32,
}

impl Acks {
    fn are_even(self) -> bool {
        self.got == self.acknowledged
    }
}

/// The events of a context that nobody has got.
#[derive(Debug)]
pub(super) struct Queue {
    ready: Readiness,
    events: VecDeque<Event>,
    /// The device is gone: readable for ever, with nothing but the error behind the last event.
    closed: bool,
}

impl Queue {
    pub(super) fn new() -> Result<Self, c_int> {
        Ok(Self {
            ready: Readiness::new()?,
            events: VecDeque::new(),
            closed: false,
        })
    }

    pub(super) fn fd(&self) -> c_int {
        self.ready.fd()
    }

    pub(super) fn push(&mut self, event: Event) {
        self.events.push_back(event);
        self.show();
    }

    pub(super) fn close(&mut self) {
        self.closed = true;
        self.show();
    }

    /// Forgets what nobody has got.
    pub(super) fn clear(&mut self) {
        self.events.clear();
        self.closed = false;
        self.show();
    }

    fn show(&mut self) {
        self.ready.show(self.closed || !self.events.is_empty());
    }
}

impl World {
    /// Puts an event in for the context, unless its object is on its way out.
    pub(super) fn raise(&mut self, context: usize, event: Event) {
        if let Some(queue) = self.devices.async_queue(context) {
            queue.push(event);
            changed();
        }
    }

    /// Raises an event of a completion queue.
    pub(super) fn raise_cq(&mut self, kind: ibv_event_type, address: usize) {
        if let Some(cq) = self.cqs.find(address).filter(|cq| !cq.dying) {
            let context = cq.context;
            self.raise_object(context, kind, address);
        }
    }

    /// Raises an event of a queue pair.
    pub(super) fn raise_qp(&mut self, kind: ibv_event_type, address: usize) {
        if let Some(qp) = self.qps.find(address).filter(|qp| !qp.dying) {
            let pd = qp.pd;
            let context = self.pds.at("an event", pd).context;
            self.raise_object(context, kind, address);
        }
    }

    /// Raises an event of a shared receive queue.
    pub(super) fn raise_srq(&mut self, kind: ibv_event_type, address: usize) {
        if let Some(srq) = self.srqs.find(address).filter(|srq| !srq.dying) {
            let pd = srq.pd;
            let context = self.pds.at("an event", pd).context;
            self.raise_object(context, kind, address);
        }
    }

    fn raise_object(&mut self, context: usize, kind: ibv_event_type, address: usize) {
        let event = Event {
            kind: kind.0,
            about: About::Object(address),
        };
        self.raise(context, event);
    }

    /// The counts of the object that an event of this class is about.
    fn acks(&mut self, call: &str, class: Class, address: usize) -> Option<&mut Acks> {
        match class {
            Class::Cq => Some(&mut self.cqs.at(call, address).asyncs),
            Class::Qp => Some(&mut self.qps.at(call, address).asyncs),
            Class::Srq => Some(&mut self.srqs.at(call, address).asyncs),
            Class::None => None,
        }
    }
}

/// Drops the events of an object that nobody has got, and waits for the acknowledgement of those that somebody has: what every
/// destroy does. The object gives no more events.
pub(super) fn settle(
    mut world: std::sync::MutexGuard<'static, World>,
    call: &str,
    class: Class,
    address: usize,
) -> std::sync::MutexGuard<'static, World> {
    for queue in world.devices.async_queues() {
        queue
            .events
            .retain(|event| event.about != About::Object(address));
        queue.show();
    }
    let why = "asynchronous events of the object were got and never acknowledged";
    wait_until(world, call, why, |world| {
        world
            .acks(call, class, address)
            .is_none_or(|acks| acks.are_even())
    })
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    let call = "ibv_get_async_event";
    by_errno(enter(call).and_then(|mut world| {
        let got = loop {
            world.devices.check(call, context);
            let Some(queue) = world.devices.async_queue(context.addr()) else {
                return Err(libc::EIO);
            };
            if let Some(event) = queue.events.pop_front() {
                queue.show();
                break event;
            }
            if queue.closed {
                return Err(libc::EIO);
            }
            if queue.ready.is_non_blocking() {
                return Err(libc::EAGAIN);
            }
            world = sleep(world, Duration::from_millis(100));
        };
        // All bytes of the union, of which a port takes four.
        // SAFETY: pointers and integers, for which zero is a value.
        let mut element: ibv_async_event_element = unsafe { core::mem::zeroed() };
        match got.about {
            About::Object(address) => {
                let pointer = world.pointer_of(Class::of(got.kind), address);
                element.cq = pointer.cast();
                if let Some(acks) = world.acks(call, Class::of(got.kind), address) {
                    acks.got += 1;
                }
            }
            About::Port(port) => element.port_num = port,
        }
        world.events_got.push(got);
        let filled = ibv_async_event {
            element,
            event_type: ibv_event_type(got.kind),
        };
        // SAFETY: the caller gives a place for the event.
        unsafe { event.write(filled) };
        Ok(())
    }))
}

impl World {
    /// The pointer that an event carries. Of a kind that the library does not know it is a number that nobody may follow.
    fn pointer_of(&mut self, class: Class, address: usize) -> *mut core::ffi::c_void {
        let call = "an event";
        match class {
            Class::Cq => self.cqs.at(call, address).c.as_ptr().cast(),
            Class::Qp => self.qps.at(call, address).c.as_ptr().cast(),
            Class::Srq => self.srqs.at(call, address).c.as_ptr().cast(),
            Class::None => core::ptr::without_provenance_mut(address),
        }
    }
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    let call = "ibv_ack_async_event";
    // Acknowledging is the library's own business: it works without the device, and it cannot fail.
    let Ok(mut world) = enter(call) else {
        return;
    };
    // SAFETY: the caller gives an event that was got.
    let event = unsafe { event.read() };
    let kind = event.event_type.0;
    // SAFETY: `ibv_get_async_event` filled all bytes of the union.
    let address = unsafe { event.element.cq }.addr();
    // SAFETY: any four bytes are a number.
    let port = unsafe { event.element.port_num };
    let got = world.events_got.iter().position(|got| {
        got.kind == kind
            && match got.about {
                About::Object(object) => object == address,
                About::Port(number) => number == port,
            }
    });
    let Some(got) = got else {
        violation(&std::format!(
            "{call} was given an event of kind {kind} that was not got, or is acknowledged already"
        ));
    };
    let Event { about, .. } = world.events_got.remove(got);
    if let About::Object(object) = about
        && let Some(acks) = world.acks(call, Class::of(kind), object)
    {
        acks.acknowledged += 1;
    }
    changed();
}
