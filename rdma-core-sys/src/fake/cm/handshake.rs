//! Connections: requested, answered, confirmed, ended.

use core::ffi::{c_int, c_void};
use core::net::SocketAddr;
use std::prelude::rust_2024::*;

use super::super::device::MAX_READS;
use super::super::table::CBox;
use super::super::world::World;
use super::super::{by_errno, enter, violation};
use super::event::{Effect, Pending};
use super::id::Id;
use crate::bindings::{
    ibv_access_flags, ibv_event_type, ibv_mtu, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_state,
    rdma_cm_event_type, rdma_cm_id, rdma_conn_param, rdma_event_channel,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Side {
    Active,
    Passive,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Stage {
    /// The request is under way or with the passive side.
    Requested,
    /// The acceptance is under way or with the active side.
    Accepted,
    Established,
    Over,
}

/// What one side asks for.
#[derive(Debug, Clone, Default)]
struct Offer {
    responder_resources: u8,
    initiator_depth: u8,
    retry_count: u8,
    rnr_retry: u8,
    qp_num: u32,
}

#[derive(Debug)]
pub(in super::super) struct Connection {
    pub(in super::super) stage: Stage,
    active: Option<usize>,
    passive: Option<usize>,
    /// Whether the event that brings the passive side's id was not got yet.
    unread: bool,
    request: Offer,
    answer: Offer,
    iwarp: bool,
    context: usize,
    /// The active side's address and the one it asked for.
    addresses: (SocketAddr, SocketAddr),
    /// Who has said that it is over.
    left: [bool; 2],
    /// Whether the passive side knows that the connection stands.
    confirmed: bool,
}

impl Connection {
    fn end(&self, side: Side) -> Option<usize> {
        match side {
            Side::Active => self.active,
            Side::Passive => self.passive,
        }
    }
}

impl Side {
    fn other(self) -> Self {
        match self {
            Self::Active => Self::Passive,
            Self::Passive => Self::Active,
        }
    }
}

/// Rejected by the application, and by nobody listening.
const CONSUMER: c_int = 28;
const NO_LISTENER: c_int = 8;

/// Room for private data in each message of the InfiniBand connection manager.
const REQUEST: usize = 56;
const ACCEPT: usize = 196;
const REJECT: usize = 148;

/// Private data as the other side sees it: filled up with zeros, except on iWARP.
fn padded(data: &[u8], room: usize, iwarp: bool) -> Option<Vec<u8>> {
    let mut data = data.to_vec();
    if iwarp {
        return (!data.is_empty()).then_some(data);
    }
    data.resize(room, 0);
    Some(data)
}

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
        let request = offer(&param)?;
        let iwarp = world.devices.is_iwarp(context);
        // SAFETY: the caller gives as many bytes as told.
        let data = unsafe { bytes(param.private_data, param.private_data_len, REQUEST, iwarp) }?;
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
            context,
            addresses: (local, peer),
            left: [false; 2],
            confirmed: false,
        };
        let number = world.number();
        world.cm.connections.insert(number, connection);
        world.cm.ids.of(call, id).connection = Some((number, Side::Active));
        let Some(listener) = world.cm.listener_at(peer) else {
            world.over(number);
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
            data: padded(&data, REQUEST, iwarp),
            depths,
            effect: Effect::NewId { connection: number },
        };
        if let Some(connection) = world.cm.connections.get_mut(&number) {
            connection.unread = true;
        }
        world.push(event);
        Ok(())
    }))
}

impl World {
    /// The id that a request brings: on the listener's channel, with its context.
    pub(super) fn new_passive(
        &mut self,
        listener: *mut rdma_cm_id,
        channel: *mut rdma_event_channel,
        connection: u32,
    ) -> *mut rdma_cm_id {
        // SAFETY: the listener is in the table, so it is live; nobody writes the field meanwhile.
        let context = unsafe { (*listener).context };
        // SAFETY: as above.
        let ps = unsafe { (*listener).ps };
        let c = CBox::new(rdma_cm_id {
            channel,
            context,
            ps,
            port_num: 1,
            ..rdma_cm_id::default()
        });
        let pointer = c.as_ptr();
        let mut id = Id::new(c, channel.addr());
        id.connection = Some((connection, Side::Passive));
        if let Some(found) = self.cm.connections.get_mut(&connection) {
            found.passive = Some(pointer.addr());
            found.unread = false;
            let (client, server) = found.addresses;
            id.context = Some(found.context);
            (id.local, id.peer) = (Some(server), Some(client));
            let verbs = self.devices.context(found.context);
            // SAFETY: the id was just made, and nobody else has it.
            unsafe { (*pointer).verbs = verbs };
            // SAFETY: as above.
            unsafe { Id::write_local(pointer, server) };
            // SAFETY: as above.
            unsafe { Id::write_peer(pointer, client) };
        }
        self.cm.ids.insert(pointer.addr(), id);
        pointer
    }

    fn over(&mut self, connection: u32) {
        if let Some(connection) = self.cm.connections.get_mut(&connection) {
            connection.stage = Stage::Over;
        }
    }

    /// The connection of an id, in a stage; EINVAL otherwise.
    fn connection_of(
        &mut self,
        call: &str,
        id: *mut rdma_cm_id,
    ) -> Result<(u32, Side, &mut Connection), c_int> {
        let (number, side) = self.cm.ids.of(call, id).connection.ok_or(libc::EINVAL)?;
        let connection = self.cm.connections.get_mut(&number).ok_or(libc::EINVAL)?;
        Ok((number, side, connection))
    }

    /// One side refuses, or is destroyed before the connection stands.
    fn refuse(&mut self, number: u32, by: Side, data: &[u8]) {
        let Some(connection) = self.cm.connections.get_mut(&number) else {
            return;
        };
        // A new id hears of nothing before it is accepted.
        let hears = by == Side::Passive || connection.stage == Stage::Accepted;
        connection.stage = Stage::Over;
        let iwarp = connection.iwarp;
        let other = connection.end(by.other());
        let status = if iwarp { -libc::ECONNRESET } else { CONSUMER };
        if let Some(other) = other.filter(|_| hears) {
            let data = padded(data, REJECT, iwarp);
            self.notify(
                other,
                rdma_cm_event_type::RDMA_CM_EVENT_REJECTED,
                status,
                data,
            );
        }
    }

    /// An end goes away.
    pub(super) fn leave(&mut self, number: u32, side: Side) {
        let Some(connection) = self.cm.connections.get_mut(&number) else {
            return;
        };
        match connection.stage {
            Stage::Requested | Stage::Accepted => self.refuse(number, side, &[]),
            Stage::Established => {
                let other = connection.end(side.other());
                connection.stage = Stage::Over;
                if let Some(other) = other {
                    self.notify(
                        other,
                        rdma_cm_event_type::RDMA_CM_EVENT_DISCONNECTED,
                        0,
                        None,
                    );
                }
            }
            Stage::Over => {}
        }
        if let Some(connection) = self.cm.connections.get_mut(&number) {
            match side {
                Side::Active => connection.active = None,
                Side::Passive => (connection.passive, connection.unread) = (None, false),
            }
            if connection.active.is_none() && connection.passive.is_none() && !connection.unread {
                self.cm.connections.remove(&number);
            }
        }
    }
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_accept(id: *mut rdma_cm_id, conn_param: *mut rdma_conn_param) -> c_int {
    let call = "rdma_accept";
    by_errno(enter(call).and_then(|mut world| {
        let (_, side, connection) = world.connection_of(call, id)?;
        if side != Side::Passive || connection.stage != Stage::Requested || conn_param.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: the caller gives a filled struct.
        let param = unsafe { conn_param.read() };
        let iwarp = connection.iwarp;
        // SAFETY: the caller gives as many bytes as told.
        let data = unsafe { bytes(param.private_data, param.private_data_len, ACCEPT, iwarp) }?;
        connection.answer = offer(&param)?;
        connection.stage = Stage::Accepted;
        let depths = (
            connection.answer.initiator_depth,
            connection.answer.responder_resources,
        );
        let active = connection.active;
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
    let call = "rdma_reject";
    by_errno(enter(call).and_then(|mut world| {
        let (number, side, connection) = world.connection_of(call, id)?;
        let may = match side {
            Side::Passive => connection.stage == Stage::Requested,
            Side::Active => connection.stage == Stage::Accepted,
        };
        if !may {
            return Err(libc::EINVAL);
        }
        // SAFETY: the caller gives as many bytes as told.
        let data = unsafe { bytes(private_data, private_data_len, REJECT, connection.iwarp) }?;
        world.refuse(number, side, &data);
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
        let iwarp = world.devices.is_iwarp(context);
        let connection =
            link.and_then(|(number, side)| Some((world.cm.connections.get(&number)?, side)));
        let (attr, mask) = attributes(connection, wanted, iwarp)?;
        // SAFETY: the caller gives a place for the struct.
        unsafe { qp_attr.write(attr) };
        // SAFETY: the caller gives a place for the mask.
        unsafe { qp_attr_mask.write(mask.cast_signed()) };
        Ok(())
    }))
}

/// What the kernel's connection manager gives for a transition.
fn attributes(
    connection: Option<(&Connection, Side)>,
    wanted: ibv_qp_state,
    iwarp: bool,
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
                access = access | F::IBV_ACCESS_REMOTE_READ | F::IBV_ACCESS_REMOTE_ATOMIC;
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
