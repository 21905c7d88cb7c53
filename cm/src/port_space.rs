//! Which kind of service an id is for.

use verbs::{open_enum, sys};

open_enum! {
    /// The kind of service that an id's port numbers are for.
    #[doc(alias = "rdma_port_space")]
    PortSpace(u32) {
        /// Datagrams over IP over InfiniBand.
        IPOIB = sys::rdma_port_space::RDMA_PS_IPOIB.0, "IPoIB";
        /// Reliable connections.
        TCP = sys::rdma_port_space::RDMA_PS_TCP.0, "TCP";
        /// Datagrams.
        UDP = sys::rdma_port_space::RDMA_PS_UDP.0, "UDP";
        /// InfiniBand's own service ids.
        IB = sys::rdma_port_space::RDMA_PS_IB.0, "IB";
    }
}

impl PortSpace {
    /// Whether librdmacm takes its ids for those of datagram queue pairs.
    pub fn is_datagram(self) -> bool {
        matches!(self, Self::UDP | Self::IPOIB)
    }
}
