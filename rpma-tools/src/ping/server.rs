//! The end that waits.

use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use rpma::{ConnectionConfig, ConnectionRequest, Device, Endpoint, ErrorKind, Peer};

use super::link::{QUEUE_SIZE, library};
use super::outcome::{ServerOutcome, SessionOutcome};
use super::serve::{Admission, reject, serve};
use super::{Fault, diagnose, resolve};
use crate::cli::ping::ServerOptions;
use crate::failure::Failure;
use crate::session::{Hello, Refusal, RefusalReason};
use crate::stop::{SLICE, Stop};

/// Clients that are served at a time.
pub const MAX_CLIENTS: usize = 16;

/// How long the sessions get to end when the server does.
const ENDING: Duration = Duration::from_secs(3);

/// How long the look-up of a host name may take.
const LOOK_UP: Duration = Duration::from_secs(10);

/// How long a handshake may take inside the library.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// Hears of a server's run while it goes on.
pub trait ServerObserver {
    /// The server listens.
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
    match Server::open(options, stop) {
        Ok(server) => {
            outcome.address = Some(server.address);
            outcome.device = Some(server.device.name().to_owned());
            observer.listening(server.address, server.device.name());
            if let Err(failure) = server.run(options, stop, observer, &mut outcome) {
                outcome.failure = Some(failure);
            }
        }
        Err(failure) => outcome.failure = Some(failure),
    }
    outcome
}

/// The local address for a server: the one that was asked for, or the first that a device has.
fn local_address(options: &ServerOptions, stop: &Stop) -> Result<SocketAddr, Failure> {
    if let Some(target) = &options.target {
        let mut addresses = resolve::addresses(target, options.port, LOOK_UP, stop)?;
        return Ok(addresses.swap_remove(0));
    }
    let devices = Device::list()
        .map_err(|error| diagnose::explain(library("cannot list the RDMA devices", &error)))?;
    let first = devices
        .iter()
        .find_map(|device| device.ip_addresses().ok()?.into_iter().next())
        .ok_or_else(|| {
            diagnose::explain(
                Failure::failed("no RDMA device of this machine has an IP address")
                    .with_hint("give the device's network interface an address"),
            )
        })?;
    Ok(SocketAddr::new(first, options.port))
}

enum News {
    Fault(SocketAddr, Fault),
    Ended(Box<SessionOutcome>),
    Panicked(SocketAddr),
}

struct Server {
    endpoint: Endpoint,
    peer: Peer,
    device: Device,
    max_size: u64,
    address: SocketAddr,
    sender: Sender<News>,
    news: Receiver<News>,
    active: usize,
}

impl Server {
    fn open(options: &ServerOptions, stop: &Stop) -> Result<Self, Failure> {
        let wanted = local_address(options, stop)?;
        let doing = format!("cannot listen on {wanted}");
        let early = |error: rpma::Error| diagnose::explain(library(&doing, &error));
        let device = Device::local_at(wanted).map_err(early)?;
        let peer = Peer::new(&device).map_err(early)?;
        let late = |error: rpma::Error| library(&doing, &error);
        let endpoint = Endpoint::listen(&peer, wanted).map_err(late)?;
        let address = endpoint.local_addr();
        let (sender, news) = channel();
        let max_size = u64::from(device.max_message_size().map_err(early)?);
        Ok(Self {
            endpoint,
            max_size,
            peer,
            device,
            address,
            sender,
            news,
            active: 0,
        })
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
        let result = loop {
            self.hear(options, observer, outcome);
            if stop.requested() || (options.once && outcome.session.is_some()) {
                break Ok(());
            }
            match self.endpoint.next_connection_request(&config, SLICE) {
                Ok(request) => {
                    let full = if options.once && taken { Some(1) } else { None };
                    taken |= self.admit(request, full, options, stop, observer, outcome);
                }
                Err(error) if error.kind() == ErrorKind::TimedOut => {}
                Err(error) => {
                    let failure = library(
                        format!("a request at {} cannot be taken", self.address),
                        &error,
                    );
                    if error.kind() == ErrorKind::DeviceRemoved {
                        break Err(failure);
                    }
                    // One request that cannot be taken is no reason to end; many must not spin.
                    observer.trouble(&failure);
                    stop.sleep_until(Instant::now() + SLICE);
                }
            }
        };
        self.finish(options, stop, observer, outcome);
        result
    }

    /// Admits or refuses a client; says whether it was admitted.
    fn admit(
        &mut self,
        request: ConnectionRequest,
        full: Option<usize>,
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
            None => Hello::decode(request.private_data(), self.max_size),
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
            peer: self.peer.clone(),
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
