//! Connections over an iWARP device (siw), where they are made by TCP: there is no response before a connection stands, the
//! client sends first, and neither atomics nor immediate data exist. `RPMA_TEST_ADDRESS` names its address.

// The same as for the tests of the libraries, of which only some is needed here.
#[allow(dead_code)]
#[path = "../library/raw.rs"]
mod raw;
mod regions;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use harness::{Baseline, Failed, Need, Outcome, WAIT, ensure, ensure_eq, test};
use raw::{Buffer, Queues, RawPair, begin, listener, poll};
use rpma::cm::verbs::{
    AccessFlags, PostErrorKind, QpState, RemoteAddr, SendFlags, SendRequest, TransportType,
    WcStatus,
};
use rpma::cm::{ConnParams, ConnectionEvent, ConnectionState, Deadline, Error};

fn main() -> ExitCode {
    let device = &[Need::Device];
    let mut tests = vec![
        test("over_iwarp_the_device_is_one", device, the_device),
        test(
            "over_iwarp_data_flows_both_ways_after_the_client_has_sent",
            device,
            data,
        ),
        test(
            "over_iwarp_a_write_and_a_read_reach_memory_that_may_be_written",
            device,
            remote_memory,
        ),
        test(
            "over_iwarp_what_the_transport_lacks_is_refused_and_the_connection_goes_on",
            device,
            refused,
        ),
        test(
            "over_iwarp_either_side_ends_the_connection_and_receives_are_flushed",
            device,
            the_end,
        ),
        test(
            "over_iwarp_a_rejection_and_its_bytes_arrive",
            device,
            rejection,
        ),
        test(
            "over_iwarp_nobody_listening_is_no_listener",
            device,
            nobody_listens,
        ),
        test(
            "over_iwarp_private_data_arrives_as_long_as_it_was_sent",
            device,
            private_data,
        ),
        test("over_iwarp_handles_go_in_any_order", device, any_order).limit(400),
    ];
    tests.extend(regions::tests());
    harness::run(tests, &[])
}

fn the_device() -> Outcome {
    let context = rpma::cm::device_of_local(harness::device().addr(0))?;
    ensure_eq!(context.transport(), TransportType::IWARP, "transport");
    ensure_eq!(context.name(), harness::device().name, "name");
    Ok(())
}

fn succeeded(cq: &rpma::cm::verbs::CompletionQueue) -> Result<u64, Failed> {
    let completion = poll(cq)?;
    ensure_eq!(completion.status(), WcStatus::SUCCESS, "completion");
    Ok(completion.wr_id())
}

/// A connected pair whose client has sent a first message.
fn pair() -> Result<RawPair, Failed> {
    let pair = RawPair::new()?;
    ensure_eq!(pair.client.state(), ConnectionState::Established, "client");
    ensure_eq!(pair.server.qp().state(), QpState::RTS, "recorded state");
    pair.server_queues.recv(pair.server.qp(), 1)?;
    pair.client_queues.buffer.store(0, b"first");
    pair.client_queues.send(pair.client.qp(), 2, 5)?;
    ensure_eq!(succeeded(&pair.client_queues.send_cq)?, 2, "the send");
    ensure_eq!(succeeded(&pair.server_queues.recv_cq)?, 1, "the receive");
    ensure_eq!(pair.server_queues.buffer.load(0, 5), b"first", "what came");
    Ok(pair)
}

fn data() -> Outcome {
    let pair = pair()?;
    for round in 0..20_u8 {
        pair.client_queues.recv(pair.client.qp(), 3)?;
        let said = [round; 4000];
        pair.server_queues.buffer.store(0, &said);
        pair.server_queues.send(pair.server.qp(), 4, said.len())?;
        ensure_eq!(succeeded(&pair.server_queues.send_cq)?, 4, "the send");
        ensure_eq!(succeeded(&pair.client_queues.recv_cq)?, 3, "the receive");
        ensure_eq!(
            pair.client_queues.buffer.load(0, said.len()),
            said,
            "what came"
        );
    }
    Ok(())
}

fn remote_memory() -> Outcome {
    let pair = pair()?;
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
    let theirs = Buffer::with_access(&pair.server_queues.pd, 8192, access)?;
    // A read is answered by a write into the buffer of who asks.
    let ours = Buffer::with_access(&pair.client_queues.pd, 8192, access)?;
    let remote = RemoteAddr {
        addr: theirs.region().iova(),
        rkey: theirs.region().rkey(),
    };
    let bytes: Vec<u8> = (0..=250).cycle().take(8000).collect();
    ours.store(0, &bytes);
    let sges = [ours.sge(0, bytes.len())];
    let mut request = SendRequest::write(7, &sges, remote).with_flags(SendFlags::SIGNALED);
    // SAFETY: the buffers are registered memory to which no reference is formed, and outlive the wait below.
    unsafe { pair.client.qp().post_send(&mut request) }?;
    ensure_eq!(succeeded(&pair.client_queues.send_cq)?, 7, "the write");
    ours.store(0, &vec![0; bytes.len()]);
    let mut request = SendRequest::read(8, &sges, remote).with_flags(SendFlags::SIGNALED);
    // SAFETY: as above.
    unsafe { pair.client.qp().post_send(&mut request) }?;
    ensure_eq!(succeeded(&pair.client_queues.send_cq)?, 8, "the read");
    // The read came back behind the write, so that the bytes made both ways.
    ensure!(ours.load(0, bytes.len()) == bytes, "other bytes came back");
    ensure!(theirs.load(0, bytes.len()) == bytes, "other bytes arrived");
    Ok(())
}

fn refused() -> Outcome {
    let pair = pair()?;
    let sges = [pair.client_queues.buffer.sge(0, 8)];
    let remote = RemoteAddr {
        addr: pair.client_queues.buffer.region().iova(),
        rkey: pair.client_queues.buffer.region().rkey(),
    };
    let requests = [
        SendRequest::send_with_imm(1, &sges, 5),
        SendRequest::write_with_imm(1, &sges, remote, 5),
        SendRequest::fetch_and_add(1, &sges, remote, 1),
        SendRequest::compare_and_swap(1, &sges, remote, 1, 2),
    ];
    for mut request in requests {
        // SAFETY: the buffer is registered memory to which no reference is formed.
        let posted = unsafe { pair.client.qp().post_send(&mut request) };
        let kind = posted.err().ok_or("an operation was taken")?.kind;
        ensure!(matches!(kind, PostErrorKind::Unsupported(_)), "{kind}");
    }
    pair.server_queues.recv(pair.server.qp(), 5)?;
    pair.client_queues.send(pair.client.qp(), 6, 8)?;
    ensure_eq!(succeeded(&pair.server_queues.recv_cq)?, 5, "what follows");
    Ok(())
}

fn the_end() -> Outcome {
    let deadline = Deadline::after(WAIT);
    for client_ends in [true, false] {
        let pair = pair()?;
        pair.client_queues.recv(pair.client.qp(), 21)?;
        pair.server_queues.recv(pair.server.qp(), 22)?;
        let (one, other) = if client_ends {
            (&pair.client, &pair.server)
        } else {
            (&pair.server, &pair.client)
        };
        one.disconnect()?;
        for end in [other, one] {
            let event = end.next_event(deadline)?;
            ensure_eq!(event, ConnectionEvent::Disconnected, "the end");
            ensure_eq!(end.state(), ConnectionState::Closed, "state");
        }
        for (queues, wr_id) in [(&pair.client_queues, 21), (&pair.server_queues, 22)] {
            let completion = poll(&queues.recv_cq)?;
            ensure_eq!(completion.wr_id(), wr_id, "the receive");
            ensure!(completion.status() != WcStatus::SUCCESS, "it succeeded");
        }
        one.disconnect()?;
    }
    Ok(())
}

fn rejection() -> Outcome {
    let deadline = Deadline::after(WAIT);
    let listener = listener()?;
    for data in [&b""[..], b"the reason"] {
        let (client, _queues) = begin(listener.local_addr(), &[])?;
        listener.next_request(deadline)?.reject(data)?;
        let error = client.wait_established(deadline).err().ok_or("connected")?;
        let Error::Rejected {
            peer,
            ref private_data,
            ..
        } = error
        else {
            return Err(format!("not a rejection: {error}").into());
        };
        ensure_eq!(peer, listener.local_addr(), "peer");
        ensure_eq!(private_data, data, "its bytes");
        ensure!(!error.to_string().contains("unknown"), "{error}");
        ensure_eq!(client.state(), ConnectionState::Closed, "state");
    }
    // Undecided, it is rejected as well.
    let (client, _queues) = begin(listener.local_addr(), &[])?;
    drop(listener.next_request(deadline)?);
    let error = client.wait_established(deadline).err().ok_or("connected")?;
    ensure!(matches!(error, Error::Rejected { .. }), "{error}");
    Ok(())
}

fn nobody_listens() -> Outcome {
    let to = listener()?.local_addr();
    let resolved = raw::resolve(to)?;
    let (_queues, qp) = Queues::new(resolved.context())?;
    resolved.init_qp(&qp)?;
    // Some devices know it in the call, others tell it as an event.
    let error = match resolved.connect(qp, &ConnParams::default(), &[]) {
        Err(error) => error,
        Ok(client) => {
            let waited = client.wait_established(Deadline::after(WAIT));
            waited.err().ok_or("connected")?
        }
    };
    ensure_eq!(error, Error::NoListener { peer: to }, "{error}");
    Ok(())
}

fn private_data() -> Outcome {
    let deadline = Deadline::after(WAIT);
    let listener = listener()?;
    // siw adds four bytes of its own, and loses a request that then has more than 255.
    for len in [0, 1, 57, 197, 251] {
        let said: Vec<u8> = (1..=255).take(len).collect();
        let (client, _queues) = begin(listener.local_addr(), &said)?;
        let request = listener
            .next_request(deadline)
            .map_err(|error| format!("{len} bytes: {error}"))?;
        ensure_eq!(request.private_data(), said, "{len} bytes of the request");
        let (_queues, qp) = Queues::new(request.context())?;
        request.init_qp(&qp)?;
        let server = request.accept(qp, &ConnParams::default(), &said)?;
        ensure_eq!(
            client.wait_established(deadline)?,
            said,
            "{len} bytes of the answer"
        );
        server.wait_established(deadline)?;
    }
    Ok(())
}

/// What the kernel waits for the answer to an attempt that was dropped, at most: siw gives it 10 s.
const ANSWER: Duration = Duration::from_secs(12);

fn any_order() -> Outcome {
    let baseline = Baseline::take()?;
    for round in 0..8 {
        let deadline = Deadline::after(WAIT);
        let listener = listener()?;
        let (client, client_queues) = begin(listener.local_addr(), &[])?;
        let request = listener.next_request(deadline)?;
        let (queues, qp) = Queues::new(request.context())?;
        request.init_qp(&qp)?;
        let server = request.accept(qp, &ConnParams::default(), &[])?;
        client.wait_established(deadline)?;
        let (undecided, undecided_queues) = begin(listener.local_addr(), &[])?;
        let request = listener.next_request(deadline)?;
        let mut handles: Vec<(&str, Box<dyn std::any::Any>)> = vec![
            ("the listener", Box::new(listener)),
            ("the client", Box::new((client, client_queues))),
            ("the server", Box::new((server, queues))),
            (
                "the undecided client",
                Box::new((undecided, undecided_queues)),
            ),
            ("the undecided request", Box::new(request)),
        ];
        let count = handles.len();
        handles.rotate_left(round % count);
        if round % 2 == 1 {
            handles.reverse();
        }
        for (name, handle) in handles {
            harness::phase(format!("dropping {name}"));
            let start = Instant::now();
            drop(handle);
            ensure!(
                start.elapsed() < ANSWER,
                "{name} took {:?}",
                start.elapsed()
            );
        }
    }
    Ok(baseline.check()?)
}
