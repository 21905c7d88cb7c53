//! `udaddy`: the client sends datagrams with the number of its queue pair, the server answers there.

use std::net::SocketAddr;

use harness::{
    Child, Failed, Outcome, Test, WAIT, device, ensure, ensure_eq, test, wait_for_rdma_listener,
};
use rpma::cm::{
    ConnectOptions, DatagramListener, DatagramPeer, DatagramResolving, Error, ListenOptions,
};

use super::{FILL, address, ended, ensure_not_said, message, needs, start};
use crate::cm::datagrams::{End, GRH, ensure_silence, soon};
use crate::raw::poll;

pub(crate) fn tests() -> Vec<Test> {
    let needs = needs("udaddy");
    vec![
        test(
            "a_udaddy_client_asks_sends_and_is_answered",
            &needs,
            a_client,
        ),
        test("a_udaddy_client_hears_that_it_is_refused", &needs, refused),
        test(
            "a_udaddy_server_answers_datagrams_with_its_key_and_no_others",
            &needs,
            a_server,
        ),
    ]
}

/// Where it always listens.
const PORT: u16 = 7174;
const CONNECTIONS: usize = 2;
const DATAGRAMS: usize = 4;
const LEN: usize = 100;
/// The key of the port space UDP.
const KEY: u32 = 0x0123_4567;

fn program(end: &[&str], connections: usize) -> Result<Child, Failed> {
    let (datagrams, len) = (DATAGRAMS.to_string(), LEN.to_string());
    let connections = connections.to_string();
    let how = ["-c", &connections, "-C", &datagrams, "-S", &len];
    start("udaddy", &[end, &how].concat())
}

fn listener() -> Result<DatagramListener, Failed> {
    let options = ListenOptions::default();
    Ok(DatagramListener::bind(device().addr(PORT), &options)?)
}

fn a_client() -> Outcome {
    let listener = listener()?;
    let client = program(&["-s", &address()], CONNECTIONS)?;
    let mut ends = Vec::new();
    for _ in 0..CONNECTIONS {
        let request = listener.next_request(soon())?;
        let data = request.private_data();
        ensure!(data.iter().all(|&byte| byte == 0), "its data: {data:?}");
        let end = End::new(request.context())?;
        request.init_qp(&end.qp)?;
        for _ in 0..DATAGRAMS {
            end.recv()?;
        }
        request.accept(&end.qp, b"is not read")?;
        ends.push(end);
    }
    for (connection, end) in ends.iter().enumerate() {
        let mut client = None;
        for _ in 0..DATAGRAMS {
            let (completion, number) = end.expect_from(&[FILL; LEN])?;
            let imm = completion.result()?.imm();
            ensure_eq!(imm, Some(number), "the immediate data");
            client = Some((end.way_back(&completion)?, number));
        }
        let (way_back, number) = client.ok_or("no datagram")?;
        for datagram in 0..DATAGRAMS {
            let answer = message(connection, datagram, LEN);
            end.send_with_number(&way_back, number, KEY, &answer)?;
        }
    }
    let lines = [
        "data transfers complete",
        "test complete",
        "return status 0",
    ];
    ended(&client.finish(WAIT)?, 0, &lines)
}

fn refused() -> Outcome {
    let listener = listener()?;
    let client = program(&["-s", &address()], 1)?;
    listener.next_request(soon())?.reject(b"busy")?;
    let lines = [
        "udaddy: event: RDMA_CM_EVENT_UNREACHABLE, error: 2",
        "return status 2",
    ];
    ended(&client.finish(WAIT)?, 2, &lines)
}

/// Asks for the address of the server's queue pair.
fn ask(to: SocketAddr) -> Result<(End, DatagramPeer), Error> {
    let options = ConnectOptions::default();
    let resolved = DatagramResolving::start(to, &options, soon())?.wait()?;
    let end = End::new(resolved.context()).expect("a UD queue pair");
    resolved.init_qp(&end.qp)?;
    let peer = resolved.ask(b"is not read")?.wait(soon())?;
    Ok((end, peer))
}

fn a_server() -> Outcome {
    let server = program(&["-b", &address()], CONNECTIONS)?;
    wait_for_rdma_listener("UDP", PORT)?;
    let to = device().addr(PORT);
    let mut ends = Vec::new();
    for _ in 0..CONNECTIONS {
        let (end, peer) = ask(to)?;
        ensure_eq!(peer.remote.qkey, KEY, "the key");
        for _ in 0..DATAGRAMS {
            end.recv()?;
        }
        ends.push((end, peer));
    }
    let all = |connection: usize, key: u32| {
        let (end, peer) = &ends[connection];
        let handle = peer.address_handle(&end.pd)?;
        (0..DATAGRAMS).try_for_each(|number| {
            let data = message(connection, number, LEN);
            end.send_with_number(&handle, peer.remote.qp_number, key, &data)
        })
    };
    all(0, !KEY)?;
    all(1, KEY)?;
    // It waits for the datagrams of the first.
    server.wait_line("receiving data transfers", WAIT)?;
    ensure_not_said(&server, "sending replies")?;
    for (end, _) in &ends {
        ensure_silence(end)?;
    }
    all(0, KEY)?;
    for (connection, (end, peer)) in ends.iter().enumerate() {
        for _ in 0..DATAGRAMS {
            let completion = poll(&end.recv_cq)?;
            let got = completion.result()?;
            ensure_eq!(usize::try_from(got.byte_len())?, GRH + LEN, "bytes");
            ensure_eq!(got.src_qp(), peer.remote.qp_number, "the sender");
            ensure_eq!(got.imm(), Some(got.src_qp()), "the immediate data");
            // It sends the place that it received into, which begins with a header.
            let sent = message(connection, DATAGRAMS - 1, LEN);
            let received = end.received(LEN);
            ensure_eq!(received[GRH..], sent[..LEN - GRH], "the data");
        }
    }
    let lines = [
        "data transfers complete",
        "test complete",
        "return status 0",
    ];
    ended(&server.finish(WAIT)?, 0, &lines)
}
