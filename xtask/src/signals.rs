//! Signals that ask this program to end, held back until what it began is undone.

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};

/// Those that a user or a supervisor sends.
const ENDING: [libc::c_int; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// The one that came, or 0.
static RECEIVED: AtomicI32 = AtomicI32::new(0);

extern "C" fn note(signal: libc::c_int) {
    RECEIVED.store(signal, Ordering::SeqCst);
}

/// While it lives, such a signal is only noted; afterwards it has the effect that it would have had.
pub(crate) struct Held {
    before: Vec<(libc::c_int, libc::sigaction)>,
}

impl Held {
    /// Holds them back from now on. What was ignored before (as by nohup) is ignored as well.
    pub(crate) fn new() -> Self {
        let handler: extern "C" fn(libc::c_int) = note;
        let mut before = Vec::new();
        for signal in ENDING {
            let mut old = MaybeUninit::<libc::sigaction>::uninit();
            // SAFETY: asking with a null new action only writes the old one, to memory of its size.
            if unsafe { libc::sigaction(signal, ptr::null(), old.as_mut_ptr()) } != 0 {
                continue;
            }
            // SAFETY: the call above succeeded, so it has written all of it.
            let old = unsafe { old.assume_init() };
            if old.sa_sigaction == libc::SIG_IGN {
                continue;
            }
            let mut new = old;
            new.sa_sigaction = handler as libc::sighandler_t;
            // Without SA_SIGINFO, the handler takes one argument.
            new.sa_flags = libc::SA_RESTART;
            // SAFETY: the handler does nothing but store to an atomic, which a handler may do at any moment.
            if unsafe { libc::sigaction(signal, &raw const new, ptr::null_mut()) } == 0 {
                before.push((signal, old));
            }
        }
        Self { before }
    }

    /// Whether one came.
    pub(crate) fn received() -> bool {
        RECEIVED.load(Ordering::SeqCst) != 0
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        for (signal, old) in &self.before {
            // SAFETY: `old` is what was in force before, as the system gave it.
            unsafe { libc::sigaction(*signal, ptr::from_ref(old), ptr::null_mut()) };
        }
        let received = RECEIVED.swap(0, Ordering::SeqCst);
        if received != 0 {
            // SAFETY: a signal of ours to ourselves; what is then done was in force before and is meant for it.
            unsafe { libc::raise(received) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_that_is_held_is_noted_and_has_its_effect_on_who_held_before() {
        let outer = Held::new();
        {
            let _inner = Held::new();
            assert!(!Held::received());
            // SAFETY: a signal to ourselves, whose handler is `note`.
            unsafe { libc::raise(libc::SIGTERM) };
            assert!(Held::received());
        }
        assert!(Held::received(), "handed on to the outer one");
        // Or the end of the outer one would end the tests.
        RECEIVED.store(0, Ordering::SeqCst);
        drop(outer);
    }
}
