//! The client: each step for all connections, then the next.
//!
//! All ids share the channel of a dispatcher. What the peer has to answer is begun for all connections and then looked at
//! in turn, without sleeping in between: a step ends, for the table, when it is seen to have ended.

use std::collections::BTreeMap;
use std::mem;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use cm::verbs::QueuePair;
use cm::{
    Connection, ConnectionEvent, Connector, Deadline, Dispatcher, Error, IdOptions, Progress,
    Resolved, Resolving, Routed,
};

use crate::table::{Step, Table};
use crate::{Failure, Options, domain_of, explained, look_up, params, queue_pair};

/// Connections when none are asked for, as with the C program.
const CONNECTIONS: u32 = 100;

pub(crate) fn run(options: &Options, server: &str) -> Result<(), Failure> {
    let peer = look_up(Some(server), options.port, false)?;
    let source = options.bind.as_deref();
    let source = source
        .map(|node| look_up(Some(node), 0, true))
        .transpose()?;
    let connections = options.connections.unwrap_or(CONNECTIONS);
    let mut client = Client {
        options,
        dispatcher: Dispatcher::new()?,
        peer,
        source,
        table: Table::new(connections),
        failed: BTreeMap::new(),
    };
    client.all_steps(connections);
    print!("{}", client.table);
    client.outcome(connections)
}

struct Client<'a> {
    options: &'a Options,
    dispatcher: Dispatcher,
    peer: SocketAddr,
    source: Option<SocketAddr>,
    table: Table,
    /// How many connections failed in a step, and why the first did.
    failed: BTreeMap<Step, (u32, String)>,
}

/// An address and route that are looked for.
struct Search {
    resolving: Resolving<Routed>,
    began: Instant,
    address: Option<Instant>,
    tries_left: u32,
}

/// An address and route that were found, and when.
struct Found {
    resolved: Resolved<Routed>,
    began: Instant,
    address: Instant,
    route: Instant,
}

impl Client<'_> {
    fn all_steps(&mut self, connections: u32) {
        let dispatcher = self.dispatcher.clone();
        let options = IdOptions::default();
        let mut ids = self.each(Step::CreateId, 0..connections, |_| {
            dispatcher.connector(&options)
        });
        if let Some(source) = self.source {
            ids = self.each(Step::BindAddr, ids, |id| id.bind(source).map(|_| id));
        }
        let resolved = self.resolve(ids);
        let mut domain = None;
        let ready = self.each(Step::CreateQp, resolved, |resolved| {
            let pd = domain_of(resolved.context(), &mut domain)?;
            let qp = queue_pair(&pd)?;
            resolved.init_qp(&qp)?;
            Ok((resolved, qp))
        });
        let begin =
            |(resolved, qp): (Resolved<Routed>, QueuePair)| resolved.connect(qp, &params(), &[]);
        let connected = self.together(Step::Connect, ready, begin, is_established);
        let begin = |connection: Connection<Routed>| {
            connection.disconnect()?;
            Ok(connection)
        };
        let ended = self.together(Step::Disconnect, connected, begin, is_ended);
        self.each(Step::Destroy, ended, |connection| {
            drop(connection);
            Ok(())
        });
    }

    /// Takes a step of all connections, one after the other.
    fn each<T, U>(
        &mut self,
        step: Step,
        all: impl IntoIterator<Item = T>,
        mut take: impl FnMut(T) -> Result<U, Error>,
    ) -> Vec<U> {
        println!("{}", step.doing());
        let start = Instant::now();
        let mut taken = Vec::new();
        for one in all {
            let began = Instant::now();
            match take(one) {
                Ok(next) => {
                    self.table.add(step, began.elapsed());
                    taken.push(next);
                }
                Err(error) => self.fail(step, &error),
            }
        }
        self.table.finish(step, start.elapsed());
        taken
    }

    /// Begins a step of all connections, and waits until each has ended it.
    fn together<T>(
        &mut self,
        step: Step,
        all: Vec<T>,
        mut begin: impl FnMut(T) -> Result<Connection<Routed>, Error>,
        has_ended: impl Fn(&Connection<Routed>) -> Result<bool, Error>,
    ) -> Vec<Connection<Routed>> {
        println!("{}", step.doing());
        let start = Instant::now();
        let mut pending = Vec::new();
        for one in all {
            let began = Instant::now();
            match begin(one) {
                Ok(connection) => pending.push((connection, began)),
                Err(error) => self.fail(step, &error),
            }
        }
        let (peer, deadline) = (self.peer, self.options.deadline());
        let advance = |(connection, began): (Connection<Routed>, Instant)| {
            if has_ended(&connection)? {
                Ok(Progress::Done((connection, began.elapsed())))
            } else if deadline.has_passed() {
                let what = format!("{} with {peer}", step.doing());
                Err(Error::TimedOut { what })
            } else {
                Ok(Progress::Pending((connection, began)))
            }
        };
        let mut done = Vec::new();
        for ended in in_turn(pending, advance) {
            match ended {
                Ok((connection, took)) => {
                    self.table.add(step, took);
                    done.push(connection);
                }
                Err(error) => self.fail(step, &error),
            }
        }
        self.table.finish(step, start.elapsed());
        done
    }

    /// Looks for addresses and routes. A route is asked for as soon as its address is known, so the second step begins
    /// with the first address and not with the last.
    fn resolve(&mut self, ids: Vec<Connector<Routed>>) -> Vec<Resolved<Routed>> {
        println!("{}", Step::ResolveAddr.doing());
        println!("{}", Step::ResolveRoute.doing());
        let start = Instant::now();
        let mut pending = Vec::new();
        for id in ids {
            let began = Instant::now();
            match id.resolve(self.peer, self.deadline_of_a_try()) {
                Ok(resolving) => pending.push(Search {
                    resolving,
                    began,
                    address: None,
                    tries_left: self.options.retries,
                }),
                Err(error) => self.fail(Step::ResolveAddr, &error),
            }
        }
        let found = in_turn(pending, |search| self.look_further(search));
        let mut all = Vec::new();
        let (mut addresses, mut routes) = (Vec::new(), Vec::new());
        for found in found {
            match found {
                Ok(found) => {
                    let (address, route) = (found.address, found.route);
                    self.table.add(Step::ResolveAddr, address - found.began);
                    self.table.add(Step::ResolveRoute, route - address);
                    addresses.push(address);
                    routes.push(route);
                    all.push(found.resolved);
                }
                Err(error @ Error::RouteNotResolved { .. }) => {
                    self.fail(Step::ResolveRoute, &error);
                }
                Err(error) => self.fail(Step::ResolveAddr, &error),
            }
        }
        let from_to = |from: Option<Instant>, to: Option<&Instant>| {
            from.zip(to).map_or(Duration::ZERO, |(from, to)| *to - from)
        };
        let first = addresses.iter().min().copied();
        let took = from_to(Some(start), addresses.iter().max());
        self.table.finish(Step::ResolveAddr, took);
        let took = from_to(first, routes.iter().max());
        self.table.finish(Step::ResolveRoute, took);
        all
    }

    /// Goes on with a search, from the beginning if need be and allowed.
    fn look_further(&self, mut search: Search) -> Result<Progress<Search, Found>, Error> {
        let advanced = search.resolving.try_advance();
        let now = Instant::now();
        search.resolving = match advanced {
            Ok(Progress::Done(resolved)) => {
                return Ok(Progress::Done(Found {
                    resolved,
                    began: search.began,
                    address: search.address.unwrap_or(now),
                    route: now,
                }));
            }
            Ok(Progress::Pending(resolving)) => {
                if resolving.has_address() {
                    search.address.get_or_insert(now);
                }
                resolving
            }
            Err(
                Error::AddressNotResolved { .. }
                | Error::RouteNotResolved { .. }
                | Error::TimedOut { .. },
            ) if search.tries_left > 0 => {
                search.tries_left -= 1;
                search.address = None;
                let id = self.dispatcher.connector(&IdOptions::default())?;
                if let Some(source) = self.source {
                    id.bind(source)?;
                }
                id.resolve(self.peer, self.deadline_of_a_try())?
            }
            Err(error) => return Err(error),
        };
        Ok(Progress::Pending(search))
    }

    fn deadline_of_a_try(&self) -> Deadline {
        Deadline::after(Duration::from_millis(self.options.timeout.into()))
    }

    fn fail(&mut self, step: Step, error: &Error) {
        let failed = self.failed.entry(step);
        failed.or_insert_with(|| (0, explained(error))).0 += 1;
    }

    /// What became of it all.
    fn outcome(self, connections: u32) -> Result<(), Failure> {
        if self.failed.is_empty() {
            return Ok(());
        }
        let sentence = |(step, (count, reason)): (Step, (u32, String))| {
            let doing = step.doing();
            format!("{count} of {connections} connections failed while {doing}: {reason}")
        };
        Err(Failure(self.failed.into_iter().map(sentence).collect()))
    }
}

/// Looks at all that is pending, in turn, until nothing is.
fn in_turn<P, D>(
    mut pending: Vec<P>,
    mut advance: impl FnMut(P) -> Result<Progress<P, D>, Error>,
) -> Vec<Result<D, Error>> {
    let mut ended = Vec::new();
    while !pending.is_empty() {
        for one in mem::take(&mut pending) {
            match advance(one) {
                Ok(Progress::Pending(left)) => pending.push(left),
                Ok(Progress::Done(done)) => ended.push(Ok(done)),
                Err(error) => ended.push(Err(error)),
            }
        }
        thread::yield_now();
    }
    ended
}

fn is_established(connection: &Connection<Routed>) -> Result<bool, Error> {
    while let Some(event) = connection.try_next_event()? {
        if connection.established(event)?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

fn is_ended(connection: &Connection<Routed>) -> Result<bool, Error> {
    while let Some(event) = connection.try_next_event()? {
        match event {
            ConnectionEvent::Disconnected => return Ok(true),
            ConnectionEvent::DeviceRemoved => {
                return Err(Error::DeviceRemoved {
                    peer: connection.peer_addr(),
                });
            }
            _ => {}
        }
    }
    Ok(false)
}
