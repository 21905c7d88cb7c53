//! End-to-end tests on a real RDMA device.
