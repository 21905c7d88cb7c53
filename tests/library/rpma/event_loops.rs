//! Loops over the descriptors of many connections, while others drop them.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use harness::{
    Failed, Need, Outcome, Pair, SECOND, Test, WAIT, device, ensure, ensure_eq, listen, phase, test,
};
use rpma::{
    CompletionQueue, ConnectionConfig, ConnectionEvent, Device, Endpoint, LocalRegion, Peer,
    Signal, Usage,
};
use rustix::event::epoll;
use rustix::fs::Timespec;

use super::dice::Dice;

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test(
            "loops_over_descriptors_get_nothing_of_a_connection_that_another_thread_dropped",
            &[Need::Device],
            loops,
        )
        .long(),
    ]
}

const LOOPS: usize = 8;
const CONNECTIONS: usize = 200;
/// How many connections are dropped, and replaced by new ones.
const DROPPED: usize = 120;
/// Bytes of a message.
const LEN: u64 = 256;

/// Both ends of a connection, between which one message after the other goes, each begun when the one before is over at both.
struct Talk {
    serial: u64,
    pair: Pair,
    source: LocalRegion,
    target: LocalRegion,
    begun: u64,
    sent: u64,
    came: u64,
}

impl Talk {
    fn new(
        serial: u64,
        peers: &[Peer; 2],
        endpoint: &Endpoint,
        set: &OwnedFd,
    ) -> Result<Self, Failed> {
        let [client, server] = peers.clone();
        let config = ConnectionConfig::default();
        let pair = Pair::between(client, server, endpoint, &config, |_| Ok(()))?;
        let descriptors = [
            pair.client.cq().as_fd(),
            pair.server.cq().as_fd(),
            pair.client.event_fd()?,
            pair.server.event_fd()?,
        ];
        for descriptor in descriptors {
            let data = epoll::EventData::new_u64(serial);
            epoll::add(set, descriptor, data, epoll::EventFlags::IN)?;
        }
        Ok(Self {
            serial,
            source: LocalRegion::alloc(&peers[0], 4096, Usage::SEND)?,
            target: LocalRegion::alloc(&peers[1], 4096, Usage::RECV)?,
            pair,
            begun: 0,
            sent: 0,
            came: 0,
        })
    }

    /// Takes all that is there, and begins the next message once the last one is over. Never waits.
    fn turn(&mut self) -> Outcome {
        self.sent += self.taken(self.pair.client.cq())?;
        self.came += self.taken(self.pair.server.cq())?;
        for end in [&self.pair.client, &self.pair.server] {
            match end.try_next_event()? {
                None | Some(ConnectionEvent::Established) => {}
                // It stands until it is dropped.
                Some(event) => return Err(format!("connection {}: {event}", self.serial).into()),
            }
        }
        if self.sent == self.begun && self.came == self.begun {
            self.begun += 1;
            let number = self.serial << 32 | self.begun;
            self.source.store_u64(0, number)?;
            self.pair.server.recv(self.target.span(..LEN)?, number)?;
            let message = self.source.span(..LEN)?;
            self.pair.client.send(message, Signal::Always, number)?;
        }
        Ok(())
    }

    /// How many completions were there: each of this connection, and a success.
    fn taken(&self, cq: &CompletionQueue) -> Result<u64, Failed> {
        let mut count = 0;
        loop {
            while let Some(completion) = cq.poll_one()? {
                let number = self.serial << 32 | self.begun;
                ensure_eq!(completion.op_context(), number, "whose completion");
                completion
                    .result()
                    .map_err(|error| format!("connection {}: {error}", self.serial))?;
                count += 1;
            }
            if !cq.try_wait()? {
                return Ok(count);
            }
        }
    }
}

/// The connections by their serial numbers; each is gone when it is dropped, whoever else still knows of it.
type Talks = Mutex<HashMap<u64, Arc<Mutex<Option<Talk>>>>>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What all threads share.
struct Shared {
    set: OwnedFd,
    talks: Talks,
    over: AtomicBool,
    /// Messages, and events of connections that were dropped meanwhile.
    turns: AtomicU64,
    stale: AtomicU64,
}

fn loops() -> Outcome {
    let (server_peer, endpoint) = listen()?;
    let peers = [Peer::new(&Device::local(device().ip)?)?, server_peer];
    let shared = Shared {
        set: epoll::create(epoll::CreateFlags::CLOEXEC)?,
        talks: Mutex::default(),
        over: AtomicBool::new(false),
        turns: AtomicU64::new(0),
        stale: AtomicU64::new(0),
    };
    let results = thread::scope(|scope| {
        let threads: Vec<_> = (0..LOOPS)
            .map(|_| {
                scope.spawn(|| {
                    one_loop(&shared).map_err(|failed| {
                        shared.over.store(true, Ordering::SeqCst);
                        failed.message().unwrap_or_default().to_owned()
                    })
                })
            })
            .collect();
        let outcome = replace(&shared, &peers, &endpoint);
        shared.over.store(true, Ordering::SeqCst);
        let joined = threads.into_iter().map(|thread| {
            thread
                .join()
                .unwrap_or_else(|_| Err("a loop panicked".to_owned()))
        });
        joined
            .chain([outcome.map_err(|failed| failed.message().unwrap_or_default().to_owned())])
            .collect::<Vec<_>>()
    });
    for result in results {
        result?;
    }
    let (turns, stale) = (shared.turns.into_inner(), shared.stale.into_inner());
    println!("{turns} events, {stale} of connections that were gone");
    ensure!(turns > DROPPED as u64, "only {turns} events");
    // Each of those that are left has gone on.
    phase("dropping the rest");
    for talk in lock(&shared.talks).drain().map(|(_, talk)| talk) {
        let talk = lock(&talk).take().ok_or("dropped by nobody")?;
        ensure!(talk.came > 0, "connection {} stood still", talk.serial);
    }
    Ok(())
}

/// Makes the connections, and drops one after the other for a new one, whose descriptors then have the same numbers.
fn replace(shared: &Shared, peers: &[Peer; 2], endpoint: &Endpoint) -> Outcome {
    let mut dice = Dice::new(7);
    let mut serials = Vec::new();
    for serial in 1..=(CONNECTIONS + DROPPED) as u64 {
        if shared.over.load(Ordering::SeqCst) {
            return Ok(());
        }
        if serials.len() == CONNECTIONS {
            let old = serials.swap_remove(dice.roll(serials.len()));
            let talk = lock(&shared.talks).remove(&old).ok_or("not there")?;
            let start = Instant::now();
            phase(format!("dropping connection {old}"));
            let dropped = lock(&talk).take();
            drop(dropped);
            ensure!(start.elapsed() < WAIT, "took {:?}", start.elapsed());
        }
        let talk = Talk::new(serial, peers, endpoint, &shared.set)?;
        let talk = Arc::new(Mutex::new(Some(talk)));
        lock(&shared.talks).insert(serial, Arc::clone(&talk));
        // Events may have come before it was known.
        if let Some(talk) = &mut *lock(&talk) {
            talk.turn()?;
        }
        serials.push(serial);
    }
    phase("waiting for each of the last connections to have a message through");
    let start = Instant::now();
    for serial in serials {
        let talk = Arc::clone(lock(&shared.talks).get(&serial).ok_or("not there")?);
        while lock(&talk).as_ref().is_some_and(|talk| talk.came == 0) {
            ensure!(start.elapsed() < WAIT, "connection {serial} stands still");
            if shared.over.load(Ordering::SeqCst) {
                return Ok(());
            }
            thread::sleep(SECOND / 100);
        }
    }
    Ok(())
}

/// Waits for any connection to have something to do, until all is over.
fn one_loop(shared: &Shared) -> Outcome {
    let mut events = Vec::with_capacity(16);
    let a_moment = Timespec {
        tv_sec: 0,
        tv_nsec: 100_000_000,
    };
    while !shared.over.load(Ordering::SeqCst) {
        events.clear();
        match epoll::wait(
            &shared.set,
            rustix::buffer::spare_capacity(&mut events),
            Some(&a_moment),
        ) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in &events {
            let known = lock(&shared.talks).get(&event.data.u64()).map(Arc::clone);
            let talk = known.as_ref().map(|talk| lock(talk));
            let counter = match talk {
                Some(mut talk) if talk.is_some() => {
                    talk.as_mut().map_or(Ok(()), Talk::turn)?;
                    &shared.turns
                }
                _ => &shared.stale,
            };
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }
    Ok(())
}
