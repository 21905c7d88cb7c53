//! The connection manager: event channels, ids, and connections between ids of this process.

mod address;
mod connection;
mod ece;
mod event;
mod handshake;
mod id;
mod multicast;
mod names;
mod options;
mod qp_attr;

use core::net::{IpAddr, SocketAddr};
use std::collections::BTreeMap;
use std::prelude::rust_2024::*;

pub(super) use self::connection::{Connection, Side, Stage};
pub(super) use self::event::{Channel, Delivered};
pub(super) use self::id::Id;

use super::table::Table;

#[derive(Debug)]
pub(super) struct Manager {
    pub(super) channels: Table<Channel>,
    pub(super) ids: Table<Id>,
    /// Events that were got and not acknowledged, by address.
    pub(super) delivered: BTreeMap<usize, Delivered>,
    pub(super) connections: BTreeMap<u32, Connection>,
    /// Answers to lookups, by address.
    pub(super) lookups: Table<names::Lookup>,
    /// Multicast groups whose id went before they were left.
    pub(super) never_left: usize,
    port: u16,
}

/// First port of the range that ports are chosen from.
const FIRST_PORT: u16 = 0xc000;

impl Manager {
    pub(super) const fn new() -> Self {
        Self {
            channels: Table::new("event channel"),
            ids: Table::new("connection manager id"),
            delivered: BTreeMap::new(),
            connections: BTreeMap::new(),
            lookups: Table::new("address list"),
            never_left: 0,
            port: FIRST_PORT,
        }
    }

    /// A port that nobody has had for a while.
    fn choose_port(&mut self) -> u16 {
        self.port = self.port.checked_add(1).unwrap_or(FIRST_PORT);
        self.port
    }

    /// The listener that a request for an address goes to.
    fn listener_at(&self, target: SocketAddr, datagram: bool) -> Option<usize> {
        let listens = |id: &Id| {
            id.backlog.is_some()
                && id.is_datagram() == datagram
                && id.local.is_some_and(|local| {
                    local.port() == target.port()
                        && (local.ip() == target.ip() || is_wildcard_for(local.ip(), target.ip()))
                })
        };
        self.ids
            .iter()
            .find(|(_, id)| listens(id))
            .map(|(&address, _)| address)
    }

    pub(super) fn reset(&mut self) {
        self.channels
            .clear()
            .into_iter()
            .for_each(|channel| channel.c.retire());
        self.ids.clear().into_iter().for_each(|id| id.c.retire());
        core::mem::take(&mut self.delivered)
            .into_values()
            .for_each(|event| event.c.retire());
        self.connections.clear();
        self.lookups
            .clear()
            .into_iter()
            .for_each(names::Lookup::retire);
        self.never_left = 0;
    }
}

/// Whether an address to listen at takes everything that `ip` is one of.
fn is_wildcard_for(local: IpAddr, ip: IpAddr) -> bool {
    match local {
        IpAddr::V4(v4) => v4.is_unspecified() && ip.is_ipv4(),
        IpAddr::V6(v6) => v6.is_unspecified(),
    }
}
