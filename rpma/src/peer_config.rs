//! What this side tells the other about itself.

use crate::error::Error;

/// Properties of a node that the other side must know before it may flush to persistence.
///
/// It travels as one byte, 0 or 1, by whatever way the two sides agree on.
///
/// ```
/// use rpma::PeerConfig;
///
/// # fn main() -> Result<(), rpma::Error> {
/// let mut ours = PeerConfig::default();
/// ours.set_direct_write_to_pmem(true);
/// // At the other side:
/// let theirs = PeerConfig::from_descriptor(&ours.descriptor())?;
/// assert!(theirs.direct_write_to_pmem());
/// # Ok(())
/// # }
/// ```
#[doc(alias = "rpma_peer_cfg")]
#[doc(alias = "rpma_peer_cfg_new")]
#[doc(alias = "rpma_peer_cfg_delete")]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PeerConfig {
    direct_write: bool,
}

impl PeerConfig {
    /// Bytes of a descriptor.
    #[doc(alias = "rpma_peer_cfg_get_descriptor_size")]
    pub const DESCRIPTOR_SIZE: usize = 1;

    /// Says whether writes from the network reach the persistence domain of this node without help
    /// of its CPU. False by default; nothing checks that it is true.
    #[doc(alias = "rpma_peer_cfg_set_direct_write_to_pmem")]
    pub fn set_direct_write_to_pmem(&mut self, supported: bool) -> &mut Self {
        self.direct_write = supported;
        self
    }

    /// Whether writes from the network reach the persistence domain by themselves.
    #[doc(alias = "rpma_peer_cfg_get_direct_write_to_pmem")]
    pub fn direct_write_to_pmem(&self) -> bool {
        self.direct_write
    }

    /// The byte to send to the other side.
    #[doc(alias = "rpma_peer_cfg_get_descriptor")]
    pub fn descriptor(&self) -> [u8; Self::DESCRIPTOR_SIZE] {
        [u8::from(self.direct_write)]
    }

    /// Reads what the other side sent; bytes after the first are ignored.
    ///
    /// # Errors
    /// [`Error::Invalid`] for no bytes at all.
    #[doc(alias = "rpma_peer_cfg_from_descriptor")]
    pub fn from_descriptor(bytes: &[u8]) -> Result<Self, Error> {
        match bytes.first() {
            Some(&byte) => Ok(Self {
                direct_write: byte != 0,
            }),
            None => Err(Error::Invalid(
                "a peer configuration descriptor has 1 byte, got 0".into(),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_byte_on_the_wire_is_librpmas() {
        let mut config = PeerConfig::default();
        assert!(!config.direct_write_to_pmem());
        assert_eq!(config.descriptor(), [0; PeerConfig::DESCRIPTOR_SIZE]);
        config.set_direct_write_to_pmem(true);
        assert!(config.direct_write_to_pmem());
        assert_eq!(config.descriptor(), [1]);
        for byte in [1, 0x80, 0xff] {
            assert!(
                PeerConfig::from_descriptor(&[byte, 9])
                    .expect("valid")
                    .direct_write
            );
        }
        assert!(PeerConfig::from_descriptor(&[]).is_err());
    }
}
