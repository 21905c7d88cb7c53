//! Listening for connections.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use cm::{Deadline, ListenOptions, Listener, OwnChannel, Routed};

use crate::connection::{ConnectionConfig, ConnectionRequest};
use crate::error::Error;
use crate::peer::Peer;

/// A port that others connect to. Dropping it rejects requests that wait; connections live on.
#[doc(alias = "rpma_ep")]
#[doc(alias = "rpma_ep_get_fd")]
#[doc(alias = "rpma_ep_shutdown")]
#[derive(Debug)]
pub struct Endpoint {
    listener: Source,
    peer: Peer,
}

#[derive(Debug)]
enum Source {
    Own(Listener<OwnChannel>),
    Routed(Listener<Routed>),
}

/// Does the same with either kind of listener.
macro_rules! either {
    ($self:ident, $listener:ident => $what:expr) => {
        match &$self.listener {
            Source::Own($listener) => $what,
            Source::Routed($listener) => $what,
        }
    };
}

impl Endpoint {
    /// Listens at `addr`, an address of the peer's device. Port 0 lets the system choose:
    /// [`local_addr`](Self::local_addr) tells.
    ///
    /// # Errors
    /// [`ErrorKind::NoSuchAddress`](crate::ErrorKind::NoSuchAddress),
    /// [`AddressInUse`](crate::ErrorKind::AddressInUse),
    /// [`PermissionDenied`](crate::ErrorKind::PermissionDenied) for a port below 1024.
    #[doc(alias = "rpma_ep_listen")]
    pub fn listen(peer: &Peer, addr: SocketAddr) -> Result<Self, Error> {
        Self::listen_with(peer, addr, &ListenOptions::default())
    }

    /// Listens at `addr` with options, such as the backlog.
    ///
    /// # Errors
    /// As [`listen`](Self::listen).
    pub fn listen_with(
        peer: &Peer,
        addr: SocketAddr,
        options: &ListenOptions,
    ) -> Result<Self, Error> {
        Ok(Self {
            listener: match peer.dispatcher() {
                None => Source::Own(Listener::bind(addr, options)?),
                Some(dispatcher) => Source::Routed(dispatcher.listen(addr, options)?),
            },
            peer: peer.clone(),
        })
    }

    /// The address it listens at.
    pub fn local_addr(&self) -> SocketAddr {
        either!(self, listener => listener.local_addr())
    }

    /// Waits for a request, and makes the queues that `config` asks for. A request that came in
    /// over another device than the peer's is rejected and not waited out.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`](crate::ErrorKind::TimedOut) after `timeout`. When the queues cannot
    /// be made, the request is rejected and the reason returned; the endpoint goes on.
    #[doc(alias = "rpma_ep_next_conn_req")]
    pub fn next_connection_request(
        &self,
        config: &ConnectionConfig,
        timeout: Duration,
    ) -> Result<ConnectionRequest, Error> {
        let deadline = Deadline::after(timeout);
        either!(self, listener => {
            ConnectionRequest::incoming(&self.peer, listener.next_request(deadline)?, config)
        })
    }

    /// The next request if there is one; never blocks.
    ///
    /// # Errors
    /// As [`next_connection_request`](Self::next_connection_request), without the timeout.
    pub fn try_next_connection_request(
        &self,
        config: &ConnectionConfig,
    ) -> Result<Option<ConnectionRequest>, Error> {
        either!(self, listener => match listener.try_next_request()? {
            None => Ok(None),
            Some(request) => ConnectionRequest::incoming(&self.peer, request, config).map(Some),
        })
    }

    /// The peer it listens for.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }
}

impl AsFd for Endpoint {
    fn as_fd(&self) -> BorrowedFd<'_> {
        either!(self, listener => listener.as_fd())
    }
}
