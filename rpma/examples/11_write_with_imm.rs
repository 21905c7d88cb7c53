//! The client writes into the server's memory, and the server is told so by 4 bytes that come with it.
//!
//! ```text
//! cargo run -p rpma --example 11_write_with_imm -- server ADDRESS PORT
//! cargo run -p rpma --example 11_write_with_imm -- client ADDRESS PORT IMM
//! ```
//! It shows that a write with immediate data takes a receive, and puts nothing into its memory.

mod common;

use std::net::SocketAddr;
use std::process::ExitCode;

use rpma::gpspm::Announcement;
use rpma::{ConnectionConfig, LocalRegion, Opcode, PrivateData, Signal, Usage};

use common::{Outcome, failed};

/// Bytes that are written.
const SIZE: usize = 1024;

pub(crate) fn main() -> ExitCode {
    common::run(("", server), ("IMM", client))
}

fn server(address: SocketAddr, _: &[String]) -> Outcome {
    let peer = common::local_peer(address)?;
    let target = LocalRegion::alloc(&peer, SIZE, Usage::WRITE_DST)?;
    let endpoint = common::listen(&peer, address)?;
    let request = common::next_request(&endpoint, &ConnectionConfig::default())?;
    // No room is needed for what goes elsewhere.
    request.recv(&[], 0)?;
    let connection = common::accept(request, Announcement::of(&target, 0, None)?)?;
    let completion = common::completed_as(connection.cq(), Opcode::RECV_RDMA_WITH_IMM)?;
    let Some(imm) = completion.imm() else {
        return failed("the write came without immediate data");
    };
    let mut written = [0; 4];
    target.load(0, &mut written)?;
    let written = u32::from_ne_bytes(written);
    if imm != written {
        return failed(format!("{imm} came with the write of {written}"));
    }
    println!("in memory: {written}, immediate: {imm}");
    common::wait_end(&connection)
}

fn client(server: SocketAddr, arguments: &[String]) -> Outcome {
    let imm: u32 = common::number(&arguments[0], "IMM")?;
    let peer = common::remote_peer(server)?;
    let source = LocalRegion::alloc(&peer, SIZE, Usage::WRITE_SRC)?;
    source.store(0, &imm.to_ne_bytes())?;
    let config = ConnectionConfig::default();
    let connection = common::connect(&peer, server, &config, &PrivateData::none())?;
    let theirs = Announcement::decode(connection.private_data())?;
    let start = u64::from(theirs.data_offset);
    let target = theirs.region.span(start..start + SIZE as u64)?;
    println!("writing {imm}, immediate: {imm}");
    connection.write_with_imm(target, source.as_span(), imm, Signal::Always, 0)?;
    common::completed(connection.cq())?;
    common::end(&connection)
}
