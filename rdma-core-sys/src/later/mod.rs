//! What releases after rdma-core 44 added, up to rdma-core 65.
//!
//! The bindings are made from the headers of rdma-core 44, so these are written by hand, and with the feature `bindgen` they
//! are these too, whatever the headers. Constants and structs cost nothing where they are not known: the library or the device
//! refuses them. The functions are looked up at their first call, so that a program that names them starts on rdma-core 44 as
//! well; there they answer `EOPNOTSUPP`, in the way in which each of them reports an error.

mod constants;
#[macro_use]
mod symbol;
mod event;
mod functions;
mod port;
#[cfg(all(feature = "rsocket", not(rdma_fake)))]
mod repoll;
mod structs;

pub use self::constants::*;
pub use self::event::*;
pub use self::functions::*;
pub use self::port::*;
#[cfg(all(feature = "rsocket", not(rdma_fake)))]
pub use self::repoll::*;
pub use self::structs::*;
