//! RDMA verbs, safe where they can be and exact about it where they cannot.
//!
//! # The objects
//!
//! ```text
//! Context ── ProtectionDomain ── MemoryRegion, MemoryWindow, AddressHandle
//!    │              └─────────── QueuePair ── SharedReceiveQueue
//!    └── CompletionChannel ── CompletionQueue┘
//! ```
//!
//! Few devices have [`XrcDomain`] and [`ThreadDomain`] as well, and operations such as
//! [`CompletionQueue::moderate`] and [`MemoryRegion::reregister`]: the others answer
//! [`ErrorKind::Unsupported`]. What other code has made is handed over by `from_raw`.
//!
//! Every handle keeps what it needs alive, so handles may be dropped in any order. A drop never
//! panics and never waits for a peer or for another thread of yours; if the kernel refuses to
//! destroy an object for longer than 100 ms, the object and everything it needs are leaked, never
//! freed under the device. `close` does the same and returns the error.
//!
//! # What is unsafe
//!
//! Registering memory ([`MemoryRegion::register`]) and posting ([`QueuePair::post_send`],
//! [`QueuePair::post_recv`], [`Request::sges`] of a batch), because the device then reads and writes
//! memory behind the compiler's back. The crate `rpma` gives both a safe form.
//!
//! # Threads and processes
//!
//! All handles are `Send` and `Sync`: libibverbs locks per queue. In a child made by `fork` every
//! call answers [`ErrorKind::Forked`] and every drop leaks: create RDMA objects after the fork.
//!
//! # Values from C
//!
//! States, opcodes, statuses and flags are open: a value that this version does not know is kept
//! and printed as its number.
//!
//! # Example
//!
//! ```no_run
//! # fn main() -> Result<(), verbs::Error> {
//! use verbs::{CompletionQueue, DeviceList, ProtectionDomain, QpType, QueuePair};
//!
//! let context = DeviceList::new()?.first()?.open()?;
//! let pd = ProtectionDomain::new(&context)?;
//! let cq = CompletionQueue::builder(&context, 64).build()?;
//! let qp = QueuePair::builder(&pd, QpType::RC, &cq, &cq)
//!     .max_send_wr(32)
//!     .max_recv_wr(32)
//!     .build()?;
//! println!("queue pair {} on {}", qp.number(), context.name());
//! # Ok(())
//! # }
//! ```
#![warn(clippy::missing_errors_doc, clippy::missing_panics_doc)]

mod ah;
mod async_event;
mod attributes;
mod context;
mod cq;
mod deadline;
mod device;
mod domain;
mod error;
mod flags;
mod gid;
mod mr;
mod mw;
mod owned;
mod pd;
mod port;
mod process;
mod qp;
mod registry;
mod slots;
mod srq;
mod xrc;

pub use rdma_core_sys as sys;

pub use crate::ah::{Address, AddressHandle, GlobalRoute};
pub use crate::async_event::{AsyncEvent, AsyncEventKind, AsyncEventSource, AsyncEvents};
pub use crate::attributes::{
    AtomicCapability, CqModerationCaps, DeviceAttributes, DeviceCapFlags, ExtendedAttributes,
    OdpFlags, OdpTransportFlags, OnDemandPaging, PacketPacingCaps, PciAtomicCaps, RawPacketFlags,
    RssCaps, TagMatchingCaps, TsoCaps,
};
pub use crate::context::Context;
pub use crate::cq::{
    CompletionChannel, CompletionEvent, CompletionFields, CompletionQueue, CompletionQueueBuilder,
    CqId, ExtendedCompletion, ExtendedCompletionQueue, ExtendedSuccess, PollError, WcError,
    WcOpcode, WcStatus, WcSuccess, WorkCompletion,
};
pub use crate::deadline::{Deadline, wait_for, wait_readable};
pub use crate::device::{Device, DeviceList, NodeType, TransportType};
pub use crate::domain::ThreadDomain;
pub use crate::error::{CloseError, ErrnoText, Error, ErrorKind};
pub use crate::flags::{AccessFlags, SendFlags, WcFlags};
pub use crate::gid::{GidChoice, GidEntry, GidReason, GidType};
pub use crate::mr::{
    Advice, LocalKey, MemoryRegion, RegionChange, RemoteAddr, RemoteKey, ReregisterError,
    ReregisterFailure, Sge, UnusableRegion,
};
pub use crate::mw::{MemoryWindow, WindowBind, WindowType};
pub use crate::pd::ProtectionDomain;
pub use crate::port::{Gid, LinkLayer, PhysicalState, PortAttributes, PortCapFlags, PortState};
pub use crate::process::{ForkSupport, Origin, fork_support};
pub use crate::qp::{
    AlternatePath, AnyData, Batch, Capabilities, Ece, ExtendedQueuePair, FlushLevel,
    FlushPlacement, InitAttributes, InlineRequest, NativeQueuePair, NoData, PathMigration, PathMtu,
    PostError, PostErrorKind, QpAttributes, QpState, QpType, QueuePair, QueuePairBuilder,
    RecvRequest, RegisteredData, Request, RtrAttributes, RtsAttributes, RtsChange, SendOps,
    SendRequest, SqdChange, WrOpcode,
};
pub use crate::srq::{SharedReceiveQueue, SrqAttributes, SrqId};
pub use crate::xrc::{XrcDomain, XrcSharing, XrcTarget};

#[cfg(test)]
mod tests {
    use super::*;

    fn send_and_sync<T: Send + Sync>() {}

    #[test]
    fn every_handle_may_be_used_from_any_thread() {
        send_and_sync::<DeviceList>();
        send_and_sync::<Context>();
        send_and_sync::<ProtectionDomain>();
        send_and_sync::<ThreadDomain>();
        send_and_sync::<MemoryRegion>();
        send_and_sync::<CompletionChannel>();
        send_and_sync::<CompletionQueue>();
        send_and_sync::<ExtendedCompletionQueue>();
        send_and_sync::<QueuePair>();
        send_and_sync::<ExtendedQueuePair>();
        send_and_sync::<SharedReceiveQueue>();
        send_and_sync::<AddressHandle>();
        send_and_sync::<MemoryWindow>();
        send_and_sync::<XrcDomain>();
        send_and_sync::<XrcTarget>();
        send_and_sync::<AsyncEvents>();
        send_and_sync::<Error>();
    }
}
