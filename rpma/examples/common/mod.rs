//! What the examples share: their arguments, both ends of a connection, and completions.
#![allow(dead_code, reason = "each example uses its part of this")]

pub(crate) mod greeting;
pub(crate) mod ping_pong;
pub(crate) mod store;

use std::fmt::Display;
use std::fs::File;
use std::net::{SocketAddr, ToSocketAddrs};
use std::ops::Range;
use std::path::Path;
use std::process::ExitCode;
use std::str::FromStr;
use std::thread;
use std::time::Duration;

use rpma::{
    Completion, CompletionQueue, Connection, ConnectionConfig, ConnectionEvent, ConnectionRequest,
    Device, Endpoint, ErrorKind, LocalRegion, Opcode, Peer, PrivateData, Usage,
};

/// How long the other side may take for any one step.
pub(crate) const SOON: Duration = Duration::from_secs(10);
/// How long a server waits for its client.
const PATIENCE: Duration = Duration::from_secs(120);
/// How often a client tries to connect, and how long it sleeps in between.
const TRIES: u32 = 10;
const BETWEEN: Duration = Duration::from_secs(1);

/// What goes wrong, in a sentence.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The arguments: the sentence is followed by how the program is called.
    Usage(String),
    /// Anything else.
    Other(String),
}

pub(crate) type Outcome<T = ()> = Result<T, Failure>;

impl From<rpma::Error> for Failure {
    fn from(error: rpma::Error) -> Self {
        Self::Other(match error.hint() {
            Some(hint) => format!("{error}; {hint}"),
            None => error.to_string(),
        })
    }
}

impl From<rpma::gpspm::Error> for Failure {
    fn from(error: rpma::gpspm::Error) -> Self {
        match error {
            rpma::gpspm::Error::Rpma(error) => error.into(),
            error => Self::Other(error.to_string()),
        }
    }
}

pub(crate) fn failed<T>(what: impl Into<String>) -> Outcome<T> {
    Err(Failure::Other(what.into()))
}

/// What a program does as one of its two roles: the arguments that it takes behind the address, as they are shown (what stands
/// in brackets may be left out, and `...` is any number), and what gets the address and them.
pub(crate) type Role = (&'static str, fn(SocketAddr, &[String]) -> Outcome);

/// What every role takes first.
const ADDRESS: &str = "ADDRESS PORT";

/// Runs the role that the program is called in, `server` or `client`. The exit code is 0, 1 after a failure, and 2 for wrong
/// arguments.
pub(crate) fn run(server: Role, client: Role) -> ExitCode {
    let roles = [("server", server), ("client", client)];
    let mut words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
    let program = words.next().unwrap_or_default();
    let program = Path::new(&program).file_name().unwrap_or_default();
    let program = program.to_string_lossy().into_owned();
    let words: Vec<String> = words.collect();
    match called(&roles, &words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Other(sentence)) => {
            eprintln!("{program}: {sentence}");
            ExitCode::FAILURE
        }
        Err(Failure::Usage(sentence)) => {
            eprintln!("{program}: {sentence}");
            for (name, (more, _)) in roles {
                let usage = format!("usage: {program} {name} {ADDRESS} {more}");
                eprintln!("{}", usage.trim_end());
            }
            ExitCode::from(2)
        }
    }
}

fn called(roles: &[(&str, Role)], words: &[String]) -> Outcome {
    let names: Vec<&str> = roles.iter().map(|&(name, _)| name).collect();
    let wanted = words.first().map_or("", String::as_str);
    let Some((name, (more, run))) = roles.iter().find(|&&(name, _)| name == wanted) else {
        return Err(Failure::Usage(format!(
            "the first argument is {}, not '{wanted}'",
            names.join(" or ")
        )));
    };
    let arguments = || ADDRESS.split(' ').chain(more.split_whitespace());
    let needed = arguments().filter(|a| !a.starts_with('[')).count();
    let most = if more.contains("...") {
        usize::MAX
    } else {
        arguments().count()
    };
    let given = &words[1..];
    if given.len() < needed || given.len() > most {
        return Err(Failure::Usage(format!(
            "{} arguments behind {name} are too few or too many",
            given.len()
        )));
    }
    let port = number(&given[1], "PORT")?;
    let mut found = (given[0].as_str(), port)
        .to_socket_addrs()
        .map_err(|error| Failure::Other(format!("there is no address {}: {error}", given[0])))?;
    match found.next() {
        Some(address) => run(address, &given[2..]),
        None => failed(format!("there is no address {}", given[0])),
    }
}

/// The number that an argument is.
pub(crate) fn number<T: FromStr<Err: Display>>(text: &str, name: &str) -> Outcome<T> {
    text.parse()
        .map_err(|error| Failure::Usage(format!("{name} is '{text}': {error}")))
}

/// A peer on the device that has the address.
pub(crate) fn local_peer(address: SocketAddr) -> Outcome<Peer> {
    Ok(Peer::new(&Device::local_at(address)?)?)
}

/// A peer on the device that leads to the address.
pub(crate) fn remote_peer(address: SocketAddr) -> Outcome<Peer> {
    Ok(Peer::new(&Device::remote(address, SOON)?)?)
}

/// Listens, and says where: a port of 0 is the system's choice.
pub(crate) fn listen(peer: &Peer, address: SocketAddr) -> Outcome<Endpoint> {
    let endpoint = Endpoint::listen(peer, address)?;
    eprintln!("listening at {}", endpoint.local_addr());
    Ok(endpoint)
}

/// Waits for a client.
pub(crate) fn next_request(
    endpoint: &Endpoint,
    config: &ConnectionConfig,
) -> Outcome<ConnectionRequest> {
    Ok(endpoint.next_connection_request(config, PATIENCE)?)
}

/// Accepts a client, and waits until data can flow.
pub(crate) fn accept(request: ConnectionRequest, data: PrivateData) -> Outcome<Connection> {
    let connection = request.connect(data)?;
    connection.wait_established(SOON)?;
    Ok(connection)
}

/// Connects to a server. One that refuses, or does not listen yet, is asked again.
pub(crate) fn connect(
    peer: &Peer,
    server: SocketAddr,
    config: &ConnectionConfig,
    data: &PrivateData,
) -> Outcome<Connection> {
    let mut tries = 1;
    loop {
        let connection = ConnectionRequest::new(peer, server, config)?.connect(data.clone())?;
        match connection.wait_established(SOON) {
            Ok(()) => return Ok(connection),
            Err(error) => match error.kind() {
                ErrorKind::Rejected | ErrorKind::NoListener if tries < TRIES => {
                    eprintln!("{error}; trying again in {} s", BETWEEN.as_secs());
                }
                _ => return Err(error.into()),
            },
        }
        tries += 1;
        thread::sleep(BETWEEN);
    }
}

/// Ends a connection from this side.
pub(crate) fn end(connection: &Connection) -> Outcome {
    connection.disconnect()?;
    closed(connection, SOON)
}

/// Waits until the other side ends a connection, and answers.
pub(crate) fn wait_end(connection: &Connection) -> Outcome {
    closed(connection, PATIENCE)?;
    Ok(connection.disconnect()?)
}

fn closed(connection: &Connection, timeout: Duration) -> Outcome {
    loop {
        match connection.next_event(timeout)? {
            ConnectionEvent::Closed => return Ok(()),
            lost @ ConnectionEvent::Lost { .. } => return failed(lost.to_string()),
            _ => {}
        }
    }
}

/// The next completion of a queue, which must be a success.
pub(crate) fn completed(queue: &CompletionQueue) -> Outcome<Completion> {
    succeeded(queue.next(SOON)?)
}

/// The completion, if it is a success.
pub(crate) fn succeeded(completion: Completion) -> Outcome<Completion> {
    match completion.result() {
        Ok(_) => Ok(completion),
        Err(status) => failed(format!("an operation failed: {status}")),
    }
}

/// The next completion of a queue, which must be of this operation.
pub(crate) fn completed_as(queue: &CompletionQueue, expected: Opcode) -> Outcome<Completion> {
    let completion = completed(queue)?;
    match completion.opcode() {
        Some(found) if found != expected => failed(format!(
            "a completion of '{found}' came instead of '{expected}'"
        )),
        _ => Ok(completion),
    }
}

/// The text that ends where a zero is.
pub(crate) fn text(bytes: &[u8]) -> String {
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

/// The text in a part of a region.
pub(crate) fn text_in(region: &LocalRegion, range: Range<usize>) -> Outcome<String> {
    let mut bytes = vec![0; range.len()];
    region.load(range.start, &mut bytes)?;
    Ok(text(&bytes))
}

/// A text as C has it, with a zero behind it.
pub(crate) fn with_zero(text: &str) -> Vec<u8> {
    [text.as_bytes(), &[0]].concat()
}

/// A region: the beginning of a file, where one is named, or ordinary memory.
pub(crate) fn memory(
    peer: &Peer,
    file: Option<&String>,
    len: usize,
    usage: Usage,
) -> Outcome<LocalRegion> {
    let Some(path) = file else {
        return Ok(LocalRegion::alloc(peer, len, usage)?);
    };
    let opened = File::options().read(true).write(true).open(path);
    let opened = opened.map_err(|error| Failure::Other(format!("cannot open {path}: {error}")))?;
    Ok(LocalRegion::map_file(peer, &opened, ..len as u64, usage)?)
}

/// Whether what is in a region can outlive the machine's power.
pub(crate) fn can_persist(region: &LocalRegion) -> bool {
    region.persist_method().is_some()
}

/// Makes a part of a region persistent, if it is of a file.
pub(crate) fn persist(region: &LocalRegion, range: Range<usize>) -> Outcome {
    if can_persist(region) {
        region.persist(range.start as u64..range.end as u64)?;
    }
    Ok(())
}
