//! The program itself: exit codes, and what it says where.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use assert_cmd::cargo::cargo_bin_cmd;

fn run(arguments: &[&str]) -> Output {
    run_with(arguments, &[])
}

fn run_with(arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = cargo_bin_cmd!("rpma-ping");
    command
        .args(arguments)
        .envs(variables.iter().copied())
        .timeout(Duration::from_secs(20));
    command.output().unwrap()
}

fn error_text(output: &Output) -> String {
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    assert!(text.starts_with("rpma-ping: "), "{text:?}");
    assert!(text.ends_with('\n') && !text.ends_with("\n\n"), "{text:?}");
    assert!(!text.contains("panicked"), "{text:?}");
    text
}

/// Runs the program where no RDMA device file is to be seen: as it is on a machine without one,
/// and behind an empty directory in a namespace of its own on a machine with one. `None` where the
/// system allows no such namespace.
fn run_without_device(arguments: &[&str]) -> Option<Output> {
    if !Path::new("/dev/infiniband").exists() {
        return Some(run(arguments));
    }
    let hide = "mount -t tmpfs none /dev/infiniband || exit 99; exec \"$0\" \"$@\"";
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", hide])
        .arg(assert_cmd::cargo::cargo_bin!("rpma-ping"))
        .args(arguments)
        .output();
    let output = output.ok().filter(|output| {
        output.status.code() != Some(99) && !output.stderr.starts_with(b"unshare: ")
    });
    if output.is_none() {
        eprintln!("not tested: the system allows no namespace to hide /dev/infiniband in");
    }
    output
}

#[test]
fn help_goes_to_standard_output_and_is_a_success() {
    for arguments in [&["--help"][..], &["server", "--help"], &["--version"]] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
        assert!(
            !output.stdout.is_empty() && output.stderr.is_empty(),
            "{arguments:?}"
        );
    }
}

#[test]
fn a_usage_error_is_exit_code_2_with_a_sentence_and_a_hint() {
    for (arguments, part) in [
        (&[][..], "no address"),
        (&["192.0.2.1", "-s", "0"], "allowed is 1 to 67108864"),
        (&["192.0.2.1", "-s", "8x"], "'8x' for '--size"),
        (&["192.0.2.1", "-p", "0"], "'0' for '--port"),
        (&["192.0.2.1", "-c", "-1"], "'-1' for '--count"),
        (&["192.0.2.1:1", "-p", "2"], "port 1"),
        (&["[::1"], "brackets"),
        (&["::1]"], "brackets"),
        (&["192.0.2.1", "--bogus"], "--bogus"),
        (
            &["192.0.2.1", "--op", "copy"],
            "send, write, read, flush and all",
        ),
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
        let text = error_text(&output);
        assert!(text.contains(part), "{arguments:?}: {text}");
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.contains("\n  hint: "), "{text}");
    }
}

#[test]
fn a_mistyped_test_variable_is_a_usage_error() {
    let output = run_with(&["192.0.2.1"], &[("RPMA_PING_TEST_FLIP", "nonsense")]);
    assert_eq!(output.status.code(), Some(2));
    assert!(error_text(&output).contains("RPMA_PING_TEST_FLIP"));
}

#[test]
fn a_machine_without_a_device_is_told_so_at_once() {
    // One second beyond what starting a program takes here: an emulated machine needs as much.
    let start = Instant::now();
    if run_without_device(&["--help"]).is_none() {
        return;
    }
    let limit = Duration::from_secs(1) + 2 * start.elapsed();
    for arguments in [
        &["192.0.2.1", "-W", "10"][..],
        &["192.0.2.1", "-W", "0"],
        &["::1"],
        &["server"],
        &["server", "192.0.2.1", "--once"],
        &["--loopback"],
        &["--loopback", "192.0.2.1"],
    ] {
        let start = Instant::now();
        let Some(output) = run_without_device(arguments) else {
            return;
        };
        let took = start.elapsed();
        assert!(took < limit, "{arguments:?}: {took:?} of {limit:?}");
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        let text = error_text(&output);
        for part in ["/dev/infiniband/rdma_cm", "errno 2", "modprobe rdma_ucm"] {
            assert!(text.contains(part), "{arguments:?}: {text}");
        }
        assert_eq!(text.lines().count(), 2, "{text}");
    }
}

#[test]
fn json_is_one_document_even_when_nothing_was_reached() {
    for (arguments, role) in [
        (&["192.0.2.1", "--json"][..], "client"),
        (&["server", "--json"], "server"),
        (&["--loopback", "--json"], "loopback"),
    ] {
        let Some(output) = run_without_device(arguments) else {
            return;
        };
        assert_eq!(output.status.code(), Some(1));
        let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(
            (&document["role"], &document["exit_code"]),
            (&role.into(), &1.into())
        );
        error_text(&output);
    }
}

#[test]
fn a_closed_standard_output_is_no_panic() {
    let program = assert_cmd::cargo::cargo_bin!("rpma-ping");
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = Command::new(program)
        .arg("--help")
        .stdout(writer)
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(
        output.stderr.is_empty(),
        "{:?}",
        String::from_utf8_lossy(&output.stderr)
    );
}
