//! Connections with peers of librpma: made with private data, refused, many at once, ended by
//! either side.

use harness::{Need, Outcome, Test, WAIT, ensure, ensure_eq, pattern, phase, test};
use rpma::{Connection, ConnectionConfig, ConnectionEvent, PrivateData, RejectReason};

use super::{Bytes, NAP, Role, Side, THEIRS, disconnect, noticed, peer, runs, wait_closed};

pub(crate) fn tests() -> Vec<Test> {
    let needs = &[Need::Device, Need::Librpma];
    vec![
        test(
            "librpma_and_we_exchange_private_data_padded_with_zeros",
            needs,
            private_data,
        ),
        test(
            "a_librpma_client_that_is_rejected_tries_again",
            needs,
            we_reject,
        ),
        test(
            "a_librpma_server_that_rejects_is_tried_again",
            needs,
            they_reject,
        ),
        test(
            "many_connections_with_librpma_keep_their_private_data_apart",
            needs,
            many_connections,
        ),
        test(
            "a_connection_with_librpma_is_ended_by_either_side",
            needs,
            either_side_ends,
        ),
    ]
}

/// As long as the C program's.
const LENGTH: usize = 40;
/// What the accepting and the connecting side see of private data.
const REQUEST_ROOM: usize = 56;
const RESPONSE_ROOM: usize = 196;

fn side(role: Role, bytes: Bytes, arguments: &[&str]) -> Result<Side, harness::Failed> {
    let arguments: Vec<String> = arguments.iter().map(|a| (*a).to_owned()).collect();
    Side::start(&peer()?, "connection", role, bytes, &arguments)
}

/// The connection number `n`, with the private data that belong to it.
fn connect(side: &Side, bytes: Bytes, n: u64) -> Result<Connection, harness::Failed> {
    let data = pattern::bytes(bytes.ours() + n, LENGTH);
    side.connect(&ConnectionConfig::default(), &data, |_| Ok(()))
}

fn room(role: Role) -> usize {
    match role {
        Role::Client => REQUEST_ROOM,
        Role::Server => RESPONSE_ROOM,
    }
}

/// What the C program has sent along: its sequence, then nothing but zeros.
fn check_data(connection: &Connection, role: Role, n: u64) -> Result<(), String> {
    let (data, room) = (connection.private_data(), room(role));
    if data.len() != room {
        return Err(format!("{} bytes of private data, not {room}", data.len()));
    }
    pattern::check(&data[..LENGTH], THEIRS + n)?;
    match data[LENGTH..].iter().all(|byte| *byte == 0) {
        true => Ok(()),
        false => Err("the padding of the private data is not zero".to_owned()),
    }
}

fn private_data() -> Outcome {
    for (role, bytes) in [
        (Role::Client, Bytes::Right),
        (Role::Server, Bytes::OursWrong),
        (Role::Server, Bytes::TheirsWrong),
    ] {
        phase("private data both ways");
        let side = side(role, bytes, &[])?;
        let connection = connect(&side, bytes, 0)?;
        let len = connection.private_data().len();
        ensure_eq!(len, room(role), "bytes of private data");
        noticed(bytes, check_data(&connection, role, 0), "private data")?;
        if bytes != Bytes::OursWrong {
            disconnect(&connection)?;
        }
        side.finish(bytes)?;
    }
    Ok(())
}

fn we_reject() -> Outcome {
    for bytes in [Bytes::Right, Bytes::OursWrong] {
        let side = side(Role::Client, bytes, &["refusals=2"])?;
        for refusal in 0..2 {
            phase("rejecting");
            let request = side.request(&ConnectionConfig::default())?;
            ensure!(
                pattern::check(&request.private_data()[..LENGTH], THEIRS).is_ok(),
                "private data of the request {refusal}"
            );
            request.reject(PrivateData::new(b"try again")?)?;
        }
        phase("accepting");
        let connection = connect(&side, bytes, 0)?;
        if bytes == Bytes::Right {
            disconnect(&connection)?;
        }
        side.finish(bytes)?;
    }
    Ok(())
}

fn they_reject() -> Outcome {
    for bytes in [Bytes::Right, Bytes::OursWrong] {
        let side = side(Role::Server, bytes, &["refusals=2"])?;
        for _ in 0..2 {
            phase("being rejected");
            let request = side.request(&ConnectionConfig::default())?;
            let refused = request.connect(PrivateData::none())?;
            match refused.next_event(WAIT)? {
                // A refusal of the program, not of the system, which says 8 for a port without listener.
                ConnectionEvent::Rejected { reason, .. } => {
                    ensure_eq!(reason, RejectReason::CONSUMER, "reason");
                }
                other => return Err(format!("{other} instead of a rejection").into()),
            }
            std::thread::sleep(NAP);
        }
        phase("being accepted");
        let connection = connect(&side, bytes, 0)?;
        if bytes == Bytes::Right {
            check_data(&connection, Role::Server, 0)?;
            disconnect(&connection)?;
        }
        side.finish(bytes)?;
    }
    Ok(())
}

fn many_connections() -> Outcome {
    const COUNT: u64 = 5;
    for (role, bytes) in runs(Bytes::OursWrong) {
        let side = side(role, bytes, &[&format!("connections={COUNT}")])?;
        let mut connections = Vec::new();
        for n in 0..COUNT {
            phase("one more connection");
            // Only the last is wrong.
            let wrong = n + 1 == COUNT && bytes == Bytes::OursWrong;
            let of_this = if wrong { bytes } else { Bytes::Right };
            let connection = connect(&side, of_this, n)?;
            check_data(&connection, role, n)?;
            connections.push(connection);
        }
        if bytes == Bytes::Right {
            side.child.wait_line("established", WAIT)?;
            for connection in &connections {
                disconnect(connection)?;
            }
        }
        side.finish(bytes)?;
    }
    Ok(())
}

fn either_side_ends() -> Outcome {
    for (role, ends) in [(Role::Client, "self"), (Role::Server, "peer")] {
        phase("the end");
        let side = side(role, Bytes::Right, &[&format!("ends={ends}")])?;
        let connection = connect(&side, Bytes::Right, 0)?;
        if ends == "self" {
            wait_closed(&connection)?;
        } else {
            connection.close()?;
        }
        side.finish(Bytes::Right)?;
    }
    phase("the end by dropping");
    let side = side(Role::Client, Bytes::Right, &["ends=peer"])?;
    let connection = connect(&side, Bytes::Right, 0)?;
    ensure!(
        connection.try_next_event()?.is_none(),
        "a connection that nobody ended has ended"
    );
    drop(connection);
    side.finish(Bytes::Right)
}
