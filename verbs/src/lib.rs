//! RDMA verbs for Rust: devices, protection domains, memory regions, completion queues, queue pairs.
