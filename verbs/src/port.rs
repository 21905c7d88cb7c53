//! Ports, their state, and their addresses.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use bitflags::bitflags;
use rdma_core_sys as sys;
use sys::ibv_port_cap_flags as Cap;

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

open_enum! {
    /// The physical state of a port.
    PhysicalState(u8) {
        /// No change asked for.
        NO_CHANGE = 0, "no change";
        /// Asleep.
        SLEEP = 1, "sleeping";
        /// Looking for another end.
        POLLING = 2, "polling";
        /// Switched off.
        DISABLED = 3, "disabled";
        /// Agreeing with the other end.
        TRAINING = 4, "training";
        /// Up.
        LINK_UP = 5, "link up";
        /// Recovering from an error.
        ERROR_RECOVERY = 6, "recovering from an error";
        /// Under test.
        TEST = 7, "under test";
    }
}

bitflags! {
    /// What a port can.
    #[doc(alias = "ibv_port_cap_flags")]
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct PortCapFlags: u32 {
        /// The subnet manager runs here.
        const SM = Cap::IBV_PORT_SM.0;
        /// Notices.
        const NOTICE_SUP = Cap::IBV_PORT_NOTICE_SUP.0;
        /// Traps.
        const TRAP_SUP = Cap::IBV_PORT_TRAP_SUP.0;
        /// Optional static rates.
        const OPT_IPD_SUP = Cap::IBV_PORT_OPT_IPD_SUP.0;
        /// Automatic path migration.
        const AUTO_MIGR_SUP = Cap::IBV_PORT_AUTO_MIGR_SUP.0;
        /// Mapping of service levels to virtual lanes.
        const SL_MAP_SUP = Cap::IBV_PORT_SL_MAP_SUP.0;
        /// The management key is kept without power.
        const MKEY_NVRAM = Cap::IBV_PORT_MKEY_NVRAM.0;
        /// Partition keys are kept without power.
        const PKEY_NVRAM = Cap::IBV_PORT_PKEY_NVRAM.0;
        /// A lamp to be told apart by.
        const LED_INFO_SUP = Cap::IBV_PORT_LED_INFO_SUP.0;
        /// A GUID for the system.
        const SYS_IMAGE_GUID_SUP = Cap::IBV_PORT_SYS_IMAGE_GUID_SUP.0;
        /// Traps of partition keys of external ports.
        const PKEY_SW_EXT_PORT_TRAP_SUP = Cap::IBV_PORT_PKEY_SW_EXT_PORT_TRAP_SUP.0;
        /// Extended speeds.
        const EXTENDED_SPEEDS_SUP = Cap::IBV_PORT_EXTENDED_SPEEDS_SUP.0;
        /// The second word of capabilities.
        const CAP_MASK2_SUP = Cap::IBV_PORT_CAP_MASK2_SUP.0;
        /// Connection management.
        const CM_SUP = Cap::IBV_PORT_CM_SUP.0;
        /// Tunnelled SNMP.
        const SNMP_TUNNEL_SUP = Cap::IBV_PORT_SNMP_TUNNEL_SUP.0;
        /// Initialisation anew.
        const REINIT_SUP = Cap::IBV_PORT_REINIT_SUP.0;
        /// Device management.
        const DEVICE_MGMT_SUP = Cap::IBV_PORT_DEVICE_MGMT_SUP.0;
        /// A class of the vendor.
        const VENDOR_CLASS_SUP = Cap::IBV_PORT_VENDOR_CLASS_SUP.0;
        /// Notices of direct routes.
        const DR_NOTICE_SUP = Cap::IBV_PORT_DR_NOTICE_SUP.0;
        /// Notices of changed capabilities.
        const CAP_MASK_NOTICE_SUP = Cap::IBV_PORT_CAP_MASK_NOTICE_SUP.0;
        /// Boot management.
        const BOOT_MGMT_SUP = Cap::IBV_PORT_BOOT_MGMT_SUP.0;
        /// Round trip times of the link.
        const LINK_LATENCY_SUP = Cap::IBV_PORT_LINK_LATENCY_SUP.0;
        /// Requests to register anew.
        const CLIENT_REG_SUP = Cap::IBV_PORT_CLIENT_REG_SUP.0;
        /// GIDs made of IP addresses (RoCE).
        const IP_BASED_GIDS = Cap::IBV_PORT_IP_BASED_GIDS.0;
        const _ = !0;
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

    /// Whether there is a link.
    #[doc(alias = "phys_state")]
    pub fn physical_state(&self) -> PhysicalState {
        PhysicalState::from_raw(self.raw.phys_state)
    }

    /// The path MTU in use, in bytes, or `None` for a value this version does not know.
    pub fn active_mtu(&self) -> Option<u32> {
        mtu(self.raw.active_mtu)
    }

    /// The largest path MTU, in bytes, or `None` for a value this version does not know.
    pub fn max_mtu(&self) -> Option<u32> {
        mtu(self.raw.max_mtu)
    }

    /// What the port can.
    #[doc(alias = "port_cap_flags")]
    pub fn capabilities(&self) -> PortCapFlags {
        PortCapFlags::from_bits_retain(self.raw.port_cap_flags)
    }

    /// The second word of capabilities (`ibv_port_cap_flags2`), as C has it.
    #[doc(alias = "port_cap_flags2")]
    pub fn capabilities2(&self) -> u16 {
        self.raw.port_cap_flags2
    }

    /// Packets that had a bad partition key.
    pub fn bad_pkey_count(&self) -> u32 {
        self.raw.bad_pkey_cntr
    }

    /// Packets that had a bad Q_Key.
    pub fn bad_qkey_count(&self) -> u32 {
        self.raw.qkey_viol_cntr
    }

    /// Entries of the partition key table.
    pub fn pkey_table_len(&self) -> u16 {
        self.raw.pkey_tbl_len
    }

    /// The port's LID on InfiniBand; 0 on Ethernet.
    pub fn lid(&self) -> u16 {
        self.raw.lid
    }

    /// How many LIDs the port has: 2^`lid_mask_control`.
    #[doc(alias = "lmc")]
    pub fn lid_mask_control(&self) -> u8 {
        self.raw.lmc
    }

    /// The LID of the subnet manager.
    pub fn sm_lid(&self) -> u16 {
        self.raw.sm_lid
    }

    /// The service level to reach the subnet manager with.
    pub fn sm_service_level(&self) -> u8 {
        self.raw.sm_sl
    }

    /// Virtual lanes, as a code of the specification: 1, 2, 3, 4, 5 for 1, 2, 4, 8, 15.
    #[doc(alias = "max_vl_num")]
    pub fn max_virtual_lanes(&self) -> u8 {
        self.raw.max_vl_num
    }

    /// How long the subnet takes to carry a packet at most: 4.096 µs · 2^n.
    pub fn subnet_timeout(&self) -> u8 {
        self.raw.subnet_timeout
    }

    /// The kind of initialisation that the subnet manager has done.
    pub fn init_type_reply(&self) -> u8 {
        self.raw.init_type_reply
    }

    /// Lanes in use, or `None` for a value this version does not know.
    #[doc(alias = "active_width")]
    pub fn active_lanes(&self) -> Option<u8> {
        match self.raw.active_width {
            1 => Some(1),
            2 => Some(4),
            4 => Some(8),
            8 => Some(12),
            16 => Some(2),
            _ => None,
        }
    }

    /// The speed of a lane, as a code of the specification: 1 for 2.5 Gbit/s, 2 for 5, 4 and 8 for
    /// 10, 16 for 14, 32 for 25, 64 for 50, 128 for 100.
    pub fn active_speed(&self) -> u8 {
        self.raw.active_speed
    }

    /// Whether every packet needs the global part of an address, as on RoCE.
    #[doc(alias = "IBV_QPF_GRH_REQUIRED")]
    pub fn needs_global_route(&self) -> bool {
        self.raw.flags & sys::IBV_QPF_GRH_REQUIRED != 0
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

/// The bytes of an MTU.
fn mtu(code: sys::ibv_mtu) -> Option<u32> {
    (1..=5).contains(&code.0).then(|| 128 << code.0)
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
    fn every_attribute_of_a_port_is_told() {
        let raw = sys::ibv_port_attr {
            state: sys::ibv_port_state::IBV_PORT_ACTIVE,
            max_mtu: sys::ibv_mtu::IBV_MTU_4096,
            active_mtu: sys::ibv_mtu(9),
            gid_tbl_len: -1,
            port_cap_flags: (1 << 26) | 1,
            max_msg_sz: 11,
            bad_pkey_cntr: 12,
            qkey_viol_cntr: 13,
            pkey_tbl_len: 14,
            lid: 15,
            sm_lid: 16,
            lmc: 17,
            max_vl_num: 18,
            sm_sl: 19,
            subnet_timeout: 20,
            init_type_reply: 21,
            active_width: 2,
            active_speed: 22,
            phys_state: 5,
            link_layer: 2,
            flags: 0b11,
            port_cap_flags2: 23,
        };
        let port = PortAttributes { raw };
        assert_eq!((port.max_mtu(), port.active_mtu()), (Some(4096), None));
        assert_eq!((port.gid_table_len(), port.max_message_size()), (0, 11));
        assert_eq!(
            port.capabilities().bits(),
            (1 << 26) | 1,
            "unknown bits stay"
        );
        assert!(port.capabilities().contains(PortCapFlags::IP_BASED_GIDS));
        assert_eq!((port.bad_pkey_count(), port.bad_qkey_count()), (12, 13));
        assert_eq!(
            (port.pkey_table_len(), port.lid(), port.sm_lid()),
            (14, 15, 16)
        );
        assert_eq!(
            (port.lid_mask_control(), port.max_virtual_lanes()),
            (17, 18)
        );
        assert_eq!((port.sm_service_level(), port.subnet_timeout()), (19, 20));
        assert_eq!((port.init_type_reply(), port.active_speed()), (21, 22));
        assert_eq!((port.active_lanes(), port.capabilities2()), (Some(4), 23));
        assert_eq!(port.physical_state(), PhysicalState::LINK_UP);
        assert!(port.needs_global_route());
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
