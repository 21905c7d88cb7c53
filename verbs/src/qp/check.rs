//! What is looked at before a request reaches the provider, which looks at nothing.
//!
//! A request that may be posted passes with as few instructions as possible: what depends on the queue pair alone is
//! decided when its state changes, and lies ready in one word for each queue. Whatever does not pass is
//! looked at again, one rule after the other, to name the one that it breaks.

use std::sync::atomic::{AtomicU32, Ordering};

use rdma_core_sys as sys;

use super::opcodes::{OpcodeSet, WrOpcode};
use super::post::{PostError, PostErrorKind};
use super::request::{RecvRequest, SendRequest};
use super::state::{QpState, QpType};
use super::{Facts, QueuePair};
use crate::flags::SendFlags;

/// What passes at a first look in the present state.
#[derive(Debug, Default)]
pub(super) struct Ready {
    /// Operations of the send queue with at most one SGE; an [`OpcodeSet`].
    sends: AtomicU32,
    /// Receives with fewer SGEs than this.
    recvs: AtomicU32,
}

impl Ready {
    #[inline]
    fn sends(&self) -> OpcodeSet {
        OpcodeSet::from_bits(self.sends.load(Ordering::Acquire))
    }

    #[inline]
    fn recvs(&self) -> u32 {
        self.recvs.load(Ordering::Acquire)
    }
}

impl Facts {
    /// Records the state.
    pub(super) fn enter(&self, state: QpState) {
        let limits = &self.capabilities;
        // A datagram needs a look at its address each time.
        let sends = state.raw() >= QpState::RTS.raw()
            && limits.max_send_sge > 0
            && self.qp_type != QpType::UD;
        let sends = if sends { self.opcodes.bits() } else { 0 };
        let recvs = if state.raw() >= QpState::INIT.raw() && !self.has_srq {
            limits.max_recv_sge.saturating_add(1)
        } else {
            0
        };
        self.state.store(state.raw(), Ordering::Release);
        self.ready.sends.store(sends, Ordering::Release);
        self.ready.recvs.store(recvs, Ordering::Release);
    }
}

/// What the requests of a list have between them: bits that are set in any of them.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Together {
    opcodes: OpcodeSet,
    sges: u32,
    flags: u32,
}

impl Together {
    #[inline]
    pub(super) fn add(&mut self, request: &SendRequest<'_>) {
        self.opcodes = self.opcodes.with(request.opcode());
        self.sges |= request.sge_count();
        self.flags |= request.flags().bits();
    }
}

impl QueuePair {
    /// Whether the queue pair belongs to this process and has come at least as far as `least`.
    ///
    /// A send refused by a device before RTS may be carried out later, so it is never tried. In the
    /// error state posting is allowed: the request is flushed.
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

    /// Whether the queue pair offers the operation: providers look it up without a check.
    pub(super) fn check_opcode(&self, opcode: WrOpcode) -> Result<(), PostError> {
        if self.facts.opcodes.contains(opcode) {
            return Ok(());
        }
        Err(PostError::refused(PostErrorKind::Unsupported(opcode)))
    }

    /// Whether the request may be posted, as far as one look tells.
    // Always in place: where opcode, flags and SGE count are known little is left of it.
    #[inline(always)]
    pub(super) fn passes(&self, request: &SendRequest<'_>) -> bool {
        // Read before anything that other threads write, so that the compiler knows what was put in.
        let (opcode, sges, flags) = (request.opcode(), request.sge_count(), request.flags());
        let fits = !opcode.is_atomic() || is_eight_bytes(request);
        let inline = flags
            .contains(SendFlags::INLINE)
            .then(|| inline_len(request));
        let limits = self.capabilities();
        self.owned.origin().is_current()
            && self.facts.ready.sends().contains(opcode)
            && (sges <= 1 || sges <= limits.max_send_sge)
            && fits
            && inline.is_none_or(|len| len <= u64::from(limits.max_inline_data))
    }

    /// The same for a list, of which `together` says what its requests have between them.
    #[inline(always)]
    pub(super) fn pass(&self, together: Together) -> bool {
        let simple = self.facts.ready.sends().without_atomics();
        self.owned.origin().is_current()
            && simple.contains_all(together.opcodes)
            // Not less than the largest of them.
            && (together.sges <= 1 || together.sges <= self.capabilities().max_send_sge)
            && together.flags & SendFlags::INLINE.bits() == 0
    }

    /// Whether all requests may be posted, or which rule one of them breaks.
    pub(super) fn check_sends(&self, requests: &[SendRequest<'_>]) -> Result<(), PostError> {
        self.check_post(QpState::RTS)?;
        requests.iter().try_for_each(|one| self.check_send(one))
    }

    fn check_send(&self, request: &SendRequest<'_>) -> Result<(), PostError> {
        let (opcode, limits) = (request.opcode(), self.capabilities());
        let (given, max) = (request.sge_count(), limits.max_send_sge);
        if given > max {
            return Err(PostError::refused(PostErrorKind::TooManySges {
                given,
                max,
            }));
        }
        self.check_opcode(opcode)?;
        if opcode.is_atomic() && !is_eight_bytes(request) {
            return Err(PostError::refused(PostErrorKind::NotEightBytes {
                addr: request.atomic_address(),
                len: request.total_len(),
            }));
        }
        if self.qp_type() == QpType::UD && !self.reaches(request.address()) {
            return Err(PostError::refused(PostErrorKind::NoAddress));
        }
        if request.flags().contains(SendFlags::INLINE) {
            let (given, max) = (request.total_len(), limits.max_inline_data);
            if !opcode.allows_inline() {
                return Err(PostError::refused(PostErrorKind::InlineNotAllowed(opcode)));
            }
            if given > u64::from(max) {
                return Err(PostError::refused(PostErrorKind::InlineTooLong {
                    given,
                    max,
                }));
            }
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

    /// Whether receives, of whose SGE counts `sges` has all bits, may be posted, as far as one look
    /// tells.
    #[inline(always)]
    pub(super) fn may_receive(&self, sges: u32) -> bool {
        self.owned.origin().is_current() && sges < self.facts.ready.recvs()
    }

    /// Whether all receives may be posted, or which rule one of them breaks.
    #[inline(never)]
    pub(super) fn check_recvs(&self, requests: &[RecvRequest<'_>]) -> Result<(), PostError> {
        self.check_post(QpState::INIT)?;
        if self.facts.has_srq {
            return Err(PostError::refused(PostErrorKind::SharedReceives));
        }
        check_receive_sges(requests, self.capabilities().max_recv_sge)
    }
}

/// Whether no receive has more SGEs than `max`.
#[inline(never)]
pub(crate) fn check_receive_sges(requests: &[RecvRequest<'_>], max: u32) -> Result<(), PostError> {
    let mut counts = requests.iter().map(RecvRequest::sge_count);
    match counts.find(|&given| given > max) {
        Some(given) => Err(PostError::refused(PostErrorKind::TooManySges {
            given,
            max,
        })),
        None => Ok(()),
    }
}

/// Whether an atomic works on 8 aligned bytes: some devices do as they like with others.
#[inline]
fn is_eight_bytes(request: &SendRequest<'_>) -> bool {
    request.atomic_address().is_multiple_of(8) && request.total_len() == 8
}

/// The bytes of an inline request, more than any limit if its operation has none to copy: providers
/// copy them without a look.
#[inline]
fn inline_len(request: &SendRequest<'_>) -> u64 {
    if request.opcode().allows_inline() {
        request.total_len()
    } else {
        u64::MAX
    }
}
