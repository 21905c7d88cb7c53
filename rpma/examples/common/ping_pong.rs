//! Messages to and fro: each holds one number of 8 bytes, to which the server adds 1.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use rpma::{
    Completion, CompletionQueue, Connection, ConnectionConfig, LocalRegion, Opcode, Peer,
    PrivateData, Signal, Usage,
};

use super::Outcome;

/// Bytes of a message.
pub(crate) const MESSAGE: u64 = 8;
/// The message that no other one follows.
pub(crate) const DONE: u64 = u64::MAX;

/// Room for a message to send, and for one to receive.
#[derive(Debug)]
pub(crate) struct Messages {
    pub(crate) outbox: LocalRegion,
    pub(crate) inbox: LocalRegion,
}

impl Messages {
    pub(crate) fn new(peer: &Peer) -> Outcome<Self> {
        Ok(Self {
            outbox: LocalRegion::alloc(peer, 8, Usage::SEND)?,
            inbox: LocalRegion::alloc(peer, 8, Usage::RECV)?,
        })
    }

    /// Sends a number.
    pub(crate) fn send(&self, connection: &Connection, value: u64) -> Outcome {
        self.outbox.store(0, &value.to_ne_bytes())?;
        Ok(connection.send(self.outbox.as_span(), Signal::Always, 0)?)
    }

    /// The number that has come.
    pub(crate) fn received(&self) -> Outcome<u64> {
        let mut value = [0; 8];
        self.inbox.load(0, &mut value)?;
        Ok(u64::from_ne_bytes(value))
    }
}

/// Waits for the next message, and until the last one was sent (`sent` says that it was): either may
/// be first. Receives complete in `receives`, which may be the queue that sends complete in.
pub(crate) fn next_message(
    connection: &Connection,
    receives: &CompletionQueue,
    mut sent: bool,
) -> Outcome<Completion> {
    let mut message = None;
    loop {
        let queue = match message {
            None => receives,
            Some(message) if sent => return Ok(message),
            Some(_) => connection.cq(),
        };
        let completion = super::completed(queue)?;
        if completion.opcode() == Some(Opcode::RECV) {
            message = Some(completion);
        } else {
            sent = true;
        }
    }
}

/// The client of the arguments `SEED ROUNDS [MICROSECONDS]`: starts with the number `SEED`, and
/// sends back each that it gets, with a pause in between.
pub(crate) fn client(
    server: SocketAddr,
    arguments: &[String],
    config: &ConnectionConfig,
    prefix: &str,
) -> Outcome {
    let mut value: u64 = super::number(&arguments[0], "SEED")?;
    let rounds: u64 = super::number(&arguments[1], "ROUNDS")?;
    let pause = match arguments.get(2) {
        Some(text) => Duration::from_micros(super::number(text, "MICROSECONDS")?),
        None => Duration::ZERO,
    };
    let peer = super::remote_peer(server)?;
    let messages = Messages::new(&peer)?;
    let connection = super::connect(&peer, server, config, &PrivateData::none())?;
    let receives = connection.rcq().unwrap_or(connection.cq());
    for _ in 0..rounds {
        // Before the number goes out: the answer may come at once.
        connection.recv(messages.inbox.as_span(), 0)?;
        println!("{prefix}sent {value}");
        messages.send(&connection, value)?;
        next_message(&connection, receives, false)?;
        value = messages.received()?;
        println!("{prefix}got {value}");
        thread::sleep(pause);
    }
    messages.send(&connection, DONE)?;
    super::wait_end(&connection)
}
