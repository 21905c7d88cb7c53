//! Remote persistent memory access over RDMA: peers, connections, regions, in the model of librpma.
