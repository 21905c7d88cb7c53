//! Asynchronous events and shared receive queues.

use std::time::Instant;

use harness::{Need, Outcome, SECOND, Test, WAIT, device, ensure, ensure_eq, phase, test};
use rpma::cm::verbs::{
    AsyncEventKind, AsyncEventSource, AsyncEvents, CompletionQueue, Deadline, ErrorKind,
    InitAttributes, PostErrorKind, ProtectionDomain, QpType, QueuePair, RecvRequest, SendRequest,
    SharedReceiveQueue,
};

use super::by_hand::End;
use super::objects::open;
use crate::raw::{Buffer, poll, try_poll};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test(
            "a_wait_for_an_asynchronous_event_ends_at_its_deadline",
            &[Need::Device],
            a_wait_ends,
        ),
        test(
            "an_overrun_names_its_completion_queue_and_does_not_hang_the_drop",
            &[Need::Device],
            overrun,
        ),
        test(
            "receives_in_a_shared_queue_serve_every_queue_pair_and_outlive_each",
            &[Need::Device],
            shared_receives,
        ),
        test(
            "the_limit_of_a_shared_receive_queue_gives_one_event_for_each_arming",
            &[Need::Device],
            limit,
        ),
        test(
            "a_shared_receive_queue_grows_and_refuses_what_it_cannot_be",
            &[Need::Device],
            sizes,
        ),
        test(
            "a_completion_queue_has_room_for_a_shared_receive_queue_once",
            &[Need::Device],
            room,
        ),
    ]
}

/// The next event of `kind`: others, such as those of the port's addresses, are passed over.
fn event(events: &AsyncEvents, kind: AsyncEventKind) -> Result<AsyncEventSource, harness::Failed> {
    let deadline = Deadline::after(WAIT);
    loop {
        let event = events.next(deadline)?;
        if event.kind() == kind {
            return Ok(event.source());
        }
    }
}

fn a_wait_ends() -> Outcome {
    let events = open()?.async_events()?;
    ensure!(
        events.try_next()?.is_none(),
        "an event of a new device handle"
    );
    let start = Instant::now();
    let error = events.next(Deadline::after(SECOND / 5)).err();
    let error = error.ok_or("an event of a new device handle")?;
    ensure_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    ensure!(
        (SECOND / 5..2 * SECOND).contains(&start.elapsed()),
        "{:?}",
        start.elapsed()
    );
    Ok(())
}

fn overrun() -> Outcome {
    let context = open()?;
    let events = context.async_events()?;
    let pd = ProtectionDomain::new(&context)?;
    let other = CompletionQueue::builder(&context, 4).build()?;
    let cq = CompletionQueue::builder(&context, 2)
        .allow_overrun(true)
        .build()?;
    ensure!(cq.id() != other.id(), "identities");
    let qp = QueuePair::builder(&pd, QpType::RC, &cq, &cq)
        .max_send_wr(64)
        .max_recv_wr(1)
        .build()?;
    qp.to_init(&InitAttributes::new(device().port))?;
    qp.set_error()?;
    // Each is flushed at once, and there is no room for so many.
    for wr_id in 0..u64::from(cq.entries()) + 8 {
        // SAFETY: the request has no memory.
        unsafe { qp.post_send(&mut SendRequest::send(wr_id, &[])) }?;
    }
    let source = event(&events, AsyncEventKind::CQ_ERR)?;
    ensure_eq!(
        source,
        AsyncEventSource::CompletionQueue(Some(cq.id())),
        "source"
    );
    // The events that nobody has got do not hold anything up, and neither does the one got.
    phase("dropping the queues");
    let start = Instant::now();
    drop((qp, cq, other));
    ensure!(start.elapsed() < 2 * SECOND, "took {:?}", start.elapsed());
    Ok(())
}

/// A queue of `count` receives shared by two queue pairs, each connected to a client.
struct Shared {
    srq: SharedReceiveQueue,
    buffer: Buffer,
    servers: [End; 2],
    clients: [End; 2],
}

impl Shared {
    fn new(count: u32) -> Result<Self, harness::Failed> {
        let context = open()?;
        let pd = ProtectionDomain::new(&context)?;
        let srq = SharedReceiveQueue::new(&pd, count, 1)?;
        let server = || End::new(&pd, QpType::RC, |qp| qp.srq(&srq));
        let client = || End::new(&ProtectionDomain::new(&context)?, QpType::RC, |qp| qp);
        let shared = Self {
            buffer: Buffer::new(&pd, 4096)?,
            servers: [server()?, server()?],
            clients: [client()?, client()?],
            srq,
        };
        for (server, client) in shared.servers.iter().zip(&shared.clients) {
            server.connect(client)?;
            client.connect(server)?;
        }
        Ok(shared)
    }

    fn recv(&self, wr_ids: std::ops::Range<u64>) -> Outcome {
        for wr_id in wr_ids {
            let sges = [self.buffer.sge(0, 64)];
            // SAFETY: the buffer is registered memory to which no reference is formed.
            unsafe { self.srq.post_recv(&mut RecvRequest::new(wr_id, &sges)) }?;
        }
        Ok(())
    }

    /// A message from client `n`, and the number of the receive that took it.
    fn message(&self, n: usize) -> Result<u64, harness::Failed> {
        self.clients[n].post(SendRequest::send(1, &[]))?;
        self.clients[n].sent(1)?;
        let completion = poll(&self.servers[n].recv_cq)?;
        completion.result()?;
        ensure_eq!(
            completion.qp_num(),
            self.servers[n].qp.number(),
            "queue pair"
        );
        Ok(completion.wr_id())
    }
}

fn shared_receives() -> Outcome {
    let shared = Shared::new(8)?;
    shared.recv(0..8)?;
    for n in 0..4 {
        ensure_eq!(
            shared.message(usize::from(n % 2 == 1))?,
            n,
            "receives in their order"
        );
    }
    // A receive for the queue pair itself would never be taken.
    let sges = [shared.buffer.sge(0, 64)];
    // SAFETY: the buffer is registered memory to which no reference is formed.
    let refused = unsafe {
        shared.servers[0]
            .qp
            .post_recv(&mut RecvRequest::new(9, &sges))
    };
    let error = refused.err().ok_or("a receive for the queue pair itself")?;
    ensure_eq!(error.kind, PostErrorKind::SharedReceives, "{error}");
    // The failure of one queue pair flushes nothing of what is shared.
    shared.servers[0].qp.set_error()?;
    for n in 4..8 {
        ensure_eq!(shared.message(1)?, n, "receives in their order");
    }
    ensure!(try_poll(&shared.servers[0].recv_cq)?.is_none(), "flushed");
    let Shared {
        srq,
        servers,
        clients,
        buffer,
    } = shared;
    let failed = srq.close().err().ok_or("a queue in use was destroyed")?;
    ensure_eq!(failed.error.kind(), ErrorKind::Busy, "{}", failed.error);
    let srq = failed.handle;
    drop((servers, clients));
    srq.close()?;
    drop(buffer);
    Ok(())
}

fn limit() -> Outcome {
    let shared = Shared::new(8)?;
    let events = shared.srq.pd().context().async_events()?;
    shared.recv(0..8)?;
    for round in 0..2 {
        phase(format!("round {round}"));
        shared.srq.arm_limit(5)?;
        ensure_eq!(shared.srq.query()?.limit, 5, "armed");
        ensure!(events.try_next()?.is_none(), "an event before the limit");
        for _ in 0..4 {
            shared.message(0)?;
        }
        let source = event(&events, AsyncEventKind::SRQ_LIMIT_REACHED)?;
        let expected = AsyncEventSource::SharedReceiveQueue(Some(shared.srq.id()));
        ensure_eq!(source, expected, "source");
        ensure_eq!(shared.srq.query()?.limit, 0, "disarmed by the event");
        ensure!(events.try_next()?.is_none(), "a second event");
        shared.recv(0..4)?;
    }
    let above = shared.srq.max_wr() + 1;
    let error = shared
        .srq
        .arm_limit(above)
        .err()
        .ok_or("limit above the size")?;
    ensure_eq!(error.kind(), ErrorKind::Limit, "{error}");
    ensure!(error.to_string().contains(&above.to_string()), "{error}");
    Ok(())
}

fn sizes() -> Outcome {
    let context = open()?;
    let pd = ProtectionDomain::new(&context)?;
    let limits = context.attributes();
    for (name, wr, sge) in [
        ("max_wr", limits.max_srq_wr() + 1, 1),
        ("max_sge", 1, limits.max_srq_sge() + 1),
    ] {
        let error = SharedReceiveQueue::new(&pd, wr, sge).err().ok_or(name)?;
        ensure_eq!(error.kind(), ErrorKind::Limit, "{error}");
        ensure!(error.to_string().contains(name), "{error}");
    }
    let srq = SharedReceiveQueue::new(&pd, 8, 1)?;
    srq.resize(100)?;
    ensure!(srq.max_wr() >= 100, "{srq:?}");
    ensure_eq!(srq.query()?.max_wr, srq.max_wr(), "size");
    let buffer = Buffer::new(&pd, 4096)?;
    let sges = [buffer.sge(0, 64)];
    for wr_id in 0..100 {
        // SAFETY: the buffer is registered memory to which no reference is formed.
        unsafe { srq.post_recv(&mut RecvRequest::new(wr_id, &sges)) }?;
    }
    // Smaller than what is in it cannot be.
    let error = srq.resize(8).err().ok_or("smaller than its content")?;
    ensure_eq!(error.errno(), Some(libc::EINVAL), "{error}");
    let two = [buffer.sge(0, 1), buffer.sge(1, 1), buffer.sge(2, 1)];
    // SAFETY: the buffer is registered memory to which no reference is formed.
    let refused = unsafe { srq.post_recv(&mut RecvRequest::new(0, &two)) };
    let (given, max) = (3, srq.max_sge());
    if max < 3 {
        let error = refused.err().ok_or("too many SGEs")?;
        ensure_eq!(
            error.kind,
            PostErrorKind::TooManySges { given, max },
            "{error}"
        );
    }
    Ok(())
}

fn room() -> Outcome {
    let context = open()?;
    let pd = ProtectionDomain::new(&context)?;
    let srq = SharedReceiveQueue::new(&pd, 31, 1)?;
    let send_cq = CompletionQueue::builder(&context, 255).build()?;
    let recv_cq = CompletionQueue::builder(&context, srq.max_wr()).build()?;
    let build = || {
        QueuePair::builder(&pd, QpType::RC, &send_cq, &recv_cq)
            .max_send_wr(1)
            .srq(&srq)
            .build()
    };
    let (one, two) = (build()?, build()?);
    let spare = recv_cq.entries() - srq.max_wr();
    let own = |count| {
        QueuePair::builder(&pd, QpType::RC, &send_cq, &recv_cq)
            .max_send_wr(1)
            .max_recv_wr(count)
            .build()
    };
    let error = own(spare + 1).err().ok_or("no room for that")?;
    ensure_eq!(error.kind(), ErrorKind::Limit, "{error}");
    drop(one);
    ensure!(own(spare + 1).is_err(), "the room is still needed");
    drop(two);
    own(spare + 1)?;
    Ok(())
}
