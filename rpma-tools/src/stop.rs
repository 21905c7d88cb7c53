//! Ending early: Ctrl-C, SIGTERM, or a part of the program that wants another part to end.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The longest that any wait goes without looking at the request to stop.
pub const SLICE: Duration = Duration::from_millis(50);

static SIGNALLED: AtomicBool = AtomicBool::new(false);

extern "C" fn on_signal(_signal: libc::c_int) {
    SIGNALLED.store(true, Ordering::Relaxed);
}

/// Makes SIGINT and SIGTERM a request to stop. The second of the same kind ends the process in
/// the system's own way, should the first not be heard.
///
/// # Errors
/// What the system says when it does not take the handler.
pub fn on_signals() -> io::Result<()> {
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: an all-zero `sigaction` is a valid value of it: no flags, an empty mask, the
        // default handler.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = on_signal as extern "C" fn(libc::c_int) as libc::sighandler_t;
        action.sa_flags = libc::SA_RESETHAND;
        // SAFETY: `action` is initialised and outlives the call; the handler only stores to an
        // atomic, which a signal handler may do; no old action is asked for.
        if unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// A request to stop that parts of the program share; a signal is such a request to all of them,
/// except to those that leave it to another part to pass it on.
#[derive(Debug, Clone)]
pub struct Stop {
    requested: Arc<AtomicBool>,
    signals: bool,
}

impl Default for Stop {
    fn default() -> Self {
        Self {
            requested: Arc::default(),
            signals: true,
        }
    }
}

impl Stop {
    /// A request that no signal makes.
    pub fn without_signals() -> Self {
        Self {
            signals: false,
            ..Self::default()
        }
    }

    /// Asks all holders of this request to end.
    pub fn request(&self) {
        self.requested.store(true, Ordering::Relaxed);
    }

    /// Whether it is time to end.
    pub fn requested(&self) -> bool {
        self.requested.load(Ordering::Relaxed)
            || (self.signals && SIGNALLED.load(Ordering::Relaxed))
    }

    /// Sleeps until a time, or until the end is requested. Says whether it slept to the end.
    pub fn sleep_until(&self, time: Instant) -> bool {
        loop {
            if self.requested() {
                return false;
            }
            let left = time.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            std::thread::sleep(left.min(SLICE));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_ends_a_sleep_at_once() {
        let stop = Stop::default();
        let other = stop.clone();
        assert!(stop.sleep_until(Instant::now()));
        let start = Instant::now();
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            other.request();
        });
        assert!(!stop.sleep_until(start + Duration::from_secs(60)));
        assert!(start.elapsed() < Duration::from_secs(30));
        thread.join().unwrap();
    }
}
