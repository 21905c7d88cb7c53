//! A peer's region, as its 21-byte descriptor says. The bytes are hostile until checked.

use std::ops::RangeBounds;

use super::span::{RemoteSpan, resolve};
use super::{DESCRIPTOR_SIZE, Usage};
use crate::error::Error;

/// A region of the peer.
///
/// It is only a claim: the peer's device checks every access.
#[doc(alias = "rpma_mr_remote")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteRegion {
    addr: u64,
    len: u64,
    rkey: u32,
    usage: Usage,
}

impl RemoteRegion {
    /// Reads a descriptor: address (8 bytes), length (8), rkey (4), all little-endian, and usage
    /// (1). Bytes after the first 21 are ignored.
    ///
    /// # Errors
    /// [`Error::Invalid`] for fewer bytes, no usage, or a range that goes past the end of the
    /// address space.
    #[doc(alias = "rpma_mr_remote_from_descriptor")]
    pub fn from_descriptor(bytes: &[u8]) -> Result<Self, Error> {
        let Some((head, _)) = bytes.split_first_chunk::<DESCRIPTOR_SIZE>() else {
            return Err(Error::Invalid(format!(
                "a region descriptor has {DESCRIPTOR_SIZE} bytes, got {}",
                bytes.len()
            )));
        };
        let number = |from: usize| {
            let mut le = [0; 8];
            le.copy_from_slice(&head[from..from + 8]);
            u64::from_le_bytes(le)
        };
        let (addr, len) = (number(0), number(8));
        let rkey = u32::from_le_bytes([head[16], head[17], head[18], head[19]]);
        let usage = Usage::from_bits_retain(head[20]);
        if usage.is_empty() {
            return Err(Error::Invalid(
                "the region descriptor names no usage (its last byte is 0)".into(),
            ));
        }
        if addr.checked_add(len).is_none() {
            return Err(Error::Invalid(format!(
                "the region descriptor names {len} bytes from {addr:#x} on, past the address space"
            )));
        }
        Ok(Self {
            addr,
            len,
            rkey,
            usage,
        })
    }

    /// Number of bytes.
    #[doc(alias = "rpma_mr_remote_get_size")]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What the owner registered it for.
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// The kinds of flush that the owner registered it for.
    #[doc(alias = "rpma_mr_remote_get_flush_type")]
    pub fn flush_types(&self) -> Usage {
        self.usage & Usage::FLUSH
    }

    /// The part `range`, in bytes from the start.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`].
    pub fn span(&self, range: impl RangeBounds<u64>) -> Result<RemoteSpan, Error> {
        let (offset, len) = resolve(range, self.len, "remote region")?;
        Ok(RemoteSpan {
            // Within addr + len, which does not overflow.
            addr: self.addr + offset,
            len,
            ..self.as_span()
        })
    }

    /// All of it.
    pub fn as_span(&self) -> RemoteSpan {
        RemoteSpan {
            addr: self.addr,
            len: self.len,
            rkey: self.rkey,
            usage: self.usage,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_of_librpma_are_understood() {
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
    }

    #[test]
    fn short_empty_and_overflowing_descriptors_are_refused() {
        let mut bytes = [0xff_u8; 21];
        let message = |bytes: &[u8]| {
            RemoteRegion::from_descriptor(bytes)
                .expect_err("bad")
                .to_string()
        };
        assert!(message(&bytes).contains("past the address space"));
        assert!(message(&bytes[..20]).contains("got 20"));
        bytes[20] = 0;
        assert!(message(&bytes).contains("no usage"));
        assert!(message(&[]).contains("got 0"));
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
