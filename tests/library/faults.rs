//! Calls of the C libraries made to fail one after the other, by a preloaded library that also
//! counts events got and acknowledged.

use std::ffi::{CStr, CString};
use std::time::{Duration, Instant};

use harness::{
    Baseline, Child, Failed, Need, Outcome, Pair, Role, Targets, Test, WAIT, c_library, completed,
    device, ensure, ensure_eq, listen, phase, role_argument, rounds, test,
};
use rpma::cm::EventKind;
use rpma::{
    ConnectionConfig, ConnectionRequest, Device, Endpoint, Error, ErrorKind, LocalRegion, Peer,
    PrivateData, Signal, Usage,
};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test(
            "a_failing_call_while_connecting_leaves_nothing_and_hangs_nobody",
            &[Need::Device, Need::C],
            failing_calls,
        )
        .limit(240),
        test(
            "a_failing_rejection_still_ends_the_clients_wait",
            &[Need::Device, Need::C],
            || child("failing_rejection", ""),
        ),
        test(
            "a_failing_registration_or_domain_leaves_nothing",
            &[Need::Device, Need::C],
            || child("failing_registration", ""),
        ),
        test(
            "every_event_is_acknowledged_once_whatever_becomes_of_the_connection",
            &[Need::Device, Need::C],
            || child("refusals", ""),
        ),
        test(
            "an_event_that_ends_a_handshake_becomes_the_error_of_its_kind",
            &[Need::Device, Need::C],
            || child("events", ""),
        ),
    ]
}

pub(crate) const ROLES: &[Role] = &[
    ("failing_call", failing_call),
    ("failing_rejection", failing_rejection),
    ("failing_registration", failing_registration),
    ("refusals", refusals),
    ("events", events),
];

/// Runs a role with the library preloaded.
fn child(role: &str, argument: &str) -> Outcome {
    let library = c_library("fault");
    let child = Child::role(role, argument, &[("LD_PRELOAD", library.as_os_str())])?;
    child.finish(Duration::from_secs(50))?.success()?;
    Ok(())
}

/// The calls on the way to a connection of two ends in one process, with how many of each there
/// are: each of them fails in turn.
const CALLS: [(&str, u32, i32); 11] = [
    ("rdma_create_event_channel", 2, libc::EMFILE),
    ("rdma_create_id", 1, libc::ENOMEM),
    ("ibv_create_comp_channel", 2, libc::EMFILE),
    ("ibv_create_cq", 2, libc::ENOMEM),
    ("ibv_create_qp", 2, libc::ENOMEM),
    ("ibv_modify_qp", 7, libc::EINVAL),
    ("rdma_init_qp_attr", 7, libc::EINVAL),
    ("rdma_connect", 1, libc::EINVAL),
    ("rdma_migrate_id", 1, libc::ENOMEM),
    ("rdma_accept", 1, libc::EINVAL),
    ("rdma_establish", 1, libc::EINVAL),
];

fn failing_calls() -> Outcome {
    for (name, count, errno) in CALLS {
        phase(name);
        child("failing_call", &format!("{name} {count} {errno}"))
            .map_err(|failed| format!("{name}: {}", failed.message().unwrap_or_default()))?;
    }
    Ok(())
}

type Arm = unsafe extern "C" fn(*const libc::c_char, u32, i32);
type Hits = unsafe extern "C" fn() -> u32;
type Rewrite = unsafe extern "C" fn(i32, i32, i32);
type GetCounts = unsafe extern "C" fn(*mut Counts);

/// What the preloaded library offers.
struct Fault {
    arm: Arm,
    hits: Hits,
    rewrite: Rewrite,
    counts: GetCounts,
}

/// `struct counts` of `libfault.c`.
#[repr(C)]
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Counts {
    cm_got: libc::c_ulong,
    cm_acked: libc::c_ulong,
    cq_got: libc::c_ulong,
    cq_acked: libc::c_ulong,
    busy: libc::c_ulong,
}

impl Fault {
    fn find() -> Result<Self, Failed> {
        let symbol = |name: &CStr| {
            // SAFETY: the name ends in NUL.
            let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
            if found.is_null() {
                return Err(Failed::from(format!(
                    "the library is not preloaded: no {name:?}"
                )));
            }
            Ok(found)
        };
        let (arm, hits) = (symbol(c"rpma_fault_arm")?, symbol(c"rpma_fault_hits")?);
        let (rewrite, counts) = (
            symbol(c"rpma_fault_rewrite")?,
            symbol(c"rpma_fault_counts")?,
        );
        Ok(Self {
            // SAFETY: the C function has this signature.
            arm: unsafe { std::mem::transmute::<*mut libc::c_void, Arm>(arm) },
            // SAFETY: as above.
            hits: unsafe { std::mem::transmute::<*mut libc::c_void, Hits>(hits) },
            // SAFETY: as above.
            rewrite: unsafe { std::mem::transmute::<*mut libc::c_void, Rewrite>(rewrite) },
            // SAFETY: as above.
            counts: unsafe { std::mem::transmute::<*mut libc::c_void, GetCounts>(counts) },
        })
    }

    /// Lets the `nth` call of `name` from now on fail, 1 being the next; 0 means none.
    fn arm(&self, name: &str, nth: u32, errno: i32) -> Outcome {
        let name = CString::new(name)?;
        // SAFETY: the name is read during the call only.
        unsafe { (self.arm)(name.as_ptr(), nth, errno) };
        Ok(())
    }

    fn hits(&self) -> u32 {
        // SAFETY: no argument.
        unsafe { (self.hits)() }
    }

    /// Turns events of one kind into another with a status.
    fn rewrite(&self, from: EventKind, to: EventKind, status: i32) -> Outcome {
        let (from, to) = (i32::try_from(from.raw())?, i32::try_from(to.raw())?);
        // SAFETY: integers.
        unsafe { (self.rewrite)(from, to, status) };
        Ok(())
    }

    fn no_rewrite(&self) {
        // SAFETY: integers.
        unsafe { (self.rewrite)(-1, 0, 0) };
    }

    /// Every event that was got is acknowledged, and no release was refused.
    fn balanced(&self) -> Outcome {
        let mut counts = Counts::default();
        // SAFETY: a valid place of the struct's layout.
        unsafe { (self.counts)(&mut counts) };
        ensure!(counts.cm_got > 0, "no event was counted at all");
        ensure_eq!(
            counts.cm_acked,
            counts.cm_got,
            "connection events acknowledged, {counts:?}"
        );
        ensure_eq!(
            counts.cq_acked,
            counts.cq_got,
            "completion events acknowledged, {counts:?}"
        );
        ensure_eq!(counts.busy, 0, "releases that were refused as busy");
        Ok(())
    }
}

/// How long the other end may wait for the news that this one has failed.
const NEWS: Duration = Duration::from_secs(5);

/// The peers of both ends, and a listener.
struct Stage {
    client_peer: Peer,
    server_peer: Peer,
    endpoint: Endpoint,
    config: ConnectionConfig,
}

impl Stage {
    fn new() -> Result<Self, Failed> {
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
    fn attempt(&self) -> Result<Option<Error>, Failed> {
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
    fn works(&self) -> Outcome {
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

fn failing_call() -> Outcome {
    let argument = role_argument();
    let words: Vec<&str> = argument.split(' ').collect();
    let [name, count, errno] = words[..] else {
        return Err(format!("bad argument {argument:?}").into());
    };
    let (count, errno): (u32, i32) = (count.parse()?, errno.parse()?);
    let fault = Fault::find()?;
    let stage = Stage::new()?;
    stage.works()?;
    let baseline = Baseline::take()?;
    for round in 0..u32::try_from(rounds(8, 100))? {
        let nth = round % count + 1;
        fault.arm(name, nth, errno)?;
        let failed = stage.attempt().map_err(|failed| {
            format!(
                "call {nth}, round {round}: {}",
                failed.message().unwrap_or_default()
            )
        })?;
        let hits = fault.hits();
        fault.arm(name, 0, 0)?;
        ensure_eq!(hits, 1, "faults in call {nth} of {count}, with {failed:?}");
        let error = failed.ok_or(format!("call {nth} failed and nobody said so"))?;
        let text = error.to_string();
        ensure!(
            text.contains(name),
            "call {nth}: the error does not name it: {text}"
        );
        ensure!(
            text.contains(&format!("errno {errno}")),
            "call {nth}: no errno in: {text}"
        );
        if round < count {
            baseline
                .check()
                .map_err(|text| format!("call {nth}: {text}"))?;
            stage.works()?;
        }
    }
    // One more would be a call that is not tried.
    fault.arm(name, count + 1, errno)?;
    let failed = stage.attempt()?;
    ensure!(
        failed.is_none(),
        "there is a call {} too: {failed:?}",
        count + 1
    );
    fault.arm(name, 0, 0)?;
    stage.works()?;
    baseline.check()?;
    drop(stage);
    fault.balanced()
}

fn failing_rejection() -> Outcome {
    let fault = Fault::find()?;
    let stage = Stage::new()?;
    let baseline = Baseline::take()?;
    let to = stage.endpoint.local_addr();
    for round in 0..rounds(20, 100) {
        let client = ConnectionRequest::new(&stage.client_peer, to, &stage.config)?
            .connect(PrivateData::none())?;
        let request = stage
            .endpoint
            .next_connection_request(&stage.config, WAIT)?;
        fault.arm("rdma_reject", 1, libc::EINVAL)?;
        if round % 2 == 0 {
            drop(request);
        } else {
            let error = request
                .reject(PrivateData::none())
                .err()
                .ok_or("rejected")?;
            ensure!(error.to_string().contains("rdma_reject"), "{error}");
        }
        ensure!(fault.hits() >= 1, "round {round}: nothing was rejected");
        let error = client.wait_established(NEWS).err().ok_or("connected")?;
        ensure_eq!(error.kind(), ErrorKind::Rejected, "round {round}: {error}");
    }
    baseline.check()?;
    stage.works()?;
    drop(stage);
    fault.balanced()
}

fn failing_registration() -> Outcome {
    let fault = Fault::find()?;
    let stage = Stage::new()?;
    stage.works()?;
    let baseline = Baseline::take()?;
    for _ in 0..rounds(20, 100) {
        // Which of the two registers memory is the header's choice.
        for name in ["ibv_reg_mr", "ibv_reg_mr_iova2"] {
            fault.arm(name, 1, libc::ENOMEM)?;
            let region = LocalRegion::alloc(&stage.client_peer, 4096, Usage::all());
            if let Err(error) = &region {
                ensure_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
                ensure!(error.hint().is_some(), "no hint");
            }
            ensure_eq!(
                u32::from(region.is_err()),
                fault.hits(),
                "failed registrations"
            );
        }
        for name in ["ibv_alloc_pd", "ibv_reg_mr"] {
            fault.arm(name, 1, libc::ENOMEM)?;
            let peer = Peer::new(stage.client_peer.device());
            ensure_eq!(
                u32::from(peer.is_err()),
                fault.hits(),
                "failed calls of {name}"
            );
        }
    }
    fault.arm("", 0, 0)?;
    baseline.check()?;
    stage.works()?;
    drop(stage);
    fault.balanced()
}

fn refusals() -> Outcome {
    let fault = Fault::find()?;
    let stage = Stage::new()?;
    let config = &stage.config;
    let connect =
        |to| ConnectionRequest::new(&stage.client_peer, to, config)?.connect(PrivateData::none());
    let nobody = listen()?.1.local_addr();
    for _ in 0..rounds(10, 100) {
        let error = connect(nobody)?
            .wait_established(WAIT)
            .err()
            .ok_or("connected")?;
        ensure_eq!(error.kind(), ErrorKind::NoListener, "{error}");

        let client = connect(stage.endpoint.local_addr())?;
        stage
            .endpoint
            .next_connection_request(config, WAIT)?
            .reject(PrivateData::new(b"no")?)?;
        let error = client.wait_established(WAIT).err().ok_or("connected")?;
        ensure_eq!(error.kind(), ErrorKind::Rejected, "{error}");

        for (from, to) in [
            (EventKind::ADDR_RESOLVED, EventKind::ADDR_ERROR),
            (EventKind::ROUTE_RESOLVED, EventKind::ROUTE_ERROR),
        ] {
            fault.rewrite(from, to, -libc::ETIMEDOUT)?;
            let error = connect(nobody).err().ok_or("resolved")?;
            ensure_eq!(error.kind(), ErrorKind::NoSuchAddress, "{error}");
        }
        fault.no_rewrite();
        stage.works()?;
        // Established, and neither side takes an event again.
        let pair = Pair::new()?;
        drop(pair);
    }
    drop(stage);
    fault.balanced()
}

fn events() -> Outcome {
    let fault = Fault::find()?;
    let stage = Stage::new()?;
    let cases = [
        (
            EventKind::CONNECT_RESPONSE,
            EventKind::CONNECT_ERROR,
            -libc::EINVAL,
            ErrorKind::Disconnected,
        ),
        (
            EventKind::CONNECT_RESPONSE,
            EventKind::UNREACHABLE,
            -libc::ETIMEDOUT,
            ErrorKind::Unreachable,
        ),
        (
            EventKind::CONNECT_RESPONSE,
            EventKind::REJECTED,
            10,
            ErrorKind::Rejected,
        ),
        (
            EventKind::CONNECT_RESPONSE,
            EventKind::REJECTED,
            8,
            ErrorKind::NoListener,
        ),
        (
            EventKind::CONNECT_RESPONSE,
            EventKind::DISCONNECTED,
            0,
            ErrorKind::Disconnected,
        ),
        (
            EventKind::CONNECT_RESPONSE,
            EventKind::DEVICE_REMOVAL,
            0,
            ErrorKind::DeviceRemoved,
        ),
        (
            EventKind::ADDR_RESOLVED,
            EventKind::DEVICE_REMOVAL,
            0,
            ErrorKind::DeviceRemoved,
        ),
        (
            EventKind::ROUTE_RESOLVED,
            EventKind::ROUTE_ERROR,
            -libc::ETIMEDOUT,
            ErrorKind::NoSuchAddress,
        ),
    ];
    for (from, to, status, kind) in cases {
        fault.rewrite(from, to, status)?;
        let error = stage
            .attempt()?
            .ok_or(format!("{to} instead of {from}: connected"))?;
        ensure_eq!(error.kind(), kind, "{to} instead of {from}: {error}");
        fault.no_rewrite();
        stage.works()?;
    }
    drop(stage);
    fault.balanced()
}
