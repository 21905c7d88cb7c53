//! Connections: what they are, and what their ends do to each other.

use core::ffi::c_int;
use core::net::SocketAddr;
use std::prelude::rust_2024::*;

use super::super::table::CBox;
use super::super::world::World;
use super::id::Id;
use crate::bindings::{ibv_ece, rdma_cm_event_type, rdma_cm_id, rdma_event_channel};

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
pub(super) struct Offer {
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
    pub(super) retry_count: u8,
    pub(super) rnr_retry: u8,
    pub(super) qp_num: u32,
    pub(super) ece: ibv_ece,
}

#[derive(Debug)]
pub(in super::super) struct Connection {
    pub(in super::super) stage: Stage,
    pub(super) active: Option<usize>,
    pub(super) passive: Option<usize>,
    /// Whether the event that brings the passive side's id was not got yet.
    pub(super) unread: bool,
    pub(super) request: Offer,
    pub(super) answer: Offer,
    pub(super) iwarp: bool,
    /// An exchange of datagram addresses, which makes no connection.
    pub(super) datagram: bool,
    pub(super) context: usize,
    /// The active side's address and the one it asked for.
    pub(super) addresses: (SocketAddr, SocketAddr),
    /// Who has said that it is over.
    pub(super) left: [bool; 2],
    /// Whether the passive side knows that the connection stands.
    pub(super) confirmed: bool,
}

impl Connection {
    pub(super) fn end(&self, side: Side) -> Option<usize> {
        match side {
            Side::Active => self.active,
            Side::Passive => self.passive,
        }
    }
}

impl Side {
    pub(super) fn other(self) -> Self {
        match self {
            Self::Active => Self::Passive,
            Self::Passive => Self::Active,
        }
    }
}
/// Rejected by the application, and by nobody listening.
pub(super) const CONSUMER: c_int = 28;
pub(super) const NO_LISTENER: c_int = 8;

/// Room for private data in each message of the InfiniBand connection manager.
pub(super) const REQUEST: usize = 56;
pub(super) const ACCEPT: usize = 196;
pub(super) const REJECT: usize = 148;
pub(super) const DATAGRAM_REQUEST: usize = 180;
pub(super) const DATAGRAM_ANSWER: usize = 136;

/// Statuses of an exchange of datagram addresses: nobody has the service; the application refused.
pub(super) const NO_SERVICE: c_int = 1;
const DATAGRAM_REFUSED: c_int = 2;

/// Private data as the other side sees it: filled up with zeros, except on iWARP.
pub(super) fn padded(data: &[u8], room: usize, iwarp: bool) -> Option<Vec<u8>> {
    let mut data = data.to_vec();
    if iwarp {
        return (!data.is_empty()).then_some(data);
    }
    data.resize(room, 0);
    Some(data)
}
fn without_scope(mut addr: SocketAddr) -> SocketAddr {
    if let SocketAddr::V6(v6) = &mut addr {
        v6.set_scope_id(0);
    }
    addr
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
            // A message names addresses alone.
            let (client, server) = found.addresses;
            let (client, server) = (without_scope(client), without_scope(server));
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

    pub(super) fn over(&mut self, connection: u32) {
        if let Some(connection) = self.cm.connections.get_mut(&connection) {
            connection.stage = Stage::Over;
        }
    }

    /// The connection of an id, in a stage; EINVAL otherwise.
    pub(super) fn connection_of(
        &mut self,
        call: &str,
        id: *mut rdma_cm_id,
    ) -> Result<(u32, Side, &mut Connection), c_int> {
        let (number, side) = self.cm.ids.of(call, id).connection.ok_or(libc::EINVAL)?;
        let connection = self.cm.connections.get_mut(&number).ok_or(libc::EINVAL)?;
        Ok((number, side, connection))
    }

    /// One side refuses, or is destroyed before the connection stands.
    pub(super) fn refuse(&mut self, number: u32, by: Side, data: &[u8], reason: c_int) {
        let Some(connection) = self.cm.connections.get_mut(&number) else {
            return;
        };
        if connection.datagram {
            connection.stage = Stage::Over;
            let asking = connection.active.filter(|_| by == Side::Passive);
            if let Some(asking) = asking {
                let (kind, data) = (
                    rdma_cm_event_type::RDMA_CM_EVENT_UNREACHABLE,
                    padded(data, DATAGRAM_ANSWER, false),
                );
                self.notify(asking, kind, DATAGRAM_REFUSED, data);
            }
            return;
        }
        // A new id hears of nothing before it is accepted.
        let hears = by == Side::Passive || connection.stage == Stage::Accepted;
        connection.stage = Stage::Over;
        let iwarp = connection.iwarp;
        let other = connection.end(by.other());
        let status = if iwarp { -libc::ECONNRESET } else { reason };
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
            Stage::Requested | Stage::Accepted => self.refuse(number, side, &[], CONSUMER),
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
