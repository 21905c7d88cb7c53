//! Posting, with the checks that providers leave out.

use std::fmt;
use std::ptr;

use rdma_core_sys as sys;

use super::QueuePair;
use super::opcodes::WrOpcode;
use super::request::{RecvRequest, SendRequest};
use super::state::{QpState, QpType};
use crate::error::{ErrnoText, Error, ErrorKind};
use crate::flags::SendFlags;

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
    #[error("the queue pair's transport does not offer {0}")]
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
    /// A receive for a queue pair that takes its receives from a shared receive queue.
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
        // Which of the two it was is not kept: an error of a post is to be small.
        let verb = "ibv_post_send or ibv_post_recv";
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
    /// With [`SendFlags::INLINE`] instead: every range is readable during the call.
    ///
    /// A datagram's address handle, or a clone of it, lives until then as well: a device that looks
    /// it up late may find another one in its place.
    #[doc(alias = "ibv_post_send")]
    #[inline]
    pub unsafe fn post_send(&self, request: &mut SendRequest<'_>) -> Result<(), PostError> {
        // SAFETY: forwarded to the caller.
        unsafe { self.post_send_list(std::slice::from_mut(request)) }
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
    #[inline]
    pub unsafe fn post_send_list(&self, requests: &mut [SendRequest<'_>]) -> Result<(), PostError> {
        self.check_post(QpState::RTS)?;
        for request in requests.iter() {
            self.check_send(request)?;
        }
        let mut next = ptr::null_mut();
        for request in requests.iter_mut().rev() {
            request.link(next);
            next = ptr::from_mut(&mut request.raw);
        }
        if next.is_null() {
            return Ok(());
        }
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is live, the list is linked and ends in NULL, sizes were checked
        // against what the queue pair was made for; the caller answers for the memory.
        let ret = unsafe { sys::ibv_post_send(self.as_raw(), next, &mut bad) };
        if ret == 0 {
            return Ok(());
        }
        let first = requests.as_ptr().cast::<sys::ibv_send_wr>();
        Err(post_failed(ret, first, bad, requests.len()))
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
    #[inline]
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
    #[inline]
    pub unsafe fn post_recv_list(&self, requests: &mut [RecvRequest<'_>]) -> Result<(), PostError> {
        self.check_post(QpState::INIT)?;
        if self.facts.has_srq {
            return Err(PostError::refused(PostErrorKind::SharedReceives));
        }
        post_receives(
            requests,
            self.facts.capabilities.max_recv_sge,
            |first, bad| {
                // SAFETY: the queue pair is live, the list is linked and ends in NULL; the caller
                // answers for the memory.
                unsafe { sys::ibv_post_recv(self.as_raw(), first, bad) }
            },
        )
    }

    /// Whether the queue pair belongs to this process and has come at least as far as `least`.
    ///
    /// A send refused by a device before RTS may be carried out later, so it is never tried. In the
    /// error state posting is allowed: the request is flushed.
    #[inline]
    pub(super) fn check_post(&self, least: QpState) -> Result<(), PostError> {
        let state = self.state();
        if !self.owned.origin().is_current() {
            return Err(PostError::refused(PostErrorKind::Forked));
        }
        if state.raw() < least.raw() {
            return Err(PostError::refused(PostErrorKind::State(state)));
        }
        Ok(())
    }

    /// Whether `ah` is an address handle of this queue pair's device: providers look into any other.
    #[inline]
    pub(super) fn reaches(&self, ah: *mut sys::ibv_ah) -> bool {
        if ah.is_null() {
            return false;
        }
        // SAFETY: not null, so a handle that the request borrows.
        let theirs = unsafe { (*ah).context };
        // SAFETY: the queue pair is live; the field never changes.
        let ours = unsafe { (*self.as_raw()).context };
        theirs == ours
    }

    /// Whether the queue pair offers the operation: providers look it up without a check.
    #[inline]
    pub(super) fn check_opcode(&self, opcode: WrOpcode) -> Result<(), PostError> {
        if self.facts.opcodes.contains(opcode) {
            return Ok(());
        }
        Err(PostError::refused(PostErrorKind::Unsupported(opcode)))
    }

    #[inline]
    fn check_send(&self, request: &SendRequest<'_>) -> Result<(), PostError> {
        let limits = self.capabilities();
        let given = request.sge_count();
        if given > limits.max_send_sge {
            let max = limits.max_send_sge;
            return Err(PostError::refused(PostErrorKind::TooManySges {
                given,
                max,
            }));
        }
        let opcode = request.opcode();
        self.check_opcode(opcode)?;
        if opcode.is_atomic() {
            let (addr, len) = (request.atomic_address(), request.total_len());
            if addr % 8 != 0 || len != 8 {
                return Err(PostError::refused(PostErrorKind::NotEightBytes {
                    addr,
                    len,
                }));
            }
        }
        if self.facts.qp_type == QpType::UD && !self.reaches(request.address()) {
            return Err(PostError::refused(PostErrorKind::NoAddress));
        }
        if request.flags().contains(SendFlags::INLINE) {
            if !opcode.allows_inline() {
                return Err(PostError::refused(PostErrorKind::InlineNotAllowed(opcode)));
            }
            let (given, max) = (request.total_len(), limits.max_inline_data);
            if given > u64::from(max) {
                return Err(PostError::refused(PostErrorKind::InlineTooLong {
                    given,
                    max,
                }));
            }
        }
        Ok(())
    }
}

/// Checks and links receives, and has them posted by `post`, which gets the first and a place for
/// the one that was refused.
#[inline]
pub(crate) fn post_receives(
    requests: &mut [RecvRequest<'_>],
    max_sge: u32,
    post: impl FnOnce(*mut sys::ibv_recv_wr, *mut *mut sys::ibv_recv_wr) -> i32,
) -> Result<(), PostError> {
    let mut next = ptr::null_mut();
    for request in requests.iter_mut().rev() {
        let given = request.sge_count();
        if given > max_sge {
            return Err(PostError::refused(PostErrorKind::TooManySges {
                given,
                max: max_sge,
            }));
        }
        request.link(next);
        next = ptr::from_mut(&mut request.raw);
    }
    if next.is_null() {
        return Ok(());
    }
    let mut bad = ptr::null_mut();
    let ret = post(next, &mut bad);
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
