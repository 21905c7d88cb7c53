//! Queries of devices, ports, GIDs and partition keys.

use core::ffi::c_int;
use core::net::IpAddr;
use std::prelude::rust_2024::*;

use super::super::srq::{MAX_SRQ_SGE, MAX_SRQ_WR};
use super::super::{by_errno, by_return, enter, optional, violation};
use super::{MAX_CQE, MAX_MESSAGE, MAX_READS, MAX_SGE, MAX_WR, Model, SCOPE};
use crate::bindings::{
    __be16, ibv_atomic_cap, ibv_context, ibv_device_attr, ibv_device_attr_ex, ibv_device_cap_flags,
    ibv_gid, ibv_gid_entry, ibv_mtu, ibv_port_attr, ibv_port_state, ibv_query_device_ex_input,
    ibv_transport_type,
};

/// What the devices have beyond the least.
const CAPABILITIES: u32 = ibv_device_cap_flags::IBV_DEVICE_SRQ_RESIZE.0
    | ibv_device_cap_flags::IBV_DEVICE_BAD_QKEY_CNTR.0
    | ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW.0
    | ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2B.0;

fn raw_gid(ip: IpAddr) -> ibv_gid {
    let raw = match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    };
    ibv_gid { raw }
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_device(
    context: *mut ibv_context,
    device_attr: *mut ibv_device_attr,
) -> c_int {
    let call = "ibv_query_device";
    by_return(enter(call).map(|world| {
        let attr = plain(world.devices.model_of(call, context), world.ext.vendor);
        // SAFETY: the caller gives a place for the struct.
        unsafe { device_attr.write(attr) };
    }))
}

pub(super) unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    attr_size: usize,
) -> c_int {
    let call = "ibv_query_device_ex";
    by_return(enter(call).and_then(|mut world| {
        let model = world.devices.model_of(call, context);
        if attr_size != size_of::<ibv_device_attr_ex>() {
            return Err(libc::EINVAL);
        }
        let roce = model.transport == ibv_transport_type::IBV_TRANSPORT_IB;
        let plain = plain(model, world.ext.vendor);
        let mut filled = ibv_device_attr_ex {
            completion_timestamp_mask: u64::MAX,
            hca_core_clock: super::super::ext_cq::CLOCK_KHZ,
            device_cap_flags_ex: u64::from(plain.device_cap_flags)
                | if roce { world.ext.capabilities } else { 0 },
            orig_attr: plain,
            phys_port_cnt_ex: 1,
            ..ibv_device_attr_ex::default()
        };
        if roce {
            optional::extend(&mut filled);
        }
        let arguments = std::format!("input null={} size={attr_size}", input.is_null());
        world.optional.note(call, arguments);
        // SAFETY: the caller gives a place of the size told.
        unsafe { attr.write(filled) };
        Ok(())
    }))
}

/// The plain attributes. `vendor` is the RoCE device's.
fn plain(model: &Model, vendor: u32) -> ibv_device_attr {
    let signed = u32::cast_signed;
    ibv_device_attr {
        vendor_id: if model.transport == ibv_transport_type::IBV_TRANSPORT_IB {
            vendor
        } else {
            0x0002_00ff
        },
        node_guid: model.guid.to_be(),
        max_mr_size: u64::MAX,
        page_size_cap: 0xffff_f000,
        max_qp: 1 << 10,
        max_qp_wr: signed(MAX_WR),
        max_sge: signed(MAX_SGE),
        max_sge_rd: signed(MAX_SGE),
        max_cq: 1 << 10,
        max_cqe: signed(MAX_CQE),
        max_mr: 1 << 16,
        max_pd: 1 << 10,
        max_qp_rd_atom: MAX_READS.into(),
        max_qp_init_rd_atom: MAX_READS.into(),
        max_mw: 1 << 16,
        max_ah: 1 << 10,
        max_mcast_grp: 1 << 10,
        max_mcast_qp_attach: 1 << 6,
        max_srq: 1 << 10,
        max_srq_wr: signed(MAX_SRQ_WR),
        max_srq_sge: signed(MAX_SRQ_SGE),
        atomic_cap: if model.transport == ibv_transport_type::IBV_TRANSPORT_IB {
            ibv_atomic_cap::IBV_ATOMIC_HCA
        } else {
            ibv_atomic_cap::IBV_ATOMIC_NONE
        },
        device_cap_flags: CAPABILITIES,
        max_pkeys: 1,
        phys_port_cnt: 1,
        ..ibv_device_attr::default()
    }
}

pub(super) unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port_num: u8,
    port_attr: *mut ibv_port_attr,
    port_attr_len: usize,
) -> c_int {
    by_return(enter("ibv_query_port").and_then(|world| {
        let model = world.devices.model_of("ibv_query_port", context);
        if port_num != 1 || port_attr_len != size_of::<ibv_port_attr>() {
            return Err(libc::EINVAL);
        }
        let attr = ibv_port_attr {
            state: if world.port_down {
                ibv_port_state::IBV_PORT_DOWN
            } else {
                ibv_port_state::IBV_PORT_ACTIVE
            },
            max_mtu: ibv_mtu::IBV_MTU_4096,
            active_mtu: ibv_mtu::IBV_MTU_1024,
            // Two slots are empty, as on a device whose addresses came and went.
            gid_tbl_len: c_int::try_from(model.gids.len()).unwrap_or(0) + 2,
            max_msg_sz: MAX_MESSAGE,
            pkey_tbl_len: 1,
            active_width: 1,
            active_speed: 1,
            phys_state: if world.port_down { 3 } else { 5 },
            link_layer: 2,
            ..ibv_port_attr::default()
        };
        // SAFETY: the caller gives a place for the struct.
        unsafe { port_attr.write(attr) };
        Ok(())
    }))
}

/// The frozen symbol, which the fake's contexts never need.
///
/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_port(
    _context: *mut ibv_context,
    _port_num: u8,
    _port_attr: *mut core::ffi::c_void,
) -> c_int {
    violation("the frozen ibv_query_port was called");
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port_num: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    by_errno(enter("ibv_query_gid").and_then(|world| {
        let model = world.devices.model_of("ibv_query_gid", context);
        let index = usize::try_from(index).map_err(|_| libc::EINVAL)?;
        if port_num != 1 || index >= model.gids.len() + 2 {
            return Err(libc::EINVAL);
        }
        let value = model
            .gids
            .get(index)
            .map_or_else(ibv_gid::default, |&ip| raw_gid(ip));
        // SAFETY: the caller gives a place for the GID.
        unsafe { gid.write(value) };
        Ok(())
    }))
}

fn entry(model: &Model, index: usize) -> Option<ibv_gid_entry> {
    Some(ibv_gid_entry {
        gid: raw_gid(*model.gids.get(index)?),
        gid_index: index.try_into().ok()?,
        port_num: 1,
        // RoCE v2.
        gid_type: 2,
        ndev_ifindex: SCOPE,
    })
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut ibv_context,
    port_num: u32,
    gid_index: u32,
    place: *mut ibv_gid_entry,
    flags: u32,
    entry_size: usize,
) -> c_int {
    by_return(enter("ibv_query_gid_ex").and_then(|world| {
        let model = world.devices.model_of("ibv_query_gid_ex", context);
        if port_num != 1 || flags != 0 || entry_size != size_of::<ibv_gid_entry>() {
            return Err(libc::EINVAL);
        }
        let found = entry(model, gid_index as usize).ok_or(libc::ENODATA)?;
        // SAFETY: the caller gives a place of the size told.
        unsafe { place.write(found) };
        Ok(())
    }))
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    max_entries: usize,
    flags: u32,
    entry_size: usize,
) -> isize {
    let written = enter("ibv_query_gid_table").and_then(|world| {
        let model = world.devices.model_of("ibv_query_gid_table", context);
        if flags != 0 || entry_size != size_of::<ibv_gid_entry>() || max_entries < model.gids.len()
        {
            return Err(libc::EINVAL);
        }
        for (index, found) in (0..).map_while(|index| Some((index, entry(model, index)?))) {
            // SAFETY: the caller gives room for the entries, and there are no more than told.
            unsafe { entries.wrapping_add(index).write(found) };
        }
        isize::try_from(model.gids.len()).map_err(|_| libc::EINVAL)
    });
    written.unwrap_or_else(|errno| -(errno as isize))
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_pkey(
    context: *mut ibv_context,
    port_num: u8,
    index: c_int,
    pkey: *mut __be16,
) -> c_int {
    by_errno(enter("ibv_query_pkey").and_then(|world| {
        world.devices.check("ibv_query_pkey", context);
        if (port_num, index) != (1, 0) {
            return Err(libc::EINVAL);
        }
        // SAFETY: the caller gives a place for the key.
        unsafe { pkey.write(u16::MAX) };
        Ok(())
    }))
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_pkey_index(
    context: *mut ibv_context,
    port_num: u8,
    pkey: __be16,
) -> c_int {
    by_errno(enter("ibv_get_pkey_index").and_then(|world| {
        world.devices.check("ibv_get_pkey_index", context);
        if (port_num, pkey) == (1, u16::MAX) {
            Ok(())
        } else {
            Err(libc::EINVAL)
        }
    }))
}
