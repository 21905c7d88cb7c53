//! A peer's region, as its 21-byte descriptor says. The bytes are hostile until checked.

use std::ops::RangeBounds;

use super::Usage;
use super::descriptor::{self, Descriptor};
use super::span::{RemoteSpan, resolve};
use crate::error::Error;

/// A region of the peer.
///
/// It is only a claim: the peer's device checks every access.
#[doc(alias = "rpma_mr_remote")]
#[doc(alias = "rpma_mr_remote_delete")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteRegion(Descriptor);

impl RemoteRegion {
    /// Reads a descriptor: address (8 bytes), length (8), rkey (4), all little-endian, and usage
    /// (1). Bytes after the first 21 are ignored.
    ///
    /// # Errors
    /// [`Error::Invalid`] for fewer bytes, no usage, or a range that goes past the end of the
    /// address space.
    ///
    /// ```
    /// use rpma::{RemoteRegion, Usage};
    ///
    /// # fn main() -> Result<(), rpma::Error> {
    /// let received = [
    ///     0x00, 0x00, 0x00, 0x1c, 0x3a, 0x7f, 0x00, 0x00, // at 0x7f3a_1c00_0000
    ///     0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, // 64 KiB
    ///     0xb3, 0xa2, 0x01, 0x00, 0x39, // the key, and what it is for
    /// ];
    /// let region = RemoteRegion::from_descriptor(&received)?;
    /// assert_eq!(region.len(), 64 << 10);
    /// assert_eq!(region.flush_types(), Usage::FLUSH);
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "rpma_mr_remote_from_descriptor")]
    pub fn from_descriptor(bytes: &[u8]) -> Result<Self, Error> {
        Descriptor::decode(bytes).map(Self)
    }

    /// The 21 bytes again, to hand the region on to somebody else.
    pub fn descriptor(&self) -> [u8; descriptor::SIZE] {
        self.0.encode()
    }

    /// Number of bytes.
    #[doc(alias = "rpma_mr_remote_get_size")]
    pub fn len(&self) -> u64 {
        self.0.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// What the owner registered it for.
    pub fn usage(&self) -> Usage {
        self.0.usage
    }

    /// The kinds of flush that the owner registered it for.
    #[doc(alias = "rpma_mr_remote_get_flush_type")]
    pub fn flush_types(&self) -> Usage {
        self.0.usage & Usage::FLUSH
    }

    /// The part `range`, in bytes from the start.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`].
    pub fn span(&self, range: impl RangeBounds<u64>) -> Result<RemoteSpan, Error> {
        let (offset, len) = resolve(range, self.0.len, "remote region")?;
        Ok(RemoteSpan {
            // Within addr + len, which does not overflow.
            addr: self.0.addr + offset,
            len,
            ..self.as_span()
        })
    }

    /// All of it.
    pub fn as_span(&self) -> RemoteSpan {
        let Descriptor {
            addr,
            len,
            rkey,
            usage,
        } = self.0;
        RemoteSpan {
            addr,
            len,
            rkey,
            usage,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_of_librpma_is_understood_and_handed_on() {
        let bytes = [
            0x00, 0x10, 0x20, 0x5a, 0x12, 0x7f, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0x78, 0x56, 0x34,
            0x12, 0x38, 0xff,
        ];
        let region = RemoteRegion::from_descriptor(&bytes).expect("valid");
        assert_eq!(region.as_span().addr, 0x7f12_5a20_1000);
        assert_eq!(region.len(), 1024);
        assert_eq!(region.as_span().rkey, 0x1234_5678);
        assert_eq!(region.usage(), Usage::WRITE_DST | Usage::FLUSH);
        assert_eq!(region.flush_types().bits(), 0x30);
        assert_eq!(region.descriptor(), bytes[..21]);
    }

    #[test]
    fn a_remote_span_stays_inside() {
        let mut bytes = [0_u8; 21];
        bytes[8] = 16;
        bytes[20] = Usage::WRITE_DST.bits();
        let region = RemoteRegion::from_descriptor(&bytes).expect("valid");
        assert_eq!(region.span(4..16).expect("inside").len(), 12);
        assert!(region.span(4..17).is_err());
    }
}
