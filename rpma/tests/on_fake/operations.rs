//! Each operation as the device gets it, and what is refused before.

use cm::verbs::sys::fake::control::{self, Session};
use cm::verbs::{SendFlags, WrOpcode};
use rpma::{
    AtomicWriteMethod, ConnectionConfig, Error, ErrorKind, FlushMethod, FlushType, LocalRegion,
    Opcode, PeerConfig, RemoteRegion, RemoteSpan, SharedReceiveQueue, Signal, SrqConfig, Usage,
};

use super::common::{Pair, Regions, completed};

/// The number of requests that the device got so far.
fn taken(fake: &Session) -> usize {
    fake.sends().len() + fake.recvs().len()
}

#[test]
fn immediate_data_is_the_same_number_at_both_ends() {
    let fake = control::session();
    let pair = Pair::new().expect("a connection");
    let regions = Regions::new(&pair, 64).expect("regions");
    let (to, from) = (regions.of_server.as_span(), regions.client.as_span());
    regions.client.store(0, b"with a number").expect("store");
    pair.server
        .recv(regions.server.as_span(), 1)
        .expect("posted");
    pair.client
        .send_with_imm(from, 0x0102_0304, Signal::Always, 2)
        .expect("posted");
    let sent = completed(pair.client.cq());
    assert_eq!((sent.opcode(), sent.imm()), (Some(Opcode::SEND), None));
    let received = completed(pair.server.cq());
    assert_eq!(received.opcode(), Some(Opcode::RECV));
    assert_eq!(received.imm(), Some(0x0102_0304));

    // A receive without memory is enough for a write.
    pair.server.recv(&[], 3).expect("posted");
    pair.client
        .write_with_imm(to, from, 0xfffe_fdfc, Signal::Always, 4)
        .expect("posted");
    assert_eq!(
        completed(pair.client.cq()).opcode(),
        Some(Opcode::RDMA_WRITE)
    );
    let received = completed(pair.server.cq());
    assert_eq!(received.opcode(), Some(Opcode::RECV_RDMA_WITH_IMM));
    assert_eq!(received.imm(), Some(0xfffe_fdfc));
    let mut found = [0; 13];
    regions.server.load(0, &mut found).expect("load");
    assert_eq!(&found, b"with a number");

    // The number alone.
    pair.server.recv(&[], 5).expect("posted");
    pair.client
        .write_with_imm(RemoteSpan::empty(), b"", 0, Signal::OnError, 6)
        .expect("posted");
    assert_eq!(completed(pair.server.cq()).imm(), Some(0));
    drop((pair, regions));
    fake.finish();
}

#[test]
fn operations_without_bytes_have_no_memory_and_complete() {
    let fake = control::session();
    let pair = Pair::new().expect("a connection");
    let regions = Regions::new(&pair, 64).expect("regions");
    let (client, end) = (&pair.client, 64);
    for at in [0, end] {
        let to = regions.of_server.span(at..at).expect("inside");
        let from = regions.client.span(at..at).expect("inside");
        client.write(to, from, Signal::Always, 1).expect("posted");
        completed(client.cq());
        client.read(from, to, Signal::Always, 2).expect("posted");
        completed(client.cq());
        pair.server.recv(&[], 3).expect("posted");
        client.send(from, Signal::Always, 4).expect("posted");
        completed(client.cq());
        assert_eq!(completed(pair.server.cq()).op_context(), 3);
    }
    client
        .write(RemoteSpan::empty(), b"", Signal::Always, 5)
        .expect("posted");
    completed(client.cq());
    client
        .read(&[], RemoteSpan::empty(), Signal::Always, 6)
        .expect("posted");
    completed(client.cq());
    assert!(fake.sends().iter().all(|sent| sent.sges.is_empty()));
    assert_eq!(fake.sends().len(), 8);

    for (offset, len) in [(64, 1), (63, 2), (0, 65), (65, 0), (u64::MAX, 1)] {
        let range = offset..offset.saturating_add(len);
        assert!(regions.of_server.span(range.clone()).is_err(), "{range:?}");
        assert!(regions.client.span(range.clone()).is_err(), "{range:?}");
    }
    drop((pair, regions));
    fake.finish();
}

#[test]
fn spans_are_gathered_and_scattered_in_their_order() {
    let fake = control::session();
    let mut config = ConnectionConfig::default();
    config.set_max_spans(3).expect("in range");
    let pair = Pair::with(&config).expect("a connection");
    let regions = Regions::new(&pair, 64).expect("regions");
    regions
        .client
        .store(0, b"..one..two..three")
        .expect("store");
    let part = |range| regions.client.span(range).expect("inside");
    let parts = [part(12..17), part(2..5), part(7..10)];
    let to = regions.of_server.span(..11).expect("inside");
    pair.client
        .write(to, &parts, Signal::Always, 1)
        .expect("posted");
    completed(pair.client.cq());
    let mut found = [0; 11];
    regions.server.load(0, &mut found).expect("load");
    assert_eq!(&found, b"threeonetwo");

    // Those without bytes do not count.
    let (parts, none) = ([part(20..24), part(40..47)], part(0..0));
    let parts = [none, parts[0], none, parts[1], none];
    pair.client
        .read(&parts, to, Signal::Always, 2)
        .expect("posted");
    completed(pair.client.cq());
    let mut found = [0; 7];
    regions.client.load(20, &mut found[..4]).expect("load");
    assert_eq!(&found[..4], b"thre");
    regions.client.load(40, &mut found).expect("load");
    assert_eq!(&found, b"eonetwo");

    let part = |range| regions.server.span(range).expect("inside");
    pair.server
        .recv(&[part(32..34), part(48..64)], 3)
        .expect("posted");
    let parts = [regions.client.span(2..5).expect("inside"); 2];
    pair.client
        .send(parts.as_slice(), Signal::Always, 4)
        .expect("posted");
    let received = completed(pair.server.cq());
    assert_eq!(received.result().expect("a success").byte_len(), 6);
    let mut found = [0; 6];
    regions.server.load(32, &mut found[..2]).expect("load");
    regions.server.load(48, &mut found[2..]).expect("load");
    assert_eq!(&found, b"oneone");

    let before = taken(&fake);
    let client_part = regions.client.span(..1).expect("inside");
    let most = match pair.client.send(&[client_part; 32], Signal::Always, 5) {
        Err(Error::TooManySpans { given: 32, max }) => max,
        other => panic!("{other:?}"),
    };
    assert!(most >= 3, "{most}");
    let error = pair.client.send(&[client_part; 33], Signal::Always, 5);
    let error = error.expect_err("too many");
    assert!(
        error
            .hint()
            .is_some_and(|hint| hint.contains("set_max_spans"))
    );
    let others = [client_part, regions.server.span(..1).expect("inside")];
    let error = pair.client.send(&others, Signal::Always, 6);
    assert!(matches!(error, Err(Error::WrongPeer)), "{error:?}");
    assert_eq!(taken(&fake), before);
    drop((pair, regions));
    fake.finish();
    for spans in [0, 33] {
        let error = ConnectionConfig::default().set_max_spans(spans).err();
        let error = error.expect("out of range").to_string();
        assert!(error.contains("1 to 32"), "{error}");
    }
}

#[test]
fn short_data_is_copied_while_it_is_posted() {
    let fake = control::session();
    let mut config = ConnectionConfig::default();
    config.set_max_inline(24);
    let pair = Pair::with(&config).expect("a connection");
    let regions = Regions::new(&pair, 64).expect("regions");
    let max = usize::try_from(pair.client.max_inline()).expect("small");
    assert!(max >= 24, "{max}");
    let mut bytes = b"gone afterwards".to_vec();
    let to = regions.of_server.span(..15).expect("inside");
    // The server takes nothing yet.
    pair.client
        .send(bytes.as_slice(), Signal::OnError, 1)
        .expect("posted");
    pair.client
        .write(to, bytes.as_slice(), Signal::Always, 2)
        .expect("posted");
    bytes.fill(b'x');
    drop(bytes);
    pair.server
        .recv(regions.server.span(32..).expect("inside"), 3)
        .expect("posted");
    completed(pair.client.cq());
    completed(pair.server.cq());
    let mut found = [0; 15];
    for at in [0, 32] {
        regions.server.load(at, &mut found).expect("load");
        assert_eq!(&found, b"gone afterwards", "at {at}");
    }
    let before = taken(&fake);
    let long = vec![1; max + 1];
    let error = pair.client.send(long.as_slice(), Signal::Always, 4);
    let error = error.expect_err("too long");
    assert!(
        error
            .to_string()
            .contains(&format!("{} bytes inline", max + 1)),
        "{error}"
    );
    assert!(
        error
            .hint()
            .is_some_and(|hint| hint.contains("set_max_inline"))
    );
    let error = pair.client.write(to, b"shorter", Signal::Always, 5);
    assert!(
        matches!(error, Err(Error::LengthMismatch { dst: 15, src: 7 })),
        "{error:?}"
    );
    assert_eq!(taken(&fake), before);
    drop((pair, regions));
    fake.finish();
}

#[test]
fn an_atomic_write_is_8_bytes_at_a_multiple_of_8_behind_a_fence() {
    let fake = control::session();
    let pair = Pair::new().expect("a connection");
    let regions = Regions::new(&pair, 64).expect("regions");
    let client = &pair.client;
    assert_eq!(client.atomic_write_method(), AtomicWriteMethod::Write);
    let mut expected = [0; 64];
    for at in [0_u8, 8, 56] {
        let to = regions
            .of_server
            .span(u64::from(at)..u64::from(at) + 8)
            .expect("inside");
        let value = [at; 8].map(|byte| byte + 1);
        client
            .atomic_write(to, value, Signal::Always, at.into())
            .expect("posted");
        let done = completed(client.cq());
        assert_eq!(done.opcode(), Some(Opcode::RDMA_WRITE));
        assert_eq!(done.op_context(), u64::from(at));
        let posted = fake.sends().pop().expect("posted");
        assert_eq!(posted.opcode, WrOpcode::RDMA_WRITE.raw());
        let flags = SendFlags::from_bits_retain(posted.flags);
        assert!(
            flags.contains(SendFlags::INLINE | SendFlags::FENCE),
            "{flags:?}"
        );
        assert_eq!(posted.inline.as_deref(), Some(&value[..]));
        expected[usize::from(at)..usize::from(at) + 8].fill(at + 1);
    }
    let mut found = [0; 64];
    regions.server.load(0, &mut found).expect("load");
    assert_eq!(found, expected);

    // From registered memory.
    regions.client.store(3, b"8 bytes!").expect("store");
    let from = regions.client.span(3..11).expect("inside");
    let to = regions.of_server.span(16..24).expect("inside");
    client
        .atomic_write_from(to, from, Signal::Always, 1)
        .expect("posted");
    completed(client.cq());
    let posted = fake.sends().pop().expect("posted");
    let flags = SendFlags::from_bits_retain(posted.flags);
    assert_eq!(flags, SendFlags::FENCE | SendFlags::SIGNALED);
    regions.server.load(16, &mut found[..8]).expect("load");
    assert_eq!(&found[..8], b"8 bytes!");

    let before = taken(&fake);
    for range in [1..9, 4..12, 7..15, 57..64, 0..7, 0..9, 8..8] {
        let to = regions.of_server.span(range.clone()).expect("inside");
        let error = client.atomic_write(to, [1; 8], Signal::Always, 2);
        let error = error.expect_err("no word");
        assert!(matches!(error, Error::NotOneWord { .. }), "{error}");
        assert_eq!(error.code(), -100_004);
        let error = client.atomic_write_from(to, from, Signal::Always, 2);
        assert!(matches!(error, Err(Error::NotOneWord { .. })), "{error:?}");
    }
    let short = regions.client.span(..7).expect("inside");
    let to = regions.of_server.span(..8).expect("inside");
    let error = client.atomic_write_from(to, short, Signal::Always, 2);
    assert!(matches!(error, Err(Error::LengthMismatch { .. })));
    // The address counts, not the offset.
    let mut descriptor = regions.server.descriptor();
    let addr = regions.server.as_ptr() as u64 + 4;
    descriptor[..8].copy_from_slice(&addr.to_le_bytes());
    let crooked = RemoteRegion::from_descriptor(&descriptor).expect("a region");
    let to = crooked.span(..8).expect("inside");
    let error = client.atomic_write(to, [1; 8], Signal::Always, 2);
    let error = error.expect_err("crooked");
    assert!(error.to_string().contains(&format!("{addr:#x}")), "{error}");
    assert_eq!(taken(&fake), before);
    drop((pair, regions));
    fake.finish();
}

/// What is flushed, if it may be: the usage of the region, what is asked for, and whether the peer
/// says that writes reach its persistence domain.
#[test]
fn a_flush_needs_the_regions_usage_and_for_persistence_the_peers_word() {
    let fake = control::session();
    let (vis, pers) = (Usage::FLUSH_VISIBILITY, Usage::FLUSH_PERSISTENT);
    for native in [false, true] {
        let mut config = ConnectionConfig::default();
        config.set_native_operations(native);
        let pair = Pair::with(&config).expect("a connection");
        let region = LocalRegion::alloc(&pair.server_peer, 64, Usage::WRITE_DST).expect("a region");
        let client = &pair.client;
        for direct_write in [None, Some(false), Some(true)] {
            if let Some(direct_write) = direct_write {
                let mut told = PeerConfig::default();
                told.set_direct_write_to_pmem(direct_write);
                client.apply_remote_peer_config(&told);
            }
            for usage in [Usage::empty(), vis, pers, Usage::FLUSH] {
                let mut descriptor = region.descriptor();
                descriptor[20] = (usage | Usage::WRITE_DST).bits();
                let remote = RemoteRegion::from_descriptor(&descriptor).expect("a region");
                for (flush_type, needed) in
                    [(FlushType::Visibility, vis), (FlushType::Persistent, pers)]
                {
                    let may =
                        usage.contains(needed) && (needed == vis || direct_write == Some(true));
                    let before = taken(&fake);
                    let posted = client.flush(remote.as_span(), flush_type, Signal::Always, 7);
                    let what = format!("{usage:?} {flush_type:?} {direct_write:?}: {posted:?}");
                    match posted {
                        // That the region was not registered so does not matter here.
                        Ok(()) => assert!(may && taken(&fake) == before + 1, "{what}"),
                        Err(error) => {
                            assert!(!may, "{what}");
                            assert_eq!(error.kind(), ErrorKind::Unsupported, "{what}");
                            assert_eq!(error.code(), -100_001, "{what}");
                            assert_eq!(taken(&fake), before, "{what}");
                        }
                    }
                    while client.cq().poll_one().expect("no error").is_some() {}
                }
            }
        }
        drop((pair, region));
    }
    fake.finish();
}

#[test]
fn atomics_give_back_what_was_there() {
    let fake = control::session();
    let pair = Pair::new().expect("a connection");
    let regions = Regions::new(&pair, 64).expect("regions");
    let client = &pair.client;
    let value = |region: &LocalRegion, at| {
        let mut bytes = [0; 8];
        region.load(at, &mut bytes).expect("load");
        u64::from_ne_bytes(bytes)
    };
    regions
        .server
        .store(8, &5_u64.to_ne_bytes())
        .expect("store");
    let at = regions.of_server.span(8..16).expect("inside");
    let result = regions.client.span(24..32).expect("inside");
    client
        .fetch_add(result, at, 37, Signal::Always, 1)
        .expect("posted");
    assert_eq!(completed(client.cq()).opcode(), Some(Opcode::FETCH_ADD));
    assert_eq!(
        (value(&regions.client, 24), value(&regions.server, 8)),
        (5, 42)
    );
    for (compare, new, found, left) in [(41, 1, 42, 42), (42, 7, 42, 7)] {
        client
            .compare_swap(result, at, compare, new, Signal::Always, 2)
            .expect("posted");
        assert_eq!(completed(client.cq()).opcode(), Some(Opcode::COMP_SWAP));
        assert_eq!(
            (value(&regions.client, 24), value(&regions.server, 8)),
            (found, left)
        );
    }

    let before = taken(&fake);
    let add = |result, at| {
        let error = client.fetch_add(result, at, 1, Signal::Always, 3);
        let swap = client.compare_swap(result, at, 1, 2, Signal::Always, 3);
        assert_eq!(
            swap.expect_err("refused").kind(),
            ErrorKind::InvalidArgument
        );
        error.expect_err("refused")
    };
    for range in [4..12, 8..12, 8..24] {
        let error = add(result, regions.of_server.span(range).expect("inside"));
        assert!(matches!(error, Error::NotOneWord { .. }), "{error}");
    }
    let short = regions.client.span(..4).expect("inside");
    let error = add(short, at);
    assert!(matches!(error, Error::LengthMismatch { .. }), "{error}");
    for usage in [
        Usage::READ_SRC,
        Usage::WRITE_DST,
        Usage::all() - Usage::WRITE_DST,
    ] {
        let mut descriptor = regions.server.descriptor();
        descriptor[20] = usage.bits();
        let remote = RemoteRegion::from_descriptor(&descriptor).expect("a region");
        let error = add(result, remote.span(8..16).expect("inside"));
        let text = error.to_string();
        assert!(text.contains("READ_SRC | WRITE_DST"), "{text}");
    }
    let source = LocalRegion::alloc(&pair.client_peer, 8, Usage::WRITE_SRC).expect("a region");
    let error = add(source.as_span(), at);
    assert!(matches!(error, Error::UsageForbids { .. }), "{error}");
    let error = add(regions.server.span(..8).expect("inside"), at);
    assert!(matches!(error, Error::WrongPeer), "{error}");
    assert_eq!(taken(&fake), before);
    drop((pair, regions, source));
    fake.finish();
}

#[test]
fn a_receive_for_a_connection_with_a_shared_receive_queue_is_refused_by_name() {
    let fake = control::session();
    let pair = Pair::new().expect("a connection");
    drop(pair);
    let peer = super::common::peer().expect("a peer");
    let srq = SharedReceiveQueue::new(&peer, &SrqConfig::default()).expect("a queue");
    let mut config = ConnectionConfig::default();
    config.set_srq(Some(&srq));
    let endpoint = rpma::Endpoint::listen(&peer, super::common::addr(0)).expect("a listener");
    let request = rpma::ConnectionRequest::new(&peer, endpoint.local_addr(), &config);
    let request = request.expect("a request");
    let before = taken(&fake);
    let error = request.recv(&[], 1).expect_err("shared");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(
        error
            .hint()
            .is_some_and(|hint| hint.contains("SharedReceiveQueue"))
    );
    assert_eq!(taken(&fake), before);
    drop((request, config, endpoint, srq, peer));
    fake.finish();
}

#[test]
fn reading_is_how_flushes_are_done_unless_it_is_agreed_otherwise() {
    let fake = control::session();
    let pair = Pair::new().expect("a connection");
    let regions = Regions::new(&pair, 64).expect("regions");
    for flush_type in [FlushType::Visibility, FlushType::Persistent] {
        assert_eq!(pair.client.flush_method(flush_type), FlushMethod::Read);
    }
    pair.client
        .flush(
            regions.of_server.as_span(),
            FlushType::Visibility,
            Signal::Always,
            1,
        )
        .expect("posted");
    assert_eq!(
        completed(pair.client.cq()).opcode(),
        Some(Opcode::RDMA_READ)
    );
    drop((pair, regions));
    fake.finish();
}
