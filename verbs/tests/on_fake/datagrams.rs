//! UD queue pairs and address handles.

use verbs::sys::fake::control;
use verbs::{
    Address, AddressHandle, Error, ErrorKind, Gid, InlineRequest, PostErrorKind, ProtectionDomain,
    QpType, SendFlags, SendRequest, SharedReceiveQueue, WcFlags, WcStatus, WrOpcode,
};

use super::common::{drain, open, outcomes, soon};
use super::ends::{End, QKEY, ends, handle, loopback};
use super::failing::{fail_each_call, fail_each_destroy};

#[test]
fn a_datagram_arrives_behind_its_header_and_is_answered_by_its_completion() {
    let fake = control::session();
    let (one, two) = ends(QpType::UD).expect("ends");
    let address = handle(&one.pd).expect("a handle");
    two.recv(7, 100).expect("a receive");
    let number = two.qp.number();
    let request = SendRequest::datagram_with_imm(3, &[], &address, number, QKEY, 9);
    one.post(request).expect("a datagram");
    assert_eq!(fake.sends()[0].datagram, Some((number, QKEY)));
    assert_eq!(outcomes(&one.cq), [(3, 0)]);
    let [completion] = drain(&two.cq)[..] else {
        panic!("not one completion");
    };
    let success = completion.result().expect("a success");
    assert_eq!((success.byte_len(), success.imm()), (40, Some(9)));
    assert_eq!(success.src_qp(), one.qp.number());
    assert!(success.flags().contains(WcFlags::GRH));

    let grh: [u8; 40] = two.received(40).try_into().expect("40 bytes");
    let back = Address::of_sender(two.pd.context(), 1, &success, &grh).expect("an address");
    let expected = loopback(two.pd.context()).expect("an address");
    assert_eq!(
        back.route.map(|route| (route.dgid, route.sgid_index)),
        expected.route.map(|route| (route.dgid, route.sgid_index))
    );
    let back = AddressHandle::of_sender(&two.pd, 1, &success, &grh).expect("a handle");
    one.recv(8, 100).expect("a receive");
    let request = SendRequest::datagram(4, &[], &back, success.src_qp(), QKEY);
    two.post(request).expect("an answer");
    assert_eq!(outcomes(&one.cq), [(8, 0)]);
    drop((address, back, one, two));
    fake.finish();
}

#[test]
fn an_address_of_either_version_of_ip_comes_back_from_the_header() {
    let fake = control::session();
    for ip in ["192.0.2.1", "2001:db8::1", "fe80::1"] {
        let (one, two) = ends(QpType::UD).expect("ends");
        let context = one.pd.context();
        let gids = context.gids(1).expect("GIDs");
        let ip: std::net::IpAddr = ip.parse().expect("an address");
        let (index, gid) = *gids
            .iter()
            .find(|(_, gid)| gid.ip() == ip)
            .expect("the device has it");
        let index = u8::try_from(index).expect("a small index");
        let address = Address::roce(1, index, gid);
        let there = AddressHandle::new(&one.pd, &address).expect("a handle");
        two.recv(1, 40).expect("a receive");
        let request = SendRequest::datagram(1, &[], &there, two.qp.number(), QKEY);
        one.post(request).expect("a datagram");
        let [completion] = drain(&two.cq)[..] else {
            panic!("not one completion, over {ip}");
        };
        let success = completion.result().expect("a success");
        let grh: [u8; 40] = two.received(40).try_into().expect("40 bytes");
        let back = Address::of_sender(context, 1, &success, &grh).expect("an address");
        let route = back.route.expect("the global part");
        assert_eq!((route.dgid, route.sgid_index), (gid, index));
        drop((there, one, two));
    }
    fake.finish();
}

#[test]
fn a_header_that_is_not_to_us_or_no_header_gives_no_address() {
    let fake = control::session();
    let (one, two) = ends(QpType::UD).expect("ends");
    let address = handle(&one.pd).expect("a handle");
    two.recv(1, 40).expect("a receive");
    let request = SendRequest::datagram(1, &[], &address, two.qp.number(), QKEY);
    one.post(request).expect("a datagram");
    let all = drain(&two.cq);
    let success = all[0].result().expect("a success");
    let mut grh: [u8; 40] = two.received(40).try_into().expect("40 bytes");
    grh[39] ^= 1;
    for (grh, errno) in [(grh, libc::ENODATA), ([0; 40], libc::EINVAL)] {
        let error = Address::of_sender(one.pd.context(), 1, &success, &grh);
        let error = error.expect_err("no address of ours");
        assert_eq!(
            (error.verb(), error.errno()),
            ("ibv_init_ah_from_wc", Some(errno))
        );
        let error = AddressHandle::of_sender(&one.pd, 1, &success, &grh);
        assert_eq!(error.expect_err("neither").errno(), Some(errno));
    }
    drop((address, one, two));
    fake.finish();
}

#[test]
fn a_datagram_that_is_not_meant_or_does_not_fit_is_lost_without_a_word() {
    let fake = control::session();
    let (one, two) = ends(QpType::UD).expect("ends");
    let address = handle(&one.pd).expect("a handle");
    let elsewhere = Gid("::ffff:192.0.2.77"
        .parse::<std::net::Ipv6Addr>()
        .expect("an address")
        .octets());
    let elsewhere = AddressHandle::new(&one.pd, &Address::roce(1, 1, elsewhere)).expect("a handle");
    let number = two.qp.number();
    let (eight, large) = ([one.sge(8)], [one.sge(1025)]);
    let send = |sges, address, number, qkey| {
        one.post(SendRequest::datagram(1, sges, address, number, qkey))
            .expect("posted");
        assert_eq!(outcomes(&one.cq), [(1, 0)], "its sender has done its part");
    };
    send(&eight, &address, number, QKEY); // No receive.
    two.recv(1, 47).expect("a receive");
    send(&eight, &address, number, QKEY); // One byte too long.
    send(&eight[..0], &address, number, QKEY + 1); // Another key.
    send(&eight[..0], &address, number + 1000, QKEY); // Nobody.
    send(&eight[..0], &elsewhere, number, QKEY); // Another host.
    send(&large, &address, number, QKEY); // More than a packet.
    assert_eq!(outcomes(&two.cq), []);
    // None of these has taken the receive; and a key with the top bit stands for the sender's own.
    send(&eight[..0], &address, number, 1 << 31);
    assert_eq!(outcomes(&two.cq), [(1, 0)]);
    drop((address, elsewhere, one, two));
    fake.finish();
}

#[test]
fn a_receive_that_may_not_be_written_fails_its_queue_pair() {
    let fake = control::session();
    let (one, two) = ends(QpType::UD).expect("ends");
    let address = handle(&one.pd).expect("a handle");
    let sges = [one.sge(100)];
    for (wr_id, mut request) in [1, 2].map(|id| (id, verbs::RecvRequest::new(id, &sges))) {
        // SAFETY: the device refuses the key, which is of another domain.
        unsafe { two.qp.post_recv(&mut request) }.unwrap_or_else(|e| panic!("{wr_id}: {e}"));
    }
    let request = SendRequest::datagram(1, &[], &address, two.qp.number(), QKEY);
    one.post(request).expect("posted");
    assert_eq!(outcomes(&one.cq), [(1, 0)]);
    let (fails, flushed) = (WcStatus::LOC_PROT_ERR, WcStatus::WR_FLUSH_ERR);
    assert_eq!(outcomes(&two.cq), [(1, fails.raw()), (2, flushed.raw())]);
    drop((address, one, two));
    fake.finish();
}

#[test]
fn datagrams_take_shared_receives() {
    let fake = control::session();
    let (one, two) = ends(QpType::UD).expect("ends");
    let address = handle(&one.pd).expect("a handle");
    let srq = SharedReceiveQueue::new(&two.pd, 4, 1).expect("a shared queue");
    let qp = verbs::QueuePair::builder(&two.pd, QpType::UD, &two.cq, &two.cq)
        .srq(&srq)
        .build()
        .expect("a queue pair");
    let mut init = verbs::InitAttributes::new(1);
    init.qkey = QKEY;
    qp.to_init(&init).expect("INIT");
    qp.to_rtr_datagram().expect("RTR");
    let sges = [two.sge(64)];
    // SAFETY: the region is live until the end of the test, and its memory not borrowed.
    unsafe { srq.post_recv(&mut verbs::RecvRequest::new(5, &sges)) }.expect("a receive");
    let request = SendRequest::datagram(1, &[], &address, qp.number(), QKEY);
    one.post(request).expect("posted");
    let [completion] = drain(&two.cq)[..] else {
        panic!("not one completion");
    };
    assert_eq!((completion.wr_id(), completion.qp_num()), (5, qp.number()));
    drop((address, qp, srq, one, two));
    fake.finish();
}

#[test]
fn an_inline_datagram_is_taken_while_posting_and_its_length_checked_before() {
    let fake = control::session();
    let (one, two) = ends(QpType::UD).expect("ends");
    let address = handle(&one.pd).expect("a handle");
    let number = two.qp.number();
    let mut data: Vec<u8> = (0..65).collect();
    let long = InlineRequest::datagram(1, &data, &address, number, QKEY);
    let (given, max) = (65, 64);
    assert_eq!(
        one.qp.post_inline(&long).expect_err("one too many").kind,
        PostErrorKind::InlineTooLong { given, max }
    );
    assert_eq!(fake.count("ibv_post_send"), 0);
    for wr_id in 0..2 {
        two.recv(wr_id, 40 + 64).expect("a receive");
    }
    let flags = SendFlags::SIGNALED;
    let plain = InlineRequest::datagram(2, &data[..64], &address, number, QKEY);
    one.qp
        .post_inline(&plain.with_flags(flags))
        .expect("posted");
    data.fill(0xee);
    assert_eq!(outcomes(&one.cq), [(2, 0)]);
    assert_eq!(two.received(104)[40..], (0..64).collect::<Vec<u8>>());
    let with_imm =
        InlineRequest::datagram_with_imm(3, &data[..5], &address, number, QKEY, 0x0102_0304);
    one.qp
        .post_inline(&with_imm.with_flags(flags))
        .expect("posted");
    assert_eq!(outcomes(&one.cq), [(3, 0)]);
    let posted = &fake.sends()[1];
    assert_eq!(posted.datagram, Some((number, QKEY)));
    assert_eq!(posted.inline.as_deref(), Some(&[0xee; 5][..]));
    assert_eq!(
        posted.flags,
        (SendFlags::SIGNALED | SendFlags::INLINE).bits()
    );
    let all = drain(&two.cq);
    let success = all[1].result().expect("a success");
    assert_eq!((success.imm(), success.byte_len()), (Some(0x0102_0304), 45));
    // An inline message without an address goes nowhere.
    assert_eq!(
        one.qp
            .post_inline(&InlineRequest::send(1, &data[..1]))
            .expect_err("no address")
            .kind,
        PostErrorKind::NoAddress
    );
    drop((address, one, two));
    fake.finish();
}

#[test]
fn what_a_datagram_cannot_be_is_refused_before_the_provider() {
    let fake = control::session();
    let (one, _two) = ends(QpType::UD).expect("ends");
    let remote = verbs::RemoteAddr {
        addr: 0,
        rkey: verbs::RemoteKey(0),
    };
    let context = open().expect("a context");
    let foreign_pd = ProtectionDomain::new(&context).expect("a domain");
    let foreign = handle(&foreign_pd).expect("a handle");
    for (mut request, kind) in [
        (
            SendRequest::write(1, &[], remote),
            PostErrorKind::Unsupported(WrOpcode::RDMA_WRITE),
        ),
        (
            SendRequest::send_with_invalidate(1, &[], remote.rkey),
            PostErrorKind::Unsupported(WrOpcode::SEND_WITH_INV),
        ),
        (SendRequest::send(1, &[]), PostErrorKind::NoAddress),
        (
            SendRequest::datagram(1, &[], &foreign, 1, QKEY),
            PostErrorKind::NoAddress,
        ),
    ] {
        // SAFETY: the request names no memory.
        let error = unsafe { one.qp.post_send(&mut request) }.expect_err("refused");
        assert_eq!(error.kind, kind);
    }
    assert_eq!(fake.count("ibv_post_send"), 0);
    drop((foreign, foreign_pd, context, one, _two));
    fake.finish();
}

#[test]
fn an_address_that_cannot_be_is_refused_with_advice() {
    let fake = control::session();
    let context = open().expect("a context");
    let pd = ProtectionDomain::new(&context).expect("a domain");
    let error = AddressHandle::new(&pd, &Address::infiniband(1, 3)).expect_err("no global part");
    assert_eq!(error.errno(), Some(libc::EINVAL), "{error}");
    assert!(
        error
            .hint()
            .is_some_and(|hint| hint.contains("Address::roce"))
    );
    let good = loopback(&context).expect("an address");
    let mut no_entry = good;
    no_entry.route.as_mut().expect("the global part").sgid_index = 9;
    for address in [no_entry, Address { port: 2, ..good }] {
        let error = AddressHandle::new(&pd, &address).expect_err("refused");
        assert_eq!((error.errno(), error.hint()), (Some(libc::EINVAL), None));
        assert!(error.to_string().contains("sgid_index"), "{error}");
    }
    fake.fail("ibv_create_ah", 0, libc::ETIMEDOUT);
    let error = AddressHandle::new(&pd, &good).expect_err("nobody answers");
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    drop((pd, context));
    fake.finish();
}

#[test]
fn a_handle_keeps_its_domain_and_is_closed_when_its_clones_are_gone() {
    let fake = control::session();
    let context = open().expect("a context");
    let pd = ProtectionDomain::new(&context).expect("a domain");
    let address = handle(&pd).expect("a handle");
    let clone = address.clone();
    let failed = address.close().expect_err("a clone lives");
    assert_eq!(failed.error.kind(), ErrorKind::Busy);
    drop((pd, context));
    assert_eq!(fake.count("ibv_dealloc_pd"), 0);
    drop(failed);
    clone.close().expect("the last one");
    fake.finish();
}

#[test]
fn the_ends_of_datagrams_are_drained() {
    let fake = control::session();
    let (one, two) = ends(QpType::UD).expect("ends");
    let address = handle(&one.pd).expect("a handle");
    for wr_id in 0..3 {
        one.recv(wr_id, 100).expect("a receive");
    }
    fake.hold_requests(true);
    let request = SendRequest::datagram(9, &[], &address, two.qp.number(), QKEY);
    one.post(request).expect("posted");
    let mut seen = Vec::new();
    let begun = verbs::Deadline::after(std::time::Duration::from_millis(30));
    let error = one.qp.drain(begun, |wc| seen.push(wc.wr_id()));
    assert_eq!(
        error.expect_err("the device is slow").kind(),
        ErrorKind::TimedOut
    );
    assert_eq!(seen, Vec::<u64>::new());
    fake.hold_requests(false);
    one.qp
        .drain(soon(), |wc| seen.push(wc.wr_id()))
        .expect("drained");
    seen.retain(|&wr_id| !verbs::QueuePair::is_drain_marker(wr_id));
    assert_eq!(seen, [9, 0, 1, 2]);
    drop((address, one, two));
    fake.finish();
}

fn everything_once() -> Result<(), Error> {
    let (one, two) = ends(QpType::UD)?;
    let address = handle(&one.pd)?;
    two.recv(1, 100)?;
    one.post(SendRequest::datagram(
        1,
        &[],
        &address,
        two.qp.number(),
        QKEY,
    ))?;
    let mut out = [std::mem::MaybeUninit::uninit(); 4];
    let got = two.cq.poll(&mut out)?;
    let Some(success) = got.first().and_then(|wc| wc.result().ok()) else {
        return Ok(());
    };
    let grh = two.received(40).try_into().expect("40 bytes");
    AddressHandle::of_sender(&two.pd, 1, &success, &grh)?;
    Ok(())
}

#[test]
fn a_failing_call_leaves_nothing_behind_and_names_itself_and_its_errno() {
    let fake = control::session();
    let tried = fail_each_call(&fake, everything_once);
    for call in ["ibv_create_ah", "ibv_init_ah_from_wc", "ibv_modify_qp"] {
        assert!(tried.contains(&call), "{call}");
    }
    fake.finish();
}

#[test]
fn leaks_are_all_that_a_failing_destroy_does() {
    let fake = control::session();
    fail_each_destroy(&fake, everything_once);
    fake.discard();
}

#[test]
fn handles_may_be_dropped_in_any_order() {
    let fake = control::session();
    for rotation in 0..4 {
        let (one, two) = ends(QpType::UD).expect("ends");
        let address = handle(&one.pd).expect("a handle");
        let End {
            qp,
            cq,
            region,
            memory,
            pd,
        } = one;
        let mut handles: Vec<Box<dyn std::any::Any>> = vec![
            Box::new(address),
            Box::new(pd),
            Box::new(qp),
            Box::new((cq, region, two)),
        ];
        handles.rotate_left(rotation);
        drop(handles);
        drop(memory);
        assert_eq!(fake.left_over(), Vec::<String>::new(), "{rotation}");
    }
    fake.finish();
}
