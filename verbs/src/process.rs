//! Knowing, without a system call, whether this is still the process that made an object.

use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, Ordering};

use rdma_core_sys as sys;

use crate::error::{Error, ErrorKind};
use crate::flags::open_enum;

/// The process that made an object.
///
/// Verbs objects are shared mappings and descriptors of one process: in a child they would work on
/// the parent's queues. So every object remembers its process, and in a child every call fails and
/// every drop leaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    /// Not 0 in the process that made the object, 0 in all its descendants. Each process that makes
    /// objects has a word of its own, which is written before anybody else knows it, never again,
    /// and never unmapped.
    ///
    /// No reference: the compiler might take the word for constant across a fork. No atomic: it
    /// would load the word before it compares it.
    alive: NonNull<u32>,
}

// SAFETY: what it points to is never written while others know it, and is there for ever.
unsafe impl Send for Origin {}
// SAFETY: as above.
unsafe impl Sync for Origin {}

impl Origin {
    /// The process running now. Called when an object is made.
    ///
    /// # Errors
    /// [`ErrorKind::Environment`] when the kernel cannot tell a child from its parent (before
    /// Linux 4.14).
    pub fn current(verb: &'static str) -> Result<Self, Error> {
        // Inherited by children, in which the word is 0.
        static NOW: AtomicPtr<u32> = AtomicPtr::new(ptr::null_mut());
        let known = NOW.load(Ordering::Acquire);
        if let Some(alive) = NonNull::new(known) {
            let origin = Self { alive };
            if origin.is_current() {
                return Ok(origin);
            }
        }
        let alive = new_word().ok_or_else(|| {
            Error::refused(
                verb,
                ErrorKind::Environment,
                "cannot map the page that detects a fork (madvise MADV_WIPEONFORK, Linux 4.14)",
            )
        })?;
        let ours = alive.as_ptr();
        match NOW.compare_exchange(known, ours, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(Self { alive }),
            // Another thread was faster: a page is lost, once, and null is never put there.
            Err(theirs) => Ok(Self {
                alive: NonNull::new(theirs).unwrap_or(alive),
            }),
        }
    }

    /// Whether this is still the process that made the object: one comparison.
    #[inline]
    pub fn is_current(self) -> bool {
        // SAFETY: the word is mapped for ever, and nothing in this process writes it any more.
        unsafe { *self.alive.as_ptr() != 0 }
    }

    /// An error if this is a forked child of the process that made the object.
    ///
    /// # Errors
    /// [`ErrorKind::Forked`](crate::ErrorKind::Forked), in such a child.
    #[inline]
    pub fn check(self, verb: &'static str) -> Result<(), Error> {
        if self.is_current() {
            Ok(())
        } else {
            Err(Error::forked(verb))
        }
    }
}

/// A word that is not 0, and that the kernel zeroes in every child, however it was made.
#[cfg(not(miri))]
fn new_word() -> Option<NonNull<u32>> {
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};

    // The kernel rounds up to a page. Asking for its size reads /proc/self/auxv in rustix, which a
    // process that has given up root's rights may not.
    let length = size_of::<u32>();
    // SAFETY: a new private mapping at an address of the kernel's choice replaces nothing.
    let page = unsafe {
        mmap_anonymous(
            ptr::null_mut(),
            length,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        )
    }
    .ok()?;
    // SAFETY: the range is the mapping just made, which nothing else uses yet.
    unsafe { madvise(page, length, Advice::LinuxWipeOnFork) }.ok()?;
    let word = NonNull::new(page.cast::<u32>())?;
    // SAFETY: the mapping is page-aligned and writable, and nothing else uses it yet.
    unsafe { word.write(1) };
    Some(word)
}

#[cfg(miri)]
fn new_word() -> Option<NonNull<u32>> {
    Some(NonNull::from(Box::leak(Box::new(1))))
}

open_enum! {
    /// What a fork does to memory that is registered.
    #[doc(alias = "ibv_fork_status")]
    ForkSupport(u32) {
        /// The child may get the parent's pages: the parent's registrations go stale.
        DISABLED = sys::ibv_fork_status::IBV_FORK_DISABLED.0, "disabled";
        /// Registered pages are left out of the child.
        ENABLED = sys::ibv_fork_status::IBV_FORK_ENABLED.0, "enabled";
        /// The kernel copies registered pages for the child (Linux 5.12 and later).
        UNNEEDED = sys::ibv_fork_status::IBV_FORK_UNNEEDED.0, "not needed";
    }
}

/// What a fork does to the parent's registrations. In the child they cannot be used in any case.
#[doc(alias = "ibv_is_fork_initialized")]
pub fn fork_support() -> ForkSupport {
    // SAFETY: the call has no precondition.
    ForkSupport::from_raw(unsafe { sys::ibv_is_fork_initialized() }.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_made_here_is_current() {
        let origin = Origin::current("test").expect("the page can be mapped");
        assert!(origin.is_current());
        assert!(origin.check("test").is_ok());
    }

    #[test]
    #[cfg(not(miri))]
    fn an_object_is_foreign_in_a_forked_child() {
        let origin = Origin::current("test").expect("the page can be mapped");
        // SAFETY: the child uses atomics only and leaves by _exit, so no lock held by another thread
        // of the parent matters.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let before = origin.is_current();
            // A child that makes objects of its own does not take the parent's for them.
            let own = Origin::current("test").expect("the page is mapped");
            let code = i32::from(before || origin.is_current() || !own.is_current());
            // SAFETY: _exit ends the child without running anything else.
            unsafe { libc::_exit(code) };
        }
        assert!(child > 0, "fork failed");
        let mut status = 0;
        // SAFETY: `status` is a valid place for the wait status of our own child.
        let waited = unsafe { libc::waitpid(child, &mut status, 0) };
        assert_eq!(waited, child);
        assert!(libc::WIFEXITED(status));
        assert_eq!(
            libc::WEXITSTATUS(status),
            0,
            "the child took the object for its own"
        );
        assert!(origin.is_current(), "the parent keeps its object");
    }
}
