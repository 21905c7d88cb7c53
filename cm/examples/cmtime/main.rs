//! Times the steps in which connections are made and ended, with the C program `cmtime` or another of these at the other
//! end.
//!
//! ```text
//! cargo run -p cm --example cmtime -- [OPTIONS]             # server
//! cargo run -p cm --example cmtime -- [OPTIONS] -s SERVER   # client
//! ```
//! The client (`client.rs`) takes each step for all connections before it goes on to the next, and prints a table
//! (`table.rs`) with the columns of the C program. The server (`server.rs`) accepts whoever asks.

mod client;
mod server;
mod table;

use std::fmt;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use cm::verbs::{CompletionQueue, Context, ProtectionDomain, QpType, QueuePair};
use cm::{AddressHints, ConnParams, Deadline, address_info};

/// Time how connections are made and ended, with cmtime at the other end
#[derive(Debug, Parser)]
#[command(name = "cmtime")]
struct Options {
    /// Name or address of the server; without it this is the server
    #[arg(short = 's', long, value_name = "SERVER")]
    server: Option<String>,
    /// Local name or address: where to listen, or from where to connect
    #[arg(short = 'b', long, value_name = "ADDRESS")]
    bind: Option<String>,
    /// Connections of the client [default: 100], or after how many the server ends [default: never]
    #[arg(short = 'c', long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    connections: Option<u32>,
    /// Port of the server
    #[arg(short = 'p', long, default_value_t = 7471, value_name = "PORT")]
    port: u16,
    /// How often an address or route that was not found is looked for again
    #[arg(short = 'r', long, default_value_t = 2, value_name = "COUNT")]
    retries: u32,
    /// Milliseconds for one try to find address and route
    #[arg(short = 't', long, default_value_t = 2000, value_name = "MS", value_parser = clap::value_parser!(u32).range(1..))]
    timeout: u32,
    /// Seconds that may pass until all connections stand, or have ended; for the server: without any sign of the client
    /// that it waits for
    #[arg(long, default_value_t = 30, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=86400))]
    wait: u32,
}

impl Options {
    /// The end of a wait for a peer that begins now.
    fn deadline(&self) -> Deadline {
        Deadline::after(Duration::from_secs(self.wait.into()))
    }
}

/// What went wrong, each in a sentence.
#[derive(Debug)]
struct Failure(Vec<String>);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0
            .iter()
            .try_for_each(|sentence| writeln!(f, "cmtime: {sentence}"))
    }
}

impl From<cm::Error> for Failure {
    fn from(error: cm::Error) -> Self {
        Self(vec![explained(&error)])
    }
}

/// An error with its hint.
fn explained(error: &cm::Error) -> String {
    match error.hint() {
        Some(hint) => format!("{error}; {hint}"),
        None => error.to_string(),
    }
}

fn main() -> ExitCode {
    let options = Options::parse();
    let ended = match &options.server {
        Some(server) => client::run(&options, server),
        None => server::run(&options),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprint!("{failure}");
            ExitCode::FAILURE
        }
    }
}

/// The address of a node: one of this machine, or a server's.
fn look_up(node: Option<&str>, port: u16, local: bool) -> Result<SocketAddr, Failure> {
    let mut hints = AddressHints::default();
    hints.passive = local;
    hints.no_route = true;
    let found = address_info(node, Some(&port.to_string()), &hints)?;
    let mut addresses = found
        .into_iter()
        .filter_map(|info| if local { info.source } else { info.target });
    addresses.next().ok_or_else(|| {
        let node = node.unwrap_or_default();
        Failure(vec![format!("{node} has no address: give an IP address")])
    })
}

/// A queue pair for a connection that transfers nothing, with a completion queue of its own.
fn queue_pair(pd: &ProtectionDomain) -> Result<QueuePair, cm::Error> {
    let cq = CompletionQueue::builder(pd.context(), 2).build()?;
    let builder = QueuePair::builder(pd, QpType::RC, &cq, &cq);
    Ok(builder.max_send_wr(1).max_recv_wr(1).build()?)
}

/// The protection domain of a device: the one there is, or a new one.
fn domain_of(
    context: &Context,
    held: &mut Option<ProtectionDomain>,
) -> Result<ProtectionDomain, cm::Error> {
    match held {
        Some(pd) if pd.context() == context => Ok(pd.clone()),
        _ => Ok(held.insert(ProtectionDomain::new(context)?).clone()),
    }
}

/// One read at a time in each direction, as the C program asks for.
fn params() -> ConnParams {
    let mut params = ConnParams::default();
    params.responder_resources = 1;
    params.initiator_depth = 1;
    params
}
