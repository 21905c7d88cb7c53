//! The two messages, byte for byte. What came from the other side is hostile until decoded.

use super::Error;

/// Bytes of a field: a tag, and a number.
const FIELD: usize = 9;
/// Tags of the first three fields: the number of the field, and "8 bytes, least significant first".
const TAGS: [u8; 3] = [0x09, 0x11, 0x19];

/// The client asks for a range to be made persistent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FlushRequest {
    /// The first byte, counted from the start of the region.
    pub offset: u64,
    /// How many bytes.
    pub length: u64,
    /// What the response repeats.
    pub op_context: u64,
}

impl FlushRequest {
    /// Bytes of the message.
    pub const SIZE: usize = 3 * FIELD;

    /// The message.
    pub fn encode(&self) -> [u8; Self::SIZE] {
        encode([self.offset, self.length, self.op_context])
    }

    /// Reads a message.
    ///
    /// # Errors
    /// [`Error::NoSuchMessage`] for anything but 27 bytes with the three tags in their places. That
    /// the range lies in a region is not known here: see [`within`](Self::within).
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let [offset, length, op_context] = decode("flush request", bytes)?;
        Ok(Self {
            offset,
            length,
            op_context,
        })
    }

    /// The range, if it lies in a region of `size` bytes.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`].
    pub fn within(&self, size: u64) -> Result<std::ops::Range<u64>, Error> {
        match self.offset.checked_add(self.length) {
            Some(end) if end <= size => Ok(self.offset..end),
            _ => Err(Error::OutOfBounds {
                offset: self.offset,
                length: self.length,
                size,
            }),
        }
    }

    /// Whether it says that no more requests follow, by naming nothing at all; fio ends a session so.
    pub fn is_end(&self) -> bool {
        self.offset == 0 && self.length == 0
    }
}

/// The server says that the range of a request is persistent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FlushResponse {
    /// The number of the request.
    pub op_context: u64,
}

impl FlushResponse {
    /// Bytes of the message.
    pub const SIZE: usize = FIELD;

    /// The message.
    pub fn encode(&self) -> [u8; Self::SIZE] {
        encode([self.op_context])
    }

    /// Reads a message.
    ///
    /// # Errors
    /// [`Error::NoSuchMessage`] for anything but 9 bytes with the tag in its place.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let [op_context] = decode("flush response", bytes)?;
        Ok(Self { op_context })
    }
}

fn encode<const FIELDS: usize, const SIZE: usize>(values: [u64; FIELDS]) -> [u8; SIZE] {
    const { assert!(SIZE == FIELDS * FIELD && FIELDS <= TAGS.len()) };
    let mut out = [0; SIZE];
    let fields = out.chunks_exact_mut(FIELD).zip(TAGS);
    for ((field, tag), value) in fields.zip(values) {
        field[0] = tag;
        field[1..].copy_from_slice(&value.to_le_bytes());
    }
    out
}

fn decode<const FIELDS: usize>(what: &'static str, bytes: &[u8]) -> Result<[u64; FIELDS], Error> {
    const { assert!(FIELDS <= TAGS.len()) };
    let refused = |why| Error::NoSuchMessage {
        what,
        len: bytes.len(),
        why,
    };
    if bytes.len() != FIELDS * FIELD {
        return Err(refused(format!("it has {}", FIELDS * FIELD)));
    }
    let mut values = [0; FIELDS];
    let fields = bytes.chunks_exact(FIELD).zip(TAGS);
    for (n, ((field, tag), value)) in fields.zip(&mut values).enumerate() {
        if field[0] != tag {
            let at = n * FIELD;
            return Err(refused(format!(
                "byte {at} must be {tag:#04x}, not {:#04x}",
                field[0]
            )));
        }
        let mut le = [0; 8];
        le.copy_from_slice(&field[1..]);
        *value = u64::from_le_bytes(le);
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_those_of_the_examples_of_librpma() {
        let request = FlushRequest {
            offset: 0,
            length: 1024,
            op_context: 0xf01d,
        };
        let bytes = [
            0x09, 0, 0, 0, 0, 0, 0, 0, 0, 0x11, 0, 4, 0, 0, 0, 0, 0, 0, 0x19, 0x1d, 0xf0, 0, 0, 0,
            0, 0, 0,
        ];
        assert_eq!(request.encode(), bytes);
        assert_eq!(FlushRequest::decode(&bytes).expect("valid"), request);
        let response = FlushResponse { op_context: 0xf01d };
        let bytes = [0x09, 0x1d, 0xf0, 0, 0, 0, 0, 0, 0];
        assert_eq!(response.encode(), bytes);
        assert_eq!(FlushResponse::decode(&bytes).expect("valid"), response);
    }

    #[test]
    fn every_byte_of_a_message_that_is_no_value_is_looked_at() {
        let request = FlushRequest {
            offset: u64::MAX,
            length: 1,
            op_context: 2,
        };
        for (at, tag) in [(0, 0x09_u8), (9, 0x11), (18, 0x19)] {
            for wrong in (0..=u8::MAX).filter(|wrong| *wrong != tag) {
                let mut bytes = request.encode();
                bytes[at] = wrong;
                let refused = FlushRequest::decode(&bytes).expect_err("a wrong tag");
                let text = format!("byte {at} must be {tag:#04x}, not {wrong:#04x}");
                assert!(refused.to_string().contains(&text), "{refused}");
            }
        }
        let bytes = request.encode();
        for len in 0..bytes.len() {
            assert!(FlushRequest::decode(&bytes[..len]).is_err(), "{len}");
        }
        assert!(FlushRequest::decode(&[bytes.as_slice(), &[0]].concat()).is_err());
        assert!(FlushResponse::decode(&bytes).is_err());
    }

    #[test]
    fn a_range_lies_in_the_region_or_is_refused() {
        let range = |offset, length| {
            let request = FlushRequest {
                offset,
                length,
                op_context: 1,
            };
            request.within(4096).ok()
        };
        assert_eq!(range(0, 4096), Some(0..4096));
        assert_eq!(range(4096, 0), Some(4096..4096));
        assert_eq!(range(4000, 96), Some(4000..4096));
        assert_eq!(range(4000, 97), None);
        assert_eq!(range(4097, 0), None);
        assert_eq!(range(u64::MAX, 2), None);
        assert_eq!(range(2, u64::MAX), None);
    }
}
