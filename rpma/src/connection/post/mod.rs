//! Operations: checked, posted, and forgotten until their completion.

mod batch;
mod limits;
mod operations;
mod source;

use cm::ConnectionState;
use cm::verbs::{PostError, QueuePair, RecvRequest, SendFlags, SendRequest, Sge};

pub use self::batch::Batch;
pub use self::source::{Destination, Source};

pub(super) use self::limits::{Limits, Run};
pub(crate) use self::source::MOST_SPANS;

use self::operations::{Atomic, Sink};
use self::source::inline_sge;
use self::source::sealed::Data;
use super::Connection;
use super::queue_pair::{Native, NativeOperations};
use crate::error::Error;
use crate::memory::{RemoteSpan, Span, Usage};

/// When an operation gives a completion.
#[doc(alias = "RPMA_F_COMPLETION_ALWAYS")]
#[doc(alias = "RPMA_F_COMPLETION_ON_ERROR")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Signal {
    /// Always.
    Always,
    /// Only when it fails. That it has succeeded is known when a later operation with
    /// [`Signal::Always`] of the same connection has; only then is its slot free again.
    OnError,
}

/// What a flush is to ensure.
#[doc(alias = "rpma_flush_type")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FlushType {
    /// Earlier writes have reached the peer's persistence domain.
    #[doc(alias = "RPMA_FLUSH_TYPE_PERSISTENT")]
    Persistent,
    /// Earlier writes are visible to everybody at the peer.
    #[doc(alias = "RPMA_FLUSH_TYPE_VISIBILITY")]
    Visibility,
}

/// How a flush is carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FlushMethod {
    /// By reading up to 8 bytes behind the writes, which pushes them out of the peer's device. Any
    /// device can; it completes with the opcode of a read.
    Read,
    /// By the operation that devices have for it; it completes with an opcode of its own.
    #[doc(alias = "ibv_wr_flush")]
    Native,
}

/// How an atomic write is carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AtomicWriteMethod {
    /// As an 8-byte write behind a fence, which devices do as one in practice, though nothing
    /// promises it. It completes with the opcode of a write.
    Write,
    /// By the operation that devices have for it; it completes with an opcode of its own.
    #[doc(alias = "ibv_wr_atomic_write")]
    Native,
}

/// What posting needs, in plain cells: a connection is one thread's at a time.
#[derive(Debug)]
pub(super) struct Posting {
    limits: Limits,
    run: Run,
    native: Option<NativeOperations>,
}

impl Posting {
    pub(super) fn new(limits: Limits, sq_size: u32, native: Option<NativeOperations>) -> Self {
        Self {
            limits,
            run: Run::new(sq_size),
            native,
        }
    }

    /// What flushes natively, if this connection does so.
    #[inline(always)]
    fn native_flush(&self, flush_type: FlushType) -> Option<&NativeOperations> {
        let native = self.native.as_ref()?;
        native.flushes(flush_type).then_some(native)
    }

    #[inline(always)]
    fn native_atomic_write(&self) -> Option<&NativeOperations> {
        let native = self.native.as_ref()?;
        native.writes_atomically().then_some(native)
    }
}

impl Connection {
    /// Sends a message: the bytes of `src` go to the receive that the other side has posted first.
    ///
    /// # Errors
    /// [`Error::WrongPeer`], [`Error::UsageForbids`] without [`Usage::SEND`],
    /// [`Error::MessageTooLong`], [`Error::TooManySpans`], [`Error::QueueFull`], and
    /// [`Error::Post`] for more bytes than may be inline.
    ///
    /// # Example
    /// ```no_run
    /// # fn example(connection: &rpma::Connection, region: &rpma::LocalRegion) -> Result<(), rpma::Error> {
    /// use rpma::Signal;
    ///
    /// connection.send(region.span(..4096)?, Signal::OnError, 1)?;
    /// // Two parts as one message.
    /// connection.send(&[region.span(..16)?, region.span(64..128)?], Signal::OnError, 2)?;
    /// // A few bytes that are in no region.
    /// connection.send(b"done", Signal::Always, 3)?;
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "rpma_send")]
    #[inline]
    pub fn send<'a>(
        &self,
        src: impl Source<'a>,
        signal: Signal,
        op_context: u64,
    ) -> Result<(), Error> {
        operations::send(&mut Now(self), src, None, signal, op_context)
    }

    /// Sends a message with 4 bytes more, which the receive's completion has
    /// ([`Completion::imm`](crate::Completion::imm)): `imm` is in host order on both sides, and
    /// big-endian between them.
    ///
    /// # Errors
    /// As [`send`](Self::send); [`Error::Post`] where the device has no immediate data (iWARP).
    #[doc(alias = "rpma_send_with_imm")]
    #[inline]
    pub fn send_with_imm<'a>(
        &self,
        src: impl Source<'a>,
        imm: u32,
        signal: Signal,
        op_context: u64,
    ) -> Result<(), Error> {
        operations::send(&mut Now(self), src, Some(imm), signal, op_context)
    }

    /// Posts a receive: the next message goes to `dst`. A longer message than `dst` ends the
    /// connection.
    ///
    /// # Errors
    /// [`Error::WrongPeer`], [`Error::UsageForbids`] without [`Usage::RECV`],
    /// [`Error::TooManySpans`], [`Error::QueueFull`], [`Error::Post`] for a connection with a shared
    /// receive queue, and [`ErrorKind::Disconnected`](crate::ErrorKind::Disconnected) once
    /// the connection is known to be over.
    #[doc(alias = "rpma_recv")]
    #[inline]
    pub fn recv<'a>(&self, dst: impl Destination<'a>, op_context: u64) -> Result<(), Error> {
        // SoftRoCE never looks at a receive that comes after the end: nobody may wait for it.
        if self.link.state() == ConnectionState::Closed {
            return Err(self.is_over());
        }
        post_recv(self.link.qp(), &self.posting.limits, dst, op_context)
    }

    /// Writes the bytes of `src` to `dst`, which has as many.
    ///
    /// Its completion says that the peer's device has the bytes, not that they survive there: see
    /// [`flush`](Self::flush).
    ///
    /// # Errors
    /// [`Error::LengthMismatch`], [`Error::WrongPeer`], [`Error::UsageForbids`] without
    /// [`Usage::WRITE_SRC`] here and [`Usage::WRITE_DST`] there, [`Error::MessageTooLong`],
    /// [`Error::TooManySpans`], [`Error::QueueFull`], and [`Error::Post`] for more bytes than may be
    /// inline.
    #[doc(alias = "rpma_write")]
    #[inline]
    pub fn write<'a>(
        &self,
        dst: RemoteSpan,
        src: impl Source<'a>,
        signal: Signal,
        op_context: u64,
    ) -> Result<(), Error> {
        operations::write(&mut Now(self), dst, src, None, signal, op_context)
    }

    /// Writes, and then completes a receive of the peer, which needs no memory, with `imm`
    /// ([`Completion::imm`](crate::Completion::imm)): in host order on both sides, and big-endian
    /// between them. To tell without writing, write `b""` to [`RemoteSpan::empty`].
    ///
    /// # Errors
    /// As [`write`](Self::write); [`Error::Post`] where the device has no immediate data (iWARP).
    #[doc(alias = "rpma_write_with_imm")]
    #[inline]
    pub fn write_with_imm<'a>(
        &self,
        dst: RemoteSpan,
        src: impl Source<'a>,
        imm: u32,
        signal: Signal,
        op_context: u64,
    ) -> Result<(), Error> {
        operations::write(&mut Now(self), dst, src, Some(imm), signal, op_context)
    }

    /// Reads the bytes of `src` into `dst`, which has as many.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`], [`Error::WrongPeer`], [`Error::UsageForbids`] without
    /// [`Usage::READ_DST`] here and [`Usage::READ_SRC`] (or a flush usage, which grants reads) there,
    /// [`Error::MessageTooLong`], [`Error::TooManySpans`], [`Error::QueueFull`].
    #[doc(alias = "rpma_read")]
    #[inline]
    pub fn read<'a>(
        &self,
        dst: impl Destination<'a>,
        src: RemoteSpan,
        signal: Signal,
        op_context: u64,
    ) -> Result<(), Error> {
        operations::read(&mut Now(self), dst, src, signal, op_context)
    }

    /// Writes 8 bytes to `dst`, so that nobody at the peer ever sees a part of them, after all that
    /// was posted before: also after the flush of an earlier write. The bytes arrive in their order.
    ///
    /// How is told by [`atomic_write_method`](Self::atomic_write_method).
    ///
    /// # Errors
    /// [`Error::NotOneWord`] unless `dst` is 8 bytes at an address that is a multiple of 8,
    /// [`Error::UsageForbids`] without [`Usage::WRITE_DST`], [`Error::QueueFull`].
    #[doc(alias = "rpma_atomic_write")]
    #[inline]
    pub fn atomic_write(
        &self,
        dst: RemoteSpan,
        value: [u8; 8],
        signal: Signal,
        op_context: u64,
    ) -> Result<(), Error> {
        operations::atomic_write(&mut Now(self), dst, value, signal, op_context)
    }

    /// As [`atomic_write`](Self::atomic_write), with the 8 bytes that `src` has when the device gets
    /// to it. Always by [`AtomicWriteMethod::Write`].
    ///
    /// # Errors
    /// As [`atomic_write`](Self::atomic_write), [`Error::LengthMismatch`], [`Error::WrongPeer`], and
    /// [`Error::UsageForbids`] without [`Usage::WRITE_SRC`].
    #[doc(alias = "rpma_write_atomic")]
    #[inline]
    pub fn atomic_write_from(
        &self,
        dst: RemoteSpan,
        src: Span<'_>,
        signal: Signal,
        op_context: u64,
    ) -> Result<(), Error> {
        operations::atomic_write_from(&mut Now(self), dst, src, signal, op_context)
    }

    /// Adds `add` to the 8 bytes at `at`, without carry beyond them, and puts what they were into the
    /// 8 bytes of `result`. Numbers are in the byte order of each side's processor.
    ///
    /// Atomic among operations of the peer's device, not with the peer's processors.
    ///
    /// # Errors
    /// [`Error::NotOneWord`] unless `at` is 8 bytes at an address that is a multiple of 8,
    /// [`Error::LengthMismatch`] unless `result` has 8 bytes, [`Error::WrongPeer`],
    /// [`Error::UsageForbids`] without [`Usage::READ_DST`] here and both [`Usage::READ_SRC`] and
    /// [`Usage::WRITE_DST`] there, [`Error::Post`] where the device has no atomics,
    /// [`Error::QueueFull`]. A region of a C peer does not allow it: the operation then fails.
    #[doc(alias = "IBV_WR_ATOMIC_FETCH_AND_ADD")]
    #[inline]
    pub fn fetch_add(
        &self,
        result: Span<'_>,
        at: RemoteSpan,
        add: u64,
        signal: Signal,
        op_context: u64,
    ) -> Result<(), Error> {
        let what = Atomic::Add(add);
        operations::atomic(&mut Now(self), result, at, what, signal, op_context)
    }

    /// Puts `new` into the 8 bytes at `at` if they are `compare`, and what they were into the 8 bytes
    /// of `result` in any case; otherwise as [`fetch_add`](Self::fetch_add).
    ///
    /// # Errors
    /// As [`fetch_add`](Self::fetch_add).
    #[doc(alias = "IBV_WR_ATOMIC_CMP_AND_SWP")]
    #[inline]
    pub fn compare_swap(
        &self,
        result: Span<'_>,
        at: RemoteSpan,
        compare: u64,
        new: u64,
        signal: Signal,
        op_context: u64,
    ) -> Result<(), Error> {
        let what = Atomic::Swap { compare, new };
        operations::atomic(&mut Now(self), result, at, what, signal, op_context)
    }

    /// Flushes earlier writes of this connection to `dst`: once it has completed, they are visible
    /// at the peer, or persistent there.
    ///
    /// How is told by [`flush_method`](Self::flush_method); neither reaches beyond `dst`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] when the region was not registered for this kind of flush, or, for
    /// [`FlushType::Persistent`], the peer's configuration
    /// ([`apply_remote_peer_config`](Self::apply_remote_peer_config)) does not say that writes reach
    /// its persistence domain; [`Error::Invalid`] for an empty range; [`Error::MessageTooLong`] for
    /// 4 GiB and more by the native method; [`Error::QueueFull`].
    #[doc(alias = "rpma_flush")]
    #[inline]
    pub fn flush(
        &self,
        dst: RemoteSpan,
        flush_type: FlushType,
        signal: Signal,
        op_context: u64,
    ) -> Result<(), Error> {
        operations::flush(&mut Now(self), dst, flush_type, signal, op_context)
    }

    /// How this connection flushes: decided when it was made, for each type by itself.
    #[inline]
    pub fn flush_method(&self, flush_type: FlushType) -> FlushMethod {
        match self.posting.native_flush(flush_type) {
            Some(_) => FlushMethod::Native,
            None => FlushMethod::Read,
        }
    }

    /// How this connection carries out an [`atomic_write`](Self::atomic_write): decided when it was
    /// made.
    #[inline]
    pub fn atomic_write_method(&self) -> AtomicWriteMethod {
        match self.posting.native_atomic_write() {
            Some(_) => AtomicWriteMethod::Native,
            None => AtomicWriteMethod::Write,
        }
    }

    /// The bytes that a send or a write may take from memory that is not registered.
    pub fn max_inline(&self) -> u32 {
        self.posting.limits.max_inline
    }

    /// The bytes of the longest message, by the port that the connection goes through.
    pub fn max_message_size(&self) -> u32 {
        self.posting.limits.max_message
    }

    #[cold]
    fn is_over(&self) -> Error {
        let peer = self.link.peer_addr();
        cm::Error::Disconnected { peer }.into()
    }
}

/// Posts a receive to a queue pair of the peer whose `limits` are given.
#[inline(always)]
pub(super) fn post_recv<'a>(
    qp: &QueuePair,
    limits: &Limits,
    dst: impl Destination<'a>,
    op_context: u64,
) -> Result<(), Error> {
    let limits = Limits {
        // A buffer may be longer than any message.
        max_message: u32::MAX,
        ..*limits
    };
    let data = dst.hold("recv", Usage::RECV, &limits)?;
    let mut request = RecvRequest::new(op_context, data.sges());
    // SAFETY: the spans lie in regions of this queue pair's domain that are live now. Their
    // memory is never borrowed, and it is unmapped only after the region is deregistered, after
    // which the device refuses the key.
    Ok(unsafe { qp.post_recv(&mut request) }?)
}

/// Posts at once.
struct Now<'a>(&'a Connection);

impl Now<'_> {
    /// Keeps the length of a run, for a single request.
    #[inline(always)]
    fn settle(&self, run: u32, signal: Signal, posted: Result<(), PostError>) -> Result<(), Error> {
        let Err(error) = posted else {
            self.0.posting.run.set(run);
            return Ok(());
        };
        if error.queued > 0 {
            let without = u32::from(signal == Signal::OnError);
            self.0.posting.run.set_partly(without);
        }
        Err(error.into())
    }

    #[inline(always)]
    fn post(
        &self,
        request: SendRequest<'_>,
        flags: SendFlags,
        signal: Signal,
    ) -> Result<(), Error> {
        let run = &self.0.posting.run;
        let longer = run.longer(run.now(), signal == Signal::Always)?;
        let mut request = request.with_flags(flags | signal.flags());
        // SAFETY: the spans lie in regions of this connection's domain that are live now. Their
        // memory is never borrowed, and it is unmapped only after the region is deregistered, after
        // which the device refuses the key. The flush buffer is the peer's, which outlives the
        // queue pair. Inline bytes are borrowed for this call.
        let posted = unsafe { self.0.link.qp().post_send(&mut request) };
        self.settle(longer, signal, posted)
    }
}

impl<'a> Sink<'a> for Now<'a> {
    #[inline(always)]
    fn connection(&self) -> &'a Connection {
        self.0
    }

    #[inline(always)]
    fn put(
        &mut self,
        request: SendRequest<'_>,
        _sges: &[Sge],
        flags: SendFlags,
        signal: Signal,
    ) -> Result<(), Error> {
        self.post(request, flags, signal)
    }

    #[inline(always)]
    fn put_word(
        &mut self,
        request: SendRequest<'_>,
        word: [u8; 8],
        flags: SendFlags,
        signal: Signal,
    ) -> Result<(), Error> {
        let sges = [inline_sge(&word)];
        self.post(request.with_sges(&sges), flags | SendFlags::INLINE, signal)
    }

    #[inline]
    fn put_native(
        &mut self,
        through: &'a NativeOperations,
        native: Native,
        signal: Signal,
    ) -> Result<(), Error> {
        let run = &self.0.posting.run;
        let longer = run.longer(run.now(), signal == Signal::Always)?;
        self.settle(longer, signal, through.post(native, signal.flags()))
    }
}

impl Signal {
    #[inline(always)]
    fn flags(self) -> SendFlags {
        match self {
            Self::Always => SendFlags::SIGNALED,
            Self::OnError => SendFlags::empty(),
        }
    }
}
