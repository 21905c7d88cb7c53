//! The flags of `rpma-ping`, in the spelling of `ping` and `rping`.

use std::time::Duration;

use clap::{Args, CommandFactory, Parser, Subcommand};

use super::address::{Host, Target};
use super::units::{seconds_up_to, whole_within};
use crate::failure::Failure;
use crate::ping::{Hooks, MAX_SIZE, MAX_TIME_MS, Operation, OperationSet};

/// The port when none is given.
pub const DEFAULT_PORT: u16 = 7204;

const MAX_TIME: Duration = Duration::from_millis(MAX_TIME_MS as u64);
const DEFAULT_DEADLINE: Duration = Duration::from_secs(10);

const ABOUT: &str = "Does RDMA work between these two machines, and does every byte arrive?";

const NOTES: &str = "\
Numbers: whole numbers are decimal digits with an optional suffix k, K or KiB (1024),
M or MiB (1024 squared), G or GiB (1024 cubed); 08 is eight. Times are seconds and may
have a fraction (0.25).

Deadline: -W is how long the client waits for the server to listen, and after that how
long it waits for each step of a round. With -W 0 the client tries to connect once, and
the steps of a round have 10 seconds.

Ctrl-C ends the rounds and prints the summary; a second Ctrl-C ends the program at once.
A server that gets SIGINT or SIGTERM ends its sessions, prints its totals and exits with 0.

Exit code: 0 all came back right, 1 something was lost, wrong or failed, 2 usage.";

/// A checked command line.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// Ping a server, or both ends in one process.
    Client(ClientOptions),
    /// Wait for clients.
    Server(ServerOptions),
}

impl Command {
    /// Whether the end of the run is one JSON document on standard output.
    pub fn json(&self) -> bool {
        match self {
            Self::Client(options) => options.json,
            Self::Server(options) => options.json,
        }
    }
}

/// What a client is to do.
#[derive(Debug, Clone, PartialEq)]
pub struct ClientOptions {
    /// The server, or with `loopback` the local address for both ends.
    pub target: Option<Target>,
    /// The server's port; with `loopback` 0 for any free one.
    pub port: u16,
    /// Both ends in this process.
    pub loopback: bool,
    /// Rounds; `None` until interrupted.
    pub count: Option<u64>,
    /// Bytes that each operation moves.
    pub size: usize,
    /// From the start of one round to the start of the next.
    pub interval: Duration,
    /// How long to wait for the server to listen; zero is one try.
    pub wait: Duration,
    /// How long to wait for each step after that.
    pub deadline: Duration,
    /// The operations of every round.
    pub operations: OperationSet,
    /// No line per round.
    pub quiet: bool,
    /// One JSON document at the end instead of text.
    pub json: bool,
    /// Deliberate damage.
    pub hooks: Hooks,
}

/// What a server is to do.
#[derive(Debug, Clone, PartialEq)]
pub struct ServerOptions {
    /// The local address to listen on; `None` for every one that an RDMA device has.
    pub target: Option<Target>,
    /// The port; 0 for any free one.
    pub port: u16,
    /// End after one client.
    pub once: bool,
    /// No line per client.
    pub quiet: bool,
    /// One JSON document at the end instead of text.
    pub json: bool,
    /// Deliberate damage.
    pub hooks: Hooks,
}

/// A command line that leads to no run.
#[derive(Debug)]
pub enum Refused {
    /// Help or version was asked for: text for standard output.
    Shown(String),
    /// The command line is wrong.
    Wrong(Failure),
}

#[derive(Debug, Parser)]
#[command(
    name = "rpma-ping",
    version,
    about = ABOUT,
    after_help = NOTES,
    args_conflicts_with_subcommands = true,
    override_usage = "rpma-ping [OPTIONS] ADDR\n       rpma-ping --loopback [OPTIONS] [ADDR]\n       rpma-ping server [-p PORT] [--once] [-q] [--json] [ADDR]"
)]
struct Line {
    #[command(subcommand)]
    server: Option<Mode>,
    #[command(flatten)]
    client: ClientLine,
}

#[derive(Debug, Subcommand)]
enum Mode {
    /// Wait for clients
    Server(ServerLine),
}

#[derive(Debug, Args)]
struct ClientLine {
    /// The server: ADDR, ADDR:PORT, [ADDR6]:PORT or a host name
    #[arg(value_name = "ADDR", value_parser = target)]
    target: Option<Target>,
    /// The server's port [default: 7204]
    #[arg(short, long, value_name = "PORT", value_parser = client_port, allow_hyphen_values = true)]
    port: Option<u16>,
    /// Rounds [default: until Ctrl-C, with --loopback 10]
    #[arg(short, long, value_name = "COUNT", value_parser = count, allow_hyphen_values = true)]
    count: Option<u64>,
    /// Bytes that each operation moves
    #[arg(short, long, value_name = "SIZE", value_parser = size, allow_hyphen_values = true, default_value = "64")]
    size: usize,
    /// Seconds from the start of one round to the next, 0 as fast as possible [default: 1, with
    /// --loopback 0.1]
    #[arg(short, long, value_name = "SECONDS", value_parser = seconds, allow_hyphen_values = true)]
    interval: Option<Duration>,
    /// Seconds to wait for a server that does not listen yet, and then for each step
    #[arg(short = 'W', long, visible_alias = "wait", value_name = "SECONDS", value_parser = seconds, allow_hyphen_values = true, default_value = "10")]
    deadline: Duration,
    /// What every round does: send, write, read, flush (separated by commas) or all
    #[arg(long, value_name = "OPERATIONS", value_parser = operations, value_delimiter = ',', default_value = "all")]
    op: Vec<OperationSet>,
    /// No line per round
    #[arg(short, long)]
    quiet: bool,
    /// One JSON document at the end
    #[arg(long)]
    json: bool,
    /// Both ends in this process; ADDR is then an address of this machine
    #[arg(long)]
    loopback: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Without ADDR the server listens on every address that an RDMA device of this machine has
(link-local ones aside), and says which. It serves up to 16 clients at a time, each in a thread of its own.")]
struct ServerLine {
    /// The local address to listen on: ADDR, ADDR:PORT, [ADDR6]:PORT or a host name
    #[arg(value_name = "ADDR", value_parser = target)]
    target: Option<Target>,
    /// The port, 0 for any free one [default: 7204]
    #[arg(short, long, value_name = "PORT", value_parser = server_port, allow_hyphen_values = true)]
    port: Option<u16>,
    /// Serve one client; the exit code tells whether all was right for it
    #[arg(long)]
    once: bool,
    /// No line per client
    #[arg(short, long)]
    quiet: bool,
    /// One JSON document at the end
    #[arg(long)]
    json: bool,
}

fn target(text: &str) -> Result<Target, String> {
    Target::parse(text).map_err(|error| error.to_string())
}

fn port_within(text: &str, least: u64) -> Result<u16, String> {
    let number = whole_within(text, least..=u64::from(u16::MAX))?;
    u16::try_from(number).map_err(|error| error.to_string())
}

fn client_port(text: &str) -> Result<u16, String> {
    port_within(text, 1)
}

fn server_port(text: &str) -> Result<u16, String> {
    port_within(text, 0)
}

fn count(text: &str) -> Result<u64, String> {
    whole_within(text, 1..=u64::MAX)
}

fn size(text: &str) -> Result<usize, String> {
    let number = whole_within(text, 1..=MAX_SIZE)?;
    usize::try_from(number).map_err(|error| error.to_string())
}

fn seconds(text: &str) -> Result<Duration, String> {
    seconds_up_to(text, MAX_TIME)
}

fn operations(text: &str) -> Result<OperationSet, String> {
    match text {
        "all" => Ok(OperationSet::ALL),
        one => one.parse::<Operation>().map(OperationSet::of),
    }
}

/// Reads and checks a command line, the program's name first.
///
/// # Errors
/// [`Refused`]: help to show, or what is wrong.
pub fn parse<I, T>(line: I, hooks: Hooks) -> Result<Command, Refused>
where
    I: IntoIterator<Item = T>,
    T: Into<std::ffi::OsString> + Clone,
{
    let line = Line::try_parse_from(line).map_err(refused)?;
    match line.server {
        Some(Mode::Server(line)) => server(line, hooks).map(Command::Server),
        None => client(line.client, hooks).map(Command::Client),
    }
    .map_err(Refused::Wrong)
}

/// The manual's source: the flags, for tools that make man pages and completions.
pub fn command() -> clap::Command {
    Line::command()
}

fn refused(error: clap::Error) -> Refused {
    if !error.use_stderr() {
        return Refused::Shown(error.to_string());
    }
    let text = error.to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    // The first paragraph is the sentence; usage and pointers to the help follow it.
    let sentence = text.split("\n\n").next().unwrap_or(text);
    Refused::Wrong(Failure::usage(sentence).with_hint("rpma-ping --help shows what is allowed"))
}

fn client(line: ClientLine, hooks: Hooks) -> Result<ClientOptions, Failure> {
    let loopback = line.loopback;
    if line.target.is_none() && !loopback {
        return Err(Failure::usage("there is no address to ping").with_hint(
            "write rpma-ping ADDR, or rpma-ping server to wait for clients, or rpma-ping --loopback",
        ));
    }
    let named_server = Target {
        host: Host::Name("server".to_owned()),
        port: None,
    };
    if line.target.as_ref() == Some(&named_server) {
        return Err(Failure::usage("the word server goes before every option").with_hint(
            "write rpma-ping server [OPTIONS] to wait for clients; a host of that name is pinged as server:7204",
        ));
    }
    let default_port = if loopback { 0 } else { DEFAULT_PORT };
    let port = one_port(line.target.as_ref(), line.port, default_port)?;
    if port == 0 && !loopback {
        return Err(Failure::usage(
            "port 0 is no port to connect to; allowed is 1 to 65535",
        ));
    }
    let default_interval = Duration::from_millis(if loopback { 100 } else { 1000 });
    Ok(ClientOptions {
        port,
        target: line.target,
        loopback,
        count: line.count.or(loopback.then_some(10)),
        size: line.size,
        interval: line.interval.unwrap_or(default_interval),
        wait: line.deadline,
        deadline: if line.deadline.is_zero() {
            DEFAULT_DEADLINE
        } else {
            line.deadline
        },
        // The default value of the option makes sure that there is a first one.
        operations: line
            .op
            .into_iter()
            .reduce(OperationSet::union)
            .unwrap_or(OperationSet::ALL),
        quiet: line.quiet,
        json: line.json,
        hooks,
    })
}

fn server(line: ServerLine, hooks: Hooks) -> Result<ServerOptions, Failure> {
    Ok(ServerOptions {
        port: one_port(line.target.as_ref(), line.port, DEFAULT_PORT)?,
        target: line.target,
        once: line.once,
        quiet: line.quiet,
        json: line.json,
        hooks,
    })
}

fn one_port(target: Option<&Target>, flag: Option<u16>, default: u16) -> Result<u16, Failure> {
    match (target.and_then(|target| target.port), flag) {
        (Some(written), Some(flag)) if written != flag => Err(Failure::usage(format!(
            "the address says port {written} and --port says {flag}"
        ))
        .with_hint("give the port once")),
        (Some(port), _) | (None, Some(port)) => Ok(port),
        (None, None) => Ok(default),
    }
}
