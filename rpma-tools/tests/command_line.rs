//! The command line: what is taken, what is refused, and in which words.

use std::time::Duration;

use rpma_tools::cli::ping::{ClientOptions, Command, Refused, ServerOptions, command, parse};
use rpma_tools::failure::Exit;
use rpma_tools::ping::{Hooks, OperationSet};

fn read(line: &str) -> Result<Command, Refused> {
    let words = line.split(' ').filter(|word| !word.is_empty());
    parse(std::iter::once("rpma-ping").chain(words), Hooks::default())
}

fn client(line: &str) -> ClientOptions {
    match read(line) {
        Ok(Command::Client(options)) => options,
        other => panic!("{line:?}: {other:?}"),
    }
}

fn server(line: &str) -> ServerOptions {
    match read(line) {
        Ok(Command::Server(options)) => options,
        other => panic!("{line:?}: {other:?}"),
    }
}

fn wrong(line: &str) -> String {
    match read(line) {
        Err(Refused::Wrong(failure)) => {
            assert_eq!(failure.exit(), Exit::Usage);
            failure.sentence().to_owned()
        }
        other => panic!("{line:?}: {other:?}"),
    }
}

#[test]
fn the_flags_are_consistent() {
    command().debug_assert();
}

#[test]
fn a_client_has_the_documented_defaults() {
    let options = client("192.0.2.1");
    assert_eq!(options.port, 7204);
    assert_eq!(options.count, None);
    assert_eq!(options.size, 64);
    assert_eq!(options.interval, Duration::from_secs(1));
    assert_eq!(options.wait, Duration::from_secs(10));
    assert_eq!(options.deadline, Duration::from_secs(10));
    assert_eq!(options.operations, OperationSet::ALL);
    assert!(!options.quiet && !options.json && !options.loopback);
}

#[test]
fn a_loopback_needs_no_address_and_ends_by_itself() {
    let options = client("--loopback");
    assert_eq!(
        (options.target, options.port, options.count),
        (None, 0, Some(10))
    );
    assert_eq!(options.interval, Duration::from_millis(100));
    let options = client("--loopback 192.0.2.1 -c 3 -i 1 -p 7300");
    assert!(options.target.is_some());
    assert_eq!((options.port, options.count), (7300, Some(3)));
    assert_eq!(options.interval, Duration::from_secs(1));
}

#[test]
fn every_client_flag_is_taken() {
    let options = client("[::1]:7300 -c 4k -s 1M -i 0 -W 2.5 -q --json --op write,read");
    assert_eq!(options.port, 7300);
    assert_eq!(options.count, Some(4096));
    assert_eq!(options.size, 1 << 20);
    assert_eq!(options.interval, Duration::ZERO);
    assert_eq!(options.wait, Duration::from_millis(2500));
    assert_eq!(options.operations.to_string(), "write, read");
    assert!(options.quiet && options.json);
    assert_eq!(client("::1 --wait 3").wait, Duration::from_secs(3));
    assert_eq!(client("::1 --deadline 3").wait, Duration::from_secs(3));
    assert_eq!(
        client("::1 --op send --op flush").operations.to_string(),
        "send, flush"
    );
}

#[test]
fn no_waiting_still_leaves_the_rounds_a_deadline() {
    let options = client("::1 -W 0");
    assert_eq!(
        (options.wait, options.deadline),
        (Duration::ZERO, Duration::from_secs(10))
    );
}

#[test]
fn a_server_takes_its_flags() {
    let options = server("server");
    assert_eq!(
        (options.target, options.port, options.once),
        (None, 7204, false)
    );
    let options = server("server 192.0.2.1:0 --once -q --json");
    assert_eq!(options.port, 0);
    assert!(options.once && options.quiet && options.json);
    assert_eq!(server("server -p 65535 ::1").port, 65535);
}

#[test]
fn a_port_is_given_once() {
    assert_eq!(client("192.0.2.1:7300 -p 7300").port, 7300);
    let sentence = wrong("192.0.2.1:7300 -p 7301");
    assert!(
        sentence.contains("7300") && sentence.contains("7301"),
        "{sentence}"
    );
    assert!(wrong("server 192.0.2.1:7300 -p 1").contains("7300"));
    wrong("192.0.2.1:0");
}

#[test]
fn a_bad_number_names_option_value_and_range() {
    for (option, name, range) in [
        ("-p", "--port", "1 to 65535"),
        ("-c", "--count", "1 to 18446744073709551615"),
        ("-s", "--size", "1 to 67108864"),
        ("-i", "--interval", "0 to 3600"),
        ("-W", "--deadline", "0 to 3600"),
    ] {
        for value in [
            "-1",
            "1e3",
            "8x",
            "0x10",
            "1000000000000000000000000000000",
            "+1",
            "k",
        ] {
            let sentence = wrong(&format!("192.0.2.1 {option} {value}"));
            for part in [name, value, range] {
                assert!(sentence.contains(part), "{option} {value}: {sentence}");
            }
        }
        for value in ["", " 8", "8 "] {
            let line = ["rpma-ping", "192.0.2.1", option, value];
            let Err(Refused::Wrong(failure)) = parse(line, Hooks::default()) else {
                panic!("{option} {value:?} was taken");
            };
            assert!(failure.sentence().contains(name), "{failure}");
        }
    }
}

#[test]
fn the_ends_of_every_range_are_taken_and_their_neighbours_are_not() {
    for (good, bad) in [
        ("-p 1", "-p 0"),
        ("-p 65535", "-p 65536"),
        ("-c 1", "-c 0"),
        ("-c 18446744073709551615", "-c 18446744073709551616"),
        ("-s 1", "-s 0"),
        ("-s 64M", "-s 67108865"),
        ("-i 3600", "-i 3600.000000001"),
        ("-W 3600", "-W 3601"),
    ] {
        client(&format!("::1 {good}"));
        wrong(&format!("::1 {bad}"));
    }
    server("server -p 0");
    wrong("server -p 65536");
}

#[test]
fn what_makes_no_sense_is_a_usage_error() {
    for line in [
        "",
        "[::1",
        "::1]",
        "192.0.2.1 192.0.2.2",
        "--no-such-flag 192.0.2.1",
        "192.0.2.1 --op copy",
        "192.0.2.1 --op",
        "192.0.2.1 --once",
        "server --loopback",
        "server -c 1",
        "--loopback server",
        "-p 7300 server",
    ] {
        wrong(line);
    }
}

#[test]
fn help_and_version_are_shown_and_no_error() {
    for (line, part) in [
        ("--help", "Exit code: 0"),
        ("-h", "Exit code: 0"),
        ("server --help", "--once"),
        ("--version", "rpma-ping 0."),
    ] {
        let Err(Refused::Shown(text)) = read(line) else {
            panic!("{line}")
        };
        assert!(text.contains(part), "{text}");
    }
}
