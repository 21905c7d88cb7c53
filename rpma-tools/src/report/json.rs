//! The report for programs: one document, units in the names of its keys, `null` for what is
//! undefined.

use serde::Serialize;

use crate::failure::{Exit, Failure};
use crate::measure::Summary;
use crate::ping::{
    ClientOutcome, Defect, Fault, Faults, LoopbackOutcome, OperationSet, ServerOutcome,
    SessionOutcome, Tally, Times,
};

/// Grows when a key changes its meaning or goes.
const SCHEMA: u32 = 1;

#[derive(Serialize)]
struct Document<'a> {
    tool: &'static str,
    version: &'static str,
    schema: u32,
    role: &'static str,
    exit_code: u8,
    client: Option<Client<'a>>,
    server: Option<Server<'a>>,
}

#[derive(Serialize)]
struct Client<'a> {
    peer: &'a str,
    device: Option<&'a str>,
    operations: Vec<&'static str>,
    size_bytes: usize,
    count: Option<u64>,
    interval_ns: u128,
    deadline_ns: u128,
    rounds: Rounds,
    elapsed_ns: u128,
    interrupted: bool,
    times: AllTimes,
    faults: FaultList,
    error: Option<ErrorText<'a>>,
}

#[derive(Serialize)]
struct Server<'a> {
    listening: Vec<ListeningAt<'a>>,
    clients_served: u64,
    clients_failed: u64,
    clients_refused: u64,
    rounds: Rounds,
    session: Option<Session<'a>>,
    error: Option<ErrorText<'a>>,
}

#[derive(Serialize)]
struct ListeningAt<'a> {
    address: String,
    device: &'a str,
}

#[derive(Serialize)]
struct Session<'a> {
    peer: String,
    operations: Vec<&'static str>,
    size_bytes: u64,
    count: Option<u64>,
    rounds: Rounds,
    faults: FaultList,
    error: Option<ErrorText<'a>>,
}

#[derive(Serialize)]
struct Rounds {
    sent: u64,
    received: u64,
    lost: u64,
    wrong: u64,
}

#[derive(Serialize)]
struct AllTimes {
    send: Option<Time>,
    write: Option<Time>,
    read: Option<Time>,
    flush: Option<Time>,
    round: Time,
}

#[derive(Serialize)]
struct Time {
    samples: u64,
    min_ns: Option<u64>,
    avg_ns: Option<f64>,
    max_ns: Option<u64>,
    deviation_ns: Option<f64>,
}

#[derive(Serialize)]
struct FaultList {
    total: u64,
    first: Vec<FaultEntry>,
}

#[derive(Serialize)]
struct FaultEntry {
    side: &'static str,
    operation: &'static str,
    sequence: u64,
    kind: &'static str,
    offset_bytes: Option<u64>,
    expected_byte: Option<u8>,
    found_byte: Option<u8>,
    wrong_bytes: Option<u64>,
    expected_length_bytes: Option<u64>,
    found_length_bytes: Option<u64>,
}

#[derive(Serialize)]
struct ErrorText<'a> {
    message: &'a str,
    hint: Option<&'a str>,
}

impl From<&Tally> for Rounds {
    fn from(tally: &Tally) -> Self {
        let Tally {
            sent,
            received,
            wrong,
        } = *tally;
        Self {
            sent,
            received,
            lost: tally.lost(),
            wrong,
        }
    }
}

impl From<&Summary> for Time {
    fn from(summary: &Summary) -> Self {
        Self {
            samples: summary.samples(),
            min_ns: summary.min_ns(),
            avg_ns: summary.mean_ns(),
            max_ns: summary.max_ns(),
            deviation_ns: summary.deviation_ns(),
        }
    }
}

impl AllTimes {
    fn new(times: &Times, operations: OperationSet) -> Self {
        use crate::ping::Operation;
        let time = |operation| {
            operations
                .contains(operation)
                .then(|| Time::from(times.operation(operation)))
        };
        Self {
            send: time(Operation::Send),
            write: time(Operation::Write),
            read: time(Operation::Read),
            flush: time(Operation::Flush),
            round: Time::from(times.round()),
        }
    }
}

impl From<&Faults> for FaultList {
    fn from(faults: &Faults) -> Self {
        Self {
            total: faults.total(),
            first: faults.first().iter().map(FaultEntry::from).collect(),
        }
    }
}

impl From<&Fault> for FaultEntry {
    fn from(fault: &Fault) -> Self {
        let mut entry = Self {
            side: fault.side.name(),
            operation: fault.operation.name(),
            sequence: fault.sequence,
            kind: "wrong_byte",
            offset_bytes: None,
            expected_byte: None,
            found_byte: None,
            wrong_bytes: None,
            expected_length_bytes: None,
            found_length_bytes: None,
        };
        match fault.defect {
            Defect::WrongByte {
                offset,
                expected,
                found,
                wrong,
            } => {
                entry.offset_bytes = Some(offset);
                entry.expected_byte = Some(expected);
                entry.found_byte = Some(found);
                entry.wrong_bytes = Some(wrong);
            }
            Defect::WrongLength { expected, found } => {
                entry.kind = "wrong_length";
                entry.expected_length_bytes = Some(expected);
                entry.found_length_bytes = Some(found);
            }
        }
        entry
    }
}

fn names(operations: OperationSet) -> Vec<&'static str> {
    operations
        .iter()
        .map(crate::ping::Operation::name)
        .collect()
}

fn error(failure: Option<&Failure>) -> Option<ErrorText<'_>> {
    failure.map(|failure| ErrorText {
        message: failure.sentence(),
        hint: failure.hint(),
    })
}

fn client(outcome: &ClientOutcome) -> Client<'_> {
    Client {
        peer: &outcome.peer,
        device: outcome.device.as_deref(),
        operations: names(outcome.operations),
        size_bytes: outcome.size,
        count: outcome.count,
        interval_ns: outcome.interval.as_nanos(),
        deadline_ns: outcome.deadline.as_nanos(),
        rounds: Rounds::from(&outcome.tally),
        elapsed_ns: outcome.elapsed.as_nanos(),
        interrupted: outcome.interrupted,
        times: AllTimes::new(&outcome.times, outcome.operations),
        faults: FaultList::from(&outcome.faults),
        error: error(outcome.failure.as_ref()),
    }
}

fn session(outcome: &SessionOutcome) -> Session<'_> {
    Session {
        peer: outcome.peer.to_string(),
        operations: names(outcome.hello.operations),
        size_bytes: outcome.hello.size,
        count: Some(outcome.hello.count).filter(|count| *count > 0),
        rounds: Rounds::from(&outcome.tally),
        faults: FaultList::from(&outcome.faults),
        error: error(outcome.failure.as_ref()),
    }
}

fn server(outcome: &ServerOutcome) -> Server<'_> {
    Server {
        listening: outcome
            .listening
            .iter()
            .map(|(address, device)| ListeningAt {
                address: address.to_string(),
                device,
            })
            .collect(),
        clients_served: outcome.clients,
        clients_failed: outcome.failed,
        clients_refused: outcome.refused,
        rounds: Rounds::from(&outcome.tally),
        session: outcome.session.as_ref().map(session),
        error: error(outcome.failure.as_ref()),
    }
}

fn document(
    role: &'static str,
    exit: Exit,
    client: Option<Client<'_>>,
    server: Option<Server<'_>>,
) -> String {
    let document = Document {
        tool: "rpma-ping",
        version: env!("CARGO_PKG_VERSION"),
        schema: SCHEMA,
        role,
        exit_code: exit.code(),
        client,
        server,
    };
    // These are structures of numbers and texts; there is no key that is no text and no value
    // that cannot be written, so the alternative is for the compiler only.
    serde_json::to_string_pretty(&document)
        .unwrap_or_else(|error| format!("{{\"error\":{:?}}}", error.to_string()))
}

/// The document of a client's run.
pub fn client_document(outcome: &ClientOutcome) -> String {
    document("client", outcome.exit(), Some(client(outcome)), None)
}

/// The document of a server's run.
pub fn server_document(outcome: &ServerOutcome) -> String {
    document("server", outcome.exit(), None, Some(server(outcome)))
}

/// The document of a run of both ends.
pub fn loopback_document(outcome: &LoopbackOutcome) -> String {
    let client = outcome.client.as_ref().map(client);
    document(
        "loopback",
        outcome.exit(),
        client,
        Some(server(&outcome.server)),
    )
}
