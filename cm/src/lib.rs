//! The RDMA connection manager for Rust: ids, events, connect, listen, accept, reject.
