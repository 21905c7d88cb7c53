//! Event channels, and events on their way to the program.

use core::ffi::{c_int, c_void};
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use std::collections::VecDeque;
use std::prelude::rust_2024::*;

use super::super::readiness::Readiness;
use super::super::table::CBox;
use super::super::world::{World, changed, sleep};
use super::super::{by_errno, enter, null, violation};
use super::id::Id;
use crate::bindings::{
    ibv_ah_attr, rdma_cm_event, rdma_cm_event_type, rdma_cm_id, rdma_conn_param,
    rdma_event_channel, rdma_ud_param,
};

#[derive(Debug)]
pub(in super::super) struct Channel {
    pub(in super::super) c: CBox<rdma_event_channel>,
    pub(super) ready: Readiness,
    pub(super) events: VecDeque<Pending>,
}

impl Channel {
    pub(super) fn push(&mut self, event: Pending) {
        self.events.push_back(event);
        self.ready.show(true);
        changed();
    }

    /// Throws events away.
    pub(super) fn forget(&mut self, which: impl Fn(&Pending) -> bool) {
        self.events.retain(|event| !which(event));
        self.ready.show(!self.events.is_empty());
    }

    /// Takes the events out that are accounted to an id.
    pub(super) fn take_of(&mut self, id: usize) -> Vec<Pending> {
        let all = core::mem::take(&mut self.events).into_iter();
        let (of, others): (Vec<_>, Vec<_>) = all.partition(|event| event.accounted == id);
        self.events = others.into();
        self.ready.show(!self.events.is_empty());
        of
    }
}

/// An event that was not got yet.
#[derive(Debug)]
pub(in super::super) struct Pending {
    /// The id that waits for its acknowledgement, and that it is about unless it brings a new one.
    pub(super) accounted: usize,
    pub(super) kind: rdma_cm_event_type,
    pub(super) status: c_int,
    /// Private data as the receiver sees it, padded.
    pub(super) data: Option<Vec<u8>>,
    /// Reads towards the receiver, and of the receiver.
    pub(super) depths: (u8, u8),
    /// Where datagrams go, and with which key, if it says so.
    pub(super) remote: Option<(ibv_ah_attr, u32, u32)>,
    /// The multicast group that it is about, with what the join was given.
    pub(super) group: Option<(IpAddr, usize)>,
    pub(super) effect: Effect,
}

/// What getting an event changes.
#[derive(Debug)]
pub(super) enum Effect {
    None,
    /// The id gets a device and a local address.
    Resolved {
        context: usize,
        local: SocketAddr,
    },
    /// There is a new id, for the passive side of a connection.
    NewId {
        connection: u32,
    },
}

/// An event that was got: C's struct and what it points to.
#[derive(Debug)]
#[repr(C)]
pub(in super::super) struct Message {
    event: rdma_cm_event,
    data: [u8; 256],
}

#[derive(Debug)]
pub(in super::super) struct Delivered {
    pub(in super::super) c: CBox<Message>,
    accounted: usize,
    group: Option<IpAddr>,
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    let mut world = match enter("rdma_create_event_channel") {
        Ok(world) => world,
        Err(errno) => return null(errno),
    };
    let ready = match Readiness::new() {
        Ok(ready) => ready,
        Err(errno) => return null(errno),
    };
    let c = CBox::new(rdma_event_channel { fd: ready.fd() });
    let pointer = c.as_ptr();
    world.cm.channels.insert(
        pointer.addr(),
        Channel {
            c,
            ready,
            events: VecDeque::new(),
        },
    );
    pointer
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    let call = "rdma_destroy_event_channel";
    if let Ok(mut world) = enter(call) {
        world.cm.channels.of(call, channel);
        let address = channel.addr();
        if world.cm.ids.iter().any(|(_, id)| id.channel == address) {
            violation("rdma_destroy_event_channel closes a channel that ids still use");
        }
        if let Some(channel) = world.cm.channels.remove(address) {
            channel.c.retire();
        }
    }
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    let call = "rdma_get_cm_event";
    by_errno(enter(call).and_then(|mut world| {
        let pending = loop {
            let state = world.cm.channels.of(call, channel);
            if let Some(pending) = state.events.pop_front() {
                state.ready.show(!state.events.is_empty());
                break pending;
            }
            if state.ready.is_non_blocking() {
                return Err(libc::EAGAIN);
            }
            world = sleep(world, Duration::from_millis(100));
        };
        let got = world.hand_out(call, channel, pending);
        // SAFETY: the caller gives a place for the pointer.
        unsafe { event.write(got) };
        Ok(())
    }))
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    let call = "rdma_ack_cm_event";
    by_errno(enter(call).map(|mut world| {
        let Some(delivered) = world.cm.delivered.remove(&event.addr()) else {
            violation("rdma_ack_cm_event was given an event that is acknowledged, or none");
        };
        let id = world.cm.ids.at(call, delivered.accounted);
        id.acknowledged += 1;
        if let Some(group) = id.group_mut(delivered.group) {
            group.acknowledged += 1;
        }
        delivered.c.retire();
        changed();
    }))
}

impl World {
    /// Puts an event in on behalf of a test.
    pub(in super::super) fn inject(
        &mut self,
        id: usize,
        kind: rdma_cm_event_type,
        status: c_int,
        data: Option<Vec<u8>>,
    ) {
        self.notify(id, kind, status, data);
    }

    pub(super) fn notify(
        &mut self,
        id: usize,
        kind: rdma_cm_event_type,
        status: c_int,
        data: Option<Vec<u8>>,
    ) {
        self.push(Pending {
            accounted: id,
            kind,
            status,
            data,
            depths: (0, 0),
            remote: None,
            group: None,
            effect: Effect::None,
        });
    }

    pub(super) fn push(&mut self, event: Pending) {
        let Some(id) = self.cm.ids.find(event.accounted) else {
            return;
        };
        if id.dying {
            return;
        }
        let channel = id.channel;
        self.cm.channels.at("an event", channel).push(event);
    }

    /// Makes C's event of a pending one, and does what librdmacm does when an event is got.
    fn hand_out(
        &mut self,
        call: &str,
        channel: *mut rdma_event_channel,
        pending: Pending,
    ) -> *mut rdma_cm_event {
        let accounted = self.cm.ids.at(call, pending.accounted);
        accounted.got += 1;
        if let Some(group) = accounted.group_mut(pending.group.map(|(group, _)| group)) {
            group.got += 1;
        }
        let accounted_pointer = accounted.c.as_ptr();
        let (id, listen_id) = match pending.effect {
            Effect::None => (accounted_pointer, core::ptr::null_mut()),
            Effect::Resolved { context, local } => {
                accounted.local = Some(local);
                accounted.context = Some(context);
                let verbs = self.devices.context(context);
                // SAFETY: the id is in the table, so it is live. As in C, this is a plain write in the thread that gets
                // the event.
                unsafe { (*accounted_pointer).verbs = verbs };
                // SAFETY: as above.
                unsafe { (*accounted_pointer).port_num = 1 };
                // SAFETY: the id is live.
                unsafe { Id::write_local(accounted_pointer, local) };
                (accounted_pointer, core::ptr::null_mut())
            }
            Effect::NewId { connection } => {
                let id = self.new_passive(accounted_pointer, channel, connection);
                (id, accounted_pointer)
            }
        };
        self.message(id, listen_id, pending)
    }

    fn message(
        &mut self,
        id: *mut rdma_cm_id,
        listen_id: *mut rdma_cm_id,
        pending: Pending,
    ) -> *mut rdma_cm_event {
        let c = CBox::new(Message {
            event: rdma_cm_event::default(),
            data: [0; 256],
        });
        let message = c.as_ptr();
        let mut event = rdma_cm_event {
            id,
            listen_id,
            event: pending.kind,
            status: pending.status,
            ..Default::default()
        };
        let (mut bytes, mut bytes_len) = (core::ptr::null(), 0);
        if let Some(said) = pending.data {
            // SAFETY: the message was just made; nothing is read.
            let data = unsafe { &raw mut (*message).data }.cast::<u8>();
            let len = said.len().min(255);
            // SAFETY: the place has 256 bytes.
            unsafe { data.copy_from_nonoverlapping(said.as_ptr(), len) };
            bytes = data.cast::<c_void>().cast_const();
            bytes_len = len.try_into().unwrap_or(u8::MAX);
        }
        if let Some((_, token)) = pending.group {
            bytes = core::ptr::without_provenance(token);
        }
        if self.cm.ids.at("an event", pending.accounted).is_datagram() {
            let (ah_attr, qp_num, qkey) = pending.remote.unwrap_or_default();
            event.param.ud = rdma_ud_param {
                private_data: bytes,
                private_data_len: bytes_len,
                ah_attr,
                qp_num,
                qkey,
            };
        } else {
            event.param.conn = rdma_conn_param {
                private_data: bytes,
                private_data_len: bytes_len,
                responder_resources: pending.depths.0,
                initiator_depth: pending.depths.1,
                ..Default::default()
            };
        }
        let pointer = message.cast::<rdma_cm_event>();
        // SAFETY: the event is the first field of the message, which was just made.
        unsafe { pointer.write(event) };
        self.cm.delivered.insert(
            pointer.addr(),
            Delivered {
                c,
                accounted: pending.accounted,
                group: pending.group.map(|(group, _)| group),
            },
        );
        pointer
    }
}
