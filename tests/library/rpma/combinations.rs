//! Which queue takes what, and what connections may share.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use harness::{
    Need, Outcome, Pair, Targets, Test, WAIT, completed, device, ensure, ensure_eq, listen, phase,
    rounds, test,
};
use rpma::cm::verbs::{Deadline, wait_readable};
use rpma::cm::{Dispatcher, ListenOptions};
use rpma::{
    CompletionChannel, CompletionQueue, Connection, ConnectionConfig, ConnectionRequest, Device,
    Endpoint, Error, ErrorKind, LocalRegion, Peer, PrivateData, SharedReceiveQueue, Signal,
    SrqConfig, Usage,
};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test(
            "receives_complete_where_the_combination_of_queues_says_on_the_device",
            &[Need::Device],
            every_row,
        ),
        test(
            "a_shared_channel_and_a_shared_receive_queue_with_a_queue_of_its_own_are_refused",
            &[Need::Device],
            the_refused_row,
        ),
        test(
            "connections_share_a_receive_queue_a_completion_queue_and_a_channel",
            &[Need::Device],
            everything_shared,
        ),
        test(
            "one_completion_a_wait_leaves_none_behind",
            &[Need::Device],
            one_a_wait,
        ),
        test(
            "connections_of_a_dispatcher_have_no_descriptors_of_their_own",
            &[Need::Device],
            dispatched,
        ),
        test(
            "settings_of_a_connection_reach_the_device",
            &[Need::Device],
            settings,
        ),
    ]
}

/// A row of the table: size of the receive completion queue, of that of a shared receive queue if there
/// is one, whether the channel is shared; and where the receive is expected: with the shared receive queue, the
/// receive completion queue, or else the main one.
type Row = (u32, Option<u32>, bool, &'static str);

const ROWS: [Row; 10] = [
    (0, None, false, "main"),
    (0, None, true, "main"),
    (10, None, false, "rcq"),
    (10, None, true, "rcq"),
    (0, Some(20), false, "srq"),
    (10, Some(20), false, "srq"),
    (0, Some(0), false, "main"),
    (0, Some(0), true, "main"),
    (20, Some(0), false, "rcq"),
    (20, Some(0), true, "rcq"),
];

fn own_peer() -> Result<Peer, Error> {
    Peer::new(&Device::local(device().ip)?)
}

fn srq(peer: &Peer, rcq_size: u32) -> Result<SharedReceiveQueue, Error> {
    let mut sizes = SrqConfig::default();
    sizes.set_rcq_size(rcq_size);
    SharedReceiveQueue::new(peer, &sizes)
}

/// A client with default settings and a server with `config`.
fn connected(
    client_peer: &Peer,
    server_peer: &Peer,
    endpoint: &Endpoint,
    config: &ConnectionConfig,
) -> Result<Pair, harness::Failed> {
    let plain = ConnectionConfig::default();
    let request = ConnectionRequest::new(client_peer, endpoint.local_addr(), &plain)?;
    let client = request.connect(PrivateData::none())?;
    let request = endpoint.next_connection_request(config, WAIT)?;
    let server = request.connect(PrivateData::none())?;
    client.wait_established(WAIT)?;
    server.wait_established(WAIT)?;
    Ok(Pair {
        client,
        server,
        client_peer: client_peer.clone(),
        server_peer: server_peer.clone(),
    })
}

fn every_row() -> Outcome {
    let (server_peer, endpoint) = listen()?;
    let client_peer = own_peer()?;
    for (rcq_size, srq_rcq_size, shared, place) in ROWS {
        let what = format!("rcq {rcq_size}, srq {srq_rcq_size:?}, shared channel {shared}");
        let mut config = ConnectionConfig::default();
        config
            .set_rcq_size(rcq_size)
            .set_shared_completion_channel(shared);
        let srq = srq_rcq_size
            .map(|size| srq(&server_peer, size))
            .transpose()?;
        config.set_srq(srq.as_ref());
        let pair = connected(&client_peer, &server_peer, &endpoint, &config)?;
        let targets = Targets::new(&pair, 8)?;
        match &srq {
            Some(srq) => {
                let refused = pair.server.recv(targets.server.as_span(), 6);
                ensure_eq!(refused.map_err(|e| e.code()), Err(-100_004), "{what}");
                srq.recv(targets.server.as_span(), 7)?;
            }
            None => pair.server.recv(targets.server.as_span(), 7)?,
        }
        pair.client
            .send(targets.client.as_span(), Signal::Always, 1)?;
        completed(pair.client.cq())?;
        let (to, from) = (targets.of_client.as_span(), targets.server.as_span());
        pair.server.write(to, from, Signal::Always, 8)?;
        let of_srq = srq.as_ref().and_then(SharedReceiveQueue::rcq);
        let receives = match place {
            "main" => Some(pair.server.cq()),
            "rcq" => pair.server.rcq(),
            _ => of_srq,
        };
        let receives = receives.ok_or_else(|| format!("{what}: no such queue"))?;
        ensure_eq!(pair.server.rcq().is_some(), place == "rcq", "{what}");
        let mut got = if shared {
            by_the_channel(&pair.server, receives, &what)?
        } else {
            let refused = pair.server.wait(WAIT).map(|ready| ready.is_rcq());
            ensure_eq!(refused.map_err(|e| e.code()), Err(-100_009), "{what}");
            ensure!(pair.server.completion_fd().is_err(), "{what}");
            let first = completed(receives)?.op_context();
            let second = completed(pair.server.cq())?.op_context();
            vec![(true, first), (place == "main", second)]
        };
        got.sort_unstable_by_key(|got| got.1);
        ensure_eq!(got, [(true, 7), (place == "main", 8)], "{what}");
    }
    Ok(())
}

/// Both completions, and whether each was where receives complete.
fn by_the_channel(
    server: &Connection,
    receives: &CompletionQueue,
    what: &str,
) -> Result<Vec<(bool, u64)>, harness::Failed> {
    let refused = server.cq().wait(WAIT);
    ensure_eq!(refused.map_err(|e| e.code()), Err(-100_008), "{what}");
    let [readable] = wait_readable([server.completion_fd()?], Deadline::after(WAIT))?;
    ensure!(readable, "{what}: the descriptor is silent");
    let mut got = Vec::new();
    while got.len() < 2 {
        let ready = server.wait(WAIT)?;
        ensure_eq!(
            ready.is_rcq(),
            Some(ready.queue()) == server.rcq(),
            "{what}"
        );
        if let Some(completion) = ready.queue().poll_one()? {
            completion.result()?;
            got.push((ready.queue() == receives, completion.op_context()));
        }
    }
    Ok(got)
}

fn the_refused_row() -> Outcome {
    let (server_peer, endpoint) = listen()?;
    let client_peer = own_peer()?;
    let srq = srq(&server_peer, 20)?;
    let mut config = ConnectionConfig::default();
    config
        .set_srq(Some(&srq))
        .set_shared_completion_channel(true);
    let plain = ConnectionConfig::default();
    let request = ConnectionRequest::new(&client_peer, endpoint.local_addr(), &plain)?;
    let client = request.connect(PrivateData::none())?;
    let start = Instant::now();
    let error = endpoint.next_connection_request(&config, WAIT);
    let error = error.err().ok_or("the contradiction was taken")?;
    ensure_eq!(error.code(), -100_004, "{error}");
    // Whoever asked is told at once, and the endpoint goes on.
    let rejected = client.wait_established(WAIT).err().ok_or("not rejected")?;
    ensure_eq!(rejected.kind(), ErrorKind::Rejected, "{rejected}");
    ensure!(start.elapsed() < Duration::from_secs(5), "told late");
    connected(&client_peer, &server_peer, &endpoint, &plain)?;
    Ok(())
}

fn everything_shared() -> Outcome {
    const COUNT: usize = 3;
    let (server_peer, endpoint) = listen()?;
    let client_peer = own_peer()?;
    let channel = CompletionChannel::new(&server_peer)?;
    let queue = |entries| {
        CompletionQueue::builder(&server_peer, entries)
            .channel(&channel)
            .build()
    };
    let (cq, rcq) = (queue(128)?, queue(128)?);
    let srq = srq(&server_peer, 0)?;
    let mut config = ConnectionConfig::default();
    config
        .set_cq(Some(&cq))
        .set_rcq(Some(&rcq))
        .set_srq(Some(&srq));
    let pairs = (0..COUNT)
        .map(|_| connected(&client_peer, &server_peer, &endpoint, &config))
        .collect::<Result<Vec<_>, _>>()?;
    let refused = srq.clone().close().err().ok_or("closed while in use")?;
    ensure_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
    let memory = LocalRegion::alloc(&server_peer, 64, Usage::RECV | Usage::WRITE_SRC)?;
    let count = rounds(100, 1000) as u64;
    phase("messages of each through one receive queue");
    let targets = pairs
        .iter()
        .map(|pair| Targets::new(pair, 8))
        .collect::<Result<Vec<_>, _>>()?;
    let mut received = HashMap::new();
    for n in 0..count {
        for (pair, targets) in pairs.iter().zip(&targets) {
            srq.recv(memory.as_span(), n)?;
            pair.client
                .send(targets.client.as_span(), Signal::Always, n)?;
        }
        let mut left = COUNT;
        while left > 0 {
            let ready = channel.wait(WAIT)?;
            ensure!(ready == rcq, "round {n}: something in the main queue");
            while let Some(completion) = ready.poll_one()? {
                completion.result()?;
                *received.entry(completion.qp_num()).or_insert(0) += 1;
                left -= 1;
            }
        }
        for pair in &pairs {
            completed(pair.client.cq())?;
        }
    }
    for pair in &pairs {
        let number = pair.server.qp_num();
        ensure_eq!(received.get(&number), Some(&count), "messages of {number}");
    }
    phase("writes of each into one completion queue");
    for (pair, targets) in pairs.iter().zip(&targets) {
        let (to, from) = (targets.of_client.as_span(), memory.span(..8)?);
        let id = u64::from(pair.server.qp_num());
        pair.server.write(to, from, Signal::Always, id)?;
    }
    let mut left = COUNT;
    while left > 0 {
        let ready = channel.wait(WAIT)?;
        while let Some(completion) = ready.poll_one()? {
            completion.result()?;
            ensure!(ready == cq, "a write among the receives");
            ensure_eq!(
                completion.op_context(),
                u64::from(completion.qp_num()),
                "whose"
            );
            left -= 1;
        }
    }
    phase("the end of one leaves the others as they are");
    drop(srq);
    drop(config);
    let mut pairs = pairs.into_iter();
    drop(pairs.next());
    for pair in pairs {
        let srq = pair.server.srq().ok_or("no shared receive queue")?;
        srq.recv(memory.as_span(), 5)?;
        let region = LocalRegion::alloc(&client_peer, 8, Usage::SEND)?;
        pair.client.send(region.as_span(), Signal::Always, 5)?;
        let end = Instant::now() + WAIT;
        let completion = loop {
            if let Some(completion) = rcq.poll_one()? {
                break completion;
            }
            ensure!(Instant::now() < end, "nothing came");
        };
        completion.result()?;
        ensure_eq!(completion.qp_num(), pair.server.qp_num(), "whose");
    }
    Ok(())
}

fn one_a_wait() -> Outcome {
    let pair = Pair::new()?;
    let targets = Targets::new(&pair, 8)?;
    let cq = pair.client.cq();
    for round in 0..rounds(100, 5000) {
        for id in 0..5 {
            let (to, from) = (targets.of_server.as_span(), targets.client.as_span());
            pair.client.write(to, from, Signal::Always, id)?;
        }
        for id in 0..5 {
            let completion = loop {
                cq.wait(WAIT)
                    .map_err(|error| format!("round {round}, completion {id}: {error}"))?;
                if let Some(completion) = cq.poll_one()? {
                    break completion;
                }
            };
            completion.result()?;
            ensure_eq!(completion.op_context(), id, "round {round}");
        }
    }
    Ok(())
}

fn descriptors() -> Result<usize, std::io::Error> {
    Ok(std::fs::read_dir("/proc/self/fd")?.count())
}

fn dispatched() -> Outcome {
    let dispatcher = Dispatcher::new()?;
    let peer = || Peer::with_dispatcher(&Device::local(device().ip)?, &dispatcher);
    let (client_peer, server_peer) = (peer()?, peer()?);
    let mut options = ListenOptions::default();
    options.backlog = 16;
    let endpoint = Endpoint::listen_with(&server_peer, device().addr(0), &options)?;
    // One queue for all, so that nothing else needs descriptors.
    let count = rounds(20, 500);
    let cq = CompletionQueue::new(&server_peer, 32 * u32::try_from(count)? * 2)?;
    let mut config = ConnectionConfig::default();
    config.set_cq(Some(&cq));
    let before = descriptors()?;
    let mut pairs = Vec::new();
    for _ in 0..count {
        let request = ConnectionRequest::new(&client_peer, endpoint.local_addr(), &config)?;
        let client = request.connect(PrivateData::none())?;
        let [readable] = wait_readable([endpoint.as_fd()], Deadline::after(WAIT))?;
        ensure!(readable, "no request shows on the endpoint");
        let request = endpoint.next_connection_request(&config, WAIT)?;
        let server = request.connect(PrivateData::none())?;
        client.wait_established(WAIT)?;
        server.wait_established(WAIT)?;
        pairs.push((client, server));
    }
    ensure_eq!(descriptors()?, before, "descriptors of {count} connections");
    let memory = LocalRegion::alloc(&client_peer, 8, Usage::SEND)?;
    let to = LocalRegion::alloc(&server_peer, 8, Usage::RECV)?;
    for (client, server) in &pairs {
        ensure!(server.event_fd().is_err(), "an event descriptor");
        server.recv(to.as_span(), 1)?;
        client.send(memory.as_span(), Signal::Always, 2)?;
        let ids = [completed(&cq)?.op_context(), completed(&cq)?.op_context()];
        ensure_eq!(ids[0] + ids[1], 3, "{ids:?}");
    }
    for (client, server) in &pairs {
        client.disconnect()?;
        let event = server.next_event(WAIT)?;
        ensure_eq!(event, rpma::ConnectionEvent::Closed, "the end");
    }
    Ok(())
}

fn settings() -> Outcome {
    // Depths are powers of two, which SoftRoCE rounds up to.
    let mut config = ConnectionConfig::default();
    config
        .set_retry_count(3)?
        .set_rnr_retry(2)?
        .set_min_rnr_timer(14)?
        .set_ack_timeout(17)?
        .set_initiator_depth(2)
        .set_responder_resources(4)
        .set_type_of_service(Some(32))
        .set_source_address(Some(device().addr(0)));
    let (server_peer, endpoint) = listen()?;
    let pair = Pair::between(own_peer()?, server_peer, &endpoint, &config, |_| Ok(()))?;
    ensure_eq!(
        pair.client.local_addr().map(|addr| addr.ip()),
        Some(device().ip),
        "where it comes from"
    );
    for (name, end) in [("client", &pair.client), ("server", &pair.server)] {
        let (is, _) = end.queue_pair().query()?;
        ensure_eq!(is.as_raw().0.retry_cnt, 3, "retries of the {name}");
        ensure_eq!(
            is.as_raw().0.rnr_retry,
            2,
            "receiver-not-ready retries of the {name}"
        );
        ensure_eq!(is.as_raw().0.min_rnr_timer, 14, "timer of the {name}");
        ensure_eq!(
            is.as_raw().0.timeout,
            17,
            "acknowledgement timeout of the {name}"
        );
        ensure!((1..=2).contains(&is.max_rd_atomic()), "depth of the {name}");
        ensure!(
            (1..=4).contains(&is.max_dest_rd_atomic()),
            "resources of the {name}"
        );
    }
    let mut config = ConnectionConfig::default();
    config.set_completion_vector(100_000);
    let error = ConnectionRequest::new(&pair.client_peer, endpoint.local_addr(), &config);
    let error = error.err().ok_or("a vector that no device has")?;
    ensure_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    Ok(())
}
