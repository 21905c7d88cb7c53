//! As `08_messages_ping_pong`, with a queue for the completions of receives alone.
//!
//! ```text
//! cargo run -p rpma --example 12_receive_completion_queue -- server ADDRESS PORT [shared]
//! cargo run -p rpma --example 12_receive_completion_queue -- client ADDRESS PORT SEED ROUNDS [MICROSECONDS]
//! ```
//! With `shared` both queues of the server report to one channel. It shows waiting for the kind of
//! completion that is wanted, and for either.

mod common;

use std::net::SocketAddr;
use std::process::ExitCode;

use rpma::{Connection, ConnectionConfig, PrivateData};

use common::ping_pong::{self, DONE, Messages, next_message};
use common::{Failure, Outcome, SOON, failed};

const ENTRIES: u32 = 10;

pub(crate) fn main() -> ExitCode {
    common::run(
        ("[shared]", server),
        ("SEED ROUNDS [MICROSECONDS]", |server, arguments| {
            let mut config = ConnectionConfig::default();
            config.set_rcq_size(ENTRIES);
            ping_pong::client(server, arguments, &config, "client: ")
        }),
    )
}

fn server(address: SocketAddr, arguments: &[String]) -> Outcome {
    let shared = match arguments.first().map(String::as_str) {
        None => false,
        Some("shared") => true,
        Some(other) => return Err(Failure::Usage(format!("'{other}' is not shared"))),
    };
    let mut config = ConnectionConfig::default();
    config
        .set_rcq_size(ENTRIES)
        .set_shared_completion_channel(shared);
    let peer = common::local_peer(address)?;
    let messages = Messages::new(&peer)?;
    let endpoint = common::listen(&peer, address)?;
    let request = common::next_request(&endpoint, &config)?;
    request.recv(messages.inbox.as_span(), 0)?;
    let connection = common::accept(request, PrivateData::none())?;
    let Some(rcq) = connection.rcq() else {
        return failed("the connection has no queue for receives");
    };
    let mut sent = true;
    loop {
        if shared {
            either_way(&connection, sent)?;
        } else {
            next_message(&connection, rcq, sent)?;
        }
        let value = messages.received()?;
        if value == DONE {
            return common::end(&connection);
        }
        println!("server: got {value}");
        connection.recv(messages.inbox.as_span(), 0)?;
        let answer = value.wrapping_add(1);
        println!("server: sent {answer}");
        messages.send(&connection, answer)?;
        sent = false;
    }
}

/// Waits for the next message, and until the last one was sent, at whichever queue has something.
fn either_way(connection: &Connection, mut sent: bool) -> Outcome {
    let mut received = false;
    while !(sent && received) {
        let ready = connection.wait(SOON)?;
        // There may be nothing: what was reported may have been taken before.
        while let Some(completion) = ready.queue().poll_one()? {
            common::succeeded(completion)?;
            if ready.is_rcq() {
                received = true;
            } else {
                sent = true;
            }
        }
    }
    Ok(())
}
