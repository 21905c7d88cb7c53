//! The client writes a greeting into the server's memory, and reads behind it, so that the greeting
//! has left the server's device when the read has ended.
//!
//! ```text
//! cargo run -p rpma --example 04_write_to_persistent -- server ADDRESS PORT [FILE]
//! cargo run -p rpma --example 04_write_to_persistent -- client ADDRESS PORT [FILE [OFFSET]]
//! ```
//! It shows what a flush is made of where devices have none: the next example leaves it to the
//! library.

mod common;

use std::net::SocketAddr;
use std::process::ExitCode;

use rpma::gpspm::Announcement;
use rpma::{ConnectionConfig, LocalRegion, Opcode, PrivateData, Signal, Usage};

use common::Outcome;
use common::greeting::{Greeting, TEXT};
use common::store::Store;

pub(crate) fn main() -> ExitCode {
    common::run(("[FILE]", server), ("[FILE] [OFFSET]", client))
}

fn server(address: SocketAddr, arguments: &[String]) -> Outcome {
    let peer = common::local_peer(address)?;
    let usage = Usage::WRITE_DST | Usage::READ_SRC;
    let mut store = Store::open(&peer, arguments.first(), 0, TEXT, usage)?;
    if let Some(text) = store.text()? {
        println!("was: {text}");
    }
    let endpoint = common::listen(&peer, address)?;
    let request = common::next_request(&endpoint, &ConnectionConfig::default())?;
    let connection = common::accept(request, store.announced(0, None)?)?;
    common::wait_end(&connection)?;
    store.commit()?;
    println!("is: {}", store.text()?.unwrap_or_default());
    Ok(())
}

fn client(server: SocketAddr, arguments: &[String]) -> Outcome {
    let peer = common::remote_peer(server)?;
    let greeting = Greeting::open(&peer, arguments, Usage::WRITE_SRC)?;
    let read = LocalRegion::alloc(&peer, 8, Usage::READ_DST)?;
    let config = ConnectionConfig::default();
    let connection = common::connect(&peer, server, &config, &PrivateData::none())?;
    let theirs = Announcement::decode(connection.private_data())?;
    let start = u64::from(theirs.data_offset);
    let target = theirs.region.span(start..start + TEXT as u64)?;
    connection.write(target, greeting.span()?, Signal::OnError, 1)?;
    // Where it reads does not matter: operations of one connection take effect in their order.
    let behind = theirs.region.span(start..start + 8)?;
    connection.read(read.as_span(), behind, Signal::Always, 2)?;
    common::completed_as(connection.cq(), Opcode::RDMA_READ)?;
    greeting.translate()?;
    common::end(&connection)
}
