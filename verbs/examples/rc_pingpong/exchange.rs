//! How the two ends tell each other where they are: over TCP, in the text that `ibv_rc_pingpong` uses.
//!
//! The client sends its address, the server answers with its own, and the client confirms with the word "done". An address is
//! `LID:QPN:PSN:GID` in hexadecimal digits, of 4, 6, 6 and 32 characters, and ends in a zero byte, as does "done".

use std::fmt;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::AsFd;
use std::time::Duration;

use verbs::{Deadline, Gid, wait_for};

use crate::Failure;

/// Bytes of an address with the zero at its end.
const LENGTH: usize = 4 + 1 + 6 + 1 + 6 + 1 + 32 + 1;
const DONE: &[u8] = b"done\0";

/// Where one end is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Location {
    /// The port's address inside its InfiniBand subnet, 0 elsewhere.
    pub(crate) lid: u16,
    /// The queue pair's number.
    pub(crate) qpn: u32,
    /// The number of the first packet.
    pub(crate) psn: u32,
    /// The port's address beyond the subnet, all zero if it is not to be used.
    pub(crate) gid: Gid,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lid, qpn, psn, gid } = self;
        let gid = Ipv6Addr::from(gid.0);
        write!(
            f,
            "LID {lid:#06x}, QPN {qpn:#08x}, PSN {psn:#08x}, GID {gid}"
        )
    }
}

impl Location {
    fn to_wire(self) -> Vec<u8> {
        let Self { lid, qpn, psn, gid } = self;
        let gid = u128::from_be_bytes(gid.0);
        format!("{lid:04x}:{qpn:06x}:{psn:06x}:{gid:032x}\0").into_bytes()
    }

    /// What a peer has sent, which may be anybody.
    fn from_wire(bytes: &[u8; LENGTH]) -> Result<Self, Failure> {
        parse(bytes).ok_or_else(|| {
            let shown = bytes.escape_ascii();
            Failure(format!(
                "the peer's address is \"{shown}\", not LID:QPN:PSN:GID as ibv_rc_pingpong sends it; is something else using \
                 this TCP port?"
            ))
        })
    }
}

fn parse(bytes: &[u8; LENGTH]) -> Option<Location> {
    let text = std::str::from_utf8(bytes.strip_suffix(b"\0")?).ok()?;
    let mut parts = text.split(':');
    let mut next = |digits: usize| {
        let part = parts.next()?;
        let hex = part.len() == digits && part.bytes().all(|byte| byte.is_ascii_hexdigit());
        hex.then(|| u128::from_str_radix(part, 16).ok())?
    };
    let location = Location {
        lid: next(4)?.try_into().ok()?,
        qpn: next(6)?.try_into().ok()?,
        psn: next(6)?.try_into().ok()?,
        gid: Gid(next(32)?.to_be_bytes()),
    };
    parts.next().is_none().then_some(location)
}

/// The listening end of the exchange.
pub(crate) struct Server {
    listener: TcpListener,
    port: u16,
}

impl Server {
    /// Listens for clients of both IPv4 and IPv6, where the system has both.
    pub(crate) fn listen(port: u16) -> Result<Self, Failure> {
        let all: [SocketAddr; 2] = [
            (Ipv6Addr::UNSPECIFIED, port).into(),
            (Ipv4Addr::UNSPECIFIED, port).into(),
        ];
        let listener = TcpListener::bind(&all[..]).map_err(|error| {
            Failure(format!(
                "cannot listen on TCP port {port}: {error}; -p chooses another one"
            ))
        })?;
        let server = Self { listener, port };
        let set = server.listener.set_nonblocking(true);
        set.map_err(|error| Failure(format!("TCP port {port}: {error}")))?;
        Ok(server)
    }

    /// Waits for one client.
    pub(crate) fn accept(&self, deadline: Deadline) -> Result<Peer, Failure> {
        let accepted = wait_for(self.listener.as_fd(), deadline, || {
            match self.listener.accept() {
                Ok((stream, _)) => Ok(Some(stream)),
                Err(error) if is_transient(error.kind()) => Ok(None),
                Err(error) => Err(Failure(format!("TCP port {}: {error}", self.port))),
            }
        })?;
        let stream = accepted.ok_or_else(|| {
            Failure(format!(
                "no client came to TCP port {} in time; --timeout gives more",
                self.port
            ))
        })?;
        let blocking = stream.set_nonblocking(false);
        blocking.map_err(|error| Failure(format!("TCP connection: {error}")))?;
        Ok(Peer { stream, deadline })
    }
}

/// A client that went away again, or a signal, are no reason to give up.
fn is_transient(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::ConnectionAborted
    )
}

/// The other end of the exchange.
pub(crate) struct Peer {
    stream: TcpStream,
    /// The end of the whole exchange.
    deadline: Deadline,
}

impl Peer {
    /// Connects to the server, at whichever of its addresses answers.
    pub(crate) fn connect(host: &str, port: u16, deadline: Deadline) -> Result<Self, Failure> {
        let addresses = (host, port)
            .to_socket_addrs()
            .map_err(|error| Failure(format!("no address of host '{host}': {error}")))?;
        let mut last = format!("host '{host}' has no address");
        for address in addresses {
            match TcpStream::connect_timeout(&address, left(deadline)) {
                Ok(stream) => return Ok(Self { stream, deadline }),
                Err(error) => {
                    last = format!(
                        "cannot connect to {address}: {error}; is the server running there, and on this TCP port (-p)?"
                    );
                }
            }
        }
        Err(Failure(last))
    }

    /// Tells the server our address, and gives its answer.
    pub(crate) fn swap_as_client(&mut self, ours: &Location) -> Result<Location, Failure> {
        self.write(&ours.to_wire())?;
        self.receive()
    }

    /// Lets the server begin.
    pub(crate) fn confirm(&mut self) -> Result<(), Failure> {
        self.write(DONE)
    }

    /// Tells the client our address, and waits until it is ready.
    pub(crate) fn answer_as_server(&mut self, ours: &Location) -> Result<(), Failure> {
        self.write(&ours.to_wire())?;
        let mut word = [0; DONE.len()];
        self.read(&mut word, "the word \"done\"")?;
        if word == *DONE {
            return Ok(());
        }
        let shown = word.escape_ascii();
        Err(Failure(format!(
            "the client sent \"{shown}\" where \"done\\x00\" was due"
        )))
    }

    /// Reads the address of the peer.
    pub(crate) fn receive(&mut self) -> Result<Location, Failure> {
        let mut bytes = [0; LENGTH];
        self.read(&mut bytes, "its address")?;
        Location::from_wire(&bytes)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let told = |error| Failure(format!("cannot send to the peer over TCP: {error}"));
        self.stream
            .set_write_timeout(Some(left(self.deadline)))
            .map_err(told)?;
        self.stream.write_all(bytes).map_err(told)
    }

    fn read(&mut self, bytes: &mut [u8], what: &str) -> Result<(), Failure> {
        let told = |error| {
            Failure(format!(
                "cannot receive {what} from the peer over TCP: {error}"
            ))
        };
        let (mut got, due) = (0, bytes.len());
        while got < due {
            if self.deadline.has_passed() {
                return Err(Failure(format!(
                    "the peer sent {got} of the {due} bytes of {what} in time; is it another program than ibv_rc_pingpong?"
                )));
            }
            self.stream
                .set_read_timeout(Some(left(self.deadline)))
                .map_err(told)?;
            match self.stream.read(&mut bytes[got..]) {
                Ok(0) => {
                    return Err(Failure(format!(
                        "the peer closed the connection after {got} of the {due} bytes of {what}"
                    )));
                }
                Ok(count) => got += count,
                Err(error) if is_transient(error.kind()) => {}
                Err(error) => return Err(told(error)),
            }
        }
        Ok(())
    }
}

/// What is left until the deadline, at least the shortest time that a socket takes.
fn left(deadline: Deadline) -> Duration {
    deadline.remaining().max(Duration::from_millis(1))
}
