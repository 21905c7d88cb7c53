//! Flush and atomic write as operations of the device, and what stands in for them.

use cm::verbs::sys::fake::control;
use cm::verbs::{DeviceCapFlags, SendOps};
use rpma::{
    AtomicWriteMethod, ConnectionConfig, Error, FlushMethod, FlushType, Opcode, PeerConfig, Signal,
    Status,
};

use super::common::{Pair, Regions, completed, peer};

const GLOBAL: DeviceCapFlags = DeviceCapFlags::FLUSH_GLOBAL;
const PERSISTENT: DeviceCapFlags = DeviceCapFlags::FLUSH_PERSISTENT;
const ATOMIC: DeviceCapFlags = DeviceCapFlags::ATOMIC_WRITE;

fn config() -> ConnectionConfig {
    let mut config = ConnectionConfig::default();
    config.set_native_operations(true);
    config
}

fn methods(pair: &Pair) -> (FlushMethod, FlushMethod, AtomicWriteMethod) {
    (
        pair.client.flush_method(FlushType::Visibility),
        pair.client.flush_method(FlushType::Persistent),
        pair.client.atomic_write_method(),
    )
}

/// A record, flushed, and then the word that says so; the opcodes of both.
fn record(pair: &Pair, flush_type: FlushType) -> [Option<Opcode>; 2] {
    let regions = Regions::new(pair, 64).expect("regions");
    let mut told = PeerConfig::default();
    told.set_direct_write_to_pmem(true);
    pair.client.apply_remote_peer_config(&told);
    regions.client.store(0, b"the record").expect("store");
    let to = regions.of_server.span(16..26).expect("inside");
    let word = regions.of_server.span(8..16).expect("inside");
    let from = regions.client.span(..10).expect("inside");
    let client = &pair.client;
    client.write(to, from, Signal::OnError, 1).expect("posted");
    client
        .flush(to, flush_type, Signal::Always, 2)
        .expect("posted");
    client
        .atomic_write(word, *b"is there", Signal::Always, 3)
        .expect("posted");
    let mut found = [0; 18];
    let opcodes = [2, 3].map(|context| {
        let done = completed(client.cq());
        assert_eq!(done.op_context(), context);
        done.opcode()
    });
    regions.server.load(8, &mut found).expect("load");
    assert_eq!(&found, b"is therethe record");
    opcodes
}

#[test]
fn the_devices_own_operations_are_used_as_far_as_it_has_them() {
    let fake = control::session();
    let (read, native) = (FlushMethod::Read, FlushMethod::Native);
    let (write, word) = (AtomicWriteMethod::Write, AtomicWriteMethod::Native);
    for (capabilities, expected) in [
        (GLOBAL | PERSISTENT | ATOMIC, (native, native, word)),
        (GLOBAL, (native, read, write)),
        (PERSISTENT, (read, native, write)),
        (ATOMIC, (read, read, word)),
        (DeviceCapFlags::empty(), (read, read, write)),
    ] {
        fake.set_capabilities(capabilities.bits());
        let pair = Pair::with(&config()).expect("a connection");
        assert_eq!(methods(&pair), expected, "{capabilities:?}");
        for (flush_type, method) in [
            (FlushType::Visibility, expected.0),
            (FlushType::Persistent, expected.1),
        ] {
            let opcodes = [
                if method == native {
                    Opcode::FLUSH
                } else {
                    Opcode::RDMA_READ
                },
                if expected.2 == word {
                    Opcode::ATOMIC_WRITE
                } else {
                    Opcode::RDMA_WRITE
                },
            ];
            assert_eq!(
                record(&pair, flush_type),
                opcodes.map(Some),
                "{capabilities:?}"
            );
        }
        drop(pair);
    }
    fake.finish();
}

#[test]
fn a_refused_extended_queue_pair_is_made_once_more_as_a_plain_one() {
    let fake = control::session();
    let plain = (
        FlushMethod::Read,
        FlushMethod::Read,
        AtomicWriteMethod::Write,
    );
    let ways: [(&str, &dyn Fn()); 3] = [
        ("refused", &|| fake.refuse_send_ops(SendOps::FLUSH.bits())),
        ("left out", &|| {
            fake.refuse_send_ops(0);
            fake.leave_out_send_ops(SendOps::ATOMIC_WRITE.bits());
        }),
        ("failing", &|| {
            fake.leave_out_send_ops(0);
            fake.fail_always("ibv_create_qp_ex", libc::EOPNOTSUPP);
        }),
    ];
    for (what, spoil) in ways {
        spoil();
        let before = (fake.count("ibv_create_qp_ex"), fake.count("ibv_create_qp"));
        let pair = Pair::with(&config()).expect("a connection");
        let made = (
            fake.count("ibv_create_qp_ex") - before.0,
            fake.count("ibv_create_qp") - before.1,
        );
        assert_eq!(made, (2, 2), "{what}: one attempt for each end");
        assert_eq!(methods(&pair), plain, "{what}");
        let opcodes = record(&pair, FlushType::Visibility);
        assert_eq!(opcodes, [Some(Opcode::RDMA_READ), Some(Opcode::RDMA_WRITE)]);
        drop(pair);
    }
    fake.heal();
    fake.finish();
}

#[test]
fn a_native_flush_covers_its_range_and_no_more() {
    let fake = control::session();
    let pair = Pair::with(&config()).expect("a connection");
    let regions = Regions::new(&pair, 64).expect("regions");
    for (range, len) in [(0..64, 64), (0..3, 3), (60..64, 4), (63..64, 1)] {
        let span = regions.of_server.span(range.clone()).expect("inside");
        pair.client
            .flush(span, FlushType::Visibility, Signal::Always, 1)
            .expect("posted");
        completed(pair.client.cq());
        let flush = fake.flushes().pop().expect("posted");
        let addr = regions.server.as_ptr() as u64 + range.start;
        assert_eq!((flush.remote_addr, flush.len), (addr, len));
        assert_eq!((flush.placement, flush.level), (1, 0), "visible, a range");
    }
    let before = fake.flushes().len();
    let none = regions.of_server.span(5..5).expect("inside");
    let error = pair
        .client
        .flush(none, FlushType::Visibility, Signal::Always, 2);
    assert!(matches!(error, Err(Error::Invalid(_))), "{error:?}");
    let crooked = regions.of_server.span(4..12).expect("inside");
    let error = pair.client.atomic_write(crooked, [0; 8], Signal::Always, 3);
    assert!(matches!(error, Err(Error::NotOneWord { .. })), "{error:?}");
    assert_eq!(fake.flushes().len(), before);
    drop((pair, regions));
    fake.finish();
}

#[test]
fn native_operations_fill_the_queue_like_others() {
    let fake = control::session();
    let mut config = config();
    config.set_sq_size(3);
    let pair = Pair::with(&config).expect("a connection");
    let regions = Regions::new(&pair, 64).expect("regions");
    let word = regions.of_server.span(..8).expect("inside");
    let flush = |signal| pair.client.flush(word, FlushType::Visibility, signal, 1);
    flush(Signal::OnError).expect("room");
    pair.client
        .atomic_write(word, [1; 8], Signal::OnError, 2)
        .expect("room");
    let error = flush(Signal::OnError);
    assert!(matches!(error, Err(Error::QueueFull { .. })), "{error:?}");
    flush(Signal::Always).expect("the last slot");
    let error = flush(Signal::Always);
    assert!(matches!(error, Err(Error::QueueFull { .. })), "{error:?}");
    completed(pair.client.cq());
    flush(Signal::Always).expect("room again");
    completed(pair.client.cq());
    drop((pair, regions));
    fake.finish();
}

#[test]
fn native_operations_stand_in_a_batch_where_they_were_added() {
    let fake = control::session();
    let pair = Pair::with(&config()).expect("a connection");
    let regions = Regions::new(&pair, 64).expect("regions");
    regions.client.store(0, b"record").expect("store");
    let record = regions.client.span(..6).expect("inside");
    let to = |range| regions.of_server.span(range).expect("inside");
    let doorbells = fake.count("ibv_post_send");
    let posted = pair.client.batch(|batch| -> Result<(), Error> {
        batch.write(to(16..22), record, Signal::OnError, 1)?;
        batch.write(to(24..30), record, Signal::OnError, 2)?;
        batch.flush(to(16..30), FlushType::Visibility, Signal::OnError, 3)?;
        batch.atomic_write(to(0..8), *b"is there", Signal::OnError, 4)?;
        batch.write(to(32..38), record, Signal::Always, 5)
    });
    posted.expect("posted");
    assert_eq!(fake.count("ibv_post_send") - doorbells, 2);
    assert_eq!(completed(pair.client.cq()).op_context(), 5);
    let order: Vec<_> = fake.sends().iter().map(|sent| sent.wr_id).collect();
    assert_eq!(order, [1, 2, 3, 4, 5]);
    let mut found = [0; 38];
    regions.server.load(0, &mut found).expect("load");
    assert_eq!(&found[..8], b"is there");
    for at in [16, 24, 32] {
        assert_eq!(&found[at..at + 6], b"record");
    }
    drop((pair, regions));
    fake.finish();
}

#[test]
fn one_side_may_flush_natively_and_the_other_by_reading() {
    let fake = control::session();
    for natively in [true, false] {
        let mut configs = [config(), ConnectionConfig::default()];
        if !natively {
            configs.reverse();
        }
        let peers = (peer().expect("a peer"), peer().expect("a peer"));
        let pair = Pair::between(peers.0, peers.1, &configs[0], &configs[1]);
        let pair = pair.expect("a connection");
        let regions = Regions::new(&pair, 64).expect("regions");
        let ends = [
            (&pair.client, &regions.of_server, natively),
            (&pair.server, &regions.of_client, !natively),
        ];
        for (end, remote, native) in ends {
            end.flush(remote.as_span(), FlushType::Visibility, Signal::Always, 1)
                .expect("posted");
            let opcode = completed(end.cq()).opcode();
            let expected = if native {
                Opcode::FLUSH
            } else {
                Opcode::RDMA_READ
            };
            assert_eq!(opcode, Some(expected));
        }
        drop((pair, regions));
    }
    fake.finish();
}

#[test]
fn a_peer_that_was_not_asked_refuses_a_native_flush_and_is_told_apart() {
    let fake = control::session();
    let pair = Pair::with(&config()).expect("a connection");
    let regions = Regions::new(&pair, 64).expect("regions");
    // A region as librpma registers it for flushes by reading.
    let plain = rpma::LocalRegion::alloc(&pair.server_peer, 64, rpma::Usage::READ_SRC);
    let plain = plain.expect("a region");
    let mut descriptor = plain.descriptor();
    descriptor[20] = rpma::Usage::FLUSH_VISIBILITY.bits();
    let remote = rpma::RemoteRegion::from_descriptor(&descriptor).expect("a region");
    pair.client
        .flush(remote.as_span(), FlushType::Visibility, Signal::OnError, 9)
        .expect("posted");
    let done = pair
        .client
        .cq()
        .next(super::common::WAIT)
        .expect("a completion");
    assert_eq!((done.op_context(), done.opcode()), (9, None));
    let error = done.result().expect_err("not allowed");
    assert_eq!(error.status, Status::REM_ACCESS_ERR);
    drop((pair, regions, plain));
    fake.finish();
}
