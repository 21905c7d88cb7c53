//! A server with many clients at once, in one thread: it sleeps until one of all its descriptors has
//! something, and reads each client's name out of that client's memory.
//!
//! ```text
//! cargo run -p rpma --example 06_multiple_connections -- server ADDRESS PORT [shared]
//! cargo run -p rpma --example 06_multiple_connections -- client ADDRESS PORT SEED
//! ```
//! The server ends when nothing has come for 15 seconds. With `shared` it gets the completions of
//! each connection through a channel of several queues. It shows the calls that never block, and
//! what they are driven by.

mod common;

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::process::ExitCode;
use std::time::Duration;

use rpma::gpspm::Announcement;
use rpma::{
    Completion, Connection, ConnectionConfig, ConnectionEvent, Endpoint, LocalRegion, Peer,
    PrivateData, Signal, Usage,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use common::{Failure, Outcome};

const CLIENTS: usize = 10;
/// Bytes of a name, with the zeros behind it.
const NAME: usize = 32;
const IDLE: Duration = Duration::from_secs(15);
const NAMES: [&str; 8] = [
    "Ada", "Blaise", "Charles", "Dorothy", "Edsger", "Frances", "Grace", "Hedy",
];

pub(crate) fn main() -> ExitCode {
    common::run(("[shared]", server), ("SEED", client))
}

fn client(server: SocketAddr, arguments: &[String]) -> Outcome {
    let seed: usize = common::number(&arguments[0], "SEED")?;
    let name = NAMES[seed % NAMES.len()];
    println!("I am {name}");
    let peer = common::remote_peer(server)?;
    let region = LocalRegion::alloc(&peer, NAME, Usage::READ_SRC)?;
    region.store(0, name.as_bytes())?;
    let announced = Announcement::of(&region, 0, None)?;
    let connection = common::connect(&peer, server, &ConnectionConfig::default(), &announced)?;
    common::wait_end(&connection)
}

/// A client at the server. Its place is where its name is read to.
struct Client {
    connection: Connection,
    place: usize,
}

struct Server {
    endpoint: Endpoint,
    config: ConnectionConfig,
    names: LocalRegion,
    clients: Vec<Client>,
}

fn server(address: SocketAddr, arguments: &[String]) -> Outcome {
    let mut config = ConnectionConfig::default();
    match arguments.first().map(String::as_str) {
        None => {}
        Some("shared") => {
            config.set_shared_completion_channel(true);
        }
        Some(other) => return Err(Failure::Usage(format!("'{other}' is not shared"))),
    }
    let peer: Peer = common::local_peer(address)?;
    let mut server = Server {
        names: LocalRegion::alloc(&peer, CLIENTS * NAME, Usage::READ_DST)?,
        endpoint: common::listen(&peer, address)?,
        config,
        clients: Vec::new(),
    };
    println!("clients until now:");
    while server.wait()? {
        server.welcome();
        server.look_after_clients();
    }
    eprintln!("nothing has come for {} s", IDLE.as_secs());
    Ok(())
}

impl Server {
    /// Sleeps until any descriptor has something; `false` when none had for too long.
    fn wait(&self) -> Outcome<bool> {
        let mut descriptors = vec![self.endpoint.as_fd()];
        for client in &self.clients {
            descriptors.push(client.connection.event_fd()?);
            descriptors.push(client.completion_fd()?);
        }
        let watched = descriptors.into_iter();
        let mut watched: Vec<PollFd<'_>> = watched
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        let idle = Timespec {
            tv_sec: IDLE.as_secs().cast_signed(),
            tv_nsec: 0,
        };
        match poll(&mut watched, Some(&idle)) {
            Ok(ready) => Ok(ready > 0),
            Err(error) => common::failed(format!("cannot wait: {error}")),
        }
    }

    /// Takes in those who ask. Where something fails, only that client is lost.
    fn welcome(&mut self) {
        loop {
            let request = match self.endpoint.try_next_connection_request(&self.config) {
                Ok(Some(request)) => request,
                Ok(None) => return,
                Err(error) => {
                    eprintln!("a client was refused: {error}");
                    return;
                }
            };
            let taken = |place: &usize| self.clients.iter().any(|client| client.place == *place);
            let free = (0..CLIENTS).find(|place| !taken(place));
            let answered = match free {
                Some(place) => request.connect(PrivateData::none()).map(|connection| {
                    self.clients.push(Client { connection, place });
                }),
                None => PrivateData::new(b"full\0").and_then(|full| request.reject(full)),
            };
            if let Err(error) = answered {
                eprintln!("a client was lost: {error}");
            }
        }
    }

    /// Does what is to be done for each client, and lets go of those who have gone.
    fn look_after_clients(&mut self) {
        let names = &self.names;
        self.clients.retain(|client| {
            client.look(names).unwrap_or_else(|failure| {
                eprintln!("a client was lost: {failure:?}");
                false
            })
        });
    }
}

impl Client {
    fn completion_fd(&self) -> Outcome<BorrowedFd<'_>> {
        match self.connection.completion_fd() {
            Ok(shared) => Ok(shared),
            Err(rpma::Error::NotSharedChannel) => Ok(self.connection.cq().as_fd()),
            Err(error) => Err(error.into()),
        }
    }

    /// The completions that are there. Looking for events is what makes the descriptor silent.
    fn completions(&self) -> Outcome<Vec<Completion>> {
        let mut found = Vec::new();
        if self.connection.completion_fd().is_ok() {
            while let Some(ready) = self.connection.try_wait()? {
                while let Some(completion) = ready.queue().poll_one()? {
                    found.push(completion);
                }
            }
        } else {
            while self.connection.cq().try_wait()? {
                while let Some(completion) = self.connection.next_completion()? {
                    found.push(completion);
                }
            }
        }
        Ok(found)
    }

    /// Whether the client is still there.
    fn look(&self, names: &LocalRegion) -> Outcome<bool> {
        let start = self.place * NAME;
        while let Some(event) = self.connection.try_next_event()? {
            match event {
                ConnectionEvent::Established => {
                    let theirs = Announcement::decode(self.connection.private_data())?;
                    let room = names.span(start as u64..(start + NAME) as u64)?;
                    let source = theirs.region.span(..NAME as u64)?;
                    self.connection.read(room, source, Signal::Always, 0)?;
                }
                ConnectionEvent::Closed | ConnectionEvent::Lost { .. } => return Ok(false),
                _ => {}
            }
        }
        for completion in self.completions()? {
            common::succeeded(completion)?;
            println!("- {}", common::text_in(names, start..start + NAME)?);
            self.connection.disconnect()?;
        }
        Ok(true)
    }
}
