//! Both ends in one process: the quickest check of a machine.

use std::net::SocketAddr;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use super::Fault;
use super::client::{self, ClientObserver};
use super::outcome::{ClientOutcome, ServerOutcome, SessionOutcome};
use super::server::{self, ServerObserver};
use crate::cli::ping::{ClientOptions, ServerOptions};
use crate::cli::units::format_seconds;
use crate::failure::{Exit, Failure};
use crate::session::{Hello, Refusal};
use crate::stop::{SLICE, Stop};

/// How long the server may take until it listens, where the user does not allow more.
const START: Duration = Duration::from_secs(10);

/// How long the server may take to end after the client, where the user does not allow more.
const END: Duration = Duration::from_secs(5);

/// What both ends leave behind.
#[derive(Debug, Clone, PartialEq)]
pub struct LoopbackOutcome {
    /// The client's end; `None` when the server did not get as far as listening.
    pub client: Option<ClientOutcome>,
    /// The server's end.
    pub server: ServerOutcome,
}

impl LoopbackOutcome {
    /// How the process is to end. Without a client nothing was verified, whatever the reason.
    pub fn exit(&self) -> Exit {
        let client = self
            .client
            .as_ref()
            .map_or(Exit::Failed, ClientOutcome::exit);
        client.and(self.server.exit())
    }

    /// What ended either end before its time.
    pub fn failures(&self) -> impl Iterator<Item = &Failure> {
        let client = self
            .client
            .as_ref()
            .and_then(|client| client.failure.as_ref());
        let session = self
            .server
            .session
            .as_ref()
            .and_then(|session| session.failure.as_ref());
        client
            .into_iter()
            .chain(&self.server.failure)
            .chain(session)
    }
}

/// The server's end says only where it listens; the rest is in its outcome, except for what keeps
/// it from taking the one client that there is.
struct Quiet {
    listening: Sender<SocketAddr>,
    trouble: Option<Failure>,
}

impl ServerObserver for Quiet {
    fn listening(&mut self, address: SocketAddr, _device: &str) {
        // A client that is gone already ends the server by the request to stop.
        let _ = self.listening.send(address);
    }
    fn accepted(&mut self, _client: SocketAddr, _hello: &Hello) {}
    fn refused(&mut self, _client: SocketAddr, _refusal: &Refusal) {}
    fn fault(&mut self, _client: SocketAddr, _fault: &Fault) {}
    fn ended(&mut self, _session: &SessionOutcome) {}
    fn trouble(&mut self, failure: &Failure) {
        self.trouble.get_or_insert_with(|| failure.clone());
    }
}

/// Runs both ends.
pub(super) fn run(
    options: &ClientOptions,
    stop: &Stop,
    observer: &mut dyn ClientObserver,
) -> LoopbackOutcome {
    let server_options = ServerOptions {
        target: options.target.clone(),
        port: options.port,
        once: true,
        quiet: true,
        json: false,
        hooks: options.hooks,
    };
    // A request of its own: the server is to go on while the client ends its round and says
    // goodbye, after a signal as well.
    let server_stop = Stop::without_signals();
    let (listening, address) = channel();
    let (done, ended) = channel();
    let spawned = {
        let server_stop = server_stop.clone();
        std::thread::Builder::new()
            .name("server".to_owned())
            .spawn(move || {
                let mut quiet = Quiet {
                    listening,
                    trouble: None,
                };
                let outcome = server::run(&server_options, &server_stop, &mut quiet);
                // Nobody listens any more when the wait for this has been given up.
                let _ = done.send((outcome, quiet.trouble));
            })
    };
    let failed = |sentence: String| LoopbackOutcome {
        client: None,
        server: ServerOutcome {
            failure: Some(Failure::failed(sentence)),
            ..ServerOutcome::default()
        },
    };
    if let Err(error) = spawned {
        return failed(format!("cannot start a thread for the server: {error}"));
    }

    let limit = START.max(options.deadline);
    let until = Instant::now() + limit;
    let mut gave_up = None;
    let client = loop {
        match address.recv_timeout(SLICE) {
            Ok(address) => break Some(client::run(options, Some(address), stop, observer)),
            Err(RecvTimeoutError::Disconnected) => break None,
            Err(RecvTimeoutError::Timeout) if stop.requested() => {
                gave_up = Some(Failure::failed(
                    "interrupted before the server's end listened",
                ));
                break None;
            }
            Err(RecvTimeoutError::Timeout) if Instant::now() > until => {
                let sentence = format!(
                    "the server's end did not listen within {}",
                    format_seconds(limit)
                );
                gave_up = Some(Failure::failed(sentence).with_hint("-W sets the limit"));
                break None;
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
    };
    // A client that never got as far leaves a server that waits for one.
    if client.as_ref().is_none_or(|client| client.tally.sent == 0) {
        server_stop.request();
    }
    match ended.recv_timeout(END.max(options.deadline)) {
        Ok((mut server, trouble)) => {
            // Trouble is no matter when all went well in the end, such as an address of several
            // that cannot be listened on; otherwise it is the reason.
            let trouble = trouble.filter(|_| {
                client
                    .as_ref()
                    .is_none_or(|client| client.exit() != Exit::Success)
            });
            server.failure = server.failure.or(gave_up).or(trouble);
            LoopbackOutcome { client, server }
        }
        Err(_) => LoopbackOutcome {
            client,
            ..failed("the server's end did not end in time".to_owned())
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_without_a_client_is_no_success() {
        let outcome = LoopbackOutcome {
            client: None,
            server: ServerOutcome::default(),
        };
        assert_eq!(outcome.exit(), Exit::Failed);
    }
}
