//! The client's way to an established connection.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rpma::{Connection, ConnectionConfig, ConnectionRequest, Device, ErrorKind, Peer, PrivateData};

use super::diagnose;
use super::link::{QUEUE_SIZE, library};
use super::patience::{GaveUp, patiently};
use crate::cli::ping::ClientOptions;
use crate::cli::units::format_seconds;
use crate::failure::Failure;
use crate::session::{Hello, Refusal, VERSION, Welcome};
use crate::stop::{SLICE, Stop};

/// Between two tries to reach a server that does not listen yet.
const RETRY: Duration = Duration::from_millis(200);

/// What the last try gets when its time is all but up, and a single try when there is no waiting.
const LAST_TRY: Duration = Duration::from_millis(300);
const ONE_TRY: Duration = Duration::from_secs(2);

/// Why there is no connection.
#[derive(Debug)]
pub(super) enum NotConnected {
    /// The end was requested.
    Stopped,
    /// With the sentence for the user.
    Failed(Failure),
}

impl From<Failure> for NotConnected {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// An established connection and what came with it.
#[derive(Debug)]
pub(super) struct Connected {
    pub(super) connection: Connection,
    pub(super) welcome: Welcome,
    pub(super) local: Local,
    pub(super) address: SocketAddr,
}

/// The device towards the server.
#[derive(Debug, Clone)]
pub(super) struct Local {
    pub(super) device: Device,
    pub(super) peer: Peer,
}

/// Connects to the first of the addresses that takes the connection; tries again for as long as
/// the user wants to wait when nothing listens there.
pub(super) fn connect(
    addresses: &[SocketAddr],
    options: &ClientOptions,
    stop: &Stop,
) -> Result<Connected, NotConnected> {
    let until = Instant::now() + options.wait;
    let mut locals: Vec<Option<Local>> = vec![None; addresses.len()];
    loop {
        let mut last = None;
        for (&address, local) in addresses.iter().zip(&mut locals) {
            match attempt(address, local, options, until, stop) {
                Ok(connected) => return Ok(connected),
                Err(Attempt::Stopped) => return Err(NotConnected::Stopped),
                Err(Attempt::NoListener) => {
                    last.get_or_insert_with(|| no_listener(address, options.wait));
                }
                Err(Attempt::Failed(failure)) if addresses.len() == 1 => return Err(failure.into()),
                Err(Attempt::Failed(failure)) => last = Some(failure),
            }
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let none = || Failure::failed("there is no address to connect to");
            return Err(last.unwrap_or_else(none).into());
        }
        if !stop.sleep_until(Instant::now() + RETRY.min(left)) {
            return Err(NotConnected::Stopped);
        }
    }
}

enum Attempt {
    Stopped,
    NoListener,
    Failed(Failure),
}

fn no_listener(address: SocketAddr, wait: Duration) -> Failure {
    let waited = if wait.is_zero() {
        String::new()
    } else {
        format!(" after waiting {}", format_seconds(wait))
    };
    Failure::failed(format!("no listener at {address}{waited}")).with_hint(
        "start rpma-ping server there, and check the address and the port; -W sets how long to wait",
    )
}

fn attempt(
    address: SocketAddr,
    local: &mut Option<Local>,
    options: &ClientOptions,
    until: Instant,
    stop: &Stop,
) -> Result<Connected, Attempt> {
    let until = if options.wait.is_zero() {
        Instant::now() + ONE_TRY
    } else {
        until.max(Instant::now() + LAST_TRY)
    };
    let local = match local {
        Some(local) => local.clone(),
        None => local
            .insert(find_local(address, options, until, stop)?)
            .clone(),
    };

    let mut config = ConnectionConfig::default();
    config
        .set_timeout(left(until))
        .set_sq_size(QUEUE_SIZE)
        .set_rq_size(QUEUE_SIZE);
    let peer = local.peer.clone();
    let request = patiently(until, stop, move || {
        ConnectionRequest::new(&peer, address, &config)
    })
    .map_err(|gave_up| gave_up_on(gave_up, address, "resolving the route", options))?
    .map_err(|error| refused(&error, address, "resolving the route", options))?;

    let hello = hello(options).encode(options.hooks.version.unwrap_or(VERSION));
    let connection = PrivateData::new(&hello)
        .and_then(|data| request.connect(data))
        .map_err(|error| refused(&error, address, "connecting", options))?;
    establish(&connection, address, options, until, stop)?;
    let welcome = Welcome::decode(connection.private_data()).map_err(|error| {
        Attempt::Failed(
            Failure::failed(format!(
                "what listens at {address} is no rpma-ping server: {error}"
            ))
            .with_hint("check the port, and use the same version of rpma-ping on both machines"),
        )
    })?;
    Ok(Connected {
        connection,
        welcome,
        local,
        address,
    })
}

fn find_local(
    address: SocketAddr,
    options: &ClientOptions,
    until: Instant,
    stop: &Stop,
) -> Result<Local, Attempt> {
    let size = options.size;
    let limit = left(until);
    let step = "looking for the RDMA device that leads there";
    let doing = format!("cannot find an RDMA device towards {address}");
    let failed = |error: rpma::Error| Attempt::Failed(diagnose::explain(library(&doing, &error)));
    let gave_up = |gave_up| gave_up_on(gave_up, address, step, options);
    let device = patiently(until, stop, move || Device::remote(address, limit))
        .map_err(gave_up)?
        .map_err(|error| match error.kind() {
            ErrorKind::TimedOut => gave_up(GaveUp::TimedOut),
            _ => failed(error),
        })?;
    let largest = device.max_message_size().map_err(failed)?;
    if size as u64 > u64::from(largest) {
        return Err(Attempt::Failed(
            Failure::usage(format!(
                "the size {size} is above the largest message of the device {}, {largest} bytes",
                device.name()
            ))
            .with_hint(format!("choose a size of at most {largest} with -s")),
        ));
    }
    let peer = Peer::new(&device).map_err(failed)?;
    Ok(Local { device, peer })
}

/// Waits for the server's answer in slices, so that a request to stop is heard.
fn establish(
    connection: &Connection,
    address: SocketAddr,
    options: &ClientOptions,
    until: Instant,
    stop: &Stop,
) -> Result<(), Attempt> {
    loop {
        if stop.requested() {
            return Err(Attempt::Stopped);
        }
        match connection.wait_established(left(until).min(SLICE)) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::TimedOut => {
                if left(until).is_zero() {
                    let step = "waiting for the connection to be established";
                    return Err(gave_up_on(GaveUp::TimedOut, address, step, options));
                }
            }
            Err(error) => return Err(refused(&error, address, "connecting", options)),
        }
    }
}

fn rejected(error: &rpma::Error, address: SocketAddr) -> Failure {
    let refusal = match error {
        rpma::Error::Cm(rpma::cm::Error::Rejected { private_data, .. }) => {
            Refusal::decode(private_data).ok()
        }
        _ => None,
    };
    match refusal {
        Some(refusal) => Failure::failed(format!("the server at {address} refused: {refusal}"))
            .with_hint(refusal.hint()),
        None => library("no rpma-ping server answered", error).with_hint(
            "check the port: something else listens there, or the server could not say why",
        ),
    }
}

fn refused(
    error: &rpma::Error,
    address: SocketAddr,
    step: &str,
    options: &ClientOptions,
) -> Attempt {
    match error.kind() {
        ErrorKind::NoListener => Attempt::NoListener,
        ErrorKind::Rejected => Attempt::Failed(rejected(error, address)),
        ErrorKind::TimedOut => gave_up_on(GaveUp::TimedOut, address, step, options),
        _ => Attempt::Failed(library(
            format!("cannot connect to {address} ({step})"),
            error,
        )),
    }
}

fn gave_up_on(
    gave_up: GaveUp,
    address: SocketAddr,
    step: &str,
    options: &ClientOptions,
) -> Attempt {
    let limit = if options.wait.is_zero() {
        ONE_TRY
    } else {
        options.wait
    };
    match gave_up {
        GaveUp::Stopped => Attempt::Stopped,
        GaveUp::TimedOut => Attempt::Failed(
            Failure::failed(format!(
                "no answer from {address} within {} ({step})",
                format_seconds(limit)
            ))
            .with_hint("the server may be stopped or unreachable; -W sets the limit"),
        ),
        GaveUp::NoThread | GaveUp::Panicked => Attempt::Failed(Failure::failed(format!(
            "cannot connect to {address} ({step}): it {gave_up}"
        ))),
    }
}

fn hello(options: &ClientOptions) -> Hello {
    // Both times are within an hour, by their bounds on the command line.
    let millis =
        |time: Duration| u32::try_from(time.as_micros().div_ceil(1000)).unwrap_or(u32::MAX);
    Hello {
        operations: options.operations,
        size: options.size as u64,
        count: options.count.unwrap_or(0),
        interval_ms: millis(options.interval),
        deadline_ms: millis(options.deadline).max(1),
    }
}

fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now())
}
