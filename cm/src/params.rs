//! What two sides agree on, and what an id is told before.

use std::ptr;

use verbs::{TransportType, sys};

use crate::error::Error;
use crate::port_space::PortSpace;

/// Options of an id that must stand before its address is bound or resolved.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct IdOptions {
    /// The port space; the usual one of what is made (TCP for connections, UDP for datagrams) if
    /// `None`.
    pub port_space: Option<PortSpace>,
    /// The IP type of service of the connection's packets, in both directions; the system's default if
    /// `None`. Of the side that asks: what a listener says has no effect on its connections.
    #[doc(alias = "RDMA_OPTION_ID_TOS")]
    pub type_of_service: Option<u8>,
    /// Bind although another id that says so too has the address and port, and neither listens: several
    /// connections may come from one port. Off by default.
    #[doc(alias = "RDMA_OPTION_ID_REUSEADDR")]
    pub reuse_address: bool,
    /// An IPv6 wildcard takes no IPv4 connections; the system's default, which takes them, if `None`.
    /// An IPv4 client is then told [`RejectReason::CONSUMER`](crate::RejectReason::CONSUMER), as by an
    /// application: the kernel knows no better.
    #[doc(alias = "RDMA_OPTION_ID_AFONLY")]
    pub v6_only: Option<bool>,
}

/// The port space of ids for connections.
pub(crate) fn connected(space: Option<PortSpace>, verb: &'static str) -> Result<PortSpace, Error> {
    match space.unwrap_or(PortSpace::TCP) {
        space if space.is_datagram() => Err(verbs::Error::refused(
            verb,
            verbs::ErrorKind::InvalidArgument,
            format!("port space {space} is for datagrams, and a connection was asked for"),
        )
        .into()),
        space => Ok(space),
    }
}

/// What a connection asks of both queue pairs.
#[doc(alias = "rdma_conn_param")]
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnParams {
    /// Reads and atomics that the peer may have in flight towards us, at most the device's limit.
    /// 255, the default, means that limit.
    pub responder_resources: u8,
    /// Reads and atomics that we want in flight, at most the device's limit and the peer's offer.
    /// 255, the default, means that limit.
    pub initiator_depth: u8,
    /// How often an unacknowledged request is sent again, 0 to 7; 6 by default. 7 means for ever on
    /// SoftRoCE, so that a dead peer is never noticed.
    pub retry_count: u8,
    /// How often a request is sent again to a receiver that is not ready, 0 to 6, or 7 (the
    /// default) for ever.
    pub rnr_retry: u8,
    /// How long an acknowledgement is waited for: 4.096 µs · 2^n, n up to 31. The default of 16 (268 ms) with 6
    /// retries notices a dead link within 10 s also on devices that wait four times as long.
    pub ack_timeout: u8,
    /// How long the peer waits before it sends again when we had no receive posted: a code of the
    /// specification; 12 (0.64 ms) by default. 0 is 655 ms.
    pub min_rnr_timer: u8,
}

impl Default for ConnParams {
    fn default() -> Self {
        Self {
            responder_resources: u8::MAX,
            initiator_depth: u8::MAX,
            retry_count: 6,
            rnr_retry: 7,
            ack_timeout: 16,
            min_rnr_timer: 12,
        }
    }
}

impl ConnParams {
    /// The same with depths that the device has, and that the peer offered.
    pub(crate) fn limited(&self, responder_resources: u8, initiator_depth: u8) -> Self {
        Self {
            responder_resources: self.responder_resources.min(responder_resources),
            initiator_depth: self.initiator_depth.min(initiator_depth),
            ..self.clone()
        }
    }

    /// Whether every field is one that the specification has: found out by the kernel, it would be
    /// only after the peer has answered, and without a name.
    pub(crate) fn check(&self, verb: &'static str) -> Result<(), Error> {
        for (name, value, max) in [
            ("retry_count", self.retry_count, 7),
            ("rnr_retry", self.rnr_retry, 7),
            ("ack_timeout", self.ack_timeout, 31),
            ("min_rnr_timer", self.min_rnr_timer, 31),
        ] {
            if value > max {
                return Err(verbs::Error::refused(
                    verb,
                    verbs::ErrorKind::InvalidArgument,
                    format!("{name} {value} is above its limit {max}"),
                )
                .into());
            }
        }
        Ok(())
    }

    /// C's form. It borrows `private_data`.
    pub(crate) fn to_c(&self, qp_num: u32, private_data: &[u8]) -> sys::rdma_conn_param {
        sys::rdma_conn_param {
            private_data: if private_data.is_empty() {
                ptr::null()
            } else {
                private_data.as_ptr().cast()
            },
            // At most 255: checked by `check_private_data`.
            private_data_len: u8::try_from(private_data.len()).unwrap_or(u8::MAX),
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            flow_control: 1,
            retry_count: self.retry_count,
            rnr_retry_count: self.rnr_retry,
            srq: 0,
            qp_num,
        }
    }
}

/// Extended connection capabilities: what two devices of one vendor agree on beyond the
/// specification. Meant for queue pairs of that vendor's provider; others ignore it.
#[doc(alias = "ibv_ece")]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Ece {
    /// The vendor, 0 for none.
    pub vendor_id: u32,
    /// The vendor's options.
    pub options: u32,
}

/// A message of the handshake that carries private data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Message {
    /// The active side's request: up to 56 bytes on InfiniBand and RoCE.
    Request,
    /// The passive side's acceptance: up to 196 bytes.
    Accept,
    /// A refusal: up to 148 bytes.
    Reject,
    /// A question for a queue pair that takes datagrams: up to 180 bytes.
    DatagramRequest,
    /// The answer to such a question: up to 136 bytes.
    DatagramAccept,
    /// The refusal of such an answer: up to 136 bytes.
    DatagramReject,
}

impl Message {
    /// How many bytes of private data the message carries; the receiver sees them padded with zeros
    /// to this length. iWARP takes 255, and delivers the length that was sent.
    pub fn max_private_data(self, transport: TransportType) -> usize {
        if transport == TransportType::IWARP {
            return 255;
        }
        match self {
            Self::Request => 56,
            Self::Accept => 196,
            Self::Reject => 148,
            Self::DatagramRequest => 180,
            Self::DatagramAccept | Self::DatagramReject => 136,
        }
    }

    pub(crate) fn check_private_data(
        self,
        transport: TransportType,
        data: &[u8],
    ) -> Result<(), Error> {
        let max = self.max_private_data(transport);
        if data.len() <= max {
            return Ok(());
        }
        Err(Error::PrivateDataTooLong {
            message: match self {
                Self::Request => "connection request",
                Self::Accept => "connection acceptance",
                Self::Reject => "rejection",
                Self::DatagramRequest => "datagram request",
                Self::DatagramAccept => "datagram answer",
                Self::DatagramReject => "datagram refusal",
            },
            given: data.len(),
            max,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_data_has_the_room_that_the_message_has() {
        for (message, max) in [
            (Message::Request, 56),
            (Message::Accept, 196),
            (Message::Reject, 148),
            (Message::DatagramRequest, 180),
            (Message::DatagramAccept, 136),
            (Message::DatagramReject, 136),
        ] {
            let ib = TransportType::INFINIBAND;
            assert!(message.check_private_data(ib, &vec![0; max]).is_ok());
            let error = message
                .check_private_data(ib, &vec![0; max + 1])
                .expect_err("too long");
            assert!(
                error.to_string().starts_with(&format!("{} bytes", max + 1)),
                "{error}"
            );
            assert!(
                message
                    .check_private_data(TransportType::IWARP, &[0; 255])
                    .is_ok()
            );
            assert!(
                message
                    .check_private_data(TransportType::IWARP, &[0; 256])
                    .is_err()
            );
        }
    }

    #[test]
    fn a_field_out_of_range_is_refused_by_name() {
        type Set = fn(&mut ConnParams, u8);
        let fields: [(&str, u8, Set); 4] = [
            ("retry_count", 7, |p, v| p.retry_count = v),
            ("rnr_retry", 7, |p, v| p.rnr_retry = v),
            ("ack_timeout", 31, |p, v| p.ack_timeout = v),
            ("min_rnr_timer", 31, |p, v| p.min_rnr_timer = v),
        ];
        for (name, max, set) in fields {
            let mut params = ConnParams::default();
            set(&mut params, max);
            assert!(params.check("rdma_connect").is_ok());
            set(&mut params, max + 1);
            let error = params.check("rdma_connect").expect_err("too large");
            assert!(error.to_string().contains(name), "{error}");
        }
    }

    #[test]
    fn depths_are_limited_by_device_and_peer() {
        let limited = ConnParams::default().limited(128, 4);
        assert_eq!(
            (limited.responder_resources, limited.initiator_depth),
            (128, 4)
        );
    }
}
