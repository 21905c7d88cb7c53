//! Advice about pages that a device brings in on demand.

use std::ops::RangeBounds;

use bitflags::bitflags;
use cm::verbs::{self, Advice, MemoryRegion, Sge};

use super::local::LocalRegion;
use crate::error::Error;

bitflags! {
    /// How advice is to be followed.
    #[doc(alias = "IBV_ADVISE_MR_FLAG_FLUSH")]
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct AdviseFlags: u32 {
        /// Before the call returns. Without it advice is a hint.
        const FLUSH = 1;
    }
}

/// Longest piece that one entry of the call's list can name.
const PIECE: u64 = 1 << 31;

impl LocalRegion {
    /// Tells the device that the bytes `range` will be used soon.
    ///
    /// It is of use for regions whose pages are brought in [on demand](Self::is_on_demand), which
    /// makes the first transfers slow.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`], [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) where
    /// library or device take no advice, and
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) where they do not for this region or
    /// these flags.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn example(region: &rpma::LocalRegion) -> Result<(), rpma::Error> {
    /// use rpma::{Advice, AdviseFlags};
    ///
    /// if region.is_on_demand() {
    ///     region.advise(.., Advice::PREFETCH_WRITE, AdviseFlags::FLUSH)?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "rpma_mr_advise")]
    pub fn advise(
        &self,
        range: impl RangeBounds<u64>,
        advice: Advice,
        flags: AdviseFlags,
    ) -> Result<(), Error> {
        let unknown = flags.difference(AdviseFlags::all());
        if !unknown.is_empty() {
            return Err(Error::Invalid(format!(
                "the flags {:#x} of advise are unknown, only FLUSH (1) is",
                unknown.bits()
            )));
        }
        let span = self.span(range)?;
        let sges: Vec<Sge> = pieces(span.addr, span.len)
            .map(|(addr, len)| Sge::new(addr, len, span.lkey))
            .collect();
        let domain = self.peer().domain();
        let wait = flags.contains(AdviseFlags::FLUSH);
        MemoryRegion::prefetch(domain, &sges, advice, wait).map_err(|error| {
            let detail = format!("{advice} of bytes {:#x}+{}", span.addr, span.len);
            match error.errno() {
                Some(libc::EINVAL | libc::EFAULT) => error
                    .with_kind(verbs::ErrorKind::InvalidArgument)
                    .with_detail(detail)
                    .with_hint("only regions that are paged on demand take advice")
                    .into(),
                _ => error.with_detail(detail).into(),
            }
        })
    }
}

/// The pieces of `len` bytes from `addr` on.
fn pieces(addr: u64, len: u64) -> impl Iterator<Item = (u64, u32)> {
    (0..len.div_ceil(PIECE).max(1)).map(move |number| {
        let from = number * PIECE;
        let len = (len - from).min(PIECE) as u32;
        (addr + from, len)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_entry_cannot_name_is_cut_into_pieces() {
        let of = |len| pieces(0x1000, len).collect::<Vec<_>>();
        assert_eq!(of(0), [(0x1000, 0)]);
        assert_eq!(of(5), [(0x1000, 5)]);
        assert_eq!(of(PIECE), [(0x1000, 1 << 31)]);
        assert_eq!(
            of(2 * PIECE + 7),
            [
                (0x1000, 1 << 31),
                (0x1000 + PIECE, 1 << 31),
                (0x1000 + 2 * PIECE, 7)
            ]
        );
    }
}
