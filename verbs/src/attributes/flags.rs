//! Capabilities as open bit sets.

use bitflags::bitflags;
use rdma_core_sys as sys;
use sys::ibv_device_cap_flags as Cap;

use crate::flags::open_enum;

bitflags! {
    /// What a device can.
    #[doc(alias = "ibv_device_cap_flags")]
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct DeviceCapFlags: u64 {
        /// Queue pairs are resized.
        const RESIZE_MAX_WR = Cap::IBV_DEVICE_RESIZE_MAX_WR.0 as u64;
        /// Bad partition keys are counted.
        const BAD_PKEY_CNTR = Cap::IBV_DEVICE_BAD_PKEY_CNTR.0 as u64;
        /// Bad Q_Keys are counted.
        const BAD_QKEY_CNTR = Cap::IBV_DEVICE_BAD_QKEY_CNTR.0 as u64;
        /// Raw packets are multicast.
        const RAW_MULTI = Cap::IBV_DEVICE_RAW_MULTI.0 as u64;
        /// Connections migrate to another path by themselves.
        const AUTO_PATH_MIG = Cap::IBV_DEVICE_AUTO_PATH_MIG.0 as u64;
        /// A queue pair changes its port on the way from SQD to SQD.
        const CHANGE_PHY_PORT = Cap::IBV_DEVICE_CHANGE_PHY_PORT.0 as u64;
        /// The port of a datagram's address handle is enforced.
        const UD_AV_PORT_ENFORCE = Cap::IBV_DEVICE_UD_AV_PORT_ENFORCE.0 as u64;
        /// Transitions take the state that the queue pair is expected in.
        const CURR_QP_STATE_MOD = Cap::IBV_DEVICE_CURR_QP_STATE_MOD.0 as u64;
        /// Ports are shut down.
        const SHUTDOWN_PORT = Cap::IBV_DEVICE_SHUTDOWN_PORT.0 as u64;
        /// A port's kind of initialisation is set.
        const INIT_TYPE = Cap::IBV_DEVICE_INIT_TYPE.0 as u64;
        /// A port that becomes active gives an event.
        const PORT_ACTIVE_EVENT = Cap::IBV_DEVICE_PORT_ACTIVE_EVENT.0 as u64;
        /// There is a GUID for the system.
        const SYS_IMAGE_GUID = Cap::IBV_DEVICE_SYS_IMAGE_GUID.0 as u64;
        /// A receiver that is not ready says so (RC).
        const RC_RNR_NAK_GEN = Cap::IBV_DEVICE_RC_RNR_NAK_GEN.0 as u64;
        /// Shared receive queues are resized.
        const SRQ_RESIZE = Cap::IBV_DEVICE_SRQ_RESIZE.0 as u64;
        /// An event is asked for after a number of completions.
        const N_NOTIFY_CQ = Cap::IBV_DEVICE_N_NOTIFY_CQ.0 as u64;
        /// Memory windows of type 1.
        const MEM_WINDOW = Cap::IBV_DEVICE_MEM_WINDOW.0 as u64;
        /// Checksums of UDP over IPoIB are computed.
        const UD_IP_CSUM = Cap::IBV_DEVICE_UD_IP_CSUM.0 as u64;
        /// Extended reliable connections.
        const XRC = Cap::IBV_DEVICE_XRC.0 as u64;
        /// Send with invalidate, local invalidate, fast registration.
        const MEM_MGT_EXTENSIONS = Cap::IBV_DEVICE_MEM_MGT_EXTENSIONS.0 as u64;
        /// Memory windows of type 2A, which any queue pair of the domain may bind.
        const MEM_WINDOW_TYPE_2A = Cap::IBV_DEVICE_MEM_WINDOW_TYPE_2A.0 as u64;
        /// Memory windows of type 2B, which belong to the queue pair that bound them.
        const MEM_WINDOW_TYPE_2B = Cap::IBV_DEVICE_MEM_WINDOW_TYPE_2B.0 as u64;
        /// Checksums of IP over RC are computed.
        const RC_IP_CSUM = Cap::IBV_DEVICE_RC_IP_CSUM.0 as u64;
        /// Checksums of raw packets are computed.
        const RAW_IP_CSUM = Cap::IBV_DEVICE_RAW_IP_CSUM.0 as u64;
        /// Flows are steered to queue pairs.
        const MANAGED_FLOW_STEERING = Cap::IBV_DEVICE_MANAGED_FLOW_STEERING.0 as u64;
        /// Raw packets are received with their checksum.
        const RAW_SCATTER_FCS = sys::IBV_DEVICE_RAW_SCATTER_FCS;
        /// Writes over the bus are filled up to a cache line.
        const PCI_WRITE_END_PADDING = sys::IBV_DEVICE_PCI_WRITE_END_PADDING;
        // The kernel's bits (uapi/rdma/ib_user_verbs.h), for which libibverbs has no name.
        /// Flush to where all of the target sees the bytes.
        const FLUSH_GLOBAL = 1 << 38;
        /// Flush to where the bytes are safe from a loss of power.
        const FLUSH_PERSISTENT = 1 << 39;
        /// Atomic write.
        const ATOMIC_WRITE = 1 << 40;
        const _ = !0;
    }
}

bitflags! {
    /// On-demand paging as a whole.
    #[doc(alias = "ibv_odp_general_caps")]
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct OdpFlags: u64 {
        /// There is any.
        const SUPPORT = sys::ibv_odp_general_caps::IBV_ODP_SUPPORT.0 as u64;
        /// One region may cover the whole address space.
        const IMPLICIT = sys::ibv_odp_general_caps::IBV_ODP_SUPPORT_IMPLICIT.0 as u64;
        const _ = !0;
    }
}

bitflags! {
    /// What requests of one transport may do with memory that is paged on demand.
    #[doc(alias = "ibv_odp_transport_cap_bits")]
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct OdpTransportFlags: u32 {
        /// Send from it.
        const SEND = sys::ibv_odp_transport_cap_bits::IBV_ODP_SUPPORT_SEND.0;
        /// Receive into it.
        const RECV = sys::ibv_odp_transport_cap_bits::IBV_ODP_SUPPORT_RECV.0;
        /// Write from and to it.
        const WRITE = sys::ibv_odp_transport_cap_bits::IBV_ODP_SUPPORT_WRITE.0;
        /// Read from and to it.
        const READ = sys::ibv_odp_transport_cap_bits::IBV_ODP_SUPPORT_READ.0;
        /// Atomics on it.
        const ATOMIC = sys::ibv_odp_transport_cap_bits::IBV_ODP_SUPPORT_ATOMIC.0;
        /// Receive into it from a shared receive queue.
        const SRQ_RECV = sys::ibv_odp_transport_cap_bits::IBV_ODP_SUPPORT_SRQ_RECV.0;
        // The kernel's bits (uapi/rdma/ib_user_verbs.h), for which libibverbs 44 has no name.
        /// Flush it.
        const FLUSH = 1 << 6;
        /// Atomic writes to it.
        const ATOMIC_WRITE = 1 << 7;
        const _ = !0;
    }
}

bitflags! {
    /// What the device can do with raw packets.
    #[doc(alias = "ibv_raw_packet_caps")]
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct RawPacketFlags: u32 {
        /// Take the VLAN tag out.
        const CVLAN_STRIPPING = sys::ibv_raw_packet_caps::IBV_RAW_PACKET_CAP_CVLAN_STRIPPING.0;
        /// Leave the checksum in.
        const SCATTER_FCS = sys::ibv_raw_packet_caps::IBV_RAW_PACKET_CAP_SCATTER_FCS.0;
        /// Compute checksums.
        const IP_CSUM = sys::ibv_raw_packet_caps::IBV_RAW_PACKET_CAP_IP_CSUM.0;
        /// Wait for a receive instead of dropping the packet.
        const DELAY_DROP = sys::ibv_raw_packet_caps::IBV_RAW_PACKET_CAP_DELAY_DROP.0;
        const _ = !0;
    }
}

open_enum! {
    /// Among which operations an atomic is atomic.
    #[doc(alias = "ibv_atomic_cap")]
    AtomicCapability(u32) {
        /// There are no atomics.
        NONE = sys::ibv_atomic_cap::IBV_ATOMIC_NONE.0, "none";
        /// Among those of this device, not against the processor's.
        HCA = sys::ibv_atomic_cap::IBV_ATOMIC_HCA.0, "device";
        /// Among all of this machine, the processor's included.
        GLOBAL = sys::ibv_atomic_cap::IBV_ATOMIC_GLOB.0, "global";
    }
}
