//! Regions, their descriptors, and what is refused before the device sees it.

use cm::verbs::sys::fake::control;
use rpma::{Error, ErrorKind, LocalRegion, RemoteRegion, Signal, Status, Usage};

use super::common::{Pair, Regions, WAIT, completed, peer};

#[test]
fn a_descriptor_is_address_length_key_and_usage() {
    let fake = control::session();
    let peer = peer().expect("a peer");
    let usage = Usage::WRITE_DST | Usage::FLUSH_VISIBILITY;
    let region = LocalRegion::alloc(&peer, 5000, usage).expect("a region");
    let bytes: [u8; LocalRegion::DESCRIPTOR_SIZE] = region.descriptor();
    assert_eq!((region.len(), bytes.len()), (5000, 21));
    assert_eq!(bytes[..8], (region.as_ptr() as u64).to_le_bytes());
    assert_eq!(bytes[8..16], 5000_u64.to_le_bytes());
    assert_eq!(bytes[20], usage.bits());
    let remote = RemoteRegion::from_descriptor(&bytes).expect("a region");
    assert_eq!((remote.len(), remote.usage()), (5000, usage));
    region.close().expect("closed");
    peer.close().expect("nothing uses it");
    fake.finish();
}

#[test]
fn a_region_dropped_before_its_operation_completes_is_not_reached_any_more() {
    let fake = control::session();
    // The target of a write: its peer's operation fails, and the memory has gone.
    let pair = Pair::new().expect("a connection");
    let Regions {
        client,
        server,
        of_server,
        ..
    } = Regions::new(&pair, 64).expect("regions");
    drop(server);
    let (to, from) = (of_server.as_span(), client.as_span());
    pair.client
        .write(to, from, Signal::Always, 1)
        .expect("posted");
    let error = pair.client.cq().next(WAIT).expect("a completion");
    let error = error.result().expect_err("the key is gone");
    assert_eq!(error.status, Status::REM_ACCESS_ERR);
    drop((pair, client));

    // The source of a send that waits for a receive.
    let pair = Pair::new().expect("a connection");
    let Regions { client, server, .. } = Regions::new(&pair, 64).expect("regions");
    pair.client
        .send(client.as_span(), Signal::Always, 2)
        .expect("posted");
    drop(client);
    pair.server.recv(server.as_span(), 3).expect("posted");
    let error = pair.client.cq().next(WAIT).expect("a completion");
    assert_eq!(
        error.result().expect_err("the key is gone").status,
        Status::LOC_PROT_ERR
    );
    drop((pair, server));

    // The buffer of a receive.
    let pair = Pair::new().expect("a connection");
    let Regions { client, server, .. } = Regions::new(&pair, 64).expect("regions");
    pair.server.recv(server.as_span(), 4).expect("posted");
    drop(server);
    pair.client
        .send(client.as_span(), Signal::Always, 5)
        .expect("posted");
    let error = pair.server.cq().next(WAIT).expect("a completion");
    assert_eq!(
        error.result().expect_err("the key is gone").status,
        Status::LOC_PROT_ERR
    );
    drop((pair, client));
    fake.finish();
}

#[test]
fn what_kills_the_queue_pair_on_a_device_is_refused_by_name_before() {
    let fake = control::session();
    let pair = Pair::new().expect("a connection");
    let regions = Regions::new(&pair, 64).expect("regions");
    let posts = || fake.count("ibv_post_send") + fake.count("ibv_post_recv");
    let before = posts();
    let (to, from) = (regions.of_server.as_span(), regions.client.as_span());
    let others = regions.server.as_span();
    let error = pair
        .client
        .send(others, Signal::Always, 1)
        .expect_err("another peer's");
    assert!(matches!(error, Error::WrongPeer), "{error}");
    let short = regions.client.span(..8).expect("a part");
    let error = pair
        .client
        .write(to, short, Signal::Always, 1)
        .expect_err("too short");
    assert!(
        matches!(error, Error::LengthMismatch { dst: 64, src: 8 }),
        "{error}"
    );
    for usage in [Usage::SEND, Usage::RECV, Usage::READ_SRC] {
        let region = LocalRegion::alloc(&pair.client_peer, 64, usage).expect("a region");
        let remote = RemoteRegion::from_descriptor(&region.descriptor()).expect("a region");
        let span = region.as_span();
        let mut errors = vec![
            pair.client
                .write(to, span, Signal::Always, 1)
                .expect_err("not for writing"),
            pair.client
                .read(span, to, Signal::Always, 1)
                .expect_err("not for reading"),
            pair.client
                .write(remote.as_span(), from, Signal::Always, 1)
                .expect_err("no target"),
        ];
        if usage != Usage::SEND {
            errors.push(
                pair.client
                    .send(span, Signal::Always, 1)
                    .expect_err("not for sending"),
            );
        }
        if usage != Usage::RECV {
            errors.push(pair.client.recv(span, 1).expect_err("not for receiving"));
        }
        for error in errors {
            assert!(
                matches!(error, Error::UsageForbids { .. }),
                "{usage:?}: {error}"
            );
        }
    }
    assert_eq!(posts(), before);
    pair.client
        .write(to, from, Signal::Always, 1)
        .expect("the connection lives on");
    completed(pair.client.cq());
    drop((pair, regions));
    fake.finish();
}

#[test]
fn leaks_memory_that_cannot_be_deregistered() {
    let fake = control::session();
    let peer = peer().expect("a peer");
    let region = LocalRegion::alloc(&peer, 64, Usage::SEND).expect("a region");
    let start = region.as_ptr();
    fake.fail("ibv_dereg_mr", 0, libc::EINVAL);
    let error = region.close().expect_err("made to fail");
    assert!(error.to_string().contains("ibv_dereg_mr"), "{error}");
    // SAFETY: the region was leaked with its mapping, so the byte is still there.
    assert_eq!(unsafe { start.read_volatile() }, 0);
    assert_eq!(
        fake.left_over().last().map(String::as_str),
        Some("2 memory regions left")
    );
    drop(peer);
    fake.discard();
}

#[test]
fn memory_that_may_not_be_pinned_says_so() {
    let fake = control::session();
    let peer = peer().expect("a peer");
    fake.fail("ibv_reg_mr_iova2", 0, libc::ENOMEM);
    let error = LocalRegion::alloc(&peer, 64, Usage::SEND).expect_err("made to fail");
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    assert!(error.hint().is_some());
    drop(peer);
    fake.finish();
}
