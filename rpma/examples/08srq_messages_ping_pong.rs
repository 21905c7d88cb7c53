//! The server of `08_messages_ping_pong`, whose receives come out of a shared receive queue; the client
//! is the same.
//!
//! ```text
//! cargo run -p rpma --example 08srq_messages_ping_pong -- server ADDRESS PORT [m|r]
//! cargo run -p rpma --example 08srq_messages_ping_pong -- client ADDRESS PORT SEED ROUNDS [MICROSECONDS]
//! ```
//! It shows where such receives complete: with `m` in the connection's only queue, with `r` in its
//! receive queue, otherwise in the queue of the shared receive queue.

mod common;

use std::net::SocketAddr;
use std::process::ExitCode;

use rpma::{ConnectionConfig, PrivateData, SharedReceiveQueue, SrqConfig};

use common::ping_pong::{self, DONE, Messages, next_message};
use common::{Failure, Outcome, failed};

pub(crate) fn main() -> ExitCode {
    common::run(
        ("[m|r]", server),
        ("SEED ROUNDS [MICROSECONDS]", |server, arguments| {
            ping_pong::client(server, arguments, &ConnectionConfig::default(), "")
        }),
    )
}

fn server(address: SocketAddr, arguments: &[String]) -> Outcome {
    let mut of_srq = SrqConfig::default();
    let mut config = ConnectionConfig::default();
    match arguments.first().map(String::as_str) {
        None => {}
        Some("m") => {
            of_srq.set_rcq_size(0);
        }
        Some("r") => {
            of_srq.set_rcq_size(0);
            // Room for every receive that can be posted.
            config.set_rcq_size(of_srq.rq_size());
        }
        Some(other) => return Err(Failure::Usage(format!("'{other}' is neither m nor r"))),
    }
    let peer = common::local_peer(address)?;
    let srq = SharedReceiveQueue::new(&peer, &of_srq)?;
    config.set_srq(Some(&srq));
    let messages = Messages::new(&peer)?;
    srq.recv(messages.inbox.as_span(), 0)?;
    let endpoint = common::listen(&peer, address)?;
    let request = common::next_request(&endpoint, &config)?;
    let connection = common::accept(request, PrivateData::none())?;
    let of_connection = connection.rcq().unwrap_or(connection.cq());
    let receives = srq.rcq().unwrap_or(of_connection);
    let mut sent = true;
    loop {
        let message = next_message(&connection, receives, sent)?;
        if message.qp_num() != connection.qp_num() {
            return failed("a message came over another connection");
        }
        let value = messages.received()?;
        if value == DONE {
            return common::end(&connection);
        }
        println!("got {value}");
        srq.recv(messages.inbox.as_span(), 0)?;
        let answer = value.wrapping_add(1);
        println!("sent {answer}");
        messages.send(&connection, answer)?;
        sent = false;
    }
}
