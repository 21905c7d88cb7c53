//! The server reads a greeting out of the client's memory into memory of its own that may be
//! persistent.
//!
//! ```text
//! cargo run -p rpma --example 03_read_to_persistent -- server ADDRESS PORT [FILE]
//! cargo run -p rpma --example 03_read_to_persistent -- client ADDRESS PORT [FILE [OFFSET]]
//! ```
//! A file is one on a DAX file system, or a DAX device; without one it is ordinary memory. It shows
//! that either side may start an operation, and that data of a read are persistent only when the
//! side that has read them says so.

mod common;

use std::net::SocketAddr;
use std::process::ExitCode;

use rpma::gpspm::Announcement;
use rpma::{ConnectionConfig, Opcode, PrivateData, Signal, Usage};

use common::Outcome;
use common::greeting::{Greeting, TEXT};
use common::store::Store;

pub(crate) fn main() -> ExitCode {
    common::run(("[FILE]", server), ("[FILE] [OFFSET]", client))
}

fn server(address: SocketAddr, arguments: &[String]) -> Outcome {
    let peer = common::local_peer(address)?;
    let mut store = Store::open(&peer, arguments.first(), 0, TEXT, Usage::READ_DST)?;
    if let Some(text) = store.text()? {
        println!("was: {text}");
    }
    let endpoint = common::listen(&peer, address)?;
    let request = common::next_request(&endpoint, &ConnectionConfig::default())?;
    let connection = common::accept(request, PrivateData::none())?;
    let theirs = Announcement::decode(connection.private_data())?;
    let start = u64::from(theirs.data_offset);
    let source = theirs.region.span(start..start + TEXT as u64)?;
    connection.read(store.span()?, source, Signal::Always, 0)?;
    common::completed_as(connection.cq(), Opcode::RDMA_READ)?;
    store.commit()?;
    println!("is: {}", store.text()?.unwrap_or_default());
    common::end(&connection)
}

fn client(server: SocketAddr, arguments: &[String]) -> Outcome {
    let peer = common::remote_peer(server)?;
    let greeting = Greeting::open(&peer, arguments, Usage::READ_SRC)?;
    let announced = greeting.announced()?;
    let connection = common::connect(&peer, server, &ConnectionConfig::default(), &announced)?;
    common::wait_end(&connection)?;
    greeting.translate()
}
