//! Both reports, from fixed numbers.

use std::cell::RefCell;
use std::io::{self, Write};
use std::rc::Rc;
use std::time::Duration;

use rpma_tools::failure::Failure;
use rpma_tools::ping::{
    ClientObserver, ClientOutcome, Defect, Fault, Faults, LoopbackOutcome, Operation, OperationSet,
    Round, ServerObserver, ServerOutcome, SessionOutcome, Side, Tally, Times,
};
use rpma_tools::report::{
    Output, TextClient, TextServer, client_document, client_summary, loopback_document,
    server_document, server_summary,
};
use rpma_tools::session::{Hello, Refusal, RefusalReason};
use rpma_tools::stop::Stop;
use serde_json::Value;

const JSON_KEYS: &str = include_str!("json-keys.txt");

fn fault() -> Fault {
    Fault {
        side: Side::Server,
        operation: Operation::Write,
        sequence: 1,
        defect: Defect::WrongByte {
            offset: 17,
            expected: 10,
            found: 245,
            wrong: 1,
        },
    }
}

fn round(sequence: u64, micros: [u64; 4]) -> Round {
    let mut round = Round::new(sequence, 4096);
    for (operation, micros) in Operation::ALL.into_iter().zip(micros) {
        round.set_time(operation, Duration::from_micros(micros));
    }
    round
}

fn client(rounds: &[Round]) -> ClientOutcome {
    let mut times = Times::default();
    rounds.iter().for_each(|round| times.record(round));
    let received = rounds.len() as u64;
    ClientOutcome {
        peer: "192.0.2.1:7204".to_owned(),
        device: Some("rxe0".to_owned()),
        size: 4096,
        count: Some(received),
        interval: Duration::from_secs(1),
        deadline: Duration::from_secs(10),
        operations: OperationSet::ALL,
        tally: Tally {
            sent: received,
            received,
            wrong: 0,
        },
        times,
        elapsed: Duration::from_millis(2250),
        interrupted: false,
        faults: Faults::default(),
        failure: None,
    }
}

fn two_rounds() -> [Round; 2] {
    [round(0, [10, 20, 30, 40]), round(1, [20, 20, 40, 80])]
}

fn session() -> SessionOutcome {
    SessionOutcome {
        peer: "192.0.2.2:40000".parse().unwrap(),
        hello: Hello {
            operations: OperationSet::of(Operation::Send),
            size: 64,
            count: 0,
            interval_ms: 1000,
            deadline_ms: 10_000,
        },
        tally: Tally {
            sent: 5,
            received: 5,
            wrong: 0,
        },
        faults: Faults::default(),
        failure: None,
    }
}

fn server() -> ServerOutcome {
    ServerOutcome {
        listening: vec![("192.0.2.1:7204".parse().unwrap(), "rxe0".to_owned())],
        clients: 1,
        refused: 2,
        failed: 0,
        tally: session().tally,
        session: Some(session()),
        failure: None,
    }
}

#[derive(Clone, Default)]
struct Shared(Rc<RefCell<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Shared {
    fn text(&self) -> String {
        String::from_utf8(self.0.borrow().clone()).unwrap()
    }
}

/// What `run` writes to standard output and to standard error.
fn written(run: impl FnOnce(&mut Output)) -> (String, String) {
    let (out, err) = (Shared::default(), Shared::default());
    run(&mut Output::new(
        Box::new(out.clone()),
        Box::new(err.clone()),
        Stop::default(),
    ));
    (out.text(), err.text())
}

#[test]
fn the_summary_of_a_client_has_a_row_for_every_operation() {
    let expected = "\
--- rpma-ping 192.0.2.1:7204: 2 sent, 2 received, 0 lost, 0 wrong in 2.250 s ---
time          samples       min us       avg us       max us       dev us
send                2       10.000       15.000       20.000        7.071
write               2       20.000       20.000       20.000        0.000
read                2       30.000       35.000       40.000        7.071
flush               2       40.000       60.000       80.000       28.284
round               2      100.000      130.000      160.000       42.426
";
    assert_eq!(client_summary(&client(&two_rounds())), expected);
}

#[test]
fn one_round_has_no_deviation_and_no_round_has_no_table() {
    let text = client_summary(&client(&two_rounds()[..1]));
    let send = "send                1       10.000       10.000       10.000            -\n";
    assert!(text.contains(send), "{text}");
    let none = ClientOutcome {
        interrupted: true,
        ..client(&[])
    };
    assert_eq!(
        client_summary(&none),
        "--- rpma-ping 192.0.2.1:7204: 0 sent, 0 received, 0 lost, 0 wrong in 2.250 s (interrupted) ---\n"
    );
}

#[test]
fn a_client_prints_a_line_per_round_and_faults_as_errors() {
    let [first, mut second] = two_rounds();
    second.wrong = true;
    let run = |quiet, json| {
        written(|output| {
            let mut text = TextClient::new(output, quiet, json);
            text.connected(&client(&[]));
            text.round(&first);
            text.fault(&fault());
            text.round(&second);
        })
    };
    let header = "rpma-ping 192.0.2.1:7204 (device rxe0): 4096 bytes by send, write, read, flush in every round\n";
    let rounds = "\
4096 bytes: seq=0 send=10.000 us write=20.000 us read=30.000 us flush=40.000 us
4096 bytes: seq=1 send=20.000 us write=20.000 us read=40.000 us flush=80.000 us WRONG
";
    let error = "rpma-ping: wrong byte: operation write, sequence 1, offset 17: expected 0x0a, found 0xf5 (seen by the server)\n";
    assert_eq!(
        run(false, false),
        (format!("{header}{rounds}"), error.to_owned())
    );
    assert_eq!(run(true, false), (header.to_owned(), error.to_owned()));
    assert_eq!(run(false, true), (String::new(), error.to_owned()));
}

#[test]
fn a_server_prints_where_it_listens_and_what_becomes_of_its_clients() {
    let client = "192.0.2.2:40000".parse().unwrap();
    let failed = SessionOutcome {
        failure: Some(Failure::failed("it is gone")),
        ..session()
    };
    let refusal = Refusal {
        reason: RefusalReason::BUSY,
        value: 0,
        limit: 16,
    };
    let run = |quiet, json| {
        written(|output| {
            let mut text = TextServer::new(output, quiet, json);
            text.listening("192.0.2.1:7204".parse().unwrap(), "rxe0");
            text.accepted(client, &session().hello);
            text.refused(client, &refusal);
            text.fault(client, &fault());
            text.ended(&failed);
        })
    };
    let listening = "rpma-ping: listening on 192.0.2.1:7204 (device rxe0)\n";
    let clients = "\
client 192.0.2.2:40000: rounds until it stops of 64 bytes by send
client 192.0.2.2:40000: ended, 5 received, 0 lost, 0 wrong
";
    let errors = "\
rpma-ping: refused 192.0.2.2:40000: the server already serves 16 clients, which is its limit
rpma-ping: client 192.0.2.2:40000: wrong byte: operation write, sequence 1, offset 17: expected 0x0a, found 0xf5 (seen by the server)
rpma-ping: it is gone
";
    assert_eq!(
        run(false, false),
        (format!("{listening}{clients}"), errors.to_owned())
    );
    assert_eq!(run(true, false), (listening.to_owned(), errors.to_owned()));
    assert_eq!(
        run(false, true),
        (String::new(), format!("{listening}{errors}"))
    );
    assert_eq!(
        server_summary(&server()),
        "--- rpma-ping server 192.0.2.1:7204: 1 clients served, 0 of them with trouble, 2 refused; \
         5 rounds received, 0 lost, 0 wrong ---\n"
    );
    assert_eq!(server_summary(&ServerOutcome::default()), "");
}

/// The paths of all keys, `[]` for the elements of a list; a null has no keys below it.
fn keys(value: &Value, path: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(object) => {
            for (key, value) in object {
                let path = if path.is_empty() {
                    key.clone()
                } else {
                    format!("{path}.{key}")
                };
                found.push(path.clone());
                keys(value, &path, found);
            }
        }
        Value::Array(list) => list
            .iter()
            .for_each(|value| keys(value, &format!("{path}[]"), found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn parsed(document: &str) -> Value {
    serde_json::from_str(document).unwrap()
}

fn everything() -> LoopbackOutcome {
    let failure = || Some(Failure::failed("a \"quoted\"\nname").with_hint("try"));
    let mut client = ClientOutcome {
        failure: failure(),
        ..client(&two_rounds())
    };
    let mut server = ServerOutcome {
        failure: failure(),
        ..server()
    };
    client.faults.push(fault());
    if let Some(session) = &mut server.session {
        session.faults.push(fault());
        session.failure = failure();
    }
    LoopbackOutcome {
        client: Some(client),
        server,
    }
}

#[test]
fn the_keys_of_the_document_are_the_checked_in_list() {
    let mut found = Vec::new();
    keys(&parsed(&loopback_document(&everything())), "", &mut found);
    found.sort();
    let expected: Vec<&str> = JSON_KEYS.lines().collect();
    assert_eq!(found, expected);
}

#[test]
fn the_top_of_the_document_is_the_same_for_every_role() {
    let everything = everything();
    let documents = [
        client_document(everything.client.as_ref().unwrap()),
        server_document(&everything.server),
        loopback_document(&everything),
    ];
    for (document, role) in documents.iter().zip(["client", "server", "loopback"]) {
        let document = parsed(document);
        assert_eq!(document["role"], role);
        assert_eq!(document["client"].is_null(), role == "server");
        assert_eq!(document["server"].is_null(), role == "client");
        let top: Vec<&str> = JSON_KEYS.lines().filter(|key| !key.contains('.')).collect();
        let mut found: Vec<&str> = document
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        found.sort_unstable();
        assert_eq!(found, top);
    }
}

#[test]
fn what_is_undefined_is_null_and_numbers_are_numbers() {
    let none = ClientOutcome {
        operations: OperationSet::of(Operation::Send),
        device: None,
        count: None,
        ..client(&[])
    };
    let document = parsed(&client_document(&none));
    let client = &document["client"];
    assert!(client["count"].is_null() && client["device"].is_null() && client["error"].is_null());
    assert!(client["times"]["write"].is_null());
    assert_eq!(client["times"]["send"]["samples"], 0);
    for key in ["min_ns", "avg_ns", "max_ns", "deviation_ns"] {
        assert!(client["times"]["send"][key].is_null(), "{key}");
        assert!(client["times"]["round"][key].is_null(), "{key}");
    }
}

#[test]
fn the_document_has_raw_values_in_base_units() {
    let document = parsed(&loopback_document(&everything()));
    let client = &document["client"];
    assert_eq!(document["exit_code"], 1);
    assert_eq!(client["size_bytes"], 4096);
    assert_eq!(client["interval_ns"], 1_000_000_000_u64);
    assert_eq!(client["elapsed_ns"], 2_250_000_000_u64);
    assert_eq!(client["times"]["flush"]["max_ns"], 80_000);
    assert_eq!(client["times"]["send"]["avg_ns"], 15_000.0);
    assert_eq!(client["error"]["message"], "a \"quoted\" name");
    let fault = &client["faults"]["first"][0];
    assert_eq!(
        (&fault["offset_bytes"], &fault["expected_byte"]),
        (&17.into(), &10.into())
    );
    assert!(fault["expected_length_bytes"].is_null());
}
