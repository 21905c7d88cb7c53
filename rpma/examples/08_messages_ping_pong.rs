//! Two programs send a number to and fro, and the server adds 1 each time.
//!
//! ```text
//! cargo run -p rpma --example 08_messages_ping_pong -- server ADDRESS PORT
//! cargo run -p rpma --example 08_messages_ping_pong -- client ADDRESS PORT SEED ROUNDS [MICROSECONDS]
//! ```
//! The client sleeps `MICROSECONDS` after each round. It shows messages, that there must be a receive
//! before one comes, and completions of both kinds in one queue.

mod common;

use std::net::SocketAddr;
use std::process::ExitCode;

use rpma::{ConnectionConfig, PrivateData};

use common::Outcome;
use common::ping_pong::{self, DONE, Messages, next_message};

pub(crate) fn main() -> ExitCode {
    common::run(
        ("", server),
        ("SEED ROUNDS [MICROSECONDS]", |server, arguments| {
            ping_pong::client(server, arguments, &ConnectionConfig::default(), "")
        }),
    )
}

fn server(address: SocketAddr, _: &[String]) -> Outcome {
    let peer = common::local_peer(address)?;
    let messages = Messages::new(&peer)?;
    let endpoint = common::listen(&peer, address)?;
    let request = common::next_request(&endpoint, &ConnectionConfig::default())?;
    // Before the client is let in: its first message may come at once.
    request.recv(messages.inbox.as_span(), 0)?;
    let connection = common::accept(request, PrivateData::none())?;
    let mut sent = true;
    loop {
        next_message(&connection, connection.cq(), sent)?;
        let value = messages.received()?;
        if value == DONE {
            return common::end(&connection);
        }
        println!("got {value}");
        connection.recv(messages.inbox.as_span(), 0)?;
        let answer = value.wrapping_add(1);
        println!("sent {answer}");
        messages.send(&connection, answer)?;
        sent = false;
    }
}
