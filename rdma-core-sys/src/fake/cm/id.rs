//! Ids: made, bound, resolved, moved and destroyed.

use core::ffi::{c_int, c_void};
use core::net::{IpAddr, SocketAddr};
use std::prelude::rust_2024::*;

use libc::sockaddr;

use super::super::device::{Devices, SCOPE};
use super::super::table::CBox;
use super::super::world::{World, wait_until};
use super::super::{by_errno, enter};
use super::connection::Side;
use super::event::{Effect, Pending};
use super::multicast::Joined;
use super::{address, is_wildcard_for};
use crate::bindings::{
    ibv_ece, rdma_cm_event_type, rdma_cm_id, rdma_event_channel, rdma_port_space,
};

#[derive(Debug)]
pub(in super::super) struct Id {
    pub(in super::super) c: CBox<rdma_cm_id>,
    pub(super) channel: usize,
    pub(super) context: Option<usize>,
    pub(super) local: Option<SocketAddr>,
    pub(super) peer: Option<SocketAddr>,
    pub(super) route: bool,
    /// How many requests may wait; set while it listens.
    pub(super) backlog: Option<usize>,
    pub(super) reuse: bool,
    /// Events that were got, and that were acknowledged.
    pub(super) got: u32,
    pub(super) acknowledged: u32,
    pub(super) connection: Option<(u32, Side)>,
    /// Multicast groups that it has joined.
    pub(super) groups: Vec<Joined>,
    /// What it tells of its device.
    pub(super) ece: ibv_ece,
    /// Being destroyed: gets no more events.
    pub(super) dying: bool,
}

impl Id {
    pub(super) fn new(c: CBox<rdma_cm_id>, channel: usize) -> Self {
        Self {
            c,
            channel,
            context: None,
            local: None,
            peer: None,
            route: false,
            backlog: None,
            reuse: false,
            got: 0,
            acknowledged: 0,
            connection: None,
            groups: Vec::new(),
            ece: ibv_ece::default(),
            dying: false,
        }
    }

    /// # Safety
    /// - The id is live, and nobody reads the address meanwhile.
    pub(super) unsafe fn write_local(id: *mut rdma_cm_id, addr: SocketAddr) {
        // SAFETY: the id is live; nothing is read.
        let place = unsafe { &raw mut (*id).route.addr.__bindgen_anon_1 };
        // SAFETY: the place holds the largest address.
        unsafe { address::write(place.cast(), addr) };
    }

    /// # Safety
    /// - The id is live, and nobody reads the address meanwhile.
    pub(super) unsafe fn write_peer(id: *mut rdma_cm_id, addr: SocketAddr) {
        // SAFETY: the id is live; nothing is read.
        let place = unsafe { &raw mut (*id).route.addr.__bindgen_anon_2 };
        // SAFETY: the place holds the largest address.
        unsafe { address::write(place.cast(), addr) };
    }
}

/// The device that has a local address; a link-local one only with its interface.
fn device_of(addr: SocketAddr) -> Option<usize> {
    if let SocketAddr::V6(v6) = addr
        && v6.ip().is_unicast_link_local()
        && v6.scope_id() != SCOPE
    {
        return None;
    }
    Devices::of_ip(addr.ip())
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    ps: rdma_port_space,
) -> c_int {
    let call = "rdma_create_id";
    by_errno(enter(call).and_then(|mut world| {
        if channel.is_null()
            || !matches!(
                ps,
                rdma_port_space::RDMA_PS_TCP | rdma_port_space::RDMA_PS_UDP
            )
        {
            // Blocking ids are not modelled.
            return Err(libc::EOPNOTSUPP);
        }
        world.cm.channels.of(call, channel);
        let c = CBox::new(rdma_cm_id {
            channel,
            context,
            ps,
            ..rdma_cm_id::default()
        });
        let pointer = c.as_ptr();
        world
            .cm
            .ids
            .insert(pointer.addr(), Id::new(c, channel.addr()));
        // SAFETY: the caller gives a place for the pointer.
        unsafe { id.write(pointer) };
        Ok(())
    }))
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    let call = "rdma_destroy_id";
    by_errno(enter(call).map(|mut world| {
        let address = id.addr();
        let state = world.cm.ids.of(call, id);
        state.dying = true;
        let channel = state.channel;
        // Requests that nobody got are refused.
        let unread = world.cm.channels.at(call, channel).take_of(address);
        for event in unread {
            if let Effect::NewId { connection } = event.effect {
                world.leave(connection, Side::Passive);
            }
        }
        if let Some((connection, side)) = world.cm.ids.of(call, id).connection {
            world.leave(connection, side);
        }
        let why = "events of the id were got and never acknowledged";
        let mut world = wait_until(world, call, why, |world| {
            let id = world.cm.ids.at(call, address);
            id.got == id.acknowledged
        });
        if let Some(id) = world.cm.ids.remove(address) {
            // C forgets those without a word, and their memory with them.
            world.cm.never_left += id.groups.len();
            id.c.retire();
        }
    }))
}

impl World {
    /// Gives an id a local address, or says why not.
    fn bind(&mut self, id: usize, addr: SocketAddr) -> Result<(), c_int> {
        let call = "rdma_bind_addr";
        let wildcard = addr.ip().is_unspecified();
        let device = device_of(addr);
        if !wildcard && device.is_none() {
            let loopback = addr.ip().is_loopback();
            return Err(if loopback {
                libc::ENODEV
            } else {
                libc::EADDRNOTAVAIL
            });
        }
        if self.cm.ids.at(call, id).local.is_some() {
            return Err(libc::EINVAL);
        }
        let mut addr = addr;
        if addr.port() == 0 {
            addr.set_port(self.cm.choose_port());
        }
        let reuse = self.cm.ids.at(call, id).reuse;
        if self.is_taken(id, addr, reuse) {
            return Err(libc::EADDRINUSE);
        }
        let context = device.map(|model| self.devices.pinned(model)).transpose()?;
        let state = self.cm.ids.at(call, id);
        state.local = Some(addr);
        let pointer = state.c.as_ptr();
        if let Some(context) = context {
            state.context = Some(context.addr());
            // SAFETY: the id is in the table, so it is live, and the caller of the C function has it to itself.
            unsafe { (*pointer).verbs = context };
            // SAFETY: as above.
            unsafe { (*pointer).port_num = 1 };
        }
        // SAFETY: as above.
        unsafe { Id::write_local(pointer, addr) };
        Ok(())
    }

    /// Whether another id is bound where `addr` would overlap.
    fn is_taken(&self, id: usize, addr: SocketAddr, reuse: bool) -> bool {
        let own = self.cm.ids.iter().find(|&(&other, _)| other == id);
        let datagram = own.is_some_and(|(_, state)| state.is_datagram());
        self.cm.ids.iter().any(|(&other, state)| {
            // Each port space has ports of its own.
            let Some(local) = state
                .local
                .filter(|_| other != id && state.connection.is_none())
                .filter(|_| state.is_datagram() == datagram)
            else {
                return false;
            };
            let overlap = local.ip() == addr.ip()
                || is_wildcard_for(local.ip(), addr.ip())
                || is_wildcard_for(addr.ip(), local.ip());
            let shared = reuse && state.reuse && state.backlog.is_none();
            local.port() == addr.port() && overlap && !shared
        })
    }
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int {
    let call = "rdma_bind_addr";
    by_errno(enter(call).and_then(|mut world| {
        world.cm.ids.of(call, id);
        // SAFETY: the caller gives a whole address.
        let addr = unsafe { address::read(addr) }.ok_or(libc::EINVAL)?;
        world.bind(id.addr(), addr)
    }))
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    let call = "rdma_listen";
    by_errno(enter(call).and_then(|mut world| {
        let state = world.cm.ids.of(call, id);
        if state.connection.is_some() || state.backlog.is_some() || state.peer.is_some() {
            return Err(libc::EINVAL);
        }
        let Some(local) = state.local else {
            let any = IpAddr::V4(core::net::Ipv4Addr::UNSPECIFIED);
            world.bind(id.addr(), SocketAddr::new(any, 0))?;
            world.cm.ids.of(call, id).backlog = Some(1024);
            return Ok(());
        };
        if world.is_taken(id.addr(), local, false) {
            return Err(libc::EADDRINUSE);
        }
        let backlog = usize::try_from(backlog)
            .ok()
            .filter(|n| (1..=1024).contains(n));
        world.cm.ids.of(call, id).backlog = Some(backlog.unwrap_or(1024));
        Ok(())
    }))
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_resolve_addr(
    id: *mut rdma_cm_id,
    src_addr: *mut sockaddr,
    dst_addr: *mut sockaddr,
    _timeout_ms: c_int,
) -> c_int {
    let call = "rdma_resolve_addr";
    by_errno(enter(call).and_then(|mut world| {
        let address = id.addr();
        world.cm.ids.of(call, id);
        // SAFETY: the caller gives a whole address.
        let peer = unsafe { address::read(dst_addr) }.ok_or(libc::EINVAL)?;
        if !src_addr.is_null() {
            // SAFETY: the caller gives a whole address.
            let source = unsafe { address::read(src_addr) }.ok_or(libc::EINVAL)?;
            world.bind(address, source)?;
        }
        let state = world.cm.ids.of(call, id);
        if state.connection.is_some() || state.backlog.is_some() {
            return Err(libc::EINVAL);
        }
        state.peer = Some(peer);
        // SAFETY: the id is in the table, so it is live, and the caller has it to itself.
        unsafe { Id::write_peer(id, peer) };
        let bound = state.local;
        // The devices are on networks of their own; each reaches its own address, and no other answers.
        let Some(model) = device_of(peer) else {
            let same_network = match peer.ip() {
                IpAddr::V4(v4) => matches!(v4.octets(), [192, 0, 2, _] | [198, 51, 100, _]),
                IpAddr::V6(v6) => v6.segments()[0] == 0x2001,
            };
            let status = if same_network {
                -libc::ETIMEDOUT
            } else {
                -libc::ENODEV
            };
            world.notify(
                address,
                rdma_cm_event_type::RDMA_CM_EVENT_ADDR_ERROR,
                status,
                None,
            );
            return Ok(());
        };
        let context = world.devices.pinned(model)?.addr();
        let port = world.cm.choose_port();
        let local = bound
            .filter(|local| !local.ip().is_unspecified())
            .unwrap_or_else(|| SocketAddr::new(Devices::ip_of(model, peer.ip()), port));
        let event = Pending {
            accounted: address,
            kind: rdma_cm_event_type::RDMA_CM_EVENT_ADDR_RESOLVED,
            status: 0,
            data: None,
            depths: (0, 0),
            remote: None,
            group: None,
            effect: Effect::Resolved { context, local },
        };
        world.push(event);
        Ok(())
    }))
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_resolve_route(id: *mut rdma_cm_id, _timeout_ms: c_int) -> c_int {
    let call = "rdma_resolve_route";
    by_errno(enter(call).and_then(|mut world| {
        let state = world.cm.ids.of(call, id);
        if state.context.is_none() {
            super::super::violation(
                "rdma_resolve_route on an id without a device: librdmacm dereferences NULL",
            );
        }
        if state.route || state.connection.is_some() {
            return Err(libc::EINVAL);
        }
        state.route = true;
        world.notify(
            id.addr(),
            rdma_cm_event_type::RDMA_CM_EVENT_ROUTE_RESOLVED,
            0,
            None,
        );
        Ok(())
    }))
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_migrate_id(
    id: *mut rdma_cm_id,
    channel: *mut rdma_event_channel,
) -> c_int {
    let call = "rdma_migrate_id";
    by_errno(enter(call).and_then(|mut world| {
        if channel.is_null() {
            return Err(libc::EOPNOTSUPP);
        }
        world.cm.channels.of(call, channel);
        let address = id.addr();
        let from = world.cm.ids.of(call, id).channel;
        let unread = world.cm.channels.at(call, from).take_of(address);
        world.cm.ids.of(call, id).channel = channel.addr();
        // SAFETY: the id is in the table, so it is live, and the caller has it to itself.
        unsafe { (*id).channel = channel };
        for event in unread {
            world.cm.channels.of(call, channel).push(event);
        }
        let why = "events of the id that were got before it moves were never acknowledged";
        drop(wait_until(world, call, why, |world| {
            let id = world.cm.ids.at(call, address);
            id.got == id.acknowledged
        }));
        Ok(())
    }))
}

impl Id {
    /// Which side of a connection it is, if it has one.
    pub(in super::super) fn role(&self) -> Option<Side> {
        self.connection.map(|(_, side)| side)
    }

    /// Whether it is of the port space for datagrams.
    pub(super) fn is_datagram(&self) -> bool {
        // SAFETY: the id is in the table, so it is live, and the field never changes.
        unsafe { (*self.c.as_ptr()).ps == rdma_port_space::RDMA_PS_UDP }
    }

    /// A group that it has joined.
    pub(super) fn group_mut(&mut self, group: Option<IpAddr>) -> Option<&mut Joined> {
        self.groups
            .iter_mut()
            .find(|joined| Some(joined.group) == group)
    }

    pub(in super::super) fn is_listener(&self) -> bool {
        self.backlog.is_some()
    }
}
