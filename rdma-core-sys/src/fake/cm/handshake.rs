//! Connections: requested, answered, confirmed, ended.

use core::ffi::{c_int, c_void};
use std::prelude::rust_2024::*;

use super::super::device::MAX_READS;
use super::super::{by_errno, enter, violation};
use super::connection::{
    ACCEPT, CONSUMER, Connection, DATAGRAM_ANSWER, DATAGRAM_REQUEST, NO_LISTENER, NO_SERVICE,
    Offer, REJECT, REQUEST, Side, Stage, padded,
};
use super::event::{Effect, Pending};
use crate::bindings::{ibv_ece, ibv_event_type, rdma_cm_event_type, rdma_cm_id, rdma_conn_param};

/// # Safety
/// - `data` is NULL or has `len` bytes.
unsafe fn bytes(data: *const c_void, len: u8, room: usize, iwarp: bool) -> Result<Vec<u8>, c_int> {
    if !iwarp && usize::from(len) > room {
        return Err(libc::EINVAL);
    }
    if data.is_null() {
        return Ok(Vec::new());
    }
    // SAFETY: the caller vouches for the bytes.
    Ok(unsafe { core::slice::from_raw_parts(data.cast::<u8>(), len.into()) }.to_vec())
}

fn offer(param: &rdma_conn_param) -> Result<Offer, c_int> {
    let limit = |depth: u8| match depth {
        u8::MAX => Ok(MAX_READS),
        depth if depth <= MAX_READS => Ok(depth),
        _ => Err(libc::EINVAL),
    };
    Ok(Offer {
        responder_resources: limit(param.responder_resources)?,
        initiator_depth: limit(param.initiator_depth)?,
        retry_count: param.retry_count.min(7),
        rnr_retry: param.rnr_retry_count.min(7),
        qp_num: param.qp_num,
        ece: ibv_ece::default(),
    })
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_connect(id: *mut rdma_cm_id, conn_param: *mut rdma_conn_param) -> c_int {
    let call = "rdma_connect";
    by_errno(enter(call).and_then(|mut world| {
        let state = world.cm.ids.of(call, id);
        let (Some(context), Some(local), Some(peer)) = (state.context, state.local, state.peer)
        else {
            violation("rdma_connect on an id without a device: librdmacm dereferences NULL");
        };
        if !state.route || state.connection.is_some() || conn_param.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: the caller gives a filled struct.
        let param = unsafe { conn_param.read() };
        let ece = state.ece;
        let mut request = offer(&param)?;
        request.ece = ece;
        let datagram = state.is_datagram();
        let iwarp = world.devices.is_iwarp(context);
        if iwarp && datagram {
            return Err(libc::EINVAL);
        }
        let room = if datagram { DATAGRAM_REQUEST } else { REQUEST };
        // SAFETY: the caller gives as many bytes as told.
        let data = unsafe { bytes(param.private_data, param.private_data_len, room, iwarp) }?;
        let address = id.addr();
        let depths = (request.initiator_depth, request.responder_resources);
        let connection = Connection {
            stage: Stage::Requested,
            active: Some(address),
            passive: None,
            unread: false,
            request,
            answer: Offer::default(),
            iwarp,
            datagram,
            context,
            addresses: (local, peer),
            left: [false; 2],
            confirmed: false,
        };
        let number = world.number();
        world.cm.connections.insert(number, connection);
        world.cm.ids.of(call, id).connection = Some((number, Side::Active));
        let Some(listener) = world.cm.listener_at(peer, datagram) else {
            world.over(number);
            if datagram {
                let kind = rdma_cm_event_type::RDMA_CM_EVENT_UNREACHABLE;
                world.notify(
                    address,
                    kind,
                    NO_SERVICE,
                    padded(&[], DATAGRAM_ANSWER, false),
                );
                return Ok(());
            }
            let status = if iwarp {
                -libc::ECONNREFUSED
            } else {
                NO_LISTENER
            };
            let data = if iwarp {
                None
            } else {
                padded(&[], REJECT, false)
            };
            world.notify(
                address,
                rdma_cm_event_type::RDMA_CM_EVENT_REJECTED,
                status,
                data,
            );
            return Ok(());
        };
        let (channel, backlog) = {
            let listener = world.cm.ids.at(call, listener);
            (listener.channel, listener.backlog.unwrap_or(0))
        };
        let waiting = world.cm.channels.at(call, channel).events.iter();
        let waiting = waiting.filter(|event| event.accounted == listener).count();
        if waiting >= backlog {
            // The request is dropped; the sender gives up after its retries.
            world.over(number);
            world.notify(
                address,
                rdma_cm_event_type::RDMA_CM_EVENT_UNREACHABLE,
                -libc::ETIMEDOUT,
                None,
            );
            return Ok(());
        }
        let event = Pending {
            accounted: listener,
            kind: rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_REQUEST,
            status: 0,
            data: padded(&data, room, iwarp),
            depths,
            remote: None,
            group: None,
            effect: Effect::NewId { connection: number },
        };
        if let Some(connection) = world.cm.connections.get_mut(&number) {
            connection.unread = true;
        }
        world.push(event);
        Ok(())
    }))
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_accept(id: *mut rdma_cm_id, conn_param: *mut rdma_conn_param) -> c_int {
    let call = "rdma_accept";
    by_errno(enter(call).and_then(|mut world| {
        let ece = world.cm.ids.of(call, id).ece;
        let (_, side, connection) = world.connection_of(call, id)?;
        if side != Side::Passive || connection.stage != Stage::Requested || conn_param.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: the caller gives a filled struct.
        let param = unsafe { conn_param.read() };
        let iwarp = connection.iwarp;
        let datagram = connection.datagram;
        let room = if datagram { DATAGRAM_ANSWER } else { ACCEPT };
        // SAFETY: the caller gives as many bytes as told.
        let data = unsafe { bytes(param.private_data, param.private_data_len, room, iwarp) }?;
        connection.answer = offer(&param)?;
        connection.answer.ece = ece;
        connection.stage = Stage::Accepted;
        let depths = (
            connection.answer.initiator_depth,
            connection.answer.responder_resources,
        );
        let active = connection.active;
        if datagram {
            connection.stage = Stage::Over;
            let (context, addresses) = (connection.context, connection.addresses);
            if let Some(active) = active {
                let to =
                    super::multicast::path(&world, context, addresses.0.ip(), addresses.1.ip());
                world.push(Pending {
                    accounted: active,
                    kind: rdma_cm_event_type::RDMA_CM_EVENT_ESTABLISHED,
                    status: 0,
                    data: padded(&data, room, false),
                    depths: (0, 0),
                    remote: Some((to, param.qp_num, super::multicast::QKEY)),
                    group: None,
                    effect: Effect::None,
                });
            }
            return Ok(());
        }
        let numbers = (connection.request.qp_num, connection.answer.qp_num);
        if iwarp {
            connection.stage = Stage::Established;
            connection.confirmed = true;
            world.iwarp_ready(numbers.0, numbers.1);
            world.iwarp_ready(numbers.1, numbers.0);
            world.notify(
                id.addr(),
                rdma_cm_event_type::RDMA_CM_EVENT_ESTABLISHED,
                0,
                None,
            );
        }
        let kind = if iwarp {
            rdma_cm_event_type::RDMA_CM_EVENT_ESTABLISHED
        } else {
            rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_RESPONSE
        };
        if let Some(active) = active {
            let data = padded(&data, ACCEPT, iwarp);
            world.push(Pending {
                accounted: active,
                kind,
                status: 0,
                data,
                depths,
                remote: None,
                group: None,
                effect: Effect::None,
            });
        }
        Ok(())
    }))
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_reject(
    id: *mut rdma_cm_id,
    private_data: *const c_void,
    private_data_len: u8,
) -> c_int {
    // SAFETY: forwarded to the caller.
    unsafe { reject("rdma_reject", id, private_data, private_data_len, CONSUMER) }
}

/// # Safety
/// - As in C.
pub(super) unsafe fn reject(
    call: &'static str,
    id: *mut rdma_cm_id,
    private_data: *const c_void,
    private_data_len: u8,
    reason: c_int,
) -> c_int {
    by_errno(enter(call).and_then(|mut world| {
        let (number, side, connection) = world.connection_of(call, id)?;
        let may = match side {
            Side::Passive => connection.stage == Stage::Requested,
            Side::Active => connection.stage == Stage::Accepted,
        };
        if !may {
            return Err(libc::EINVAL);
        }
        let room = if connection.datagram {
            DATAGRAM_ANSWER
        } else {
            REJECT
        };
        // SAFETY: the caller gives as many bytes as told.
        let data = unsafe { bytes(private_data, private_data_len, room, connection.iwarp) }?;
        world.refuse(number, side, &data, reason);
        Ok(())
    }))
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_establish(id: *mut rdma_cm_id) -> c_int {
    let call = "rdma_establish";
    by_errno(enter(call).and_then(|mut world| {
        let lost = core::mem::take(&mut world.knobs.lose_confirmation);
        let (_, side, connection) = world.connection_of(call, id)?;
        if side != Side::Active || connection.stage != Stage::Accepted {
            return Err(libc::EINVAL);
        }
        connection.stage = Stage::Established;
        connection.confirmed = !lost;
        if let Some(passive) = connection.passive.filter(|_| !lost) {
            world.notify(
                passive,
                rdma_cm_event_type::RDMA_CM_EVENT_ESTABLISHED,
                0,
                None,
            );
        }
        Ok(())
    }))
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_notify(id: *mut rdma_cm_id, event: ibv_event_type) -> c_int {
    let call = "rdma_notify";
    by_errno(enter(call).and_then(|mut world| {
        let (_, side, connection) = world.connection_of(call, id)?;
        if event != ibv_event_type::IBV_EVENT_COMM_EST || side != Side::Passive {
            return Err(libc::EINVAL);
        }
        match connection.stage {
            Stage::Established if connection.confirmed => Err(libc::EISCONN),
            Stage::Established => {
                connection.confirmed = true;
                world.notify(
                    id.addr(),
                    rdma_cm_event_type::RDMA_CM_EVENT_ESTABLISHED,
                    0,
                    None,
                );
                Ok(())
            }
            _ => Err(libc::EINVAL),
        }
    }))
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int {
    let call = "rdma_disconnect";
    by_errno(enter(call).and_then(|mut world| {
        let (_, side, connection) = world.connection_of(call, id)?;
        let knows = side == Side::Active || connection.confirmed;
        let (me, other) = (side as usize, side.other() as usize);
        if connection.stage != Stage::Established || !knows || connection.left[me] {
            return Err(libc::EINVAL);
        }
        connection.left[me] = true;
        // The first one's request, or the answer to it.
        if connection.left[other] {
            connection.stage = Stage::Over;
        }
        if let Some(other) = connection.end(side.other()) {
            world.notify(
                other,
                rdma_cm_event_type::RDMA_CM_EVENT_DISCONNECTED,
                0,
                None,
            );
        }
        Ok(())
    }))
}
