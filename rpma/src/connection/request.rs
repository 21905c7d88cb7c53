//! A connection that is about to be made, by either side.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use cm::verbs::{Context, QueuePair};
use cm::{ConnParams, Deadline, EventSource, Resolving};

use super::Connection;
use super::config::ConnectionConfig;
use super::link::Link;
use super::post::{Destination, Limits, Posting, post_recv};
use super::queue_pair::Made;
use super::queues::{self, Queues};
use crate::cq::CompletionQueue;
use crate::error::Error;
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
    made: Made,
    limits: Limits,
    queues: Queues,
    attempt: Box<dyn Attempt>,
    peer: Peer,
    config: ConnectionConfig,
}

/// What either side's connection manager has before there is a connection.
trait Attempt: fmt::Debug + Send {
    fn context(&self) -> &Context;

    fn init_qp(&self, qp: &QueuePair) -> Result<(), cm::Error>;

    /// The private data of an incoming request, `None` of our own.
    fn received(&self) -> Option<&[u8]>;

    fn peer_addr(&self) -> SocketAddr;

    fn local_addr(&self) -> Option<SocketAddr>;

    fn connect(
        self: Box<Self>,
        qp: Arc<QueuePair>,
        params: &ConnParams,
        private_data: &[u8],
    ) -> Result<Link, cm::Error>;

    fn reject(self: Box<Self>, private_data: &[u8]) -> Result<(), cm::Error>;
}

impl<S: EventSource> Attempt for cm::Resolved<S>
where
    Link: From<cm::Connection<S>>,
{
    fn context(&self) -> &Context {
        self.context()
    }

    fn init_qp(&self, qp: &QueuePair) -> Result<(), cm::Error> {
        self.init_qp(qp)
    }

    fn received(&self) -> Option<&[u8]> {
        None
    }

    fn peer_addr(&self) -> SocketAddr {
        self.peer_addr()
    }

    fn local_addr(&self) -> Option<SocketAddr> {
        self.local_addr()
    }

    fn connect(
        self: Box<Self>,
        qp: Arc<QueuePair>,
        params: &ConnParams,
        private_data: &[u8],
    ) -> Result<Link, cm::Error> {
        Ok((*self).connect(qp, params, private_data)?.into())
    }

    fn reject(self: Box<Self>, _private_data: &[u8]) -> Result<(), cm::Error> {
        Ok(())
    }
}

impl<S: EventSource> Attempt for cm::Request<S>
where
    Link: From<cm::Connection<S>>,
{
    fn context(&self) -> &Context {
        self.context()
    }

    fn init_qp(&self, qp: &QueuePair) -> Result<(), cm::Error> {
        self.init_qp(qp)
    }

    fn received(&self) -> Option<&[u8]> {
        Some(self.private_data())
    }

    fn peer_addr(&self) -> SocketAddr {
        self.peer_addr()
    }

    fn local_addr(&self) -> Option<SocketAddr> {
        self.local_addr()
    }

    fn connect(
        self: Box<Self>,
        qp: Arc<QueuePair>,
        params: &ConnParams,
        private_data: &[u8],
    ) -> Result<Link, cm::Error> {
        Ok(self.accept(qp, params, private_data)?.into())
    }

    fn reject(self: Box<Self>, private_data: &[u8]) -> Result<(), cm::Error> {
        (*self).reject(private_data)
    }
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
        match peer.dispatcher() {
            None => Self::outgoing(
                peer,
                Resolving::start(addr, &config.connect, deadline)?,
                config,
            ),
            Some(dispatcher) => Self::outgoing(
                peer,
                dispatcher.resolve(addr, &config.connect, deadline)?,
                config,
            ),
        }
    }

    fn outgoing<S: EventSource + 'static>(
        peer: &Peer,
        resolving: Resolving<S>,
        config: &ConnectionConfig,
    ) -> Result<Self, Error>
    where
        Link: From<cm::Connection<S>>,
    {
        Self::prepare(peer, Box::new(resolving.wait()?), config)
    }

    /// Makes the queues for a request that came in. On failure the request is rejected.
    pub(crate) fn incoming<S: EventSource + 'static>(
        peer: &Peer,
        request: cm::Request<S>,
        config: &ConnectionConfig,
    ) -> Result<Self, Error>
    where
        Link: From<cm::Connection<S>>,
    {
        Self::prepare(peer, Box::new(request), config)
    }

    fn prepare(
        peer: &Peer,
        attempt: Box<dyn Attempt>,
        config: &ConnectionConfig,
    ) -> Result<Self, Error> {
        let (made, queues) = queues::make(peer, attempt.context(), config)?;
        attempt.init_qp(&made.qp)?;
        Ok(Self {
            limits: Limits::of(peer, &made.qp)?,
            made,
            queues,
            attempt,
            peer: peer.clone(),
            config: config.clone(),
        })
    }

    /// Posts a receive for one message into `dst`, before the other side can send.
    ///
    /// # Errors
    /// [`Error::WrongPeer`], [`Error::UsageForbids`] without [`Usage::RECV`](crate::Usage::RECV),
    /// [`Error::QueueFull`], and [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument)
    /// for a connection with a shared receive queue, which takes receives from there.
    #[doc(alias = "rpma_conn_req_recv")]
    pub fn recv<'a>(&self, dst: impl Destination<'a>, op_context: u64) -> Result<(), Error> {
        post_recv(&self.made.qp, &self.limits, dst, op_context)
    }

    /// What came with an incoming request: on InfiniBand and RoCE always 56 bytes, padded with
    /// zeros. Empty for a request of our own.
    #[doc(alias = "rpma_conn_req_get_private_data")]
    pub fn private_data(&self) -> &[u8] {
        self.attempt.received().unwrap_or(&[])
    }

    /// The other side's address.
    pub fn peer_addr(&self) -> SocketAddr {
        self.attempt.peer_addr()
    }

    /// This side's address.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.attempt.local_addr()
    }

    /// Where the completions of its receives, and later of everything, will come, unless there is a
    /// queue for [receives alone](Self::rcq).
    pub fn cq(&self) -> &CompletionQueue {
        &self.queues.cq
    }

    /// Where the completions of its receives will come, if it has a queue for those alone.
    pub fn rcq(&self) -> Option<&CompletionQueue> {
        self.queues.rcq.as_ref()
    }

    /// The number of its queue pair, by which completions of shared queues tell connections apart.
    pub fn qp_num(&self) -> u32 {
        self.made.qp.number()
    }

    /// Connects, or accepts. Returns at once: [`Connection::wait_established`] or
    /// [`Connection::next_event`] tells when data can flow.
    ///
    /// # Errors
    /// The failed step; an incoming request is then rejected.
    #[doc(alias = "rpma_conn_req_connect")]
    pub fn connect(self, private_data: PrivateData) -> Result<Connection, Error> {
        let Self {
            made: Made { qp, native },
            limits,
            queues,
            attempt,
            peer,
            config,
        } = self;
        let received = attempt.received().map(<[u8]>::to_vec);
        let link = attempt.connect(qp, &config.params, private_data.as_bytes())?;
        let posting = Posting::new(limits, config.sq_size(), native);
        Ok(Connection::new(link, queues, peer, posting, received))
    }

    /// Refuses an incoming request, with bytes for the other side to read. A request of our own is
    /// given up.
    ///
    /// # Errors
    /// The failed call; the request is gone either way.
    #[doc(alias = "rpma_conn_req_delete")]
    pub fn reject(self, private_data: PrivateData) -> Result<(), Error> {
        let Self { made, attempt, .. } = self;
        // As when it is dropped: before the id.
        drop(made);
        Ok(attempt.reject(private_data.as_bytes())?)
    }
}
