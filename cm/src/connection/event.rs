//! What can happen to a connection.

use crate::event::{EventKind, RejectReason};

/// What happened to a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectionEvent {
    /// Data can flow. On the active side with the private data of the acceptance (on InfiniBand and
    /// RoCE always 196 bytes, padded with zeros), on the passive side with none.
    Established {
        /// The bytes.
        private_data: Vec<u8>,
    },
    /// One of the sides ended the connection.
    Disconnected,
    /// The peer refused.
    Rejected {
        /// Why.
        reason: RejectReason,
        /// The bytes that came with it (on InfiniBand and RoCE always 148, padded with zeros).
        private_data: Vec<u8>,
    },
    /// The peer's machine does not answer. In an established connection only a warning: the
    /// neighbour's hardware address changed.
    Unreachable {
        /// A negative errno, or a positive code of the transport.
        status: i32,
    },
    /// The handshake failed.
    ConnectError {
        /// A negative errno, or a positive code of the transport.
        status: i32,
    },
    /// The device goes away: drop everything that belongs to it.
    DeviceRemoved,
    /// The queue pair's number may be used again.
    TimewaitExit,
    /// Any other event, which changes nothing here.
    Other {
        /// Its kind.
        kind: EventKind,
        /// 0, a negative errno, or a positive code of the transport.
        status: i32,
    },
}
