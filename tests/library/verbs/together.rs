//! Many threads at once.

use std::sync::{Barrier, Mutex};
use std::thread;

use harness::{Failed, Need, Outcome, Test, WAIT, ensure_eq, rounds, test};
use rpma::cm::verbs::{
    AccessFlags, CompletionChannel, CompletionQueue, Context, ProtectionDomain, QpType, QueuePair,
    RemoteAddr, SendRequest, SharedReceiveQueue,
};
use rpma::cm::{ConnectOptions, Deadline, Resolving};

use super::by_hand::{End, pair};
use super::objects::open;
use crate::raw::{Buffer, listener};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test(
            "threads_may_make_and_destroy_objects_of_one_device_at_once",
            &[Need::Device],
            made_and_destroyed,
        )
        .limit(120),
        test(
            "atomics_of_several_threads_lose_no_update",
            &[Need::Device],
            atomics,
        )
        .limit(120),
    ]
}

/// Runs `body` in `count` threads that begin together.
fn at_once(count: usize, body: impl Fn(usize) -> Outcome + Sync) -> Outcome {
    let barrier = Barrier::new(count);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..count)
            .map(|n| {
                let (barrier, body) = (&barrier, &body);
                scope.spawn(move || {
                    barrier.wait();
                    body(n).map_err(|failed| failed.message().unwrap_or_default().to_owned())
                })
            })
            .collect();
        for thread in threads {
            thread.join().map_err(|_| "a thread panicked")??;
        }
        Ok(())
    })
}

/// One of each kind, made and dropped.
fn everything(context: &Context, to: std::net::SocketAddr) -> Outcome {
    let pd = ProtectionDomain::new(context)?;
    let channel = CompletionChannel::new(context)?;
    let cq = CompletionQueue::builder(context, 16)
        .own_channel(&channel)
        .build()?;
    let srq = SharedReceiveQueue::new(&pd, 4, 1)?;
    let buffer = Buffer::new(&pd, 4096)?;
    let qp = QueuePair::builder(&pd, QpType::RC, &cq, &cq)
        .max_send_wr(4)
        .max_recv_wr(4)
        .build()?;
    let shared = QueuePair::builder(&pd, QpType::RC, &cq, &cq)
        .max_send_wr(1)
        .srq(&srq)
        .build()?;
    let deadline = Deadline::after(WAIT);
    let id = Resolving::start(to, &ConnectOptions::default(), deadline)?.wait()?;
    drop((cq, pd, qp, channel, buffer, id));
    shared.close()?;
    srq.close()?;
    Ok(())
}

fn made_and_destroyed() -> Outcome {
    let context = open()?;
    let listener = listener()?;
    let to = listener.local_addr();
    at_once(16, |_| {
        (0..rounds(2, 1000)).try_for_each(|_| everything(&context, to))
    })
}

fn atomics() -> Outcome {
    let all = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_ATOMIC;
    let (first, target) = pair(QpType::RC)?;
    let word = Buffer::with_access(&target.pd, 4096, all)?;
    let remote = RemoteAddr {
        addr: word.region().iova() + 16,
        rkey: word.region().rkey(),
    };
    let mut ends = vec![(first, target)];
    while ends.len() < 4 {
        let (pd_one, pd_two) = (ends[0].0.pd.clone(), ends[0].1.pd.clone());
        let one = End::new(&pd_one, QpType::RC, |qp| qp)?;
        let two = End::new(&pd_two, QpType::RC, |qp| qp)?;
        one.connect(&two)?;
        two.connect(&one)?;
        ends.push((one, two));
    }
    let ends: Vec<_> = ends.into_iter().map(Mutex::new).collect();
    let each = rounds(100, 10_000) as u64;
    at_once(4, |n| {
        let ends = ends[n].lock().map_err(|_| "a thread panicked")?;
        let end = &ends.0;
        let mut last = None;
        for wr_id in 0..each {
            let result = [end.buffer.sge(0, 8)];
            end.post(SendRequest::fetch_and_add(wr_id, &result, remote, 1))?;
            end.sent(wr_id)?;
            let bytes = end.buffer.load(0, 8).try_into().map_err(|_| "length")?;
            let before = Some(u64::from_ne_bytes(bytes));
            if last >= before {
                return Err(Failed::from(format!("{before:?} after {last:?}")));
            }
            last = before;
        }
        Ok(())
    })?;
    let bytes = word.load(16, 8).try_into().map_err(|_| "length")?;
    ensure_eq!(u64::from_ne_bytes(bytes), 4 * each, "the sum");
    Ok(())
}
