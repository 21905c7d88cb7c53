//! The 21 bytes by which a region is known at the other side.

use super::Usage;
use crate::error::Error;

/// Bytes of a region's descriptor on the wire.
pub(super) const SIZE: usize = 21;

/// What a descriptor says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Descriptor {
    pub(super) addr: u64,
    pub(super) len: u64,
    pub(super) rkey: u32,
    pub(super) usage: Usage,
}

impl Descriptor {
    /// Address, length and key in little-endian bytes, and the usage.
    pub(super) fn encode(&self) -> [u8; SIZE] {
        let mut bytes = [0; SIZE];
        bytes[..8].copy_from_slice(&self.addr.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.len.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.rkey.to_le_bytes());
        bytes[20] = self.usage.bits();
        bytes
    }

    /// Reads and checks what the other side sent; bytes after the first 21 are ignored.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let Some((head, _)) = bytes.split_first_chunk::<SIZE>() else {
            return Err(Error::Invalid(format!(
                "a region descriptor has {SIZE} bytes, got {}",
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
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn says(addr: u64, len: u64, rkey: u32, usage: u8) -> Descriptor {
        Descriptor {
            addr,
            len,
            rkey,
            usage: Usage::from_bits_retain(usage),
        }
    }

    /// What C programs send for these values.
    #[rustfmt::skip]
    const GOLDEN: [(Descriptor, [u8; SIZE]); 4] = [
        (
            says(0x7f3a_1c00_0000, 0x1_0000, 0x1_a2b3, 0x39),
            [
                0x00, 0x00, 0x00, 0x1c, 0x3a, 0x7f, 0x00, 0x00,
                0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00,
                0xb3, 0xa2, 0x01, 0x00, 0x39,
            ],
        ),
        (
            says(0x7f12_5a20_1000, 1024, 0x1234_5678, 0x38),
            [
                0x00, 0x10, 0x20, 0x5a, 0x12, 0x7f, 0x00, 0x00,
                0x00, 0x04, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
                0x78, 0x56, 0x34, 0x12, 0x38,
            ],
        ),
        (
            says(0x0001_0203_0405_0607, 0x0809_0a0b_0c0d_0e0f, 0x1011_1213, 0x21),
            [
                0x07, 0x06, 0x05, 0x04, 0x03, 0x02, 0x01, 0x00,
                0x0f, 0x0e, 0x0d, 0x0c, 0x0b, 0x0a, 0x09, 0x08,
                0x13, 0x12, 0x11, 0x10, 0x21,
            ],
        ),
        (
            says(0x0102_0304_0506_0708, 0x1112_1314_1516_1718, 0xa1a2_a3a4, 0x1f),
            [
                0x08, 0x07, 0x06, 0x05, 0x04, 0x03, 0x02, 0x01,
                0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11,
                0xa4, 0xa3, 0xa2, 0xa1, 0x1f,
            ],
        ),
    ];

    #[test]
    fn the_bytes_are_those_of_librpma_on_every_machine() {
        for (descriptor, bytes) in GOLDEN {
            assert_eq!(descriptor.encode(), bytes);
            assert_eq!(Descriptor::decode(&bytes).expect("valid"), descriptor);
        }
    }

    #[test]
    fn a_descriptor_is_read_from_any_place_in_a_buffer() {
        for (descriptor, bytes) in GOLDEN {
            for at in 0..8 {
                let mut buffer = [0xff; SIZE + 8];
                buffer[at..at + SIZE].copy_from_slice(&bytes);
                assert_eq!(
                    Descriptor::decode(&buffer[at..]).expect("valid"),
                    descriptor
                );
            }
        }
    }

    #[test]
    fn short_empty_and_overflowing_descriptors_are_refused() {
        let message = |bytes: &[u8]| {
            let error = Descriptor::decode(bytes).expect_err("bad");
            assert_eq!(error.code(), -100_004);
            error.to_string()
        };
        let mut bytes = [0xff_u8; SIZE];
        assert!(message(&bytes).contains("past the address space"));
        for len in 0..SIZE {
            assert!(message(&bytes[..len]).contains(&format!("got {len}")));
        }
        bytes[20] = 0;
        assert!(message(&bytes).contains("no usage"));
    }

    #[test]
    fn what_follows_a_descriptor_is_ignored() {
        let (descriptor, bytes) = GOLDEN[0];
        let mut long = vec![0xff; 64 << 10];
        long[..SIZE].copy_from_slice(&bytes);
        assert_eq!(Descriptor::decode(&long).expect("valid"), descriptor);
    }
}
