//! Memory: this side's regions, the other side's, and parts of both.

mod access;
mod advise;
mod cache_line;
mod copy;
mod create;
mod descriptor;
mod file;
mod local;
mod mapping;
mod persist;
mod pinned;
mod registrar;
mod remote;
mod span;
mod usage;

pub use self::advise::AdviseFlags;
pub use self::local::LocalRegion;
pub use self::mapping::HugePageSize;
pub use self::persist::PersistMethod;
pub(crate) use self::pinned::Pinned;
pub(crate) use self::registrar::Registrar;
pub use self::remote::RemoteRegion;
pub use self::span::{RemoteSpan, Span};
pub use self::usage::Usage;
