//! The report for programs.

use std::collections::BTreeSet;

use harness::{Child, Failed, Need, Outcome, Test, device, ensure, ensure_eq};
use serde_json::Value;

use crate::program::{LIMIT, Server, explained, refused, rpma_ping, run, silent, test};

/// Every key that a document can have, as promised to programs.
const KEYS: &str = include_str!("../../rpma-tools/tests/json-keys.txt");

pub(crate) fn tests() -> Vec<Test> {
    let device = [Need::Device];
    vec![
        test(
            "documents_have_the_promised_keys_and_numbers_that_are_numbers",
            &device,
            documents,
        ),
        test(
            "a_document_tells_the_same_as_the_exit_code_when_a_run_fails",
            &device,
            failures,
        ),
        test(
            "json_leaves_nothing_else_on_standard_output",
            &device,
            nothing_else,
        ),
    ]
}

/// The one document on standard output, checked for its form; its keys are added to `seen`.
fn document(text: &str, seen: &mut BTreeSet<String>) -> Result<Value, Failed> {
    let value: Value =
        serde_json::from_str(text).map_err(|error| format!("{error} in {text:?}"))?;
    let mut own = BTreeSet::new();
    walk(&value, "", &mut own)?;
    for key in &own {
        ensure!(
            KEYS.lines().any(|line| line == key),
            "{key} is not promised"
        );
    }
    seen.extend(own);
    Ok(value)
}

/// Collects the paths of all keys, and checks each value against the unit in its key's name.
fn walk(value: &Value, path: &str, keys: &mut BTreeSet<String>) -> Outcome {
    match value {
        Value::Object(entries) => {
            for (key, value) in entries {
                let path = if path.is_empty() {
                    key.clone()
                } else {
                    format!("{path}.{key}")
                };
                let number = ["_ns", "_bytes", "_byte"]
                    .iter()
                    .any(|end| key.ends_with(end))
                    || [
                        "schema",
                        "exit_code",
                        "sent",
                        "received",
                        "lost",
                        "wrong",
                        "samples",
                    ]
                    .contains(&&**key)
                    || key.starts_with("clients_");
                ensure!(
                    !number || value.is_number() || value.is_null(),
                    "{path} is no number: {value}"
                );
                ensure!(
                    number
                        || !value.is_number()
                        || matches!(&**key, "count" | "total" | "sequence"),
                    "{path} is a number without a unit: {value}"
                );
                walk(value, &path, keys)?;
                keys.insert(path);
            }
        }
        Value::Array(entries) => {
            for value in entries {
                walk(value, &format!("{path}[]"), keys)?;
            }
        }
        Value::Number(number) => {
            let number = number.as_f64().unwrap_or(f64::NAN);
            ensure!(number >= 0.0, "{path} is {number}");
        }
        _ => {}
    }
    Ok(())
}

fn documents() -> Outcome {
    let mut seen = BTreeSet::new();
    let ip = device().ip.to_string();
    let server = Server::start(&["--once", "--json"])?;
    let client = run(&mut server.client(&["-c", "3", "-i", "0", "-s", "4096", "--json"]))?;
    silent(&client, 0)?;
    let server = server.finish()?;
    // The line that says where it listens has gone to standard error.
    explained(&server, 0, &["rpma-ping: listening on "])?;
    for (text, end, device_at) in [
        (&client.stdout, "client", "/client/device"),
        (&server.stdout, "server", "/server/listening/0/device"),
    ] {
        let document = document(text, &mut seen)?;
        ensure_eq!(document["role"], end, "role");
        ensure_eq!(document["tool"], "rpma-ping", "tool");
        ensure_eq!(document["version"], env!("CARGO_PKG_VERSION"), "version");
        ensure_eq!(document["exit_code"], 0, "exit code");
        let used = document.pointer(device_at).and_then(Value::as_str);
        ensure_eq!(used, Some(&*device().name), "device of the {end}");
        ensure_eq!(document[end]["rounds"]["received"], 3, "rounds");
    }
    let client = document(&client.stdout, &mut seen)?;
    for operation in ["send", "write", "read", "flush", "round"] {
        let times = &client["client"]["times"][operation];
        let [least, mean, most] =
            ["min_ns", "avg_ns", "max_ns"].map(|key| times[key].as_f64().unwrap_or(-1.0));
        ensure!(
            times["samples"] == 3 && 0.0 < least && least <= mean && mean <= most,
            "{operation}: {times}"
        );
    }

    // What only a run with trouble has: a wrong byte at both ends, and errors of both.
    let mut wrong = rpma_ping();
    wrong.args(["--loopback", &ip, "-c", "2", "-i", "0", "--json"]);
    let wrong = run(wrong.env("RPMA_PING_TEST_FLIP", "client:write:5@1"))?;
    explained(&wrong, 1, &["wrong byte"])?;
    let wrong = document(&wrong.stdout, &mut seen)?;
    ensure_eq!(wrong["role"], "loopback", "role");
    for faults in [
        &wrong["client"]["faults"],
        &wrong["server"]["session"]["faults"],
    ] {
        ensure_eq!(faults["total"], 1, "{faults}");
        let first = &faults["first"][0];
        ensure_eq!(first["offset_bytes"], 5, "{first}");
        ensure_eq!(first["sequence"], 1, "{first}");
        ensure_eq!(first["operation"], "write", "{first}");
        ensure_eq!(first["side"], "server", "{first}");
    }
    let server = Server::start(&["--once", "--json"])?;
    let client = Child::start(&mut server.client(&["-i", "0"]))?;
    // The client has begun when its first line is out.
    client.wait_line("bytes by ", LIMIT)?;
    client.signal(libc::SIGKILL)?;
    let server = server.finish()?;
    explained(&server, 1, &[])?;
    document(&server.stdout, &mut seen)?;
    let nobody = run(rpma_ping().args([&ip, "-p", "9", "-W", "0", "--json"]))?;
    explained(&nobody, 1, &["no listener"])?;
    document(&nobody.stdout, &mut seen)?;
    let no_device = run(rpma_ping().args(["server", "127.0.0.1", "--json"]))?;
    explained(&no_device, 1, &[])?;
    document(&no_device.stdout, &mut seen)?;

    let missing: Vec<_> = KEYS.lines().filter(|key| !seen.contains(*key)).collect();
    ensure!(missing.is_empty(), "promised and never seen: {missing:?}");
    Ok(())
}

fn failures() -> Outcome {
    let ip = device().ip.to_string();
    let mut seen = BTreeSet::new();
    let nobody = run(rpma_ping().args([&ip, "-p", "9", "-W", "0", "--json"]))?;
    explained(&nobody, 1, &["no listener"])?;
    let nobody_document = document(&nobody.stdout, &mut seen)?;
    ensure_eq!(nobody_document["exit_code"], 1, "exit code");
    let message = nobody_document["client"]["error"]["message"]
        .as_str()
        .unwrap_or_default();
    ensure!(
        nobody
            .stderr
            .starts_with(&format!("rpma-ping: {message}\n"))
            && !message.is_empty(),
        "{message:?} and {:?} differ",
        nobody.stderr
    );
    // A usage error is found before there is anything to report.
    let usage = run(rpma_ping().args([&ip, "-s", "0", "--json"]))?;
    refused(&usage, 2, &["--size"])
}

fn nothing_else() -> Outcome {
    let ip = device().ip.to_string();
    let finished = run(rpma_ping().args(["--loopback", &ip, "-c", "2", "-i", "0", "--json"]))?;
    silent(&finished, 0)?;
    ensure!(
        finished.stdout.starts_with('{') && finished.stdout.ends_with('}'),
        "{}",
        finished.stdout
    );
    let document = document(&finished.stdout, &mut BTreeSet::new())?;
    for end in ["client", "server"] {
        ensure_eq!(document[end]["rounds"]["received"], 2, "{end}");
        ensure!(document[end]["error"].is_null(), "{}", document[end]);
    }
    Ok(())
}
