//! What librpma has functions of its own for, and no other test is about: descriptors to wait on,
//! the end of endpoints and peers, completions in order.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};

use harness::{
    Failed, Need, Outcome, Pair, Targets, Test, WAIT, completed, device, ensure, ensure_eq, listen,
    test,
};
use rpma::{
    Completion, ConnectionConfig, ConnectionEvent, ConnectionRequest, Device, Endpoint, ErrorKind,
    Peer, PrivateData, Signal,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test(
            "descriptors_tell_when_there_is_something_and_only_then",
            &[Need::Device],
            descriptors,
        ),
        test(
            "connections_outlive_the_endpoint_whose_port_is_free_again",
            &[Need::Device],
            endpoint_ends,
        ),
        test(
            "a_peer_that_is_used_is_not_closed",
            &[Need::Device],
            peer_ends,
        ),
        test(
            "completions_come_in_order_however_many_are_taken_at_once",
            &[Need::Device],
            many_at_once,
        ),
    ]
}

fn readable(fd: BorrowedFd<'_>, timeout: std::time::Duration) -> Result<bool, Failed> {
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    Ok(poll(&mut fds, Some(&Timespec::try_from(timeout)?))? > 0)
}

fn soon(fd: BorrowedFd<'_>, what: &str) -> Outcome {
    ensure!(readable(fd, WAIT)?, "{what}: not readable in time");
    Ok(())
}

fn nothing(fd: BorrowedFd<'_>, what: &str) -> Outcome {
    ensure!(
        !readable(fd, std::time::Duration::ZERO)?,
        "{what}: readable"
    );
    Ok(())
}

fn descriptors() -> Outcome {
    let (peer, endpoint) = listen()?;
    let config = ConnectionConfig::default();
    nothing(endpoint.as_fd(), "endpoint without a request")?;
    ensure!(
        endpoint.try_next_connection_request(&config)?.is_none(),
        "a request that nobody made"
    );
    let request = ConnectionRequest::new(&peer, endpoint.local_addr(), &config)?;
    let client = request.connect(PrivateData::none())?;
    soon(endpoint.as_fd(), "endpoint with a request")?;
    let request = endpoint
        .try_next_connection_request(&config)?
        .ok_or("no request")?;
    nothing(endpoint.as_fd(), "endpoint whose request was taken")?;
    nothing(client.event_fd()?, "connection before the answer")?;
    let server = request.connect(PrivateData::none())?;
    soon(client.event_fd()?, "connection with the answer")?;
    client.wait_established(WAIT)?;
    soon(server.event_fd()?, "connection with the confirmation")?;
    let event = server.try_next_event()?;
    ensure_eq!(event, Some(ConnectionEvent::Established), "event");
    nothing(server.event_fd()?, "connection whose event was taken")?;

    let cq = client.cq();
    nothing(cq.as_fd(), "queue before an operation")?;
    ensure!(
        client.next_completion()?.is_none(),
        "a completion of nothing"
    );
    client.write(rpma::RemoteSpan::empty(), b"", Signal::Always, 7)?;
    soon(cq.as_fd(), "queue with a completion")?;
    cq.wait(WAIT)?;
    nothing(cq.as_fd(), "queue whose event was taken")?;
    let completion = client.next_completion()?.ok_or("no completion")?;
    ensure_eq!(completion.op_context(), 7, "operation");
    Ok(())
}

fn endpoint_ends() -> Outcome {
    let (peer, endpoint) = listen()?;
    let client_peer = Peer::new(&Device::local(device().ip)?)?;
    let config = ConnectionConfig::default();
    let addr = endpoint.local_addr();
    let taken = Endpoint::listen(&peer, addr)
        .err()
        .map(|error| error.kind());
    ensure_eq!(taken, Some(ErrorKind::AddressInUse), "a second endpoint");
    let pair = Pair::between(client_peer, peer.clone(), &endpoint, &config, |_| Ok(()))?;
    drop(endpoint);
    let again = Endpoint::listen(&peer, addr)?;
    let targets = Targets::new(&pair, 64)?;
    targets.client.store(0, &[7; 64])?;
    let (to, from) = (targets.of_server.as_span(), targets.client.as_span());
    pair.client.write(to, from, Signal::Always, 1)?;
    ensure_eq!(completed(pair.client.cq())?.op_context(), 1, "write");
    let mut found = [0; 64];
    targets.server.load(0, &mut found)?;
    ensure_eq!(found, [7; 64], "bytes written after the endpoint's end");
    drop(again);
    Ok(())
}

fn peer_ends() -> Outcome {
    let pair = Pair::new()?;
    ensure_eq!(
        pair.client_peer.device().name(),
        device().name,
        "device of the peer"
    );
    let refused = pair.client_peer.clone().close().err().map(|e| e.kind());
    ensure_eq!(
        refused,
        Some(ErrorKind::InvalidArgument),
        "closing what is used"
    );
    let Pair {
        client,
        server,
        client_peer,
        server_peer,
    } = pair;
    drop((client, server));
    client_peer.close()?;
    server_peer.close()?;
    Ok(())
}

fn many_at_once() -> Outcome {
    const COUNT: u64 = 10;
    let pair = Pair::new()?;
    let mut expected = 0;
    for at_once in [1, 3, 16] {
        for n in 0..COUNT {
            let empty = rpma::RemoteSpan::empty();
            pair.client
                .write(empty, b"", Signal::Always, expected + n)?;
        }
        let end = expected + COUNT;
        let mut room = vec![MaybeUninit::<Completion>::uninit(); at_once];
        while expected < end {
            let got = pair.client.cq().poll_wait(&mut room, WAIT)?;
            ensure!(
                !got.is_empty() && got.len() <= at_once,
                "{} at once",
                got.len()
            );
            for completion in got {
                ensure_eq!(completion.op_context(), expected, "order of completions");
                ensure!(completion.result().is_ok(), "{completion:?}");
                expected += 1;
            }
        }
        ensure!(
            pair.client.cq().poll(&mut room)?.is_empty(),
            "completions of nothing"
        );
    }
    Ok(())
}
