//! A part of a local region that holds the data of one operation.

use std::ops::Range;

use rpma::{Error, LocalRegion, Span};

use super::{Defect, Pattern};

/// Bytes that are copied in or out at a time.
const CHUNK: usize = 32 * 1024;

/// A part of a region, filled and checked by a pattern.
#[derive(Debug, Clone, Copy)]
pub(super) struct Window<'a> {
    region: &'a LocalRegion,
    start: usize,
    len: usize,
}

impl<'a> Window<'a> {
    /// The part of `region` that begins at `start` and is `len` bytes long; `span` and every
    /// other call say so when it is not within the region.
    pub(super) fn new(region: &'a LocalRegion, start: usize, len: usize) -> Self {
        Self { region, start, len }
    }

    /// The span to post.
    pub(super) fn span(&self) -> Result<Span<'a>, Error> {
        self.region
            .span(self.start as u64..(self.start + self.len) as u64)
    }

    /// Writes the pattern.
    pub(super) fn fill(&self, pattern: Pattern) -> Result<(), Error> {
        self.set(|offset, bytes| pattern.fill(offset, bytes))
    }

    /// Writes what cannot pass for the pattern, in any byte.
    pub(super) fn poison(&self, pattern: Pattern) -> Result<(), Error> {
        self.set(|offset, bytes| pattern.poison(offset, bytes))
    }

    /// Flips all bits of the byte at `offset`; does nothing beyond the end.
    pub(super) fn flip(&self, offset: u64) -> Result<(), Error> {
        let Some(offset) = usize::try_from(offset)
            .ok()
            .filter(|offset| *offset < self.len)
        else {
            return Ok(());
        };
        let mut byte = [0];
        self.region.load(self.start + offset, &mut byte)?;
        self.region.store(self.start + offset, &[!byte[0]])
    }

    /// Compares every byte with the pattern.
    pub(super) fn check(&self, pattern: Pattern) -> Result<Option<Defect>, Error> {
        let mut bytes = vec![0; self.len.min(CHUNK)];
        let mut first = None;
        let mut wrong = 0;
        for part in self.chunks() {
            let bytes = &mut bytes[..part.len()];
            self.region.load(self.start + part.start, bytes)?;
            if let Some(mismatch) = pattern.check(part.start, bytes) {
                wrong += mismatch.wrong;
                first.get_or_insert(mismatch);
            }
        }
        Ok(first.map(|mismatch| Defect::WrongByte {
            offset: mismatch.offset as u64,
            expected: mismatch.expected,
            found: mismatch.found,
            wrong,
        }))
    }

    fn set(&self, write: impl Fn(usize, &mut [u8])) -> Result<(), Error> {
        let mut bytes = vec![0; self.len.min(CHUNK)];
        for part in self.chunks() {
            let bytes = &mut bytes[..part.len()];
            write(part.start, bytes);
            self.region.store(self.start + part.start, bytes)?;
        }
        Ok(())
    }

    fn chunks(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let len = self.len;
        (0..len)
            .step_by(CHUNK)
            .map(move |start| start..len.min(start + CHUNK))
    }
}
