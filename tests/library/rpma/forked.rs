//! A forked child owns none of its parent's objects.

use harness::{
    Child, Need, Outcome, Pair, Role, Targets, Test, WAIT, completed, ensure, ensure_eq, listen,
    pattern, test,
};
use rpma::{
    ConnectionConfig, ConnectionRequest, Endpoint, Error, ErrorKind, FlushType, LocalRegion, Peer,
    Signal, Usage,
};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test(
            "in_a_forked_child_every_call_answers_forked_and_drops_touch_nothing",
            &[Need::Device],
            a_forked_child,
        ),
        test(
            "a_forked_child_has_nothing_where_the_library_was_told_of_forks_either",
            &[Need::Device],
            || {
                // Registered pages may be left out of the child then: it must not touch them.
                Child::role("forked", "", &[("RDMAV_FORK_SAFE", "1".as_ref())])?
                    .finish(WAIT)?
                    .success()?;
                Ok(())
            },
        ),
    ]
}

pub(crate) const ROLES: &[Role] = &[("forked", a_forked_child)];

fn a_forked_child() -> Outcome {
    let pair = Pair::new()?;
    let targets = Targets::new(&pair, 4096)?;
    let (_peer, endpoint) = listen()?;

    // SAFETY: the child runs no code that takes locks of other threads but the allocator's, which
    // the C library makes usable again, and leaves by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let code = in_child(pair, targets, endpoint);
        // SAFETY: ends the child without running anything else.
        unsafe { libc::_exit(code) };
    }
    ensure!(child > 0, "fork: {}", std::io::Error::last_os_error());
    let mut status = 0;
    // SAFETY: our own child, and a valid place for its status.
    let waited = unsafe { libc::waitpid(child, &mut status, 0) };
    ensure_eq!(waited, child, "waitpid");
    ensure!(
        libc::WIFEXITED(status),
        "the child was killed: status {status:#x}"
    );
    let code = libc::WEXITSTATUS(status);
    ensure!(
        code == 0,
        "in the child, call number {code} did not answer Forked"
    );

    let mut found = [1; 4096];
    targets.client.load(0, &mut found)?;
    ensure!(found == [0; 4096], "the child has filled a region");
    // The child's drops must not have ended or changed anything of ours.
    for n in 0..5 {
        targets.client.store(0, &pattern::bytes(n, 4096))?;
        pair.server.recv(targets.server.as_span(), n)?;
        pair.client
            .send(targets.client.as_span(), Signal::Always, n)?;
        completed(pair.client.cq())?;
        completed(pair.server.cq())?;
        let mut found = [0; 4096];
        targets.server.load(0, &mut found)?;
        pattern::check(&found, n)?;
    }
    ensure!(
        pair.client.try_next_event()?.is_none(),
        "the connection has an event"
    );
    Ok(())
}

/// The number of the first call, from 1, that does not answer as it should; 0 when all do.
fn in_child(pair: Pair, targets: Targets, endpoint: Endpoint) -> i32 {
    let (client, peer) = (&pair.client, &pair.client_peer);
    let (span, remote) = (targets.client.as_span(), targets.of_server.as_span());
    let (moment, config) = (
        std::time::Duration::from_millis(1),
        ConnectionConfig::default(),
    );
    let answers: Vec<Result<(), Error>> = vec![
        client.send(span, Signal::Always, 1),
        client.recv(span, 1),
        client.write(remote, span, Signal::Always, 1),
        client.read(span, remote, Signal::Always, 1),
        client.flush(remote, FlushType::Visibility, Signal::Always, 1),
        client.disconnect(),
        client.next_event(moment).map(drop),
        client.try_next_event().map(drop),
        client.cq().poll_one().map(drop),
        client.cq().next(moment).map(drop),
        client.cq().wait(moment),
        LocalRegion::alloc(peer, 64, Usage::all()).map(drop),
        endpoint.next_connection_request(&config, moment).map(drop),
        endpoint.try_next_connection_request(&config).map(drop),
        ConnectionRequest::new(peer, endpoint.local_addr(), &config).map(drop),
        Peer::new(peer.device()).map(drop),
        targets.client.fill(0xff),
        targets.client.store_u64(0, !0),
        targets.client.persist(..),
    ];
    for (number, answer) in answers.iter().enumerate() {
        let forked = answer
            .as_ref()
            .is_err_and(|error| error.kind() == ErrorKind::Forked);
        if !forked {
            eprintln!("in the child, call {} answered {answer:?}", number + 1);
            return i32::try_from(number).unwrap_or(99) + 1;
        }
    }
    drop(pair);
    drop(targets);
    drop(endpoint);
    0
}
