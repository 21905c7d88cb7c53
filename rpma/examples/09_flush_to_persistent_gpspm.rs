//! The client writes a greeting into the server's memory, and asks the server's processor to make it
//! persistent: what works on every platform.
//!
//! ```text
//! cargo run -p rpma --example 09_flush_to_persistent_gpspm -- server ADDRESS PORT [FILE [shared]]
//! cargo run -p rpma --example 09_flush_to_persistent_gpspm -- client ADDRESS PORT [FILE [OFFSET]]
//! ```
//! With `shared` the server gets all completions through one channel; a `FILE` of `-` is none. It
//! shows both sides of [`rpma::gpspm`].

mod common;

use std::net::SocketAddr;
use std::ops::Range;
use std::process::ExitCode;

use rpma::gpspm::{Announcement, Client, Served, Server};
use rpma::{ConnectionConfig, PrivateData, Signal, Usage};

use common::greeting::{Greeting, TEXT};
use common::store::Store;
use common::{Failure, Outcome, failed};

pub(crate) fn main() -> ExitCode {
    common::run(("[FILE] [shared]", server), ("[FILE] [OFFSET]", client))
}

fn server(address: SocketAddr, arguments: &[String]) -> Outcome {
    let mut config = ConnectionConfig::default();
    // One request at a time.
    config.set_rq_size(1).set_rcq_size(1);
    match arguments.get(1).map(String::as_str) {
        None => {}
        Some("shared") => {
            config.set_shared_completion_channel(true);
        }
        Some(other) => return Err(Failure::Usage(format!("'{other}' is not shared"))),
    }
    let file = arguments.first().filter(|file| *file != "-");
    let peer = common::local_peer(address)?;
    let usage = match file {
        Some(_) => Usage::WRITE_DST | Usage::FLUSH_PERSISTENT,
        None => Usage::WRITE_DST | Usage::FLUSH_VISIBILITY,
    };
    let mut store = Store::open(&peer, file, 0, TEXT, usage)?;
    if let Some(text) = store.text()? {
        println!("was: {text}");
    }
    let endpoint = common::listen(&peer, address)?;
    let request = common::next_request(&endpoint, &config)?;
    let announced = store.announced(0, None)?;
    let mut server = Server::accept(&peer, request, announced, store.region.len() as u64)?;
    server.connection().wait_established(common::SOON)?;
    let persist = |range: Range<u64>| {
        if common::can_persist(&store.region) {
            return store.region.persist(range);
        }
        println!("ordinary memory has nothing to make persistent");
        Ok(())
    };
    match server.answer(common::SOON, persist)? {
        Served::Persisted(request) => println!(
            "asked to persist {1} bytes at {0}, context {2:#x}",
            request.offset, request.length, request.op_context
        ),
        _ => return failed("the client has nothing to ask"),
    }
    common::wait_end(server.connection())?;
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
    let start = u64::from(theirs.data_offset);
    let range = start..start + TEXT as u64;
    let mut client = Client::new(connection)?;
    let target = theirs.region.span(range.clone())?;
    client
        .connection()
        .write(target, greeting.span()?, Signal::OnError, 0)?;
    // The request cannot overtake what was written before it.
    client.persist(range, common::SOON)?;
    greeting.translate()?;
    common::end(client.connection())
}
