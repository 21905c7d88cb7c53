//! Deadlines, and waiting for descriptors until one.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::event::Timespec;

use crate::error::Error;

/// The moment at which a wait gives up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Instant);

impl Deadline {
    /// `timeout` from now; a timeout too long for the clock means a year.
    pub fn after(timeout: Duration) -> Self {
        const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
        let now = Instant::now();
        Self(now + timeout.min(YEAR))
    }

    /// The time that is left, zero once it has passed.
    pub fn remaining(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }

    /// Whether no time is left.
    pub fn has_passed(self) -> bool {
        self.remaining().is_zero()
    }

    /// The earlier of two deadlines.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        Self(self.0.min(other.0))
    }
}

/// Waits until one of `fds` is readable or has failed; the answer has one `bool` a descriptor, all
/// `false` once the deadline has passed.
///
/// # Errors
/// The errno of the system's calls: that of a descriptor that cannot be waited for among them.
#[doc(alias = "poll")]
pub fn wait_readable<const N: usize>(
    fds: [BorrowedFd<'_>; N],
    deadline: Deadline,
) -> Result<[bool; N], Error> {
    loop {
        let left = deadline.remaining();
        let timeout = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        };
        match poll(fds, &timeout) {
            // A poll of many years can end early; only an expired deadline ends the wait.
            Ok(ready) if !ready.contains(&true) && !deadline.has_passed() => {}
            Ok(ready) => return Ok(ready),
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(Error::from_errno("poll", errno.raw_os_error())),
        }
    }
}

/// Waits once; says which descriptors are readable or have failed.
#[cfg(not(miri))]
fn poll<const N: usize>(
    fds: [BorrowedFd<'_>; N],
    timeout: &Timespec,
) -> rustix::io::Result<[bool; N]> {
    use rustix::event::{PollFd, PollFlags, poll};

    let mut polled = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    poll(&mut polled, Some(timeout))?;
    Ok(polled.map(|fd| !fd.revents().is_empty()))
}

/// Miri has epoll only, and of that the edge-triggered kind, which begins with what is ready.
#[cfg(miri)]
fn poll<const N: usize>(
    fds: [BorrowedFd<'_>; N],
    timeout: &Timespec,
) -> rustix::io::Result<[bool; N]> {
    use rustix::event::epoll;

    let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for (index, fd) in fds.into_iter().enumerate() {
        let what = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&set, fd, epoll::EventData::new_u64(index as u64), what)?;
    }
    let none = epoll::Event {
        flags: epoll::EventFlags::empty(),
        data: epoll::EventData::new_u64(0),
    };
    let mut events = [none; N];
    let count = epoll::wait(&set, &mut events, Some(timeout))?;
    let mut ready = [false; N];
    for event in &events[..count] {
        // The data is one of the indices given above.
        ready[usize::try_from(event.data.u64()).unwrap_or(0)] = true;
    }
    Ok(ready)
}

/// Calls `attempt` until it gives something, sleeping until `fd` is readable in between; `None` once
/// the deadline has passed and one more attempt gave nothing.
///
/// Ends at the deadline also when the descriptor stays readable and nothing ever comes of it, as
/// when another thread is faster each time, or the device has failed.
///
/// # Errors
/// The first of `attempt`, and those of [`wait_readable`].
pub fn wait_for<T, E: From<Error>>(
    fd: BorrowedFd<'_>,
    deadline: Deadline,
    mut attempt: impl FnMut() -> Result<Option<T>, E>,
) -> Result<Option<T>, E> {
    let (mut was_readable, mut over) = (false, false);
    loop {
        // The clock is not asked before there is a reason to wait.
        if let Some(got) = attempt()? {
            return Ok(Some(got));
        }
        if over {
            return Ok(None);
        }
        if was_readable {
            // Readable and yet nothing: not again at once, or this would keep a processor busy.
            std::thread::sleep(Duration::from_millis(1).min(deadline.remaining()));
        }
        was_readable = wait_readable([fd], deadline)?[0];
        over = deadline.has_passed();
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Write, pipe};
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_wait_ends_at_its_deadline() {
        let (a, _b) = pipe().expect("pipe");
        let start = Instant::now();
        let deadline = Deadline::after(Duration::from_millis(50));
        assert_eq!(wait_readable([a.as_fd()], deadline).expect("poll"), [false]);
        assert!((50..1000).contains(&start.elapsed().as_millis()));
    }

    #[test]
    fn a_wait_tells_which_descriptor_is_readable() {
        let (a, _keep) = pipe().expect("pipe");
        let (b, mut peer) = pipe().expect("pipe");
        peer.write_all(b"x").expect("write");
        let deadline = Deadline::after(Duration::from_secs(5));
        let ready = wait_readable([a.as_fd(), b.as_fd()], deadline).expect("poll");
        assert_eq!(ready, [false, true]);
    }

    #[test]
    fn a_descriptor_that_stays_readable_for_nothing_does_not_keep_a_wait_from_ending() {
        let (a, mut peer) = pipe().expect("pipe");
        peer.write_all(b"x").expect("write");
        let start = Instant::now();
        let deadline = Deadline::after(Duration::from_millis(50));
        let mut attempts = 0;
        let got = wait_for(a.as_fd(), deadline, || {
            attempts += 1;
            Ok::<Option<()>, Error>(None)
        });
        assert_eq!(got.expect("no error"), None);
        assert!((50..1000).contains(&start.elapsed().as_millis()));
        assert!(attempts < 200, "{attempts} attempts in 50 ms");
    }

    #[test]
    fn what_is_there_already_is_taken_after_the_deadline_too() {
        let (a, _keep) = pipe().expect("pipe");
        let got = wait_for(a.as_fd(), Deadline::after(Duration::ZERO), || {
            Ok::<_, Error>(Some(7))
        });
        assert_eq!(got.expect("no error"), Some(7));
    }

    #[test]
    fn the_longest_timeout_does_not_overflow() {
        assert!(!Deadline::after(Duration::MAX).has_passed());
    }
}
