//! One owner for every kernel object: destroy once, never free under the device, never panic.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind, from_return};
use crate::process::Origin;

/// How long a destroy is retried while the kernel says EBUSY because of a command in progress.
const BUSY_LIMIT: Duration = Duration::from_millis(100);

/// A C object with a destroy call that returns 0 or an errno.
///
/// # Safety
/// `destroy` returning 0 must mean that neither library nor device uses the object any more, and a
/// failure that the object is as it was.
pub(crate) unsafe trait Destroy {
    /// The C name of the destroy call.
    const VERB: &'static str;

    /// Destroys the object.
    ///
    /// # Safety
    /// - `object` came from the matching create call and was not destroyed yet.
    /// - No other thread uses it.
    unsafe fn destroy(object: *mut Self) -> i32;
}

/// Owns a C object and whatever must outlive it.
///
/// `parents` is dropped after the object is destroyed. If it cannot be destroyed it is leaked with
/// all its parents: a leak is bounded, memory freed under a device is not.
pub(crate) struct Owned<T: Destroy, P> {
    raw: NonNull<T>,
    origin: Origin,
    parents: ManuallyDrop<P>,
}

// SAFETY: libibverbs lets any thread use an object (providers lock per queue), and the handle adds
// no state of its own beyond the parents, which must be Send for this to hold.
unsafe impl<T: Destroy, P: Send> Send for Owned<T, P> {}
// SAFETY: as above; `&Owned` only gives out the pointer, whose calls are thread-safe in C.
unsafe impl<T: Destroy, P: Sync> Sync for Owned<T, P> {}

impl<T: Destroy, P> Owned<T, P> {
    /// Takes over `raw`.
    ///
    /// # Safety
    /// - `raw` is a live object that nobody else destroys.
    /// - `parents` keeps everything alive that the object needs.
    pub(crate) unsafe fn new(raw: NonNull<T>, origin: Origin, parents: P) -> Self {
        Self {
            raw,
            origin,
            parents: ManuallyDrop::new(parents),
        }
    }

    #[inline]
    pub(crate) fn raw(&self) -> *mut T {
        self.raw.as_ptr()
    }

    /// The object, for the call `verb`, unless this is a forked child: the way to every C call.
    #[inline]
    pub(crate) fn raw_checked(&self, verb: &'static str) -> Result<*mut T, Error> {
        self.origin.check(verb)?;
        Ok(self.raw.as_ptr())
    }

    pub(crate) fn non_null(&self) -> NonNull<T> {
        self.raw
    }

    #[inline]
    pub(crate) fn origin(&self) -> Origin {
        self.origin
    }

    #[inline]
    pub(crate) fn parents(&self) -> &P {
        &self.parents
    }

    /// The same object with what keeps alive all that it needs from now on.
    pub(crate) fn with_parents<Q>(self, change: impl FnOnce(P) -> Q) -> Owned<T, Q> {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is never dropped, and this is the one place on this path that takes the
        // parents.
        let parents = unsafe { ManuallyDrop::take(&mut this.parents) };
        Owned {
            raw: this.raw,
            origin: this.origin,
            parents: ManuallyDrop::new(change(parents)),
        }
    }

    fn destroy(&mut self) -> Result<(), Error> {
        self.origin.check(T::VERB)?;
        let start = Instant::now();
        loop {
            // SAFETY: the object is live (this is the only place that destroys it, and success
            // ends the handle), and `&mut self` rules out other users of this handle.
            let ret = unsafe { T::destroy(self.raw.as_ptr()) };
            match from_return(T::VERB, ret) {
                Err(error) if error.kind() == ErrorKind::Busy && start.elapsed() < BUSY_LIMIT => {
                    thread::sleep(Duration::from_millis(1));
                }
                result => return result,
            }
        }
    }

    /// Destroys the object now, or gives it back with the reason.
    pub(crate) fn close(mut self) -> Result<(), (Error, Self)> {
        match self.destroy() {
            Ok(()) => {
                let mut this = ManuallyDrop::new(self);
                // SAFETY: the object is gone, `this` is never dropped, and this is the one place
                // on this path that takes the parents.
                unsafe { ManuallyDrop::drop(&mut this.parents) };
                Ok(())
            }
            Err(error) => Err((error, self)),
        }
    }
}

/// Destroys an object that clones may share, if this is the last one; otherwise gives it back, with
/// `in_use` as the reason.
pub(crate) fn close_shared<T: Destroy, P>(
    shared: Arc<Owned<T, P>>,
    in_use: &str,
) -> Result<(), (Error, Arc<Owned<T, P>>)> {
    match Arc::try_unwrap(shared) {
        Ok(owned) => owned
            .close()
            .map_err(|(error, owned)| (error, Arc::new(owned))),
        Err(shared) => Err((Error::refused(T::VERB, ErrorKind::Busy, in_use), shared)),
    }
}

impl<T: Destroy, P> Drop for Owned<T, P> {
    fn drop(&mut self) {
        match self.destroy() {
            // SAFETY: the object is gone and the handle is being dropped, so the parents are taken
            // exactly once.
            Ok(()) => unsafe { ManuallyDrop::drop(&mut self.parents) },
            // In a forked child the locks of a log may be held by threads that do not exist.
            Err(error) if error.kind() == ErrorKind::Forked => {}
            Err(error) => {
                tracing::warn!(%error, "object could not be destroyed; it is leaked with its parents");
            }
        }
    }
}

impl<T: Destroy, P> fmt::Debug for Owned<T, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:p}", self.raw)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI32, Ordering};

    use super::*;

    /// Answers EBUSY as often as it says, or always a fixed errno.
    struct Fake {
        busy: AtomicI32,
        errno: i32,
    }

    // SAFETY: the object is plain memory of the test that outlives the handle.
    unsafe impl Destroy for Fake {
        const VERB: &'static str = "fake_destroy";

        unsafe fn destroy(object: *mut Self) -> i32 {
            // SAFETY: the test keeps the object alive.
            let fake = unsafe { &*object };
            if fake.busy.fetch_sub(1, Ordering::Relaxed) > 0 {
                libc::EBUSY
            } else {
                fake.errno
            }
        }
    }

    fn owned(fake: &Fake, parent: &Arc<()>) -> Owned<Fake, Arc<()>> {
        let origin = Origin::current("test").expect("origin");
        // SAFETY: the reference outlives the handle in each test; nothing else destroys it.
        unsafe { Owned::new(NonNull::from(fake), origin, Arc::clone(parent)) }
    }

    /// Ends a leak that a test has brought about, so that a leak checker finds only others.
    fn take_back(parent: &Arc<()>) {
        // SAFETY: the leaked handle held one count of this very `Arc`, and is never dropped.
        unsafe { Arc::decrement_strong_count(Arc::as_ptr(parent)) };
    }

    #[test]
    fn a_short_busy_is_waited_out() {
        let (fake, parent) = (
            Fake {
                busy: 3.into(),
                errno: 0,
            },
            Arc::new(()),
        );
        assert!(owned(&fake, &parent).close().is_ok());
        assert_eq!(Arc::strong_count(&parent), 1);
    }

    #[test]
    fn a_failed_drop_leaks_the_parents_and_ends_within_the_limit() {
        let (fake, parent) = (
            Fake {
                busy: i32::MAX.into(),
                errno: 0,
            },
            Arc::new(()),
        );
        let start = Instant::now();
        drop(owned(&fake, &parent));
        assert!(start.elapsed() < Duration::from_secs(2));
        assert_eq!(Arc::strong_count(&parent), 2, "the parent must stay alive");
        take_back(&parent);
    }

    /// A log that is never to be written to.
    #[cfg(not(miri))]
    struct NoLog;

    #[cfg(not(miri))]
    impl tracing::Subscriber for NoLog {
        fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
            true
        }
        fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
            tracing::span::Id::from_u64(1)
        }
        fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
        fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
        fn event(&self, _: &tracing::Event<'_>) {
            // SAFETY: ends the process, which has nothing to finish.
            unsafe { libc::_exit(3) };
        }
        fn enter(&self, _: &tracing::span::Id) {}
        fn exit(&self, _: &tracing::span::Id) {}
    }

    #[test]
    #[cfg(not(miri))]
    fn a_drop_in_a_forked_child_logs_nothing() {
        let (fake, parent) = (
            Fake {
                busy: 0.into(),
                errno: 0,
            },
            Arc::new(()),
        );
        let handle = owned(&fake, &parent);
        // SAFETY: the child drops the handle, which takes no lock, and leaves by _exit.
        let child = unsafe { libc::fork() };
        if child == 0 {
            tracing::subscriber::with_default(NoLog, || drop(handle));
            // SAFETY: ends the child without running anything else.
            unsafe { libc::_exit(0) };
        }
        assert!(child > 0, "fork failed");
        let mut status = 0;
        // SAFETY: our own child, and a valid place for its status.
        let waited = unsafe { libc::waitpid(child, &mut status, 0) };
        assert_eq!(waited, child);
        assert_eq!(status, 0, "the child has logged, or was killed");
        assert!(handle.close().is_ok(), "the parent keeps its object");
    }

    #[test]
    fn a_failed_close_gives_the_handle_back() {
        let (fake, parent) = (
            Fake {
                busy: 0.into(),
                errno: libc::EINVAL,
            },
            Arc::new(()),
        );
        let (error, handle) = owned(&fake, &parent).close().expect_err("EINVAL");
        assert_eq!(error.errno(), Some(libc::EINVAL));
        assert_eq!(error.verb(), "fake_destroy");
        std::mem::forget(handle);
        take_back(&parent);
    }
}
