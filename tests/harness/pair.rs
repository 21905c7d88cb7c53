//! Two ends of a connection in one process.

use std::time::Duration;

use libtest_mimic::Failed;
use rpma::{
    Completion, CompletionQueue, Connection, ConnectionConfig, ConnectionRequest, Device, Endpoint,
    LocalRegion, Peer, PrivateData, RemoteRegion, Usage,
};

use crate::device::device;

/// One second.
pub const SECOND: Duration = Duration::from_secs(1);
/// How long a step may take that does not wait for anything: much, because the machine is shared
/// and may be emulated.
pub const WAIT: Duration = Duration::from_secs(10);

/// A connected pair. Both ends are on the device in use, each with a peer of its own.
#[derive(Debug)]
pub struct Pair {
    /// The end that asked for the connection.
    pub client: Connection,
    /// The end that accepted it.
    pub server: Connection,
    /// The peer of `client`.
    pub client_peer: Peer,
    /// The peer of `server`.
    pub server_peer: Peer,
}

/// A listener on the device in use, at a port of the system's choice, and its peer.
///
/// # Errors
/// The failed call.
pub fn listen() -> Result<(Peer, Endpoint), Failed> {
    let peer = Peer::new(&Device::local(device().ip)?)?;
    let endpoint = Endpoint::listen(&peer, device().addr(0))?;
    Ok((peer, endpoint))
}

impl Pair {
    /// A pair with default settings.
    ///
    /// # Errors
    /// The failed step.
    pub fn new() -> Result<Self, Failed> {
        Self::with(&ConnectionConfig::default())
    }

    /// A pair with the same settings for both ends.
    ///
    /// # Errors
    /// The failed step.
    pub fn with(config: &ConnectionConfig) -> Result<Self, Failed> {
        let (server_peer, endpoint) = listen()?;
        let client_peer = Peer::new(&Device::local(device().ip)?)?;
        Self::between(client_peer, server_peer, &endpoint, config, |_| Ok(()))
    }

    /// A pair between given peers; `prepare` may post receives on the accepting side's request.
    ///
    /// # Errors
    /// The failed step.
    pub fn between(
        client_peer: Peer,
        server_peer: Peer,
        endpoint: &Endpoint,
        config: &ConnectionConfig,
        prepare: impl FnOnce(&ConnectionRequest) -> Result<(), Failed>,
    ) -> Result<Self, Failed> {
        let request = ConnectionRequest::new(&client_peer, endpoint.local_addr(), config)?;
        let client = request.connect(PrivateData::none())?;
        let request = endpoint.next_connection_request(config, WAIT)?;
        prepare(&request)?;
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

/// The next completion, which must be a success.
///
/// # Errors
/// When none comes in time, or it is a failure: its number and status.
pub fn completed(cq: &CompletionQueue) -> Result<Completion, Failed> {
    let completion = cq.next(WAIT)?;
    match completion.result() {
        Ok(_) => Ok(completion),
        Err(error) => Err(format!("operation {} failed: {error}", completion.op_context()).into()),
    }
}

/// A region at either end of a pair, and each as the other end sees it.
#[derive(Debug)]
pub struct Targets {
    /// Memory of the client.
    pub client: LocalRegion,
    /// Memory of the server.
    pub server: LocalRegion,
    /// The server's memory, for the client.
    pub of_server: RemoteRegion,
    /// The client's memory, for the server.
    pub of_client: RemoteRegion,
}

impl Targets {
    /// Regions of `len` bytes for everything.
    ///
    /// # Errors
    /// The failed registration.
    pub fn new(pair: &Pair, len: usize) -> Result<Self, Failed> {
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
