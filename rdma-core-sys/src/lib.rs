//! Raw bindings to libibverbs and librdmacm, with the headers' inline functions in Rust.
//!
//! Everything here has its C name and its C meaning, and nearly everything is unsafe. The C manual pages are the reference;
//! this page says only what differs from C.
//!
//! - **Enums** are newtypes over C's integer with associated constants (`ibv_wc_status::IBV_WC_SUCCESS`), so a value that
//!   these bindings do not know is still a value. Those whose constants are bits have the bit operators.
//! - **Inline functions** of the headers ([`ibv_post_send`], [`ibv_poll_cq`], the `ibv_wr_*` family …) are written in Rust
//!   and go through the same operation tables as in C. A table slot that is NULL, where C would jump to address 0,
//!   answers `EOPNOTSUPP`; where the function returns nothing to say so with, it panics and names the slot.
//! - **Macros that shadow a symbol**: [`ibv_query_port`], [`ibv_reg_mr`] and [`ibv_reg_mr_iova`] are the macros' forms. The
//!   exported symbols of these names exist for old programs only and are not bound.
//! - **Unnamed unions** have names here, see [`ibv_send_wr_op`] and its neighbours.
//! - **Sizes**: `verbs_context` grows at its front and `ibv_qp_ex`, `ibv_cq_ex`, `ibv_port_attr` and `ibv_device_attr_ex` at
//!   their tail from release to release. Reach them through raw pointers and read single fields; a reference to the whole
//!   struct, or a copy of it, may cover memory that the library did not allocate.
//! - **`Default`** is all zero bits, for structs as for unions.
//!
//! - **Sockets**: the emulation of `rdma/rsocket.h` is behind the feature `rsocket`.
//!
//! The bindings are made from the headers of rdma-core 44 and work with that release and all later ones. What later releases
//! added, up to rdma-core 65, says so. A program that uses it still starts with rdma-core 44: functions are looked up at their
//! first call and answer `EOPNOTSUPP` where the library does not have them (see [`ibv_reg_mr_ex`] and its neighbours), and
//! fields at the end of a struct have a function of their own that reads them ([`ibv_query_port_v49`], [`ibv_wr_flush`],
//! [`rdma_cm_event_arg`]).
#![no_std]
#![allow(
    non_camel_case_types,
    non_upper_case_globals,
    non_snake_case,
    reason = "the names are those of the C headers"
)]

#[cfg(rdma_fake)]
extern crate std;

#[cfg(not(feature = "bindgen"))]
#[rustfmt::skip]
#[allow(
    missing_docs,
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    clippy::multiple_unsafe_ops_per_block,
    clippy::ptr_as_ptr,
    clippy::missing_safety_doc,
    reason = "generated, and documented by the C manual pages"
)]
mod bindings;
#[cfg(feature = "bindgen")]
#[allow(
    missing_docs,
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    clippy::multiple_unsafe_ops_per_block,
    clippy::ptr_as_ptr,
    clippy::missing_safety_doc,
    reason = "generated, and documented by the C manual pages"
)]
mod bindings {
    include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
}
mod constants;
#[cfg(rdma_fake)]
pub mod fake;
#[macro_use]
mod inline;
mod later;
#[cfg(all(feature = "rsocket", not(rdma_fake)))]
mod rsocket;
mod unions;

pub use crate::bindings::*;
pub use crate::constants::*;
pub use crate::inline::*;
pub use crate::later::*;
#[cfg(all(feature = "rsocket", not(rdma_fake)))]
pub use crate::rsocket::*;
pub use crate::unions::*;
