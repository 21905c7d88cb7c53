//! Extended queue pairs with address handles and memory windows.

use verbs::sys::fake::control::{self, PostedBind};
use verbs::{
    AccessFlags, CompletionQueue, Error, ErrorKind, ExtendedQueuePair, InitAttributes,
    MemoryWindow, PostError, PostErrorKind, ProtectionDomain, QpType, QueuePair, RemoteAddr,
    SendFlags, SendOps, SendRequest, WcStatus, WindowBind, WindowType,
};

use super::common::{Memory, drain, open, outcomes, to_rtr, to_rts};
use super::ends::{End, QKEY, handle};

const SIGNALED: SendFlags = SendFlags::SIGNALED;

/// An extended end and a plain one, of one device.
fn ends(qp_type: QpType, ops: SendOps) -> (ExtendedQueuePair, CompletionQueue, End) {
    let context = open().expect("open");
    let pd = ProtectionDomain::new(&context).expect("a domain");
    let cq = CompletionQueue::builder(&context, 64)
        .build()
        .expect("a queue");
    let qp = QueuePair::builder(&pd, qp_type, &cq, &cq)
        .max_inline_data(64)
        .build_extended(ops)
        .expect("a queue pair");
    let mut init = InitAttributes::new(1);
    init.access = AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE;
    init.qkey = QKEY;
    qp.queue_pair().to_init(&init).expect("INIT");
    let peer = End::new(&context, qp_type).expect("an end");
    if qp_type == QpType::UD {
        qp.queue_pair().to_rtr_datagram().expect("RTR");
        peer.connect(&peer).expect("RTS");
    } else {
        to_rtr(qp.queue_pair(), &peer.qp).expect("RTR");
        to_rtr(&peer.qp, qp.queue_pair()).expect("RTR");
        to_rts(&peer.qp, 7).expect("RTS");
    }
    let rts = verbs::RtsAttributes::new(7);
    qp.queue_pair().to_rts(&rts).expect("RTS");
    (qp, cq, peer)
}

#[test]
fn a_datagram_of_a_batch_goes_where_its_address_says() {
    let fake = control::session();
    let (mut qp, cq, peer) = ends(QpType::UD, SendOps::SEND | SendOps::SEND_WITH_IMM);
    let address = handle(qp.queue_pair().pd()).expect("a handle");
    let other = ProtectionDomain::new(&open().expect("open")).expect("a domain");
    let foreign = handle(&other).expect("a handle");
    peer.recv(10, 100).expect("a receive");
    peer.recv(11, 100).expect("a receive");
    let number = peer.qp.number();
    let before = fake.calls().len();
    qp.post_batch(|batch| -> Result<(), PostError> {
        for refused in [
            batch.send(1).inline(b"to nobody"),
            batch
                .send(1)
                .to(&foreign, number, QKEY)
                .inline(b"elsewhere"),
        ] {
            let error = refused.expect_err("refused");
            assert_eq!(error.kind, PostErrorKind::NoAddress);
        }
        batch
            .send(2)
            .flags(SIGNALED)
            .to(&address, number, QKEY)
            .inline(b"first")?;
        batch
            .send_with_imm(3, 9)
            .to(&address, number, QKEY)
            .flags(SIGNALED)
            .empty()
    })
    .expect("a batch");
    let calls = fake.calls();
    let calls: Vec<_> = calls[before..]
        .iter()
        .filter(|name| name.starts_with("ibv_wr"))
        .collect();
    assert_eq!(
        calls,
        [
            &"ibv_wr_start",
            &"ibv_wr_send",
            &"ibv_wr_set_ud_addr",
            &"ibv_wr_set_inline_data",
            &"ibv_wr_send_imm",
            &"ibv_wr_set_ud_addr",
            &"ibv_wr_set_sge",
            &"ibv_wr_complete",
        ]
    );
    let to: Vec<_> = fake.sends().iter().map(|sent| sent.datagram).collect();
    assert_eq!(to, [Some((number, QKEY)); 2]);
    assert_eq!(outcomes(&cq), [(2, 0), (3, 0)]);
    let received: Vec<_> = drain(&peer.cq)
        .iter()
        .map(|wc| {
            let success = wc.result().expect("a success");
            (
                wc.wr_id(),
                success.byte_len(),
                success.imm(),
                success.src_qp(),
            )
        })
        .collect();
    let sender = qp.queue_pair().number();
    assert_eq!(
        received,
        [(10, 45, None, sender), (11, 40, Some(9), sender)]
    );

    drop((address, foreign, other, peer, cq, qp));
    let (mut connected, cq, peer) = ends(QpType::RC, SendOps::SEND);
    let address = handle(connected.queue_pair().pd()).expect("a handle");
    connected
        .post_batch(|batch| -> Result<(), PostError> {
            let refused = batch.send(1).to(&address, number, QKEY).empty();
            let error = refused.expect_err("no datagrams here");
            assert_eq!(error.kind, PostErrorKind::UnexpectedAddress);
            Ok(())
        })
        .expect("nothing posted");
    drop((address, connected, cq, peer));
    fake.finish();
}

#[test]
fn a_window_is_bound_and_invalidated_in_batches() {
    let fake = control::session();
    let (mut qp, cq, peer) = ends(QpType::RC, SendOps::BIND_MW | SendOps::LOCAL_INV);
    let pd = qp.queue_pair().pd().clone();
    let memory = Memory::new(256);
    let windowed = AccessFlags::LOCAL_WRITE | AccessFlags::MW_BIND;
    let region = memory.register(&pd, windowed).expect("a region");
    let window = MemoryWindow::new(&pd, WindowType::TYPE_2).expect("a window");
    let bind = WindowBind {
        wr_id: 50,
        region: &region,
        offset: 128,
        len: 64,
        access: AccessFlags::REMOTE_WRITE,
        flags: SIGNALED,
    };
    let key = qp
        .post_batch(|batch| batch.bind(&window, &bind))
        .expect("a bind");
    assert_eq!((key, outcomes(&cq)), (window.rkey(), vec![(50, 0)]));
    let expected = PostedBind {
        rkey: key.0,
        addr: region.iova() + 128,
        len: 64,
        access: AccessFlags::REMOTE_WRITE.bits(),
    };
    assert_eq!(fake.sends()[0].bind, Some(expected));
    let reach = || {
        let remote = RemoteAddr {
            addr: region.iova() + 128,
            rkey: key,
        };
        let sges = [peer.sge(8)];
        peer.post(SendRequest::write(60, &sges, remote))
            .expect("posted");
        drain(&peer.cq)[0].status()
    };
    assert_eq!(reach(), WcStatus::SUCCESS);
    qp.post_batch(|batch| batch.local_invalidate(51, key).flags(SIGNALED).add())
        .expect("an invalidation");
    assert_eq!(outcomes(&cq), [(51, 0)]);
    assert_eq!(reach(), WcStatus::REM_ACCESS_ERR);

    let first = MemoryWindow::new(&pd, WindowType::TYPE_1).expect("a window");
    let second = MemoryWindow::new(&pd, WindowType::TYPE_2).expect("a window");
    let posted = fake.sends().len();
    let error = qp.post_batch(|batch| {
        let error = batch.bind(&first, &bind).expect_err("not of this type");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        let outside = WindowBind { len: 129, ..bind };
        let error = batch.bind(&second, &outside).expect_err("outside");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        batch.bind(&second, &bind)?;
        Err::<(), _>(Error::refused("test", ErrorKind::Limit, "dropped"))
    });
    assert_eq!(error.expect_err("dropped").verb(), "test");
    assert_eq!(fake.sends().len(), posted, "nothing of it was posted");
    // Freed with the queue pair that it was promised to, and the other type is not.
    qp.close().expect("closed");
    assert!(second.is_freed() && window.is_freed() && !first.is_freed());
    drop((first, second, window, region, pd, cq, peer));
    fake.finish();
}
