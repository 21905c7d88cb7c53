//! The agent's rules, held without a VM: its part that runs commands needs none.

use std::fs;
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::agent;
use super::protocol::{self, Kind, Request};
use super::testing::Scratch;

const TOKEN: &str = "right";

/// A client's end of a connection to an agent in a thread of this process.
fn connect() -> TcpStream {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (stream, _) = listener.accept().unwrap();
    // It fails where a test cuts the connection, which is that test's point.
    thread::spawn(move || drop(agent::run(stream, TOKEN)));
    client
        .set_read_timeout(Some(Duration::from_secs(30)))
        .unwrap();
    client
}

fn request(command: &[&str]) -> Request {
    Request {
        token: TOKEN.to_owned(),
        folder: "/".into(),
        environment: vec![
            ("GREETING".into(), "hello".into()),
            ("PATH".into(), "/bin:/usr/bin".into()),
        ],
        command: command.iter().map(Into::into).collect(),
    }
}

fn send(client: &mut TcpStream, kind: Kind, payload: &[u8]) {
    protocol::write_frame(client, kind, payload).unwrap();
}

/// What came until the exit code or the refusal: output, error output, and the last frame.
fn collect(client: &mut TcpStream) -> (String, String, (Kind, Vec<u8>)) {
    let (mut out, mut err) = (String::new(), String::new());
    loop {
        let (kind, payload) = protocol::read_frame(client).unwrap();
        match kind {
            Kind::Stdout => out.push_str(&String::from_utf8_lossy(&payload)),
            Kind::Stderr => err.push_str(&String::from_utf8_lossy(&payload)),
            last => return (out, err, (last, payload)),
        }
    }
}

fn exit_of(frame: &(Kind, Vec<u8>)) -> i32 {
    assert_eq!(frame.0, Kind::Exit, "{}", String::from_utf8_lossy(&frame.1));
    protocol::exit_code(&frame.1).unwrap()
}

#[test]
fn output_error_output_environment_folder_and_exit_code_pass_through() {
    let mut client = connect();
    let script = "echo $GREETING; pwd; echo wrong >&2; exit 7";
    send(
        &mut client,
        Kind::Request,
        &request(&["sh", "-c", script]).encode(),
    );
    let (out, err, last) = collect(&mut client);
    assert_eq!(
        (out.as_str(), err.as_str(), exit_of(&last)),
        ("hello\n/\n", "wrong\n", 7)
    );
}

#[test]
fn input_passes_through_with_its_end() {
    let mut client = connect();
    send(&mut client, Kind::Request, &request(&["cat"]).encode());
    send(&mut client, Kind::Stdin, b"one ");
    send(&mut client, Kind::Stdin, b"two");
    send(&mut client, Kind::Stdin, b"");
    let (out, _, last) = collect(&mut client);
    assert_eq!((out.as_str(), exit_of(&last)), ("one two", 0));
}

#[test]
fn exit_codes_are_those_of_a_shell() {
    for (command, expected) in [
        (&["sh", "-c", "kill -9 $$"][..], 137),
        (&["no-such-program"], 127),
        (&["/etc/passwd"], 126),
    ] {
        let mut client = connect();
        send(&mut client, Kind::Request, &request(command).encode());
        let (_, err, last) = collect(&mut client);
        assert_eq!(exit_of(&last), expected, "{command:?}: {err}");
        assert_eq!(
            expected == 137,
            err.is_empty(),
            "what does not start says why: {err}"
        );
    }
}

#[test]
fn a_wrong_token_and_a_malformed_request_are_refused_with_the_reason() {
    let mut stranger = request(&["true"]);
    stranger.token = "wrong".to_owned();
    for (kind, payload, reason) in [
        (Kind::Request, stranger.encode(), "token"),
        (Kind::Request, b"nonsense".to_vec(), "NUL"),
        (Kind::Stdin, b"first".to_vec(), "instead of a request"),
    ] {
        let mut client = connect();
        send(&mut client, kind, &payload);
        let (out, err, (kind, text)) = collect(&mut client);
        assert_eq!((out.as_str(), err.as_str(), kind), ("", "", Kind::Refused));
        let text = String::from_utf8_lossy(&text).into_owned();
        assert!(text.contains(reason), "{text}");
    }
}

#[test]
fn a_client_that_goes_takes_the_whole_process_group_with_it() {
    let scratch = Scratch::new("agent-group");
    let file = scratch.path("pids");
    let mut client = connect();
    let script = format!("sleep 60 & echo $! $$ > {}; wait", file.display());
    send(
        &mut client,
        Kind::Request,
        &request(&["sh", "-c", &script]).encode(),
    );
    let deadline = Instant::now() + Duration::from_secs(20);
    let pids = loop {
        let text = fs::read_to_string(&file).unwrap_or_default();
        if text.ends_with('\n') {
            break text;
        }
        assert!(Instant::now() < deadline, "the command did not start");
        thread::sleep(Duration::from_millis(5));
    };
    client.shutdown(Shutdown::Both).unwrap();
    drop(client);
    for pid in pids.split_whitespace() {
        while is_alive(pid) {
            assert!(Instant::now() < deadline, "process {pid} is still there");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn a_process_left_behind_with_the_output_open_does_not_hold_the_exit_code_up_for_ever() {
    let mut client = connect();
    let started = Instant::now();
    send(
        &mut client,
        Kind::Request,
        &request(&["sh", "-c", "sleep 20 & echo done"]).encode(),
    );
    let (out, _, last) = collect(&mut client);
    assert_eq!((out.as_str(), exit_of(&last)), ("done\n", 0));
    assert!(started.elapsed() < Duration::from_secs(15));
}

/// A zombie that nobody has collected yet is not alive.
fn is_alive(pid: &str) -> bool {
    let stat = fs::read_to_string(Path::new("/proc").join(pid).join("stat"));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}
