//! Queue pairs that are changed while they run, and send queues that are stopped.

use harness::{Failed, Need, Outcome, Test, WAIT, ensure, ensure_eq, phase, test};
use rpma::cm::verbs::{
    AccessFlags, AsyncEventKind, AsyncEventSource, AsyncEvents, Deadline, ErrorKind, QpState,
    QpType, RemoteAddr, RtsChange, SendRequest, SqdChange,
};

use super::by_hand::{End, QKEY, handle, pair};
use crate::raw::{Buffer, poll, try_poll};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test(
            "a_send_queue_that_is_stopped_says_when_it_has_drained_and_goes_on_later",
            &[Need::Device],
            stopped,
        ),
        test(
            "a_right_is_taken_away_and_given_while_the_queue_pair_runs",
            &[Need::Device],
            rights,
        ),
        test(
            "each_type_is_stopped_changed_and_resumed_with_what_the_kernel_takes",
            &[Need::Device],
            each_type,
        ),
        test(
            "a_way_that_a_state_does_not_have_is_refused_and_changes_nothing",
            &[Need::Device],
            refused,
        ),
    ]
}

/// Waits for the queue pair's event; others, such as those of the port, are passed over.
fn drained(events: &AsyncEvents, end: &End) -> Outcome {
    let deadline = Deadline::after(WAIT);
    loop {
        let event = events.next(deadline)?;
        if event.kind() == AsyncEventKind::SQ_DRAINED {
            let source = AsyncEventSource::QueuePair(end.qp.number());
            ensure_eq!(event.source(), source, "source");
            return Ok(());
        }
    }
}

/// Memory of an end that its peer may write.
fn open_to_writes(end: &End) -> Result<(Buffer, RemoteAddr), Failed> {
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
    let buffer = Buffer::with_access(&end.pd, 4096, access)?;
    let target = RemoteAddr {
        addr: buffer.region().iova(),
        rkey: buffer.region().rkey(),
    };
    Ok((buffer, target))
}

fn stopped() -> Outcome {
    let (one, two) = pair(QpType::RC)?;
    let events = one.pd.context().async_events()?;
    let (memory, target) = open_to_writes(&two)?;
    one.buffer.store(0, b"before");
    one.post(SendRequest::write(1, &[one.buffer.sge(0, 6)], target))?;
    // A request that has not begun in SQD waits in it, too.
    one.sent(1)?;
    one.qp.to_sqd(true)?;
    ensure_eq!(one.qp.state(), QpState::SQD, "state");
    phase("waiting for the event");
    drained(&events, &one)?;
    ensure!(
        !one.qp.query()?.0.is_draining(),
        "it said that it has drained"
    );

    phase("a request that waits");
    one.buffer.store(0, b"behind");
    one.post(SendRequest::write(2, &[one.buffer.sge(0, 6)], target))?;
    ensure!(try_poll(&one.send_cq)?.is_none(), "carried out in SQD");
    ensure_eq!(memory.load(0, 6), b"before", "data");
    let change = SqdChange {
        retry_count: Some(3),
        timeout: Some(15),
        ..Default::default()
    };
    one.qp.change_sqd(&change)?;
    let raw = *one.qp.query()?.0.as_raw().0;
    ensure_eq!((raw.retry_cnt, raw.timeout), (3, 15), "what was set");
    phase("going on");
    one.qp.resume(&RtsChange::default())?;
    ensure_eq!(one.qp.state(), QpState::RTS, "state");
    // The device may need another request to look at its queue again.
    one.post(SendRequest::write(3, &[], target))?;
    one.sent(2)?;
    one.sent(3)?;
    ensure_eq!(memory.load(0, 6), b"behind", "data");
    Ok(())
}

fn rights() -> Outcome {
    let (one, two) = pair(QpType::RC)?;
    let (_memory, target) = open_to_writes(&two)?;
    let write = |wr_id| one.post(SendRequest::write(wr_id, &[one.buffer.sge(0, 4)], target));
    write(1)?;
    one.sent(1)?;
    let rights = |access| {
        two.qp.change_rts(&RtsChange {
            access: Some(access),
            min_rnr_timer: Some(14),
            ..Default::default()
        })
    };
    rights(AccessFlags::REMOTE_READ)?;
    rights(AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE)?;
    write(2)?;
    one.sent(2)?;
    rights(AccessFlags::REMOTE_READ)?;
    write(3)?;
    ensure!(
        poll(&one.send_cq)?.result().is_err(),
        "written without the right"
    );
    Ok(())
}

fn each_type() -> Outcome {
    for qp_type in [QpType::RC, QpType::UC, QpType::UD] {
        phase(qp_type.to_string());
        let (one, two) = pair(qp_type)?;
        let datagrams = qp_type == QpType::UD;
        let rts = RtsChange {
            access: (!datagrams).then_some(AccessFlags::REMOTE_WRITE),
            qkey: datagrams.then_some(QKEY),
            ..Default::default()
        };
        one.qp.change_rts(&rts)?;
        one.qp.to_sqd(false)?;
        let change = SqdChange {
            pkey_index: Some(0),
            rts,
            ..Default::default()
        };
        wait_until_drained(&one)?;
        one.qp.change_sqd(&change)?;
        one.qp.resume(&rts)?;
        two.recv(1)?;
        one.buffer.store(0, b"again");
        let sges = [one.buffer.sge(0, 5)];
        if datagrams {
            let address = handle(&one.pd)?;
            let number = two.qp.number();
            one.post(SendRequest::datagram(2, &sges, &address, number, QKEY))?;
            one.sent(2)?;
        } else {
            one.post(SendRequest::send(2, &sges))?;
            one.sent(2)?;
        }
        two.received(1)?;
    }
    Ok(())
}

/// A device may refuse changes, and the way back, before that.
fn wait_until_drained(end: &End) -> Result<(), Failed> {
    let deadline = Deadline::after(WAIT);
    while end.qp.query()?.0.is_draining() {
        ensure!(!deadline.has_passed(), "it does not drain");
    }
    Ok(())
}

fn refused() -> Outcome {
    let (one, _two) = pair(QpType::RC)?;
    let nothing = RtsChange::default();
    // Not in SQD yet.
    let change = SqdChange {
        timeout: Some(15),
        ..Default::default()
    };
    let error = one.qp.change_sqd(&change).err();
    let error = error.ok_or("changed as in SQD")?;
    ensure_eq!(error.errno(), Some(libc::EINVAL), "{error}");
    ensure_eq!(one.qp.state(), QpState::RTS, "state");
    one.qp.set_error()?;
    for error in [
        one.qp.to_sqd(true).err(),
        one.qp.resume(&nothing).err(),
        one.qp.recover(&nothing).err(),
    ] {
        let error = error.ok_or("from ERR")?;
        ensure_eq!(error.errno(), Some(libc::EINVAL), "{error}");
        ensure_eq!(one.qp.state(), QpState::ERR, "state");
    }
    let keyed = RtsChange {
        qkey: Some(1),
        ..nothing
    };
    let error = one.qp.change_rts(&keyed).err().ok_or("a Q_Key for RC")?;
    ensure_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    ensure!(error.to_string().contains("qkey"), "{error}");
    Ok(())
}
