//! Sends messages back and forth over a reliable connection, with the C program `ibv_rc_pingpong` or another of these at
//! the other end.
//!
//! ```text
//! cargo run -p verbs --example rc_pingpong -- [OPTIONS]           # server
//! cargo run -p verbs --example rc_pingpong -- [OPTIONS] HOST      # client
//! ```
//! The two ends tell each other their addresses over TCP (`exchange.rs`); everything else goes over the queue pair
//! (`link.rs`). A client that checks (`-c`) needs a peer that returns what it got, as the C program does.

mod exchange;
mod link;

use std::fmt;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use verbs::Deadline;

use crate::exchange::{Peer, Server};
use crate::link::{Link, MTUS};

/// Send messages back and forth over RDMA, with ibv_rc_pingpong or another rc_pingpong at the other end
#[derive(Debug, Parser)]
#[command(name = "rc_pingpong")]
struct Options {
    /// The server's name or address, IPv4 or IPv6; without it this is the server
    host: Option<String>,
    /// TCP port of the server
    #[arg(short = 'p', long, default_value_t = 18515, value_name = "PORT")]
    port: u16,
    /// RDMA device [default: the first]
    #[arg(short = 'd', long, value_name = "DEVICE")]
    ib_dev: Option<String>,
    /// Port of the device
    #[arg(short = 'i', long, default_value_t = 1, value_name = "PORT", value_parser = clap::value_parser!(u8).range(1..))]
    ib_port: u8,
    /// Bytes of a message
    #[arg(short = 's', long, default_value_t = 4096, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    size: u32,
    /// Payload of a packet in bytes
    #[arg(short = 'm', long, default_value_t = 1024, value_name = "BYTES", value_parser = mtu)]
    mtu: u32,
    /// Receives that are posted at a time
    #[arg(short = 'r', long, default_value_t = 500, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    rx_depth: u32,
    /// Messages in each direction
    #[arg(short = 'n', long, default_value_t = 1000, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    iters: u32,
    /// Index of the local GID [default: on Ethernet the best there is, otherwise none]
    #[arg(short = 'g', long, value_name = "INDEX")]
    gid_idx: Option<u8>,
    /// Sleep until completions arrive, instead of polling
    #[arg(short = 'e', long)]
    events: bool,
    /// Check what arrives
    #[arg(short = 'c', long)]
    chk: bool,
    /// Seconds that any single wait may take: for the client, for its message, for a completion
    #[arg(long, default_value_t = 30, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=86400))]
    timeout: u32,
}

fn mtu(text: &str) -> Result<u32, String> {
    let bytes = text.parse().ok().filter(|bytes| MTUS.contains(bytes));
    bytes.ok_or_else(|| format!("a path has an MTU of {MTUS:?}, not {text}"))
}

impl Options {
    /// The end of a wait that begins now.
    fn deadline(&self) -> Deadline {
        Deadline::after(Duration::from_secs(self.timeout.into()))
    }
}

/// What went wrong, in a sentence.
#[derive(Debug)]
struct Failure(String);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<verbs::Error> for Failure {
    fn from(error: verbs::Error) -> Self {
        Self(match error.hint() {
            Some(hint) => format!("{error}; {hint}"),
            None => error.to_string(),
        })
    }
}

impl From<String> for Failure {
    fn from(text: String) -> Self {
        Self(text)
    }
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("rc_pingpong: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), Failure> {
    let mut link = Link::open(options)?;
    // So many that the peer's first message finds one, whenever it comes.
    link.fill_receives()?;
    println!("  local address:  {}", link.local());
    let remote = match &options.host {
        Some(host) => {
            let mut peer = Peer::connect(host, options.port, options.deadline())?;
            let remote = peer.swap_as_client(&link.local())?;
            link.connect(&remote)?;
            peer.confirm()?;
            remote
        }
        None => {
            let server = Server::listen(options.port)?;
            println!("  listening on TCP port {}", options.port);
            let mut peer = server.accept(options.deadline())?;
            let remote = peer.receive()?;
            // Before the client hears of us, or its first message could find nobody.
            link.connect(&remote)?;
            peer.answer_as_server(&link.local())?;
            remote
        }
    };
    println!("  remote address: {remote}");
    let started = Instant::now();
    link.play(options.host.is_some())?;
    report(options, started.elapsed());
    Ok(())
}

fn report(options: &Options, took: Duration) {
    let bytes = 2 * u64::from(options.size) * u64::from(options.iters);
    let seconds = took.as_secs_f64();
    println!(
        "{bytes} bytes in {seconds:.2} seconds = {:.2} Mbit/sec",
        u128_as_f64(u128::from(bytes) * 8) / seconds / 1e6
    );
    println!(
        "{} iters in {seconds:.2} seconds = {:.2} usec/iter",
        options.iters,
        seconds * 1e6 / f64::from(options.iters)
    );
    if options.chk {
        println!("everything that arrived was as it was sent");
    }
}

/// Close enough for a rate.
#[expect(
    clippy::cast_precision_loss,
    reason = "a rate is shown with two digits"
)]
fn u128_as_f64(number: u128) -> f64 {
    number as f64
}
