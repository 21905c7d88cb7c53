//! Two peers and a listener, to try a connection again and again.

use std::time::{Duration, Instant};

use harness::{Failed, Outcome, Pair, Targets, WAIT, completed, device, ensure, ensure_eq, listen};
use rpma::{
    ConnectionConfig, ConnectionRequest, Device, Endpoint, Error, ErrorKind, Peer, PrivateData,
    Signal,
};

/// How long the other end may wait for the news that this one has failed.
pub(super) const NEWS: Duration = Duration::from_secs(5);

/// The peers of both ends, and a listener.
pub(super) struct Stage {
    pub(super) client_peer: Peer,
    pub(super) server_peer: Peer,
    pub(super) endpoint: Endpoint,
    pub(super) config: ConnectionConfig,
}

impl Stage {
    pub(super) fn new() -> Result<Self, Failed> {
        let (server_peer, endpoint) = listen()?;
        Ok(Self {
            client_peer: Peer::new(&Device::local(device().ip)?)?,
            server_peer,
            endpoint,
            config: ConnectionConfig::default(),
        })
    }

    /// Connects both ends, and gives the error of the end that failed by itself. The other end must
    /// learn of it in time.
    pub(super) fn attempt(&self) -> Result<Option<Error>, Failed> {
        let to = self.endpoint.local_addr();
        let client = ConnectionRequest::new(&self.client_peer, to, &self.config)
            .and_then(|request| request.connect(PrivateData::none()));
        let client = match client {
            Ok(client) => client,
            Err(error) => return Ok(Some(error)),
        };
        let server = self
            .endpoint
            .next_connection_request(&self.config, WAIT)
            .and_then(|request| request.connect(PrivateData::none()));
        let start = Instant::now();
        let server = match server {
            Ok(server) => server,
            Err(error) => {
                let told = client
                    .wait_established(NEWS)
                    .err()
                    .ok_or("connected to nobody")?;
                ensure_eq!(
                    told.kind(),
                    ErrorKind::Rejected,
                    "the server failed with {error:?}, the client after {:?} with {told}",
                    start.elapsed()
                );
                return Ok(Some(error));
            }
        };
        if let Err(error) = client.wait_established(NEWS) {
            drop(client);
            // The handshake may have gone through before the client failed; then comes its end.
            let told = server
                .wait_established(NEWS)
                .and_then(|()| server.next_event(NEWS).map(drop));
            ensure!(
                !matches!(&told, Err(told) if told.kind() == ErrorKind::TimedOut),
                "the client failed with {error:?}, the server was not told"
            );
            return Ok(Some(error));
        }
        server.wait_established(NEWS)?;
        Ok(None)
    }

    /// A connection that carries data, to show that all is well.
    pub(super) fn works(&self) -> Outcome {
        let pair = Pair::between(
            self.client_peer.clone(),
            self.server_peer.clone(),
            &self.endpoint,
            &self.config,
            |_| Ok(()),
        )?;
        let targets = Targets::new(&pair, 4096)?;
        let (to, from) = (targets.of_server.as_span(), targets.client.as_span());
        pair.client.write(to, from, Signal::Always, 1)?;
        completed(pair.client.cq())?;
        Ok(())
    }
}
