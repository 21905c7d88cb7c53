//! Bytes that ride on the handshake.

use crate::error::Error;

/// Bytes for the other side that travel with a request (up to 56 on InfiniBand and RoCE), an
/// acceptance (196) or a rejection (148).
///
/// The other side sees them padded with zeros to that size, also when none were sent. So a length
/// must be carried inside: [`with_length`](Self::with_length) and [`unpack`](Self::unpack) do that
/// between peers that both use them. C peers send what their programs agree on:
/// [`new`](Self::new) sends bytes as they are, and the padded form is what
/// `ConnectionRequest::private_data` and `Connection::private_data` give.
///
/// They are neither encrypted nor authenticated.
///
/// # Example
///
/// ```
/// use rpma::PrivateData;
///
/// # fn main() -> Result<(), rpma::Error> {
/// let sent = PrivateData::with_length(b"hello")?;
/// // What the other side receives with a request:
/// let mut received = [0; 56];
/// received[..6].copy_from_slice(sent.as_bytes());
/// assert_eq!(PrivateData::unpack(&received)?, Some(&b"hello"[..]));
/// // And when nothing was sent:
/// assert_eq!(PrivateData::unpack(&[0; 56])?, None);
/// # Ok(())
/// # }
/// ```
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

    /// A byte with the length, and these bytes, for an other side that uses [`unpack`](Self::unpack):
    /// up to 55 with a request, 195 with an acceptance, 147 with a rejection.
    ///
    /// # Errors
    /// [`Error::Invalid`] above 254 bytes, which no message takes.
    pub fn with_length(bytes: &[u8]) -> Result<Self, Error> {
        match u8::try_from(bytes.len()) {
            Ok(len) if len < u8::MAX => Ok(Self([&[len], bytes].concat())),
            _ => Err(Error::Invalid(format!(
                "{} bytes of private data and their length, no message takes more than 254",
                bytes.len()
            ))),
        }
    }

    /// The bytes that [`with_length`](Self::with_length) was given at the other side, without the
    /// padding; `None` when it sent none, or nothing at all.
    ///
    /// # Errors
    /// [`Error::Invalid`] when fewer bytes came than the first one says: the other side does not use
    /// `with_length`.
    pub fn unpack(received: &[u8]) -> Result<Option<&[u8]>, Error> {
        let Some((&len, rest)) = received.split_first() else {
            return Ok(None);
        };
        match rest.get(..len.into()) {
            Some([]) => Ok(None),
            Some(bytes) => Ok(Some(bytes)),
            None => Err(Error::Invalid(format!(
                "private data of {len} bytes are announced, {} came",
                rest.len()
            ))),
        }
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_inside_tells_data_from_padding() {
        for data in [&b""[..], &[0], &[0x2a], &[0; 55], &[7; 195], &[9; 254]] {
            let sent = PrivateData::with_length(data).expect("fits");
            for padding in [0, 1, 60] {
                let mut received = sent.as_bytes().to_vec();
                received.resize(received.len() + padding, 0);
                let found = PrivateData::unpack(&received).expect("valid");
                assert_eq!(found, (!data.is_empty()).then_some(data));
            }
        }
        assert_eq!(PrivateData::unpack(&[0; 56]).expect("valid"), None);
        assert_eq!(PrivateData::unpack(&[]).expect("valid"), None);
    }

    #[test]
    fn more_than_a_message_takes_or_less_than_announced_is_refused() {
        let error = PrivateData::with_length(&[1; 255]).expect_err("too long");
        assert!(error.to_string().contains("255 bytes"), "{error}");
        let error = PrivateData::new(&[1; 256]).expect_err("too long");
        assert!(error.to_string().contains("256 bytes"), "{error}");
        let error = PrivateData::unpack(&[4, 1, 2, 3]).expect_err("too short");
        assert!(error.to_string().contains("3 came"), "{error}");
    }
}
