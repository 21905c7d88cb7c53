//! Many clients send numbers to one server, whose receives all come out of one shared receive queue.
//!
//! ```text
//! cargo run -p rpma --example 13_messages_ping_pong_with_srq -- server ADDRESS PORT [SECONDS]
//! cargo run -p rpma --example 13_messages_ping_pong_with_srq -- client ADDRESS PORT SEED ROUNDS [MICROSECONDS]
//! ```
//! The server lets clients in until none has come for `SECONDS` (5), then serves them. It shows one
//! queue for the receives of all connections, and how to tell from whom a message is.

mod common;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use rpma::{
    Completion, Connection, ConnectionConfig, ErrorKind, LocalRegion, Peer, PrivateData,
    SharedReceiveQueue, Signal, SrqConfig, Usage,
};

use common::ping_pong::{self, DONE, MESSAGE};
use common::{Failure, Outcome, failed};

const CLIENTS: usize = 10;

pub(crate) fn main() -> ExitCode {
    common::run(
        ("[SECONDS]", server),
        ("SEED ROUNDS [MICROSECONDS]", |server, arguments| {
            ping_pong::client(server, arguments, &ConnectionConfig::default(), "client: ")
        }),
    )
}

struct Server {
    srq: SharedReceiveQueue,
    /// A place of 8 bytes for each client's messages, here and there.
    inbox: LocalRegion,
    outbox: LocalRegion,
    connections: Vec<Connection>,
}

fn server(address: SocketAddr, arguments: &[String]) -> Outcome {
    let seconds = match arguments.first() {
        Some(text) => common::number(text, "SECONDS")?,
        None => 5.0,
    };
    let patience = Duration::try_from_secs_f64(seconds)
        .map_err(|error| Failure::Usage(format!("SECONDS is {seconds}: {error}")))?;
    let peer: Peer = common::local_peer(address)?;
    let size = CLIENTS * 8;
    let mut server = Server {
        srq: SharedReceiveQueue::new(&peer, &SrqConfig::default())?,
        inbox: LocalRegion::alloc(&peer, size, Usage::RECV)?,
        outbox: LocalRegion::alloc(&peer, size, Usage::SEND)?,
        connections: Vec::new(),
    };
    let endpoint = common::listen(&peer, address)?;
    let mut config = ConnectionConfig::default();
    config.set_srq(Some(&server.srq));
    while server.connections.len() < CLIENTS {
        let request = match endpoint.next_connection_request(&config, patience) {
            Err(error) if error.kind() == ErrorKind::TimedOut => break,
            request => request?,
        };
        server.receive(server.connections.len())?;
        let connection = common::accept(request, PrivateData::none())?;
        server.connections.push(connection);
        println!("clients: {}", server.connections.len());
    }
    // Whoever comes now is told so.
    drop(endpoint);
    println!("no more clients are taken");
    let mut open = server.connections.len();
    while open > 0 {
        if server.answer()? {
            open -= 1;
        }
    }
    server.connections.iter().try_for_each(common::end)
}

impl Server {
    /// Posts a receive, known by its place.
    fn receive(&self, place: usize) -> Outcome {
        let start = place as u64 * MESSAGE;
        let room = self.inbox.span(start..start + MESSAGE)?;
        Ok(self.srq.recv(room, place as u64)?)
    }

    /// Answers the next message, from whichever client; `true` if it was that client's last.
    fn answer(&self) -> Outcome<bool> {
        let Some(receives) = self.srq.rcq() else {
            return failed("the shared receive queue has no completion queue");
        };
        let message: Completion = common::completed(receives)?;
        // Any receive may take any client's message: only the queue pair tells whose it is.
        let from = self.connections.iter();
        let Some((client, connection)) = from
            .enumerate()
            .find(|(_, connection)| connection.qp_num() == message.qp_num())
        else {
            return failed("a message came over no connection of this server");
        };
        let place = usize::try_from(message.op_context()).unwrap_or(usize::MAX);
        let mut value = [0; 8];
        self.inbox.load(place.saturating_mul(8), &mut value)?;
        let value = u64::from_ne_bytes(value);
        if value == DONE {
            return Ok(true);
        }
        let qp = message.qp_num();
        println!("queue pair {qp}: got {value}");
        self.receive(place)?;
        // What was sent to this client before has arrived, or it would not ask again.
        while let Some(sent) = connection.next_completion()? {
            common::succeeded(sent)?;
        }
        let answer = value.wrapping_add(1);
        println!("queue pair {qp}: sent {answer}");
        let start = client * 8;
        self.outbox.store(start, &answer.to_ne_bytes())?;
        let start = start as u64;
        let source = self.outbox.span(start..start + MESSAGE)?;
        connection.send(source, Signal::Always, 0)?;
        Ok(false)
    }
}
