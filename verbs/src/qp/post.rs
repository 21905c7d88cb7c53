//! Posting, with the checks that providers leave out.

use std::fmt;
use std::ptr;

use rdma_core_sys as sys;

use super::QueuePair;
use super::check::Together;
use super::opcodes::WrOpcode;
use super::request::{RecvRequest, SendRequest};
use super::state::QpState;
use crate::error::{ErrnoText, Error, ErrorKind};

/// Why a post was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostErrorKind {
    /// The queue has no free slot. Poll the completion queue, then post again.
    #[error("the queue is full")]
    QueueFull,
    /// The queue pair is not in a state that takes this request.
    #[error("the queue pair is in state {0}")]
    State(QpState),
    /// More SGEs than the queue pair was made for.
    #[error("{given} scatter/gather elements, the queue pair was made for {max}")]
    TooManySges {
        /// How many the request has.
        given: u32,
        /// How many it may have.
        max: u32,
    },
    /// More inline bytes than the queue pair was made for.
    #[error("{given} bytes inline, the queue pair was made for {max}")]
    InlineTooLong {
        /// How many bytes the request has.
        given: u64,
        /// How many it may have.
        max: u32,
    },
    /// The flag INLINE on an operation that has no data of ours to copy.
    #[error("{0} cannot be inline")]
    InlineNotAllowed(WrOpcode),
    /// The type of the queue pair, or the device's transport, does not have this operation.
    #[error("the queue pair's transport does not offer {what}{}", instead(*.0), what = .0)]
    Unsupported(WrOpcode),
    /// An operation that the extended queue pair was not made for.
    #[error("the queue pair was not made for {0}: name it when it is built")]
    NotAskedFor(WrOpcode),
    /// Several SGEs of different length in a batch on SoftRoCE, where older libraries send a wrong
    /// number of bytes: use one SGE, or [`QueuePair::post_send`].
    #[error(
        "scatter/gather elements of different length in a batch, which SoftRoCE may send wrongly: \
         use one, or post it outside of a batch"
    )]
    UnequalSges,
    /// An atomic on something else than 8 aligned bytes.
    #[error("an atomic works on 8 bytes at a multiple of 8, not on {len} at {addr:#x}")]
    NotEightBytes {
        /// The address at the peer.
        addr: u64,
        /// How many bytes there are for the result.
        len: u64,
    },
    /// A receive for a queue pair that takes its receives from a shared receive queue, or none at
    /// all (XRC_SEND).
    #[error("the queue pair has no receive queue of its own: post to its shared receive queue")]
    SharedReceives,
    /// A datagram without an address handle of this device.
    #[error("a datagram needs an address handle of the queue pair's device")]
    NoAddress,
    /// A destination on a queue pair that is not of type UD.
    #[error("only a queue pair of type UD sends to an address handle")]
    UnexpectedAddress,
    /// This is a forked child of the process that made the queue pair.
    #[error("the queue belongs to the parent process")]
    Forked,
    /// The provider refused; the errno is positive.
    #[error("the provider refused it: {}", ErrnoText(*.0))]
    Provider(i32),
}

/// What does the same on a transport without the operation: advice to append.
fn instead(opcode: WrOpcode) -> &'static str {
    match opcode {
        WrOpcode::SEND_WITH_IMM | WrOpcode::RDMA_WRITE_WITH_IMM => {
            ": put the number into a message of its own, after the data"
        }
        WrOpcode::ATOMIC_FETCH_AND_ADD | WrOpcode::ATOMIC_CMP_AND_SWP => {
            ": ask the peer by a message of its own to change the value"
        }
        _ => "",
    }
}

/// A post that was refused, and how much of the list was taken all the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PostError {
    /// Why.
    pub kind: PostErrorKind,
    /// How many requests from the start of the list the queue took. They will complete, and their
    /// memory belongs to the device until then.
    pub queued: usize,
}

impl PostError {
    pub(super) fn refused(kind: PostErrorKind) -> Self {
        Self { kind, queued: 0 }
    }

    pub(crate) fn forked() -> Self {
        Self::refused(PostErrorKind::Forked)
    }
}

impl fmt::Display for PostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "request not posted: {}", self.kind)?;
        if self.queued > 0 {
            write!(f, " ({} of the list may still be carried out)", self.queued)?;
        }
        Ok(())
    }
}

impl std::error::Error for PostError {}

impl From<PostError> for Error {
    fn from(error: PostError) -> Self {
        // Which of them it was is not kept: an error of a post is to be small.
        let verb = "ibv_post_send, ibv_post_recv or ibv_post_srq_recv";
        match error.kind {
            PostErrorKind::Provider(errno) => Self::from_errno(verb, errno),
            PostErrorKind::Forked => Self::forked(verb),
            kind @ PostErrorKind::QueueFull => {
                Self::refused(verb, ErrorKind::QueueFull, kind.to_string())
            }
            kind @ PostErrorKind::Unsupported(_) => {
                Self::refused(verb, ErrorKind::Unsupported, kind.to_string())
            }
            kind => Self::refused(verb, ErrorKind::InvalidArgument, kind.to_string()),
        }
    }
}

impl QueuePair {
    /// Posts one request to the send queue.
    ///
    /// # Errors
    /// [`PostErrorKind`]; with `queued` 1 the request may still be carried out.
    ///
    /// # Safety
    /// Until the request has completed (its completion, or that of a later request of this queue,
    /// was polled), the queue pair is destroyed, or the region is closed, for every SGE:
    /// - the range lies in a live memory region of this queue pair's domain with that key, or the
    ///   device refuses it; memory that is not registered is never reached.
    /// - no Rust reference to the range exists that the device's access would break: none at all
    ///   for a read, no `&mut` otherwise.
    ///
    /// With [`SendFlags::INLINE`](crate::SendFlags::INLINE) instead: every range is readable during the call.
    ///
    /// A datagram's address handle, or a clone of it, lives until then as well: a device that looks
    /// it up late may find another one in its place.
    #[doc(alias = "ibv_post_send")]
    #[inline(always)]
    pub unsafe fn post_send(&self, request: &mut SendRequest<'_>) -> Result<(), PostError> {
        request.link(ptr::null_mut());
        let mut bad = ptr::null_mut();
        let answer = if self.passes(request) {
            // SAFETY: the queue pair is live, the list is this request, its size was checked against
            // what the queue pair was made for; the caller answers for the memory.
            let ret = unsafe { (self.facts.post_send)(self.as_raw(), &mut request.raw, &mut bad) };
            if ret == 0 {
                return Ok(());
            }
            Some(ret)
        } else {
            None
        };
        // SAFETY: forwarded to the caller.
        unsafe { self.settle(std::slice::from_mut(request), answer, bad) }.map_or(Ok(()), Err)
    }

    /// Posts a list in one call: the device is told once, and carries the requests out in order.
    ///
    /// An empty list does nothing.
    ///
    /// # Errors
    /// As [`post_send`](Self::post_send). A request that fails one of our own checks keeps the
    /// whole list from being posted.
    ///
    /// # Safety
    /// As [`post_send`](Self::post_send), for every request.
    #[inline(always)]
    pub unsafe fn post_send_list(&self, requests: &mut [SendRequest<'_>]) -> Result<(), PostError> {
        let (next, together) = link_sends(requests);
        let mut bad = ptr::null_mut();
        let answer = if !next.is_null() && self.pass(together) {
            // SAFETY: the queue pair is live, the list is linked and ends in NULL, sizes were checked
            // against what the queue pair was made for; the caller answers for the memory.
            let ret = unsafe { (self.facts.post_send)(self.as_raw(), next, &mut bad) };
            if ret == 0 {
                return Ok(());
            }
            Some(ret)
        } else {
            None
        };
        // SAFETY: forwarded to the caller.
        unsafe { self.settle(requests, answer, bad) }.map_or(Ok(()), Err)
    }

    /// The end of a post that is not plain success: of a linked list that did not pass at first sight
    /// and is posted here if it may be, or that was answered with an error. Gives the error, if any.
    ///
    /// # Safety
    /// As [`post_send`](Self::post_send), for every request.
    #[inline(never)]
    unsafe fn settle(
        &self,
        requests: &mut [SendRequest<'_>],
        answer: Option<i32>,
        mut bad: *mut sys::ibv_send_wr,
    ) -> Option<PostError> {
        let ret = match answer {
            Some(ret) => ret,
            None => {
                if let Err(error) = self.check_sends(requests) {
                    return Some(error);
                }
                // Anew: the links made before ended when the requests were borrowed again.
                let (first, _) = link_sends(requests);
                if first.is_null() {
                    return None;
                }
                // SAFETY: the queue pair is live, the list is linked and ends in NULL, sizes were
                // checked against what the queue pair was made for; the caller answers for the memory.
                unsafe { (self.facts.post_send)(self.as_raw(), first, &mut bad) }
            }
        };
        let first = requests.as_ptr().cast::<sys::ibv_send_wr>();
        (ret != 0).then(|| post_failed(ret, first, bad, requests.len()))
    }

    /// Posts one receive.
    ///
    /// # Errors
    /// [`PostErrorKind`].
    ///
    /// # Safety
    /// Until the receive has completed, the queue pair is destroyed, or the region is closed, no
    /// Rust reference exists to any range of its SGEs.
    #[doc(alias = "ibv_post_recv")]
    #[inline(always)]
    pub unsafe fn post_recv(&self, request: &mut RecvRequest<'_>) -> Result<(), PostError> {
        // SAFETY: forwarded to the caller.
        unsafe { self.post_recv_list(std::slice::from_mut(request)) }
    }

    /// Posts a list of receives in one call.
    ///
    /// # Errors
    /// As [`post_recv`](Self::post_recv).
    ///
    /// # Safety
    /// As [`post_recv`](Self::post_recv), for every request.
    #[inline(always)]
    pub unsafe fn post_recv_list(&self, requests: &mut [RecvRequest<'_>]) -> Result<(), PostError> {
        let (first, sges) = link_receives(requests);
        let first = if self.may_receive(sges) {
            first
        } else {
            self.check_recvs(requests)?;
            // Anew: the links made before ended when the requests were borrowed again.
            link_receives(requests).0
        };
        if first.is_null() {
            return Ok(());
        }
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is live, the list is linked and ends in NULL; the caller answers for
        // the memory.
        let ret = unsafe { (self.facts.post_recv)(self.as_raw(), first, &mut bad) };
        posted_receives(requests, ret, bad)
    }
}

/// Links requests to a list that ends in NULL. Gives the first, and what they have between them.
#[inline(always)]
fn link_sends(requests: &mut [SendRequest<'_>]) -> (*mut sys::ibv_send_wr, Together) {
    let (mut next, mut together) = (ptr::null_mut(), Together::default());
    for request in requests.iter_mut().rev() {
        together.add(request);
        request.link(next);
        next = ptr::from_mut(&mut request.raw);
    }
    (next, together)
}

/// Links receives to a list that ends in NULL. Gives the first, and all bits of their SGE counts.
#[inline]
pub(crate) fn link_receives(requests: &mut [RecvRequest<'_>]) -> (*mut sys::ibv_recv_wr, u32) {
    let (mut next, mut sges) = (ptr::null_mut(), 0);
    for request in requests.iter_mut().rev() {
        sges |= request.sge_count();
        request.link(next);
        next = ptr::from_mut(&mut request.raw);
    }
    (next, sges)
}

/// What became of `requests`, posted with the answer `ret` and the first that was refused.
#[inline]
pub(crate) fn posted_receives(
    requests: &[RecvRequest<'_>],
    ret: i32,
    bad: *mut sys::ibv_recv_wr,
) -> Result<(), PostError> {
    if ret == 0 {
        return Ok(());
    }
    let first = requests.as_ptr().cast::<sys::ibv_recv_wr>();
    Err(post_failed(ret, first, bad, requests.len()))
}

/// What a failed post means: which errno, and how many requests the queue took.
///
/// With no `bad` pointer, or one that is not in the list, all of them may have been taken.
#[cold]
#[inline(never)]
fn post_failed<T>(ret: i32, first: *const T, bad: *mut T, len: usize) -> PostError {
    let errno = ret.saturating_abs();
    let offset = (bad as usize).checked_sub(first as usize);
    let refused = offset
        .map(|bytes| bytes / size_of::<T>())
        .filter(|&index| index < len);
    let kind = match (errno, refused) {
        // "Full, post it again" is true only of a request that is known not to be in the queue.
        (libc::ENOMEM | libc::EAGAIN, Some(_)) => PostErrorKind::QueueFull,
        _ => PostErrorKind::Provider(errno),
    };
    let queued = refused.unwrap_or(len);
    PostError { kind, queued }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_post_tells_how_much_was_taken() {
        let list = [0_u64; 4];
        let third = (&raw const list[2]).cast_mut();
        let error = post_failed(libc::ENOMEM, list.as_ptr(), third, 4);
        assert_eq!((error.kind, error.queued), (PostErrorKind::QueueFull, 2));
    }

    #[test]
    fn a_full_queue_is_its_own_kind_of_error() {
        let kind = PostErrorKind::QueueFull;
        let error = Error::from(PostError { kind, queued: 0 });
        assert_eq!(error.kind(), ErrorKind::QueueFull);
    }

    #[test]
    fn without_a_bad_pointer_everything_may_have_been_taken() {
        let list = [0_u64; 4];
        for errno in [libc::EINVAL, -libc::EINVAL, libc::ENOMEM] {
            let error = post_failed(errno, list.as_ptr(), ptr::null_mut(), 4);
            assert_eq!(error.kind, PostErrorKind::Provider(errno.abs()));
            assert_eq!(error.queued, 4);
        }
        let beyond = list.as_ptr().wrapping_add(4).cast_mut();
        assert_eq!(
            post_failed(libc::EINVAL, list.as_ptr(), beyond, 4).queued,
            4
        );
    }
}
