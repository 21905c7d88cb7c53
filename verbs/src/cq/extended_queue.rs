//! Completion queues whose completions tell what was asked for, timestamps among it.

use std::fmt;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

use rdma_core_sys as sys;

use super::extended_completion::{CompletionFields, ExtendedCompletion};
use super::{CompletionQueue, PollError, filled};
use crate::deadline::Deadline;
use crate::error::{CloseError, Error};

/// A completion queue whose completions tell what it was made for. `Send` and `Sync`.
///
/// It is a [`CompletionQueue`] as well ([`queue`](Self::queue)): for queue pairs, channels and
/// events. Both ways of polling take from the same entries.
///
/// Completions are copied out while the provider's lock is held, with no code of others in between:
/// there is no batch that could be left open. On software devices each completion is a batch of its
/// own, since SoftRoCE before rdma-core 59 loses an entry where a batch ends in an empty queue.
///
/// C's `IBV_CREATE_CQ_ATTR_SINGLE_THREADED` is not offered: dropping a queue pair on another thread
/// works in its completion queues too.
///
/// ```no_run
/// # fn main() -> Result<(), verbs::Error> {
/// use std::mem::MaybeUninit;
/// use verbs::{CompletionFields, CompletionQueue, DeviceList};
///
/// let context = DeviceList::new()?.first()?.open()?;
/// let fields = CompletionFields::BYTE_LEN | CompletionFields::TIMESTAMP;
/// let cq = CompletionQueue::builder(&context, 64).build_extended(fields)?;
/// let mut out = [MaybeUninit::uninit(); 16];
/// for completion in cq.poll(&mut out)? {
///     println!("{} at {:?}", completion.wr_id(), completion.timestamp());
/// }
/// # Ok(())
/// # }
/// ```
#[doc(alias = "ibv_cq_ex")]
pub struct ExtendedCompletionQueue {
    queue: CompletionQueue,
    fields: CompletionFields,
    /// Whether several completions may be taken in one batch.
    batches: bool,
}

impl ExtendedCompletionQueue {
    /// Takes over a queue that `ibv_create_cq_ex` made, if it has a reader for each field.
    ///
    /// # Safety
    /// - `queue` was made by `ibv_create_cq_ex` with the bits of `fields`.
    pub(super) unsafe fn new(
        queue: CompletionQueue,
        fields: CompletionFields,
    ) -> Result<Self, Error> {
        let batches = !queue.context().attributes().is_of_software();
        let this = Self {
            queue,
            fields,
            batches,
        };
        let missing = this.missing_readers();
        if missing.is_empty() {
            return Ok(this);
        }
        Err(
            Error::from_errno("ibv_create_cq_ex", libc::EOPNOTSUPP).with_detail(format!(
                "the provider accepted {fields:?} and has no reader for {}",
                missing.join(", ")
            )),
        )
    }

    /// What cannot be called although it was asked for.
    fn missing_readers(&self) -> Vec<&'static str> {
        let cq = self.as_raw();
        let mut missing = Vec::new();
        macro_rules! look {
            ($($bit:expr => $slot:ident;)*) => {$(
                if self.fields.contains($bit) {
                    // SAFETY: the queue is live and extended; the slot never changes.
                    if unsafe { (*cq).$slot }.is_none() {
                        missing.push(stringify!($slot));
                    }
                }
            )*};
        }
        look! {
            CompletionFields::empty() => start_poll;
            CompletionFields::empty() => next_poll;
            CompletionFields::empty() => end_poll;
            CompletionFields::empty() => read_opcode;
            CompletionFields::empty() => read_vendor_err;
            CompletionFields::empty() => read_wc_flags;
            CompletionFields::BYTE_LEN => read_byte_len;
            CompletionFields::IMM => read_imm_data;
            CompletionFields::QP_NUM => read_qp_num;
            CompletionFields::SRC_QP => read_src_qp;
            CompletionFields::SLID => read_slid;
            CompletionFields::SL => read_sl;
            CompletionFields::DLID_PATH_BITS => read_dlid_path_bits;
            CompletionFields::TIMESTAMP => read_completion_ts;
            CompletionFields::CVLAN => read_cvlan;
            CompletionFields::FLOW_TAG => read_flow_tag;
            CompletionFields::TM_INFO => read_tm_info;
            CompletionFields::WALLCLOCK => read_completion_wallclock_ns;
        }
        missing
    }

    /// Takes up to `out.len()` completions out of the queue into `out` and returns the filled part.
    ///
    /// # Errors
    /// [`PollError`], after which the queue is of no further use.
    #[doc(alias = "ibv_start_poll")]
    #[doc(alias = "ibv_next_poll")]
    #[doc(alias = "ibv_end_poll")]
    #[inline]
    pub fn poll<'a>(
        &self,
        out: &'a mut [MaybeUninit<ExtendedCompletion>],
    ) -> Result<&'a mut [ExtendedCompletion], PollError> {
        if !self.queue.inner().is_current() {
            return Err(PollError::Forked);
        }
        let cq = self.as_raw();
        let mut got = 0;
        let mut failed = 0;
        while got < out.len() && failed == 0 {
            let mut attr = sys::ibv_poll_cq_attr { comp_mask: 0 };
            // SAFETY: the queue is live. No batch of this thread is begun: each ends below, with
            // nothing in between that returns or runs foreign code.
            failed = unsafe { sys::ibv_start_poll(cq, &mut attr) };
            if failed != 0 {
                // No batch was begun, so none must be ended.
                break;
            }
            while failed == 0 {
                // SAFETY: a batch is begun, and stands at a completion.
                out[got].write(unsafe { self.read(cq) });
                got += 1;
                if !self.batches || got == out.len() {
                    break;
                }
                // SAFETY: a batch is begun.
                failed = unsafe { sys::ibv_next_poll(cq) };
            }
            // SAFETY: a batch is begun, and is ended once.
            unsafe { sys::ibv_end_poll(cq) };
        }
        // What was taken out before the failure is not lost; a failure that stays comes again.
        if got == 0 && failed != 0 && failed.saturating_abs() != libc::ENOENT {
            return Err(PollError::Start(failed.saturating_abs()));
        }
        // SAFETY: the first `got` entries were written above.
        Ok(unsafe { filled(out, got) })
    }

    /// Waits until completions are in `out`, as [`CompletionQueue::wait`].
    ///
    /// # Errors
    /// As for [`CompletionQueue::wait`].
    pub fn wait<'a>(
        &self,
        out: &'a mut [MaybeUninit<ExtendedCompletion>],
        deadline: Deadline,
    ) -> Result<&'a mut [ExtendedCompletion], Error> {
        let got = self
            .queue
            .wait_with(out.len(), deadline, || Ok(self.poll(out)?.len()))?;
        // SAFETY: the last poll filled the first `got` entries.
        Ok(unsafe { filled(out, got) })
    }

    /// Copies the current completion.
    ///
    /// # Safety
    /// - `cq` is this queue, with a batch begun that stands at a completion.
    #[inline]
    unsafe fn read(&self, cq: *mut sys::ibv_cq_ex) -> ExtendedCompletion {
        // SAFETY: the queue is live, and this thread has it locked.
        let status = unsafe { (*cq).status };
        // SAFETY: as above.
        let wr_id = unsafe { (*cq).wr_id };
        let succeeded = status == sys::ibv_wc_status::IBV_WC_SUCCESS;
        macro_rules! read {
            ($when:expr, $reader:ident) => {
                if $when {
                    // SAFETY: the queue stands at a completion, and has this reader: that was
                    // looked up when it was made.
                    unsafe { sys::$reader(cq) }
                } else {
                    Default::default()
                }
            };
        }
        let asked = |field| self.fields.contains(field);
        // Of a failed request the rest means nothing.
        let told = |field| succeeded && asked(field);
        let mut tag = sys::ibv_wc_tm_info { tag: 0, priv_: 0 };
        if told(CompletionFields::TM_INFO) {
            // SAFETY: as for the other readers; the place is valid.
            unsafe { sys::ibv_wc_read_tm_info(cq, &mut tag) };
        }
        ExtendedCompletion {
            wr_id,
            status,
            fields: self.fields,
            tag,
            vendor_err: read!(!succeeded, ibv_wc_read_vendor_err),
            opcode: sys::ibv_wc_opcode(if succeeded {
                // SAFETY: as for the other readers.
                unsafe { sys::ibv_wc_read_opcode(cq) }.0
            } else {
                0
            }),
            flags: read!(succeeded, ibv_wc_read_wc_flags),
            byte_len: read!(told(CompletionFields::BYTE_LEN), ibv_wc_read_byte_len),
            imm: read!(told(CompletionFields::IMM), ibv_wc_read_imm_data),
            qp_num: read!(asked(CompletionFields::QP_NUM), ibv_wc_read_qp_num),
            src_qp: read!(told(CompletionFields::SRC_QP), ibv_wc_read_src_qp),
            slid: read!(told(CompletionFields::SLID), ibv_wc_read_slid),
            sl: read!(told(CompletionFields::SL), ibv_wc_read_sl),
            dlid_path_bits: read!(
                told(CompletionFields::DLID_PATH_BITS),
                ibv_wc_read_dlid_path_bits
            ),
            timestamp: read!(
                asked(CompletionFields::TIMESTAMP),
                ibv_wc_read_completion_ts
            ),
            wallclock_ns: read!(
                asked(CompletionFields::WALLCLOCK),
                ibv_wc_read_completion_wallclock_ns
            ),
            cvlan: read!(told(CompletionFields::CVLAN), ibv_wc_read_cvlan),
            flow_tag: read!(told(CompletionFields::FLOW_TAG), ibv_wc_read_flow_tag),
        }
    }

    /// What its completions tell.
    pub fn fields(&self) -> CompletionFields {
        self.fields
    }

    /// The same queue under its plain type.
    #[doc(alias = "ibv_cq_ex_to_cq")]
    pub fn queue(&self) -> &CompletionQueue {
        &self.queue
    }

    /// Destroys the queue now.
    ///
    /// # Errors
    /// As for [`CompletionQueue::close`].
    pub fn close(self) -> Result<(), CloseError<Self>> {
        let Self {
            queue,
            fields,
            batches,
        } = self;
        queue.close().map_err(|failed| CloseError {
            error: failed.error,
            handle: Self {
                queue: failed.handle,
                fields,
                batches,
            },
        })
    }

    /// The C queue, for calls that this crate does not have; as for
    /// [`CompletionQueue::as_raw`], and a batch that is begun must be ended before other calls.
    #[inline]
    pub fn as_raw(&self) -> *mut sys::ibv_cq_ex {
        // A queue that `ibv_create_cq_ex` made begins with the plain one.
        self.queue.as_raw().cast()
    }
}

impl fmt::Debug for ExtendedCompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExtendedCompletionQueue")
            .field("queue", &self.queue)
            .field("fields", &self.fields)
            .finish_non_exhaustive()
    }
}

/// Creates the C queue; NULL with errno on failure.
///
/// # Safety
/// - `attributes` names live objects of one open context.
pub(super) unsafe fn create(
    context: *mut sys::ibv_context,
    attributes: &mut sys::ibv_cq_init_attr_ex,
) -> *mut sys::ibv_cq {
    // SAFETY: forwarded to the caller.
    let cq = unsafe { sys::ibv_create_cq_ex(context, attributes) };
    NonNull::new(cq).map_or(std::ptr::null_mut(), |cq| sys::ibv_cq_ex_to_cq(cq.as_ptr()))
}
