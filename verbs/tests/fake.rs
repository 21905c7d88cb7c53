//! What needs a device that does as it is told: `RUSTFLAGS='--cfg rdma_fake' cargo test`.
#![cfg(rdma_fake)]

mod on_fake;
