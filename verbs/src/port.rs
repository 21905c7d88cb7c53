//! Ports, their state, and their addresses.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use rdma_core_sys as sys;

use crate::flags::open_enum;

open_enum! {
    /// The logical state of a port.
    #[doc(alias = "ibv_port_state")]
    PortState(u32) {
        /// Nothing plugged in, or the interface is down.
        DOWN = sys::ibv_port_state::IBV_PORT_DOWN.0, "down";
        /// Link up, not yet configured.
        INIT = sys::ibv_port_state::IBV_PORT_INIT.0, "initializing";
        /// Configured, not yet active.
        ARMED = sys::ibv_port_state::IBV_PORT_ARMED.0, "armed";
        /// Ready for traffic.
        ACTIVE = sys::ibv_port_state::IBV_PORT_ACTIVE.0, "active";
        /// Active with a transient link error.
        ACTIVE_DEFER = sys::ibv_port_state::IBV_PORT_ACTIVE_DEFER.0, "active, deferred";
    }
}

open_enum! {
    /// What a port is plugged into.
    LinkLayer(u8) {
        /// Not said, which means InfiniBand.
        UNSPECIFIED = 0, "unspecified";
        /// InfiniBand.
        INFINIBAND = 1, "InfiniBand";
        /// Ethernet: RoCE or iWARP.
        ETHERNET = 2, "Ethernet";
    }
}

/// What a port is and can do now.
#[doc(alias = "ibv_port_attr")]
#[derive(Clone, Copy)]
pub struct PortAttributes {
    pub(crate) raw: sys::ibv_port_attr,
}

impl PortAttributes {
    /// Whether traffic can flow.
    pub fn state(&self) -> PortState {
        PortState::from_raw(self.raw.state.0)
    }

    /// InfiniBand or Ethernet.
    pub fn link_layer(&self) -> LinkLayer {
        LinkLayer::from_raw(self.raw.link_layer)
    }

    /// The path MTU in use, in bytes, or `None` for a value this version does not know.
    pub fn active_mtu(&self) -> Option<u32> {
        let code = self.raw.active_mtu.0;
        (1..=5).contains(&code).then(|| 128 << code)
    }

    /// The longest message, in bytes.
    pub fn max_message_size(&self) -> u32 {
        self.raw.max_msg_sz
    }

    /// Entries of the GID table.
    pub fn gid_table_len(&self) -> u32 {
        u32::try_from(self.raw.gid_tbl_len).unwrap_or(0)
    }

    /// The C struct.
    pub fn as_raw(&self) -> &sys::ibv_port_attr {
        &self.raw
    }
}

impl fmt::Debug for PortAttributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PortAttributes")
            .field("state", &self.state())
            .field("link_layer", &self.link_layer())
            .field("active_mtu", &self.active_mtu())
            .field("max_message_size", &self.max_message_size())
            .finish_non_exhaustive()
    }
}

/// A port address of 16 bytes, in network order. On RoCE it is an IPv6 or IPv4-mapped address.
#[doc(alias = "ibv_gid")]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// Whether the table slot is empty.
    pub fn is_zero(self) -> bool {
        self.0 == [0; 16]
    }

    /// The GID read as an IP address, IPv4 where it is a mapped one.
    pub fn ip(self) -> IpAddr {
        Ipv6Addr::from(self.0).to_canonical()
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Ipv6Addr::from(self.0))
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapped_gid_is_the_ipv4_address() {
        let gid = Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 1]);
        assert_eq!(gid.ip(), "192.0.2.1".parse::<IpAddr>().expect("address"));
        assert!(!gid.is_zero());
    }

    #[test]
    fn every_port_state_and_link_layer_is_data() {
        for raw in (0..=255).chain([u32::MAX]) {
            let state = PortState::from_raw(raw);
            assert_eq!(state.raw(), raw);
            assert_eq!(state.name().is_some(), (1..=5).contains(&raw), "{state}");
        }
        for raw in 0..=u8::MAX {
            assert_eq!(LinkLayer::from_raw(raw).name().is_some(), raw <= 2);
        }
    }
}
