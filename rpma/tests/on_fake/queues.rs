//! Full queues, and what counts towards them.

use cm::verbs::sys::fake::control;
use rpma::{ConnectionConfig, Error, ErrorKind, FlushType, Signal};

use super::common::{Pair, Regions, completed};

fn config(sends: u32, receives: u32) -> ConnectionConfig {
    let mut config = ConnectionConfig::default();
    config.set_sq_size(sends).set_rq_size(receives);
    config
}

#[test]
fn the_last_slot_is_kept_for_an_operation_that_gives_a_completion() {
    let fake = control::session();
    for slots in if control::hurried() { 2..=2 } else { 2..=6 } {
        let pair = Pair::with(&config(slots, 4)).expect("a connection");
        let regions = Regions::new(&pair, 64).expect("regions");
        let (to, from) = (regions.of_server.as_span(), regions.client.as_span());
        let write = |signal, id| pair.client.write(to, from, signal, id);
        // A queue that is used up and emptied over and over.
        for round in 0..3 {
            for id in 1..slots {
                write(Signal::OnError, id.into()).expect("room");
            }
            let before = fake.sends().len();
            let error = write(Signal::OnError, 99).expect_err("the last slot");
            assert!(matches!(error, Error::QueueFull { .. }), "{error}");
            assert_eq!(fake.sends().len(), before, "nothing reached the device");
            write(Signal::Always, round).expect("the last slot");
            let error = write(Signal::Always, 99).expect_err("full");
            assert_eq!(error.kind(), ErrorKind::QueueFull);
            assert_eq!(completed(pair.client.cq()).op_context(), round);
            assert!(pair.client.cq().poll_one().expect("no error").is_none());
        }
        drop((pair, regions));
    }
    fake.finish();
}

#[test]
fn receives_fill_their_queue_and_come_back_with_their_completions() {
    let fake = control::session();
    let pair = Pair::with(&config(4, 3)).expect("a connection");
    let regions = Regions::new(&pair, 64).expect("regions");
    let recv = |id| pair.server.recv(regions.server.as_span(), id);
    for id in 0..3 {
        recv(id).expect("room");
    }
    assert_eq!(recv(9).expect_err("full").kind(), ErrorKind::QueueFull);
    let from = regions.client.span(..8).expect("a part");
    pair.client.send(from, Signal::Always, 1).expect("a send");
    assert_eq!(completed(pair.server.cq()).op_context(), 0);
    recv(3).expect("room again");
    assert_eq!(recv(9).expect_err("full").kind(), ErrorKind::QueueFull);
    drop((pair, regions));
    fake.finish();
}

#[test]
fn everything_posted_completes_when_the_connection_ends_and_nothing_is_lost() {
    let fake = control::session();
    let all = [(1, 1), (7, 3), (1, 14), (10, 10), (16, 16)];
    let some = if control::hurried() {
        &all[..2]
    } else {
        &all[..]
    };
    for &(sends, receives) in some {
        let pair = Pair::with(&config(sends, receives)).expect("a connection");
        let regions = Regions::new(&pair, 64).expect("regions");
        let mut posted = 0;
        while pair.client.recv(regions.client.as_span(), posted).is_ok() {
            posted += 1;
        }
        // The server has no receive, so these wait.
        while pair
            .client
            .send(regions.client.as_span(), Signal::Always, posted)
            .is_ok()
        {
            posted += 1;
        }
        assert_eq!(posted, u64::from(sends + receives));
        pair.client.disconnect().expect("disconnected");
        let mut found = vec![false; usize::try_from(posted).expect("few")];
        while let Some(completion) = pair.client.cq().poll_one().expect("no error") {
            let error = completion.result().expect_err("not carried out");
            assert!(error.is_flushed(), "{error}");
            let index = usize::try_from(completion.op_context()).expect("few");
            assert!(!std::mem::replace(&mut found[index], true), "{index} twice");
        }
        assert!(found.iter().all(|found| *found), "{found:?}");
        drop((pair, regions));
    }
    fake.finish();
}

#[test]
fn an_operation_that_may_be_queued_all_the_same_counts() {
    let fake = control::session();
    let pair = Pair::with(&config(3, 1)).expect("a connection");
    let regions = Regions::new(&pair, 64).expect("regions");
    let (to, from) = (regions.of_server.as_span(), regions.client.as_span());
    let write = |signal, id| pair.client.write(to, from, signal, id);
    fake.lose_doorbell();
    let error = write(Signal::OnError, 1).expect_err("lost");
    assert_eq!(error.kind(), ErrorKind::Provider);
    write(Signal::OnError, 2).expect("room");
    assert_eq!(
        write(Signal::OnError, 3).expect_err("the last slot").kind(),
        ErrorKind::QueueFull
    );
    write(Signal::Always, 4).expect("the last slot");
    completed(pair.client.cq());
    drop((pair, regions));
    fake.finish();
}

#[test]
fn a_flush_reads_no_more_than_its_range_and_never_past_the_region() {
    let fake = control::session();
    let pair = Pair::new().expect("a connection");
    let regions = Regions::new(&pair, 64).expect("regions");
    for (range, len) in [(0..64, 8), (0..3, 3), (60..64, 4), (63..64, 1)] {
        let span = regions.of_server.span(range.clone()).expect("a part");
        pair.client
            .flush(span, FlushType::Visibility, Signal::Always, 1)
            .expect("a flush");
        completed(pair.client.cq());
        let posted = fake.sends().pop().expect("it was posted");
        assert_eq!(posted.opcode, 4, "a read");
        assert_eq!(posted.sges[0].length, len);
        assert_eq!(
            posted.remote_addr,
            regions.server.as_ptr() as u64 + range.start
        );
    }
    drop((pair, regions));
    fake.finish();
}
