//! The run itself: both ends, the rounds, and what they found.

mod client;
mod connect;
mod diagnose;
mod fault;
mod hook;
mod link;
mod listen;
mod loopback;
mod mailbox;
mod operation;
mod outcome;
mod patience;
mod pattern;
mod resolve;
mod round;
mod schedule;
mod serve;
mod server;
mod window;

pub use client::ClientObserver;
pub use fault::{Defect, Fault, Side};
pub use hook::{Flip, Hooks};
pub use loopback::LoopbackOutcome;
pub use operation::{Operation, OperationSet};
pub use outcome::{ClientOutcome, Faults, Round, ServerOutcome, SessionOutcome, Tally, Times};
pub use pattern::{Direction, Mismatch, Pattern};
pub use server::{MAX_CLIENTS, ServerObserver};

use crate::cli::ping::{ClientOptions, ServerOptions};
use crate::stop::Stop;

/// The largest size in bytes that a round moves per operation: a limit of the tool, so that a
/// client cannot make a server register memory without bound. A device may allow less.
pub const MAX_SIZE: u64 = 64 << 20;

/// The longest interval and deadline in milliseconds: one hour.
pub const MAX_TIME_MS: u32 = 3_600_000;

/// Pings a server.
pub fn ping(
    options: &ClientOptions,
    stop: &Stop,
    observer: &mut dyn ClientObserver,
) -> ClientOutcome {
    client::run(options, None, stop, observer)
}

/// Runs both ends in this process.
pub fn loopback(
    options: &ClientOptions,
    stop: &Stop,
    observer: &mut dyn ClientObserver,
) -> LoopbackOutcome {
    loopback::run(options, stop, observer)
}

/// Waits for clients.
pub fn serve(
    options: &ServerOptions,
    stop: &Stop,
    observer: &mut dyn ServerObserver,
) -> ServerOutcome {
    server::run(options, stop, observer)
}
