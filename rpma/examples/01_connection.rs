//! Two programs meet, exchange a few bytes with the handshake itself, and part.
//!
//! ```text
//! cargo run -p rpma --example 01_connection -- server ADDRESS PORT
//! cargo run -p rpma --example 01_connection -- client ADDRESS PORT
//! ```
//! It shows the way from a device to a connection, private data, and how a connection ends.

mod common;

use std::net::SocketAddr;
use std::process::ExitCode;

use rpma::{ConnectionConfig, PrivateData};

use common::Outcome;

pub(crate) fn main() -> ExitCode {
    common::run(("", server), ("", client))
}

fn server(address: SocketAddr, _: &[String]) -> Outcome {
    let peer = common::local_peer(address)?;
    let endpoint = common::listen(&peer, address)?;
    let request = common::next_request(&endpoint, &ConnectionConfig::default())?;
    // The client's words came with its request: they can be looked at before it is accepted.
    println!("the peer says: {}", common::text(request.private_data()));
    let connection = common::accept(request, PrivateData::new(b"Hello client!\0")?)?;
    common::end(&connection)
}

fn client(server: SocketAddr, _: &[String]) -> Outcome {
    let peer = common::remote_peer(server)?;
    let words = PrivateData::new(b"Hello server!\0")?;
    let connection = common::connect(&peer, server, &ConnectionConfig::default(), &words)?;
    println!("the peer says: {}", common::text(connection.private_data()));
    common::wait_end(&connection)
}
