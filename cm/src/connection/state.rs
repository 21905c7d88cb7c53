//! Where a connection stands.

use std::sync::atomic::{AtomicU8, Ordering};

/// Where a connection stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ConnectionState {
    /// The handshake is under way.
    Connecting = 0,
    /// Data can flow.
    Established = 1,
    /// Over: the queue pair is in the error state, and what was posted is flushed.
    Closed = 2,
}

/// The state as several threads see it. It only goes forward, however late an event comes.
#[derive(Debug)]
pub(super) struct State(AtomicU8);

impl State {
    pub(super) fn new() -> Self {
        Self(AtomicU8::new(ConnectionState::Connecting as u8))
    }

    #[inline]
    pub(super) fn get(&self) -> ConnectionState {
        match self.0.load(Ordering::Acquire) {
            0 => ConnectionState::Connecting,
            1 => ConnectionState::Established,
            _ => ConnectionState::Closed,
        }
    }

    /// Ends the handshake; `false` when it is not under way any more.
    pub(super) fn establish(&self) -> bool {
        self.0
            .compare_exchange(
                ConnectionState::Connecting as u8,
                ConnectionState::Established as u8,
                Ordering::AcqRel,
                Ordering::Acquire,
            )
            .is_ok()
    }

    pub(super) fn close(&self) {
        self.0
            .store(ConnectionState::Closed as u8, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_was_closed_is_not_brought_back_by_a_late_event() {
        let state = State::new();
        assert_eq!(state.get(), ConnectionState::Connecting);
        state.close();
        assert!(!state.establish());
        assert_eq!(state.get(), ConnectionState::Closed);

        let state = State::new();
        assert!(state.establish());
        assert!(!state.establish(), "a second event of the same kind");
        assert_eq!(state.get(), ConnectionState::Established);
        state.close();
        assert_eq!(state.get(), ConnectionState::Closed);
    }
}
