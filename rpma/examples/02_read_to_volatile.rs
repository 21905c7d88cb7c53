//! The client reads what the server has in its memory, while the server does nothing.
//!
//! ```text
//! cargo run -p rpma --example 02_read_to_volatile -- server ADDRESS PORT
//! cargo run -p rpma --example 02_read_to_volatile -- client ADDRESS PORT
//! ```
//! It shows regions, how one is described to the other side, and a read.

mod common;

use std::net::SocketAddr;
use std::process::ExitCode;

use rpma::gpspm::Announcement;
use rpma::{ConnectionConfig, LocalRegion, Opcode, PrivateData, Signal, Usage};

use common::{Outcome, failed};

const WORDS: &[u8] = b"Hello client!\0";
/// What the client has room for.
const ROOM: usize = 1024;

pub(crate) fn main() -> ExitCode {
    common::run(("", server), ("", client))
}

fn server(address: SocketAddr, _: &[String]) -> Outcome {
    let peer = common::local_peer(address)?;
    let region = LocalRegion::alloc(&peer, WORDS.len(), Usage::READ_SRC)?;
    region.store(0, WORDS)?;
    let endpoint = common::listen(&peer, address)?;
    let request = common::next_request(&endpoint, &ConnectionConfig::default())?;
    let connection = common::accept(request, Announcement::of(&region, 0, None)?)?;
    common::wait_end(&connection)
}

fn client(server: SocketAddr, _: &[String]) -> Outcome {
    let peer = common::remote_peer(server)?;
    let room = LocalRegion::alloc(&peer, ROOM, Usage::READ_DST)?;
    let config = ConnectionConfig::default();
    let connection = common::connect(&peer, server, &config, &PrivateData::none())?;
    let theirs = Announcement::decode(connection.private_data())?.region;
    if theirs.len() > ROOM as u64 {
        return failed(format!(
            "the server has {} bytes, and there is room for {ROOM}",
            theirs.len()
        ));
    }
    let target = room.span(..theirs.len())?;
    connection.read(target, theirs.as_span(), Signal::Always, 0)?;
    common::completed_as(connection.cq(), Opcode::RDMA_READ)?;
    println!(
        "in the memory of the server: {}",
        common::text_in(&room, 0..ROOM)?
    );
    common::end(&connection)
}
