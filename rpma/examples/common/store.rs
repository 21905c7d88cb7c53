//! Data in a file behind a signature, which is written last: where it stands the data are valid.

use rpma::gpspm::Announcement;
use rpma::{LocalRegion, Peer, PeerConfig, PrivateData, Span, Usage};

use super::{Failure, Outcome};

const SIGNATURE: &[u8] = b"RPMA_EXAMPLE_SIG\0";

/// Data of a fixed length, in a file or in ordinary memory, where no signature is needed.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) region: LocalRegion,
    /// Where the data begin.
    pub(crate) start: usize,
    len: usize,
    /// Whether there are no valid data yet.
    pub(crate) is_new: bool,
}

impl Store {
    /// `len` bytes of data; in a file the signature stands at `offset`.
    pub(crate) fn open(
        peer: &Peer,
        file: Option<&String>,
        offset: usize,
        len: usize,
        usage: Usage,
    ) -> Outcome<Self> {
        let start = file.map_or(0, |_| offset + SIGNATURE.len());
        let region = super::memory(peer, file, start + len, usage)?;
        let mut found = [0; SIGNATURE.len()];
        if file.is_some() {
            region.load(offset, &mut found)?;
        }
        Ok(Self {
            region,
            start,
            len,
            is_new: found != SIGNATURE,
        })
    }

    /// Writes bytes of the data, and makes them persistent.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) -> Outcome {
        let start = self.start + offset;
        self.region.store(start, bytes)?;
        super::persist(&self.region, start..start + bytes.len())
    }

    /// Makes all of the data persistent, and valid.
    pub(crate) fn commit(&mut self) -> Outcome {
        super::persist(&self.region, self.start..self.start + self.len)?;
        if let Some(offset) = self.start.checked_sub(SIGNATURE.len()) {
            self.region.store(offset, SIGNATURE)?;
            super::persist(&self.region, offset..self.start)?;
        }
        self.is_new = false;
        Ok(())
    }

    /// The text that the data begin with, if there is one.
    pub(crate) fn text(&self) -> Outcome<Option<String>> {
        if self.is_new {
            return Ok(None);
        }
        let text = super::text_in(&self.region, self.start..self.start + self.len)?;
        Ok(Some(text).filter(|text| !text.is_empty()))
    }

    /// The data, for an operation.
    pub(crate) fn span(&self) -> Outcome<Span<'_>> {
        let range = self.start as u64..(self.start + self.len) as u64;
        Ok(self.region.span(range)?)
    }

    /// What tells the other side where the data are, from `offset` on.
    pub(crate) fn announced(
        &self,
        offset: usize,
        config: Option<&PeerConfig>,
    ) -> Outcome<PrivateData> {
        let start = u16::try_from(self.start + offset).map_err(|_| {
            Failure::Usage(format!(
                "the data begin at {}, and are to begin within the first 64 KiB",
                self.start + offset
            ))
        })?;
        Ok(Announcement::of(&self.region, start, config)?)
    }
}
