//! The client sends a message, or none, with 4 bytes more.
//!
//! ```text
//! cargo run -p rpma --example 10_send_with_imm -- server ADDRESS PORT
//! cargo run -p rpma --example 10_send_with_imm -- client ADDRESS PORT IMM [WORD]
//! ```
//! It shows immediate data, which come with the receive's completion and are a number below 2^32. The
//! server knows from the client's request which one it is to be.

mod common;

use std::net::SocketAddr;
use std::process::ExitCode;

use rpma::{ConnectionConfig, LocalRegion, Opcode, PrivateData, Signal, Usage};

use common::{Outcome, failed};

/// Bytes of the longest message.
const LONGEST: usize = 1024;

pub(crate) fn main() -> ExitCode {
    common::run(("", server), ("IMM [WORD]", client))
}

fn server(address: SocketAddr, _: &[String]) -> Outcome {
    let peer = common::local_peer(address)?;
    let inbox = LocalRegion::alloc(&peer, LONGEST, Usage::RECV)?;
    let endpoint = common::listen(&peer, address)?;
    let request = common::next_request(&endpoint, &ConnectionConfig::default())?;
    request.recv(inbox.as_span(), 0)?;
    let connection = common::accept(request, PrivateData::none())?;
    let Some(expected) = connection.private_data().first_chunk() else {
        return failed("the client does not say what it is going to send");
    };
    let expected = u32::from_ne_bytes(*expected);
    let completion = common::completed_as(connection.cq(), Opcode::RECV)?;
    let Some(imm) = completion.imm() else {
        return failed("the message came without immediate data");
    };
    if imm != expected {
        return failed(format!("{imm} came with the message instead of {expected}"));
    }
    // Without a message the region has the zeros that it was made with.
    let word = common::text_in(&inbox, 0..LONGEST)?;
    println!("got \"{word}\", immediate: {imm}");
    common::wait_end(&connection)
}

fn client(server: SocketAddr, arguments: &[String]) -> Outcome {
    let imm: u32 = common::number(&arguments[0], "IMM")?;
    let peer = common::remote_peer(server)?;
    let outbox = LocalRegion::alloc(&peer, LONGEST, Usage::SEND)?;
    let message = match arguments.get(1) {
        Some(word) => {
            outbox.store(0, &common::with_zero(word))?;
            println!("sending \"{word}\", immediate: {imm}");
            outbox.as_span()
        }
        None => {
            println!("sending nothing, immediate: {imm}");
            outbox.span(..0)?
        }
    };
    let expected = PrivateData::new(&imm.to_ne_bytes())?;
    let connection = common::connect(&peer, server, &ConnectionConfig::default(), &expected)?;
    connection.send_with_imm(message, imm, Signal::Always, 0)?;
    common::completed_as(connection.cq(), Opcode::SEND)?;
    common::end(&connection)
}
