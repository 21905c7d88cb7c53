//! Bytes that ride on the handshake.

use crate::error::Error;

/// Bytes for the other side that travel with a request (up to 56 on InfiniBand and RoCE), an
/// acceptance (196) or a rejection (148).
///
/// The other side sees them padded with zeros to that size, also when none were sent: carry a
/// length, or a mark, inside. They are neither encrypted nor authenticated.
#[doc(alias = "rpma_conn_private_data")]
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PrivateData(Vec<u8>);

impl PrivateData {
    /// No bytes.
    pub fn none() -> Self {
        Self::default()
    }

    /// These bytes.
    ///
    /// # Errors
    /// [`Error::Invalid`] above 255 bytes, which no message takes.
    pub fn new(bytes: &[u8]) -> Result<Self, Error> {
        if bytes.len() > usize::from(u8::MAX) {
            return Err(Error::Invalid(format!(
                "{} bytes of private data, no message takes more than 255",
                bytes.len()
            )));
        }
        Ok(Self(bytes.to_vec()))
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}
