//! Both sides of every handshake in one process: `RUSTFLAGS='--cfg rdma_fake' cargo test`.
#![cfg(rdma_fake)]

mod on_fake;
