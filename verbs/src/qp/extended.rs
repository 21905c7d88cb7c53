//! Queue pairs whose requests are built by the provider itself, piece by piece.

use std::fmt;
use std::ptr::NonNull;

use rdma_core_sys as sys;

use super::QueuePair;
use super::extended_batch::Batch;
use super::extended_ops::SendOps;
use super::native::NativeQueuePair;
use super::opcodes::{OpcodeSet, WrOpcode};
use super::post::{PostError, PostErrorKind};
use super::state::{QpState, QpType};
use crate::attributes::DeviceCapFlags;
use crate::context::Context;
use crate::error::{CloseError, Error, ErrorKind};
use crate::process::Origin;

/// A queue pair that posts by the functions of `ibv_wr_post`, and so also native flush and atomic
/// write. `Send` and `Sync`.
///
/// It is a [`QueuePair`] as well ([`queue_pair`](Self::queue_pair)): for its states, for receives,
/// and for sends the classic way, which may be mixed with batches.
///
/// ```no_run
/// # fn main() -> Result<(), verbs::Error> {
/// # use verbs::*;
/// # let context = DeviceList::new()?.first()?.open()?;
/// # let pd = ProtectionDomain::new(&context)?;
/// # let cq = CompletionQueue::builder(&context, 64).build()?;
/// # let remote = RemoteAddr { addr: 0, rkey: RemoteKey(0) };
/// let ops = SendOps::RDMA_WRITE | SendOps::SEND_WITH_IMM;
/// let mut qp = QueuePair::builder(&pd, QpType::RC, &cq, &cq)
///     .max_inline_data(64)
///     .build_extended(ops)?;
/// // … connect `qp.queue_pair()` …
/// qp.post_batch(|batch| {
///     batch.write(1, remote).inline(b"record")?;
///     batch.send_with_imm(2, 6).flags(SendFlags::SIGNALED).empty()
/// })?;
/// # Ok(())
/// # }
/// ```
///
/// Data comes with the call that adds a request, so no other request can get it:
///
/// ```compile_fail,E0599
/// # fn set(batch: &mut verbs::Batch<'_>) {
/// batch.inline(b"whose?");
/// # }
/// ```
///
/// What is read cannot be inline:
///
/// ```compile_fail,E0599
/// # fn read(batch: &mut verbs::Batch<'_>, remote: verbs::RemoteAddr) {
/// batch.read(1, remote).inline(b"");
/// # }
/// ```
///
/// Nothing else is posted to the queue pair while a batch is built, which has it locked:
///
/// ```compile_fail,E0502
/// # fn nested(qp: &mut verbs::ExtendedQueuePair) -> Result<(), verbs::Error> {
/// qp.post_batch(|batch| {
///     qp.queue_pair().query()?;
///     Ok::<_, verbs::Error>(())
/// })
/// # }
/// ```
#[doc(alias = "ibv_qp_ex")]
pub struct ExtendedQueuePair {
    // Boxed, or an error that gives the handle back would be large.
    qp: Box<QueuePair>,
    ex: NonNull<sys::ibv_qp_ex>,
    ops: SendOps,
    /// What was asked for, is there, and is offered by the transport.
    granted: OpcodeSet,
    max_inline: u32,
    max_sges: u32,
    software: bool,
}

// SAFETY: the pointer is to the object that `qp` owns, which may be used from any thread.
unsafe impl Send for ExtendedQueuePair {}
// SAFETY: as above; posting takes `&mut self`, and locks in C.
unsafe impl Sync for ExtendedQueuePair {}

impl ExtendedQueuePair {
    /// Takes over a queue pair that `ibv_create_qp_ex` made, if it has what was asked for.
    ///
    /// # Safety
    /// - `qp` was made by `ibv_create_qp_ex` with the bits of `ops`.
    pub(super) unsafe fn new(qp: QueuePair, ops: SendOps) -> Result<Self, Error> {
        let unsupported = |detail: String| {
            Error::from_errno("ibv_create_qp_ex", libc::EOPNOTSUPP).with_detail(detail)
        };
        // SAFETY: the queue pair is live.
        let ex = unsafe { sys::ibv_qp_to_qp_ex(qp.as_raw()) };
        let Some(ex) = NonNull::new(ex) else {
            return Err(unsupported("the queue pair made is no extended one".into()));
        };
        // SAFETY: the queue pair is live, extended, and was made with these bits.
        let missing = unsafe { missing_slots(ex.as_ptr(), ops, qp.qp_type()) };
        if !missing.is_empty() {
            return Err(unsupported(format!(
                "the provider accepted {ops:?} and has no {}",
                missing.join(", ")
            )));
        }
        // SAFETY: the queue pair is live and extended; the slot never changes.
        let no_inline = unsafe { (*ex.as_ptr()).wr_set_inline_data }.is_none();
        // SAFETY: as above.
        let no_list = unsafe { (*ex.as_ptr()).wr_set_sge_list }.is_none();
        let sizes = *qp.capabilities();
        Ok(Self {
            ex,
            ops,
            granted: granted(qp.facts.opcodes, ops),
            max_inline: if no_inline { 0 } else { sizes.max_inline_data },
            max_sges: if no_list {
                sizes.max_send_sge.min(1)
            } else {
                sizes.max_send_sge
            },
            software: qp.context().attributes().is_of_software(),
            qp: Box::new(qp),
        })
    }

    /// Builds requests in `build` and posts them together: the device is told once, and carries them
    /// out in order. When `build` fails or panics, none of them is posted.
    ///
    /// The provider has the send queue locked while `build` runs.
    ///
    /// # Errors
    /// What `build` returns. Otherwise a [`PostError`]: with
    /// [`QueueFull`](PostErrorKind::QueueFull) nothing was posted; with a `queued` above 0 the
    /// device may still carry all of them out (SoftRoCE, when its doorbell fails).
    #[doc(alias = "ibv_wr_start")]
    #[doc(alias = "ibv_wr_complete")]
    #[doc(alias = "ibv_wr_abort")]
    pub fn post_batch<R, E: From<PostError>>(
        &mut self,
        build: impl FnOnce(&mut Batch<'_>) -> Result<R, E>,
    ) -> Result<R, E> {
        self.qp.check_post(QpState::RTS)?;
        // SAFETY: the queue pair is live and extended. No batch is begun: each ends in this function,
        // which has the queue pair for itself.
        unsafe { sys::ibv_wr_start(self.as_raw()) };
        let begun = Begun::new(self.as_raw(), self.qp.owned.origin());
        let mut batch = Batch::new(self);
        let made = build(&mut batch)?;
        let count = batch.count;
        if count > 0 {
            begun
                .complete()
                .map_err(|errno| refusal(errno, count, self.software))?;
        }
        Ok(made)
    }

    /// Whether the operation was asked for, and is one of the transport.
    #[inline]
    pub(super) fn check_operation(&self, opcode: WrOpcode) -> Result<(), PostError> {
        if self.granted.contains(opcode) {
            return Ok(());
        }
        let asked = SendOps::OPCODES
            .iter()
            .any(|&(op, of)| of == opcode && self.ops.contains(op));
        Err(PostError::refused(if asked {
            PostErrorKind::Unsupported(opcode)
        } else {
            PostErrorKind::NotAskedFor(opcode)
        }))
    }

    #[inline]
    pub(super) fn max_inline(&self) -> u32 {
        self.max_inline
    }

    #[inline]
    pub(super) fn max_sges(&self) -> u32 {
        self.max_sges
    }

    /// Whether SGEs of one request may differ in length: SoftRoCE before rdma-core 64 sends a wrong
    /// number of bytes, and a program cannot tell which release it runs on.
    #[inline]
    pub(super) fn takes_unequal_sges(&self) -> bool {
        !self.software
    }

    /// What it was made for.
    pub fn ops(&self) -> SendOps {
        self.ops
    }

    /// The same queue pair to be shared, with flush and atomic write posted one by one. Batches are
    /// given up: while one is built, nobody else may post.
    pub fn into_native(self) -> NativeQueuePair {
        NativeQueuePair::new(*self.qp, self.ex, self.ops, self.granted)
    }

    /// The same queue pair under its plain type.
    pub fn queue_pair(&self) -> &QueuePair {
        &self.qp
    }

    /// Destroys the queue pair now.
    ///
    /// # Errors
    /// As for [`QueuePair::close`].
    pub fn close(self) -> Result<(), CloseError<Self>> {
        let Self {
            qp,
            ex,
            ops,
            granted,
            max_inline,
            max_sges,
            software,
        } = self;
        qp.close().map_err(|failed| CloseError {
            error: failed.error,
            handle: Self {
                qp: Box::new(failed.handle),
                ex,
                ops,
                granted,
                max_inline,
                max_sges,
                software,
            },
        })
    }

    /// The C queue pair, for calls that this crate does not have; as for [`QueuePair::as_raw`], and
    /// a batch that is begun must be ended before other calls.
    #[inline]
    pub fn as_raw(&self) -> *mut sys::ibv_qp_ex {
        self.ex.as_ptr()
    }
}

impl fmt::Debug for ExtendedQueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExtendedQueuePair")
            .field("qp", &self.qp)
            .field("ops", &self.ops)
            .finish_non_exhaustive()
    }
}

/// What it means that a batch of `count` requests could not be completed.
#[cold]
pub(super) fn refusal(errno: i32, count: u32, software: bool) -> PostError {
    match errno {
        FORKED => PostError::forked(),
        // SoftRoCE's word for a full queue, which it says before the doorbell.
        libc::ENOSPC => PostError::refused(PostErrorKind::QueueFull),
        // On hardware there is no doorbell that could fail for want of memory.
        libc::ENOMEM if !software => PostError::refused(PostErrorKind::QueueFull),
        errno => PostError {
            kind: PostErrorKind::Provider(errno),
            queued: count as usize,
        },
    }
}

/// A batch that is begun; dropped without [`complete`](Self::complete), it is aborted.
pub(super) struct Begun {
    ex: *mut sys::ibv_qp_ex,
    origin: Origin,
}

/// No errno: this is a child of the process that began the batch.
const FORKED: i32 = -1;

impl Begun {
    /// `ex` is a live queue pair on which a batch was just begun.
    #[inline]
    pub(super) fn new(ex: *mut sys::ibv_qp_ex, origin: Origin) -> Self {
        Self { ex, origin }
    }

    #[inline]
    pub(super) fn complete(self) -> Result<(), i32> {
        let this = std::mem::ManuallyDrop::new(self);
        if !this.origin.is_current() {
            return Err(FORKED);
        }
        // SAFETY: a batch is begun on this live queue pair, and is not ended otherwise: `this` is
        // never dropped. Who added memory answers for it.
        match unsafe { sys::ibv_wr_complete(this.ex) } {
            0 => Ok(()),
            errno => Err(errno.saturating_abs()),
        }
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        // The lock in a forked child's memory is a copy that nobody will take.
        if self.origin.is_current() {
            // SAFETY: a batch is begun on this live queue pair.
            unsafe { sys::ibv_wr_abort(self.ex) };
        }
    }
}

/// Refuses native operations that the device does not say it has: SoftRoCE before kernel 6.2 makes
/// such queue pairs, and fails their requests.
pub(super) fn check_native(context: &Context, ops: SendOps) -> Result<(), Error> {
    if !ops.intersects(SendOps::NATIVE) {
        return Ok(());
    }
    let has = context.query_extended()?.capabilities();
    let flushes = DeviceCapFlags::FLUSH_GLOBAL | DeviceCapFlags::FLUSH_PERSISTENT;
    for (op, any_of, name) in [
        (
            SendOps::FLUSH,
            flushes,
            "FLUSH_GLOBAL nor FLUSH_PERSISTENT (bits 38 and 39",
        ),
        (
            SendOps::ATOMIC_WRITE,
            DeviceCapFlags::ATOMIC_WRITE,
            "ATOMIC_WRITE (bit 40",
        ),
    ] {
        if ops.contains(op) && !has.intersects(any_of) {
            let not = if name.contains(" nor ") {
                "neither"
            } else {
                "not"
            };
            return Err(Error::refused(
                "ibv_create_qp_ex",
                ErrorKind::Unsupported,
                format!(
                    "device {} has {not} the capability {name} of device_cap_flags_ex)",
                    context.name()
                ),
            )
            .with_hint("SoftRoCE has it from kernel 6.2 on; few hardware devices have it"));
        }
    }
    Ok(())
}

/// The opcodes that may be posted.
fn granted(transport: OpcodeSet, ops: SendOps) -> OpcodeSet {
    let asked = SendOps::OPCODES.iter().filter(|(op, _)| ops.contains(*op));
    let offered =
        asked.filter(|&&(op, opcode)| SendOps::NATIVE.contains(op) || transport.contains(opcode));
    OpcodeSet::of(offered.map(|&(_, opcode)| opcode))
}

/// What cannot be called although it was asked for.
///
/// # Safety
/// - `ex` is a live extended queue pair that was made with the bits of `ops`.
unsafe fn missing_slots(
    ex: *mut sys::ibv_qp_ex,
    ops: SendOps,
    qp_type: QpType,
) -> Vec<&'static str> {
    let mut missing = Vec::new();
    macro_rules! look {
        ($($when:expr => $slot:ident;)*) => {$(
            if $when {
                // SAFETY: the queue pair is live, and long enough for what it was made for.
                if unsafe { (*ex).$slot }.is_none() {
                    missing.push(stringify!($slot));
                }
            }
        )*};
    }
    look! {
        true => wr_start;
        true => wr_complete;
        true => wr_abort;
        true => wr_set_sge;
        qp_type == QpType::UD => wr_set_ud_addr;
        ops.contains(SendOps::RDMA_WRITE) => wr_rdma_write;
        ops.contains(SendOps::RDMA_WRITE_WITH_IMM) => wr_rdma_write_imm;
        ops.contains(SendOps::SEND) => wr_send;
        ops.contains(SendOps::SEND_WITH_IMM) => wr_send_imm;
        ops.contains(SendOps::RDMA_READ) => wr_rdma_read;
        ops.contains(SendOps::ATOMIC_CMP_AND_SWP) => wr_atomic_cmp_swp;
        ops.contains(SendOps::ATOMIC_FETCH_AND_ADD) => wr_atomic_fetch_add;
        ops.contains(SendOps::LOCAL_INV) => wr_local_inv;
        ops.contains(SendOps::BIND_MW) => wr_bind_mw;
        ops.contains(SendOps::SEND_WITH_INV) => wr_send_inv;
        ops.contains(SendOps::ATOMIC_WRITE) => wr_atomic_write;
    }
    if ops.contains(SendOps::FLUSH) {
        // SAFETY: the queue pair was made with the bit, so it is long enough for the slot.
        if unsafe { sys::wr_flush_slot(ex) }.is_none() {
            missing.push("wr_flush");
        }
    }
    missing
}
