//! One completion.

use cm::verbs::{WcError, WcOpcode, WcSuccess, WorkCompletion};

/// What became of one operation.
#[derive(Debug, Clone, Copy)]
#[repr(transparent)]
pub struct Completion(WorkCompletion);

impl Completion {
    /// The number that the operation was posted with.
    #[inline]
    pub fn op_context(&self) -> u64 {
        self.0.wr_id()
    }

    /// What was done, or why not. A failed operation ends the connection: those behind it come
    /// back flushed.
    ///
    /// # Errors
    /// [`CompletionError`](crate::CompletionError), the status of the operation.
    #[inline]
    pub fn result(&self) -> Result<WcSuccess<'_>, WcError> {
        self.0.result()
    }

    /// What kind of operation it was, `None` of one that failed. A flush and an atomic write have
    /// the opcode of the way in which they were [carried out](crate::Connection::flush_method).
    #[inline]
    pub fn opcode(&self) -> Option<WcOpcode> {
        self.0.result().ok().map(|success| success.opcode())
    }

    /// The 4 bytes that came with a message or a write
    /// ([`send_with_imm`](crate::Connection::send_with_imm)), in host order.
    #[doc(alias = "imm_data")]
    #[inline]
    pub fn imm(&self) -> Option<u32> {
        self.0.result().ok().and_then(|success| success.imm())
    }

    /// The number of this side's queue pair, which tells connections apart.
    #[inline]
    pub fn qp_num(&self) -> u32 {
        self.0.qp_num()
    }

    /// The completion as verbs has it.
    pub fn as_work_completion(&self) -> &WorkCompletion {
        &self.0
    }
}
