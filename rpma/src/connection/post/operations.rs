//! Every operation once, checked: for the queue at once, and for batches.

use cm::verbs::{RemoteAddr, SendFlags, SendRequest, Sge};

use super::limits::Limits;
use super::source::sealed::{Data, Source, Spans};
use super::{FlushType, Signal};
use crate::connection::Connection;
use crate::connection::queue_pair::{Native, NativeKind, NativeOperations};
use crate::error::Error;
use crate::memory::{RemoteSpan, Span, Usage};
use crate::peer::FLUSH_READ;

/// Where operations go.
pub(super) trait Sink<'a> {
    fn connection(&self) -> &'a Connection;

    /// Takes a request whose data is `sges`.
    fn put(
        &mut self,
        request: SendRequest<'_>,
        sges: &[Sge],
        flags: SendFlags,
        signal: Signal,
    ) -> Result<(), Error>;

    /// Takes a request whose data is a word of the caller's.
    fn put_word(
        &mut self,
        request: SendRequest<'_>,
        word: [u8; 8],
        flags: SendFlags,
        signal: Signal,
    ) -> Result<(), Error>;

    /// Takes an operation that the device has besides the classic ones.
    fn put_native(
        &mut self,
        through: &'a NativeOperations,
        native: Native,
        signal: Signal,
    ) -> Result<(), Error>;
}

/// Emulated atomic writes stay behind reads, and so behind flushes, as they do where the device has
/// them.
const ORDERED: SendFlags = SendFlags::FENCE;

#[inline(always)]
fn limits<'a>(sink: &impl Sink<'a>) -> Limits {
    sink.connection().posting.limits
}

#[inline(always)]
pub(super) fn send<'a>(
    sink: &mut impl Sink<'a>,
    src: impl Source,
    imm: Option<u32>,
    signal: Signal,
    op_context: u64,
) -> Result<(), Error> {
    let limits = limits(sink);
    let data = src.take("send", Usage::SEND, &limits)?;
    let sges = data.sges();
    let request = match imm {
        None => SendRequest::send(op_context, sges),
        Some(imm) => SendRequest::send_with_imm(op_context, sges, imm),
    };
    sink.put(request, sges, data.flags(), signal)
}

#[inline(always)]
pub(super) fn write<'a>(
    sink: &mut impl Sink<'a>,
    dst: RemoteSpan,
    src: impl Source,
    imm: Option<u32>,
    signal: Signal,
    op_context: u64,
) -> Result<(), Error> {
    let limits = limits(sink);
    let len = src.total();
    let data = src.take("write", Usage::WRITE_SRC, &limits)?;
    equal(dst.len(), len)?;
    let remote = dst.target("write", Usage::WRITE_DST)?;
    let sges = data.sges();
    let request = match imm {
        None => SendRequest::write(op_context, sges, remote),
        Some(imm) => SendRequest::write_with_imm(op_context, sges, remote, imm),
    };
    sink.put(request, sges, data.flags(), signal)
}

#[inline(always)]
pub(super) fn read<'a>(
    sink: &mut impl Sink<'a>,
    dst: impl Spans,
    src: RemoteSpan,
    signal: Signal,
    op_context: u64,
) -> Result<(), Error> {
    let limits = limits(sink);
    let len = dst.total();
    let data = dst.hold("read", Usage::READ_DST, &limits)?;
    equal(len, src.len())?;
    let remote = src.target("read", Usage::READ_SRC.union(Usage::FLUSH))?;
    let request = SendRequest::read(op_context, data.sges(), remote);
    sink.put(request, data.sges(), SendFlags::empty(), signal)
}

#[inline(always)]
pub(super) fn flush<'a>(
    sink: &mut impl Sink<'a>,
    dst: RemoteSpan,
    flush_type: FlushType,
    signal: Signal,
    op_context: u64,
) -> Result<(), Error> {
    let connection = sink.connection();
    let usage = match flush_type {
        FlushType::Persistent if !connection.direct_write.get() => return Err(no_direct_write()),
        FlushType::Persistent => Usage::FLUSH_PERSISTENT,
        FlushType::Visibility => Usage::FLUSH_VISIBILITY,
    };
    if !dst.usage().contains(usage) {
        return Err(not_registered());
    }
    let remote = dst.target("flush", usage)?;
    // Never past the range: the region may end there.
    if let Some(native) = connection.posting.native_flush(flush_type) {
        let Ok(len) = u32::try_from(dst.len()) else {
            return Err(Error::MessageTooLong {
                len: dst.len(),
                max: u32::MAX.into(),
            });
        };
        if len == 0 {
            return Err(empty_flush());
        }
        let what = NativeKind::Flush(len, flush_type);
        let request = Native {
            op_context,
            remote,
            what,
        };
        return sink.put_native(native, request, signal);
    }
    let len = u32::try_from(dst.len()).unwrap_or(u32::MAX).min(FLUSH_READ);
    if len == 0 {
        return Err(empty_flush());
    }
    let sges = [connection.peer.flush_sge(len)];
    let request = SendRequest::read(op_context, &sges, remote);
    sink.put(request, &sges, SendFlags::empty(), signal)
}

#[inline(always)]
pub(super) fn atomic_write<'a>(
    sink: &mut impl Sink<'a>,
    dst: RemoteSpan,
    value: [u8; 8],
    signal: Signal,
    op_context: u64,
) -> Result<(), Error> {
    let remote = word("atomic write", dst, Usage::WRITE_DST)?;
    if let Some(native) = sink.connection().posting.native_atomic_write() {
        let what = NativeKind::AtomicWrite(value);
        let request = Native {
            op_context,
            remote,
            what,
        };
        return sink.put_native(native, request, signal);
    }
    let request = SendRequest::write(op_context, &[], remote);
    sink.put_word(request, value, ORDERED, signal)
}

#[inline(always)]
pub(super) fn atomic_write_from<'a>(
    sink: &mut impl Sink<'a>,
    dst: RemoteSpan,
    src: Span<'_>,
    signal: Signal,
    op_context: u64,
) -> Result<(), Error> {
    let limits = limits(sink);
    let remote = word("atomic write", dst, Usage::WRITE_DST)?;
    equal(dst.len(), src.len())?;
    let data = src.hold("atomic write", Usage::WRITE_SRC, &limits)?;
    let request = SendRequest::write(op_context, data.sges(), remote);
    sink.put(request, data.sges(), ORDERED, signal)
}

/// What an atomic does with the 8 bytes at the peer.
#[derive(Debug, Clone, Copy)]
pub(super) enum Atomic {
    Add(u64),
    Swap { compare: u64, new: u64 },
}

#[inline(always)]
pub(super) fn atomic<'a>(
    sink: &mut impl Sink<'a>,
    result: Span<'_>,
    at: RemoteSpan,
    what: Atomic,
    signal: Signal,
    op_context: u64,
) -> Result<(), Error> {
    let operation = match what {
        Atomic::Add(_) => "fetch-and-add",
        Atomic::Swap { .. } => "compare-and-swap",
    };
    let limits = limits(sink);
    let both = Usage::READ_SRC.union(Usage::WRITE_DST);
    let remote = word(operation, at, both)?;
    if !at.usage().contains(both) {
        return Err(Error::UsageForbids {
            operation,
            side: "remote",
            needed: both,
            given: at.usage(),
        });
    }
    equal(result.len(), at.len())?;
    let data = result.hold(operation, Usage::READ_DST, &limits)?;
    let sges = data.sges();
    let request = match what {
        Atomic::Add(add) => SendRequest::fetch_and_add(op_context, sges, remote, add),
        Atomic::Swap { compare, new } => {
            SendRequest::compare_and_swap(op_context, sges, remote, compare, new)
        }
    };
    sink.put(request, sges, SendFlags::empty(), signal)
}

/// The place of 8 bytes that are changed as one.
#[inline(always)]
fn word(operation: &'static str, span: RemoteSpan, needed: Usage) -> Result<RemoteAddr, Error> {
    let remote = span.target(operation, needed)?;
    if span.len() != 8 || !remote.addr.is_multiple_of(8) {
        return Err(Error::NotOneWord {
            operation,
            addr: remote.addr,
            len: span.len(),
        });
    }
    Ok(remote)
}

#[inline(always)]
fn equal(dst: u64, src: u64) -> Result<(), Error> {
    if dst == src {
        Ok(())
    } else {
        Err(Error::LengthMismatch { dst, src })
    }
}

#[cold]
fn no_direct_write() -> Error {
    Error::Unsupported {
        what: "a flush to persistence",
        why: "the peer's configuration does not say that writes reach its persistence domain by \
              themselves",
    }
}

#[cold]
fn not_registered() -> Error {
    Error::Unsupported {
        what: "this kind of flush",
        why: "the remote region was registered without the usage for it",
    }
}

#[cold]
fn empty_flush() -> Error {
    Error::Invalid("a flush needs a range of at least 1 byte".into())
}
