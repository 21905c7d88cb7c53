//! The client writes a greeting into the server's memory, and flushes it: as far as the server's
//! memory and platform let it.
//!
//! ```text
//! cargo run -p rpma --example 05_flush_to_persistent -- server ADDRESS PORT [FILE [on|off]]
//! cargo run -p rpma --example 05_flush_to_persistent -- client ADDRESS PORT [FILE [OFFSET]]
//! ```
//! `on` promises that what devices write reaches the persistence domain without the processor: only
//! whoever has set up the machine knows. It shows flushes, and how a side tells what it can do.

mod common;

use std::net::SocketAddr;
use std::process::ExitCode;

use rpma::gpspm::Announcement;
use rpma::{ConnectionConfig, FlushType, PeerConfig, PrivateData, Signal, Usage};

use common::greeting::{Greeting, TEXT};
use common::store::Store;
use common::{Failure, Outcome, failed};

/// What the flush is known by.
const FLUSH: u64 = 0xf01d;

pub(crate) fn main() -> ExitCode {
    common::run(("[FILE] [on|off]", server), ("[FILE] [OFFSET]", client))
}

fn server(address: SocketAddr, arguments: &[String]) -> Outcome {
    let direct = match arguments.get(1).map(String::as_str) {
        Some("on") => true,
        None | Some("off") => false,
        Some(other) => return Err(Failure::Usage(format!("'{other}' is neither on nor off"))),
    };
    let mut usage = Usage::WRITE_DST | Usage::FLUSH_VISIBILITY;
    if !arguments.is_empty() {
        usage |= Usage::FLUSH_PERSISTENT;
    }
    let peer = common::local_peer(address)?;
    let mut store = Store::open(&peer, arguments.first(), 0, TEXT, usage)?;
    if let Some(text) = store.text()? {
        println!("was: {text}");
    }
    let mut config = PeerConfig::default();
    config.set_direct_write_to_pmem(direct);
    let endpoint = common::listen(&peer, address)?;
    let request = common::next_request(&endpoint, &ConnectionConfig::default())?;
    let connection = common::accept(request, store.announced(0, Some(&config))?)?;
    common::wait_end(&connection)?;
    store.commit()?;
    println!("is: {}", store.text()?.unwrap_or_default());
    Ok(())
}

fn client(server: SocketAddr, arguments: &[String]) -> Outcome {
    let peer = common::remote_peer(server)?;
    let greeting = Greeting::open(&peer, arguments, Usage::WRITE_SRC)?;
    let config = ConnectionConfig::default();
    let connection = common::connect(&peer, server, &config, &PrivateData::none())?;
    let theirs = Announcement::decode(connection.private_data())?;
    let their_config = theirs.config.unwrap_or_default();
    connection.apply_remote_peer_config(&their_config);
    let of_pmem = theirs
        .region
        .flush_types()
        .contains(Usage::FLUSH_PERSISTENT);
    let flush_type = if of_pmem && their_config.direct_write_to_pmem() {
        println!("flushed to persistence");
        FlushType::Persistent
    } else {
        println!("flushed to visibility, since the server promises no more");
        FlushType::Visibility
    };
    let start = u64::from(theirs.data_offset);
    let target = theirs.region.span(start..start + TEXT as u64)?;
    connection.write(target, greeting.span()?, Signal::OnError, 0)?;
    connection.flush(target, flush_type, Signal::Always, FLUSH)?;
    let completion = common::completed(connection.cq())?;
    if completion.op_context() != FLUSH {
        return failed("a completion came that is not the flush's");
    }
    greeting.translate()?;
    common::end(&connection)
}
