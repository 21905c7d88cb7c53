//! What reaches the provider when something is posted, and what does not.

use verbs::sys::fake::control::{self, PostedSend, PostedSge};
use verbs::{
    AccessFlags, PostErrorKind, QpState, RecvRequest, SendFlags, SendRequest, Sge, WcStatus,
};

use super::common::{Memory, Pair, drain, everything, outcomes, sge, target, to_init, to_rtr};

#[test]
fn a_list_reaches_the_provider_in_one_call_and_field_for_field() {
    let fake = control::session();
    let pair = Pair::new().expect("a pair");
    let (here, there) = (Memory::new(64), Memory::new(64));
    let own = here
        .register(&pair.pd, AccessFlags::LOCAL_WRITE)
        .expect("a region");
    let other = there.register(&pair.pd, everything()).expect("a region");
    let two = [sge(&own, 8), Sge::new(own.addr() as u64 + 8, 4, own.lkey())];
    let one = [sge(&own, 16)];
    let receive = [sge(&other, 64)];
    for id in [100, 101] {
        // SAFETY: the region is live until the end of the test, and its memory not borrowed.
        unsafe { pair.b.post_recv(&mut RecvRequest::new(id, &receive)) }.expect("a receive");
    }
    let before = fake.count("ibv_post_send");
    let mut list = [
        SendRequest::send(1, &two),
        SendRequest::send_with_imm(2, &one, 0x0102_0304).with_flags(SendFlags::SIGNALED),
        SendRequest::write(3, &one, target(&other)).with_flags(SendFlags::FENCE),
        SendRequest::read(4, &one, target(&other)).with_flags(SendFlags::SIGNALED),
    ];
    // SAFETY: the regions are live until the end of the test, and their memory not borrowed.
    unsafe { pair.a.post_send_list(&mut list) }.expect("a list");
    assert_eq!(fake.count("ibv_post_send"), before + 1, "one doorbell");
    let pieces = |sges: &[Sge]| {
        let from = |offset: u64, length| PostedSge {
            addr: own.addr() as u64 + offset,
            length,
            lkey: own.lkey().0,
        };
        match sges.len() {
            1 => vec![from(0, 16)],
            _ => vec![from(0, 8), from(8, 4)],
        }
    };
    let expected = |wr_id, opcode, flags, sges: &[Sge]| PostedSend {
        qp_num: pair.a.number(),
        wr_id,
        opcode,
        flags,
        sges: pieces(sges),
        ..PostedSend::default()
    };
    let remote = (other.addr() as u64, other.rkey().0);
    let posted = fake.sends();
    assert_eq!(posted[0], expected(1, 2, 0, &two));
    let immediate = PostedSend {
        imm: 0x0102_0304,
        ..expected(2, 3, 2, &one)
    };
    assert_eq!(posted[1], immediate);
    let (remote_addr, rkey) = remote;
    assert_eq!(
        posted[2],
        PostedSend {
            remote_addr,
            rkey,
            ..expected(3, 0, 1, &one)
        }
    );
    assert_eq!(
        posted[3],
        PostedSend {
            remote_addr,
            rkey,
            ..expected(4, 4, 2, &one)
        }
    );
    let received: Vec<_> = fake
        .recvs()
        .iter()
        .map(|recv| (recv.qp_num, recv.wr_id))
        .collect();
    assert_eq!(received, [(pair.b.number(), 100), (pair.b.number(), 101)]);
    assert_eq!(outcomes(&pair.a_cq), [(2, 0), (4, 0)], "the signaled ones");
    let all = drain(&pair.b_cq);
    assert_eq!(all[0].result().expect("a success").imm(), None);
    assert_eq!(all[0].result().expect("a success").byte_len(), 12);
    assert_eq!(all[1].result().expect("a success").imm(), Some(0x0102_0304));
    drop((own, other, pair));
    fake.finish();
}

#[test]
fn nothing_is_sent_to_the_provider_before_rts() {
    let fake = control::session();
    let pair = Pair::in_reset().expect("a pair");
    let post = || {
        let mut request = SendRequest::send(1, &[]);
        // SAFETY: the request names no memory.
        unsafe { pair.a.post_send(&mut request) }.expect_err("refused")
    };
    assert_eq!(post().kind, PostErrorKind::State(QpState::RESET));
    to_init(&pair.a).expect("INIT");
    assert_eq!(post().kind, PostErrorKind::State(QpState::INIT));
    to_rtr(&pair.a, &pair.b).expect("RTR");
    assert_eq!(post().kind, PostErrorKind::State(QpState::RTR));
    assert_eq!(post().queued, 0);
    // SAFETY: the request names no memory.
    let refused = unsafe { pair.b.post_recv(&mut RecvRequest::new(1, &[])) };
    assert_eq!(
        refused.expect_err("refused").kind,
        PostErrorKind::State(QpState::RESET)
    );
    assert_eq!(fake.count("ibv_post_send") + fake.count("ibv_post_recv"), 0);
    drop(pair);
    fake.finish();
}

#[test]
fn a_state_that_the_kernel_refused_is_not_taken_for_reached() {
    let fake = control::session();
    let pair = Pair::in_reset().expect("a pair");
    let error = to_rtr(&pair.a, &pair.b).expect_err("not from RESET");
    assert_eq!(
        (error.verb(), error.errno()),
        ("ibv_modify_qp", Some(libc::EINVAL))
    );
    assert_eq!(pair.a.state(), QpState::RESET);
    fake.fail("ibv_modify_qp", 0, libc::ETIMEDOUT);
    to_init(&pair.a).expect_err("made to fail");
    assert_eq!(pair.a.state(), QpState::RESET);
    drop(pair);
    fake.finish();
}

#[test]
fn a_full_queue_says_so_and_how_much_of_the_list_it_took() {
    let fake = control::session();
    let pair = Pair::new().expect("a pair");
    let mut list: Vec<_> = (0..6).map(|id| SendRequest::send(id, &[])).collect();
    // SAFETY: the requests name no memory.
    let error = unsafe { pair.a.post_send_list(&mut list) }.expect_err("four fit");
    assert_eq!((error.kind, error.queued), (PostErrorKind::QueueFull, 4));
    assert_eq!(fake.sends().len(), 4);
    let mut list: Vec<_> = (10..16).map(|id| RecvRequest::new(id, &[])).collect();
    // SAFETY: the requests name no memory.
    let error = unsafe { pair.b.post_recv_list(&mut list) }.expect_err("four fit");
    assert_eq!((error.kind, error.queued), (PostErrorKind::QueueFull, 4));
    assert_eq!(outcomes(&pair.b_cq), [(10, 0), (11, 0), (12, 0), (13, 0)]);
    drop(pair);
    fake.finish();
}

#[test]
fn a_lost_doorbell_means_that_the_request_may_still_be_carried_out() {
    let fake = control::session();
    let pair = Pair::new().expect("a pair");
    for id in [20, 21] {
        // SAFETY: the request names no memory.
        unsafe { pair.b.post_recv(&mut RecvRequest::new(id, &[])) }.expect("a receive");
    }
    let signaled = |id| SendRequest::send(id, &[]).with_flags(SendFlags::SIGNALED);
    fake.lose_doorbell();
    // SAFETY: the request names no memory.
    let error = unsafe { pair.a.post_send(&mut signaled(1)) }.expect_err("lost");
    assert_eq!(
        (error.kind, error.queued),
        (PostErrorKind::Provider(libc::EINVAL), 1)
    );
    assert_eq!(outcomes(&pair.a_cq), []);
    // SAFETY: the request names no memory.
    unsafe { pair.a.post_send(&mut signaled(2)) }.expect("the doorbell rings");
    assert_eq!(outcomes(&pair.a_cq), [(1, 0), (2, 0)]);
    drop(pair);
    fake.finish();
}

#[test]
fn inline_data_is_taken_while_posting_and_its_length_checked_before() {
    let fake = control::session();
    let pair = Pair::new().expect("a pair");
    let there = Memory::new(16);
    let other = there.register(&pair.pd, everything()).expect("a region");
    let bytes: Vec<u8> = (1..=17).collect();
    let piece = |len| {
        [Sge::new(
            bytes.as_ptr().expose_provenance() as u64,
            len,
            verbs::LocalKey(0),
        )]
    };
    let inline = |sges: &[Sge]| {
        let mut request = SendRequest::write(1, sges, target(&other))
            .with_flags(SendFlags::INLINE | SendFlags::SIGNALED);
        // SAFETY: the bytes are readable during the call.
        unsafe { pair.a.post_send(&mut request) }
    };
    let error = inline(&piece(17)).expect_err("one too many");
    assert_eq!(
        error.kind,
        PostErrorKind::InlineTooLong { given: 17, max: 16 }
    );
    assert_eq!(fake.count("ibv_post_send"), 0);
    inline(&piece(16)).expect("as many as asked for");
    assert_eq!(fake.sends()[0].inline.as_deref(), Some(&bytes[..16]));
    assert_eq!(outcomes(&pair.a_cq), [(1, 0)]);
    drop(other);
    assert_eq!(there.get(), bytes[..16]);
    drop(pair);
    fake.finish();
}

#[test]
fn faults_end_as_the_specification_says() {
    let fake = control::session();
    let statuses = |name: &str, rnr_retry, post: &dyn Fn(&Pair, &Memory)| {
        let pair = Pair::with_rnr_retry(rnr_retry).expect(name);
        let memory = Memory::new(64);
        post(&pair, &memory);
        let (ours, theirs) = (outcomes(&pair.a_cq), outcomes(&pair.b_cq));
        drop(pair);
        (ours, theirs)
    };
    let status = |status: WcStatus| status.raw();
    let flushed = status(WcStatus::WR_FLUSH_ERR);

    let (ours, theirs) = statuses("no right to write", 7, &|pair, memory| {
        let region = memory
            .register(&pair.pd, AccessFlags::LOCAL_WRITE)
            .expect("a region");
        let piece = [sge(&region, 8)];
        // SAFETY: the request names no memory.
        unsafe { pair.b.post_recv(&mut RecvRequest::new(9, &[])) }.expect("a receive");
        let mut list = [
            SendRequest::write(1, &piece, target(&region)),
            SendRequest::send(2, &[]),
        ];
        // SAFETY: the region is live during the call, in which all is carried out.
        unsafe { pair.a.post_send_list(&mut list) }.expect("posted");
    });
    assert_eq!(ours, [(1, status(WcStatus::REM_ACCESS_ERR)), (2, flushed)]);
    assert_eq!(theirs, [(9, flushed)]);

    let (ours, _) = statuses("no receive", 0, &|pair, _| {
        // SAFETY: the request names no memory.
        unsafe { pair.a.post_send(&mut SendRequest::send(1, &[])) }.expect("posted");
    });
    assert_eq!(ours, [(1, status(WcStatus::RNR_RETRY_EXC_ERR))]);

    let (ours, theirs) = statuses("too long for the receive", 7, &|pair, memory| {
        let region = memory.register(&pair.pd, everything()).expect("a region");
        let (short, long) = ([sge(&region, 4)], [sge(&region, 8)]);
        // SAFETY: the region is live during the calls, in which all is carried out.
        unsafe { pair.b.post_recv(&mut RecvRequest::new(9, &short)) }.expect("a receive");
        // SAFETY: as above.
        unsafe { pair.a.post_send(&mut SendRequest::send(1, &long)) }.expect("posted");
    });
    assert_eq!(ours, [(1, status(WcStatus::REM_INV_REQ_ERR))]);
    assert_eq!(theirs, [(9, status(WcStatus::LOC_LEN_ERR))]);

    let (ours, _) = statuses("a key of nobody", 7, &|pair, memory| {
        let region = memory.register(&pair.pd, everything()).expect("a region");
        let piece = [sge(&region, 8)];
        drop(region);
        // SAFETY: the device refuses the key of a region that is gone.
        unsafe { pair.a.post_send(&mut SendRequest::send(1, &piece)) }.expect("posted");
    });
    assert_eq!(ours, [(1, status(WcStatus::LOC_PROT_ERR))]);
    fake.finish();
}
