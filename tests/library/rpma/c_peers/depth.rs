//! Peers written in C with librdmacm.

use std::process::Command;

use harness::{
    Child, Failed, Need, Outcome, Test, WAIT, c_library, c_program, completed, device, ensure,
    ensure_eq, listen, phase, test,
};
use rpma::{
    Connection, ConnectionConfig, ConnectionRequest, Device, LocalRegion, Peer, PrivateData,
    RemoteRegion, Signal, Usage,
};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test(
            "a_c_client_that_offers_255_reads_is_accepted_and_both_sides_read",
            &[Need::Device, Need::C],
            a_c_client,
        ),
        test(
            "a_c_server_that_answers_with_255_reads_is_taken_and_both_sides_read",
            &[Need::Device, Need::C],
            a_c_server,
        ),
    ]
}

const SIZE: usize = 4096;
const READS: usize = 32;

/// The memory of one end, as `depth_peer.c` makes it: 5 is ours, 7 is the C program's.
fn bytes(factor: usize) -> Vec<u8> {
    (0..SIZE)
        .map(|n| (n * factor + n / 256).to_le_bytes()[0])
        .collect()
}

/// The memory that the C program reads, and what to send to it so that it finds it.
fn own_memory(peer: &Peer) -> Result<(LocalRegion, PrivateData), Failed> {
    let memory = LocalRegion::alloc(peer, SIZE, Usage::READ_SRC)?;
    memory.store(0, &bytes(5))?;
    let descriptor = PrivateData::new(&memory.descriptor())?;
    Ok((memory, descriptor))
}

fn config() -> ConnectionConfig {
    let mut config = ConnectionConfig::default();
    config.set_sq_size(u32::try_from(READS).expect("few"));
    config
}

/// Reads the memory of the C program in many pieces at once.
fn read_all(connection: &Connection, descriptor: &[u8]) -> Outcome {
    let remote = RemoteRegion::from_descriptor(descriptor)?;
    let copy = LocalRegion::alloc(connection.peer(), SIZE, Usage::READ_DST)?;
    let piece = SIZE / READS;
    for n in 0..READS {
        let range = (n * piece) as u64..((n + 1) * piece) as u64;
        let (to, from) = (copy.span(range.clone())?, remote.span(range)?);
        connection.read(to, from, Signal::Always, n as u64)?;
    }
    for n in 0..READS as u64 {
        ensure_eq!(
            completed(connection.cq())?.op_context(),
            n,
            "order of the reads"
        );
    }
    let mut found = vec![0; SIZE];
    copy.load(0, &mut found)?;
    ensure!(
        found == bytes(7),
        "the bytes read from the C program are not its own"
    );
    Ok(())
}

/// What the connection manager was told stays within the device.
fn depths_are_within_the_device(connection: &Connection) -> Outcome {
    let limits = connection.peer().device().context().attributes();
    let params = connection.params();
    let (responder, initiator) = (params.responder_resources, params.initiator_depth);
    ensure!(
        responder > 0 && responder <= limits.max_qp_rd_atom(),
        "responder resources {responder}"
    );
    ensure!(
        initiator > 0 && initiator <= limits.max_qp_init_rd_atom(),
        "initiator depth {initiator}"
    );
    Ok(())
}

fn c_peer(role: &str, port: u16, wire: bool) -> Result<Child, Failed> {
    let mut command = Command::new(c_program("depth_peer"));
    command.args([role, &device().ip.to_string(), &port.to_string()]);
    if wire {
        command.env("LD_PRELOAD", c_library("depth"));
    }
    Child::start(&mut command)
}

fn both_read(connection: &Connection, descriptor: &[u8], peer: Child, wire: bool) -> Outcome {
    depths_are_within_the_device(connection)?;
    phase("reading from the C program");
    read_all(connection, descriptor)?;
    phase("the C program reads");
    peer.wait_line("read ok", WAIT)?;
    connection.disconnect()?;
    let finished = peer.finish(WAIT)?.success()?;
    let patched = finished.stderr.contains("offered 255");
    ensure_eq!(patched, wire, "the offer on the wire, {}", finished.stderr);
    Ok(())
}

fn a_c_client() -> Outcome {
    for wire in [false, true] {
        let (peer, endpoint) = listen()?;
        let (_memory, descriptor) = own_memory(&peer)?;
        let client = c_peer("client", endpoint.local_addr().port(), wire)?;
        let request = endpoint.next_connection_request(&config(), WAIT)?;
        let theirs = request.private_data().to_vec();
        let connection = request.connect(descriptor)?;
        connection.wait_established(WAIT)?;
        both_read(&connection, &theirs, client, wire)?;
    }
    Ok(())
}

fn a_c_server() -> Outcome {
    for wire in [false, true] {
        let peer = Peer::new(&Device::local(device().ip)?)?;
        let (_memory, descriptor) = own_memory(&peer)?;
        let server = c_peer("server", 0, wire)?;
        let line = server.wait_line("port ", WAIT)?;
        let port = line.trim_start_matches("port ").parse()?;
        let request = ConnectionRequest::new(&peer, device().addr(port), &config())?;
        let connection = request.connect(descriptor)?;
        connection.wait_established(WAIT)?;
        let theirs = connection.private_data().to_vec();
        both_read(&connection, &theirs, server, wire)?;
    }
    Ok(())
}
