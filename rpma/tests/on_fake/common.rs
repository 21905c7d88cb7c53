//! Two ends of a connection in one process.

use std::net::SocketAddr;
use std::time::Duration;

use cm::verbs::sys::fake::control;
use rpma::{
    Completion, CompletionQueue, Connection, ConnectionConfig, ConnectionRequest, Device, Endpoint,
    Error, LocalRegion, Peer, PrivateData, RemoteRegion, Usage,
};

/// Nothing here waits for anything outside of the process.
pub(crate) const WAIT: Duration = control::within(5);

/// The address of the fake RoCE device.
pub(crate) fn addr(port: u16) -> SocketAddr {
    SocketAddr::new([192, 0, 2, 1].into(), port)
}

pub(crate) fn peer() -> Result<Peer, Error> {
    Peer::new(&Device::local(addr(0).ip())?)
}

/// A client that has asked `endpoint` for a connection.
pub(crate) fn begin(
    peer: &Peer,
    endpoint: &Endpoint,
    config: &ConnectionConfig,
) -> Result<Connection, Error> {
    ConnectionRequest::new(peer, endpoint.local_addr(), config)?.connect(PrivateData::none())
}

/// A connected pair; each end has a peer of its own.
pub(crate) struct Pair {
    pub(crate) client: Connection,
    pub(crate) server: Connection,
    pub(crate) client_peer: Peer,
    pub(crate) server_peer: Peer,
}

impl Pair {
    pub(crate) fn new() -> Result<Self, Error> {
        Self::with(&ConnectionConfig::default())
    }

    pub(crate) fn with(config: &ConnectionConfig) -> Result<Self, Error> {
        Self::between(peer()?, peer()?, config, config)
    }

    /// A pair between given peers; each end has settings of its own.
    pub(crate) fn between(
        client_peer: Peer,
        server_peer: Peer,
        of_client: &ConnectionConfig,
        of_server: &ConnectionConfig,
    ) -> Result<Self, Error> {
        let endpoint = Endpoint::listen(&server_peer, addr(0))?;
        let client = begin(&client_peer, &endpoint, of_client)?;
        let request = endpoint.next_connection_request(of_server, WAIT)?;
        let server = request.connect(PrivateData::none())?;
        client.wait_established(WAIT)?;
        server.wait_established(WAIT)?;
        Ok(Self {
            client,
            server,
            client_peer,
            server_peer,
        })
    }
}

/// A region at either end, and each as the other end sees it.
pub(crate) struct Regions {
    pub(crate) client: LocalRegion,
    pub(crate) server: LocalRegion,
    pub(crate) of_server: RemoteRegion,
    pub(crate) of_client: RemoteRegion,
}

impl Regions {
    pub(crate) fn new(pair: &Pair, len: usize) -> Result<Self, Error> {
        let client = LocalRegion::alloc(&pair.client_peer, len, Usage::all())?;
        let server = LocalRegion::alloc(&pair.server_peer, len, Usage::all())?;
        Ok(Self {
            of_server: RemoteRegion::from_descriptor(&server.descriptor())?,
            of_client: RemoteRegion::from_descriptor(&client.descriptor())?,
            client,
            server,
        })
    }
}

/// The next completion, which must be a success.
pub(crate) fn completed(cq: &CompletionQueue) -> Completion {
    let completion = cq.next(WAIT).expect("a completion");
    if let Err(error) = completion.result() {
        panic!("operation {}: {error}", completion.op_context());
    }
    completion
}
