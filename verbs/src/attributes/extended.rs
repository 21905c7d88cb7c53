//! What a device offers beyond the plain attributes.

use std::fmt;
use std::mem::MaybeUninit;

use rdma_core_sys as sys;

use super::{DeviceAttributes, DeviceCapFlags, OdpFlags, OdpTransportFlags, RawPacketFlags};
use crate::qp::QpType;

/// What a device offers beyond its [`DeviceAttributes`]. What provider and kernel do not tell is 0.
///
/// ```no_run
/// # fn main() -> Result<(), verbs::Error> {
/// use verbs::{DeviceCapFlags, DeviceList};
///
/// let context = DeviceList::new()?.first()?.open()?;
/// let extended = context.query_extended()?;
/// if extended.capabilities().contains(DeviceCapFlags::ATOMIC_WRITE) {
///     println!("{} has atomic write", context.name());
/// }
/// # Ok(())
/// # }
/// ```
#[doc(alias = "ibv_device_attr_ex")]
#[derive(Clone, Copy)]
pub struct ExtendedAttributes {
    raw: sys::ibv_device_attr_ex,
}

/// On-demand paging, for each transport.
#[doc(alias = "ibv_odp_caps")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OnDemandPaging {
    /// As a whole.
    pub general: OdpFlags,
    /// For reliable connections.
    pub rc: OdpTransportFlags,
    /// For unreliable connections.
    pub uc: OdpTransportFlags,
    /// For datagrams.
    pub ud: OdpTransportFlags,
    /// For extended reliable connections.
    pub xrc: OdpTransportFlags,
}

/// How far events of completion queues may be held back: 0 where they cannot.
#[doc(alias = "ibv_cq_moderation_caps")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CqModerationCaps {
    /// Most completions that one event waits for.
    pub max_count: u16,
    /// Longest time that an event waits, in microseconds.
    pub max_period: u16,
}

/// Segmentation of raw packets by the device.
#[doc(alias = "ibv_tso_caps")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TsoCaps {
    /// Longest packet that is segmented, in bytes.
    pub max_tso: u32,
    /// Types of queue pairs, a bit each: [`QpType::is_in`].
    pub supported_qp_types: u32,
}

/// Spreading of received packets over queues.
#[doc(alias = "ibv_rss_caps")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RssCaps {
    /// Types of queue pairs, a bit each: [`QpType::is_in`].
    pub supported_qp_types: u32,
    /// Most tables of queues.
    pub max_indirection_tables: u32,
    /// Most queues of one table.
    pub max_indirection_table_size: u32,
    /// Fields of a packet that may be hashed, as C has them.
    pub hash_fields: u64,
    /// Hash functions, as C has them.
    pub hash_functions: u8,
}

/// Limits to a queue pair's rate, in kbit/s.
#[doc(alias = "ibv_packet_pacing_caps")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PacketPacingCaps {
    /// Lowest limit.
    pub min_rate: u32,
    /// Highest limit.
    pub max_rate: u32,
    /// Types of queue pairs, a bit each: [`QpType::is_in`].
    pub supported_qp_types: u32,
}

/// Matching of messages by tag.
#[doc(alias = "ibv_tm_caps")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TagMatchingCaps {
    /// Longest header of a rendezvous, in bytes.
    pub max_rendezvous_header: u32,
    /// Most tags of one queue.
    pub max_tags: u32,
    /// Capabilities, as C has them.
    pub flags: u32,
    /// Most outstanding operations on a list of tags.
    pub max_ops: u32,
    /// Most scatter/gather elements of one tagged receive.
    pub max_sge: u32,
}

/// Atomics over the bus: sizes in bytes, a bit each (4 = 1 << 2).
#[doc(alias = "ibv_pci_atomic_caps")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PciAtomicCaps {
    /// Fetch and add.
    pub fetch_add: u16,
    /// Swap.
    pub swap: u16,
    /// Compare and swap.
    pub compare_swap: u16,
}

impl ExtendedAttributes {
    pub(crate) fn zeroed() -> Self {
        // SAFETY: the struct holds only integers and byte arrays, for which zero is a value.
        let raw = unsafe { MaybeUninit::zeroed().assume_init() };
        Self { raw }
    }

    /// Where a query writes to: every value of the struct is a value of this type.
    pub(crate) fn place(&mut self) -> *mut sys::ibv_device_attr_ex {
        &mut self.raw
    }

    /// The plain attributes.
    pub fn plain(&self) -> DeviceAttributes {
        DeviceAttributes {
            raw: self.raw.orig_attr,
        }
    }

    /// What the device can, all 64 bits of it.
    #[doc(alias = "device_cap_flags_ex")]
    pub fn capabilities(&self) -> DeviceCapFlags {
        // The lower half of the longer word is the shorter one, where the kernel has the longer.
        self.plain().capabilities() | DeviceCapFlags::from_bits_retain(self.raw.device_cap_flags_ex)
    }

    /// What may be done with memory that is registered
    /// [on demand](crate::AccessFlags::ON_DEMAND).
    #[doc(alias = "odp_caps")]
    pub fn on_demand_paging(&self) -> OnDemandPaging {
        let caps = &self.raw.odp_caps;
        let transport = OdpTransportFlags::from_bits_retain;
        OnDemandPaging {
            general: OdpFlags::from_bits_retain(caps.general_caps),
            rc: transport(caps.per_transport_caps.rc_odp_caps),
            uc: transport(caps.per_transport_caps.uc_odp_caps),
            ud: transport(caps.per_transport_caps.ud_odp_caps),
            xrc: transport(self.raw.xrc_odp_caps),
        }
    }

    /// The bits of a completion's timestamp that are valid; 0 where there are no timestamps.
    pub fn completion_timestamp_mask(&self) -> u64 {
        self.raw.completion_timestamp_mask
    }

    /// The rate of the device's clock, in kHz; 0 where it is not known.
    pub fn hca_core_clock(&self) -> u64 {
        self.raw.hca_core_clock
    }

    /// Segmentation of raw packets.
    pub fn tso_caps(&self) -> TsoCaps {
        TsoCaps {
            max_tso: self.raw.tso_caps.max_tso,
            supported_qp_types: self.raw.tso_caps.supported_qpts,
        }
    }

    /// Spreading of received packets.
    pub fn rss_caps(&self) -> RssCaps {
        let caps = &self.raw.rss_caps;
        RssCaps {
            supported_qp_types: caps.supported_qpts,
            max_indirection_tables: caps.max_rwq_indirection_tables,
            max_indirection_table_size: caps.max_rwq_indirection_table_size,
            hash_fields: caps.rx_hash_fields_mask,
            hash_functions: caps.rx_hash_function,
        }
    }

    /// Most receive queues of their own (without a queue pair).
    #[doc(alias = "max_wq_type_rq")]
    pub fn max_receive_work_queues(&self) -> u32 {
        self.raw.max_wq_type_rq
    }

    /// Limits to the rate of a queue pair.
    pub fn packet_pacing_caps(&self) -> PacketPacingCaps {
        let caps = &self.raw.packet_pacing_caps;
        PacketPacingCaps {
            min_rate: caps.qp_rate_limit_min,
            max_rate: caps.qp_rate_limit_max,
            supported_qp_types: caps.supported_qpts,
        }
    }

    /// What can be done with raw packets.
    pub fn raw_packet_caps(&self) -> RawPacketFlags {
        RawPacketFlags::from_bits_retain(self.raw.raw_packet_caps)
    }

    /// Matching of messages by tag.
    pub fn tag_matching_caps(&self) -> TagMatchingCaps {
        let caps = &self.raw.tm_caps;
        TagMatchingCaps {
            max_rendezvous_header: caps.max_rndv_hdr_size,
            max_tags: caps.max_num_tags,
            flags: caps.flags,
            max_ops: caps.max_ops,
            max_sge: caps.max_sge,
        }
    }

    /// How far events of completion queues may be held back.
    #[doc(alias = "cq_mod_caps")]
    pub fn cq_moderation_caps(&self) -> CqModerationCaps {
        CqModerationCaps {
            max_count: self.raw.cq_mod_caps.max_cq_count,
            max_period: self.raw.cq_mod_caps.max_cq_period,
        }
    }

    /// Memory of the device itself that programs may have, in bytes.
    #[doc(alias = "max_dm_size")]
    pub fn max_device_memory(&self) -> u64 {
        self.raw.max_dm_size
    }

    /// Atomics over the bus.
    pub fn pci_atomic_caps(&self) -> PciAtomicCaps {
        PciAtomicCaps {
            fetch_add: self.raw.pci_atomic_caps.fetch_add,
            swap: self.raw.pci_atomic_caps.swap,
            compare_swap: self.raw.pci_atomic_caps.compare_swap,
        }
    }

    /// Number of ports, also where there are more than 255.
    #[doc(alias = "phys_port_cnt_ex")]
    pub fn port_count(&self) -> u32 {
        // 0 from a library or a provider that does not know the longer field.
        self.raw
            .phys_port_cnt_ex
            .max(self.raw.orig_attr.phys_port_cnt.into())
    }

    /// The C struct.
    pub fn as_raw(&self) -> &sys::ibv_device_attr_ex {
        &self.raw
    }
}

impl QpType {
    /// Whether a set of types, as [`TsoCaps`] and others have it, holds this one.
    #[doc(alias = "ibv_is_qpt_supported")]
    pub fn is_in(self, types: u32) -> bool {
        sys::ibv_is_qpt_supported(types, sys::ibv_qp_type(self.raw())) != 0
    }
}

impl fmt::Debug for ExtendedAttributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExtendedAttributes")
            .field("plain", &self.plain())
            .field("capabilities", &self.capabilities())
            .field("on_demand_paging", &self.on_demand_paging())
            .field(
                "completion_timestamp_mask",
                &self.completion_timestamp_mask(),
            )
            .field("hca_core_clock", &self.hca_core_clock())
            .field("cq_moderation_caps", &self.cq_moderation_caps())
            .field("max_device_memory", &self.max_device_memory())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capability_is_told_by_either_word() {
        let mut attributes = ExtendedAttributes::zeroed();
        attributes.raw.orig_attr.device_cap_flags = 1 << 17;
        assert_eq!(attributes.capabilities(), DeviceCapFlags::MEM_WINDOW);
        attributes.raw.device_cap_flags_ex = (0b111 << 38) | (1 << 63);
        let capabilities = attributes.capabilities();
        for bit in [
            DeviceCapFlags::FLUSH_GLOBAL,
            DeviceCapFlags::FLUSH_PERSISTENT,
            DeviceCapFlags::ATOMIC_WRITE,
            DeviceCapFlags::MEM_WINDOW,
            DeviceCapFlags::from_bits_retain(1 << 63),
        ] {
            assert!(capabilities.contains(bit), "{bit:?}");
        }
    }

    #[test]
    fn a_type_is_found_in_a_set_of_types_and_an_unknown_one_in_none() {
        assert!(QpType::RC.is_in(1 << 2));
        assert!(!QpType::UD.is_in(1 << 2));
        assert!(!QpType::from_raw(32).is_in(u32::MAX));
    }

    #[test]
    fn a_port_count_is_told_by_either_field() {
        let mut attributes = ExtendedAttributes::zeroed();
        attributes.raw.orig_attr.phys_port_cnt = 2;
        assert_eq!(attributes.port_count(), 2);
        attributes.raw.phys_port_cnt_ex = 300;
        assert_eq!(attributes.port_count(), 300);
    }
}
