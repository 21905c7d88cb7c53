//! The server: accepts whoever asks, and ends what the client ends.
//!
//! Every connection has a channel of its own; the thread sleeps until one of them has an event.

use std::os::fd::AsFd;
use std::time::Duration;

use cm::verbs::ProtectionDomain;
use cm::{Connection, ConnectionEvent, Deadline, Error, ListenOptions, Listener, Request};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{Failure, Options, domain_of, explained, look_up, params, queue_pair};

/// How long the thread sleeps at most before it looks for what has taken too long.
const NAP: Duration = Duration::from_secs(1);

pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let addr = look_up(options.bind.as_deref(), options.port, true)?;
    let listener = Listener::bind(addr, &ListenOptions::default())?;
    println!("listening at {}", listener.local_addr());
    let mut server = Server {
        listener,
        domain: None,
        ends: Vec::new(),
        served: 0,
        failed: 0,
    };
    let mut deadline = options.deadline();
    while options.connections.is_none_or(|all| server.served < all) {
        server.sleep()?;
        if server.turn(options)? {
            deadline = options.deadline();
        }
        // Who was not told how many come waits for them for ever.
        if let Some(all) = options.connections
            && deadline.has_passed()
        {
            let (served, wait) = (server.served, options.wait);
            return Err(Failure(vec![format!(
                "after {served} of {all} connections nothing has come for {wait} s"
            )]));
        }
    }
    match server.failed {
        0 => Ok(()),
        failed => Err(Failure(vec![format!(
            "{failed} of {} connections failed",
            server.served
        )])),
    }
}

struct Server {
    listener: Listener,
    domain: Option<ProtectionDomain>,
    ends: Vec<End>,
    /// Connections that are over, however they went.
    served: u32,
    failed: u32,
}

struct End {
    connection: Connection,
    /// Until when it must stand.
    deadline: Deadline,
}

impl Server {
    /// Sleeps until there is an event, or something may have taken too long.
    fn sleep(&self) -> Result<(), Failure> {
        let ends = self.ends.iter().map(|end| end.connection.as_fd());
        let mut fds: Vec<_> = std::iter::once(self.listener.as_fd())
            .chain(ends)
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        let nap = Timespec::try_from(NAP).ok();
        match poll(&mut fds, nap.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(Failure(vec![format!("cannot wait for events: {error}")])),
        }
    }

    /// Takes all events that there are; `false` when there were none.
    fn turn(&mut self, options: &Options) -> Result<bool, Failure> {
        let mut something = false;
        let mut left = Vec::new();
        for end in std::mem::take(&mut self.ends) {
            match end.turn() {
                Ok(Turn::Nothing) => left.push(end),
                Ok(Turn::Something) => {
                    something = true;
                    left.push(end);
                }
                Ok(Turn::Over) => {
                    something = true;
                    self.served += 1;
                }
                Err(error) => {
                    something = true;
                    self.fail(&error);
                }
            }
        }
        self.ends = left;
        while let Some(request) = self.listener.try_next_request()? {
            something = true;
            match self.accept(request) {
                Ok(connection) => self.ends.push(End {
                    connection,
                    deadline: options.deadline(),
                }),
                // The peer hears of it as well.
                Err(error) => self.fail(&error),
            }
        }
        Ok(something)
    }

    fn accept(&mut self, request: Request) -> Result<Connection, Error> {
        let pd = domain_of(request.context(), &mut self.domain)?;
        let qp = queue_pair(&pd)?;
        request.init_qp(&qp)?;
        request.accept(qp, &params(), &[])
    }

    /// One connection failed; the others go on.
    fn fail(&mut self, error: &Error) {
        eprintln!("cmtime: {}", explained(error));
        self.served += 1;
        self.failed += 1;
    }
}

/// What happened to a connection.
enum Turn {
    Nothing,
    Something,
    Over,
}

impl End {
    fn turn(&self) -> Result<Turn, Error> {
        let mut turn = Turn::Nothing;
        while let Some(event) = self.connection.try_next_event()? {
            match event {
                // What the client has asked for is answered by taking the event.
                ConnectionEvent::Disconnected => return Ok(Turn::Over),
                event => {
                    self.connection.established(event)?;
                    turn = Turn::Something;
                }
            }
        }
        if self.deadline.has_passed() && !self.connection.is_established()? {
            return Err(Error::TimedOut {
                what: format!("connecting with {}", self.connection.peer_addr()),
            });
        }
        Ok(turn)
    }
}
