//! What the connection manager knows for the transitions of a queue pair.

use core::ffi::c_int;
use std::prelude::rust_2024::*;

use super::super::{by_errno, enter};
use super::connection::{Connection, Offer, Side, Stage};
use crate::bindings::{
    ibv_access_flags, ibv_mtu, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_state, rdma_cm_id,
};

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_init_qp_attr(
    id: *mut rdma_cm_id,
    qp_attr: *mut ibv_qp_attr,
    qp_attr_mask: *mut c_int,
) -> c_int {
    let call = "rdma_init_qp_attr";
    by_errno(enter(call).and_then(|mut world| {
        // SAFETY: the caller gives a struct with the state that is wanted.
        let wanted = unsafe { (*qp_attr).qp_state };
        let state = world.cm.ids.of(call, id);
        let context = state.context.ok_or(libc::EINVAL)?;
        let link = state.connection;
        let datagram = state.is_datagram();
        let iwarp = world.devices.is_iwarp(context);
        let connection =
            link.and_then(|(number, side)| Some((world.cm.connections.get(&number)?, side)));
        let flushes = world.ext.flush_access();
        let (attr, mask) = if datagram {
            datagram_attributes(wanted)?
        } else {
            attributes(connection, wanted, iwarp, flushes)?
        };
        // SAFETY: the caller gives a place for the struct.
        unsafe { qp_attr.write(attr) };
        // SAFETY: the caller gives a place for the mask.
        unsafe { qp_attr_mask.write(mask.cast_signed()) };
        Ok(())
    }))
}

/// The same for datagrams: only what the port space decides.
fn datagram_attributes(wanted: ibv_qp_state) -> Result<(ibv_qp_attr, u32), c_int> {
    use ibv_qp_attr_mask as A;

    if wanted != ibv_qp_state::IBV_QPS_INIT {
        return Err(libc::EINVAL);
    }
    let attr = ibv_qp_attr {
        qp_state: wanted,
        port_num: 1,
        qkey: super::multicast::QKEY,
        ..ibv_qp_attr::default()
    };
    let mask = A::IBV_QP_STATE | A::IBV_QP_PKEY_INDEX | A::IBV_QP_PORT | A::IBV_QP_QKEY;
    Ok((attr, mask.0))
}

/// What the kernel's connection manager gives for a transition; `flushes` is the access for flushes
/// that the device offers.
fn attributes(
    connection: Option<(&Connection, Side)>,
    wanted: ibv_qp_state,
    iwarp: bool,
    flushes: u32,
) -> Result<(ibv_qp_attr, u32), c_int> {
    use ibv_access_flags as F;
    use ibv_qp_attr_mask as A;

    if connection.is_some_and(|(connection, _)| connection.stage == Stage::Over) {
        return Err(libc::EINVAL);
    }
    let mut attr = ibv_qp_attr {
        qp_state: wanted,
        port_num: 1,
        ..ibv_qp_attr::default()
    };
    let mask = match wanted {
        ibv_qp_state::IBV_QPS_INIT if iwarp => {
            attr.qp_access_flags = (F::IBV_ACCESS_REMOTE_WRITE | F::IBV_ACCESS_REMOTE_READ).0;
            A::IBV_QP_STATE | A::IBV_QP_ACCESS_FLAGS | A::IBV_QP_PORT
        }
        ibv_qp_state::IBV_QPS_RTR | ibv_qp_state::IBV_QPS_RTS if iwarp => A(0),
        ibv_qp_state::IBV_QPS_INIT => {
            // Reads are let in once it is known that the peer may have some in flight.
            let reads = connection.map_or(0, |(connection, side)| match side {
                Side::Active => connection.request.responder_resources,
                Side::Passive => connection.request.initiator_depth,
            });
            let mut access = F::IBV_ACCESS_REMOTE_WRITE;
            if reads > 0 {
                access =
                    access | F::IBV_ACCESS_REMOTE_READ | F::IBV_ACCESS_REMOTE_ATOMIC | F(flushes);
            }
            attr.qp_access_flags = access.0;
            A::IBV_QP_STATE | A::IBV_QP_PKEY_INDEX | A::IBV_QP_PORT | A::IBV_QP_ACCESS_FLAGS
        }
        ibv_qp_state::IBV_QPS_RTR => {
            let (connection, side) = connection.ok_or(libc::EINVAL)?;
            let theirs = other_offer(connection, side)?;
            attr.path_mtu = ibv_mtu::IBV_MTU_1024;
            attr.dest_qp_num = theirs.qp_num;
            attr.max_dest_rd_atomic = theirs.initiator_depth;
            attr.ah_attr.is_global = 1;
            attr.ah_attr.port_num = 1;
            attr.ah_attr.grh.hop_limit = 64;
            A::IBV_QP_STATE
                | A::IBV_QP_AV
                | A::IBV_QP_PATH_MTU
                | A::IBV_QP_DEST_QPN
                | A::IBV_QP_RQ_PSN
                | A::IBV_QP_MAX_DEST_RD_ATOMIC
                | A::IBV_QP_MIN_RNR_TIMER
        }
        ibv_qp_state::IBV_QPS_RTS => {
            let (connection, side) = connection.ok_or(libc::EINVAL)?;
            let theirs = other_offer(connection, side)?;
            attr.max_rd_atomic = theirs.responder_resources;
            attr.timeout = 14;
            attr.retry_cnt = connection.request.retry_count;
            attr.rnr_retry = theirs.rnr_retry;
            A::IBV_QP_STATE
                | A::IBV_QP_TIMEOUT
                | A::IBV_QP_RETRY_CNT
                | A::IBV_QP_RNR_RETRY
                | A::IBV_QP_SQ_PSN
                | A::IBV_QP_MAX_QP_RD_ATOMIC
        }
        _ => return Err(libc::EINVAL),
    };
    Ok((attr, mask.0))
}

/// What the other side has asked for, once it is known.
fn other_offer(connection: &Connection, side: Side) -> Result<&Offer, c_int> {
    match (side, connection.stage) {
        (Side::Passive, _) => Ok(&connection.request),
        (Side::Active, Stage::Requested) => Err(libc::EINVAL),
        (Side::Active, _) => Ok(&connection.answer),
    }
}
