//! Moderation of completion queues, connection establishment extensions, and order of written data.

use core::ffi::c_int;
use std::prelude::rust_2024::*;

use super::super::{by_return, enter, minus_one};
use crate::bindings::*;

pub(super) const MAX_COUNT: u16 = 1000;
pub(super) const MAX_PERIOD: u16 = 2000;

pub(super) fn offer(table: &mut verbs_context) {
    table.modify_cq = Some(modify_cq);
}

unsafe extern "C" fn modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int {
    let call = "ibv_modify_cq";
    by_return(enter(call).and_then(|mut world| {
        world.cqs.of(call, cq);
        // SAFETY: the caller gives a filled struct.
        let attr = unsafe { attr.read() };
        let (count, period) = (attr.moderate.cq_count, attr.moderate.cq_period);
        world.optional.note(
            call,
            std::format!("mask={} count={count} period={period}", attr.attr_mask),
        );
        if attr.attr_mask != ibv_cq_attr_mask::IBV_CQ_ATTR_MODERATE.0
            || count > MAX_COUNT
            || period > MAX_PERIOD
        {
            return Err(libc::EINVAL);
        }
        Ok(())
    }))
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    let call = "ibv_query_ece";
    by_return(enter(call).and_then(|mut world| {
        let qp = world.qps.of(call, qp);
        let (pd, number) = (qp.pd, qp.number);
        let context = world.pds.at(call, pd).context;
        let offers = world.offers(context);
        // As the library does before it asks the provider.
        let value = ibv_ece {
            vendor_id: if offers { 0x15b3 } else { 0 },
            options: if offers { number } else { 0 },
            comp_mask: 0,
        };
        // SAFETY: the caller gives a place for the struct.
        unsafe { ece.write(value) };
        if offers {
            Ok(())
        } else {
            Err(libc::EOPNOTSUPP)
        }
    }))
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_set_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    let call = "ibv_set_ece";
    by_return(enter(call).and_then(|mut world| {
        let pd = world.qps.of(call, qp).pd;
        let context = world.pds.at(call, pd).context;
        // SAFETY: the caller gives a filled struct.
        let given = unsafe { ece.read() };
        world.optional.note(
            call,
            std::format!(
                "vendor_id={:#x} options={:#x} comp_mask={}",
                given.vendor_id,
                given.options,
                given.comp_mask
            ),
        );
        if !world.offers(context) {
            return Err(libc::EOPNOTSUPP);
        }
        // What the device does not have of it is taken out.
        let granted = ibv_ece {
            options: given.options & 0xff,
            ..given
        };
        // SAFETY: the caller gives a struct that the call may write what was taken into.
        unsafe { ece.write(granted) };
        Ok(())
    }))
}

/// Written data is in order for writes, and for nothing else.
///
/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_qp_data_in_order(
    qp: *mut ibv_qp,
    op: ibv_wr_opcode,
    flags: u32,
) -> c_int {
    let call = "ibv_query_qp_data_in_order";
    let mut world = match enter(call) {
        Ok(world) => world,
        Err(errno) => return minus_one(errno),
    };
    world.qps.of(call, qp);
    world
        .optional
        .note(call, std::format!("op={} flags={flags}", op.0));
    c_int::from(op == ibv_wr_opcode::IBV_WR_RDMA_WRITE)
}
