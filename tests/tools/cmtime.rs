//! The example `cmtime` next to the C program of that name, with it at the other end, and with peers that do not do what
//! they should.

use std::os::fd::AsFd;
use std::process::Command;
use std::time::{Duration, Instant};

use cm::verbs::{CompletionQueue, Context, ProtectionDomain, QpType, QueuePair, wait_readable};
use cm::{
    ConnParams, ConnectOptions, Connection, Deadline, ListenOptions, Listener, Request, Resolving,
};
use harness::{
    Child, Failed, Finished, Need, Outcome, Test, WAIT, device, ensure, ensure_eq, free_rdma_port,
    wait_for_rdma_listener,
};

use super::program::{LIMIT, local, test};

pub(crate) fn tests() -> Vec<Test> {
    let needs = [Need::Device, Need::Tool("cmtime")];
    let with_c = [&needs[..], &[Need::EarlyCmtime]].concat();
    vec![
        test(
            "cmtime_serves_itself_and_the_c_program_and_prints_the_same_columns",
            &with_c,
            same_columns,
        ),
        test(
            "cmtime_measures_against_a_c_server_from_an_address_of_its_choice",
            &with_c,
            against_a_c_server,
        ),
        test(
            "cmtime_says_how_many_connections_failed_and_why",
            &[Need::Device],
            rejected,
        ),
        test(
            "cmtime_gives_up_a_peer_that_answers_no_request_or_no_end",
            &[Need::Device],
            silent_peers,
        ),
        test(
            "cmtime_serves_on_when_clients_give_up_and_counts_them",
            &[Need::Device],
            clients_that_give_up,
        ),
        test(
            "cmtime_refuses_what_it_cannot_do_in_a_sentence",
            &[Need::Device],
            wrong_values,
        ),
    ]
}

const CONNECTIONS: u32 = 5;

fn ours(arguments: &[&str]) -> Command {
    let mut command = Command::new(local(env!("CARGO_BIN_EXE_cmtime-under-test")));
    command.args(arguments);
    command
}

fn theirs(arguments: &[&str]) -> Command {
    let mut command = Command::new("cmtime");
    command.args(arguments);
    command
}

fn run(mut command: Command) -> Result<Finished, Failed> {
    Child::start(&mut command)?.finish(LIMIT)
}

/// Our server, and the port that it listens at.
fn server(arguments: &[&str]) -> Result<(Child, String), Failed> {
    let ip = device().ip.to_string();
    let all = [&["-b", &ip, "-p", "0"], arguments].concat();
    let server = Child::start(&mut ours(&all))?;
    let line = server.wait_line("listening at ", LIMIT)?;
    let port = line.rsplit(':').next().unwrap_or_default().to_owned();
    Ok((server, port))
}

/// What is printed, with every number as long as it is but without its value.
fn without_values(text: &str) -> String {
    let digits = |c: char| if c.is_ascii_digit() { '0' } else { c };
    let mut shapes = String::new();
    for line in text.lines() {
        let Some((step, numbers)) = line.split_once(": ") else {
            shapes += &format!("{line}\n");
            continue;
        };
        // Columns of eleven, in which a number stands at the right.
        let columns: Vec<_> = numbers
            .as_bytes()
            .chunks(11)
            .map(|column| {
                let column = String::from_utf8_lossy(column);
                let shape: String = column.chars().map(digits).collect();
                format!("{}{}", column.len(), shape.trim_start_matches([' ', '0']))
            })
            .collect();
        shapes += &format!("{step}: {}\n", columns.join(" "));
    }
    shapes
}

/// The table's rows: the step, and its four numbers.
fn rows(text: &str) -> Result<Vec<(String, Vec<f64>)>, Failed> {
    let rows = text.lines().filter_map(|line| line.split_once(": "));
    rows.map(|(step, numbers)| {
        let numbers: Result<Vec<f64>, _> = numbers.split_whitespace().map(str::parse).collect();
        Ok((step.trim_end().to_owned(), numbers?))
    })
    .collect()
}

/// Every step took its time, and its numbers fit each other.
fn measured(text: &str) -> Outcome {
    let rows = rows(text)?;
    ensure!(rows.len() >= 7, "rows in\n{text}");
    for (step, numbers) in rows {
        let [total, max, min, mean] = numbers[..] else {
            return Err(format!("{step}: not four numbers: {numbers:?}").into());
        };
        ensure!(total > 0.0, "{step} took no time");
        // Each number is rounded to hundredths of its unit.
        ensure!(max <= total + 0.01, "{step}: max {max} of {total} ms");
        ensure!(
            min <= max * 1e3 + 10.0,
            "{step}: min {min} us, max {max} ms"
        );
        let expected = total * 1e3 / f64::from(CONNECTIONS);
        ensure!(
            (mean - expected).abs() <= 10.0,
            "{step}: {mean} us for each of {total} ms"
        );
    }
    Ok(())
}

fn same_columns() -> Outcome {
    let ip = device().ip.to_string();
    let connections = CONNECTIONS.to_string();
    let all = (4 * CONNECTIONS).to_string();
    let (server, port) = server(&["-c", &all])?;
    let mut how = vec!["-s", &ip, "-p", &port, "-c", &connections];
    for bound in [false, true] {
        if bound {
            how.extend(["-b", &*ip]);
        }
        let our = run(ours(&how))?.success()?;
        let their = run(theirs(&how))?.success()?;
        ensure_eq!(
            without_values(&our.stdout),
            without_values(&their.stdout),
            "what is printed, bound: {bound}"
        );
        measured(&our.stdout)?;
        ensure_eq!(our.stderr, "", "standard error");
    }
    let server = server.finish(LIMIT)?.success()?;
    ensure_eq!(server.stderr, "", "standard error of the server");
    Ok(())
}

fn against_a_c_server() -> Outcome {
    let ip = device().ip.to_string();
    let port = free_rdma_port()?;
    let number = port.to_string();
    let server = Child::start(&mut theirs(&["-b", &ip, "-p", &number]))?;
    wait_for_rdma_listener("TCP", port)?;
    let connections = CONNECTIONS.to_string();
    for more in [&[][..], &["-b", &ip]] {
        let how = ["-s", &ip, "-p", &number, "-c", &connections];
        let client = run(ours(&[&how, more].concat()))?.success()?;
        measured(&client.stdout)?;
        let bound = client.stdout.contains("bind addr");
        ensure_eq!(bound, !more.is_empty(), "a row for the address");
    }
    // It serves until it is told to go, and says nothing unless something is wrong.
    server.signal(libc::SIGTERM)?;
    let server = server.finish(LIMIT)?;
    ensure_eq!(server.stdout, "", "what the server had to say");
    Ok(())
}

fn soon() -> Deadline {
    Deadline::after(WAIT)
}

fn listener() -> Result<(Listener, String), Failed> {
    let listener = Listener::bind(device().addr(0), &ListenOptions::default())?;
    let port = listener.local_addr().port().to_string();
    Ok((listener, port))
}

fn client(port: &str, more: &[&str]) -> Result<Child, Failed> {
    let ip = device().ip.to_string();
    Child::start(&mut ours(&[&["-s", &ip, "-p", port], more].concat()))
}

fn queue_pair(context: &Context) -> Result<QueuePair, Failed> {
    let pd = ProtectionDomain::new(context)?;
    let cq = CompletionQueue::builder(context, 32).build()?;
    Ok(QueuePair::builder(&pd, QpType::RC, &cq, &cq).build()?)
}

fn accept(request: Request) -> Result<Connection, Failed> {
    let qp = queue_pair(request.context())?;
    request.init_qp(&qp)?;
    Ok(request.accept(qp, &ConnParams::default(), &[])?)
}

/// The client failed, and said so in one sentence after the table.
fn failed(client: Child, sentence: &str) -> Result<Finished, Failed> {
    let client = client.finish(LIMIT)?;
    let said = format!("{}\n--- stderr\n{}", client.stdout, client.stderr);
    ensure_eq!(client.code(), 1, "the exit code; {said}");
    ensure!(
        client.stderr.contains(sentence) && client.stderr.lines().count() == 1,
        "not one sentence with {sentence:?}: {said}"
    );
    ensure_eq!(rows(&client.stdout)?.len(), 7, "rows; {said}");
    Ok(client)
}

fn rejected() -> Outcome {
    let (listener, port) = listener()?;
    let client = client(&port, &["-c", "3"])?;
    let mut accepted = Vec::new();
    for turn in 0..3 {
        let request = listener.next_request(soon())?;
        if turn == 1 {
            request.reject(b"busy")?;
        } else {
            accepted.push(accept(request)?);
        }
    }
    for end in &accepted {
        end.wait_established(soon())?;
    }
    for end in &accepted {
        end.next_event(soon())?;
    }
    let sentence = format!(
        "cmtime: 1 of 3 connections failed while connecting: {}:{port} rejected the connection: \
         event rejected (8), status rejected by the application (28)",
        device().ip
    );
    let client = failed(client, &sentence)?;
    let (_, connect) = &rows(&client.stdout)?[4];
    ensure!(connect[2] > 0.0, "the others were measured: {connect:?}");
    Ok(())
}

fn silent_peers() -> Outcome {
    let started = Instant::now();
    // No answer to a request.
    let (listener, port) = listener()?;
    let asking = client(&port, &["-c", "2", "--wait", "1"])?;
    let requests = [
        listener.next_request(soon())?,
        listener.next_request(soon())?,
    ];
    failed(
        asking,
        "2 of 2 connections failed while connecting: timed out",
    )?;
    drop(requests);
    // No answer to an end: nobody takes the event.
    let ending = client(&port, &["-c", "1", "--wait", "1"])?;
    let end = accept(listener.next_request(soon())?)?;
    end.wait_established(soon())?;
    failed(
        ending,
        "1 of 1 connections failed while disconnecting: timed out",
    )?;
    // No client, and none after the first.
    let nobody = server(&["-c", "2", "--wait", "1"])?.0.finish(LIMIT)?;
    ensure_eq!(nobody.code(), 1, "the exit code");
    ensure_eq!(
        nobody.stderr,
        "cmtime: after 0 of 2 connections nothing has come for 1 s",
        "standard error"
    );
    let took = started.elapsed();
    ensure!(took < Duration::from_secs(20), "it took {took:?}");
    Ok(())
}

/// Begins a connection to our server.
fn begin(port: &str) -> Result<Connection, Failed> {
    let addr = device().addr(port.parse()?);
    let resolved = Resolving::start(addr, &ConnectOptions::default(), soon())?.wait()?;
    let qp = queue_pair(resolved.context())?;
    resolved.init_qp(&qp)?;
    Ok(resolved.connect(qp, &ConnParams::default(), &[])?)
}

fn clients_that_give_up() -> Outcome {
    let (server, port) = server(&["-c", "3"])?;
    let connected = begin(&port)?;
    connected.wait_established(soon())?;
    // The acceptance is there, and is never taken.
    let asking = begin(&port)?;
    let [there] = wait_readable([asking.as_fd()], soon())?;
    ensure!(there, "no answer came");
    drop((asking, connected));
    let last = client(&port, &["-c", "1"])?;
    last.finish(LIMIT)?.success()?;
    let server = server.finish(LIMIT)?;
    ensure_eq!(server.code(), 1, "the exit code; {}", server.stderr);
    for sentence in ["rejected by the application", "1 of 3 connections failed"] {
        ensure!(
            server.stderr.contains(sentence),
            "no {sentence:?} in {}",
            server.stderr
        );
    }
    Ok(())
}

fn wrong_values() -> Outcome {
    let ip = device().ip.to_string();
    let nobody = free_rdma_port()?.to_string();
    for (arguments, code, expected) in [
        (&["-c", "0"][..], 2, "0"),
        (&["-p", "70000"], 2, "70000"),
        (&["-t", "0"], 2, "0"),
        (&["-b", "203.0.113.1"], 1, "203.0.113.1 is not an address"),
        (
            &["-s", &ip, "-p", &nobody, "-c", "2"],
            1,
            "2 of 2 connections failed while connecting: no listener at",
        ),
        (
            &["-s", &ip, "-b", "203.0.113.1", "-c", "2"],
            1,
            "2 of 2 connections failed while binding source address: 203.0.113.1 is not",
        ),
        (
            &["-s", "127.0.0.1", "-c", "2", "-r", "1"],
            1,
            "2 of 2 connections failed while resolving",
        ),
    ] {
        let ended = run(ours(arguments))?;
        ensure_eq!(ended.code(), code, "{arguments:?}: {}", ended.stderr);
        ensure!(
            ended.stderr.contains(expected),
            "{arguments:?}: no {expected:?} in {}",
            ended.stderr
        );
    }
    // The port of another listener.
    let (_listener, port) = listener()?;
    let ended = run(ours(&["-b", &ip, "-p", &port]))?;
    ensure_eq!(ended.code(), 1, "a port that is taken: {}", ended.stderr);
    ensure!(
        ended.stderr.contains("another listener has this port"),
        "no advice in {}",
        ended.stderr
    );
    Ok(())
}
