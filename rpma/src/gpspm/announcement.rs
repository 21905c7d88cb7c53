//! What the server sends along with its acceptance, as the examples of librpma do.

use crate::error::Error;
use crate::memory::{LocalRegion, RemoteRegion};
use crate::peer_config::PeerConfig;
use crate::private_data::PrivateData;

/// Where the descriptors begin, after the offset and two sizes.
const HEAD: usize = 4;
const DESCRIPTOR_SIZE: usize = LocalRegion::DESCRIPTOR_SIZE;

/// A region and what its node can do, in the 28 bytes of private data that the examples of librpma
/// exchange.
///
/// | bytes | content |
/// |---|---|
/// | 0, 1 | where the data begin in the region, in little-endian order |
/// | 2, 3 | sizes of the two descriptors: 21, and 1 or 0 |
/// | 4 … | the region's descriptor, the peer configuration's, zeros |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Announcement {
    /// Where the data begin, in bytes from the start of the region.
    pub data_offset: u16,
    /// The region.
    pub region: RemoteRegion,
    /// What the node can do, if it says.
    pub config: Option<PeerConfig>,
}

impl Announcement {
    /// Bytes of it.
    pub const SIZE: usize = 28;

    /// Reads what the other side has sent; zeros and whatever else is behind it are ignored.
    ///
    /// # Errors
    /// [`Error::Invalid`] for fewer than 28 bytes, sizes that no descriptors have, a descriptor that
    /// is none, or data that begin behind the end of the region.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let Some((bytes, _)) = bytes.split_first_chunk::<{ Self::SIZE }>() else {
            return Err(Error::Invalid(format!(
                "an announcement has {} bytes, got {}",
                Self::SIZE,
                bytes.len()
            )));
        };
        let (of_region, of_config) = (usize::from(bytes[2]), usize::from(bytes[3]));
        if of_region != DESCRIPTOR_SIZE || of_config > PeerConfig::DESCRIPTOR_SIZE {
            return Err(Error::Invalid(format!(
                "an announcement holds descriptors of {DESCRIPTOR_SIZE} and at most {} bytes, not of {of_region} and {of_config}",
                PeerConfig::DESCRIPTOR_SIZE
            )));
        }
        let region = RemoteRegion::from_descriptor(&bytes[HEAD..])?;
        let config = match of_config {
            0 => None,
            _ => Some(PeerConfig::from_descriptor(&bytes[HEAD + of_region..])?),
        };
        let data_offset = u16::from_le_bytes([bytes[0], bytes[1]]);
        if u64::from(data_offset) > region.len() {
            return Err(Error::Invalid(format!(
                "the data begin at {data_offset} in a region of {} bytes",
                region.len()
            )));
        }
        Ok(Self {
            data_offset,
            region,
            config,
        })
    }

    /// The bytes that announce a region of this side.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] when the data would begin behind the region's end.
    pub fn of(
        region: &LocalRegion,
        data_offset: u16,
        config: Option<&PeerConfig>,
    ) -> Result<PrivateData, Error> {
        region.span(u64::from(data_offset)..)?;
        let mut out = [0; Self::SIZE];
        out[..2].copy_from_slice(&data_offset.to_le_bytes());
        [out[2], out[3]] = [21, u8::from(config.is_some())];
        out[HEAD..HEAD + DESCRIPTOR_SIZE].copy_from_slice(&region.descriptor());
        if let Some(config) = config {
            out[HEAD + DESCRIPTOR_SIZE] = config.descriptor()[0];
        }
        PrivateData::new(&out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the examples send it: a region of 64 KiB, direct writes on.
    const EXAMPLE: [u8; 28] = [
        0, 0, 0x15, 1, 0, 0, 0, 0x1c, 0x3a, 0x7f, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0xb3, 0xa2, 1, 0,
        0x39, 1, 0, 0,
    ];

    #[test]
    fn what_the_examples_of_librpma_send_is_understood() {
        let mut padded = [0; 56];
        padded[..28].copy_from_slice(&EXAMPLE);
        let decoded = Announcement::decode(&padded).expect("valid");
        assert_eq!((decoded.data_offset, decoded.region.len()), (0, 65536));
        assert_eq!(decoded.region.usage().bits(), 0x39);
        assert!(
            decoded
                .config
                .is_some_and(|config| config.direct_write_to_pmem())
        );
        padded[0] = 0x40;
        padded[3] = 0;
        let decoded = Announcement::decode(&padded).expect("valid");
        assert_eq!((decoded.data_offset, decoded.config), (64, None));
    }

    #[test]
    fn what_is_no_announcement_is_refused_by_name() {
        let refused = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = EXAMPLE.to_vec();
            change(&mut bytes);
            Announcement::decode(&bytes).expect_err("bad").to_string()
        };
        assert!(refused(&|bytes| bytes.truncate(27)).contains("got 27"));
        assert!(refused(&|bytes| bytes[2] = 22).contains("not of 22 and 1"));
        assert!(refused(&|bytes| bytes[3] = 2).contains("not of 21 and 2"));
        assert!(refused(&|bytes| bytes[24] = 0).contains("no usage"));
        let behind = refused(&|bytes| {
            bytes[1] = 1;
            bytes[14] = 0;
        });
        assert!(behind.contains("begin at 256"), "{behind}");
    }
}
