//! What goes over the connection beside the data.

use super::VERSION;
use super::frame::{self, Kind, WireError};
use crate::ping::{Defect, Operation};

/// Length in bytes of every [`Control`] frame.
pub const CONTROL_LEN: usize = 40;

/// One control message.
///
/// A round is: [`Begin`](Self::Begin), then for every operation the data, the client's
/// [`Report`](Self::Report) and the server's [`Verdict`](Self::Verdict). The verdict is also the
/// credit for what comes next: the server has posted its receives, filled its source and poisoned
/// its target before it sends it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Control {
    /// Client: a round begins.
    Begin {
        /// Its number, from 0.
        sequence: u64,
    },
    /// Client: the operation is over on my side, and this is what I found.
    Report {
        /// The round.
        sequence: u64,
        /// The operation.
        operation: Operation,
        /// What was wrong with what I received, if anything.
        defect: Option<Defect>,
    },
    /// Server: this is what I found, and I am ready for the next operation.
    Verdict {
        /// The round.
        sequence: u64,
        /// The operation.
        operation: Operation,
        /// What was wrong with what I received, if anything.
        defect: Option<Defect>,
    },
    /// Client: there are no more rounds.
    Bye {
        /// Rounds begun.
        sent: u64,
        /// Rounds that came back.
        received: u64,
        /// Rounds in which something was wrong.
        wrong: u64,
    },
}

const BEGIN: u8 = 1;
const REPORT: u8 = 2;
const VERDICT: u8 = 3;
const BYE: u8 = 4;

const RIGHT: u8 = 0;
const WRONG_BYTE: u8 = 1;
const WRONG_LENGTH: u8 = 2;

impl Control {
    /// The bytes.
    pub fn encode(&self) -> [u8; CONTROL_LEN] {
        let (code, bit, numbers, defect) = match *self {
            Self::Begin { sequence } => (BEGIN, 0, [sequence, 0, 0], None),
            Self::Report {
                sequence,
                operation,
                defect,
            } => (REPORT, operation.bit(), [sequence, 0, 0], defect),
            Self::Verdict {
                sequence,
                operation,
                defect,
            } => (VERDICT, operation.bit(), [sequence, 0, 0], defect),
            Self::Bye {
                sent,
                received,
                wrong,
            } => (BYE, 0, [sent, received, wrong], None),
        };
        let (status, bytes, numbers) = match defect {
            None => (RIGHT, [0, 0], numbers),
            Some(Defect::WrongByte {
                offset,
                expected,
                found,
                wrong,
            }) => (WRONG_BYTE, [expected, found], [numbers[0], offset, wrong]),
            Some(Defect::WrongLength { expected, found }) => {
                (WRONG_LENGTH, [0, 0], [numbers[0], expected, found])
            }
        };
        let mut frame = frame::start(VERSION, Kind::Control);
        frame.extend([code, bit, status, bytes[0], bytes[1], 0]);
        for number in numbers {
            frame.extend(number.to_be_bytes());
        }
        let mut encoded = [0; CONTROL_LEN];
        encoded.copy_from_slice(&frame::finish(frame));
        encoded
    }

    /// Reads what the peer sent.
    ///
    /// # Errors
    /// [`WireError`] says what does not fit.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut reader = frame::open(bytes, Kind::Control, true)?;
        let [code, bit, status, expected, found] = reader.take()?;
        reader.zeros::<1>("reserved")?;
        let [first, second, third] = [reader.u64()?, reader.u64()?, reader.u64()?];
        reader.end()?;

        let operation = || Operation::from_bit(bit).ok_or(WireError::Field("operation"));
        let defect = match status {
            RIGHT => None,
            WRONG_BYTE if third == 0 || expected == found => {
                return Err(WireError::Field("wrong bytes"));
            }
            WRONG_BYTE => Some(Defect::WrongByte {
                offset: second,
                expected,
                found,
                wrong: third,
            }),
            WRONG_LENGTH if second == third => return Err(WireError::Field("length")),
            WRONG_LENGTH => Some(Defect::WrongLength {
                expected: second,
                found: third,
            }),
            _ => return Err(WireError::Field("status")),
        };
        let control = match code {
            BEGIN => Self::Begin { sequence: first },
            REPORT => Self::Report {
                sequence: first,
                operation: operation()?,
                defect,
            },
            VERDICT => Self::Verdict {
                sequence: first,
                operation: operation()?,
                defect,
            },
            BYE => Self::Bye {
                sent: first,
                received: second,
                wrong: third,
            },
            _ => return Err(WireError::Field("code")),
        };
        // A frame has one spelling: a field that this kind does not use must be zero.
        if bytes.starts_with(&control.encode()) {
            Ok(control)
        } else {
            Err(WireError::Field("unused"))
        }
    }
}
