//! Queue pairs that are changed while they run, and send queues that are stopped.

use verbs::sys::fake::control;
use verbs::{
    AccessFlags, Address, AsyncEventKind, AsyncEventSource, CompletionQueue, Error, Gid,
    InitAttributes, PathMtu, ProtectionDomain, QpState, QpType, QueuePair, RtrAttributes,
    RtsAttributes, RtsChange, SendFlags, SendRequest, SqdChange,
};

use super::common::{Pair, outcomes};

fn address() -> Address {
    Address::roce(1, 0, Gid([1; 16]))
}

/// A queue pair of a type in RTS, connected with itself.
fn in_rts(pd: &ProtectionDomain, qp_type: QpType) -> Result<QueuePair, Error> {
    let cq = CompletionQueue::builder(pd.context(), 16).build()?;
    let qp = QueuePair::builder(pd, qp_type, &cq, &cq)
        .max_send_wr(4)
        .max_recv_wr(4)
        .build()?;
    qp.to_init(&InitAttributes::new(1))?;
    if qp_type == QpType::UD {
        qp.to_rtr_datagram()?;
    } else {
        let number = qp.number();
        qp.to_rtr(&RtrAttributes::new(address(), PathMtu::MTU_1024, number, 0))?;
    }
    qp.to_rts(&RtsAttributes::new(0))?;
    Ok(qp)
}

fn one_for_each_field() -> RtsChange {
    RtsChange {
        access: Some(AccessFlags::REMOTE_READ),
        min_rnr_timer: Some(1),
        ..Default::default()
    }
}

#[test]
fn the_send_queue_stops_is_changed_and_goes_on() {
    let fake = control::session();
    let pair = Pair::new().expect("connected");
    let events = pair.context.async_events().expect("there");
    let send = |wr_id| {
        let mut request = SendRequest::write(
            wr_id,
            &[],
            verbs::RemoteAddr {
                addr: 0,
                rkey: verbs::RemoteKey(0),
            },
        )
        .with_flags(SendFlags::SIGNALED);
        // SAFETY: the request has no memory.
        unsafe { pair.a.post_send(&mut request) }
    };
    pair.a.to_sqd(true).expect("from RTS");
    assert_eq!(pair.a.state(), QpState::SQD);
    let event = events.try_next().expect("readable").expect("drained");
    assert_eq!(event.kind(), AsyncEventKind::SQ_DRAINED);
    assert_eq!(event.source(), AsyncEventSource::QueuePair(pair.a.number()));
    // Posting goes on, and the request waits.
    send(1).expect("taken");
    assert_eq!(outcomes(&pair.a_cq), []);
    let change = SqdChange {
        address: Some(address()),
        timeout: Some(15),
        retry_count: Some(3),
        rnr_retry: Some(2),
        max_rd_atomic: Some(4),
        max_dest_rd_atomic: Some(5),
        rts: one_for_each_field(),
        ..Default::default()
    };
    pair.a.change_sqd(&change).expect("in SQD");
    let (now, _) = pair.a.query().expect("answered");
    let raw = now.as_raw().0;
    assert_eq!((raw.timeout, raw.retry_cnt, raw.rnr_retry), (15, 3, 2));
    assert_eq!((raw.max_rd_atomic, raw.max_dest_rd_atomic), (4, 5));
    assert_eq!(raw.min_rnr_timer, 1);
    assert_eq!(outcomes(&pair.a_cq), []);
    pair.a.resume(&RtsChange::default()).expect("from SQD");
    assert_eq!(pair.a.state(), QpState::RTS);
    assert_eq!(outcomes(&pair.a_cq).len(), 1);

    // Without being asked there is no event.
    pair.a.to_sqd(false).expect("from RTS");
    assert_eq!(events.try_next().expect("readable"), None);
    // From a state that has no such way the kernel refuses, and the record stays.
    let error = pair.a.to_sqd(true).expect_err("from SQD");
    assert_eq!(error.errno(), Some(libc::EINVAL), "{error}");
    assert_eq!(pair.a.state(), QpState::SQD);
    let masks = fake.arguments("ibv_modify_qp");
    let expected = [
        "mask=0x5",
        "mask=0x2ae88",
        "mask=0x1",
        "mask=0x1",
        "mask=0x5",
    ];
    assert_eq!(masks[masks.len() - 5..], expected);
    drop((pair, events));
    fake.finish();
}

#[test]
fn each_type_changes_what_its_table_has_in_rts_and_sqd() {
    let fake = control::session();
    let pair = Pair::in_reset().expect("made");
    for (qp_type, rts, in_rts_mask, in_sqd_mask) in [
        (QpType::RC, one_for_each_field(), 0x8009, 0x8098),
        (
            QpType::UC,
            RtsChange {
                min_rnr_timer: None,
                ..one_for_each_field()
            },
            0x9,
            0x98,
        ),
        (
            QpType::UD,
            RtsChange {
                qkey: Some(7),
                ..Default::default()
            },
            0x41,
            0x50,
        ),
    ] {
        let qp = in_rts(&pair.pd, qp_type).expect("in RTS");
        qp.change_rts(&rts).expect("in RTS");
        qp.to_sqd(false).expect("from RTS");
        let change = SqdChange {
            pkey_index: Some(0),
            address: (qp_type != QpType::UD).then(address),
            rts,
            ..Default::default()
        };
        qp.change_sqd(&change).expect("in SQD");
        qp.resume(&rts).expect("from SQD");
        let masks = fake.arguments("ibv_modify_qp");
        let expected = [in_rts_mask, 1, in_sqd_mask, in_rts_mask].map(|m| format!("mask={m:#x}"));
        assert_eq!(masks[masks.len() - 4..], expected, "{qp_type}");
        // What the type does not have is not tried.
        let wrong = RtsChange {
            qkey: (qp_type != QpType::UD).then_some(1),
            access: (qp_type == QpType::UD).then_some(AccessFlags::empty()),
            ..Default::default()
        };
        qp.change_rts(&wrong).expect_err("not for this type");
        assert_eq!(fake.count("ibv_modify_qp"), masks.len());
    }
    drop(pair);
    fake.finish();
}

#[test]
fn an_unreliable_queue_pair_recovers_from_sqe_and_a_reliable_one_does_not() {
    let fake = control::session();
    let pair = Pair::in_reset().expect("made");
    for (qp_type, change, mask) in [
        (
            QpType::UC,
            RtsChange {
                access: Some(AccessFlags::REMOTE_WRITE),
                ..Default::default()
            },
            "mask=0x9",
        ),
        (
            QpType::UD,
            RtsChange {
                qkey: Some(9),
                ..Default::default()
            },
            "mask=0x41",
        ),
    ] {
        let qp = in_rts(&pair.pd, qp_type).expect("in RTS");
        fake.break_sends(qp.number());
        qp.query().expect("answered");
        assert_eq!(qp.state(), QpState::SQE, "{qp_type}");
        qp.recover(&change).expect("from SQE");
        assert_eq!(qp.state(), QpState::RTS, "{qp_type}");
        let masks = fake.arguments("ibv_modify_qp");
        assert_eq!(masks.last().map(String::as_str), Some(mask));
    }
    let qp = in_rts(&pair.pd, QpType::RC).expect("in RTS");
    fake.break_sends(qp.number());
    let error = qp.recover(&RtsChange::default()).expect_err("no such way");
    assert_eq!(error.errno(), Some(libc::EINVAL), "{error}");
    drop((qp, pair));
    fake.finish();
}
