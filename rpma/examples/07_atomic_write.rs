//! The client appends words to a log in the server's memory, in a way that a cut in the middle leaves
//! the log as it was before.
//!
//! ```text
//! cargo run -p rpma --example 07_atomic_write -- server ADDRESS PORT [FILE]
//! cargo run -p rpma --example 07_atomic_write -- client ADDRESS PORT WORD [WORD...]
//! ```
//! A word is written behind the log's end and flushed; only then the end is moved, by one write of 8
//! bytes that nobody ever sees a part of. It shows atomic writes, and how operations are ordered.

mod common;

use std::net::SocketAddr;
use std::process::ExitCode;

use rpma::gpspm::Announcement;
use rpma::{
    ConnectionConfig, FlushType, LocalRegion, Opcode, PeerConfig, PrivateData, Signal, Usage,
};

use common::Outcome;

/// The log: a signature, where it ends (8 bytes), its words.
const SIGNATURE: &[u8; 8] = b"LOG\0\0\0\0\0";
const END: usize = 8;
const WORDS: usize = 16;
const SIZE: usize = WORDS + 1024;

pub(crate) fn main() -> ExitCode {
    common::run(("[FILE]", server), ("WORD [WORD...]", client))
}

fn server(address: SocketAddr, arguments: &[String]) -> Outcome {
    let flush = match arguments.first() {
        Some(_) => Usage::FLUSH_PERSISTENT,
        None => Usage::FLUSH_VISIBILITY,
    };
    let peer = common::local_peer(address)?;
    let usage = Usage::WRITE_DST | Usage::READ_SRC | flush;
    let log = common::memory(&peer, arguments.first(), SIZE, usage)?;
    let mut signature = [0; 8];
    log.load(0, &mut signature)?;
    if signature != *SIGNATURE {
        log.store(END, &(WORDS as u64).to_ne_bytes())?;
        common::persist(&log, END..WORDS)?;
        // Last: what has the signature is a log.
        log.store(0, SIGNATURE)?;
        common::persist(&log, 0..END)?;
    }
    let endpoint = common::listen(&peer, address)?;
    let request = common::next_request(&endpoint, &ConnectionConfig::default())?;
    // What is announced is where the end stands.
    let connection = common::accept(request, Announcement::of(&log, 8, None)?)?;
    common::wait_end(&connection)?;
    print_words(&log)
}

fn print_words(log: &LocalRegion) -> Outcome {
    let mut end = [0; 8];
    log.load(END, &mut end)?;
    let end = usize::try_from(u64::from_ne_bytes(end)).unwrap_or(usize::MAX);
    if !(WORDS..=SIZE).contains(&end) {
        return common::failed(format!("the log ends at {end}, which is not in it"));
    }
    let mut bytes = vec![0; end - WORDS];
    log.load(WORDS, &mut bytes)?;
    for word in bytes.split_inclusive(|byte| *byte == 0) {
        println!("{}", common::text(word));
    }
    Ok(())
}

fn client(server: SocketAddr, words: &[String]) -> Outcome {
    let peer = common::remote_peer(server)?;
    let usage = Usage::WRITE_SRC | Usage::READ_DST;
    let local = LocalRegion::alloc(&peer, SIZE, usage)?;
    let config = ConnectionConfig::default();
    let connection = common::connect(&peer, server, &config, &PrivateData::none())?;
    // The server says nothing of its platform: this side takes it for one with direct writes.
    let mut direct = PeerConfig::default();
    direct.set_direct_write_to_pmem(true);
    connection.apply_remote_peer_config(&direct);
    let theirs = Announcement::decode(connection.private_data())?;
    let persistent = theirs
        .region
        .flush_types()
        .contains(Usage::FLUSH_PERSISTENT);
    let flush = if persistent {
        FlushType::Persistent
    } else {
        FlushType::Visibility
    };
    let start = u64::from(theirs.data_offset);
    let where_it_ends = theirs.region.span(start..start + 8)?;
    connection.read(local.span(..8)?, where_it_ends, Signal::Always, 0)?;
    common::completed_as(connection.cq(), Opcode::RDMA_READ)?;
    let mut end = [0; 8];
    local.load(0, &mut end)?;
    let mut end = u64::from_ne_bytes(end);
    println!("end of the log: {end}");
    for word in words {
        let word = common::with_zero(word);
        local.store(0, &word)?;
        let len = word.len() as u64;
        // It is an error to go past the region's end: the log is full then.
        let target = theirs.region.span(end..end + len)?;
        connection.write(target, local.span(..len)?, Signal::OnError, 0)?;
        connection.flush(target, flush, Signal::OnError, 0)?;
        end += len;
        connection.atomic_write(where_it_ends, end.to_ne_bytes(), Signal::OnError, 0)?;
        connection.flush(where_it_ends, flush, Signal::Always, 0)?;
        common::completed(connection.cq())?;
    }
    common::end(&connection)
}
