//! The RDMA connection manager: connections by IP address, for queue pairs that you own.
//!
//! ```text
//! active:   (Connector →) Resolving → Resolved → Connection (connecting → established → closed)
//! passive:  Listener  → Request  → Connection (connecting → established → closed)
//!
//! datagrams, asking:     DatagramResolving → DatagramResolved → DatagramLookup → DatagramPeer
//! datagrams, answering:  DatagramListener  → DatagramRequest
//! multicast:             Multicast → Group (joining → joined, left on drop)
//! ```
//!
//! Each connection and each listener has an event channel of its own. Its descriptor ([`AsFd`]) is
//! non-blocking, so it can be given to `poll`, epoll or an async runtime; the `try_` methods never
//! block, and the others take a [`Deadline`] that covers the whole step. A [`Dispatcher`] instead
//! reads one channel for any number of them. With the feature `tokio` there is `Async`, which waits in a
//! runtime.
//!
//! Queue pairs belong to the caller's side of the fence, not to librdmacm's id: librdmacm changes
//! the state of its own queue pairs in whichever thread reads events, without a lock. The price is
//! that the active side becomes connected only when it takes the peer's answer from
//! [`Connection::next_event`] or [`Connection::wait_established`].
//!
//! Every event is acknowledged exactly once, before its id is destroyed; no order of drops hangs.
//!
//! # Example
//!
//! ```no_run
//! # fn main() -> Result<(), cm::Error> {
//! use std::time::Duration;
//!
//! use cm::verbs::{CompletionQueue, ProtectionDomain, QpType, QueuePair};
//! use cm::{ConnParams, ConnectOptions, Deadline, Resolving};
//!
//! let deadline = Deadline::after(Duration::from_secs(5));
//! let peer = "192.0.2.1:7204".parse().expect("an address");
//! let resolved = Resolving::start(peer, &ConnectOptions::default(), deadline)?.wait()?;
//! let pd = ProtectionDomain::new(resolved.context())?;
//! let cq = CompletionQueue::builder(resolved.context(), 64).build()?;
//! let qp = QueuePair::builder(&pd, QpType::RC, &cq, &cq).build()?;
//! resolved.init_qp(&qp)?;
//! let connection = resolved.connect(qp, &ConnParams::default(), b"hello")?;
//! let answer = connection.wait_established(deadline)?;
//! println!("connected; the peer says {answer:?}");
//! # Ok(())
//! # }
//! ```
//!
//! [`AsFd`]: std::os::fd::AsFd

mod address;
#[cfg(feature = "tokio")]
mod asynchronous;
mod channel;
mod connect;
mod connection;
mod connector;
mod datagram;
mod device;
mod dispatcher;
mod error;
mod event;
mod id;
mod incoming;
mod listen;
mod names;
mod params;
mod port_space;
mod resolve;
mod source;

pub use verbs;
pub use verbs::Deadline;

#[cfg(feature = "tokio")]
pub use crate::asynchronous::Async;
pub use crate::connect::{ConnectOptions, Progress, Resolved, Resolving};
pub use crate::connection::{Connection, ConnectionEvent, ConnectionState};
pub use crate::connector::Connector;
pub use crate::datagram::{
    DatagramListener, DatagramLookup, DatagramPeer, DatagramRequest, DatagramResolved,
    DatagramResolving, Group, GroupState, JoinKind, Multicast, MulticastEvent,
};
pub use crate::device::{device_of_local, device_of_remote, devices};
pub use crate::dispatcher::Dispatcher;
pub use crate::error::Error;
pub use crate::event::{
    ConnectionData, DatagramData, Event, EventKind, MulticastData, Payload, RejectReason,
    RemoteQueuePair,
};
pub use crate::listen::{ListenOptions, Listener, Request};
pub use crate::names::{AddressHints, AddressInfo, address_info};
pub use crate::params::{ConnParams, Ece, IdOptions, Message};
pub use crate::port_space::PortSpace;
pub use crate::source::{EventSource, OwnChannel, Routed};
