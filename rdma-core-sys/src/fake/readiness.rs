//! A descriptor that is readable while a queue has something.

use core::ffi::c_int;
use core::ptr;
use std::io;
use std::prelude::rust_2024::*;

use super::violation;

/// The two ends of a pipe with at most one byte in it. A pipe, because it is what Miri can poll and make non-blocking.
#[derive(Debug)]
pub(super) struct Readiness {
    read: c_int,
    write: c_int,
    shown: bool,
}

impl Readiness {
    /// A descriptor that is not readable, or the errno.
    pub(super) fn new() -> Result<Self, c_int> {
        let mut ends = [-1; 2];
        // SAFETY: there is room for the two descriptors.
        let ret = unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) };
        if ret != 0 {
            return Err(io::Error::last_os_error()
                .raw_os_error()
                .unwrap_or(libc::EMFILE));
        }
        Ok(Self {
            read: ends[0],
            write: ends[1],
            shown: false,
        })
    }

    pub(super) fn fd(&self) -> c_int {
        self.read
    }

    /// Whether who reads asked not to be kept waiting.
    pub(super) fn is_non_blocking(&self) -> bool {
        // SAFETY: the descriptor is open as long as this object.
        let flags = unsafe { libc::fcntl(self.read, libc::F_GETFL) };
        flags & libc::O_NONBLOCK != 0
    }

    /// Makes the descriptor readable, or not. All of this happens under the world's lock, so the pipe never blocks.
    pub(super) fn show(&mut self, ready: bool) {
        if ready == self.shown {
            return;
        }
        let mut byte = 1_u8;
        let done = if ready {
            // SAFETY: the descriptor is open and the byte is live.
            unsafe { libc::write(self.write, ptr::from_ref(&byte).cast(), 1) }
        } else {
            // SAFETY: the descriptor is open and there is room for the byte.
            unsafe { libc::read(self.read, ptr::from_mut(&mut byte).cast(), 1) }
        };
        if done != 1 {
            violation("somebody else read from or closed an event descriptor");
        }
        self.shown = ready;
    }
}

impl Drop for Readiness {
    fn drop(&mut self) {
        for fd in [self.read, self.write] {
            // SAFETY: the descriptor is ours and closed once.
            unsafe { libc::close(fd) };
        }
    }
}
