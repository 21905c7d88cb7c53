//! What librpma leaves to one thread at a time, done by many threads at the same time.

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use harness::{Failed, Need, Outcome, Test, WAIT, device, ensure, ensure_eq, listen, rounds, test};
use rpma::{
    ConnectionConfig, ConnectionRequest, Device, Endpoint, Error, ErrorKind, LocalRegion, Peer,
    PeerConfig, PrivateData, RemoteRegion, SharedReceiveQueue, SrqConfig, Usage,
};

pub(crate) fn tests() -> Vec<Test> {
    vec![test(
        "threads_may_make_use_and_drop_every_kind_of_object_at_once",
        &[Need::Device],
        every_kind,
    )]
}

const THREADS: usize = 8;

/// What the threads share.
struct Shared {
    peer: Peer,
    endpoint: Endpoint,
    region: LocalRegion,
    config: ConnectionConfig,
    srq: SharedReceiveQueue,
}

/// One thing that a thread does, the `n`-th of its kind.
type Work = fn(&Shared, usize) -> Result<(), Failed>;

const WORKS: [(&str, Work); 9] = [
    ("devices", devices),
    ("peers", |shared, _| {
        Peer::new(shared.peer.device())?.close()?;
        Ok(())
    }),
    ("endpoints", |shared, _| {
        let endpoint = Endpoint::listen(&shared.peer, device().addr(0))?;
        let error = endpoint
            .next_connection_request(&shared.config, Duration::ZERO)
            .err();
        let error = error.ok_or("a request from nobody")?;
        ensure_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        Ok(())
    }),
    ("regions", regions),
    ("shared receive queues", |shared, n| {
        let mut sizes = SrqConfig::default();
        sizes
            .set_rcq_size(if n.is_multiple_of(2) { 0 } else { 8 })
            .set_rq_size(8);
        let srq = SharedReceiveQueue::new(&shared.peer, &sizes)?;
        srq.recv(shared.region.as_span(), 1)?;
        ensure_eq!(srq.rcq().is_none(), n.is_multiple_of(2), "its queue");
        srq.close()?;
        Ok(())
    }),
    ("receives in one shared queue", |shared, n| {
        match shared.srq.recv(shared.region.as_span(), n as u64) {
            Err(error) if error.kind() != ErrorKind::QueueFull => Err(error.into()),
            _ => Ok(()),
        }
    }),
    ("requests that are dropped", |shared, n| {
        let to = shared.endpoint.local_addr();
        let request = ConnectionRequest::new(&shared.peer, to, &shared.config)?;
        request.recv(shared.region.as_span(), n as u64)?;
        Ok(())
    }),
    ("connections that nobody takes", |shared, _| {
        let to = shared.endpoint.local_addr();
        let request = ConnectionRequest::new(&shared.peer, to, &shared.config)?;
        let connection = request.connect(PrivateData::none())?;
        ensure!(connection.private_data().is_empty(), "an answer already");
        drop(connection);
        // Gone before it was looked at, or refused here.
        match shared
            .endpoint
            .next_connection_request(&shared.config, WAIT)
        {
            Ok(request) => rejected(request.reject(PrivateData::none())),
            Err(error) => rejected(Err(error)),
        }
    }),
    ("configurations", |shared, n| {
        let mut config = shared.config.clone();
        let size = u32::try_from(n % 100 + 1)?;
        config.set_sq_size(size).set_srq(Some(&shared.srq));
        ensure_eq!(config.sq_size(), size, "a copy's own");
        ensure_eq!(shared.config.sq_size(), 10, "that of all");
        let mut peer_config = PeerConfig::default();
        peer_config.set_direct_write_to_pmem(n.is_multiple_of(2));
        let again = PeerConfig::from_descriptor(&peer_config.descriptor())?;
        ensure_eq!(again.direct_write_to_pmem(), n.is_multiple_of(2), "word");
        Ok(())
    }),
];

/// A client that is gone already is no fault.
fn rejected(result: Result<(), Error>) -> Result<(), Failed> {
    match result {
        Err(error) if error.kind() != ErrorKind::TimedOut => {
            let gone = matches!(
                error.kind(),
                ErrorKind::Disconnected | ErrorKind::Unreachable | ErrorKind::Provider
            );
            ensure!(gone, "{error}");
            Ok(())
        }
        other => Ok(other?),
    }
}

fn devices(shared: &Shared, _: usize) -> Result<(), Failed> {
    let local = Device::local(device().ip)?;
    ensure_eq!(local, *shared.peer.device(), "the device of the address");
    let remote = Device::remote(device().addr(7), WAIT)?;
    ensure_eq!(remote, local, "the device that leads to the address");
    local.is_odp_capable()?;
    let names = Device::list()?;
    ensure!(names.contains(&local), "{names:?} without {local:?}");
    Ok(())
}

fn regions(shared: &Shared, n: usize) -> Result<(), Failed> {
    let region = LocalRegion::alloc(&shared.peer, 4096 * (n % 3 + 1), Usage::all())?;
    let remote = RemoteRegion::from_descriptor(&region.descriptor())?;
    ensure_eq!(remote.len(), region.len() as u64, "its length");
    let of_all = RemoteRegion::from_descriptor(&shared.region.descriptor())?;
    ensure_eq!(of_all.flush_types(), Usage::FLUSH, "of the region of all");
    region.close()?;
    Ok(())
}

fn every_kind() -> Outcome {
    let (peer, endpoint) = listen()?;
    let shared = Shared {
        region: LocalRegion::alloc(&peer, 64, Usage::all())?,
        srq: SharedReceiveQueue::new(&peer, &SrqConfig::default())?,
        config: ConnectionConfig::default(),
        endpoint,
        peer,
    };
    let each = rounds(1, 40) * WORKS.len();
    let start = Barrier::new(THREADS);
    let results: Vec<Result<(), String>> = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|number| {
                let (shared, start) = (&shared, &start);
                scope.spawn(move || {
                    start.wait();
                    for n in 0..each {
                        // Each begins with another, so that all kinds are made at once.
                        let (what, work) = WORKS[(number + n) % WORKS.len()];
                        work(shared, n).map_err(|failed| {
                            let text = failed.message().unwrap_or_default();
                            format!("thread {number}, {what}: {text}")
                        })?;
                    }
                    Ok(())
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|_| Err("a thread panicked".to_owned()))
            })
            .collect()
    });
    results.into_iter().collect::<Result<(), String>>()?;
    Ok(())
}
