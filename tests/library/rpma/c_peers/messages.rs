//! Messages to and fro with peers of librpma, with every arrangement of the queues, which both
//! sides have.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use harness::{Failed, Need, Outcome, Test, WAIT, ensure, ensure_eq, full, pattern, phase, test};
use rpma::{
    Completion, CompletionQueue, Connection, ConnectionConfig, LocalRegion, Opcode, Peer,
    SharedReceiveQueue, Signal, SrqConfig, Usage,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Bytes, OURS, Role, Side, THEIRS, disconnect, noticed, peer, runs};

pub(crate) fn tests() -> Vec<Test> {
    let needs = &[Need::Device, Need::Librpma];
    vec![
        test("messages_go_to_and_fro_with_librpma", needs, || {
            both_roles(Queues::default())
        }),
        test(
            "messages_with_immediates_and_librpma_over_receive_queues_of_their_own",
            needs,
            || {
                both_roles(Queues {
                    rcq: 10,
                    imm: true,
                    ..Queues::default()
                })
            },
        ),
        test(
            "messages_with_librpma_over_queues_that_share_a_channel",
            needs,
            || {
                both_roles(Queues {
                    rcq: 10,
                    channel: true,
                    ..Queues::default()
                })
            },
        ),
        test(
            "messages_with_librpma_over_a_shared_receive_queue_with_a_queue_of_its_own",
            needs,
            || {
                both_roles(Queues {
                    srq: Srq::Own,
                    connections: 3,
                    ..Queues::default()
                })
            },
        ),
        test(
            "messages_with_librpma_over_a_shared_receive_queue_that_uses_those_of_connections",
            needs,
            || {
                both_roles(Queues {
                    srq: Srq::Main,
                    rcq: 20,
                    channel: true,
                    connections: 3,
                    ..Queues::default()
                })
            },
        ),
    ]
}

const LENGTH: usize = 256;
const ROUNDS: u64 = 4;
/// Receives posted for each connection.
const SLOTS: u64 = 2;
/// What sends are posted with, and the number of the connection added to it.
const SEND: u64 = 1000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Srq {
    None,
    /// With a completion queue of its own.
    Own,
    /// Completions come where those of the connections' receives do.
    Main,
}

#[derive(Debug, Clone, Copy)]
struct Queues {
    connections: u64,
    rcq: u32,
    srq: Srq,
    channel: bool,
    /// Messages carry a number besides.
    imm: bool,
}

impl Default for Queues {
    fn default() -> Self {
        Self {
            connections: 1,
            rcq: 0,
            srq: Srq::None,
            channel: false,
            imm: false,
        }
    }
}

impl Queues {
    fn arguments(self) -> Vec<String> {
        let srq = match self.srq {
            Srq::None => "",
            Srq::Own => "own",
            Srq::Main => "main",
        };
        vec![
            format!("connections={}", self.connections),
            format!("rounds={ROUNDS}"),
            format!("rcq={}", self.rcq),
            format!("srq={srq}"),
            format!("channel={}", u8::from(self.channel)),
            format!("imm={}", u8::from(self.imm)),
        ]
    }
}

#[derive(Debug)]
struct Line {
    connection: Connection,
    sent: u64,
    completed: u64,
    received: u64,
}

/// This side of all connections.
struct Session {
    queues: Queues,
    role_of_c: Role,
    bytes: Bytes,
    lines: Vec<Line>,
    srq: Option<SharedReceiveQueue>,
    inbox: LocalRegion,
    outbox: LocalRegion,
    /// What was wrong with the first wrong message.
    found: Result<(), String>,
}

fn both_roles(queues: Queues) -> Outcome {
    let mut runs = runs(Bytes::OursWrong);
    // How this side looks at messages is the same with all arrangements.
    if full() || (queues.rcq == 0 && queues.srq == Srq::None) {
        runs.push((Role::Client, Bytes::TheirsWrong));
    }
    for (role, bytes) in runs {
        phase("connecting");
        let peer = peer()?;
        let side = Side::start(&peer, "messages", role, bytes, &queues.arguments())?;
        let mut session = Session::new(&peer, role, bytes, queues)?;
        for n in 0..queues.connections {
            session.open(&side, n)?;
        }
        phase("messages to and fro");
        session.run()?;
        noticed(bytes, session.found.clone(), "messages")?;
        if bytes == Bytes::Right {
            for line in &session.lines {
                disconnect(&line.connection)?;
            }
        }
        if bytes == Bytes::TheirsWrong {
            // The C program has got all that it should, but not yet its end.
            continue;
        }
        side.finish(bytes)?;
    }
    Ok(())
}

fn seed(side: u64, n: u64, round: u64) -> u64 {
    side + 1000 * n + round
}

/// The number that goes with the message of this seed.
fn immediate(seed: u64) -> u32 {
    u32::try_from(seed * 3).unwrap_or_default()
}

impl Session {
    fn new(peer: &Peer, role_of_c: Role, bytes: Bytes, queues: Queues) -> Result<Self, Failed> {
        let slots = usize::try_from(SLOTS * queues.connections)?;
        let mut config = SrqConfig::default();
        if queues.srq == Srq::Main {
            config.set_rcq_size(0);
        }
        let session = Self {
            queues,
            role_of_c,
            bytes,
            lines: Vec::new(),
            srq: match queues.srq {
                Srq::None => None,
                Srq::Own | Srq::Main => Some(SharedReceiveQueue::new(peer, &config)?),
            },
            inbox: LocalRegion::alloc(peer, slots * LENGTH, Usage::RECV)?,
            outbox: LocalRegion::alloc(peer, slots * LENGTH, Usage::SEND)?,
            found: Ok(()),
        };
        if let Some(srq) = &session.srq {
            for slot in 0..SLOTS * queues.connections {
                srq.recv(session.inbox.span(room(slot))?, slot)?;
            }
        }
        Ok(session)
    }

    fn open(&mut self, side: &Side, n: u64) -> Outcome {
        let mut config = ConnectionConfig::default();
        config
            .set_rcq_size(self.queues.rcq)
            .set_srq(self.srq.as_ref())
            .set_shared_completion_channel(self.queues.channel);
        let connection = side.connect(&config, &[], |request| {
            for slot in SLOTS * n..SLOTS * (n + 1) {
                if self.srq.is_none() {
                    request.recv(self.inbox.span(room(slot))?, slot)?;
                }
            }
            Ok(())
        })?;
        let own = self
            .srq
            .as_ref()
            .and_then(SharedReceiveQueue::rcq)
            .is_some();
        ensure_eq!(
            connection.rcq().is_some(),
            self.queues.rcq > 0 && !own,
            "a receive queue exactly if asked for"
        );
        self.lines.push(Line {
            connection,
            sent: 0,
            completed: 0,
            received: 0,
        });
        Ok(())
    }

    /// Until every message was received and every one sent, or the first wrong one.
    fn run(&mut self) -> Outcome {
        if self.role_of_c == Role::Server {
            for n in 0..self.lines.len() {
                self.send_next(n)?;
            }
        }
        let end = Instant::now() + WAIT;
        loop {
            let done = |line: &Line| line.received >= ROUNDS && line.completed >= ROUNDS;
            // What this side has sent wrong ends the C program.
            let wrong =
                self.bytes == Bytes::OursWrong && self.lines.iter().any(|line| line.completed > 0);
            if wrong || self.found.is_err() || self.lines.iter().all(done) {
                return Ok(());
            }
            ensure!(Instant::now() < end, "not in time: {:?}", self.lines);
            if !self.drain_all()? {
                self.wait_any()?;
            }
        }
    }

    fn drain_all(&mut self) -> Result<bool, Failed> {
        let mut any = false;
        if let Some(rcq) = self.srq.as_ref().and_then(SharedReceiveQueue::rcq).cloned() {
            any |= self.drain(&rcq, true, false)?;
        }
        for n in 0..self.lines.len() {
            let connection = &self.lines[n].connection;
            let (cq, rcq) = (connection.cq().clone(), connection.rcq().cloned());
            let own = self
                .srq
                .as_ref()
                .and_then(SharedReceiveQueue::rcq)
                .is_some();
            any |= self.drain(&cq, rcq.is_none() && !own, true)?;
            if let Some(rcq) = rcq {
                any |= self.drain(&rcq, true, false)?;
            }
        }
        Ok(any)
    }

    fn drain(
        &mut self,
        queue: &CompletionQueue,
        receives: bool,
        sends: bool,
    ) -> Result<bool, Failed> {
        let mut any = false;
        while let Some(completion) = queue.poll_one()? {
            any = true;
            let line = self
                .lines
                .iter()
                .position(|line| line.connection.qp_num() == completion.qp_num())
                .ok_or("a completion of no connection")?;
            let opcode = match completion.result() {
                Ok(done) => done.opcode(),
                // The C program has ended.
                Err(_) if self.bytes == Bytes::OursWrong => {
                    self.lines[line].completed += 1;
                    continue;
                }
                Err(error) => return Err(format!("{completion:?}: {error}").into()),
            };
            if opcode == Opcode::RECV {
                ensure!(receives, "a receive completed in a queue for sends");
                self.take_message(&completion, line)?;
            } else {
                ensure!(sends, "a send completed in a queue for receives");
                ensure_eq!(
                    completion.op_context(),
                    SEND + line as u64,
                    "number of a send"
                );
                self.lines[line].completed += 1;
            }
        }
        Ok(any)
    }

    fn take_message(&mut self, completion: &Completion, n: usize) -> Outcome {
        let slot = completion.op_context();
        let len = completion.result().map_err(|e| e.to_string())?.byte_len();
        ensure_eq!(len as usize, LENGTH, "length of a message");
        let mut found = [0; LENGTH];
        self.inbox
            .load(usize::try_from(room(slot).start)?, &mut found)?;
        let line = &mut self.lines[n];
        let checked = pattern::check(&found, seed(THEIRS, n as u64, line.received));
        let imm = completion.imm();
        let expected = immediate(seed(THEIRS, n as u64, line.received));
        let right = imm == self.queues.imm.then_some(expected);
        let checked = match right {
            true => checked,
            false => checked.and(Err(format!("immediate {imm:?}, not {expected}"))),
        };
        self.found = std::mem::replace(&mut self.found, Ok(())).and(checked);
        line.received += 1;
        let span = self.inbox.span(room(slot))?;
        match &self.srq {
            Some(srq) => srq.recv(span, slot)?,
            None => line.connection.recv(span, slot)?,
        }
        if self.role_of_c == Role::Client || line.sent < ROUNDS {
            self.send_next(n)?;
        }
        Ok(())
    }

    fn send_next(&mut self, n: usize) -> Outcome {
        let line = &mut self.lines[n];
        let own = self.bytes.ours();
        ensure_eq!(own == OURS, self.bytes != Bytes::OursWrong, "own sequence");
        let room = room(n as u64);
        let message = pattern::bytes(seed(own, n as u64, line.sent), LENGTH);
        self.outbox.store(usize::try_from(room.start)?, &message)?;
        let span = self.outbox.span(room)?;
        let (signal, number) = (Signal::Always, SEND + n as u64);
        if self.queues.imm {
            let imm = immediate(seed(own, n as u64, line.sent));
            line.connection.send_with_imm(span, imm, signal, number)?;
        } else {
            line.connection.send(span, signal, number)?;
        }
        line.sent += 1;
        Ok(())
    }

    /// Sleeps until one of the queues reports something, and has those report again.
    fn wait_any(&self) -> Outcome {
        let mut fds: Vec<BorrowedFd<'_>> = Vec::new();
        let own = self.srq.as_ref().and_then(SharedReceiveQueue::rcq);
        fds.extend(own.map(AsFd::as_fd));
        for Line { connection, .. } in &self.lines {
            if self.queues.channel {
                fds.push(connection.completion_fd()?);
            } else {
                fds.push(connection.cq().as_fd());
                fds.extend(connection.rcq().map(AsFd::as_fd));
            }
        }
        let mut fds: Vec<_> = fds
            .iter()
            .map(|fd| PollFd::new(fd, PollFlags::IN))
            .collect();
        let timeout = Timespec::try_from(WAIT)?;
        ensure!(
            poll(&mut fds, Some(&timeout))? > 0,
            "no completion came in time"
        );
        if let Some(own) = own {
            own.try_wait()?;
        }
        for Line { connection, .. } in &self.lines {
            if self.queues.channel {
                let one_alone = connection.cq().try_wait().is_err();
                ensure!(
                    one_alone,
                    "a wait on one of the queues that share a channel"
                );
                connection.try_wait()?;
            } else {
                connection.cq().try_wait()?;
                connection
                    .rcq()
                    .map(CompletionQueue::try_wait)
                    .transpose()?;
            }
        }
        Ok(())
    }
}

fn room(slot: u64) -> std::ops::Range<u64> {
    slot * LENGTH as u64..(slot + 1) * LENGTH as u64
}
