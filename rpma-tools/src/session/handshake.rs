//! The frames in the private data of connect, accept and reject.

use std::fmt;

use super::VERSION;
use super::frame::{self, Kind, WireError};
use crate::ping::{MAX_SIZE, MAX_TIME_MS, OperationSet};

/// The client's parameters.
///
/// 36 bytes; private data of a connection request holds 56.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    /// The operations of every round.
    pub operations: OperationSet,
    /// Bytes that each operation moves, at least 1.
    pub size: u64,
    /// Rounds; 0 when the client goes on until it is interrupted.
    pub count: u64,
    /// The pause from the start of one round to the start of the next, in milliseconds, rounded up.
    pub interval_ms: u32,
    /// How long the client waits for each step of a round, in milliseconds.
    pub deadline_ms: u32,
}

impl Hello {
    /// The bytes, claiming `version`.
    pub fn encode(&self, version: u16) -> Vec<u8> {
        let mut frame = frame::start(version, Kind::Hello);
        frame.extend([self.operations.bits(), 0]);
        frame.extend(self.interval_ms.to_be_bytes());
        frame.extend(self.deadline_ms.to_be_bytes());
        frame.extend(self.size.to_be_bytes());
        frame.extend(self.count.to_be_bytes());
        frame::finish(frame)
    }

    /// Reads and checks what a client sent; the error is the answer for it.
    ///
    /// `max_size` is the largest size in bytes that the server can serve.
    ///
    /// # Errors
    /// The [`Refusal`] to reject the client with.
    pub fn decode(bytes: &[u8], max_size: u64) -> Result<Self, Refusal> {
        let refuse = |reason, value, limit| Refusal {
            reason,
            value,
            limit,
        };
        let malformed = |error| match error {
            WireError::Foreign => refuse(RefusalReason::FOREIGN, 0, 0),
            WireError::Version(theirs) => {
                refuse(RefusalReason::VERSION, theirs.into(), VERSION.into())
            }
            WireError::Kind(_) | WireError::Length(_) | WireError::Field(_) => {
                refuse(RefusalReason::MALFORMED, 0, 0)
            }
        };
        let mut reader = frame::open(bytes, Kind::Hello, true).map_err(malformed)?;
        let mut read = || {
            let bits = reader.u8()?;
            reader.zeros::<1>("reserved")?;
            let interval_ms = reader.u32()?;
            let deadline_ms = reader.u32()?;
            let size = reader.u64()?;
            let count = reader.u64()?;
            Ok((bits, interval_ms, deadline_ms, size, count))
        };
        let (bits, interval_ms, deadline_ms, size, count) = read().map_err(malformed)?;
        reader.end().map_err(malformed)?;

        let known = OperationSet::ALL.bits();
        let operations = OperationSet::from_bits(bits)
            .ok_or_else(|| refuse(RefusalReason::OPERATIONS, bits.into(), known.into()))?;
        let largest = max_size.min(MAX_SIZE);
        if !(1..=largest).contains(&size) {
            return Err(refuse(RefusalReason::SIZE, size, largest));
        }
        for time in [interval_ms, deadline_ms] {
            if time > MAX_TIME_MS {
                return Err(refuse(RefusalReason::TIME, time.into(), MAX_TIME_MS.into()));
            }
        }
        if deadline_ms == 0 {
            return Err(refuse(RefusalReason::TIME, 0, MAX_TIME_MS.into()));
        }
        Ok(Self {
            operations,
            size,
            count,
            interval_ms,
            deadline_ms,
        })
    }
}

/// The server's answer: the descriptors of the region to write to and of the one to read from.
///
/// 54 bytes; private data of an accept holds 196.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Welcome {
    /// Descriptor of the region that the client writes to and flushes.
    pub target: [u8; 21],
    /// Descriptor of the region that the client reads from.
    pub source: [u8; 21],
}

impl Welcome {
    const DESCRIPTOR_LEN: u8 = 21;

    /// The bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut frame = frame::start(VERSION, Kind::Welcome);
        for descriptor in [&self.target, &self.source] {
            frame.push(Self::DESCRIPTOR_LEN);
            frame.extend(descriptor);
        }
        frame::finish(frame)
    }

    /// Reads what a server sent. The descriptors themselves are still to be checked.
    ///
    /// # Errors
    /// [`WireError`] says what does not fit.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut reader = frame::open(bytes, Kind::Welcome, true)?;
        let mut descriptor = || {
            if reader.u8()? != Self::DESCRIPTOR_LEN {
                return Err(WireError::Field("descriptor length"));
            }
            reader.take()
        };
        let welcome = Self {
            target: descriptor()?,
            source: descriptor()?,
        };
        reader.end()?;
        Ok(welcome)
    }
}

/// Why a server refuses a client: a number, so that one this version does not know is data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RefusalReason(pub u16);

impl RefusalReason {
    /// The request does not speak this protocol.
    pub const FOREIGN: Self = Self(1);
    /// Another version: value is the client's, limit the server's.
    pub const VERSION: Self = Self(2);
    /// The frame does not follow its layout.
    pub const MALFORMED: Self = Self(3);
    /// Unknown operation bits: value is what came, limit the known bits.
    pub const OPERATIONS: Self = Self(4);
    /// The size is 0 or above the limit, in bytes.
    pub const SIZE: Self = Self(5);
    /// The interval or deadline is outside its bounds, in milliseconds.
    pub const TIME: Self = Self(6);
    /// As many clients as the server takes are being served; limit is that number.
    pub const BUSY: Self = Self(7);
    /// The server cannot get the memory or the objects for one more client.
    pub const RESOURCES: Self = Self(8);
    /// The server is ending.
    pub const ENDING: Self = Self(9);
}

/// Why a server refuses a client, with the value that it refuses and the limit it broke.
///
/// 28 bytes; private data of a reject holds 148. Its layout is the same in every version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// The reason.
    pub reason: RefusalReason,
    /// The value in question, 0 where there is none.
    pub value: u64,
    /// The limit in question, 0 where there is none.
    pub limit: u64,
}

impl Refusal {
    /// The bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut frame = frame::start(VERSION, Kind::Refusal);
        frame.extend(self.reason.0.to_be_bytes());
        frame.extend(self.value.to_be_bytes());
        frame.extend(self.limit.to_be_bytes());
        frame::finish(frame)
    }

    /// Reads what a server of any version sent.
    ///
    /// # Errors
    /// [`WireError`] says what does not fit: the reject came from something else.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut reader = frame::open(bytes, Kind::Refusal, false)?;
        let refusal = Self {
            reason: RefusalReason(reader.u16()?),
            value: reader.u64()?,
            limit: reader.u64()?,
        };
        reader.end()?;
        Ok(refusal)
    }

    /// What the user can do about it.
    pub fn hint(&self) -> &'static str {
        match self.reason {
            RefusalReason::VERSION | RefusalReason::OPERATIONS | RefusalReason::MALFORMED => {
                "use the same version of rpma-ping on both machines"
            }
            RefusalReason::SIZE => "choose a smaller size with -s",
            RefusalReason::TIME => "choose other times with -i and -W",
            RefusalReason::BUSY | RefusalReason::ENDING => {
                "try again later, or start another server on another port"
            }
            RefusalReason::RESOURCES => {
                "look at what the server printed; its memory limit (ulimit -l) may be too low"
            }
            _ => "check that both machines run rpma-ping of the same version",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            reason,
            value,
            limit,
        } = self;
        match *reason {
            RefusalReason::FOREIGN => f.write_str("the request did not speak rpma-ping's protocol"),
            RefusalReason::VERSION => write!(
                f,
                "the client speaks version {value} of the protocol and the server version {limit}"
            ),
            RefusalReason::MALFORMED => {
                f.write_str("the request does not follow the layout of its version")
            }
            RefusalReason::OPERATIONS => write!(
                f,
                "the operations 0x{value:02x} are not among those that the server knows (0x{limit:02x})"
            ),
            RefusalReason::SIZE => {
                write!(f, "the size {value} is not within 1 to {limit} bytes")
            }
            RefusalReason::TIME => {
                write!(
                    f,
                    "an interval or deadline of {value} ms is not within its bounds (up to {limit} ms)"
                )
            }
            RefusalReason::BUSY => {
                write!(
                    f,
                    "the server already serves {limit} clients, which is its limit"
                )
            }
            RefusalReason::RESOURCES => {
                f.write_str("the server has no memory or device objects left for one more client")
            }
            RefusalReason::ENDING => f.write_str("the server is ending"),
            RefusalReason(other) => {
                write!(
                    f,
                    "reason {other} (value {value}, limit {limit}), which this version does not know"
                )
            }
        }
    }
}
