//! What a device is and can do.

mod extended;
mod flags;

use std::ffi::CStr;
use std::fmt;
use std::mem::MaybeUninit;

use rdma_core_sys as sys;

pub use self::extended::{
    CqModerationCaps, ExtendedAttributes, OnDemandPaging, PacketPacingCaps, PciAtomicCaps, RssCaps,
    TagMatchingCaps, TsoCaps,
};
pub use self::flags::{
    AtomicCapability, DeviceCapFlags, OdpFlags, OdpTransportFlags, RawPacketFlags,
};

/// Limits and identity of a device.
#[doc(alias = "ibv_device_attr")]
#[derive(Clone, Copy)]
pub struct DeviceAttributes {
    raw: sys::ibv_device_attr,
}

/// Counts that C has as signed integers: a negative one means none.
macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident = $field:ident;)*) => {
        impl DeviceAttributes {
            $(
                $(#[$doc])*
                pub fn $name(&self) -> u32 {
                    positive(self.raw.$field)
                }
            )*
        }
    };
}

counts! {
    /// Most queue pairs.
    max_qp = max_qp;
    /// Most outstanding requests of one queue.
    max_qp_wr = max_qp_wr;
    /// Most scatter/gather elements of one request.
    max_sge = max_sge;
    /// Most scatter/gather elements of one read.
    max_sge_rd = max_sge_rd;
    /// Most completion queues.
    max_cq = max_cq;
    /// Most entries of one completion queue.
    max_cqe = max_cqe;
    /// Most memory regions.
    max_mr = max_mr;
    /// Most protection domains.
    max_pd = max_pd;
    /// Most reads and atomics in flight with the device as their target.
    max_res_rd_atom = max_res_rd_atom;
    /// Most end-to-end contexts (reliable datagrams).
    max_ee = max_ee;
    /// Most reads and atomics that one end-to-end context may have in flight as their target.
    max_ee_rd_atom = max_ee_rd_atom;
    /// Most reads and atomics that one end-to-end context may have in flight as their initiator.
    max_ee_init_rd_atom = max_ee_init_rd_atom;
    /// Most reliable datagram domains.
    max_rdd = max_rdd;
    /// Most memory windows.
    max_mw = max_mw;
    /// Most raw IPv6 datagram queue pairs.
    max_raw_ipv6_qp = max_raw_ipv6_qp;
    /// Most raw Ethertype datagram queue pairs.
    max_raw_ethy_qp = max_raw_ethy_qp;
    /// Most multicast groups.
    max_mcast_grp = max_mcast_grp;
    /// Most queue pairs attached to one multicast group.
    max_mcast_qp_attach = max_mcast_qp_attach;
    /// Most queue pairs attached to multicast groups.
    max_total_mcast_qp_attach = max_total_mcast_qp_attach;
    /// Most address handles.
    max_ah = max_ah;
    /// Most fast memory regions.
    max_fmr = max_fmr;
    /// Most mappings of one fast memory region before it has to be unmapped.
    max_map_per_fmr = max_map_per_fmr;
    /// Most shared receive queues.
    max_srq = max_srq;
    /// Most receives of a shared receive queue.
    max_srq_wr = max_srq_wr;
    /// Most scatter/gather elements of one receive of a shared receive queue.
    max_srq_sge = max_srq_sge;
}

impl DeviceAttributes {
    pub(crate) fn zeroed() -> Self {
        // SAFETY: the struct holds only integers and byte arrays, for which zero is a value.
        let raw = unsafe { MaybeUninit::zeroed().assume_init() };
        Self { raw }
    }

    /// Where a query writes to: every value of the struct is a value of this type.
    pub(crate) fn place(&mut self) -> *mut sys::ibv_device_attr {
        &mut self.raw
    }

    /// Version of the firmware, in the vendor's words.
    pub fn firmware_version(&self) -> &str {
        let bytes = &raw const self.raw.fw_ver;
        // SAFETY: the field lives as long as `self`, and every byte of it is a value of u8.
        let bytes = unsafe { &*bytes.cast::<[u8; 64]>() };
        CStr::from_bytes_until_nul(bytes)
            .ok()
            .and_then(|text| text.to_str().ok())
            .unwrap_or_default()
    }

    /// The node's GUID, first byte first as it is written.
    pub fn node_guid(&self) -> u64 {
        u64::from_be(self.raw.node_guid)
    }

    /// The GUID that all parts of one system have, first byte first as it is written.
    pub fn system_image_guid(&self) -> u64 {
        u64::from_be(self.raw.sys_image_guid)
    }

    /// Longest memory region, in bytes.
    pub fn max_mr_size(&self) -> u64 {
        self.raw.max_mr_size
    }

    /// Page sizes: bit n stands for pages of 2^n bytes.
    pub fn page_size_cap(&self) -> u64 {
        self.raw.page_size_cap
    }

    /// The vendor, by the number that IEEE gave it.
    pub fn vendor_id(&self) -> u32 {
        self.raw.vendor_id
    }

    /// The vendor's number for this kind of device.
    pub fn vendor_part_id(&self) -> u32 {
        self.raw.vendor_part_id
    }

    /// Version of the hardware.
    pub fn hardware_version(&self) -> u32 {
        self.raw.hw_ver
    }

    /// What the device can, as far as 32 bits say it; [`ExtendedAttributes::capabilities`] has all.
    #[doc(alias = "device_cap_flags")]
    pub fn capabilities(&self) -> DeviceCapFlags {
        DeviceCapFlags::from_bits_retain(self.raw.device_cap_flags.into())
    }

    /// Among which operations an atomic is atomic.
    pub fn atomic_capability(&self) -> AtomicCapability {
        AtomicCapability::from_raw(self.raw.atomic_cap.0)
    }

    /// Most reads and atomics that one queue pair may have in flight as their target.
    pub fn max_qp_rd_atom(&self) -> u8 {
        u8::try_from(positive(self.raw.max_qp_rd_atom)).unwrap_or(u8::MAX)
    }

    /// Most reads and atomics that one queue pair may have in flight as their initiator.
    pub fn max_qp_init_rd_atom(&self) -> u8 {
        u8::try_from(positive(self.raw.max_qp_init_rd_atom)).unwrap_or(u8::MAX)
    }

    /// Entries of a port's partition key table.
    pub fn max_pkeys(&self) -> u16 {
        self.raw.max_pkeys
    }

    /// How long the device takes for an acknowledgement at most: 4.096 µs · 2^n.
    pub fn local_ca_ack_delay(&self) -> u8 {
        self.raw.local_ca_ack_delay
    }

    /// Number of ports, which count from 1.
    pub fn port_count(&self) -> u8 {
        self.raw.phys_port_cnt
    }

    /// Whether the device has memory windows, of any type.
    pub fn has_windows(&self) -> bool {
        self.capabilities().intersects(
            DeviceCapFlags::MEM_WINDOW
                | DeviceCapFlags::MEM_WINDOW_TYPE_2A
                | DeviceCapFlags::MEM_WINDOW_TYPE_2B,
        )
    }

    /// Whether a program plays the device: SoftRoCE gives a number that is no vendor's, older ones
    /// none. Its library has mistakes that real devices' do not have, and doorbells that can fail.
    pub(crate) fn is_of_software(&self) -> bool {
        matches!(self.vendor_id(), 0 | 0x00ff_ffff)
    }

    #[cfg(test)]
    pub(crate) fn from_raw(raw: sys::ibv_device_attr) -> Self {
        Self { raw }
    }

    /// The C struct.
    pub fn as_raw(&self) -> &sys::ibv_device_attr {
        &self.raw
    }
}

impl fmt::Debug for DeviceAttributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceAttributes")
            .field("firmware_version", &self.firmware_version())
            .field("capabilities", &self.capabilities())
            .field("port_count", &self.port_count())
            .field("max_qp_wr", &self.max_qp_wr())
            .field("max_sge", &self.max_sge())
            .field("max_cqe", &self.max_cqe())
            .finish_non_exhaustive()
    }
}

/// C gives counts as signed integers; a negative one means none.
fn positive(count: i32) -> u32 {
    u32::try_from(count).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_firmware_version_without_an_end_is_none() {
        let signed = |byte: u8| std::ffi::c_char::from_ne_bytes([byte]);
        let mut raw = sys::ibv_device_attr::default();
        raw.fw_ver[..5].copy_from_slice(&b"1.2.3".map(signed));
        assert_eq!(DeviceAttributes::from_raw(raw).firmware_version(), "1.2.3");
        raw.fw_ver = [signed(b'1'); 64];
        assert_eq!(DeviceAttributes::from_raw(raw).firmware_version(), "");
        raw.fw_ver = [signed(0xff); 64];
        raw.fw_ver[63] = 0;
        assert_eq!(DeviceAttributes::from_raw(raw).firmware_version(), "");
    }

    #[test]
    fn a_count_below_zero_is_none() {
        let raw = sys::ibv_device_attr {
            max_qp_wr: -1,
            max_srq: 7,
            ..Default::default()
        };
        let attributes = DeviceAttributes::from_raw(raw);
        assert_eq!((attributes.max_qp_wr(), attributes.max_srq()), (0, 7));
    }
}
