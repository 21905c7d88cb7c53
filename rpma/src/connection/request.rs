//! A connection that is about to be made, by either side.

use std::net::SocketAddr;

use cm::verbs::{self, Context, QpType, QueuePair, RecvRequest};
use cm::{Deadline, Resolving};

use super::Connection;
use super::config::ConnectionConfig;
use crate::cq::CompletionQueue;
use crate::error::Error;
use crate::memory::{Span, Usage};
use crate::peer::Peer;
use crate::private_data::PrivateData;

/// A connection that is about to be made: ours to a listener, or one that came in at an
/// [`Endpoint`](crate::Endpoint).
///
/// Receives posted here are there before the other side can send. Dropping an incoming request
/// rejects it.
#[doc(alias = "rpma_conn_req")]
#[derive(Debug)]
#[must_use = "dropping it gives the connection up"]
pub struct ConnectionRequest {
    // Dropped before the id, as in a connection.
    qp: QueuePair,
    cq: CompletionQueue,
    side: Side,
    peer: Peer,
    config: ConnectionConfig,
}

#[derive(Debug)]
enum Side {
    Active(cm::Resolved),
    Passive(cm::Request),
}

impl ConnectionRequest {
    /// Finds the way to `addr` and makes the queues.
    ///
    /// # Errors
    /// [`ErrorKind::NoSuchAddress`](crate::ErrorKind::NoSuchAddress) when no device leads there,
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) when it is not the peer's device or a
    /// size is out of range, [`TimedOut`](crate::ErrorKind::TimedOut) after the configured time.
    #[doc(alias = "rpma_conn_req_new")]
    pub fn new(peer: &Peer, addr: SocketAddr, config: &ConnectionConfig) -> Result<Self, Error> {
        let deadline = Deadline::after(config.timeout());
        let resolved = Resolving::start(addr, &config.connect, deadline)?.wait()?;
        let (qp, cq) = queues(peer, resolved.context(), config)?;
        resolved.init_qp(&qp)?;
        Ok(Self {
            qp,
            cq,
            side: Side::Active(resolved),
            peer: peer.clone(),
            config: config.clone(),
        })
    }

    /// Makes the queues for a request that came in. On failure the request is rejected.
    pub(crate) fn incoming(
        peer: &Peer,
        request: cm::Request,
        config: &ConnectionConfig,
    ) -> Result<Self, Error> {
        let (qp, cq) = queues(peer, request.context(), config)?;
        request.init_qp(&qp)?;
        Ok(Self {
            qp,
            cq,
            side: Side::Passive(request),
            peer: peer.clone(),
            config: config.clone(),
        })
    }

    /// Posts a receive for one message into `dst`, before the other side can send.
    ///
    /// # Errors
    /// [`Error::WrongPeer`], [`Error::UsageForbids`] without [`Usage::RECV`],
    /// [`Error::QueueFull`].
    #[doc(alias = "rpma_conn_req_recv")]
    pub fn recv(&self, dst: Span<'_>, op_context: u64) -> Result<(), Error> {
        let domain = self.peer.domain_identity();
        // A buffer may be longer than any message.
        let sge = [dst.sge("recv", Usage::RECV, domain, u32::MAX)?];
        // SAFETY: the span lies in a live region of this domain, whose memory is never borrowed,
        // and which is deregistered before it is unmapped.
        unsafe { self.qp.post_recv(&mut RecvRequest::new(op_context, &sge)) }.map_err(Error::from)
    }

    /// What came with an incoming request: on InfiniBand and RoCE always 56 bytes, padded with
    /// zeros. Empty for a request of our own.
    #[doc(alias = "rpma_conn_req_get_private_data")]
    pub fn private_data(&self) -> &[u8] {
        match &self.side {
            Side::Active(_) => &[],
            Side::Passive(request) => request.private_data(),
        }
    }

    /// The other side's address.
    pub fn peer_addr(&self) -> SocketAddr {
        match &self.side {
            Side::Active(resolved) => resolved.peer_addr(),
            Side::Passive(request) => request.peer_addr(),
        }
    }

    /// Where the completions of its receives, and later of everything, will come.
    pub fn cq(&self) -> &CompletionQueue {
        &self.cq
    }

    /// Connects, or accepts. Returns at once: [`Connection::wait_established`] or
    /// [`Connection::next_event`] tells when data can flow.
    ///
    /// # Errors
    /// The failed step; an incoming request is then rejected.
    #[doc(alias = "rpma_conn_req_connect")]
    pub fn connect(self, private_data: PrivateData) -> Result<Connection, Error> {
        let Self {
            qp,
            cq,
            side,
            peer,
            config,
        } = self;
        let (params, data) = (&config.params, private_data.as_bytes());
        let (link, received) = match side {
            Side::Active(resolved) => (resolved.connect(qp, params, data)?, None),
            Side::Passive(request) => {
                let received = request.private_data().to_vec();
                (request.accept(qp, params, data)?, Some(received))
            }
        };
        Ok(Connection::new(link, cq, peer, config.sq_size(), received))
    }

    /// Refuses an incoming request, with bytes for the other side to read. A request of our own is
    /// given up.
    ///
    /// # Errors
    /// The failed call; the request is gone either way.
    #[doc(alias = "rpma_conn_req_delete")]
    pub fn reject(self, private_data: PrivateData) -> Result<(), Error> {
        match self.side {
            Side::Active(_) => Ok(()),
            Side::Passive(request) => Ok(request.reject(private_data.as_bytes())?),
        }
    }
}

/// The queue pair and completion queue of a connection over `context`.
fn queues(
    peer: &Peer,
    context: &Context,
    config: &ConnectionConfig,
) -> Result<(QueuePair, CompletionQueue), Error> {
    if context != peer.device().context() {
        return Err(Error::Invalid(format!(
            "the connection goes through device {}, the peer is of device {}",
            context.name(),
            peer.device().name()
        )));
    }
    let needed = config.sq_size().saturating_add(config.rq_size());
    if config.cq_size() < needed {
        return Err(Error::Invalid(format!(
            "a completion queue of {} entries can overrun: send and receive depth need {needed}",
            config.cq_size()
        )));
    }
    let max = context.attributes().max_cqe();
    let room = ring(config.sq_size()).saturating_add(ring(config.rq_size()));
    let mut entries = config.cq_size().max(room.min(max));
    loop {
        let cq = CompletionQueue::new(context, entries)?;
        let built = QueuePair::builder(peer.domain(), QpType::RC, cq.as_verbs(), cq.as_verbs())
            .max_send_wr(config.sq_size())
            .max_recv_wr(config.rq_size())
            .build();
        match built {
            Ok(qp) => return Ok((qp, cq)),
            // The device made the queues even larger, and what it takes must fit here as well.
            Err(error) if error.kind() == verbs::ErrorKind::Limit && error.errno().is_none() => {
                if entries >= max {
                    return Err(error.into());
                }
                entries = entries.saturating_mul(2).min(max);
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// The requests that a queue may take when `asked` are asked for: devices round their rings up, and
/// not all of them say so.
fn ring(asked: u32) -> u32 {
    let slots = asked.saturating_add(1).checked_next_power_of_two();
    slots.unwrap_or(u32::MAX).max(16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_is_counted_as_large_as_a_device_may_make_it() {
        for (asked, slots) in [
            (0, 16),
            (14, 16),
            (15, 16),
            (16, 32),
            (1000, 1024),
            (1024, 2048),
        ] {
            assert_eq!(ring(asked), slots, "{asked}");
        }
        assert_eq!(ring(u32::MAX), u32::MAX);
    }
}
