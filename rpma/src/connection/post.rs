//! Operations: checked, posted, and forgotten until their completion.

use cm::ConnectionState;
use cm::verbs::{PostError, RecvRequest, RemoteAddr, SendFlags, SendRequest, Sge};

use super::Connection;
use crate::error::Error;
use crate::memory::{RemoteSpan, Span, Usage};
use crate::peer::FLUSH_READ;

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
    Persistent,
    /// Earlier writes are visible to everybody at the peer.
    Visibility,
}

impl Connection {
    /// Sends a message: the bytes of `src` go to the receive that the other side has posted first.
    ///
    /// # Errors
    /// [`Error::WrongPeer`], [`Error::UsageForbids`] without [`Usage::SEND`],
    /// [`Error::MessageTooLong`], [`Error::QueueFull`].
    #[doc(alias = "rpma_send")]
    #[inline]
    pub fn send(&self, src: Span<'_>, signal: Signal, op_context: u64) -> Result<(), Error> {
        let sge = [self.local("send", src, Usage::SEND)?];
        self.post(SendRequest::send(op_context, &sge), signal)
    }

    /// Posts a receive: the next message goes to `dst`. A longer message than `dst` ends the
    /// connection.
    ///
    /// # Errors
    /// [`Error::WrongPeer`], [`Error::UsageForbids`] without [`Usage::RECV`],
    /// [`Error::QueueFull`], and [`ErrorKind::Disconnected`](crate::ErrorKind::Disconnected) once
    /// the connection is known to be over.
    #[doc(alias = "rpma_recv")]
    #[inline]
    pub fn recv(&self, dst: Span<'_>, op_context: u64) -> Result<(), Error> {
        // SoftRoCE never looks at a receive that comes after the end: nobody may wait for it.
        if self.link.state() == ConnectionState::Closed {
            let peer = self.link.peer_addr();
            return Err(cm::Error::Disconnected { peer }.into());
        }
        // A buffer may be longer than any message.
        let sge = [dst.sge("recv", Usage::RECV, self.domain, u32::MAX)?];
        let mut request = RecvRequest::new(op_context, &sge);
        // SAFETY: as in `post`.
        unsafe { self.link.qp().post_recv(&mut request) }.map_err(Error::from)
    }

    /// Writes the bytes of `src` to `dst`, which has as many.
    ///
    /// Its completion says that the peer's device has the bytes, not that they survive there: see
    /// [`flush`](Self::flush).
    ///
    /// # Errors
    /// [`Error::LengthMismatch`], [`Error::WrongPeer`], [`Error::UsageForbids`] without
    /// [`Usage::WRITE_SRC`] here and [`Usage::WRITE_DST`] there, [`Error::MessageTooLong`],
    /// [`Error::QueueFull`].
    #[doc(alias = "rpma_write")]
    #[inline]
    pub fn write(
        &self,
        dst: RemoteSpan,
        src: Span<'_>,
        signal: Signal,
        op_context: u64,
    ) -> Result<(), Error> {
        let sge = [self.local("write", src, Usage::WRITE_SRC)?];
        let remote = remote("write", dst, Usage::WRITE_DST, src.len())?;
        self.post(SendRequest::write(op_context, &sge, remote), signal)
    }

    /// Reads the bytes of `src` into `dst`, which has as many.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`], [`Error::WrongPeer`], [`Error::UsageForbids`] without
    /// [`Usage::READ_DST`] here and [`Usage::READ_SRC`] (or a flush usage, which grants reads) there,
    /// [`Error::MessageTooLong`], [`Error::QueueFull`].
    #[doc(alias = "rpma_read")]
    #[inline]
    pub fn read(
        &self,
        dst: Span<'_>,
        src: RemoteSpan,
        signal: Signal,
        op_context: u64,
    ) -> Result<(), Error> {
        let sge = [self.local("read", dst, Usage::READ_DST)?];
        let remote = remote("read", src, Usage::READ_SRC.union(Usage::FLUSH), dst.len())?;
        self.post(SendRequest::read(op_context, &sge, remote), signal)
    }

    /// Flushes earlier writes of this connection to `dst`: once it has completed, they are visible
    /// at the peer, or persistent there.
    ///
    /// Done by reading up to 8 bytes from the start of `dst`, which makes the peer's device let go
    /// of all writes before; the completion is that of a read.
    ///
    /// # Errors
    /// [`Error::Unsupported`] when the region was not registered for this kind of flush, or, for
    /// [`FlushType::Persistent`], the peer's configuration
    /// ([`apply_remote_peer_config`](Self::apply_remote_peer_config)) does not say that writes reach
    /// its persistence domain; [`Error::Invalid`] for an empty range; [`Error::QueueFull`].
    #[doc(alias = "rpma_flush")]
    #[inline]
    pub fn flush(
        &self,
        dst: RemoteSpan,
        flush_type: FlushType,
        signal: Signal,
        op_context: u64,
    ) -> Result<(), Error> {
        let usage = match flush_type {
            FlushType::Persistent if !self.direct_write.get() => {
                return Err(Error::Unsupported {
                    what: "a flush to persistence",
                    why: "the peer's configuration does not say that writes reach its persistence \
                          domain by themselves",
                });
            }
            FlushType::Persistent => Usage::FLUSH_PERSISTENT,
            FlushType::Visibility => Usage::FLUSH_VISIBILITY,
        };
        if !dst.usage().contains(usage) {
            return Err(Error::Unsupported {
                what: "this kind of flush",
                why: "the remote region was registered without the usage for it",
            });
        }
        // Never past the range: the region may end there.
        let len = u32::try_from(dst.len()).unwrap_or(u32::MAX).min(FLUSH_READ);
        if len == 0 {
            return Err(Error::Invalid(
                "a flush needs a range of at least 1 byte".into(),
            ));
        }
        let remote = dst.target("flush", usage)?;
        let sge = [self.peer.flush_sge(len)];
        self.post(SendRequest::read(op_context, &sge, remote), signal)
    }

    #[inline]
    fn local(&self, operation: &'static str, span: Span<'_>, needed: Usage) -> Result<Sge, Error> {
        span.sge(operation, needed, self.domain, self.max_message)
    }

    #[inline]
    fn post(&self, request: SendRequest<'_>, signal: Signal) -> Result<(), Error> {
        let (mut request, run) = match signal {
            Signal::Always => (request.with_flags(SendFlags::SIGNALED), 0),
            Signal::OnError => (request, self.unsignaled.get() + 1),
        };
        // A run of operations without completions must end before the queue does: its slots come
        // free only with a completion behind them.
        if run >= self.sq_size {
            return Err(Error::QueueFull {
                reason: "as many operations as fit were posted without asking for a completion; \
                         post one with Signal::Always",
            });
        }
        // SAFETY: the span lies in a region of this connection's domain that is live now. Its
        // memory is never borrowed, and it is unmapped only after the region is deregistered, after
        // which the device refuses the key. The flush buffer is the peer's, which outlives the
        // queue pair.
        let posted = unsafe { self.link.qp().post_send(&mut request) };
        self.unsignaled
            .set(run_after(self.unsignaled.get(), run, posted));
        Ok(posted?)
    }
}

/// How long the run of operations without completions is after a post that would make it `run`.
///
/// An operation that was refused and may be in the queue all the same takes a slot, but need not
/// ever give the completion that ends a run.
#[inline]
fn run_after(before: u32, run: u32, posted: Result<(), PostError>) -> u32 {
    match posted {
        Ok(()) => run,
        Err(error) if error.queued > 0 => run.max(before),
        Err(_) => before,
    }
}

#[inline]
fn remote(
    operation: &'static str,
    span: RemoteSpan,
    needed: Usage,
    local_len: u64,
) -> Result<RemoteAddr, Error> {
    if span.len() != local_len {
        let (dst, src) = match operation {
            "read" => (local_len, span.len()),
            _ => (span.len(), local_len),
        };
        return Err(Error::LengthMismatch { dst, src });
    }
    span.target(operation, needed)
}

#[cfg(test)]
mod tests {
    use cm::verbs::PostErrorKind;

    use super::*;

    #[test]
    fn a_run_grows_with_what_may_be_queued_and_ends_only_with_what_is() {
        let failed = |queued| {
            let kind = PostErrorKind::Provider(libc::EINVAL);
            Err(PostError { kind, queued })
        };
        // Without a completion, then with one.
        assert_eq!(run_after(3, 4, Ok(())), 4);
        assert_eq!(run_after(3, 0, Ok(())), 0);
        assert_eq!(run_after(3, 4, failed(1)), 4);
        assert_eq!(run_after(3, 0, failed(1)), 3);
        assert_eq!(run_after(3, 4, failed(0)), 3);
        assert_eq!(run_after(3, 0, failed(0)), 3);
    }
}
