//! Memory: this side's regions, the other side's, and parts of both.

mod copy;
mod local;
mod pinned;
mod remote;
mod span;
mod usage;

pub use self::local::LocalRegion;
pub(crate) use self::pinned::Pinned;
pub use self::remote::RemoteRegion;
pub use self::span::{RemoteSpan, Span};
pub use self::usage::Usage;

/// Bytes of a region's descriptor on the wire.
const DESCRIPTOR_SIZE: usize = 21;
