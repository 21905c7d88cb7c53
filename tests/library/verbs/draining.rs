//! Draining: every request is accounted for, within the deadline.

use std::time::Instant;

use harness::{Need, Outcome, SECOND, Test, WAIT, ensure, ensure_eq, test};
use rpma::cm::verbs::{
    Deadline, ErrorKind, ProtectionDomain, QpState, QpType, QueuePair, RemoteAddr, RemoteKey,
    SendFlags, SendRequest,
};

use super::by_hand::{End, QKEY, handle, pair};
use super::objects::open;
use crate::raw::RawPair;

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test(
            "a_drain_gives_every_request_back_once_and_a_second_ends_at_once",
            &[Need::Device],
            everything_comes_back,
        ),
        test(
            "full_queues_are_drained_to_the_last_request",
            &[Need::Device],
            full_queues,
        ),
        test(
            "a_drain_after_the_peer_has_gone_and_before_a_connection_ends_as_well",
            &[Need::Device],
            odd_states,
        ),
        test(
            "a_drain_that_somebody_else_polls_away_ends_at_its_deadline",
            &[Need::Device],
            deadline,
        ),
    ]
}

/// Drains, and gives the numbers of what came back.
fn drain(qp: &QueuePair) -> Result<Vec<u64>, harness::Failed> {
    let mut numbers = Vec::new();
    let start = Instant::now();
    qp.drain(Deadline::after(2 * SECOND), |completion| {
        numbers.push(completion.wr_id());
    })?;
    ensure!(start.elapsed() < SECOND, "took {:?}", start.elapsed());
    ensure_eq!(qp.state(), QpState::ERR, "state");
    numbers.sort_unstable();
    Ok(numbers)
}

fn everything_comes_back() -> Outcome {
    for qp_type in [QpType::RC, QpType::UC, QpType::UD] {
        let (one, _two) = pair(qp_type)?;
        for wr_id in 0..8 {
            one.recv(wr_id)?;
        }
        let address = handle(&one.pd)?;
        for wr_id in 100..104 {
            // To nobody: the peer has no receive posted, or does not exist.
            let mut request = if qp_type == QpType::UD {
                SendRequest::datagram(wr_id, &[], &address, 0xff_fffe, QKEY)
            } else {
                SendRequest::send(wr_id, &[])
            }
            .with_flags(SendFlags::SIGNALED);
            // SAFETY: the request has no memory.
            unsafe { one.qp.post_send(&mut request) }?;
        }
        let expected: Vec<u64> = (0..8).chain(100..104).collect();
        ensure_eq!(drain(&one.qp)?, expected, "{qp_type}");
        ensure_eq!(
            drain(&one.qp)?,
            Vec::<u64>::new(),
            "{qp_type}, drained already"
        );
    }
    Ok(())
}

fn full_queues() -> Outcome {
    let (one, _two) = pair(QpType::RC)?;
    let mut posted = Vec::new();
    // The device takes more than it was asked for, until it says that it is full.
    for wr_id in 0.. {
        if one.recv(wr_id).is_err() {
            break;
        }
        posted.push(wr_id);
    }
    for wr_id in 1000.. {
        // SAFETY: the request has no memory.
        if unsafe { one.qp.post_send(&mut SendRequest::send(wr_id, &[])) }.is_err() {
            break;
        }
        posted.push(wr_id);
    }
    ensure!(posted.len() >= 32, "{} requests", posted.len());
    ensure_eq!(drain(&one.qp)?, posted, "requests");
    Ok(())
}

fn odd_states() -> Outcome {
    let context = open()?;
    let pd = ProtectionDomain::new(&context)?;
    // Receives only, as before a connection.
    let early = End::new(&pd, QpType::RC, |qp| qp)?;
    early.recv(5)?;
    ensure_eq!(drain(&early.qp)?, vec![5], "before a connection");
    early.qp.reset()?;
    let start = Instant::now();
    early.qp.drain(Deadline::after(WAIT), |_| {})?;
    ensure!(start.elapsed() < SECOND, "nothing to wait for");

    // Failed by itself, with receives posted before and after.
    let (one, two) = pair(QpType::RC)?;
    one.recv(1)?;
    let remote = RemoteAddr {
        addr: 64,
        rkey: RemoteKey(0),
    };
    one.post(SendRequest::write(2, &[one.buffer.sge(0, 8)], remote))?;
    let failed = crate::raw::poll(&one.send_cq)?;
    ensure!(failed.result().is_err(), "{failed:?}");
    one.recv(3)?;
    ensure_eq!(drain(&one.qp)?, vec![1, 3], "failed by itself");
    drop(two);

    // Connected by rdma_cm, which does not flush such a queue pair.
    let RawPair {
        client,
        client_queues,
        server,
        server_queues,
    } = RawPair::new()?;
    for wr_id in 0..8 {
        client_queues.recv(client.qp(), wr_id)?;
    }
    drop((server, server_queues));
    ensure_eq!(
        drain(client.qp())?,
        (0..8).collect::<Vec<_>>(),
        "of rdma_cm"
    );
    Ok(())
}

fn deadline() -> Outcome {
    let (one, two) = pair(QpType::RC)?;
    drop(two);
    one.recv(1)?;
    let stolen = std::thread::scope(|scope| {
        let thief = scope.spawn(|| {
            let until = Deadline::after(SECOND);
            let mut stolen = 0;
            while !until.has_passed() {
                while let Ok(Some(_)) = crate::raw::try_poll(&one.recv_cq) {
                    stolen += 1;
                }
            }
            stolen
        });
        let start = Instant::now();
        let result = one.qp.drain(Deadline::after(SECOND / 2), |_| {});
        (result, start.elapsed(), thief.join().unwrap_or(0))
    });
    let (result, took, stolen) = stolen;
    ensure!(took < 2 * SECOND, "took {took:?}");
    // Whoever was faster: the marker came to us, or the wait has ended.
    match result {
        Ok(()) => {}
        Err(error) => {
            ensure_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
            ensure!(stolen > 0, "nothing was taken, and yet it did not end");
        }
    }
    Ok(())
}
