//! What verification finds.

use std::fmt;

use super::Operation;

/// One of the two ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The end that chooses the parameters and counts the rounds.
    Client,
    /// The end that waits.
    Server,
}

impl Side {
    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Server => "server",
        }
    }
}

/// What was wrong with the data of one operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Defect {
    /// Bytes differ from what was sent.
    WrongByte {
        /// Where the first one is, in bytes from the start.
        offset: u64,
        /// What should be there.
        expected: u8,
        /// What is there.
        found: u8,
        /// How many bytes are wrong altogether, at least 1.
        wrong: u64,
    },
    /// A message had another length than it should.
    WrongLength {
        /// The length in bytes that it should have.
        expected: u64,
        /// The length in bytes that it had.
        found: u64,
    },
}

/// A defect, with the round and operation it belongs to and the side that found it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// The side whose verification failed.
    pub side: Side,
    /// The operation that moved the data.
    pub operation: Operation,
    /// The round, from 0.
    pub sequence: u64,
    /// What was wrong.
    pub defect: Defect,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            side,
            operation,
            sequence,
            defect,
        } = self;
        let side = side.name();
        match defect {
            Defect::WrongByte {
                offset,
                expected,
                found,
                wrong,
            } => {
                write!(
                    f,
                    "wrong byte: operation {operation}, sequence {sequence}, offset {offset}: \
                     expected 0x{expected:02x}, found 0x{found:02x} (seen by the {side}"
                )?;
                if *wrong > 1 {
                    write!(f, ", {wrong} bytes wrong")?;
                }
                f.write_str(")")
            }
            Defect::WrongLength { expected, found } => write!(
                f,
                "wrong length: operation {operation}, sequence {sequence}: \
                 expected {expected} bytes, found {found} (seen by the {side})"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_byte_names_operation_sequence_offset_expected_and_found() {
        let defect = Defect::WrongByte {
            offset: 17,
            expected: 0x0a,
            found: 0xf5,
            wrong: 1,
        };
        let mut fault = Fault {
            side: Side::Server,
            operation: Operation::Write,
            sequence: 4,
            defect,
        };
        assert_eq!(
            fault.to_string(),
            "wrong byte: operation write, sequence 4, offset 17: expected 0x0a, found 0xf5 (seen by the server)"
        );
        fault.defect = Defect::WrongByte {
            offset: 0,
            expected: 1,
            found: 2,
            wrong: 64,
        };
        assert!(
            fault
                .to_string()
                .ends_with("found 0x02 (seen by the server, 64 bytes wrong)")
        );
    }

    #[test]
    fn a_wrong_length_names_both_lengths() {
        let defect = Defect::WrongLength {
            expected: 64,
            found: 40,
        };
        let fault = Fault {
            side: Side::Client,
            operation: Operation::Send,
            sequence: 0,
            defect,
        };
        assert_eq!(
            fault.to_string(),
            "wrong length: operation send, sequence 0: expected 64 bytes, found 40 (seen by the client)"
        );
    }
}
