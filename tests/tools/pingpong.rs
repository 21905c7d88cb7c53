//! The example `rc_pingpong` against the C program `ibv_rc_pingpong`, and against peers that are something else.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use harness::{Child, Failed, Finished, Need, Outcome, Test, device, ensure, ensure_eq};
use verbs::{Context, DeviceList};

use super::program::{LIMIT, local, test};

pub(crate) fn tests() -> Vec<Test> {
    let needs = [Need::Device, Need::Tool("ibv_rc_pingpong")];
    vec![
        test(
            "rc_pingpong_plays_with_a_c_server_polling_and_with_events",
            &needs,
            with_a_c_server,
        ),
        test(
            "rc_pingpong_plays_with_a_c_client_polling_and_with_events",
            &needs,
            with_a_c_client,
        ),
        test(
            "rc_pingpong_plays_with_itself_over_ipv4_and_ipv6",
            &[Need::Device],
            with_itself,
        ),
        test(
            "rc_pingpong_refuses_a_client_that_sends_something_else",
            &[Need::Device],
            garbage_from_a_client,
        ),
        test(
            "rc_pingpong_refuses_a_server_that_sends_something_else",
            &[Need::Device],
            garbage_from_a_server,
        ),
        test(
            "rc_pingpong_gives_up_at_its_deadline_whatever_it_waits_for",
            &[Need::Device],
            every_wait_ends,
        ),
        test(
            "rc_pingpong_says_why_different_sizes_do_not_work",
            &[Need::Device],
            different_sizes,
        ),
        test(
            "rc_pingpong_ends_when_its_peer_is_killed",
            &[Need::Device],
            a_killed_peer,
        ),
        test(
            "rc_pingpong_refuses_values_that_no_path_or_port_has",
            &[Need::Device],
            wrong_values,
        ),
    ]
}

/// The TCP port of a test: nobody else listens there at this moment.
fn free_port() -> Result<String, Failed> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    Ok(listener.local_addr()?.port().to_string())
}

/// The index of the GID with the address in use.
fn gid_index() -> Result<String, Failed> {
    let context: Context = DeviceList::new()?.by_name(&device().name)?.open()?;
    let choice = context.choose_gid(device().port, Some(device().ip))?;
    Ok(choice.entry.index.to_string())
}

fn ours(arguments: &[&str]) -> Command {
    let mut command = Command::new(local(env!("CARGO_BIN_EXE_rc-pingpong-under-test")));
    command.args(["-d", &device().name]).args(arguments);
    command
}

/// The C program needs to be told the GID.
fn theirs(arguments: &[&str]) -> Result<Command, Failed> {
    let mut command = Command::new("ibv_rc_pingpong");
    command.args(["-d", &device().name, "-g", &gid_index()?]);
    command.args(arguments);
    Ok(command)
}

/// Waits until something listens on a TCP port, without connecting to it: it takes one client only.
fn wait_for_listener(port: &str) -> Outcome {
    let wanted = format!(":{:04X} ", port.parse::<u16>()?);
    let end = Instant::now() + LIMIT;
    while Instant::now() < end {
        for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
            let listens = std::fs::read_to_string(table)?
                .lines()
                .any(|line| line.contains(&wanted) && line.contains(" 0A "));
            if listens {
                return Ok(());
            }
        }
        thread::sleep(Duration::from_millis(5));
    }
    Err(format!("nothing listens on port {port}").into())
}

/// Lets a client play with a server, both to their successful end.
fn play(mut server: Command, mut client: Command, port: &str) -> Result<[Finished; 2], Failed> {
    let server = Child::start(&mut server)?;
    wait_for_listener(port)?;
    let client = Child::start(&mut client)?.finish(LIMIT)?.success();
    let server = server.finish(LIMIT)?.success();
    match (server, client) {
        (Ok(server), Ok(client)) => Ok([server, client]),
        (server, client) => {
            let text = |result: Result<_, Failed>| match result {
                Ok(_) => "success".to_owned(),
                Err(failed) => failed.message().unwrap_or_default().to_owned(),
            };
            Err(format!("server: {}\nclient: {}", text(server), text(client)).into())
        }
    }
}

/// How the games differ: sizes within and beyond a packet and a page, by polling and with events.
const GAMES: [&[&str]; 4] = [
    &["-s", "1", "-n", "50"],
    &["-s", "4096", "-n", "200", "-c"],
    &["-s", "4096", "-n", "200", "-c", "-e"],
    &[
        "-s", "70000", "-n", "20", "-m", "256", "-c", "-e", "-r", "2",
    ],
];

fn says_all_was_right(ended: &Finished, game: &[&str]) -> Outcome {
    let (size, rounds): (u64, u64) = (game[1].parse()?, game[3].parse()?);
    let bytes = format!("{} bytes in", 2 * size * rounds);
    ensure!(
        ended.stdout.contains(&bytes),
        "{game:?}: no {bytes:?} in {}",
        ended.stdout
    );
    let checked = ended.stdout.contains("as it was sent");
    ensure_eq!(checked, game.contains(&"-c"), "{game:?}: checked");
    Ok(())
}

fn with_a_c_server() -> Outcome {
    for game in GAMES {
        let port = free_port()?;
        let all = [&["-p", &port], game].concat();
        let server = theirs(&all)?;
        let client = ours(&[&all[..], &["127.0.0.1"]].concat());
        let [_, client] = play(server, client, &port)?;
        says_all_was_right(&client, game)?;
    }
    Ok(())
}

fn with_a_c_client() -> Outcome {
    for game in GAMES {
        let port = free_port()?;
        let all = [&["-p", &port], game].concat();
        let server = ours(&all);
        let client = theirs(&[&all[..], &["127.0.0.1"]].concat())?;
        let [server, client] = play(server, client, &port)?;
        says_all_was_right(&server, game)?;
        ensure!(
            !client.stdout.contains("invalid data"),
            "the C client found other data: {}",
            client.stdout
        );
    }
    Ok(())
}

fn with_itself() -> Outcome {
    for host in ["127.0.0.1", "::1", "localhost"] {
        let port = free_port()?;
        let game = GAMES[2];
        let all = [&["-p", &port], game].concat();
        let client = ours(&[&all[..], &[host]].concat());
        for ended in play(ours(&all), client, &port)? {
            says_all_was_right(&ended, game)?;
        }
    }
    Ok(())
}

/// What is not an address of 52 bytes, and what the answer must say.
const GARBAGE: [(&[u8], &str); 6] = [
    (b"", "after 0 of the 52 bytes"),
    (b"0000:000011:", "after 12 of the 52 bytes"),
    (&[b'x'; 52], "not LID:QPN:PSN:GID"),
    (
        b"0000:000011:00g000:00000000000000000000ffffc0000201\0",
        "not LID:QPN:PSN:GID",
    ),
    (
        b"0000:000011:+00000:00000000000000000000ffffc0000201\0",
        "not LID:QPN:PSN:GID",
    ),
    (
        b"0000:000011:000000:00000000000000000000000000000000\0",
        "gave no GID",
    ),
];

fn refused(ended: &Finished, what: &[u8], expected: &str) -> Outcome {
    let what = what.escape_ascii();
    ensure_eq!(ended.code(), 1, "{what}: the exit code ({})", ended.stderr);
    ensure!(
        ended.stderr.contains(expected) && ended.stderr.lines().count() == 1,
        "{what}: not one sentence with {expected:?}: {}",
        ended.stderr
    );
    Ok(())
}

fn garbage_from_a_client() -> Outcome {
    for (bytes, expected) in GARBAGE {
        let port = free_port()?;
        let server = Child::start(&mut ours(&["-p", &port]))?;
        server.wait_line("listening", LIMIT)?;
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port.parse()?))?;
        stream.write_all(bytes)?;
        stream.shutdown(std::net::Shutdown::Write)?;
        refused(&server.finish(LIMIT)?, bytes, expected)?;
    }
    Ok(())
}

fn garbage_from_a_server() -> Outcome {
    for (bytes, expected) in GARBAGE {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port().to_string();
        let client = Child::start(&mut ours(&["-p", &port, "127.0.0.1"]))?;
        let (mut stream, _) = listener.accept()?;
        let mut theirs = [0; 52];
        stream.read_exact(&mut theirs)?;
        ensure_eq!(theirs[51], 0, "an address ends in a zero byte");
        stream.write_all(bytes)?;
        stream.shutdown(std::net::Shutdown::Write)?;
        refused(&client.finish(LIMIT)?, bytes, expected)?;
    }
    Ok(())
}

/// All at the same time: most of it is waiting.
fn every_wait_ends() -> Outcome {
    let waits: [fn() -> Outcome; 4] = [
        no_client_comes,
        no_address_comes,
        || no_message_comes(&[], "no completion in time"),
        || no_message_comes(&["-e"], "messages sent"),
    ];
    thread::scope(|scope| {
        let running = waits.map(|wait| scope.spawn(wait));
        running
            .into_iter()
            .try_for_each(|wait| wait.join().map_err(|_| "a wait panicked")?)
    })
}

fn no_client_comes() -> Outcome {
    let server = ours(&["--timeout", "1", "-p", &free_port()?]);
    gives_up(server, "no client came")
}

fn no_address_comes() -> Outcome {
    let port = free_port()?;
    let server = Child::start(&mut ours(&["--timeout", "5", "-p", &port]))?;
    server.wait_line("listening", LIMIT)?;
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port.parse()?))?;
    refused(&server.finish(LIMIT)?, b"silence", "0 of the 52 bytes")?;
    drop(stream);
    Ok(())
}

/// From a server that stands still.
fn no_message_comes(more: &[&str], expected: &str) -> Outcome {
    let port = free_port()?;
    let endless = ["-p", &port, "-n", "1000000000"];
    let server = Child::start(&mut ours(&endless))?;
    server.wait_line("listening", LIMIT)?;
    let all = [&endless[..], &["--timeout", "5"], more, &["127.0.0.1"]].concat();
    let client = Child::start(&mut ours(&all))?;
    server.wait_line("remote address", LIMIT)?;
    server.signal(libc::SIGSTOP)?;
    refused(&client.finish(LIMIT)?, b"standing still", expected)
}

fn gives_up(mut command: Command, expected: &str) -> Outcome {
    let started = Instant::now();
    let ended = Child::start(&mut command)?.finish(LIMIT)?;
    refused(&ended, b"nothing", expected)?;
    ensure!(
        started.elapsed() < LIMIT / 2,
        "it took {:?}",
        started.elapsed()
    );
    Ok(())
}

fn different_sizes() -> Outcome {
    let port = free_port()?;
    let server = Child::start(&mut ours(&["-p", &port, "-s", "64"]))?;
    server.wait_line("listening", LIMIT)?;
    let client = ["-p", &port, "-s", "128", "--timeout", "10", "127.0.0.1"];
    let client = Child::start(&mut ours(&client))?;
    for child in [server, client] {
        let ended = child.finish(LIMIT)?;
        refused(&ended, b"other sizes", "both ends use the same -s")?;
    }
    // Shorter ones arrive, and are found out.
    let port = free_port()?;
    let server = Child::start(&mut ours(&["-p", &port, "-s", "128"]))?;
    server.wait_line("listening", LIMIT)?;
    let client = ["-p", &port, "-s", "64", "--timeout", "4", "127.0.0.1"];
    let client = Child::start(&mut ours(&client))?;
    let ended = server.finish(LIMIT)?;
    refused(
        &ended,
        b"a shorter one",
        "a message of 64 bytes came, not of 128",
    )?;
    ensure_eq!(client.finish(LIMIT)?.code(), 1, "the client");
    Ok(())
}

fn a_killed_peer() -> Outcome {
    let port = free_port()?;
    let endless = ["-p", &port, "-n", "1000000000"];
    let server = Child::start(&mut ours(&endless))?;
    server.wait_line("listening", LIMIT)?;
    let client = [&endless[..], &["--timeout", "4", "127.0.0.1"]].concat();
    let client = Child::start(&mut ours(&client))?;
    client.wait_line("remote address", LIMIT)?;
    server.wait_line("remote address", LIMIT)?;
    server.signal(libc::SIGKILL)?;
    refused(&client.finish(LIMIT)?, b"a killed peer", "messages sent")
}

fn wrong_values() -> Outcome {
    for (arguments, code, expected) in [
        (&["-m", "1000"][..], 2, "MTU"),
        (&["-m", "4096"], 1, "MTU of 1024, less than the 4096"),
        (&["-s", "0"], 2, "0"),
        (&["-n", "0"], 2, "0"),
        (&["-i", "77"], 1, "port 77"),
        (&["-g", "250"], 1, "GID index 250"),
        (&["no host has such a name"], 1, "no host has such a name"),
    ] {
        let ended = Child::start(&mut ours(arguments))?.finish(LIMIT)?;
        ensure_eq!(ended.code(), code, "{arguments:?}: {}", ended.stderr);
        ensure!(
            ended.stderr.contains(expected),
            "{arguments:?}: no {expected:?} in {}",
            ended.stderr
        );
    }
    Ok(())
}
