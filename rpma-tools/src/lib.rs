//! rpma-ping: does RDMA work between these two machines, and does every byte arrive.
