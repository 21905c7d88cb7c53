//! The end that waits.

use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use rpma::{ConnectionConfig, ConnectionRequest, ErrorKind};

use super::Fault;
use super::link::{QUEUE_SIZE, library};
use super::listen::{Listeners, Listening};
use super::outcome::{ServerOutcome, SessionOutcome};
use super::serve::{Admission, reject, serve};
use crate::cli::ping::ServerOptions;
use crate::failure::Failure;
use crate::session::{Hello, Refusal, RefusalReason};
use crate::stop::{SLICE, Stop};

/// Clients that are served at a time.
pub const MAX_CLIENTS: usize = 16;

/// How long the sessions get to end when the server does.
const ENDING: Duration = Duration::from_secs(3);

/// How long a handshake may take inside the library.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// Hears of a server's run while it goes on.
pub trait ServerObserver {
    /// The server listens on an address; called for each of them.
    fn listening(&mut self, address: SocketAddr, device: &str);
    /// A client is being served.
    fn accepted(&mut self, client: SocketAddr, hello: &Hello);
    /// A client was refused.
    fn refused(&mut self, client: SocketAddr, refusal: &Refusal);
    /// Something was wrong in a client's round.
    fn fault(&mut self, client: SocketAddr, fault: &Fault);
    /// A client's session is over.
    fn ended(&mut self, session: &SessionOutcome);
    /// Something failed that concerns no client in particular.
    fn trouble(&mut self, failure: &Failure);
}

/// Runs a server until it is stopped, or with `once` until it has served one client.
pub(super) fn run(
    options: &ServerOptions,
    stop: &Stop,
    observer: &mut dyn ServerObserver,
) -> ServerOutcome {
    let mut outcome = ServerOutcome::default();
    match Listeners::open(options, stop) {
        Ok(listeners) => {
            listeners
                .failed
                .iter()
                .for_each(|failure| observer.trouble(failure));
            for listening in &listeners.open {
                let (address, device) = (listening.address, listening.device.name());
                outcome.listening.push((address, device.to_owned()));
                observer.listening(address, device);
            }
            let server = Server::new(&listeners);
            if let Err(failure) = server.run(options, stop, observer, &mut outcome) {
                outcome.failure = Some(failure);
            }
        }
        Err(failure) => outcome.failure = Some(failure),
    }
    outcome
}

enum News {
    Fault(SocketAddr, Fault),
    Ended(Box<SessionOutcome>),
    Panicked(SocketAddr),
}

struct Server<'a> {
    listeners: &'a Listeners,
    sender: Sender<News>,
    news: Receiver<News>,
    active: usize,
}

impl<'a> Server<'a> {
    fn new(listeners: &'a Listeners) -> Self {
        let (sender, news) = channel();
        Self {
            listeners,
            sender,
            news,
            active: 0,
        }
    }

    fn run(
        mut self,
        options: &ServerOptions,
        stop: &Stop,
        observer: &mut dyn ServerObserver,
        outcome: &mut ServerOutcome,
    ) -> Result<(), Failure> {
        let mut config = ConnectionConfig::default();
        config
            .set_timeout(HANDSHAKE)
            .set_sq_size(QUEUE_SIZE)
            .set_rq_size(QUEUE_SIZE);
        let mut taken = false;
        let result = 'serving: loop {
            self.hear(options, observer, outcome);
            if stop.requested() || (options.once && outcome.session.is_some()) {
                break Ok(());
            }
            for (listening, request) in self.listeners.requests(&config, SLICE) {
                let error = match request {
                    Ok(request) => {
                        let full = (options.once && taken).then_some(1);
                        let admission = (listening, request, full);
                        taken |= self.admit(admission, options, stop, observer, outcome);
                        continue;
                    }
                    Err(error) => error,
                };
                let doing = format!("a request at {} cannot be taken", listening.address);
                let failure = library(doing, &error);
                if error.kind() == ErrorKind::DeviceRemoved {
                    break 'serving Err(failure);
                }
                // One request that cannot be taken is no reason to end; many must not spin.
                observer.trouble(&failure);
                stop.sleep_until(Instant::now() + SLICE);
            }
        };
        self.finish(options, stop, observer, outcome);
        result
    }

    /// Admits or refuses a client; says whether it was admitted.
    fn admit(
        &mut self,
        (listening, request, full): (&Listening, ConnectionRequest, Option<usize>),
        options: &ServerOptions,
        stop: &Stop,
        observer: &mut dyn ServerObserver,
        outcome: &mut ServerOutcome,
    ) -> bool {
        let client = request.peer_addr();
        let full = full.or((self.active >= MAX_CLIENTS).then_some(MAX_CLIENTS));
        let hello = match full {
            Some(limit) => {
                let busy = RefusalReason::BUSY;
                Err(Refusal {
                    reason: busy,
                    value: 0,
                    limit: limit as u64,
                })
            }
            None => Hello::decode(request.private_data(), listening.max_size),
        };
        let hello = match hello {
            Ok(hello) => hello,
            Err(refusal) => {
                outcome.refused += 1;
                observer.refused(client, &refusal);
                if let Err(error) = reject(request, &refusal) {
                    observer.trouble(&library(format!("cannot refuse {client}"), &error));
                }
                return false;
            }
        };
        observer.accepted(client, &hello);
        let admission = Admission {
            request,
            peer: listening.peer.clone(),
            client,
            hello,
            hooks: options.hooks,
            stop: stop.clone(),
        };
        let sender = self.sender.clone();
        let session = move || {
            // The receiver lives as long as the server; whoever outlives it has nobody to tell.
            let result = catch_unwind(AssertUnwindSafe(|| {
                serve(admission, |fault| {
                    drop(sender.send(News::Fault(client, fault)))
                })
            }));
            let news = match result {
                Ok(session) => News::Ended(Box::new(session)),
                Err(_) => News::Panicked(client),
            };
            drop(sender.send(news));
        };
        match std::thread::Builder::new()
            .name(format!("client {client}"))
            .spawn(session)
        {
            Ok(_) => {
                self.active += 1;
                true
            }
            // The request went with the closure and is rejected by its drop.
            Err(error) => {
                outcome.refused += 1;
                let sentence = format!("cannot start a thread for {client}: {error}");
                observer.trouble(&Failure::failed(sentence));
                false
            }
        }
    }

    /// Passes on what the sessions have to say.
    fn hear(
        &mut self,
        options: &ServerOptions,
        observer: &mut dyn ServerObserver,
        outcome: &mut ServerOutcome,
    ) {
        while let Ok(news) = self.news.try_recv() {
            self.take(news, options, observer, outcome);
        }
    }

    fn take(
        &mut self,
        news: News,
        options: &ServerOptions,
        observer: &mut dyn ServerObserver,
        outcome: &mut ServerOutcome,
    ) {
        let session = match news {
            News::Fault(client, fault) => return observer.fault(client, &fault),
            News::Ended(session) => session,
            News::Panicked(client) => {
                self.active -= 1;
                outcome.clients += 1;
                outcome.failed += 1;
                let failure = Failure::failed(format!("the session of {client} ended in a panic"));
                observer.trouble(&failure);
                if options.once {
                    outcome.failure = Some(failure);
                }
                return;
            }
        };
        self.active -= 1;
        outcome.clients += 1;
        outcome.failed += u64::from(session.exit() != crate::failure::Exit::Success);
        outcome.tally.sent += session.tally.sent;
        outcome.tally.received += session.tally.received;
        outcome.tally.wrong += session.tally.wrong;
        observer.ended(&session);
        if options.once {
            outcome.session = Some(*session);
        }
    }

    /// Waits for the sessions, which hear of the request to stop themselves.
    fn finish(
        &mut self,
        options: &ServerOptions,
        stop: &Stop,
        observer: &mut dyn ServerObserver,
        outcome: &mut ServerOutcome,
    ) {
        stop.request();
        let until = Instant::now() + ENDING;
        while self.active > 0 {
            let left = until.saturating_duration_since(Instant::now());
            match self.news.recv_timeout(left) {
                Ok(news) => self.take(news, options, observer, outcome),
                Err(_) => {
                    let active = self.active;
                    let sentence = format!("{active} sessions did not end within 3 s");
                    observer.trouble(&Failure::failed(sentence));
                    return;
                }
            }
        }
    }
}
