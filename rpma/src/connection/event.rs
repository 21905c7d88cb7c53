//! What happens to a connection.

use std::fmt;

use cm::{EventKind, RejectReason};

/// What happened to a connection.
#[doc(alias = "rpma_conn_event")]
#[doc(alias = "rpma_utils_conn_event_2str")]
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectionEvent {
    /// Data can flow.
    Established,
    /// One of the sides ended it. May come twice.
    Closed,
    /// It broke during set-up.
    Lost {
        /// 0, a negative errno, or a positive code of the transport.
        status: i32,
    },
    /// The device was removed, and the connection with it. (librpma tells it as lost.)
    DeviceRemoved,
    /// The peer refused.
    Rejected {
        /// Why.
        reason: RejectReason,
        /// The bytes that came with it (on InfiniBand and RoCE always 148, padded with zeros).
        private_data: Vec<u8>,
    },
    /// The peer's machine does not answer.
    Unreachable {
        /// A negative errno, or a positive code of the transport.
        status: i32,
    },
    /// An event that changes nothing for the connection.
    Other {
        /// Its kind.
        kind: EventKind,
        /// 0, a negative errno, or a positive code of the transport.
        status: i32,
    },
}

impl fmt::Display for ConnectionEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Established => f.write_str("connection established"),
            Self::Closed => f.write_str("connection closed"),
            Self::Lost { status } => write!(f, "connection lost (status {status})"),
            Self::DeviceRemoved => f.write_str("connection lost: the device was removed"),
            Self::Rejected { reason, .. } => write!(f, "connection rejected: {reason}"),
            Self::Unreachable { status } => write!(f, "peer unreachable (status {status})"),
            Self::Other { kind, status } => write!(f, "event {kind} (status {status})"),
        }
    }
}

impl From<&cm::ConnectionEvent> for ConnectionEvent {
    fn from(event: &cm::ConnectionEvent) -> Self {
        match event {
            cm::ConnectionEvent::Established { .. } => Self::Established,
            cm::ConnectionEvent::Disconnected | cm::ConnectionEvent::TimewaitExit => Self::Closed,
            cm::ConnectionEvent::ConnectError { status } => Self::Lost { status: *status },
            cm::ConnectionEvent::DeviceRemoved => Self::DeviceRemoved,
            cm::ConnectionEvent::Rejected {
                reason,
                private_data,
            } => Self::Rejected {
                reason: *reason,
                private_data: private_data.clone(),
            },
            cm::ConnectionEvent::Unreachable { status } => Self::Unreachable { status: *status },
            cm::ConnectionEvent::Other { kind, status } => Self::Other {
                kind: *kind,
                status: *status,
            },
            // The crate below may learn more events.
            _ => Self::Other {
                kind: EventKind::from_raw(u32::MAX),
                status: 0,
            },
        }
    }
}
