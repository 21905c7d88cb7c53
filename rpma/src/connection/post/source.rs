//! What operations take their bytes from, and put them into.

use std::mem::MaybeUninit;

use cm::verbs::{LocalKey, PostError, PostErrorKind, SendFlags, Sge};

use super::limits::Limits;
use crate::error::Error;
use crate::memory::{Span, Usage};

/// Spans that one operation may have at most, whatever the device can do.
pub(crate) const MOST_SPANS: usize = 32;

/// Where the bytes of a send or a write come from.
///
/// - A [`Span`], from registered memory, read by the device until the operation has completed.
/// - Several of them, `&[Span]`: gathered into one message, in their order. As many as
///   [`ConnectionConfig::set_max_spans`](crate::ConnectionConfig::set_max_spans) says.
/// - Any bytes, `&[u8]`: inline, copied before the call returns, for short messages. As many as
///   [`ConnectionConfig::set_max_inline`](crate::ConnectionConfig::set_max_inline) says.
///
/// Nothing at all is `b""`.
///
/// `'a` is how long the memory is there at least: for as long as it takes to post.
pub trait Source<'a>: sealed::Source {}

/// Where the bytes of a read or a receive go: a [`Span`], or several, `&[Span]`, which are filled one
/// after the other. Nothing at all is `&[]`.
pub trait Destination<'a>: sealed::Spans {}

impl<'a> Source<'a> for Span<'a> {}
impl<'a> Source<'a> for &[Span<'a>] {}
impl<'a, const N: usize> Source<'a> for &[Span<'a>; N] {}
impl<'a> Source<'a> for &'a [u8] {}
impl<'a, const N: usize> Source<'a> for &'a [u8; N] {}

impl<'a> Destination<'a> for Span<'a> {}
impl<'a> Destination<'a> for &[Span<'a>] {}
impl<'a, const N: usize> Destination<'a> for &[Span<'a>; N] {}

pub(super) mod sealed {
    use super::*;

    /// Registered memory.
    #[expect(unnameable_types, reason = "sealed")]
    pub trait Spans: Sized {
        /// Bytes of all together.
        fn total(&self) -> u64;

        /// Calls `then` with what the device needs, if all may be used for `operation`.
        fn with_sges<R>(
            self,
            operation: &'static str,
            needed: Usage,
            limits: &Limits,
            then: impl FnOnce(&[Sge]) -> Result<R, Error>,
        ) -> Result<R, Error>;
    }

    /// Registered memory, or bytes to be copied.
    #[expect(unnameable_types, reason = "sealed")]
    pub trait Source: Sized {
        /// Bytes of all together.
        fn total(&self) -> u64;

        /// Calls `then` with what the device needs, and the flags for it.
        fn with_source<R>(
            self,
            operation: &'static str,
            needed: Usage,
            limits: &Limits,
            then: impl FnOnce(&[Sge], SendFlags) -> Result<R, Error>,
        ) -> Result<R, Error>;
    }
}

impl sealed::Spans for Span<'_> {
    #[inline(always)]
    fn total(&self) -> u64 {
        self.len()
    }

    #[inline(always)]
    fn with_sges<R>(
        self,
        operation: &'static str,
        needed: Usage,
        limits: &Limits,
        then: impl FnOnce(&[Sge]) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let sges = [self.sge(operation, needed, limits.domain, limits.max_message)?];
        // Some devices take an element without bytes for one of 2 GiB.
        then(&sges[..usize::from(!self.is_empty())])
    }
}

impl sealed::Spans for &[Span<'_>] {
    fn total(&self) -> u64 {
        self.iter()
            .map(|span| span.len())
            .fold(0, u64::saturating_add)
    }

    fn with_sges<R>(
        self,
        operation: &'static str,
        needed: Usage,
        limits: &Limits,
        then: impl FnOnce(&[Sge]) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let most = limits.max_spans.min(MOST_SPANS);
        let mut sges = [const { MaybeUninit::uninit() }; MOST_SPANS];
        let mut used = 0;
        for span in self {
            let sge = span.sge(operation, needed, limits.domain, limits.max_message)?;
            if span.is_empty() {
                continue;
            }
            let Some(place) = sges[..most].get_mut(used) else {
                return Err(Error::TooManySpans {
                    given: self.len(),
                    max: most,
                });
            };
            place.write(sge);
            used += 1;
        }
        let (len, max) = (sealed::Spans::total(&self), limits.max_message.into());
        if len > max {
            return Err(Error::MessageTooLong { len, max });
        }
        // SAFETY: the first `used` elements were written.
        then(unsafe { filled(&sges[..used]) })
    }
}

impl<const N: usize> sealed::Spans for &[Span<'_>; N] {
    #[inline]
    fn total(&self) -> u64 {
        sealed::Spans::total(&self.as_slice())
    }

    #[inline]
    fn with_sges<R>(
        self,
        operation: &'static str,
        needed: Usage,
        limits: &Limits,
        then: impl FnOnce(&[Sge]) -> Result<R, Error>,
    ) -> Result<R, Error> {
        sealed::Spans::with_sges(self.as_slice(), operation, needed, limits, then)
    }
}

/// Registered memory is a source as it is.
macro_rules! source_by_spans {
    ($([$($parameter:tt)*] $type:ty;)*) => {$(
        impl<$($parameter)*> sealed::Source for $type {
            #[inline(always)]
            fn total(&self) -> u64 {
                sealed::Spans::total(self)
            }

            #[inline(always)]
            fn with_source<R>(
                self,
                operation: &'static str,
                needed: Usage,
                limits: &Limits,
                then: impl FnOnce(&[Sge], SendFlags) -> Result<R, Error>,
            ) -> Result<R, Error> {
                sealed::Spans::with_sges(self, operation, needed, limits, |sges| {
                    then(sges, SendFlags::empty())
                })
            }
        }
    )*};
}

source_by_spans! {
    [] Span<'_>;
    [] &[Span<'_>];
    [const N: usize] &[Span<'_>; N];
}

impl sealed::Source for &[u8] {
    #[inline(always)]
    fn total(&self) -> u64 {
        self.len() as u64
    }

    #[inline(always)]
    fn with_source<R>(
        self,
        _operation: &'static str,
        _needed: Usage,
        limits: &Limits,
        then: impl FnOnce(&[Sge], SendFlags) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let len = match u32::try_from(self.len()) {
            Ok(len) if len <= limits.max_inline => len,
            _ => return Err(inline_too_long(self.len(), limits.max_inline)),
        };
        if len == 0 {
            return then(&[], SendFlags::empty());
        }
        then(&[inline_sge(self)], SendFlags::INLINE)
    }
}

impl<const N: usize> sealed::Source for &[u8; N] {
    #[inline(always)]
    fn total(&self) -> u64 {
        N as u64
    }

    #[inline(always)]
    fn with_source<R>(
        self,
        operation: &'static str,
        needed: Usage,
        limits: &Limits,
        then: impl FnOnce(&[Sge], SendFlags) -> Result<R, Error>,
    ) -> Result<R, Error> {
        sealed::Source::with_source(self.as_slice(), operation, needed, limits, then)
    }
}

/// Names bytes that are copied while posting; their number is checked already.
#[inline(always)]
pub(super) fn inline_sge(bytes: &[u8]) -> Sge {
    let address = bytes.as_ptr().expose_provenance() as u64;
    Sge::new(
        address,
        u32::try_from(bytes.len()).unwrap_or(u32::MAX),
        LocalKey(0),
    )
}

#[cold]
pub(super) fn inline_too_long(given: usize, max: u32) -> Error {
    let given = given as u64;
    let kind = PostErrorKind::InlineTooLong { given, max };
    PostError { kind, queued: 0 }.into()
}

/// The elements as what they hold.
///
/// # Safety
/// - All of them were written.
#[inline(always)]
pub(super) unsafe fn filled<T>(elements: &[MaybeUninit<T>]) -> &[T] {
    // SAFETY: same layout, and the caller says that all are values.
    unsafe { std::slice::from_raw_parts(elements.as_ptr().cast(), elements.len()) }
}
