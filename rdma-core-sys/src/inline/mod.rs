//! The inline functions and function-like macros of the headers.

mod cma;
mod ctx;
mod gid;
mod mr;
mod poll;
mod post;

pub use self::cma::*;
pub use self::ctx::*;
pub use self::gid::*;
pub use self::mr::*;
pub use self::poll::*;
pub use self::post::*;
