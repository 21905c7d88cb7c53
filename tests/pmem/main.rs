//! Persistent memory: a device of device DAX, as the target of writes that are to survive a loss of power.
//!
//! `RPMA_TEST_PMEM` names the device. The role `writer` reports numbered records when they are persistent, until the power of the
//! machine is cut; `RPMA_TEST_POWER_WAS_CUT` then says what it had reported.

mod records;
mod regions;

use std::fs::File;
use std::process::ExitCode;

use harness::{Failed, Pair, WAIT};
use rpma::{ConnectionConfig, FlushMethod, LocalRegion, Peer, PeerConfig, Usage};

/// Bytes of the device that are used.
const USED: u64 = 48 << 20;

fn main() -> ExitCode {
    let tests = match std::env::var("RPMA_TEST_POWER_WAS_CUT") {
        Ok(_) => records::tests(),
        Err(_) => regions::tests(),
    };
    harness::run(tests, &[("writer", records::writer)])
}

/// The device.
fn device() -> Result<File, Failed> {
    let path = std::env::var("RPMA_TEST_PMEM").map_err(
        |_| "RPMA_TEST_PMEM does not name a device (`cargo xtask test --full` makes one)",
    )?;
    let opened = File::options().read(true).write(true).open(&path);
    Ok(opened.map_err(|error| format!("{path}: {error}"))?)
}

/// All of the device that is used, as the target of everything.
fn target(peer: &Peer) -> Result<LocalRegion, Failed> {
    let usage = Usage::WRITE_DST | Usage::READ_SRC | Usage::FLUSH;
    Ok(LocalRegion::map_file(peer, &device()?, ..USED, usage)?)
}

/// A pair that is to flush by the method.
fn pair_with(method: FlushMethod) -> Result<Pair, Failed> {
    let mut config = ConnectionConfig::default();
    config.set_native_operations(method == FlushMethod::Native);
    Pair::with(&config)
}

/// What a node says whose memory is persistent as soon as the network has written it.
fn direct_write() -> PeerConfig {
    let mut config = PeerConfig::default();
    config.set_direct_write_to_pmem(true);
    config
}

/// A client of the general purpose server persistency method, whose server runs in a thread until the client says that it ends.
fn gpspm<T>(
    work: impl FnOnce(&mut rpma::gpspm::Client, &rpma::RemoteRegion, &Peer) -> Result<T, Failed>,
) -> Result<T, Failed> {
    use rpma::gpspm::{Announcement, Client, Served, Server};
    let (peer, endpoint) = harness::listen()?;
    let region = target(&peer)?;
    let mut config = ConnectionConfig::default();
    config.set_rq_size(1).set_rcq_size(1);
    let address = endpoint.local_addr();
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| -> Result<(), String> {
            let text = |error: &dyn std::fmt::Display| error.to_string();
            let announced = Announcement::of(&region, 0, None).map_err(|e| text(&e))?;
            let request = endpoint.next_connection_request(&config, WAIT);
            let request = request.map_err(|e| text(&e))?;
            let mut server =
                Server::accept(region.peer(), request, announced, USED).map_err(|e| text(&e))?;
            let established = server.connection().wait_established(WAIT);
            established.map_err(|e| text(&e))?;
            while let Served::Persisted(_) = server
                .answer(WAIT, |range| region.persist(range))
                .map_err(|e| text(&e))?
            {}
            Ok(())
        });
        let client_peer = Peer::new(&rpma::Device::local(harness::device().ip)?)?;
        let request = rpma::ConnectionRequest::new(&client_peer, address, &config)?;
        let connection = request.connect(rpma::PrivateData::none())?;
        connection.wait_established(WAIT)?;
        let of_server = Announcement::decode(connection.private_data())?.region;
        let mut client = Client::new(connection)?;
        let done = work(&mut client, &of_server, &client_peer)?;
        client.end(WAIT)?;
        serving.join().map_err(|_| "the server panicked")??;
        Ok(done)
    })
}
