//! Faults in the middle of each operation: each ends with an error that says why, in time, and nothing half done is reported as done.

mod disconnect;
mod peers;
mod removal;
mod traffic;
mod wire;

use std::time::{Duration, Instant};

use harness::{End, Failed, Outcome, Role, SECOND, Test, WAIT, ensure, phase};
use rpma::{
    ConnectionConfig, ConnectionRequest, Device, Endpoint, Peer, PrivateData, RemoteRegion,
};

use traffic::{Active, Operation, Passive};

pub(super) fn tests() -> Vec<Test> {
    [
        wire::tests(),
        peers::tests(),
        removal::tests(),
        disconnect::tests(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

pub(super) fn roles() -> Vec<Role> {
    [wire::ROLES, peers::ROLES, removal::ROLES, disconnect::ROLES].concat()
}

/// By when an operation has ended, with the default settings.
const LIMIT: Duration = Duration::from_secs(15);

/// Default settings, from end A.
fn from_a() -> ConnectionConfig {
    let mut config = ConnectionConfig::default();
    config.set_source_address(Some(End::A.addr(0)));
    config
}

/// The peers of both ends of the wire, and a listener at end B.
fn ends() -> Result<(Peer, Peer, Endpoint), Failed> {
    let [a, b] =
        End::BOTH.map(|end| -> Result<Peer, Failed> { Ok(Peer::new(&Device::local(end.ip())?)?) });
    let (a, b) = (a?, b?);
    let endpoint = Endpoint::listen(&b, End::B.addr(0))?;
    Ok((a, b, endpoint))
}

/// A connection over the wire for each operation, and all of them under way.
fn all_operations() -> Result<Vec<(Active, Passive)>, Failed> {
    let (a, b, endpoint) = ends()?;
    let mut all = Vec::new();
    for operation in Operation::ALL {
        let request = ConnectionRequest::new(&a, endpoint.local_addr(), &from_a())?;
        let active = request.connect(PrivateData::none())?;
        let request = endpoint.next_connection_request(&ConnectionConfig::default(), WAIT)?;
        let passive = request.connect(PrivateData::none())?;
        active.wait_established(WAIT)?;
        passive.wait_established(WAIT)?;
        let memory = traffic::memory(&b)?;
        let theirs = RemoteRegion::from_descriptor(&memory.descriptor())?;
        all.push((
            Active::new(operation, active, theirs)?,
            Passive::new(operation, passive, memory),
        ));
    }
    phase("operations before the fault");
    let start = Instant::now();
    while all.iter().any(|(active, _)| active.done() < 2) {
        step(&mut all)?;
        ensure!(start.elapsed() < 3 * WAIT, "too slow: {all:?}");
    }
    Ok(all)
}

fn step(all: &mut [(Active, Passive)]) -> Outcome {
    for (active, passive) in all {
        active.step()?;
        passive.step()?;
    }
    Ok(())
}

/// Drops it, which must not take long.
fn dropped_within(limit: Duration, what: &str, handle: impl Sized) -> Outcome {
    phase(format!("dropping {what}"));
    let start = Instant::now();
    drop(handle);
    let took = start.elapsed();
    ensure!(took < limit, "dropping {what} took {took:?}");
    Ok(())
}

/// Long enough for a step that waits for nothing.
const SOON: Duration = SECOND.saturating_mul(3);
