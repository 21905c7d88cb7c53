//! A connection on the fake device under a provider that does next to nothing.

use std::ops::Deref;
use std::time::Duration;

use rpma::{
    Connection, ConnectionConfig, ConnectionRequest, Device, Endpoint, Error, LocalRegion, Peer,
    PrivateData, RemoteRegion, RemoteSpan, Usage,
};
use verbs::{RemoteAddr, RemoteKey};

use crate::harness::provider::{LENGTH, install, set_ready};
use crate::harness::raw::{PLACES, Raw};

/// More operations than are counted.
pub(crate) const SQ_SIZE: u32 = 8192;
/// Nothing waits for anything outside of the process.
const WAIT: Duration = Duration::from_secs(60);

/// Two ends, and what an operation needs.
pub(crate) struct Rig {
    raw: Raw,
    pub(crate) client: Connection,
    pub(crate) region: LocalRegion,
    /// Of one message.
    pub(crate) word: LocalRegion,
    /// The first place of the other side's region.
    pub(crate) target: RemoteSpan,
    pub(crate) of_server: RemoteRegion,
    pub(crate) server_region: LocalRegion,
    _server: Connection,
}

impl Deref for Rig {
    type Target = Raw;

    #[inline(always)]
    fn deref(&self) -> &Raw {
        &self.raw
    }
}

impl Rig {
    pub(crate) fn new() -> Result<Self, Error> {
        let device = Device::local([192, 0, 2, 1].into())?;
        install(device.context());
        set_ready(0);
        let (client_peer, server_peer) = (Peer::new(&device)?, Peer::new(&device)?);
        let mut config = ConnectionConfig::default();
        // No run of operations without a completion comes to its end while they are counted.
        config.set_sq_size(SQ_SIZE).set_rq_size(16);
        let endpoint = Endpoint::listen(&server_peer, ([192, 0, 2, 1], 0).into())?;
        let request = ConnectionRequest::new(&client_peer, endpoint.local_addr(), &config)?;
        let client = request.connect(PrivateData::none())?;
        let request = endpoint.next_connection_request(&config, WAIT)?;
        let server = request.connect(PrivateData::none())?;
        client.wait_established(WAIT)?;
        server.wait_established(WAIT)?;
        let len = usize::try_from(PLACES * u64::from(LENGTH)).unwrap_or(usize::MAX);
        let region = LocalRegion::alloc(&client_peer, len, Usage::all())?;
        let server_region = LocalRegion::alloc(&server_peer, len, Usage::all())?;
        let descriptor = server_region.descriptor();
        let of_server = RemoteRegion::from_descriptor(&descriptor)?;
        let key = [
            descriptor[16],
            descriptor[17],
            descriptor[18],
            descriptor[19],
        ];
        Ok(Self {
            raw: Raw {
                qp: client.queue_pair().as_raw(),
                cq: client.cq().as_verbs().as_raw(),
                // The provider does not look at it.
                lkey: 1,
                remote: RemoteAddr {
                    addr: server_region.as_ptr() as u64,
                    rkey: RemoteKey(u32::from_le_bytes(key)),
                },
                start: region.as_ptr() as u64,
            },
            target: of_server.span(..u64::from(LENGTH))?,
            word: LocalRegion::alloc(&client_peer, LENGTH as usize, Usage::all())?,
            client,
            region,
            of_server,
            server_region,
            _server: server,
        })
    }
}
