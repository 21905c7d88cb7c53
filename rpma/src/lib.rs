//! Remote memory, persistent or not, over RDMA: the model of librpma, and the same bytes on the
//! wire, so that a Rust side and a C side understand each other.
//!
//! # The objects
//!
//! ```text
//! Device ── Peer ── LocalRegion ──(21 bytes)──▶ RemoteRegion at the other side
//!            ├───── Endpoint ── ConnectionRequest ── Connection ── CompletionQueue
//!            └───────────────── ConnectionRequest ── Connection ── CompletionQueue
//! ```
//!
//! Handles may be dropped in any order; each keeps what it needs alive.
//!
//! # Memory that others write
//!
//! A peer may change a [`LocalRegion`] at any time, so it is never lent as a slice: `store` and
//! `load` copy. Operations take a [`Span`] of it and are safe without tracking what is in flight:
//! a region is deregistered before its memory is given back, and the device refuses what comes
//! later.
//!
//! # Example
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use rpma::{
//!     ConnectionConfig, ConnectionRequest, Device, FlushType, LocalRegion, Peer, PrivateData,
//!     RemoteRegion, Signal, Usage,
//! };
//!
//! # fn main() -> Result<(), rpma::Error> {
//! let second = Duration::from_secs(1);
//! let server = "192.0.2.1:7204".parse().expect("an address");
//! let peer = Peer::new(&Device::remote(server, second)?)?;
//! let source = LocalRegion::alloc(&peer, 4096, Usage::WRITE_SRC)?;
//! source.store(0, b"hello")?;
//!
//! let request = ConnectionRequest::new(&peer, server, &ConnectionConfig::default())?;
//! let connection = request.connect(PrivateData::none())?;
//! connection.wait_established(second)?;
//! // The server sends the descriptor of its region along with its acceptance.
//! let target = RemoteRegion::from_descriptor(connection.private_data())?;
//! connection.write(target.span(..5)?, source.span(..5)?, Signal::OnError, 1)?;
//! connection.flush(target.span(..5)?, FlushType::Visibility, Signal::Always, 2)?;
//! let completion = connection.cq().next(second)?;
//! println!("operation {}: {:?}", completion.op_context(), completion.result());
//! # Ok(())
//! # }
//! ```
//!
//! # Logging
//!
//! Through `tracing`, nothing by default; nothing on the paths that post and poll.

/// The program in the workspace's README is compiled as a test.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;

#[cfg(feature = "tokio")]
mod asynchronous;
mod channel;
#[doc = include_str!("../docs/coming_from_librpma.md")]
#[doc(alias = "librpma")]
#[doc(alias = "rpma_log_set_function")]
#[doc(alias = "rpma_log_set_threshold")]
#[doc(alias = "rpma_log_get_threshold")]
pub mod coming_from_librpma {}
mod connection;
mod cq;
mod device;
mod endpoint;
mod error;
pub mod gpspm;
mod memory;
mod peer;
mod peer_config;
mod private_data;
mod srq;

pub use cm;

pub use cm::verbs::{
    Advice, WcError as CompletionError, WcOpcode as Opcode, WcStatus as Status,
    WcSuccess as Success,
};
pub use cm::{ListenOptions, RejectReason};

#[cfg(feature = "tokio")]
pub use crate::asynchronous::Async;
pub use crate::channel::CompletionChannel;
pub use crate::connection::{
    AtomicWriteMethod, Batch, Connection, ConnectionConfig, ConnectionEvent, ConnectionRequest,
    Destination, FlushMethod, FlushType, ReadyQueue, Signal, Source,
};
pub use crate::cq::{Completion, CompletionQueue, CompletionQueueBuilder};
pub use crate::device::Device;
pub use crate::endpoint::Endpoint;
pub use crate::error::{Error, ErrorKind};
pub use crate::memory::{
    AdviseFlags, HugePageSize, LocalRegion, PersistMethod, RemoteRegion, RemoteSpan, Span, Usage,
};
pub use crate::peer::Peer;
pub use crate::peer_config::PeerConfig;
pub use crate::private_data::PrivateData;
pub use crate::srq::{SharedReceiveQueue, SrqConfig};

#[cfg(test)]
mod tests {
    use super::*;

    fn shared<T: Send + Sync>() {}
    fn moved<T: Send>() {}

    /// Does not compile when `$type` is `Sync`: then both implementations fit.
    macro_rules! not_shared {
        ($type:ty) => {{
            trait Ambiguous<A> {
                fn check() {}
            }
            impl<T: ?Sized> Ambiguous<()> for T {}
            impl<T: ?Sized + Sync> Ambiguous<u8> for T {}
            <$type as Ambiguous<_>>::check();
        }};
    }

    #[test]
    fn threads_may_share_everything_but_a_connection() {
        shared::<Device>();
        shared::<Peer>();
        shared::<PeerConfig>();
        shared::<Endpoint>();
        shared::<LocalRegion>();
        shared::<RemoteRegion>();
        shared::<Span<'_>>();
        shared::<RemoteSpan>();
        shared::<ConnectionConfig>();
        shared::<SrqConfig>();
        shared::<SharedReceiveQueue>();
        shared::<CompletionQueue>();
        shared::<CompletionChannel>();
        shared::<Completion>();
        shared::<PrivateData>();
        shared::<ConnectionEvent>();
        shared::<Error>();
        moved::<Connection>();
        moved::<ConnectionRequest>();
        // Behind a lock it may be shared.
        shared::<std::sync::Mutex<Connection>>();
        // What counts posted operations takes no lock.
        not_shared!(Connection);
    }
}
