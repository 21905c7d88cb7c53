//! One request of a batch: an operation, its modifiers and, with the call that adds it, its data.

use std::fmt;
use std::marker::PhantomData;

use rdma_core_sys as sys;

use super::extended_batch::Batch;
use super::extended_ops::{FlushLevel, FlushPlacement};
use super::opcodes::WrOpcode;
use super::post::{PostError, PostErrorKind};
use super::state::QpType;
use crate::ah::AddressHandle;
use crate::flags::SendFlags;
use crate::mr::{RemoteAddr, RemoteKey, Sge, SgeList};

/// Data of this side that may lie anywhere: registered, or copied while posting.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct AnyData;

/// Data of this side in registered memory.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct RegisteredData;

/// No data of this side.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct NoData;

/// A request that is not added yet: it still needs its data.
///
/// `Data` is what that may be: [`AnyData`], [`RegisteredData`] or [`NoData`].
#[must_use = "a request is added by the call that gives its data"]
pub struct Request<'b, 'q, Data> {
    batch: &'b mut Batch<'q>,
    wr_id: u64,
    flags: SendFlags,
    operation: Operation,
    destination: Option<Destination<'b>>,
    data: PhantomData<Data>,
}

/// What a request does, as the provider's functions take it.
#[derive(Debug, Clone, Copy)]
pub(super) enum Operation {
    Send,
    SendImm(u32),
    SendInv(RemoteKey),
    Write(RemoteAddr),
    WriteImm(RemoteAddr, u32),
    Read(RemoteAddr),
    CompareSwap(RemoteAddr, u64, u64),
    FetchAdd(RemoteAddr, u64),
    LocalInv(RemoteKey),
    Flush(RemoteAddr, u32, FlushPlacement, FlushLevel),
    AtomicWrite(RemoteAddr, [u8; 8]),
}

/// Where a datagram goes.
#[derive(Debug, Clone, Copy)]
struct Destination<'b> {
    address: &'b AddressHandle,
    qp_number: u32,
    qkey: u32,
}

/// The data of a request.
#[derive(Clone, Copy)]
enum Payload<'a> {
    None,
    Inline(&'a [u8]),
    Sges(&'a [Sge]),
}

impl Operation {
    fn opcode(self) -> WrOpcode {
        match self {
            Self::Send => WrOpcode::SEND,
            Self::SendImm(_) => WrOpcode::SEND_WITH_IMM,
            Self::SendInv(_) => WrOpcode::SEND_WITH_INV,
            Self::Write(_) => WrOpcode::RDMA_WRITE,
            Self::WriteImm(..) => WrOpcode::RDMA_WRITE_WITH_IMM,
            Self::Read(_) => WrOpcode::RDMA_READ,
            Self::CompareSwap(..) => WrOpcode::ATOMIC_CMP_AND_SWP,
            Self::FetchAdd(..) => WrOpcode::ATOMIC_FETCH_AND_ADD,
            Self::LocalInv(_) => WrOpcode::LOCAL_INV,
            Self::Flush(..) => WrOpcode::FLUSH,
            Self::AtomicWrite(..) => WrOpcode::ATOMIC_WRITE,
        }
    }
}

impl<'b, 'q, D> Request<'b, 'q, D> {
    #[inline]
    pub(super) fn new(batch: &'b mut Batch<'q>, wr_id: u64, operation: Operation) -> Self {
        Self {
            batch,
            wr_id,
            flags: SendFlags::empty(),
            operation,
            destination: None,
            data: PhantomData,
        }
    }

    /// The same request with `flags` instead of none. INLINE is set where the data is inline, and
    /// nowhere else.
    #[inline]
    pub fn flags(mut self, flags: SendFlags) -> Self {
        self.flags = flags - SendFlags::INLINE;
        self
    }

    /// Checks everything that providers leave out, and only then adds the request.
    #[inline]
    fn put(self, payload: Payload<'_>) -> Result<(), PostError> {
        let refused = |kind| Err(PostError::refused(kind));
        let Self {
            batch,
            wr_id,
            mut flags,
            operation,
            destination,
            ..
        } = self;
        let qp = batch.qp;
        batch.check_room()?;
        qp.check_operation(operation.opcode())?;
        match (qp.queue_pair().qp_type(), &destination) {
            (QpType::UD, Some(to)) if qp.queue_pair().reaches(to.address.as_raw()) => {}
            (QpType::UD, _) => return refused(PostErrorKind::NoAddress),
            (_, Some(_)) => return refused(PostErrorKind::UnexpectedAddress),
            (_, None) => {}
        }
        let mut len = 0;
        match payload {
            Payload::None => {}
            Payload::Inline(data) => {
                let (given, max) = (data.len() as u64, qp.max_inline());
                if given > u64::from(max) {
                    return refused(PostErrorKind::InlineTooLong { given, max });
                }
                // SoftRoCE takes the bytes for addresses without it.
                flags |= SendFlags::INLINE;
            }
            Payload::Sges(sges) => {
                let given = u32::try_from(sges.len()).unwrap_or(u32::MAX);
                let max = qp.max_sges();
                if given > max {
                    return refused(PostErrorKind::TooManySges { given, max });
                }
                if !qp.takes_unequal_sges() && sges.windows(2).any(|w| w[0].len() != w[1].len()) {
                    return refused(PostErrorKind::UnequalSges);
                }
                len = sges.iter().map(|sge| u64::from(sge.len())).sum();
            }
        }
        let eight = match operation {
            Operation::CompareSwap(remote, ..) | Operation::FetchAdd(remote, _) => {
                Some((remote.addr, len))
            }
            Operation::AtomicWrite(remote, _) => Some((remote.addr, 8)),
            _ => None,
        };
        if let Some((addr, len)) = eight
            && (addr % 8 != 0 || len != 8)
        {
            return refused(PostErrorKind::NotEightBytes { addr, len });
        }
        batch.set_fields(wr_id, flags);
        // SAFETY: a batch is begun, which `batch` stands for; the operation was checked to be one of
        // those that were looked up at creation.
        unsafe { build(qp.as_raw(), operation) };
        if let Some(Destination {
            address,
            qp_number,
            qkey,
        }) = destination
        {
            // SAFETY: the operation was just added, and the handle is live and of this device.
            unsafe { sys::ibv_wr_set_ud_addr(qp.as_raw(), address.as_raw(), qp_number, qkey) };
        }
        // SAFETY: the operation was just added; sizes were checked above, and whoever gave memory
        // that is not copied answers for it.
        unsafe { set_data(qp.as_raw(), payload) };
        batch.count += 1;
        Ok(())
    }
}

impl<'b> Request<'b, '_, AnyData> {
    /// Sends the datagram (UD) to queue pair `qp_number` behind `address`, with the Q_Key that it
    /// expects.
    ///
    /// Keep `address`, or a clone of it, until the request has completed: a device that looks it up
    /// late fails the request, or sends the data to whom a handle made meanwhile names. A datagram
    /// longer than the path's MTU is lost.
    #[doc(alias = "ibv_wr_set_ud_addr")]
    #[inline]
    pub fn to(mut self, address: &'b AddressHandle, qp_number: u32, qkey: u32) -> Self {
        self.destination = Some(Destination {
            address,
            qp_number,
            qkey,
        });
        self
    }

    /// Adds the request with a copy of `data`. Safe, since nothing of ours is reached later.
    ///
    /// # Errors
    /// [`PostErrorKind`]; the data may have as many bytes as
    /// [`max_inline_data`](crate::Capabilities::max_inline_data) says.
    #[doc(alias = "ibv_wr_set_inline_data")]
    #[inline]
    pub fn inline(self, data: &[u8]) -> Result<(), PostError> {
        self.put(Payload::Inline(data))
    }

    /// Adds the request with the bytes of `sges`.
    ///
    /// # Errors
    /// [`PostErrorKind`]; [`UnequalSges`](PostErrorKind::UnequalSges) on SoftRoCE for more than one
    /// SGE, unless all have the same length.
    ///
    /// # Safety
    /// As [`QueuePair::post_send`](crate::QueuePair::post_send), from this call on. It ends also
    /// where nothing was posted: the builder of the batch failed, or the error says `queued` 0.
    #[doc(alias = "ibv_wr_set_sge")]
    #[doc(alias = "ibv_wr_set_sge_list")]
    #[inline]
    pub unsafe fn sges(self, sges: &[Sge]) -> Result<(), PostError> {
        self.put(Payload::Sges(sges))
    }

    /// Adds the request without data: an empty message, or a write of 0 bytes.
    ///
    /// # Errors
    /// [`PostErrorKind`].
    #[inline]
    pub fn empty(self) -> Result<(), PostError> {
        self.put(Payload::Sges(&[]))
    }
}

impl Request<'_, '_, RegisteredData> {
    /// Adds the request; what comes back goes into `sges`. For an atomic that is one of 8 bytes.
    ///
    /// # Errors
    /// [`PostErrorKind`], as for a [send](Request::<AnyData>::sges).
    ///
    /// # Safety
    /// As for a [send](Request::<AnyData>::sges); no Rust reference at all to the ranges exists.
    #[inline]
    pub unsafe fn sges(self, sges: &[Sge]) -> Result<(), PostError> {
        self.put(Payload::Sges(sges))
    }
}

impl Request<'_, '_, NoData> {
    /// Adds the request.
    ///
    /// # Errors
    /// [`PostErrorKind`].
    #[inline]
    pub fn add(self) -> Result<(), PostError> {
        self.put(Payload::None)
    }
}

impl<D> fmt::Debug for Request<'_, '_, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("wr_id", &self.wr_id)
            .field("operation", &self.operation)
            .field("flags", &self.flags)
            .finish_non_exhaustive()
    }
}

/// Calls the provider's function for an operation.
///
/// # Safety
/// - `ex` is a live queue pair with a batch begun, and has the operation's slot.
#[inline]
unsafe fn build(ex: *mut sys::ibv_qp_ex, operation: Operation) {
    match operation {
        Operation::Send => {
            // SAFETY: forwarded to the caller.
            unsafe { sys::ibv_wr_send(ex) };
        }
        Operation::SendImm(imm) => {
            // SAFETY: forwarded to the caller.
            unsafe { sys::ibv_wr_send_imm(ex, imm) };
        }
        Operation::SendInv(key) => {
            // SAFETY: forwarded to the caller.
            unsafe { sys::ibv_wr_send_inv(ex, key.0) };
        }
        Operation::Write(to) => {
            // SAFETY: forwarded to the caller.
            unsafe { sys::ibv_wr_rdma_write(ex, to.rkey.0, to.addr) };
        }
        Operation::WriteImm(to, imm) => {
            // SAFETY: forwarded to the caller.
            unsafe { sys::ibv_wr_rdma_write_imm(ex, to.rkey.0, to.addr, imm) };
        }
        Operation::Read(from) => {
            // SAFETY: forwarded to the caller.
            unsafe { sys::ibv_wr_rdma_read(ex, from.rkey.0, from.addr) };
        }
        Operation::CompareSwap(at, compare, swap) => {
            // SAFETY: forwarded to the caller.
            unsafe { sys::ibv_wr_atomic_cmp_swp(ex, at.rkey.0, at.addr, compare, swap) };
        }
        Operation::FetchAdd(at, add) => {
            // SAFETY: forwarded to the caller.
            unsafe { sys::ibv_wr_atomic_fetch_add(ex, at.rkey.0, at.addr, add) };
        }
        Operation::LocalInv(key) => {
            // SAFETY: forwarded to the caller.
            unsafe { sys::ibv_wr_local_inv(ex, key.0) };
        }
        Operation::Flush(at, len, placement, level) => {
            let (placement, level) = (placement.raw(), level.raw());
            // SAFETY: forwarded to the caller: the slot is there only after creation with its bit.
            unsafe { sys::ibv_wr_flush(ex, at.rkey.0, at.addr, len as usize, placement, level) };
        }
        Operation::AtomicWrite(at, value) => {
            // SAFETY: forwarded to the caller; the 8 bytes are copied by the call.
            unsafe { sys::ibv_wr_atomic_write(ex, at.rkey.0, at.addr, value.as_ptr().cast()) };
        }
    }
}

/// Calls the provider's setter for the data of the operation added last.
///
/// # Safety
/// - `ex` is a live queue pair with a batch begun and an operation added last that takes the data.
/// - The data is as long as the queue pair takes; SGEs are as their `unsafe` function says.
#[inline]
unsafe fn set_data(ex: *mut sys::ibv_qp_ex, payload: Payload<'_>) {
    match payload {
        Payload::None => {}
        Payload::Inline(data) => {
            let start = data.as_ptr().cast_mut().cast();
            // SAFETY: forwarded to the caller; C only reads the bytes, during the call.
            unsafe { sys::ibv_wr_set_inline_data(ex, start, data.len()) };
        }
        Payload::Sges([]) => {
            // SAFETY: forwarded to the caller. Some providers finish a request in its setter, so an
            // empty one has to call it as well.
            unsafe { sys::ibv_wr_set_sge(ex, 0, 0, 0) };
        }
        Payload::Sges([sge]) => {
            let raw = sge.as_raw();
            // SAFETY: forwarded to the caller.
            unsafe { sys::ibv_wr_set_sge(ex, raw.lkey, raw.addr, raw.length) };
        }
        Payload::Sges(sges) => {
            let list = SgeList::new(sges).pointer;
            // SAFETY: forwarded to the caller; the list is read during the call.
            unsafe { sys::ibv_wr_set_sge_list(ex, sges.len(), list) };
        }
    }
}
