//! `cmtime`: many connections that are made, and ended, all at once. What its columns say is compared with the example
//! of the same name, in the tests of the tools.

use harness::{
    Child, Failed, Need, Outcome, Test, WAIT, device, ensure, ensure_eq, free_rdma_port, test,
    wait_for_rdma_listener,
};
use rpma::cm::{ConnParams, ConnectionEvent, Deadline, Dispatcher, ListenOptions};

use super::{address, asks_for_the_usual, ended, needs, start};
use crate::raw::{Queues, begin, listener};

pub(crate) fn tests() -> Vec<Test> {
    let needs = [&needs("cmtime")[..], &[Need::EarlyCmtime]].concat();
    vec![
        test(
            "a_cmtime_client_is_served_by_a_dispatcher_on_all_connections",
            &needs,
            a_client,
        ),
        test(
            "a_cmtime_client_says_how_many_were_rejected",
            &needs,
            rejected,
        ),
        test(
            "a_cmtime_server_takes_client_after_client",
            &needs,
            a_server,
        ),
    ]
}

const CONNECTIONS: usize = 10;
const HEADER: &str = "step              total ms     max ms     min us  us / conn";

fn client(port: u16) -> Result<Child, Failed> {
    let (ip, port) = (address(), port.to_string());
    let connections = CONNECTIONS.to_string();
    start("cmtime", &["-s", &ip, "-p", &port, "-c", &connections])
}

fn a_client() -> Outcome {
    let deadline = Deadline::after(WAIT);
    let dispatcher = Dispatcher::new()?;
    let listener = dispatcher.listen(device().addr(0), &ListenOptions::default())?;
    let client = client(listener.local_addr().port())?;
    let mut ends = Vec::new();
    for _ in 0..CONNECTIONS {
        let request = listener.next_request(deadline)?;
        asks_for_the_usual(&request)?;
        let (queues, qp) = Queues::new(request.context())?;
        request.init_qp(&qp)?;
        ends.push((
            request.accept(qp, &ConnParams::default(), b"is not read")?,
            queues,
        ));
    }
    for (end, _) in &ends {
        end.wait_established(deadline)?;
    }
    for (end, _) in &ends {
        let event = end.next_event(deadline)?;
        ensure_eq!(event, ConnectionEvent::Disconnected, "the end");
    }
    let finished = client.finish(WAIT)?;
    ended(&finished, 0, &[HEADER])?;
    ensure!(
        !finished.stdout.contains("event: "),
        "an event that it did not expect: {}",
        finished.stdout
    );
    Ok(())
}

fn rejected() -> Outcome {
    let listener = listener()?;
    let client = client(listener.local_addr().port())?;
    for number in 0..CONNECTIONS {
        let request = listener.next_request(Deadline::after(WAIT))?;
        // Said, or left to the drop.
        if number % 2 == 0 {
            request.reject(b"busy")?;
        }
    }
    let finished = client.finish(WAIT)?;
    // For the program that is no failure.
    ended(&finished, 0, &[HEADER])?;
    let rejected = "event: RDMA_CM_EVENT_REJECTED, error: 28";
    let said = finished.stdout.lines().filter(|line| *line == rejected);
    ensure_eq!(said.count(), CONNECTIONS, "rejected connections");
    Ok(())
}

fn a_server() -> Outcome {
    let port = free_rdma_port()?;
    let server = start("cmtime", &["-b", &address(), "-p", &port.to_string()])?;
    wait_for_rdma_listener("TCP", port)?;
    let to = device().addr(port);
    for _ in 0..2 {
        let deadline = Deadline::after(WAIT);
        let ends = (0..CONNECTIONS)
            .map(|_| begin(to, &[]))
            .collect::<Result<Vec<_>, _>>()?;
        for (end, _) in &ends {
            end.wait_established(deadline)?;
        }
        for (end, _) in &ends {
            end.disconnect()?;
        }
        for (end, _) in &ends {
            let event = end.next_event(deadline)?;
            ensure_eq!(event, ConnectionEvent::Disconnected, "the end");
        }
    }
    // It serves until it is told to go, and says nothing as long as nothing is wrong.
    server.signal(libc::SIGTERM)?;
    let finished = server.finish(WAIT)?;
    ended(&finished, -libc::SIGTERM, &[])?;
    ensure_eq!(finished.stdout, "", "what it had to say");
    Ok(())
}
