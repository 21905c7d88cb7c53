//! Requests that find no room in a listener's queue.

use std::time::Duration;

use harness::{Failed, Need, Outcome, SECOND, Test, WAIT, device, ensure, ensure_eq, test};
use rpma::cm::{Connection, Deadline, Error, ListenOptions, Listener, Request};

use super::dropped_quickly;
use super::rounds::{accept, serves, soon};
use crate::raw::{Queues, begin};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test(
            "requests_beyond_a_full_backlog_are_not_answered_and_served_when_asked_again",
            &[Need::Device],
            full_backlog,
        ),
        test(
            "a_backlog_beyond_the_systems_maximum_is_that_maximum",
            &[Need::Device, Need::Root],
            largest_backlog,
        ),
    ]
}

fn with_backlog(backlog: u16) -> Result<Listener, Failed> {
    let mut options = ListenOptions::default();
    options.backlog = backlog;
    Ok(Listener::bind(device().addr(0), &options)?)
}

type Client = (Connection, Queues);

/// Asks `count` times, and waits for the answers for `a_while`, which do not come.
fn ask(listener: &Listener, count: usize, a_while: Duration) -> Result<Vec<Client>, Failed> {
    let clients = (0..count)
        .map(|_| begin(listener.local_addr(), &[]))
        .collect::<Result<Vec<_>, _>>()?;
    let deadline = Deadline::after(a_while);
    for (client, _queues) in &clients {
        let error = client.wait_established(deadline).err();
        ensure!(matches!(error, Some(Error::TimedOut { .. })), "{error:?}");
    }
    Ok(clients)
}

/// All the requests that wait.
fn waiting(listener: &Listener) -> Result<Vec<Request>, Failed> {
    let mut requests = Vec::new();
    while let Some(request) = listener.try_next_request()? {
        requests.push(request);
    }
    Ok(requests)
}

fn full_backlog() -> Outcome {
    let listener = with_backlog(2)?;
    // The kernel drops what finds no room and tells nobody. Those clients ask again after some
    // seconds, unseen by us.
    let mut clients = ask(&listener, 10, SECOND)?;
    let requests = waiting(&listener)?;
    ensure_eq!(requests.len(), 2, "requests that found room");
    for request in requests {
        let (server, _queues) = accept(request)?;
        let peer = Some(server.peer_addr());
        let place = clients.iter().position(|(c, _)| c.local_addr() == peer);
        let (client, _client_queues) = clients.swap_remove(place.ok_or("a stranger")?);
        client.wait_established(soon())?;
        server.wait_established(soon())?;
    }
    if harness::full() {
        // With patience they need do nothing.
        while !clients.is_empty() {
            let (server, _queues) = accept(listener.next_request(Deadline::after(3 * WAIT))?)?;
            let peer = Some(server.peer_addr());
            let place = clients.iter().position(|(c, _)| c.local_addr() == peer);
            let (client, _client_queues) = clients.swap_remove(place.ok_or("a stranger")?);
            client.wait_established(soon())?;
        }
    }
    // Or they ask anew.
    dropped_quickly("clients that found no room", clients)?;
    for _ in 0..8 {
        serves(&listener)?;
    }
    Ok(())
}

const MAX_BACKLOG: &str = "/proc/sys/net/rdma_ucm/max_backlog";

/// The system's maximum, changed until this is dropped.
struct MaxBacklog(String);

impl MaxBacklog {
    fn set(value: usize) -> Result<Self, Failed> {
        let before = Self(std::fs::read_to_string(MAX_BACKLOG)?);
        std::fs::write(MAX_BACKLOG, value.to_string())?;
        Ok(before)
    }
}

impl Drop for MaxBacklog {
    fn drop(&mut self) {
        let _ = std::fs::write(MAX_BACKLOG, &self.0);
    }
}

fn largest_backlog() -> Outcome {
    let _maximum = MaxBacklog::set(3)?;
    for backlog in [0, 4, 4096, u16::MAX] {
        let listener = with_backlog(backlog)?;
        let _clients = ask(&listener, 5, SECOND / 3)?;
        let requests = waiting(&listener)?.len();
        ensure_eq!(requests, 3, "waiting with a backlog of {backlog}");
    }
    Ok(())
}
