//! The whole of rpma in one process, on the fake device: `RUSTFLAGS='--cfg rdma_fake' cargo test`.
#![cfg(rdma_fake)]

mod on_fake;
