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
        /// What the device needs to know of it.
        type Held: Data;

        /// Bytes of all together.
        fn total(&self) -> u64;

        /// What the device needs, if all may be used for `operation`.
        fn hold(
            self,
            operation: &'static str,
            needed: Usage,
            limits: &Limits,
        ) -> Result<Self::Held, Error>;
    }

    /// Registered memory, or bytes to be copied.
    #[expect(unnameable_types, reason = "sealed")]
    pub trait Source: Sized {
        /// What the device needs to know of it.
        type Taken: Data;

        /// Bytes of all together.
        fn total(&self) -> u64;

        /// What the device needs, if all may be used for `operation`.
        fn take(
            self,
            operation: &'static str,
            needed: Usage,
            limits: &Limits,
        ) -> Result<Self::Taken, Error>;
    }

    /// What the device needs to know of the memory of an operation.
    #[expect(unnameable_types, reason = "sealed")]
    pub trait Data {
        fn sges(&self) -> &[Sge];

        fn flags(&self) -> SendFlags;
    }
}

/// One range, or none where it would be empty: some devices take an element without bytes for one
/// of 2 GiB.
#[expect(unnameable_types, reason = "sealed")]
#[derive(Debug)]
pub struct One<const INLINE: bool> {
    sge: Sge,
}

impl<const INLINE: bool> sealed::Data for One<INLINE> {
    #[inline(always)]
    fn sges(&self) -> &[Sge] {
        &std::slice::from_ref(&self.sge)[..usize::from(!self.sge.is_empty())]
    }

    #[inline(always)]
    fn flags(&self) -> SendFlags {
        if INLINE && !self.sge.is_empty() {
            SendFlags::INLINE
        } else {
            SendFlags::empty()
        }
    }
}

/// Several ranges.
#[expect(unnameable_types, reason = "sealed")]
#[derive(Debug)]
pub struct Many {
    sges: [MaybeUninit<Sge>; MOST_SPANS],
    /// The first ones, which were written.
    used: usize,
}

impl sealed::Data for Many {
    #[inline]
    fn sges(&self) -> &[Sge] {
        // SAFETY: so many were written.
        unsafe { filled(&self.sges[..self.used]) }
    }

    #[inline]
    fn flags(&self) -> SendFlags {
        SendFlags::empty()
    }
}

impl sealed::Spans for Span<'_> {
    type Held = One<false>;

    #[inline(always)]
    fn total(&self) -> u64 {
        self.len()
    }

    #[inline(always)]
    fn hold(
        self,
        operation: &'static str,
        needed: Usage,
        limits: &Limits,
    ) -> Result<One<false>, Error> {
        Ok(One {
            sge: self.sge(operation, needed, limits.domain, limits.max_message)?,
        })
    }
}

impl sealed::Spans for &[Span<'_>] {
    type Held = Many;

    fn total(&self) -> u64 {
        self.iter()
            .map(|span| span.len())
            .fold(0, u64::saturating_add)
    }

    fn hold(self, operation: &'static str, needed: Usage, limits: &Limits) -> Result<Many, Error> {
        let most = limits.max_spans.min(MOST_SPANS);
        let mut held = Many {
            sges: [const { MaybeUninit::uninit() }; MOST_SPANS],
            used: 0,
        };
        for span in self {
            let sge = span.sge(operation, needed, limits.domain, limits.max_message)?;
            if span.is_empty() {
                continue;
            }
            let Some(place) = held.sges[..most].get_mut(held.used) else {
                return Err(Error::TooManySpans {
                    given: self.len(),
                    max: most,
                });
            };
            place.write(sge);
            held.used += 1;
        }
        let (len, max) = (sealed::Spans::total(&self), limits.max_message.into());
        if len > max {
            return Err(Error::MessageTooLong { len, max });
        }
        Ok(held)
    }
}

impl<const N: usize> sealed::Spans for &[Span<'_>; N] {
    type Held = Many;

    #[inline]
    fn total(&self) -> u64 {
        sealed::Spans::total(&self.as_slice())
    }

    #[inline]
    fn hold(self, operation: &'static str, needed: Usage, limits: &Limits) -> Result<Many, Error> {
        sealed::Spans::hold(self.as_slice(), operation, needed, limits)
    }
}

/// Registered memory is a source as it is.
macro_rules! source_by_spans {
    ($([$($parameter:tt)*] $type:ty;)*) => {$(
        impl<$($parameter)*> sealed::Source for $type {
            type Taken = <Self as sealed::Spans>::Held;

            #[inline(always)]
            fn total(&self) -> u64 {
                sealed::Spans::total(self)
            }

            #[inline(always)]
            fn take(
                self,
                operation: &'static str,
                needed: Usage,
                limits: &Limits,
            ) -> Result<Self::Taken, Error> {
                sealed::Spans::hold(self, operation, needed, limits)
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
    type Taken = One<true>;

    #[inline(always)]
    fn total(&self) -> u64 {
        self.len() as u64
    }

    #[inline(always)]
    fn take(
        self,
        _operation: &'static str,
        _needed: Usage,
        limits: &Limits,
    ) -> Result<One<true>, Error> {
        if self.len() as u64 > limits.max_inline.into() {
            return Err(inline_too_long(self.len(), limits.max_inline));
        }
        Ok(One {
            sge: inline_sge(self),
        })
    }
}

impl<const N: usize> sealed::Source for &[u8; N] {
    type Taken = One<true>;

    #[inline(always)]
    fn total(&self) -> u64 {
        N as u64
    }

    #[inline(always)]
    fn take(
        self,
        operation: &'static str,
        needed: Usage,
        limits: &Limits,
    ) -> Result<One<true>, Error> {
        sealed::Source::take(self.as_slice(), operation, needed, limits)
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
