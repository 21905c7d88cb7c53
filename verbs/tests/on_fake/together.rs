//! Many threads that use one device, and objects of each other, at the same time.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Barrier, mpsc};
use std::thread;
use std::time::Duration;

use verbs::sys::fake::control;
use verbs::{
    CompletionChannel, CompletionQueue, Context, Deadline, DeviceList, ErrorKind, MemoryRegion,
    ProtectionDomain, QpType, QueuePair, RecvRequest, SendFlags, SendRequest, SharedReceiveQueue,
};

use super::common::{Memory, connect, everything, outcomes, sge, soon};

/// How many threads and rounds: under Miri each step takes a thousand times as long.
const THREADS: usize = if cfg!(miri) { 3 } else { 16 };
const ROUNDS: usize = if cfg!(miri) { 2 } else { 200 };

fn open() -> Context {
    let list = DeviceList::new().expect("the devices");
    list.by_name("fake0").expect("fake0").open().expect("open")
}

/// Runs `body` in all threads, which begin together.
fn at_once(body: impl Fn(usize) + Sync) {
    let barrier = Barrier::new(THREADS);
    thread::scope(|scope| {
        for n in 0..THREADS {
            let (barrier, body) = (&barrier, &body);
            scope.spawn(move || {
                barrier.wait();
                body(n);
            });
        }
    });
}

#[test]
fn objects_of_one_device_are_made_and_destroyed_by_many_threads() {
    let fake = control::session();
    let context = open();
    let shared = ProtectionDomain::new(&context).expect("a domain");
    at_once(|n| {
        for _ in 0..ROUNDS {
            // Every second thread has a domain of its own, the others share one.
            let pd = match n % 2 {
                0 => shared.clone(),
                _ => ProtectionDomain::new(&context).expect("a domain"),
            };
            let channel = CompletionChannel::new(&context).expect("a channel");
            let cq = CompletionQueue::builder(&context, 64)
                .own_channel(&channel)
                .build()
                .expect("a completion queue");
            let memory = Memory::new(64);
            let region = memory.register(&pd, everything()).expect("a region");
            let qp = QueuePair::builder(&pd, QpType::RC, &cq, &cq)
                .build()
                .expect("a queue pair");
            // In an order that the handles have to put right.
            drop((channel, cq, pd));
            drop((region, qp));
        }
    });
    drop((shared, context));
    fake.finish();
}

#[test]
fn handles_are_dropped_by_other_threads_than_made_them() {
    let fake = control::session();
    let context = open();
    let pd = ProtectionDomain::new(&context).expect("a domain");
    let (give, take) = mpsc::channel::<(Memory, MemoryRegion, QueuePair, CompletionQueue)>();
    let take = std::sync::Mutex::new(take);
    let made = AtomicUsize::new(0);
    // The last sender goes with the last thread that makes something.
    let give = std::sync::Mutex::new(Some(give));
    at_once(|n| {
        if n % 2 == 0 {
            let sender = give
                .lock()
                .expect("no panic")
                .clone()
                .expect("not dropped yet");
            for _ in 0..ROUNDS / 2 {
                let memory = Memory::new(64);
                let region = memory.register(&pd, everything()).expect("a region");
                let cq = CompletionQueue::builder(&context, 64)
                    .build()
                    .expect("a queue");
                let qp = QueuePair::builder(&pd, QpType::RC, &cq, &cq)
                    .build()
                    .expect("a queue pair");
                made.fetch_add(1, Ordering::Relaxed);
                sender
                    .send((memory, region, qp, cq))
                    .expect("somebody takes it");
            }
            if made.load(Ordering::Relaxed) == THREADS.div_ceil(2) * (ROUNDS / 2) {
                give.lock().expect("no panic").take();
            }
        } else {
            loop {
                let got = take
                    .lock()
                    .expect("no panic")
                    .recv_timeout(soon().remaining());
                let Ok((memory, region, qp, cq)) = got else {
                    break;
                };
                drop((cq, region, qp));
                drop(memory);
            }
        }
    });
    assert_eq!(made.into_inner(), THREADS.div_ceil(2) * (ROUNDS / 2));
    drop((take, pd, context));
    fake.finish();
}

#[test]
fn threads_post_to_queue_pairs_of_one_shared_receive_queue_and_wait_for_it() {
    let fake = control::session();
    let context = open();
    let pd = ProtectionDomain::new(&context).expect("a domain");
    let channel = CompletionChannel::new(&context).expect("a channel");
    let cq = CompletionQueue::builder(&context, 1024)
        .own_channel(&channel)
        .build()
        .expect("a completion queue");
    let srq = SharedReceiveQueue::new(&pd, 128, 1).expect("a shared receive queue");
    let memory = Memory::new(64);
    let region = memory.register(&pd, everything()).expect("a region");
    let rounds = ROUNDS / 10 + 1;
    let (total, received) = (THREADS * rounds, AtomicUsize::new(0));
    at_once(|n| {
        let own = CompletionQueue::builder(&context, 64)
            .build()
            .expect("a queue");
        let sender = QueuePair::builder(&pd, QpType::RC, &own, &own)
            .build()
            .expect("a queue pair");
        let receiver = QueuePair::builder(&pd, QpType::RC, &cq, &cq)
            .srq(&srq)
            .build()
            .expect("a queue pair");
        connect(&sender, &receiver, 7).expect("connected");
        let list = [sge(&region, 0)];
        for round in 0..rounds as u64 {
            let mut receive = RecvRequest::new(round, &list);
            // SAFETY: the request names no byte.
            unsafe { srq.post_recv(&mut receive) }.expect("room for a receive of each thread");
            let mut request = SendRequest::send(n as u64, &list).with_flags(SendFlags::SIGNALED);
            // SAFETY: as above.
            unsafe { sender.post_send(&mut request) }.expect("sent");
            assert_eq!(outcomes(&own), [(n as u64, 0)]);
        }
        // Whoever gets a message here, none is lost and none comes twice.
        let deadline = soon();
        while received.load(Ordering::SeqCst) < total {
            assert!(!deadline.has_passed(), "{received:?} of {total}");
            let mut out = [const { MaybeUninit::uninit() }; 4];
            match cq.wait(&mut out, Deadline::after(Duration::from_millis(20))) {
                Ok(found) => {
                    assert!(found.iter().all(|completion| completion.result().is_ok()));
                    received.fetch_add(found.len(), Ordering::SeqCst);
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}"),
            }
        }
    });
    assert_eq!(received.into_inner(), total);
    drop((srq, cq, channel, region, pd, context));
    drop(memory);
    fake.finish();
}
