//! Multicast groups that ids join, and where datagrams go.

use core::ffi::{c_int, c_void};
use core::net::IpAddr;
use std::prelude::rust_2024::*;

use libc::sockaddr;

use super::super::world::{World, wait_until};
use super::super::{by_errno, enter};
use super::address;
use super::event::{Effect, Pending};
use crate::bindings::{
    ibv_ah_attr, ibv_gid, ibv_global_route, rdma_cm_event_type, rdma_cm_id, rdma_cm_join_mc_attr_ex,
};

/// The key of the port space for datagrams.
pub(super) const QKEY: u32 = 0x0123_4567;

/// The number that datagrams to a group go to.
const GROUP_NUMBER: u32 = 0xff_ffff;

/// A group that an id has joined.
#[derive(Debug)]
pub(super) struct Joined {
    pub(super) group: IpAddr,
    /// Events of it that were got, and that were acknowledged.
    pub(super) got: u32,
    pub(super) acknowledged: u32,
}

/// The path from an address of a device to another address.
pub(super) fn path(world: &World, context: usize, from: IpAddr, to: IpAddr) -> ibv_ah_attr {
    let to = match to {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: to.octets() },
            sgid_index: world.devices.index_of(context, from).unwrap_or(0),
            hop_limit: 64,
            ..Default::default()
        },
        is_global: 1,
        port_num: 1,
        ..Default::default()
    }
}

impl World {
    fn join(
        &mut self,
        call: &str,
        id: *mut rdma_cm_id,
        group: IpAddr,
        token: *mut c_void,
    ) -> Result<(), c_int> {
        let state = self.cm.ids.of(call, id);
        let (Some(context), Some(local), true) = (state.context, state.local, state.is_datagram())
        else {
            return Err(libc::EINVAL);
        };
        state.groups.push(Joined {
            group,
            got: 0,
            acknowledged: 0,
        });
        let to = path(self, context, local.ip(), group);
        self.push(Pending {
            accounted: id.addr(),
            kind: rdma_cm_event_type::RDMA_CM_EVENT_MULTICAST_JOIN,
            status: 0,
            data: None,
            depths: (0, 0),
            remote: Some((to, GROUP_NUMBER, QKEY)),
            group: Some((group, token.addr())),
            effect: Effect::None,
        });
        Ok(())
    }
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_join_multicast(
    id: *mut rdma_cm_id,
    addr: *mut sockaddr,
    context: *mut c_void,
) -> c_int {
    let call = "rdma_join_multicast";
    by_errno(enter(call).and_then(|mut world| {
        // SAFETY: the caller gives a whole address.
        let addr = unsafe { address::read(addr) }.ok_or(libc::EINVAL)?;
        world.join(call, id, addr.ip(), context)
    }))
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_join_multicast_ex(
    id: *mut rdma_cm_id,
    mc_join_attr: *mut rdma_cm_join_mc_attr_ex,
    context: *mut c_void,
) -> c_int {
    let call = "rdma_join_multicast_ex";
    by_errno(enter(call).and_then(|mut world| {
        // SAFETY: the caller gives a filled struct.
        let attributes = unsafe { mc_join_attr.read() };
        if attributes.comp_mask != 3 || attributes.join_flags > 1 {
            return Err(libc::EINVAL);
        }
        // SAFETY: the caller gives a whole address.
        let addr = unsafe { address::read(attributes.addr) }.ok_or(libc::EINVAL)?;
        world.join(call, id, addr.ip(), context)
    }))
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_leave_multicast(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int {
    let call = "rdma_leave_multicast";
    by_errno(enter(call).and_then(|mut world| {
        // SAFETY: the caller gives a whole address.
        let group = unsafe { address::read(addr) }.ok_or(libc::EINVAL)?.ip();
        let address = id.addr();
        let state = world.cm.ids.of(call, id);
        let channel = state.channel;
        if state.group_mut(Some(group)).is_none() {
            return Err(libc::EADDRNOTAVAIL);
        }
        let of_group = |event: &Pending| {
            event.accounted == address && event.group.is_some_and(|(of, _)| of == group)
        };
        world.cm.channels.at(call, channel).forget(of_group);
        let why = "events of the group were got and never acknowledged";
        let mut world = wait_until(world, call, why, |world| {
            let joined = world.cm.ids.at(call, address).group_mut(Some(group));
            joined.is_none_or(|joined| joined.got == joined.acknowledged)
        });
        let groups = &mut world.cm.ids.at(call, address).groups;
        groups.retain(|joined| joined.group != group);
        Ok(())
    }))
}

impl World {
    /// A group is lost, as when its link goes down.
    pub(in super::super) fn lose_group(&mut self, group: IpAddr, token: usize, status: c_int) {
        let of =
            |(_, id): &(&usize, &super::Id)| id.groups.iter().any(|joined| joined.group == group);
        let Some(id) = self.cm.ids.iter().find(of).map(|(&id, _)| id) else {
            return;
        };
        self.push(Pending {
            accounted: id,
            kind: rdma_cm_event_type::RDMA_CM_EVENT_MULTICAST_ERROR,
            status,
            data: None,
            depths: (0, 0),
            remote: None,
            group: Some((group, token)),
            effect: Effect::None,
        });
    }
}
