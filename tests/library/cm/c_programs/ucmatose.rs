//! `ucmatose`: the server sends on all connections, the client answers with the last message it got.

use std::os::fd::AsFd;

use harness::{
    Child, Failed, Outcome, Test, WAIT, device, ensure, ensure_eq, free_rdma_port, test,
    wait_for_rdma_listener,
};
use rpma::cm::verbs::{QueuePair, RecvRequest, SendFlags, SendRequest, wait_readable};
use rpma::cm::{ConnParams, Connection, ConnectionEvent, Deadline, Listener};

use super::{FILL, address, asks_for_the_usual, ended, message, needs, start};
use crate::raw::{Queues, begin, listener, poll, resolve};

pub(crate) fn tests() -> Vec<Test> {
    let needs = needs("ucmatose");
    vec![
        test(
            "a_ucmatose_client_answers_on_every_connection",
            &needs,
            a_client,
        ),
        test(
            "a_ucmatose_client_hears_that_it_is_rejected",
            &needs,
            rejected,
        ),
        test(
            "a_ucmatose_server_sends_and_receives_on_every_connection",
            &needs,
            a_server,
        ),
        test(
            "a_ucmatose_server_hears_that_its_acceptance_was_not_wanted",
            &needs,
            given_up,
        ),
        test(
            "messages_of_ucmatose_that_are_longer_than_a_receive_are_noticed",
            &needs,
            too_long,
        ),
    ]
}

const CONNECTIONS: usize = 3;
const MESSAGES: usize = 4;
const LEN: usize = 100;
/// What is received lies at the start of the memory of [`Queues`], message by message.
const SENT: usize = 2048;

fn program(end: &[&str], port: &str, connections: usize) -> Result<Child, Failed> {
    let (messages, len) = (MESSAGES.to_string(), LEN.to_string());
    let connections = connections.to_string();
    let how = [
        "-p",
        port,
        "-c",
        &connections,
        "-C",
        &messages,
        "-S",
        &len,
        "-f",
        "ip",
    ];
    start("ucmatose", &[end, &how].concat())
}

fn post_receives(queues: &Queues, qp: &QueuePair, len: usize) -> Outcome {
    for number in 0..MESSAGES {
        let sges = [queues.buffer.sge(number * LEN, len)];
        let mut request = RecvRequest::new(number as u64, &sges);
        // SAFETY: the buffer is registered memory to which no reference is formed.
        unsafe { qp.post_recv(&mut request) }?;
    }
    Ok(())
}

/// Sends the messages of a connection, one after the other.
fn send_all(connection: usize, (end, queues): &(Connection, Queues)) -> Outcome {
    for number in 0..MESSAGES {
        queues.buffer.store(SENT, &message(connection, number, LEN));
        let sges = [queues.buffer.sge(SENT, LEN)];
        let request = SendRequest::send(number as u64, &sges);
        // SAFETY: the buffer is registered memory to which no reference is formed.
        unsafe {
            end.qp()
                .post_send(&mut request.with_flags(SendFlags::SIGNALED))
        }?;
        poll(&queues.send_cq)?.result()?;
    }
    Ok(())
}

/// Receives all messages, each of which must be `wanted`.
fn receive_all(queues: &Queues, wanted: &[u8]) -> Outcome {
    for number in 0..MESSAGES {
        let completion = poll(&queues.recv_cq)?;
        ensure_eq!(completion.wr_id(), number as u64, "the order");
        let len = completion.result()?.byte_len();
        ensure_eq!(usize::try_from(len)?, wanted.len(), "bytes of a message");
        let got = queues.buffer.load(number * LEN, wanted.len());
        ensure_eq!(got, wanted, "message {number}");
    }
    Ok(())
}

fn accept(listener: &Listener) -> Result<(Connection, Queues), Failed> {
    let deadline = Deadline::after(WAIT);
    let request = listener.next_request(deadline)?;
    asks_for_the_usual(&request)?;
    let (queues, qp) = Queues::new(request.context())?;
    request.init_qp(&qp)?;
    post_receives(&queues, &qp, LEN)?;
    let connection = request.accept(qp, &ConnParams::default(), b"is not read")?;
    Ok((connection, queues))
}

fn ensure_ended(ends: &[(Connection, Queues)]) -> Outcome {
    for (end, _) in ends {
        let event = end.next_event(Deadline::after(WAIT))?;
        ensure_eq!(event, ConnectionEvent::Disconnected, "the end");
    }
    Ok(())
}

fn a_client() -> Outcome {
    // Also with ids that move to another channel in the middle of it all, and with a type of service.
    for more in [&[][..], &["-m", "-t", "32"]] {
        let listener = listener()?;
        let port = listener.local_addr().port().to_string();
        let ip = address();
        let client = program(&[&["-s", &ip], more].concat(), &port, CONNECTIONS)?;
        let ends = (0..CONNECTIONS)
            .map(|_| accept(&listener))
            .collect::<Result<Vec<_>, _>>()?;
        for (end, _) in &ends {
            end.wait_established(Deadline::after(WAIT))?;
        }
        for (number, end) in ends.iter().enumerate() {
            send_all(number, end)?;
        }
        for (number, (_, queues)) in ends.iter().enumerate() {
            receive_all(queues, &message(number, MESSAGES - 1, LEN))?;
        }
        for (end, _) in &ends {
            end.disconnect()?;
        }
        ensure_ended(&ends)?;
        let lines = [
            "data transfers complete",
            "test complete",
            "return status 0",
        ];
        ended(&client.finish(WAIT)?, 0, &lines)?;
    }
    Ok(())
}

fn rejected() -> Outcome {
    let listener = listener()?;
    let port = listener.local_addr().port().to_string();
    let client = program(&["-s", &address()], &port, 1)?;
    listener
        .next_request(Deadline::after(WAIT))?
        .reject(b"busy")?;
    let lines = [
        "cmatose: event: RDMA_CM_EVENT_REJECTED, error: 28",
        "return status 28",
    ];
    ended(&client.finish(WAIT)?, 28, &lines)
}

fn server(connections: usize) -> Result<(Child, std::net::SocketAddr), Failed> {
    let port = free_rdma_port()?;
    let server = program(&["-b", &address()], &port.to_string(), connections)?;
    wait_for_rdma_listener("TCP", port)?;
    Ok((server, device().addr(port)))
}

fn connect(to: std::net::SocketAddr, len: usize) -> Result<(Connection, Queues), Failed> {
    let resolved = resolve(to)?;
    let (queues, qp) = Queues::new(resolved.context())?;
    resolved.init_qp(&qp)?;
    post_receives(&queues, &qp, len)?;
    let connection = resolved.connect(qp, &ConnParams::default(), b"is not read")?;
    Ok((connection, queues))
}

fn a_server() -> Outcome {
    let (server, to) = server(CONNECTIONS)?;
    let ends = (0..CONNECTIONS)
        .map(|_| connect(to, LEN))
        .collect::<Result<Vec<_>, _>>()?;
    for (end, _) in &ends {
        let data = end.wait_established(Deadline::after(WAIT))?;
        ensure!(data.iter().all(|&byte| byte == 0), "its data: {data:?}");
    }
    for (_, queues) in &ends {
        receive_all(queues, &[FILL; LEN])?;
    }
    for (number, end) in ends.iter().enumerate() {
        send_all(number, end)?;
    }
    ensure_ended(&ends)?;
    let lines = ["data transfers complete", "disconnected", "return status 0"];
    ended(&server.finish(WAIT)?, 0, &lines)
}

fn given_up() -> Outcome {
    let (server, to) = server(1)?;
    let (end, _queues) = begin(to, &[])?;
    // The acceptance is there, and is never taken.
    let [there] = wait_readable([end.as_fd()], Deadline::after(WAIT))?;
    ensure!(there, "no answer came");
    drop(end);
    let lines = [
        "cmatose: event: RDMA_CM_EVENT_REJECTED, error: 28",
        "return status 28",
    ];
    ended(&server.finish(WAIT)?, 28, &lines)
}

fn too_long() -> Outcome {
    let (server, to) = server(1)?;
    let (end, queues) = connect(to, LEN - 1)?;
    end.wait_established(Deadline::after(WAIT))?;
    let failed = receive_all(&queues, &[FILL; LEN]);
    ensure!(failed.is_err(), "a message fits into less than its length");
    drop(end);
    // It counts completions and looks at none.
    ended(&server.finish(WAIT)?, 0, &["data transfers complete"])
}
