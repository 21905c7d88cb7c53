//! Peers written in C: with librdmacm (`depth`), and with librpma, whose programs stand in
//! `tests/c/rpma`. Those check what they get themselves, and end with a code of their own when it
//! is wrong: each rule has a run in which it must be.

mod connections;
mod data;
mod depth;
mod descriptors;
mod gpspm;
mod messages;

use std::process::Command;
use std::time::Duration;

use harness::{Child, Failed, Outcome, Test, WAIT, c_program, device, ensure, ensure_eq, full};
use rpma::{
    Connection, ConnectionConfig, ConnectionEvent, ConnectionRequest, Device, Endpoint, Peer,
    PrivateData,
};

pub(crate) fn tests() -> Vec<Test> {
    [
        depth::tests(),
        descriptors::tests(),
        connections::tests(),
        data::tests(),
        messages::tests(),
        gpspm::tests(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// What the C program ends with when it got other bytes than it must.
const WRONG_BYTES: i32 = 3;
/// The seed of this side's sequence, and that of the C program's.
const OURS: u64 = 11;
const THEIRS: u64 = 22;

/// What the C program is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Client,
    Server,
}

/// Which bytes a run is made with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bytes {
    Right,
    /// This side sends others than the C program waits for.
    OursWrong,
    /// The C program sends others than this side waits for.
    TheirsWrong,
}

impl Bytes {
    /// The seed that this side really has.
    fn ours(self) -> u64 {
        OURS + u64::from(self == Self::OursWrong) * 77
    }

    /// The seed that the C program really has.
    fn theirs(self) -> u64 {
        THEIRS + u64::from(self == Self::TheirsWrong) * 77
    }
}

/// Which runs show a rule: one with the right bytes and one with `wrong` ones, each with the C
/// program in another role; among the long tests both in both.
fn runs(wrong: Bytes) -> Vec<(Role, Bytes)> {
    let few = [(Role::Client, Bytes::Right), (Role::Server, wrong)];
    let more = [(Role::Server, Bytes::Right), (Role::Client, wrong)];
    few.into_iter()
        .chain(more.into_iter().filter(|_| full()))
        .collect()
}

/// This side of the connections with a C program.
#[derive(Debug)]
struct Side {
    peer: Peer,
    /// Where the C program connects to, when it is the client.
    endpoint: Option<Endpoint>,
    child: Child,
    /// Where the C program listens, when it is the server.
    port: u16,
}

impl Side {
    /// Starts a program of `tests/c/rpma`. It is told the seeds besides `arguments`.
    fn start(
        peer: &Peer,
        program: &str,
        role: Role,
        bytes: Bytes,
        arguments: &[String],
    ) -> Result<Self, Failed> {
        let command = Command::new(c_program(&format!("rpma/{program}")));
        Self::start_as(command, peer, role, bytes, arguments)
    }

    /// The same with a program that may have settings already.
    fn start_as(
        mut command: Command,
        peer: &Peer,
        role: Role,
        bytes: Bytes,
        arguments: &[String],
    ) -> Result<Self, Failed> {
        let ip = device().ip.to_string();
        let seeds = [format!("own={}", bytes.theirs()), format!("peer={OURS}")];
        let endpoint = match role {
            Role::Client => Some(Endpoint::listen(peer, device().addr(0))?),
            Role::Server => None,
        };
        let (name, port) = match &endpoint {
            Some(endpoint) => ("client", endpoint.local_addr().port()),
            None => ("server", 0),
        };
        command.args([name, &ip, &port.to_string()]);
        let child = Child::start(command.args(seeds).args(arguments))?;
        let port = match role {
            Role::Client => port,
            Role::Server => {
                let line = child.wait_line("port ", WAIT)?;
                line.trim_start_matches("port ").parse()?
            }
        };
        Ok(Self {
            peer: peer.clone(),
            endpoint,
            child,
            port,
        })
    }

    /// The next request, before it is connected or accepted.
    fn request(&self, config: &ConnectionConfig) -> Result<ConnectionRequest, Failed> {
        Ok(match &self.endpoint {
            Some(endpoint) => endpoint.next_connection_request(config, WAIT)?,
            None => ConnectionRequest::new(&self.peer, device().addr(self.port), config)?,
        })
    }

    /// The next connection, established.
    fn connect(
        &self,
        config: &ConnectionConfig,
        data: &[u8],
        prepare: impl FnOnce(&ConnectionRequest) -> Outcome,
    ) -> Result<Connection, Failed> {
        let request = self.request(config)?;
        prepare(&request)?;
        let connection = request.connect(PrivateData::new(data)?)?;
        connection.wait_established(WAIT)?;
        Ok(connection)
    }

    /// Waits for the end of the program, which must be with the code that the bytes ask for.
    fn finish(self, bytes: Bytes) -> Outcome {
        let finished = self.child.finish(WAIT)?;
        if bytes != Bytes::OursWrong {
            finished.success()?;
            return Ok(());
        }
        ensure_eq!(
            finished.code(),
            WRONG_BYTES,
            "code of the C program: {}",
            finished.stderr
        );
        ensure!(
            finished.stderr.contains("wrong bytes"),
            "it does not say what is wrong: {}",
            finished.stderr
        );
        Ok(())
    }
}

/// A peer on the device in use.
fn peer() -> Result<Peer, Failed> {
    Ok(Peer::new(&Device::local(device().ip)?)?)
}

/// Ends a connection from this side.
fn disconnect(connection: &Connection) -> Outcome {
    connection.disconnect()?;
    wait_closed(connection)
}

/// Waits until the other side has ended the connection, and answers.
fn wait_closed(connection: &Connection) -> Outcome {
    loop {
        match connection.next_event(WAIT)? {
            ConnectionEvent::Closed => return Ok(connection.disconnect()?),
            ConnectionEvent::Established => {}
            other => return Err(format!("{other} instead of the end").into()),
        }
    }
}

/// Checks that this side has noticed the wrong bytes exactly if it was given some.
fn noticed(bytes: Bytes, found: Result<(), String>, what: &str) -> Outcome {
    match (bytes, found) {
        (Bytes::TheirsWrong, Ok(())) => Err(format!("{what}: wrong bytes are taken").into()),
        (Bytes::TheirsWrong, Err(_)) | (_, Ok(())) => Ok(()),
        (_, Err(why)) => Err(format!("{what}: {why}").into()),
    }
}

/// A pause that is too short to matter, for what is asked for again and again.
const NAP: Duration = Duration::from_millis(20);
