//! From a request to a connection.

use std::time::{Duration, Instant};

use harness::{
    Baseline, Failed, Need, Outcome, Pair, SECOND, Targets, Test, WAIT, completed, device, ensure,
    ensure_eq, hardware_counter, listen, pattern, phase, rounds, test,
};
use rpma::{
    ConnectionConfig, ConnectionRequest, Device, Endpoint, ErrorKind, LocalRegion, Peer,
    PrivateData, Signal, Status, Usage,
};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test(
            "receives_posted_on_the_request_are_there_for_the_clients_first_send",
            &[Need::Device],
            receives_on_the_request,
        )
        .limit(120),
        test(
            "a_send_before_the_connection_stands_is_refused_with_advice",
            &[Need::Device],
            send_too_early,
        ),
        test(
            "private_data_are_told_from_none_where_their_length_is_inside",
            &[Need::Device],
            private_data,
        ),
        test("a_refusal_is_told_by_its_kind", &[Need::Device], a_refusal),
        test(
            "an_address_in_use_or_of_no_device_is_told_by_its_kind",
            &[Need::Device],
            addresses,
        ),
        test(
            "cycles_of_connecting_and_disconnecting_leave_nothing",
            &[Need::Device],
            cycles_leave_nothing,
        )
        .limit(120),
        test(
            "a_failed_request_leaves_the_endpoint_working",
            &[Need::Device],
            a_failed_request,
        ),
    ]
}

fn receives_on_the_request() -> Outcome {
    let (server_peer, endpoint) = listen()?;
    let client_peer = Peer::new(&Device::local(device().ip)?)?;
    let source = LocalRegion::alloc(&client_peer, 64, Usage::SEND)?;
    let target = LocalRegion::alloc(&server_peer, 64, Usage::RECV)?;
    let mut config = ConnectionConfig::default();
    // A send that finds no receive fails at once.
    config.set_rnr_retry(0)?;
    let counters = || -> Result<[u64; 2], Failed> {
        Ok([
            hardware_counter("send_rnr_err")?,
            hardware_counter("rcvd_rnr_err")?,
        ])
    };
    let before = counters()?;
    for round in 0..rounds(40, 1000) as u64 {
        phase(format!("round {round}"));
        source.store(0, &pattern::bytes(round, 64))?;
        target.fill(0)?;
        let request = ConnectionRequest::new(&client_peer, endpoint.local_addr(), &config)?;
        let client = request.connect(PrivateData::none())?;
        let request = endpoint.next_connection_request(&config, WAIT)?;
        request.recv(target.as_span(), round)?;
        let server = request.connect(PrivateData::none())?;
        client.wait_established(WAIT)?;
        client.send(source.as_span(), Signal::Always, round)?;
        ensure_eq!(completed(client.cq())?.op_context(), round, "send");
        server.wait_established(WAIT)?;
        ensure_eq!(completed(server.cq())?.op_context(), round, "receive");
        let mut found = [0; 64];
        target.load(0, &mut found)?;
        pattern::check(&found, round)?;
    }
    ensure_eq!(
        counters()?,
        before,
        "counters of receivers that were not ready"
    );
    // One that is posted after the acceptance comes too late.
    let request = ConnectionRequest::new(&client_peer, endpoint.local_addr(), &config)?;
    let client = request.connect(PrivateData::none())?;
    let request = endpoint.next_connection_request(&config, WAIT)?;
    let server = request.connect(PrivateData::none())?;
    client.wait_established(WAIT)?;
    client.send(source.as_span(), Signal::Always, 1)?;
    let error = client.cq().next(WAIT)?.result().err().ok_or("received")?;
    ensure_eq!(error.status, Status::RNR_RETRY_EXC_ERR, "{error}");
    ensure_eq!(error.status.raw(), 13, "{error}");
    drop(server);
    Ok(())
}

/// Without a length they are padded with zeros, none too.
fn private_data() -> Outcome {
    let (peer, endpoint) = listen()?;
    let config = ConnectionConfig::default();
    for sent in [None, Some(&b""[..]), Some(&[0]), Some(&[0x2a])] {
        let data = || match sent {
            None => Ok(PrivateData::none()),
            Some(data) => PrivateData::with_length(data),
        };
        let request = ConnectionRequest::new(&peer, endpoint.local_addr(), &config)?;
        let client = request.connect(data()?)?;
        let request = endpoint.next_connection_request(&config, WAIT)?;
        let padded = request.private_data().to_vec();
        let server = request.connect(data()?)?;
        client.wait_established(WAIT)?;
        let expected = sent.filter(|data| !data.is_empty());
        for (received, size) in [(&padded[..], 56), (client.private_data(), 196)] {
            ensure_eq!(received.len(), size, "{sent:?}: with the padding");
            ensure_eq!(PrivateData::unpack(received)?, expected, "{sent:?}");
        }
        server.wait_established(WAIT)?;
    }
    Ok(())
}

fn send_too_early() -> Outcome {
    let (peer, endpoint) = listen()?;
    let config = ConnectionConfig::default();
    let client = ConnectionRequest::new(&peer, endpoint.local_addr(), &config)?
        .connect(PrivateData::none())?;
    let region = LocalRegion::alloc(&peer, 64, Usage::all())?;
    let refused = |connection: &rpma::Connection| -> Outcome {
        let error = connection.send(region.as_span(), Signal::Always, 1).err();
        let error = error.ok_or("sent before the connection stands")?;
        ensure_eq!(error.kind(), ErrorKind::NotConnected, "{error}");
        let hint = error.hint().unwrap_or_default();
        ensure!(hint.contains("established"), "{hint}");
        Ok(())
    };
    refused(&client)?;
    let request = endpoint.next_connection_request(&config, WAIT)?;
    request.recv(region.as_span(), 2)?;
    let server = request.connect(PrivateData::none())?;
    // The answer is there, and not taken yet.
    refused(&client)?;
    client.wait_established(WAIT)?;
    client.send(region.as_span(), Signal::Always, 1)?;
    completed(client.cq())?;
    server.wait_established(WAIT)?;
    completed(server.cq())?;
    Ok(())
}

fn a_refusal() -> Outcome {
    let (peer, endpoint) = listen()?;
    let config = ConnectionConfig::default();
    let to = endpoint.local_addr();
    let connect = || ConnectionRequest::new(&peer, to, &config)?.connect(PrivateData::none());

    let client = connect()?;
    let request = endpoint.next_connection_request(&config, WAIT)?;
    request.reject(PrivateData::new(b"not today")?)?;
    let error = client.wait_established(WAIT).err().ok_or("connected")?;
    ensure_eq!(error.kind(), ErrorKind::Rejected, "{error}");
    ensure_eq!(error.code(), -100_002, "{error}");

    let client = connect()?;
    drop(endpoint.next_connection_request(&config, WAIT)?);
    let error = client.wait_established(WAIT).err().ok_or("connected")?;
    ensure_eq!(error.kind(), ErrorKind::Rejected, "{error}");

    drop(endpoint);
    let client = connect()?;
    let error = client.wait_established(WAIT).err().ok_or("connected")?;
    ensure_eq!(error.kind(), ErrorKind::NoListener, "{error}");
    let text = error.to_string();
    ensure!(
        text.contains(&to.to_string()) && !text.contains('\n'),
        "{text}"
    );
    ensure!(error.hint().is_some(), "no hint");
    Ok(())
}

fn addresses() -> Outcome {
    let (peer, endpoint) = listen()?;
    let error = Endpoint::listen(&peer, endpoint.local_addr())
        .err()
        .ok_or("listening twice")?;
    ensure_eq!(error.kind(), ErrorKind::AddressInUse, "{error}");
    ensure!(
        error
            .to_string()
            .contains(&endpoint.local_addr().to_string()),
        "{error}"
    );
    ensure!(error.hint().is_some(), "no hint");

    let error = Endpoint::listen(&peer, "198.51.100.1:0".parse()?)
        .err()
        .ok_or("listening")?;
    ensure_eq!(error.kind(), ErrorKind::NoSuchAddress, "{error}");
    for ip in ["127.0.0.1", "198.51.100.1", "0.0.0.0", "::1"] {
        let error = Device::local(ip.parse()?)
            .err()
            .ok_or(format!("{ip} has a device"))?;
        ensure_eq!(error.kind(), ErrorKind::NoSuchAddress, "{ip}: {error}");
        ensure!(error.to_string().contains(ip), "{error}");
        ensure!(error.hint().is_some(), "no hint for {ip}");
    }
    let found = Device::remote(endpoint.local_addr(), SECOND)?;
    ensure_eq!(found.name(), device().name, "where the endpoint is");
    ensure_eq!(found, Device::local(device().ip)?, "whose address it is");
    let start = Instant::now();
    let to = "127.0.0.1:7204".parse()?;
    let error = Device::remote(to, SECOND)
        .err()
        .ok_or("loopback leads to a device")?;
    ensure_eq!(error.kind(), ErrorKind::NoSuchAddress, "{error}");
    ensure!(start.elapsed() < 2 * SECOND, "after {:?}", start.elapsed());
    Ok(())
}

/// Connects, moves data both ways, and disconnects, from one side or the other.
fn cycle(peers: [&Peer; 2], endpoint: &Endpoint, n: usize) -> Outcome {
    let [client_peer, server_peer] = peers.map(Clone::clone);
    let config = ConnectionConfig::default();
    let pair = Pair::between(client_peer, server_peer, endpoint, &config, |_| Ok(()))?;
    let targets = Targets::new(&pair, 4096)?;
    let (client, server) = (&pair.client, &pair.server);
    client.write(
        targets.of_server.as_span(),
        targets.client.as_span(),
        Signal::Always,
        1,
    )?;
    completed(client.cq())?;
    server.read(
        targets.server.as_span(),
        targets.of_client.as_span(),
        Signal::Always,
        1,
    )?;
    completed(server.cq())?;
    let (first, second) = if n.is_multiple_of(2) {
        (client, server)
    } else {
        (server, client)
    };
    first.disconnect()?;
    let closed = rpma::ConnectionEvent::Closed;
    ensure_eq!(
        second.next_event(WAIT)?,
        closed,
        "the other side, cycle {n}"
    );
    ensure_eq!(
        first.next_event(WAIT)?,
        closed,
        "the side that disconnected, cycle {n}"
    );
    Ok(())
}

fn cycles_leave_nothing() -> Outcome {
    let (server_peer, endpoint) = listen()?;
    let client_peer = Peer::new(&Device::local(device().ip)?)?;
    let peers = [&client_peer, &server_peer];
    // The first ones fill the allocator's pools.
    for n in 0..10 {
        cycle(peers, &endpoint, n)?;
    }
    let (baseline, memory) = (Baseline::take()?, resident()?);
    let count = rounds(50, 1000);
    for n in 0..count {
        phase(format!("cycle {n}"));
        cycle(peers, &endpoint, n)?;
    }
    baseline.check()?;
    let grown = resident()?.saturating_sub(memory);
    // A queue pair alone takes more than a page, so a leak per cycle would show.
    ensure!(
        grown <= 32 + count / 4,
        "{grown} pages of memory more after {count} cycles"
    );
    Ok(())
}

/// Pages of memory that the process has.
fn resident() -> Result<usize, Failed> {
    let text = std::fs::read_to_string("/proc/self/statm")?;
    let pages = text
        .split_whitespace()
        .nth(1)
        .ok_or("no second number in /proc/self/statm")?;
    Ok(pages.parse()?)
}

fn a_failed_request() -> Outcome {
    let (server_peer, endpoint) = listen()?;
    let client_peer = Peer::new(&Device::local(device().ip)?)?;
    let good = ConnectionConfig::default();
    let mut sends = good.clone();
    sends.set_sq_size(u32::MAX / 4);
    let entries = server_peer.device().context().attributes().max_cqe();
    let mut completions = good.clone();
    completions.set_cq_size(entries + 1);
    let baseline = Baseline::take()?;
    for round in 0..rounds(4, 50) {
        let bad = [&sends, &completions][round % 2];
        let client = ConnectionRequest::new(&client_peer, endpoint.local_addr(), &good)?
            .connect(PrivateData::none())?;
        let error = endpoint
            .next_connection_request(bad, WAIT)
            .err()
            .ok_or("granted")?;
        ensure_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        let start = Instant::now();
        let error = client.wait_established(WAIT).err().ok_or("connected")?;
        ensure_eq!(error.kind(), ErrorKind::Rejected, "{error}");
        ensure!(
            start.elapsed() < Duration::from_secs(5),
            "after {:?}",
            start.elapsed()
        );
    }
    baseline.check()?;
    cycle([&client_peer, &server_peer], &endpoint, 0)
}
