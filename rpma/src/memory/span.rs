//! Parts of regions, bounds-checked once.

use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};

use cm::verbs::{LocalKey, RemoteAddr, RemoteKey, Sge};

use super::{LocalRegion, Usage};
use crate::error::Error;

/// A part of a [`LocalRegion`], borrowed for the call that posts it.
///
/// What is in flight afterwards is no matter of the borrow: dropping a region ends its registration
/// before its memory is unmapped, and requests that are still queued then fail.
///
/// A span cannot be kept past its region:
///
/// ```compile_fail,E0505
/// fn keep(region: rpma::LocalRegion) -> u64 {
///     let span = region.as_span();
///     drop(region);
///     span.len()
/// }
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Span<'a> {
    pub(crate) addr: u64,
    pub(crate) len: u64,
    pub(crate) lkey: LocalKey,
    pub(crate) usage: Usage,
    /// The protection domain, as an identity: never dereferenced.
    pub(crate) domain: usize,
    pub(super) region: PhantomData<&'a LocalRegion>,
}

impl Span<'_> {
    /// Number of bytes.
    #[inline]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What an operation needs to know, if `self` may be used for it.
    #[inline(always)]
    pub(crate) fn sge(
        &self,
        operation: &'static str,
        needed: Usage,
        domain: usize,
        max: u32,
    ) -> Result<Sge, Error> {
        if self.domain != domain {
            return Err(Error::WrongPeer);
        }
        if !self.usage.intersects(needed) {
            return Err(Error::UsageForbids {
                operation,
                side: "local",
                needed,
                given: self.usage,
            });
        }
        if self.len > max.into() {
            return Err(Error::MessageTooLong {
                len: self.len,
                max: max.into(),
            });
        }
        // Not above `max`.
        let len = u32::try_from(self.len).unwrap_or(max);
        Ok(Sge::new(self.addr, len, self.lkey))
    }
}

/// A part of a [`RemoteRegion`](super::RemoteRegion).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteSpan {
    pub(super) addr: u64,
    pub(super) len: u64,
    pub(super) rkey: u32,
    pub(super) usage: Usage,
}

impl RemoteSpan {
    /// Number of bytes.
    #[inline]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// No bytes of no region: for writes and reads of nothing.
    pub const fn empty() -> Self {
        Self {
            addr: 0,
            len: 0,
            rkey: 0,
            usage: Usage::all(),
        }
    }

    /// What the owner registered it for.
    #[inline]
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// What an operation needs to know, if `self` may be used for it.
    #[inline(always)]
    pub(crate) fn target(
        &self,
        operation: &'static str,
        needed: Usage,
    ) -> Result<RemoteAddr, Error> {
        if self.usage.intersects(needed) {
            Ok(RemoteAddr {
                addr: self.addr,
                rkey: RemoteKey(self.rkey),
            })
        } else {
            Err(Error::UsageForbids {
                operation,
                side: "remote",
                needed,
                given: self.usage,
            })
        }
    }
}

/// Offset and length of `range` in a region of `size` bytes.
#[inline]
pub(super) fn resolve(
    range: impl RangeBounds<u64>,
    size: u64,
    what: &'static str,
) -> Result<(u64, u64), Error> {
    let start = match range.start_bound() {
        Bound::Included(&start) => Some(start),
        Bound::Excluded(&start) => start.checked_add(1),
        Bound::Unbounded => Some(0),
    };
    let end = match range.end_bound() {
        Bound::Included(&end) => end.checked_add(1),
        Bound::Excluded(&end) => Some(end),
        Bound::Unbounded => Some(size),
    };
    match (start, end) {
        (Some(start), Some(end)) if start <= end && end <= size => Ok((start, end - start)),
        (start, end) => {
            let offset = start.unwrap_or(u64::MAX);
            Err(Error::OutOfBounds {
                what,
                offset,
                len: end.unwrap_or(u64::MAX).saturating_sub(offset),
                size,
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_inside_or_refused() {
        for (range, expected) in [(0..10, (0, 10)), (10..10, (10, 0)), (3..7, (3, 4))] {
            assert_eq!(resolve(range, 10, "region").expect("inside"), expected);
        }
        assert_eq!(resolve(.., 10, "region").expect("inside"), (0, 10));
        assert_eq!(resolve(2..=9, 10, "region").expect("inside"), (2, 8));
        #[expect(clippy::reversed_empty_ranges, reason = "what a caller may get wrong")]
        for range in [0..11, 10..11, 11..11, 7..3, 5..u64::MAX] {
            assert!(resolve(range, 10, "region").is_err());
        }
        assert!(resolve(0..=u64::MAX, 10, "region").is_err());
    }
}
