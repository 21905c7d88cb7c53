//! Calls that block in the system or in a C library, waited for only as long as wanted.

use std::fmt;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Instant;

use crate::stop::{SLICE, Stop};

/// Why a call was not waited for any longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GaveUp {
    /// Its time was up.
    TimedOut,
    /// The end of the program was requested.
    Stopped,
    /// There is no thread for it.
    NoThread,
    /// Its thread panicked.
    Panicked,
}

impl fmt::Display for GaveUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TimedOut => "took longer than allowed",
            Self::Stopped => "was interrupted",
            Self::NoThread => "could not get a thread of its own",
            Self::Panicked => "ended in a panic",
        })
    }
}

/// Runs `call` in a thread and waits for it until `until` or a request to stop. A call that is
/// not waited for any longer keeps its thread until it returns; its result is then dropped there.
pub(super) fn patiently<T: Send + 'static>(
    until: Instant,
    stop: &Stop,
    call: impl FnOnce() -> T + Send + 'static,
) -> Result<T, GaveUp> {
    let (sender, receiver) = channel();
    std::thread::Builder::new()
        .name("blocking call".to_owned())
        .spawn(move || {
            // The receiver is gone when nobody waits any longer; the value is dropped then.
            let _ = sender.send(call());
        })
        .map_err(|_| GaveUp::NoThread)?;
    loop {
        if stop.requested() {
            return Err(GaveUp::Stopped);
        }
        let left = until.saturating_duration_since(Instant::now());
        match receiver.recv_timeout(left.min(SLICE)) {
            Ok(value) => return Ok(value),
            Err(RecvTimeoutError::Disconnected) => return Err(GaveUp::Panicked),
            Err(RecvTimeoutError::Timeout) if left.is_zero() => return Err(GaveUp::TimedOut),
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_call_is_waited_for_until_its_time_and_no_longer() {
        let stop = Stop::default();
        let until = Instant::now() + Duration::from_secs(60);
        assert_eq!(patiently(until, &stop, || 7), Ok(7));
        let (_keep, never) = channel::<()>();
        let until = Instant::now() + Duration::from_millis(30);
        let gave_up = patiently(until, &stop, move || never.recv());
        assert_eq!(gave_up, Err(GaveUp::TimedOut));
    }
}
