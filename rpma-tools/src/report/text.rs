//! The report for eyes.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use super::Output;
use crate::failure::Failure;
use crate::measure::Summary;
use crate::ping::{
    ClientObserver, ClientOutcome, Fault, LoopbackOutcome, Operation, Round, ServerObserver,
    ServerOutcome, SessionOutcome,
};
use crate::session::{Hello, Refusal};

/// Writes what a client hears of.
#[derive(Debug)]
pub struct TextClient<'a> {
    output: &'a mut Output,
    rounds: bool,
    header: bool,
}

impl<'a> TextClient<'a> {
    /// Lines for every round unless `quiet`; nothing but faults with `json`.
    pub fn new(output: &'a mut Output, quiet: bool, json: bool) -> Self {
        Self {
            output,
            rounds: !quiet && !json,
            header: !json,
        }
    }
}

impl ClientObserver for TextClient<'_> {
    fn connected(&mut self, outcome: &ClientOutcome) {
        if self.header {
            self.output.line(format_args!(
                "rpma-ping {} (device {}): {} bytes by {} in every round",
                outcome.peer,
                outcome.device.as_deref().unwrap_or("-"),
                outcome.size,
                outcome.operations,
            ));
        }
    }

    fn round(&mut self, round: &Round) {
        if self.rounds {
            self.output.line(round_line(round));
        }
    }

    fn fault(&mut self, fault: &Fault) {
        self.output.error_line(fault);
    }
}

fn round_line(round: &Round) -> String {
    let mut line = format!("{} bytes: seq={}", round.size, round.sequence);
    for operation in Operation::ALL {
        if let Some(time) = round.time(operation) {
            let _ = write!(line, " {operation}={} us", micros(time));
        }
    }
    if round.wrong {
        line.push_str(" WRONG");
    }
    line
}

fn micros(time: Duration) -> String {
    format!("{:.3}", time.as_nanos() as f64 / 1000.0)
}

/// The lines at the end of a client's run.
pub fn client_summary(outcome: &ClientOutcome) -> String {
    let tally = &outcome.tally;
    let mut text = format!(
        "--- rpma-ping {}: {} sent, {} received, {} lost, {} wrong in {:.3} s{} ---\n",
        outcome.peer,
        tally.sent,
        tally.received,
        tally.lost(),
        tally.wrong,
        outcome.elapsed.as_secs_f64(),
        if outcome.interrupted {
            " (interrupted)"
        } else {
            ""
        },
    );
    if tally.received > 0 {
        let _ = writeln!(
            text,
            "{:<8} {:>12} {:>12} {:>12} {:>12} {:>12}",
            "time", "samples", "min us", "avg us", "max us", "dev us"
        );
        for operation in outcome.operations.iter() {
            summary_line(
                &mut text,
                operation.name(),
                outcome.times.operation(operation),
            );
        }
        summary_line(&mut text, "round", outcome.times.round());
    }
    text
}

fn summary_line(text: &mut String, name: &str, summary: &Summary) {
    let us =
        |ns: Option<f64>| ns.map_or_else(|| "-".to_owned(), |ns| format!("{:.3}", ns / 1000.0));
    let _ = writeln!(
        text,
        "{:<8} {:>12} {:>12} {:>12} {:>12} {:>12}",
        name,
        summary.samples(),
        us(summary.min_ns().map(|ns| ns as f64)),
        us(summary.mean_ns()),
        us(summary.max_ns().map(|ns| ns as f64)),
        us(summary.deviation_ns()),
    );
}

/// The lines at the end of a run of both ends.
pub fn loopback_summary(outcome: &LoopbackOutcome) -> String {
    outcome
        .client
        .as_ref()
        .map(client_summary)
        .unwrap_or_default()
}

/// Writes what a server hears of.
#[derive(Debug)]
pub struct TextServer<'a> {
    output: &'a mut Output,
    clients: bool,
    json: bool,
}

impl<'a> TextServer<'a> {
    /// Lines for every client unless `quiet`. With `json` standard output is kept for the
    /// document, and the line that tells where the server listens goes to standard error.
    pub fn new(output: &'a mut Output, quiet: bool, json: bool) -> Self {
        Self {
            output,
            clients: !quiet && !json,
            json,
        }
    }
}

impl ServerObserver for TextServer<'_> {
    fn listening(&mut self, address: SocketAddr, device: &str) {
        if self.json {
            self.output
                .error_line(format_args!("listening on {address} (device {device})"));
        } else {
            self.output.line(format_args!(
                "rpma-ping: listening on {address} (device {device})"
            ));
        }
    }

    fn accepted(&mut self, client: SocketAddr, hello: &Hello) {
        if self.clients {
            let count = match hello.count {
                0 => "rounds until it stops".to_owned(),
                count => format!("{count} rounds"),
            };
            self.output.line(format_args!(
                "client {client}: {count} of {} bytes by {}",
                hello.size, hello.operations
            ));
        }
    }

    fn refused(&mut self, client: SocketAddr, refusal: &Refusal) {
        self.output
            .failure(&Failure::failed(format!("refused {client}: {refusal}")));
    }

    fn fault(&mut self, client: SocketAddr, fault: &Fault) {
        self.output
            .error_line(format_args!("client {client}: {fault}"));
    }

    fn ended(&mut self, session: &SessionOutcome) {
        if let Some(failure) = &session.failure {
            self.output.failure(failure);
        }
        if self.clients {
            let tally = &session.tally;
            self.output.line(format_args!(
                "client {}: ended, {} received, {} lost, {} wrong",
                session.peer,
                tally.received,
                tally.lost(),
                tally.wrong
            ));
        }
    }

    fn trouble(&mut self, failure: &Failure) {
        self.output.failure(failure);
    }
}

/// The line at the end of a server's run; nothing when it never listened.
pub fn server_summary(outcome: &ServerOutcome) -> String {
    if outcome.listening.is_empty() {
        return String::new();
    }
    let addresses: Vec<_> = outcome
        .listening
        .iter()
        .map(|(address, _)| address.to_string())
        .collect();
    let tally = &outcome.tally;
    format!(
        "--- rpma-ping server {}: {} clients served, {} of them with trouble, {} refused; \
         {} rounds received, {} lost, {} wrong ---\n",
        addresses.join(", "),
        outcome.clients,
        outcome.failed,
        outcome.refused,
        tally.received,
        tally.lost(),
        tally.wrong
    )
}
