//! The general purpose server persistency method with peers of librpma.

use std::cell::Cell;
use std::ops::Range;

use harness::{Need, Outcome, Test, WAIT, completed, ensure, ensure_eq, pattern, phase, test};
use rpma::gpspm::{Announcement, Client, FlushRequest, FlushResponse, Served, Server};
use rpma::{ConnectionConfig, LocalRegion, PeerConfig, PrivateData, Signal, Usage};

use super::{Bytes, NAP, Role, Side, THEIRS, disconnect, noticed, peer};

pub(crate) fn tests() -> Vec<Test> {
    let needs = &[Need::Device, Need::Librpma];
    vec![
        test(
            "a_librpma_client_asks_us_to_make_what_it_wrote_persistent",
            needs,
            they_ask,
        ),
        test(
            "a_librpma_server_makes_what_we_wrote_persistent",
            needs,
            we_ask,
        ),
        test(
            "a_librpma_client_notices_an_answer_to_another_request",
            needs,
            wrong_answer,
        ),
    ]
}

const SIZE: usize = 8192;
const PIECE: u64 = 1024;
const ROUNDS: u64 = 3;
/// Where the data begin.
const OFFSET: u16 = 64;

/// As librpma's examples have it: one receive at a time, in a queue of its own.
fn config() -> ConnectionConfig {
    let mut config = ConnectionConfig::default();
    config.set_rq_size(1).set_rcq_size(1);
    config
}

fn arguments() -> [String; 1] {
    [format!("rounds={ROUNDS}")]
}

fn they_ask() -> Outcome {
    for bytes in [Bytes::Right, Bytes::TheirsWrong] {
        let peer = peer()?;
        let side = Side::start(&peer, "gpspm", Role::Client, bytes, &arguments())?;
        let usage = Usage::WRITE_DST | Usage::FLUSH_PERSISTENT;
        let memory = LocalRegion::alloc(&peer, SIZE, usage)?;
        let announced = Announcement::of(&memory, OFFSET, Some(&PeerConfig::default()))?;
        let request = side.request(&config())?;
        let mut server = Server::accept(&peer, request, announced, SIZE as u64)?;
        server.connection().wait_established(WAIT)?;
        let round = Cell::new(0);
        // What is made persistent must have been written before.
        let persist = |range: Range<u64>| -> Result<(), String> {
            let len = usize::try_from(range.end - range.start).map_err(|e| e.to_string())?;
            let mut found = vec![0; len];
            let start = usize::try_from(range.start).map_err(|e| e.to_string())?;
            memory.load(start, &mut found).map_err(|e| e.to_string())?;
            let seed = THEIRS + round.get();
            round.set(round.get() + 1);
            pattern::check(&found, seed)
        };
        let mut found = Ok(());
        for n in 0..ROUNDS {
            phase("being asked");
            match server.answer(WAIT, persist) {
                Ok(Served::Persisted(request)) => {
                    let expected = FlushRequest {
                        offset: u64::from(OFFSET) + n * PIECE,
                        length: PIECE,
                        op_context: 0xf01d + n,
                    };
                    ensure_eq!(request, expected, "request {n}");
                }
                Ok(other) => return Err(format!("{other:?} instead of a request").into()),
                Err(error) => {
                    found = Err(error.to_string());
                    break;
                }
            }
        }
        noticed(bytes, found, "what is made persistent")?;
        if bytes == Bytes::Right {
            disconnect(server.connection())?;
            side.finish(bytes)?;
        }
        // Otherwise the client waits for an answer that never comes, and ends with `side`.
    }
    Ok(())
}

fn we_ask() -> Outcome {
    for bytes in [Bytes::Right, Bytes::OursWrong] {
        let peer = peer()?;
        let side = Side::start(&peer, "gpspm", Role::Server, bytes, &arguments())?;
        let connection = side.connect(&config(), &[], |_| Ok(()))?;
        let theirs = Announcement::decode(connection.private_data())?;
        ensure_eq!(theirs.data_offset, OFFSET, "where the data begin");
        ensure_eq!(theirs.config, Some(PeerConfig::default()), "configuration");
        let source = LocalRegion::alloc(&peer, SIZE, Usage::WRITE_SRC)?;
        let mut client = Client::new(connection)?;
        for n in 0..ROUNDS {
            phase("asking");
            source.store(0, &pattern::bytes(bytes.ours() + n, SIZE))?;
            let start = u64::from(theirs.data_offset) + n * PIECE;
            let range = start..start + PIECE;
            client.connection().write(
                theirs.region.span(range.clone())?,
                source.span(..PIECE)?,
                Signal::OnError,
                n,
            )?;
            if bytes == Bytes::OursWrong {
                // The server ends instead of answering.
                break;
            }
            client.persist(range, WAIT)?;
        }
        if bytes == Bytes::OursWrong {
            let start = u64::from(theirs.data_offset);
            let refused = client.persist(start..start + PIECE, NAP);
            ensure!(refused.is_err(), "an answer of a server that has ended");
        } else {
            disconnect(client.connection())?;
        }
        side.finish(bytes)?;
    }
    Ok(())
}

fn wrong_answer() -> Outcome {
    let peer = peer()?;
    let side = Side::start(&peer, "gpspm", Role::Client, Bytes::OursWrong, &arguments())?;
    let usage = Usage::WRITE_DST | Usage::FLUSH_PERSISTENT;
    let memory = LocalRegion::alloc(&peer, SIZE, usage)?;
    let messages = LocalRegion::alloc(&peer, 128, Usage::SEND | Usage::RECV)?;
    let request = side.request(&ConnectionConfig::default())?;
    request.recv(messages.span(64..)?, 1)?;
    let announced: PrivateData = Announcement::of(&memory, OFFSET, None)?;
    let connection = request.connect(announced)?;
    connection.wait_established(WAIT)?;
    ensure_eq!(completed(connection.cq())?.op_context(), 1, "the request");
    let mut found = [0; FlushRequest::SIZE];
    messages.load(64, &mut found)?;
    let op_context = FlushRequest::decode(&found)?.op_context + 1;
    messages.store(0, &FlushResponse { op_context }.encode())?;
    connection.send(
        messages.span(..FlushResponse::SIZE as u64)?,
        Signal::Always,
        2,
    )?;
    ensure_eq!(completed(connection.cq())?.op_context(), 2, "the answer");
    side.finish(Bytes::OursWrong)
}
