//! Ending the work of a queue pair so that every request is accounted for.

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::post::{PostError, PostErrorKind};
use super::request::{RecvRequest, SendRequest};
use super::state::{QpState, QpType};
use super::{Parents, QueuePair};
use crate::ah::{Address, AddressHandle};
use crate::cq::{CqInner, WorkCompletion};
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind};
use crate::flags::SendFlags;

/// How long a queue pair in the error state must be silent before its queues are taken for empty,
/// where a completion queue has no entry to spare for a marker.
const SILENCE: Duration = Duration::from_millis(50);

/// How far one of the two queues has been drained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    /// The marker could not be posted yet: there is no room for it.
    Unmarked,
    /// The marker is the last request in the queue.
    Marked,
    /// The marker has come out, and so has everything before it; or nothing can be in the queue.
    Drained,
}

/// The numbers of the last requests that one drain posts: no two drains of a process have the same,
/// since one that was given up leaves its own behind.
#[derive(Debug, Clone, Copy)]
struct Markers(u64);

impl Markers {
    /// What all have in their upper 40 bits.
    const PREFIX: u64 = 0x64_7261_696e;

    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = u64::from(NEXT.fetch_add(1, Ordering::Relaxed)) & 0x7f_ffff;
        Self(Self::PREFIX << 24 | number << 1)
    }

    const fn send(self) -> u64 {
        self.0
    }

    const fn recv(self) -> u64 {
        self.0 | 1
    }
}

/// The two queues of a queue pair on the way to being empty.
struct Drain<'a> {
    qp: &'a QueuePair,
    markers: Markers,
    /// An address for the marker, which a datagram needs also where it is never sent.
    address: Option<AddressHandle>,
    send: Side,
    recv: Side,
    /// The completion queues; once where both are the same.
    queues: Vec<Queue<'a>>,
}

/// A completion queue that is emptied.
struct Queue<'a> {
    cq: &'a CqInner,
    /// Entries that are certain to be free for a marker: those that nobody was promised, and those
    /// whose completions came out.
    free: u32,
}

impl QueuePair {
    /// Whether `wr_id` is the number of a request that [`drain`](Self::drain) posts as the last of a
    /// queue, for those who poll after a drain that was given up. The upper 40 bits of these numbers
    /// are `0x64_7261_696e`; requests of others must not have them.
    pub const fn is_drain_marker(wr_id: u64) -> bool {
        wr_id >> 24 == Markers::PREFIX
    }

    /// Takes the queue pair to the error state and gives every completion to `on_completion`, until
    /// all requests posted before have completed or been flushed. After `Ok` the device reaches no
    /// memory for them.
    ///
    /// Completions of other queue pairs in the same completion queues are given to `on_completion`
    /// as well; nobody else may poll these queues meanwhile. Receives in a shared receive queue stay
    /// there. Requests that other threads post during the call may be left in the queues.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`] when not all came before the deadline; the call may be repeated.
    pub fn drain(
        &self,
        deadline: Deadline,
        mut on_completion: impl FnMut(&WorkCompletion),
    ) -> Result<(), Error> {
        self.owned.raw_checked("ibv_modify_qp")?;
        if self.state() == QpState::RESET {
            // Takes no requests, so none can be in the queues.
            return Ok(());
        }
        let mut drain = Drain::new(self)?;
        // What is there already needs its entries no longer.
        while drain.take(&mut on_completion)? {}
        let (mut in_error, mut silent_since) = (false, Instant::now());
        loop {
            let over = deadline.has_passed();
            let silent = in_error && silent_since.elapsed() >= SILENCE;
            if drain.recv == Side::Unmarked && drain.mark_recv(silent)? {
                // SoftRoCE looks at receives posted in the error state only when it is set again.
                in_error = false;
            }
            if !in_error {
                self.set_error()?;
                in_error = true;
            }
            if drain.send == Side::Unmarked {
                drain.mark_send(silent)?;
            }
            let idle = !drain.take(&mut on_completion)?;
            if [drain.send, drain.recv] == [Side::Drained; 2] {
                return Ok(());
            }
            if !idle {
                silent_since = Instant::now();
                continue;
            }
            if over {
                return Err(Error::refused(
                    "ibv_poll_cq",
                    ErrorKind::TimedOut,
                    format!(
                        "requests of queue pair {} have not come back before the deadline",
                        self.number()
                    ),
                ));
            }
            thread::sleep(Duration::from_micros(200).min(deadline.remaining()));
        }
    }

    /// A handle for our own port.
    fn own_address(&self) -> Result<AddressHandle, Error> {
        let port = self.query()?.0.port();
        let context = self.context();
        let choice = context.choose_gid(port, None)?;
        let address = Address {
            dlid: context.query_port(port)?.as_raw().lid,
            ..Address::roce(port, choice.sgid_index()?, choice.entry.gid)
        };
        AddressHandle::new(self.pd(), &address)
    }
}

impl<'a> Drain<'a> {
    fn new(qp: &'a QueuePair) -> Result<Self, Error> {
        let start = |nothing| {
            if nothing {
                Side::Drained
            } else {
                Side::Unmarked
            }
        };
        let sizes = qp.facts.capabilities;
        let send = start(qp.state().raw() < QpState::RTS.raw() || sizes.max_send_wr == 0);
        let recv = start(qp.facts.has_srq || sizes.max_recv_wr == 0);
        let address = if qp.qp_type() == QpType::UD && send != Side::Drained {
            Some(qp.own_address()?)
        } else {
            None
        };
        let Parents {
            send_cq, recv_cq, ..
        } = &**qp.owned.parents();
        let mut queues = vec![Queue::new(send_cq)];
        if !ptr::eq(&**send_cq, &**recv_cq) {
            queues.push(Queue::new(recv_cq));
        }
        Ok(Self {
            qp,
            markers: Markers::new(),
            address,
            send,
            recv,
            queues,
        })
    }

    /// Posts the marker of the receive queue, if there is room; whether it was posted.
    fn mark_recv(&mut self, silent: bool) -> Result<bool, Error> {
        let queue = self.queues.last_mut();
        let Some(queue) = queue.filter(|queue| queue.free > 0 || silent) else {
            return Ok(false);
        };
        let mut request = RecvRequest::new(self.markers.recv(), &[]);
        // SAFETY: the request has no memory.
        self.recv = marked(unsafe { self.qp.post_recv(&mut request) })?;
        let posted = self.recv == Side::Marked;
        queue.free = queue.free.saturating_sub(u32::from(posted));
        Ok(posted)
    }

    /// Posts the marker of the send queue, if there is room.
    fn mark_send(&mut self, silent: bool) -> Result<(), Error> {
        let queue = self.queues.first_mut();
        let Some(queue) = queue.filter(|queue| queue.free > 0 || silent) else {
            return Ok(());
        };
        let wr_id = self.markers.send();
        let mut request = match &self.address {
            None => SendRequest::send(wr_id, &[]),
            Some(address) => SendRequest::datagram(wr_id, &[], address, 1, 0),
        }
        .with_flags(SendFlags::SIGNALED);
        // SAFETY: the request has no memory; in the error state it is flushed, so that no device
        // looks its address up later.
        self.send = marked(unsafe { self.qp.post_send(&mut request) })?;
        queue.free = queue
            .free
            .saturating_sub(u32::from(self.send == Side::Marked));
        Ok(())
    }

    /// Takes some of what is in the completion queues; whether there was anything.
    fn take(&mut self, on_completion: &mut impl FnMut(&WorkCompletion)) -> Result<bool, Error> {
        let mut any = false;
        for queue in &mut self.queues {
            let mut out = [const { MaybeUninit::uninit() }; 16];
            for completion in queue.cq.poll(&mut out)?.iter() {
                any = true;
                let (ours, wr_id) = (completion.qp_num() == self.qp.number(), completion.wr_id());
                if ours && wr_id == self.markers.send() {
                    self.send = Side::Drained;
                } else if ours && wr_id == self.markers.recv() {
                    self.recv = Side::Drained;
                } else {
                    queue.free += u32::from(ours);
                    // Those of an earlier drain are of no interest.
                    if !ours || !QueuePair::is_drain_marker(wr_id) {
                        on_completion(completion);
                    }
                }
            }
        }
        Ok(any)
    }
}

impl<'a> Queue<'a> {
    fn new(cq: &'a CqInner) -> Self {
        Self {
            cq,
            free: cq.room.spare(),
        }
    }
}

/// What posting a marker has come to.
fn marked(posted: Result<(), PostError>) -> Result<Side, Error> {
    match posted {
        Ok(()) => Ok(Side::Marked),
        Err(error) if error.kind == PostErrorKind::QueueFull => Ok(Side::Unmarked),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_drains_have_the_same_markers() {
        let (one, two) = (Markers::new(), Markers::new());
        let mut all = [one.send(), one.recv(), two.send(), two.recv()];
        assert!(all.iter().all(|&wr_id| QueuePair::is_drain_marker(wr_id)));
        all.sort_unstable();
        assert!(all.windows(2).all(|pair| pair[0] != pair[1]), "{all:x?}");
        for wr_id in [0, u64::MAX, Markers::PREFIX, (Markers::PREFIX + 1) << 24] {
            assert!(!QueuePair::is_drain_marker(wr_id));
        }
    }

    #[test]
    fn a_full_queue_is_marked_later_and_any_other_refusal_is_an_error() {
        assert_eq!(marked(Ok(())).ok(), Some(Side::Marked));
        let refused = |kind| Err(PostError { kind, queued: 0 });
        assert_eq!(
            marked(refused(PostErrorKind::QueueFull)).ok(),
            Some(Side::Unmarked)
        );
        let error = marked(refused(PostErrorKind::Provider(libc::EIO))).expect_err("EIO");
        assert_eq!(error.errno(), Some(libc::EIO));
    }
}
