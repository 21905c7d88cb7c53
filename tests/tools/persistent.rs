//! A server that goes on, whatever its clients do.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use harness::{
    Baseline, Child, Failed, Need, Outcome, SECOND, Test, WAIT, ensure, ensure_eq, rounds,
};
use rpma::{ConnectionConfig, ConnectionRequest, Device, ErrorKind, Peer, PrivateData};

use crate::program::{LIMIT, Server, all_of, explained, refused, rpma_ping, run, silent, test};

pub(crate) fn tests() -> Vec<Test> {
    let device = [Need::Device];
    vec![
        test(
            "a_server_outlives_killed_foreign_and_mismatched_clients_and_keeps_nothing_of_them",
            &device,
            outlives_bad_clients,
        ),
        test(
            "a_server_for_one_client_does_not_count_those_that_it_refuses",
            &device,
            refused_do_not_count,
        ),
        test(
            "a_server_for_one_client_refuses_others_as_busy",
            &device,
            busy,
        ),
        test(
            "sixteen_clients_are_served_at_once_and_the_next_is_told_the_limit",
            &device,
            sixteen,
        )
        .limit(180),
        test(
            "an_idle_server_ends_with_success_on_either_signal",
            &device,
            signals,
        ),
        test(
            "a_server_keeps_nothing_of_many_clients_one_after_the_other",
            &device,
            many,
        )
        .limit(900)
        .long(),
    ]
}

/// What a server holds: descriptors of its own, and its memory in KiB.
fn holds(server: &Server) -> Result<(usize, u64), Failed> {
    let pid = server.child.pid();
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd"))?.count();
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let kib = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"))
        .ok_or("no VmRSS")?
        .trim()
        .parse()?;
    Ok((descriptors, kib))
}

/// Waits until a server holds no more descriptors than `before`: a session ends a moment after its
/// client.
fn back_to(server: &Server, before: usize) -> Outcome {
    let start = Instant::now();
    loop {
        let (now, _) = holds(server)?;
        if now == before {
            return Ok(());
        }
        ensure!(
            start.elapsed() < 5 * SECOND,
            "descriptors of the server: {before} before its clients, {now} after them"
        );
        thread::sleep(Duration::from_millis(20));
    }
}

/// Connects as another program would, with `hello` as private data; gives the answer.
fn foreign_client(server: &Server, hello: &[u8]) -> Result<rpma::Error, Failed> {
    let addr = server.addr()?;
    let peer = Peer::new(&Device::remote(addr, WAIT)?)?;
    let request = ConnectionRequest::new(&peer, addr, &ConnectionConfig::default())?;
    let connection = request.connect(PrivateData::new(hello)?)?;
    match connection.wait_established(WAIT) {
        Ok(()) => Err("the server accepts a client that speaks another language".into()),
        Err(error) => Ok(error),
    }
}

fn mismatched_client(server: &Server, version: &str) -> Outcome {
    let mut client = server.client(&["-c", "1"]);
    let client = run(client.env("RPMA_PING_TEST_VERSION", version))?;
    let told = format!("rpma-ping: the server at {} refused: ", server.target);
    refused(&client, 1, &[&told, "version", version])
}

fn outlives_bad_clients() -> Outcome {
    let server = Server::start(&[])?;
    // The first client lets the libraries of the server open what they keep open for good.
    silent(&run(&mut server.client(&["-c", "2", "-i", "0"]))?, 0)?;
    server.child.wait_line(": ended, 2 received", LIMIT)?;
    let (baseline, (descriptors, _)) = (Baseline::take()?, holds(&server)?);

    let killed = Child::start(rpma_ping().args([&server.target, "-i", "0"]))?;
    killed.wait_line("seq=3 ", LIMIT)?;
    killed.signal(libc::SIGKILL)?;
    ensure_eq!(killed.finish(LIMIT)?.code(), -libc::SIGKILL, "code");
    mismatched_client(&server, "99")?;
    mismatched_client(&server, "0")?;
    for hello in [&b""[..], b"GET / HTTP/1.1", &[0xff; 56]] {
        let error = foreign_client(&server, hello)?;
        ensure_eq!(error.kind(), ErrorKind::Rejected, "{error}");
    }
    silent(&run(&mut server.client(&["-c", "3", "-i", "0"]))?, 0)?;

    back_to(&server, descriptors)?;
    baseline.check()?;
    let server = server.stop()?;
    explained(
        &server,
        0,
        &[
            "rpma-ping: refused ",
            "version 99",
            "version 0",
            "did not speak rpma-ping's protocol",
            "(round ",
        ],
    )?;
    ensure!(
        server
            .stdout
            .contains(": 3 clients served, 1 of them with trouble, 5 refused;"),
        "{}",
        all_of(&server)
    );
    Ok(())
}

fn refused_do_not_count() -> Outcome {
    let server = Server::start(&["--once"])?;
    mismatched_client(&server, "2")?;
    ensure_eq!(
        foreign_client(&server, b"hello")?.kind(),
        ErrorKind::Rejected,
        "kind"
    );
    silent(&run(&mut server.client(&["-c", "2", "-i", "0"]))?, 0)?;
    let server = server.finish()?;
    explained(&server, 0, &["rpma-ping: refused "])?;
    ensure!(
        server
            .stdout
            .contains(": 1 clients served, 0 of them with trouble, 2 refused;"),
        "{}",
        all_of(&server)
    );
    Ok(())
}

fn busy() -> Outcome {
    let server = Server::start(&["--once"])?;
    let first = Child::start(rpma_ping().args([&server.target, "-i", "0.05"]))?;
    first.wait_line("seq=1 ", LIMIT)?;
    let second = run(&mut server.client(&["-c", "1"]))?;
    refused(&second, 1, &["refused: the server already serves "])?;
    first.signal(libc::SIGINT)?;
    silent(&first.finish(LIMIT)?, 0)?;
    explained(&server.finish()?, 0, &["rpma-ping: refused "])
}

fn sixteen() -> Outcome {
    let server = Server::start(&[])?;
    let mut clients = Vec::new();
    for number in 0..16 {
        harness::phase(format!("client {number}"));
        let client = Child::start(rpma_ping().args([&server.target, "-i", "10", "-W", "60"]))?;
        client.wait_line("seq=0 ", LIMIT)?;
        clients.push(client);
    }
    harness::phase("one too many");
    let sentence = "refused: the server already serves 16 clients, which is its limit";
    refused(&run(&mut server.client(&["-c", "1"]))?, 1, &[sentence])?;
    for client in &clients {
        client.signal(libc::SIGINT)?;
    }
    for (number, client) in clients.into_iter().enumerate() {
        harness::phase(format!("end of client {number}"));
        silent(&client.finish(LIMIT)?, 0)?;
    }
    // There is room again.
    silent(&run(&mut server.client(&["-c", "1"]))?, 0)?;
    let server = server.stop()?;
    explained(&server, 0, &["rpma-ping: refused "])?;
    ensure!(
        server
            .stdout
            .contains(": 17 clients served, 0 of them with trouble, 1 refused;"),
        "{}",
        all_of(&server)
    );
    Ok(())
}

fn signals() -> Outcome {
    for signal in [libc::SIGTERM, libc::SIGINT] {
        for arguments in [&[][..], &["--once"]] {
            let server = Server::start(arguments)?;
            server.child.signal(signal)?;
            let server = server.finish()?;
            silent(&server, 0)?;
            ensure!(
                server.stdout.contains(": 0 clients served, "),
                "{}",
                all_of(&server)
            );
        }
    }
    Ok(())
}

fn many() -> Outcome {
    let server = Server::start(&["-q"])?;
    let client = || -> Outcome {
        silent(
            &run(&mut server.client(&["-c", "2", "-i", "0", "-s", "4k"]))?,
            0,
        )
    };
    for _ in 0..20 {
        client()?;
    }
    let baseline = Baseline::take()?;
    let (descriptors, memory) = holds(&server)?;
    for number in 0..rounds(20, 200) {
        harness::phase(format!("client {number}"));
        client()?;
    }
    back_to(&server, descriptors)?;
    baseline.check()?;
    let (_, after) = holds(&server)?;
    // A hundred bytes lost with each client would not be seen; a page would be, 200 times.
    ensure!(
        after <= memory + 512,
        "memory of the server: {memory} KiB after 20 clients, {after} KiB after 200 more"
    );
    silent(&server.stop()?, 0)
}
