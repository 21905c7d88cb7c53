//! What regions are made of, how they are registered, and how their bytes are reached.

use cm::verbs::sys::fake::control;
use rpma::{
    Advice, AdviseFlags, Device, Error, ErrorKind, HugePageSize, LocalRegion, Peer, RemoteRegion,
    Signal, Usage,
};

use super::common::{Pair, completed, peer};

const REGISTER: &str = "ibv_reg_mr_iova2";

#[test]
fn bytes_and_words_are_copied_inside_of_the_region_only() {
    let fake = control::session();
    let peer = peer().expect("a peer");
    let region = LocalRegion::alloc(&peer, 20, Usage::WRITE_SRC).expect("a region");
    region.fill(0xee).expect("filled");
    region.store(2, &[1, 2, 3]).expect("stored");
    region
        .store_u64(8, u64::from_ne_bytes([9; 8]))
        .expect("stored");
    let mut found = [0; 20];
    region.load(0, &mut found).expect("loaded");
    let mut expected = [0xee; 20];
    expected[2..5].copy_from_slice(&[1, 2, 3]);
    expected[8..16].copy_from_slice(&[9; 8]);
    assert_eq!(found, expected);
    assert_eq!(region.load_u64(8).expect("loaded").to_ne_bytes(), [9; 8]);

    for offset in [13, 20, usize::MAX] {
        for error in [
            region.store_u64(offset, 0).expect_err("outside"),
            region.load_u64(offset).map(drop).expect_err("outside"),
            region.store(offset, &[0; 8]).expect_err("outside"),
        ] {
            assert!(matches!(error, Error::OutOfBounds { .. }), "{error}");
        }
    }
    let error = region.store_u64(4, 0).expect_err("across two places");
    assert!(error.to_string().contains("multiple of 8"), "{error}");
    region.load(0, &mut found).expect("loaded");
    assert_eq!(found, expected, "what was refused has stored");
    assert_eq!(region.persist_method(), None);
    let error = region.persist(..).expect_err("of no file");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    drop((region, peer));
    fake.finish();
}

#[test]
fn a_flush_or_an_atomic_of_the_device_is_done_without_where_it_is_refused() {
    let fake = control::session();
    let peer = peer().expect("a peer");
    let registered = |refusals: usize| {
        for _ in 0..refusals {
            fake.fail(REGISTER, 0, libc::EINVAL);
        }
        let before = fake.count(REGISTER);
        let region = LocalRegion::alloc(&peer, 64, Usage::all());
        assert!(fake.faults_happened(), "fewer attempts than {refusals}");
        (region, fake.count(REGISTER) - before)
    };
    for (refusals, flushes, atomics) in [
        (0, Usage::FLUSH, true),
        (1, Usage::FLUSH_VISIBILITY, true),
        (2, Usage::empty(), true),
        (3, Usage::empty(), false),
    ] {
        let (region, attempts) = registered(refusals);
        let region = region.expect("done without");
        assert_eq!(attempts, refusals + 1);
        assert_eq!(region.native_flush_types(), flushes, "{refusals}");
        assert_eq!(region.allows_atomics(), atomics, "{refusals}");
        assert!(!region.is_on_demand());
        // What the other side is told does not change.
        assert_eq!(region.descriptor()[20], 0xff);
    }
    let (region, attempts) = registered(4);
    let error = region.expect_err("nothing is left to do without");
    assert!(error.to_string().contains("(errno 22)"), "{error}");
    assert_eq!(attempts, 4);
    // Another errno is no reason to try again.
    fake.fail(REGISTER, 0, libc::ENOMEM);
    let before = fake.count(REGISTER);
    let error = LocalRegion::alloc(&peer, 64, Usage::all()).expect_err("made to fail");
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    assert_eq!(fake.count(REGISTER) - before, 1);
    drop(peer);
    fake.finish();
}

#[test]
fn what_a_device_does_not_offer_is_not_asked_for() {
    let fake = control::session();
    fake.set_capabilities(0);
    let peer = peer().expect("a peer");
    let region = LocalRegion::alloc(&peer, 64, Usage::all()).expect("a region");
    assert_eq!(region.native_flush_types(), Usage::empty());
    // Flushes by reading still work.
    let remote = RemoteRegion::from_descriptor(&region.descriptor()).expect("a region");
    assert_eq!(remote.flush_types(), Usage::FLUSH);
    drop((region, peer));
    fake.finish();
}

#[test]
fn memory_that_cannot_be_pinned_is_paged_on_demand_where_the_device_can() {
    let fake = control::session();
    fake.set_vendor(0x15b3);
    let peer = peer().expect("a peer");
    fake.fail(REGISTER, 0, libc::EOPNOTSUPP);
    let region = LocalRegion::alloc(&peer, 64, Usage::WRITE_DST).expect("on demand");
    assert!(region.is_on_demand());
    assert!(peer.device().is_odp_capable().expect("asked"));
    drop(region);
    // Once only.
    fake.fail(REGISTER, 0, libc::EOPNOTSUPP);
    fake.fail(REGISTER, 0, libc::EOPNOTSUPP);
    let before = fake.count(REGISTER);
    let error = LocalRegion::alloc(&peer, 64, Usage::WRITE_DST).expect_err("neither");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert_eq!(fake.count(REGISTER) - before, 2);
    // Any other errno is none that on-demand paging helps with.
    fake.fail(REGISTER, 0, libc::EFAULT);
    let error = LocalRegion::alloc(&peer, 64, Usage::WRITE_DST).expect_err("made to fail");
    assert!(error.to_string().contains("(errno 14)"), "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("mapped")));
    drop(peer);

    // SoftRoCE says that it can, and misplaces bytes; the other device does not say so.
    fake.set_vendor(0x00ff_ffff);
    for address in [[192, 0, 2, 1], [198, 51, 100, 1]] {
        let device = Device::local(address.into()).expect("a device");
        let peer = Peer::new(&device).expect("a peer");
        assert!(!device.is_odp_capable().expect("asked"), "{address:?}");
        fake.fail(REGISTER, 0, libc::EOPNOTSUPP);
        let before = fake.count(REGISTER);
        let error = LocalRegion::alloc(&peer, 64, Usage::SEND).expect_err("made to fail");
        assert_eq!(fake.count(REGISTER) - before, 1);
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert_eq!(error.code(), -100_001);
        let hint = error.hint().unwrap_or_default();
        assert!(hint.contains("does not page on demand"), "{hint}");
        drop(peer);
    }
    fake.finish();
}

#[test]
fn advice_is_bounded_and_its_refusal_says_why() {
    let fake = control::session();
    let peer = peer().expect("a peer");
    let region = LocalRegion::alloc(&peer, 64, Usage::WRITE_DST).expect("a region");
    let advise =
        |range: std::ops::Range<u64>, flags| region.advise(range, Advice::PREFETCH_WRITE, flags);
    for range in [0..65, 64..65, 1..u64::MAX] {
        let error = advise(range, AdviseFlags::FLUSH).expect_err("outside");
        assert!(matches!(error, Error::OutOfBounds { .. }), "{error}");
    }
    let error = advise(0..64, AdviseFlags::from_bits_retain(6)).expect_err("unknown");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("0x6"), "{error}");
    // The fake device has no such call, as providers that pin all memory.
    let error = advise(0..64, AdviseFlags::empty()).expect_err("not offered");
    assert_eq!(
        (error.kind(), error.code()),
        (ErrorKind::Unsupported, -100_001),
        "{error}"
    );
    drop((region, peer));
    fake.finish();
}

#[test]
fn foreign_memory_is_reached_and_given_back_untouched() {
    let fake = control::session();
    let peer = peer().expect("a peer");
    let memory = Box::into_raw(Box::new([7_u8; 64]));
    let start = memory.cast::<u8>();
    // SAFETY: nobody else knows the memory, which is freed at the end, after the peer is gone.
    let region = unsafe { LocalRegion::from_raw_parts(&peer, start, 64, Usage::all()) };
    let region = region.expect("registered");
    assert_eq!((region.as_ptr(), region.len()), (start, 64));
    region.store(60, &[1; 4]).expect("stored");
    let mut found = [0; 6];
    region.load(58, &mut found).expect("loaded");
    assert_eq!(found, [7, 7, 1, 1, 1, 1]);
    region.close().expect("closed");
    for (start, len, usage) in [
        (std::ptr::null_mut(), 64, Usage::SEND),
        (start, 0, Usage::SEND),
        (start, 64, Usage::empty()),
        (start, usize::MAX, Usage::SEND),
    ] {
        // SAFETY: refused before it is looked at.
        let refused = unsafe { LocalRegion::from_raw_parts(&peer, start, len, usage) };
        let error = refused.expect_err("never right");
        assert!(matches!(error, Error::Invalid(_)), "{error}");
    }
    drop(peer);
    // SAFETY: made above, and in nobody else's hands.
    let memory = unsafe { Box::from_raw(memory) };
    assert_eq!(memory[60..], [1; 4]);
    fake.finish();
}

#[test]
fn a_source_may_be_borrowed_meanwhile_and_is_never_stored_to() {
    static WORDS: [u8; 16] = *b"0123456789abcdef";
    let fake = control::session();
    let pair = Pair::new().expect("a connection");
    let start = WORDS.as_ptr().cast_mut();
    let usage = Usage::WRITE_SRC | Usage::READ_SRC | Usage::SEND;
    // SAFETY: a static stays, and this one is never changed.
    let region = unsafe { LocalRegion::from_raw_parts(&pair.client_peer, start, 16, usage) };
    let region = region.expect("registered");
    let target = LocalRegion::alloc(&pair.server_peer, 16, Usage::all()).expect("a region");
    let to = RemoteRegion::from_descriptor(&target.descriptor()).expect("a region");
    let mut found = [0; 16];
    // The fake device reads by atomics, of which Miri knows that they need memory to write to.
    if !cfg!(miri) {
        pair.client
            .write(to.as_span(), region.as_span(), Signal::Always, 1)
            .expect("posted");
        completed(pair.client.cq());
        target.load(0, &mut found).expect("loaded");
        assert_eq!(found, WORDS);
        found = [0; 16];
    }
    region.load(0, &mut found).expect("loaded");
    assert_eq!(found, WORDS);
    for error in [
        region.store(0, b"x").expect_err("borrowed"),
        region.fill(0).expect_err("borrowed"),
    ] {
        assert!(matches!(error, Error::ReadOnly { .. }), "{error}");
        assert_eq!(error.code(), -100_004);
    }
    drop((pair, region, target));
    fake.finish();
}

#[test]
fn more_than_four_gib_go_into_a_region_and_into_no_operation() {
    // Nobody touches the pages, so nobody has to have them; Miri would.
    if cfg!(miri) {
        return;
    }
    let fake = control::session();
    let pair = Pair::new().expect("a connection");
    let bytes = (4_usize << 30) + 4096;
    let long = bytes as u64;
    let region = LocalRegion::alloc(&pair.client_peer, bytes, Usage::all());
    let region = region.expect("a long region");
    let remote = RemoteRegion::from_descriptor(&region.descriptor()).expect("a region");
    assert_eq!(remote.len(), long);
    let error = pair
        .client
        .write(remote.as_span(), region.as_span(), Signal::Always, 1)
        .expect_err("too long");
    assert!(
        matches!(error, Error::MessageTooLong { len, .. } if len == long),
        "{error}"
    );
    // Cut off to 32 bits these would be 0 bytes and 1.
    for len in [1_u64 << 32, (1 << 32) + 1] {
        let span = region.span(..len).expect("a part");
        let error = pair.client.send(span, Signal::Always, 1);
        let error = error.expect_err("too long");
        assert!(error.to_string().contains(&len.to_string()), "{error}");
    }
    assert!(fake.sends().is_empty() && fake.recvs().is_empty());
    // What lies past the first 4 GiB is as good as any other part.
    let end = region.span(long - 64..).expect("a part");
    pair.client.recv(end, 1).expect("posted");
    assert_eq!(fake.recvs().len(), 1);
    drop((pair, region));
    fake.finish();
}

#[test]
fn huge_pages_that_are_not_there_are_named_with_what_to_do() {
    if cfg!(miri) {
        return;
    }
    let fake = control::session();
    let peer = peer().expect("a peer");
    // A length that no machine has, and more of the usual one than any has reserved.
    let odd = HugePageSize::new(1 << 40).expect("a power of two");
    for (len, page, hint) in [
        (1, odd, "/sys/kernel/mm/hugepages"),
        (1 << 46, HugePageSize::MIB_2, "hugepages"),
        (usize::MAX, HugePageSize::GIB_1, "hugepages"),
    ] {
        let error = LocalRegion::alloc_huge(&peer, len, page, Usage::SEND).expect_err("not there");
        assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
        assert!(
            error.to_string().contains(&format!("{len} bytes")),
            "{error}"
        );
        assert!(error.hint().is_some_and(|text| text.contains(hint)));
    }
    drop(peer);
    fake.finish();
}

#[test]
fn a_dma_buffer_is_what_the_library_says_of_it() {
    use std::os::fd::AsFd;

    let fake = control::session();
    let peer = peer().expect("a peer");
    let file = std::fs::File::open("/dev/null").expect("a descriptor");
    // SAFETY: the fake device has no such buffers.
    let refused = unsafe { LocalRegion::from_dmabuf(&peer, file.as_fd(), 0, 64, Usage::READ_SRC) };
    let error = refused.expect_err("not offered");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("ibv_reg_dmabuf_mr"), "{error}");
    drop(peer);
    fake.finish();
}

#[test]
fn what_the_crate_registers_for_itself_has_pages_of_its_own() {
    let fake = control::session();
    let peer = peer().expect("a peer");
    // The one registration of a peer, seen by what a flush reads into.
    let pair = Pair::new().expect("a connection");
    let target = LocalRegion::alloc(&pair.server_peer, 64, Usage::all()).expect("a region");
    let of_target = RemoteRegion::from_descriptor(&target.descriptor()).expect("a region");
    pair.client
        .flush(
            of_target.as_span(),
            rpma::FlushType::Visibility,
            Signal::Always,
            1,
        )
        .expect("posted");
    completed(pair.client.cq());
    let sends = fake.sends();
    let flush = sends.last().expect("a read");
    let read_to = flush.sges.first().expect("where to").addr;
    assert_eq!(read_to % 4096, 0, "shares its page");
    // And those for the user, however short.
    let short = [1, 8, 4097]
        .map(|len| LocalRegion::alloc(&pair.client_peer, len, Usage::all()).expect("a region"));
    let mut pages: Vec<_> = short.iter().map(|region| region.as_ptr() as u64).collect();
    assert!(pages.iter().all(|page| page % 4096 == 0), "{pages:x?}");
    pages.extend([short[2].as_ptr() as u64 + 4096, read_to]);
    pages.push(target.as_ptr() as u64);
    pages.sort_unstable();
    pages.dedup();
    assert_eq!(pages.len(), 6, "two in one page: {pages:x?}");
    drop(short);
    drop((pair, target, peer));
    fake.finish();
}

#[test]
#[cfg(not(miri))]
fn files_are_mapped_and_registered() {
    use std::os::unix::fs::FileExt;

    let fake = control::session();
    let peer = peer().expect("a peer");
    let path = std::env::temp_dir().join(format!("rpma-mapped-{}", std::process::id()));
    std::fs::write(&path, vec![5; 10_000]).expect("a file");
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .open(&path)
        .expect("open");
    let reader = std::fs::File::open(&path).expect("open");
    std::fs::remove_file(&path).expect("unlinked");

    let region = LocalRegion::map_file(&peer, &file, 4000..9000, Usage::all()).expect("mapped");
    assert_eq!(region.len(), 5000);
    region.store(10, &[1, 2, 3]).expect("stored");
    region.persist(10..13).expect("persisted");
    let mut found = [0; 5];
    reader.read_exact_at(&mut found, 4009).expect("read");
    assert_eq!(found, [5, 1, 2, 3, 5]);

    let source = LocalRegion::map_file_read_only(&peer, &reader, .., Usage::READ_SRC);
    let source = source.expect("mapped");
    source.load(4009, &mut found).expect("loaded");
    assert_eq!(found, [5, 1, 2, 3, 5]);
    for error in [
        source.store(0, b"x").expect_err("read-only"),
        source.persist(..).expect_err("read-only"),
    ] {
        assert!(matches!(error, Error::ReadOnly { .. }), "{error}");
    }
    drop(source);
    let error = LocalRegion::map_file_read_only(&peer, &reader, .., Usage::WRITE_DST);
    let error = error.expect_err("devices would write");
    assert!(error.to_string().contains("use map_file"), "{error}");
    // The device's answer for a shared mapping, up to Linux 6.1.
    fake.fail(REGISTER, 0, libc::EFAULT);
    let copy = LocalRegion::map_file_read_only(&peer, &reader, .., Usage::READ_SRC);
    let copy = copy.expect("a private copy");
    assert!(copy.is_snapshot() && !region.is_snapshot());
    copy.load(4009, &mut found).expect("loaded");
    assert_eq!(found, [5, 1, 2, 3, 5]);

    let error = LocalRegion::map_file(&peer, &reader, .., Usage::SEND).expect_err("not writable");
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    assert!(
        error
            .hint()
            .is_some_and(|hint| hint.contains("map_file_read_only"))
    );
    fake.fail(REGISTER, 0, libc::EFAULT);
    let error = LocalRegion::map_file(&peer, &file, .., Usage::WRITE_DST).expect_err("unpinnable");
    assert!(error.to_string().contains("(errno 14)"), "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("tmpfs")));
    drop((region, copy));
    peer.close().expect("nothing uses it");
    fake.finish();
}

#[test]
#[cfg(not(miri))]
fn nothing_stays_mapped_of_what_is_refused_or_dropped() {
    let fake = control::session();
    let peer = peer().expect("a peer");
    let path = std::env::temp_dir().join(format!("rpma-dropped-{}", std::process::id()));
    std::fs::write(&path, vec![5; 1 << 20]).expect("a file");
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .open(&path)
        .expect("open");
    let mapped = || {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
        maps.lines()
            .filter(|line| line.contains("rpma-dropped"))
            .count()
    };
    for round in 0..10 {
        if round % 2 == 0 {
            fake.fail(REGISTER, 0, libc::ENOMEM);
        }
        let region = LocalRegion::map_file(&peer, &file, round * 4096 + round.., Usage::all());
        assert_eq!(region.is_ok(), round % 2 == 1);
        assert_eq!(mapped(), (round % 2) as usize);
    }
    assert_eq!(mapped(), 0);
    std::fs::remove_file(&path).expect("unlinked");
    drop(peer);
    fake.finish();
}
