//! Data over a connection: every operation, verified byte by byte.

use cm::verbs::sys::fake::control;
use rpma::{FlushType, Signal};

use super::common::{Pair, Regions, completed};

/// Bytes that differ from place to place and from round to round.
fn pattern(round: usize, len: usize) -> Vec<u8> {
    let bytes = (0..len).map(|at| (at * 31 + at / 256 + round * 101) % 251);
    bytes
        .map(|byte| u8::try_from(byte).expect("below 251"))
        .collect()
}

#[test]
fn every_operation_moves_every_byte() {
    const LEN: usize = if cfg!(miri) { 100 } else { 20_000 };
    let fake = control::session();
    let pair = Pair::new().expect("a connection");
    let regions = Regions::new(&pair, LEN).expect("regions");
    let mut found = vec![0; LEN];

    regions.client.store(0, &pattern(1, LEN)).expect("store");
    let server = &pair.server;
    server.recv(regions.server.as_span(), 10).expect("receive");
    let client = &pair.client;
    let own = || regions.client.as_span();
    client.send(own(), Signal::Always, 11).expect("send");
    assert_eq!(completed(client.cq()).op_context(), 11);
    let received = completed(server.cq());
    assert_eq!(received.op_context(), 10);
    let len = received.result().expect("a success").byte_len();
    assert_eq!(len as usize, LEN);
    regions.server.load(0, &mut found).expect("load");
    assert_eq!(found, pattern(1, LEN));

    regions.client.store(0, &pattern(2, LEN)).expect("store");
    let target = regions.of_server.as_span();
    client
        .write(target, own(), Signal::OnError, 20)
        .expect("write");
    client
        .flush(target, FlushType::Visibility, Signal::Always, 21)
        .expect("flush");
    assert_eq!(completed(client.cq()).op_context(), 21);
    regions.server.load(0, &mut found).expect("load");
    assert_eq!(found, pattern(2, LEN));

    regions.server.store(0, &pattern(3, LEN)).expect("store");
    client
        .read(own(), target, Signal::Always, 30)
        .expect("read");
    assert_eq!(completed(client.cq()).op_context(), 30);
    regions.client.load(0, &mut found).expect("load");
    assert_eq!(found, pattern(3, LEN));

    drop((pair, regions));
    fake.finish();
}

#[test]
fn either_side_writes_and_reads() {
    const LEN: usize = 96;
    let fake = control::session();
    let pair = Pair::new().expect("a connection");
    let regions = Regions::new(&pair, LEN).expect("regions");
    let mut found = vec![0; LEN];
    regions.server.store(0, &pattern(1, LEN)).expect("store");
    let (to, from) = (regions.of_client.as_span(), regions.server.as_span());
    pair.server
        .write(to, from, Signal::Always, 1)
        .expect("write");
    completed(pair.server.cq());
    regions.client.load(0, &mut found).expect("load");
    assert_eq!(found, pattern(1, LEN));
    regions.client.store(0, &pattern(2, LEN)).expect("store");
    pair.server.read(from, to, Signal::Always, 2).expect("read");
    completed(pair.server.cq());
    regions.server.load(0, &mut found).expect("load");
    assert_eq!(found, pattern(2, LEN));
    drop((pair, regions));
    fake.finish();
}

#[test]
fn parts_of_regions_are_written_where_they_are_meant_to_be() {
    let fake = control::session();
    let pair = Pair::new().expect("a connection");
    let regions = Regions::new(&pair, 32).expect("regions");
    regions.client.store(0, &pattern(1, 32)).expect("store");
    let to = regions.of_server.span(20..25).expect("a part");
    let from = regions.client.span(3..8).expect("a part");
    pair.client
        .write(to, from, Signal::Always, 1)
        .expect("write");
    completed(pair.client.cq());
    let mut found = [0; 32];
    regions.server.load(0, &mut found).expect("load");
    let mut expected = [0; 32];
    expected[20..25].copy_from_slice(&pattern(1, 32)[3..8]);
    assert_eq!(found, expected);
    drop((pair, regions));
    fake.finish();
}
