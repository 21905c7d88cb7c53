//! Operations that fail.

use cm::verbs::sys::fake::control;
use rpma::{ConnectionConfig, ErrorKind, LocalRegion, RemoteRegion, Signal, Status, Usage};

use super::common::{Pair, Regions, WAIT, completed};

#[test]
fn a_status_ends_the_operation_and_flushes_what_follows() {
    let fake = control::session();
    let all = [4, u32::MAX, 1, 10, 12, 21, 77];
    let some = if control::hurried() {
        &all[..2]
    } else {
        &all[..]
    };
    for &status in some {
        let pair = Pair::new().expect("a connection");
        let regions = Regions::new(&pair, 64).expect("regions");
        let (to, from) = (regions.of_server.as_span(), regions.client.as_span());
        // It waits, so that others come behind it.
        pair.client.send(from, Signal::OnError, 1).expect("posted");
        pair.client
            .write(to, from, Signal::OnError, 2)
            .expect("posted");
        pair.client.recv(from_recv(&regions), 3).expect("posted");
        fake.next_status(status);
        pair.server
            .recv(regions.server.as_span(), 4)
            .expect("posted");
        let mut found = Vec::new();
        while let Some(completion) = pair.client.cq().poll_one().expect("no error") {
            let error = completion.result().expect_err("no success");
            found.push((completion.op_context(), error.status.raw()));
        }
        assert_eq!(found, [(1, status), (2, 5), (3, 5)]);
        let error = pair.client.send(from, Signal::Always, 5);
        error.expect("taken, to be flushed");
        let last = pair.client.cq().next(WAIT).expect("a completion");
        assert!(last.result().expect_err("flushed").is_flushed());
        drop((pair, regions));
    }
    fake.finish();
}

fn from_recv(regions: &Regions) -> rpma::Span<'_> {
    regions.client.as_span()
}

#[test]
fn a_forged_descriptor_does_not_reach_anything() {
    let fake = control::session();
    let pair = Pair::new().expect("a connection");
    let regions = Regions::new(&pair, 64).expect("regions");
    let mut forged = regions.server.descriptor();
    // One byte longer than what was registered.
    forged[8..16].copy_from_slice(&65_u64.to_le_bytes());
    let remote = RemoteRegion::from_descriptor(&forged).expect("nothing contradicts it");
    let source = LocalRegion::alloc(&pair.client_peer, 65, Usage::WRITE_SRC).expect("a region");
    let (to, from) = (remote.as_span(), source.as_span());
    pair.client
        .write(to, from, Signal::Always, 1)
        .expect("posted");
    let completion = pair.client.cq().next(WAIT).expect("a completion");
    let error = completion.result().expect_err("refused by the device");
    assert_eq!(error.status, Status::REM_ACCESS_ERR);
    drop((pair, regions, source));
    fake.finish();
}

#[test]
fn a_peer_without_a_receive_is_named_where_retries_end() {
    let fake = control::session();
    let mut config = ConnectionConfig::default();
    config.set_rnr_retry(0).expect("in range");
    let pair = Pair::with(&config).expect("a connection");
    let regions = Regions::new(&pair, 64).expect("regions");
    let from = regions.client.as_span();
    pair.client.send(from, Signal::Always, 1).expect("posted");
    let completion = pair.client.cq().next(WAIT).expect("a completion");
    let error = completion.result().expect_err("nothing was posted");
    assert_eq!(error.status, Status::RNR_RETRY_EXC_ERR);
    drop((pair, regions));
    fake.finish();
}

#[test]
fn a_send_waits_for_its_receive_where_retries_do_not_end() {
    let fake = control::session();
    let pair = Pair::new().expect("a connection");
    let regions = Regions::new(&pair, 64).expect("regions");
    let from = regions.client.as_span();
    pair.client.send(from, Signal::Always, 1).expect("posted");
    assert!(pair.client.cq().poll_one().expect("no error").is_none());
    pair.server
        .recv(regions.server.as_span(), 2)
        .expect("posted");
    assert_eq!(completed(pair.client.cq()).op_context(), 1);
    assert_eq!(completed(pair.server.cq()).op_context(), 2);
    drop((pair, regions));
    fake.finish();
}

#[test]
fn an_errno_of_a_post_is_told_and_nothing_is_queued() {
    let fake = control::session();
    let pair = Pair::new().expect("a connection");
    let regions = Regions::new(&pair, 64).expect("regions");
    let from = regions.client.as_span();
    for (errno, kind) in [
        (libc::ENOMEM, ErrorKind::QueueFull),
        (libc::EINVAL, ErrorKind::Provider),
        (libc::EIO, ErrorKind::Provider),
    ] {
        fake.fail("ibv_post_send", 0, errno);
        let error = pair
            .client
            .send(from, Signal::Always, 1)
            .expect_err("made to fail");
        assert_eq!(error.kind(), kind, "{error}");
        fake.fail("ibv_post_recv", 0, errno);
        let error = pair.client.recv(from, 1).expect_err("made to fail");
        assert_eq!(error.kind(), kind, "{error}");
    }
    assert_eq!((fake.sends().len(), fake.recvs().len()), (0, 0));
    drop((pair, regions));
    fake.finish();
}
