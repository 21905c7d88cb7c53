//! The end that chooses the parameters and counts the rounds.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rpma::{LocalRegion, RemoteRegion, RemoteSpan, Usage};

use super::connect::{self, Connected, NotConnected};
use super::link::{Broken, Link, Step, library};
use super::mailbox::Mailbox;
use super::outcome::{ClientOutcome, Faults, Round, Tally, Times};
use super::resolve;
use super::round::Rounds;
use super::window::Window;
use super::{Fault, Operation};
use crate::cli::ping::ClientOptions;
use crate::failure::Failure;
use crate::session::{Control, Welcome};
use crate::stop::Stop;

/// How long the goodbye may take.
const GOODBYE: Duration = Duration::from_secs(1);

/// Hears of a client's run while it goes on.
pub trait ClientObserver {
    /// The connection stands.
    fn connected(&mut self, outcome: &ClientOutcome);
    /// A round came back.
    fn round(&mut self, round: &Round);
    /// Something was wrong.
    fn fault(&mut self, fault: &Fault);
}

/// Runs a client to its end. Without a target there must be an address in `server` instead.
pub(super) fn run(
    options: &ClientOptions,
    server: Option<SocketAddr>,
    stop: &Stop,
    observer: &mut dyn ClientObserver,
) -> ClientOutcome {
    let mut outcome = ClientOutcome {
        peer: match (&options.target, server) {
            (_, Some(server)) => server.to_string(),
            (Some(target), None) => format!("{} port {}", target.host, options.port),
            (None, None) => String::new(),
        },
        device: None,
        size: options.size,
        count: options.count,
        interval: options.interval,
        deadline: options.deadline,
        operations: options.operations,
        tally: Tally::default(),
        times: Times::default(),
        elapsed: Duration::ZERO,
        interrupted: false,
        faults: Faults::default(),
        failure: None,
    };
    match meet(options, server, stop) {
        Ok(connected) => {
            outcome.peer = connected.address.to_string();
            outcome.device = Some(connected.local.device.name().to_owned());
            observer.connected(&outcome);
            if let Err(failure) = ping(connected, options, stop, observer, &mut outcome) {
                outcome.failure = Some(failure);
            }
        }
        Err(NotConnected::Stopped) => outcome.interrupted = true,
        Err(NotConnected::Failed(failure)) => outcome.failure = Some(failure),
    }
    outcome
}

fn meet(
    options: &ClientOptions,
    server: Option<SocketAddr>,
    stop: &Stop,
) -> Result<Connected, NotConnected> {
    let addresses = match (server, &options.target) {
        (Some(server), _) => vec![server],
        (None, Some(target)) => resolve::addresses(target, options.port, options.deadline, stop)?,
        (None, None) => Vec::new(),
    };
    connect::connect(&addresses, options, stop)
}

fn ping(
    connected: Connected,
    options: &ClientOptions,
    stop: &Stop,
    observer: &mut dyn ClientObserver,
    outcome: &mut ClientOutcome,
) -> Result<(), Failure> {
    let Connected {
        connection,
        welcome,
        local,
        address,
    } = connected;
    let size = options.size;
    let (target, source) = remote_spans(&welcome, options, address)?;
    let memory =
        |error: rpma::Error| library(format!("cannot get memory for {size} bytes"), &error);
    let place = size.next_multiple_of(64);
    let usage = Usage::WRITE_SRC | Usage::READ_DST;
    let mailbox = Mailbox::new(&local.peer, size).map_err(memory)?;
    // Declared before the link, so that it goes after the connection.
    let data = LocalRegion::alloc(&local.peer, 2 * place, usage).map_err(memory)?;
    let mut link = Link::new(connection, mailbox, options.deadline, stop.clone());
    let mut rounds = Rounds {
        link: &mut link,
        outgoing: Window::new(&data, 0, size),
        incoming: Window::new(&data, place, size),
        target,
        source,
        size,
        operations: options.operations,
        hooks: options.hooks,
    };

    let started = Instant::now();
    let mut broken = None;
    let mut due = started;
    while options.count.is_none_or(|count| outcome.tally.sent < count) {
        if !stop.sleep_until(due) {
            outcome.interrupted = true;
            break;
        }
        let sequence = outcome.tally.sent;
        outcome.tally.sent += 1;
        let faults = &mut outcome.faults;
        let result = rounds.run(sequence, |fault| {
            faults.push(fault);
            observer.fault(&fault);
        });
        match result {
            Ok(round) => {
                outcome.tally.received += 1;
                outcome.tally.wrong += u64::from(round.wrong);
                outcome.times.record(&round);
                observer.round(&round);
            }
            Err(Broken::Stopped) => {
                outcome.interrupted = true;
                break;
            }
            Err(error) => {
                broken = Some(error.into_failure(address, options.deadline));
                break;
            }
        }
        // A round that took longer than the interval delays the next one, and no burst follows.
        due = (due + options.interval).max(Instant::now());
    }
    outcome.elapsed = started.elapsed();
    match broken {
        Some(failure) => Err(failure),
        None => part(link, outcome, address),
    }
}

/// Says goodbye and closes. What the user wanted to know is known by then; a server that hears
/// no goodbye says so itself, so only a close that fails is news here.
fn part(mut link: Link, outcome: &ClientOutcome, address: SocketAddr) -> Result<(), Failure> {
    if outcome.tally.lost() == 0 {
        let Tally {
            sent,
            received,
            wrong,
        } = outcome.tally;
        let step = Step {
            sequence: sent,
            operation: None,
            what: "saying goodbye",
        };
        link.set_deadline(GOODBYE);
        let goodbye = Control::Bye {
            sent,
            received,
            wrong,
        };
        match link.send_control(&goodbye, step) {
            // The server closes as soon as it has the goodbye, which may be before we know that
            // it has arrived.
            Ok(()) | Err(Broken::Closed(_)) => {}
            Err(error) => return Err(error.into_failure(address, GOODBYE)),
        }
    }
    link.close()
        .map_err(|error| library(format!("cannot close the connection to {address}"), &error))
}

/// The server's memory, checked: the right length and, for the operations of this run, the right
/// usage.
fn remote_spans(
    welcome: &Welcome,
    options: &ClientOptions,
    address: SocketAddr,
) -> Result<(RemoteSpan, RemoteSpan), Failure> {
    let span = |descriptor: &[u8], name: &str, operation: Operation, usage: Usage| {
        let bad = |error: rpma::Error| {
            library(
                format!("the server at {address} offers a {name} that cannot be used"),
                &error,
            )
        };
        let region = RemoteRegion::from_descriptor(descriptor).map_err(bad)?;
        if options.operations.contains(operation) && !region.usage().contains(usage) {
            return Err(Failure::failed(format!(
                "the server at {address} offers a {name} that does not allow the operation {operation}"
            )));
        }
        region.span(0..options.size as u64).map_err(bad)
    };
    Ok((
        span(
            &welcome.target,
            "target",
            Operation::Write,
            Usage::WRITE_DST,
        )?,
        span(&welcome.source, "source", Operation::Read, Usage::READ_SRC)?,
    ))
}
