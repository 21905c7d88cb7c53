//! Several operations with one doorbell.

use cm::verbs::sys::fake::control;
use rpma::{Batch, ConnectionConfig, Error, ErrorKind, FlushType, Opcode, Signal};

use super::common::{Pair, Regions, completed};

fn config(sends: u32) -> ConnectionConfig {
    let mut config = ConnectionConfig::default();
    config.set_sq_size(sends).set_max_inline(16);
    config.set_max_spans(2).expect("in range");
    config
}

#[test]
fn a_batch_is_posted_with_one_doorbell_and_carried_out_in_order() {
    let fake = control::session();
    let pair = Pair::with(&config(16)).expect("a connection");
    let regions = Regions::new(&pair, 64).expect("regions");
    regions.client.store(0, b"recordtwo").expect("store");
    regions.server.store(40, b"from there").expect("store");
    let remote = |range| regions.of_server.span(range).expect("inside");
    let local = |range| regions.client.span(range).expect("inside");
    pair.server.recv(&[], 1).expect("posted");
    pair.server
        .recv(regions.server.span(50..).expect("inside"), 2)
        .expect("posted");
    let doorbells = fake.count("ibv_post_send");
    let made = pair.client.batch(|batch| -> Result<usize, Error> {
        assert!(batch.is_empty());
        batch.write(remote(0..6), local(0..6), Signal::OnError, 10)?;
        batch.write(
            remote(8..15),
            &[local(6..9), local(0..4)],
            Signal::OnError,
            11,
        )?;
        batch.write(remote(16..22), b"inline", Signal::OnError, 12)?;
        batch.flush(remote(0..22), FlushType::Visibility, Signal::Always, 13)?;
        batch.atomic_write(remote(24..32), *b"A word!!", Signal::OnError, 14)?;
        batch.atomic_write(remote(32..40), *b"Another!", Signal::OnError, 15)?;
        batch.read(local(20..30), remote(40..50), Signal::OnError, 16)?;
        batch.write_with_imm(remote(0..0), b"", 77, Signal::OnError, 17)?;
        batch.send_with_imm(b"message", 78, Signal::Always, 18)?;
        Ok(batch.len())
    });
    assert_eq!(made.expect("posted"), 9);
    assert_eq!(fake.count("ibv_post_send") - doorbells, 1);
    let order: Vec<_> = fake.sends().iter().map(|sent| sent.wr_id).collect();
    assert_eq!(order, (10..19).collect::<Vec<_>>());
    for (context, opcode) in [(13, Opcode::RDMA_READ), (18, Opcode::SEND)] {
        let done = completed(pair.client.cq());
        assert_eq!((done.op_context(), done.opcode()), (context, Some(opcode)));
    }
    assert_eq!(completed(pair.server.cq()).imm(), Some(77));
    assert_eq!(completed(pair.server.cq()).imm(), Some(78));
    let mut found = [0; 57];
    regions.server.load(0, &mut found).expect("load");
    assert_eq!(
        &found,
        b"record\0\0tworeco\0inline\0\0A word!!Another!from theremessage"
    );
    let mut found = [0; 10];
    regions.client.load(20, &mut found).expect("load");
    assert_eq!(&found, b"from there");
    drop((pair, regions));
    fake.finish();
}

#[test]
fn nothing_of_a_batch_is_posted_when_one_operation_is_refused() {
    let fake = control::session();
    let pair = Pair::with(&config(8)).expect("a connection");
    let regions = Regions::new(&pair, 64).expect("regions");
    let (to, from) = (regions.of_server.as_span(), regions.client.as_span());
    let short = regions.client.span(..8).expect("inside");
    let calls = fake.count("ibv_post_send");
    let error = pair.client.batch(|batch| -> Result<(), Error> {
        batch.write(to, from, Signal::OnError, 1)?;
        batch.write(to, short, Signal::Always, 2)
    });
    assert!(matches!(error, Err(Error::LengthMismatch { .. })));
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        pair.client.batch(|batch| -> Result<(), Error> {
            batch.write(to, from, Signal::OnError, 1)?;
            panic!("in the middle")
        })
    }));
    assert!(panicked.is_err());
    pair.client
        .batch(|_| Ok::<_, Error>(()))
        .expect("nothing to do");
    assert_eq!(fake.count("ibv_post_send"), calls);

    // Refused and gone on without: the others are posted.
    let posted = pair.client.batch(|batch| -> Result<usize, Error> {
        let refused = batch.write(to, short, Signal::Always, 3);
        assert!(refused.is_err());
        batch.write(to, from, Signal::Always, 4)?;
        Ok(batch.len())
    });
    assert_eq!(posted.expect("posted"), 1);
    assert_eq!(completed(pair.client.cq()).op_context(), 4);
    drop((pair, regions));
    fake.finish();
}

#[test]
fn a_batch_keeps_the_last_slot_for_a_completion_and_holds_no_more_than_the_queue() {
    let fake = control::session();
    let pair = Pair::with(&config(4)).expect("a connection");
    let regions = Regions::new(&pair, 64).expect("regions");
    let (to, from) = (regions.of_server.as_span(), regions.client.as_span());
    pair.client
        .write(to, from, Signal::OnError, 1)
        .expect("room");
    let full = pair.client.batch(|batch| -> Result<(), Error> {
        batch.write(to, from, Signal::OnError, 2)?;
        batch.write(to, from, Signal::OnError, 3)?;
        let error = batch
            .write(to, from, Signal::OnError, 4)
            .expect_err("the last slot");
        assert!(error.hint().is_some(), "{error}");
        assert_eq!(error.code(), -100_007);
        batch.write(to, from, Signal::Always, 5)
    });
    full.expect("posted");
    assert_eq!(completed(pair.client.cq()).op_context(), 5);
    let error = pair.client.batch(|batch| -> Result<(), Error> {
        for context in 0..5 {
            batch.write(to, from, Signal::Always, context)?;
        }
        Ok(())
    });
    assert!(matches!(error, Err(Error::QueueFull { .. })), "{error:?}");
    assert!(
        pair.client.cq().poll_one().expect("no error").is_none(),
        "none was posted"
    );

    // What is posted aside while a batch is built counts as well.
    let error = pair.client.batch(|batch| -> Result<(), Error> {
        batch.write(to, from, Signal::OnError, 6)?;
        batch.write(to, from, Signal::OnError, 7)?;
        pair.client.write(to, from, Signal::OnError, 8)?;
        pair.client.write(to, from, Signal::OnError, 9)
    });
    assert!(matches!(error, Err(Error::QueueFull { .. })), "{error:?}");
    pair.client
        .write(to, from, Signal::Always, 10)
        .expect("room");
    completed(pair.client.cq());
    drop((pair, regions));
    fake.finish();
}

#[test]
fn a_batch_that_was_cut_off_says_how_much_of_it_was_posted() {
    let fake = control::session();
    let pair = Pair::with(&config(4)).expect("a connection");
    let regions = Regions::new(&pair, 64).expect("regions");
    let from = regions.client.span(..8).expect("inside");
    // They wait for receives, so their slots stay taken.
    pair.client.send(from, Signal::Always, 1).expect("room");
    pair.client.send(from, Signal::Always, 2).expect("room");
    let error = pair.client.batch(|batch| -> Result<(), Error> {
        batch.send(from, Signal::OnError, 3)?;
        batch.send(from, Signal::Always, 4)?;
        batch.send(from, Signal::OnError, 5)
    });
    let error = error.expect_err("no room for all");
    assert!(
        matches!(
            error,
            Error::PartlyPosted {
                queued: 2,
                of: 3,
                ..
            }
        ),
        "{error}"
    );
    assert_eq!(error.kind(), ErrorKind::QueueFull);
    let error = pair
        .client
        .batch(|batch| batch.send(from, Signal::Always, 6));
    assert!(matches!(error, Err(Error::QueueFull { .. })), "{error:?}");
    for context in 0..4 {
        pair.server
            .recv(regions.server.as_span(), context)
            .expect("posted");
    }
    for context in [1, 2, 4] {
        assert_eq!(completed(pair.client.cq()).op_context(), context);
    }

    // Where the device does not say, all of them may be carried out.
    fake.lose_doorbell();
    let to = regions.of_server.span(..8).expect("inside");
    let error = pair.client.batch(|batch| -> Result<(), Error> {
        batch.write(to, from, Signal::Always, 7)?;
        batch.write(to, from, Signal::OnError, 8)
    });
    let error = error.expect_err("lost");
    assert!(
        matches!(
            error,
            Error::PartlyPosted {
                queued: 2,
                of: 2,
                ..
            }
        ),
        "{error}"
    );
    assert_eq!(error.kind(), ErrorKind::Provider);
    drop((pair, regions));
    fake.finish();
}

#[test]
fn a_batch_has_an_end() {
    let fake = control::session();
    let pair = Pair::with(&config(200)).expect("a connection");
    let regions = Regions::new(&pair, 64).expect("regions");
    let from = regions.client.span(..4).expect("inside");
    let to = regions.of_server.span(..8).expect("inside");
    let posted = pair.client.batch(|batch| -> Result<usize, Error> {
        for context in 0..Batch::CAPACITY as u64 {
            batch.write(to, &[from, from], Signal::OnError, context)?;
        }
        let error = batch.write(to, b"12345678", Signal::Always, 99);
        assert!(matches!(error, Err(Error::QueueFull { .. })), "{error:?}");
        Ok(batch.len())
    });
    assert_eq!(posted.expect("posted"), Batch::CAPACITY);
    assert_eq!(fake.sends().len(), Batch::CAPACITY);
    drop((pair, regions));
    fake.finish();
}
