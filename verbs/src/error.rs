//! What can go wrong, and what to do about it.

use std::fmt;
use std::io;

/// What kind of failure an [`Error`] is, for code that has to decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The C library or the kernel refused; [`Error::errno`] says how.
    Provider,
    /// There is no RDMA device, or none of the name asked for.
    NoDevice,
    /// The port exists but is not active.
    PortDown,
    /// The port has no address that can be used, or not the one asked for.
    NoUsableGid,
    /// A device limit would be exceeded.
    Limit,
    /// An argument can never be right.
    InvalidArgument,
    /// Objects that depend on this one still exist.
    Busy,
    /// The queue has no free slot: poll the completion queue, then post again.
    QueueFull,
    /// Neither the device nor the library offers this.
    Unsupported,
    /// The object was made before a `fork`, and this is the child.
    Forked,
    /// The deadline passed first.
    TimedOut,
    /// The queue reports its completion events on a channel that other queues use as well.
    SharedChannel,
    /// The queue was made without a completion channel, so there is nothing to wait on.
    NoChannel,
    /// An environment variable asks for behaviour under which the rules of this crate do not hold.
    Environment,
}

/// A verb that failed: which, with what errno, and what to try.
///
/// `Display` gives one sentence without a line break; [`hint`](Self::hint) adds advice where users
/// are known to stumble.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error(Box<Inner>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Inner {
    kind: ErrorKind,
    verb: &'static str,
    errno: Option<i32>,
    detail: Option<String>,
    hint: Option<String>,
}

impl Error {
    /// A failure of the C call `verb` with `errno`, negated or not, as calls return either.
    pub fn from_errno(verb: &'static str, errno: i32) -> Self {
        let errno = errno.saturating_abs();
        let kind = match errno {
            libc::EOPNOTSUPP | libc::ENOSYS | libc::EPROTONOSUPPORT => ErrorKind::Unsupported,
            libc::EBUSY => ErrorKind::Busy,
            libc::ETIMEDOUT => ErrorKind::TimedOut,
            _ => ErrorKind::Provider,
        };
        Self(Box::new(Inner {
            kind,
            verb,
            // A call that fails without a reason must not print as "Success".
            errno: (errno != 0).then_some(errno),
            detail: None,
            hint: hint(verb, errno),
        }))
    }

    /// A failure of the C call `verb` whose errno stands in the thread's `errno`.
    ///
    /// Must run before any other call that may set `errno`.
    pub fn last_os(verb: &'static str) -> Self {
        Self::from_errno(verb, last_errno())
    }

    /// A refusal of ours, before any C call.
    pub fn refused(verb: &'static str, kind: ErrorKind, detail: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            kind,
            verb,
            errno: None,
            detail: Some(detail.into()),
            hint: None,
        }))
    }

    /// The answer of every call on an object that was inherited through a `fork`.
    pub fn forked(verb: &'static str) -> Self {
        Self::refused(
            verb,
            ErrorKind::Forked,
            "the object belongs to the parent process; RDMA objects do not survive fork",
        )
        .with_hint("create the RDMA objects in the process that uses them, after the fork")
    }

    /// The same error with what was asked of the call.
    #[must_use]
    pub fn with_detail(mut self, detail: impl Into<String>) -> Self {
        self.0.detail = Some(detail.into());
        self
    }

    /// What was asked of the call, where it is known.
    pub fn detail(&self) -> Option<&str> {
        self.0.detail.as_deref()
    }

    /// The same error with other advice.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.0.hint = Some(hint.into());
        self
    }

    /// The same error with another kind.
    #[must_use]
    pub fn with_kind(mut self, kind: ErrorKind) -> Self {
        self.0.kind = kind;
        self
    }

    /// What kind of failure this is.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The C function that failed, or that would have been called.
    pub fn verb(&self) -> &'static str {
        self.0.verb
    }

    /// The (positive) errno of the C call that failed, or that was spared because it would have.
    pub fn errno(&self) -> Option<i32> {
        self.0.errno
    }

    /// What to try, where that is known.
    pub fn hint(&self) -> Option<&str> {
        self.0.hint.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &*self.0;
        write!(f, "{} failed", inner.verb)?;
        if let Some(detail) = &inner.detail {
            write!(f, ": {detail}")?;
        }
        if let Some(errno) = inner.errno {
            write!(f, ": {}", ErrnoText(errno))?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

/// Prints an errno as the system's words and its number, `Cannot allocate memory (errno 12)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ErrnoText(
    /// The positive errno.
    pub i32,
);

impl fmt::Display for ErrnoText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = io::Error::from_raw_os_error(self.0).to_string();
        let words = text.split(" (os error").next().unwrap_or_default();
        write!(f, "{words} (errno {})", self.0)
    }
}

/// An object that could not be closed, given back together with the reason.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct CloseError<T: fmt::Debug> {
    /// Why it could not be closed.
    #[source]
    pub error: Error,
    /// The object, as usable as before.
    pub handle: T,
}

/// The calling thread's `errno`.
pub(crate) fn last_errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// For calls that return 0 or an errno (of either sign: some providers negate it).
pub(crate) fn from_return(verb: &'static str, ret: i32) -> Result<(), Error> {
    match ret {
        0 => Ok(()),
        // `-1` means "see errno" in calls that mix the conventions; EPERM is never returned negated.
        -1 => Err(Error::last_os(verb)),
        errno => Err(Error::from_errno(verb, errno)),
    }
}

/// For calls that return a pointer, or NULL with `errno` set.
pub(crate) fn from_pointer<T>(
    verb: &'static str,
    pointer: *mut T,
) -> Result<std::ptr::NonNull<T>, Error> {
    std::ptr::NonNull::new(pointer).ok_or_else(|| Error::last_os(verb))
}

/// Advice for the failures that users are known to meet.
fn hint(verb: &'static str, errno: i32) -> Option<String> {
    Some(match (verb, errno) {
        ("ibv_get_device_list", libc::ENOSYS) => {
            "load the module ib_uverbs (modprobe ib_uverbs)".to_owned()
        }
        ("ibv_open_device", libc::EACCES | libc::EPERM) => {
            "the files in /dev/infiniband must be readable and writable by this user".to_owned()
        }
        (
            "ibv_reg_mr" | "ibv_create_cq" | "ibv_create_cq_ex" | "ibv_create_qp"
            | "ibv_create_qp_ex" | "ibv_create_srq",
            libc::ENOMEM,
        ) => memlock_hint(),
        ("ibv_reg_mr", libc::EINVAL) => {
            "remote write or atomic access needs local write as well, and the length must not be 0"
                .to_owned()
        }
        ("ibv_reg_mr", libc::EFAULT) => {
            "the whole range must be mapped, and writable where the access allows writing"
                .to_owned()
        }
        ("ibv_modify_qp", libc::ETIMEDOUT) => {
            "the neighbour could not be resolved: check the GID index, the address and the route"
                .to_owned()
        }
        _ => return None,
    })
}

/// The usual reason for ENOMEM: what this process may pin.
fn memlock_hint() -> String {
    let limit = if cfg!(miri) {
        // Not a call that Miri has.
        None
    } else {
        rustix::process::getrlimit(rustix::process::Resource::Memlock).current
    };
    match limit {
        Some(bytes) => format!(
            "this process may pin {} KiB of memory (ulimit -l); raise the limit or register less",
            bytes / 1024
        ),
        None => "the locked-memory limit is unlimited: the device or the machine has run out of \
                 memory or of objects"
            .to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_without_errno_never_prints_success() {
        let error = Error::from_errno("ibv_create_cq", 0);
        assert_eq!(error.errno(), None);
        assert_eq!(error.to_string(), "ibv_create_cq failed");
    }

    #[test]
    fn every_errno_that_says_unsupported_is_the_same_kind() {
        // Kernel and library refuse the same thing with different numbers.
        for errno in [95, 93, libc::ENOSYS] {
            let error = from_return("ibv_resize_cq", errno).unwrap_err();
            assert_eq!(
                (error.kind(), error.errno()),
                (ErrorKind::Unsupported, Some(errno))
            );
            // Some providers negate it.
            let error = from_return("ibv_post_send", -errno).unwrap_err();
            assert_eq!(
                (error.kind(), error.errno()),
                (ErrorKind::Unsupported, Some(errno))
            );
        }
        assert_eq!((libc::EOPNOTSUPP, libc::EPROTONOSUPPORT), (95, 93));
        let other = from_return("ibv_resize_cq", libc::EINVAL).unwrap_err();
        assert_eq!(other.kind(), ErrorKind::Provider);
    }
}
