//! The kinds of operation that a round can hold.

use std::fmt;
use std::str::FromStr;

/// One kind of operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// A message there and another one back.
    Send,
    /// A remote write into the server's memory.
    Write,
    /// A remote read out of the server's memory.
    Read,
    /// A remote write followed by a flush to visibility.
    Flush,
}

impl Operation {
    /// All kinds, in the order in which a round runs them.
    pub const ALL: [Self; 4] = [Self::Send, Self::Write, Self::Read, Self::Flush];

    /// The word for it, on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Write => "write",
            Self::Read => "read",
            Self::Flush => "flush",
        }
    }

    /// Its bit on the wire.
    pub const fn bit(self) -> u8 {
        match self {
            Self::Send => 1,
            Self::Write => 2,
            Self::Read => 4,
            Self::Flush => 8,
        }
    }

    /// The kind that a wire bit stands for; `None` for anything but one known bit.
    pub fn from_bit(bit: u8) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|operation| operation.bit() == bit)
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Operation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|operation| operation.name() == text)
            .ok_or_else(|| "allowed are send, write, read, flush and all".to_owned())
    }
}

/// A set of operations, never empty.
///
/// ```
/// use rpma_tools::ping::{Operation, OperationSet};
///
/// let set = OperationSet::of(Operation::Read).with(Operation::Send);
/// assert_eq!(set.iter().collect::<Vec<_>>(), [Operation::Send, Operation::Read]);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OperationSet(u8);

impl OperationSet {
    /// Every kind.
    pub const ALL: Self = Self(15);

    /// A set of one.
    pub const fn of(operation: Operation) -> Self {
        Self(operation.bit())
    }

    /// This set and one more kind.
    #[must_use]
    pub const fn with(self, operation: Operation) -> Self {
        Self(self.0 | operation.bit())
    }

    /// This set and all of another.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The bits for the wire.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// A set from wire bits; `None` when they are empty or hold an unknown one.
    pub const fn from_bits(bits: u8) -> Option<Self> {
        if bits != 0 && bits & !Self::ALL.0 == 0 {
            Some(Self(bits))
        } else {
            None
        }
    }

    /// Whether a kind is in the set.
    pub const fn contains(self, operation: Operation) -> bool {
        self.0 & operation.bit() != 0
    }

    /// The kinds in the set, in the order in which a round runs them.
    pub fn iter(self) -> impl DoubleEndedIterator<Item = Operation> + Clone {
        Operation::ALL
            .into_iter()
            .filter(move |operation| self.contains(*operation))
    }
}

impl fmt::Display for OperationSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, operation) in self.iter().enumerate() {
            if index > 0 {
                f.write_str(", ")?;
            }
            operation.fmt(f)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_own_bit_and_name() {
        for operation in Operation::ALL {
            assert_eq!(Operation::from_bit(operation.bit()), Some(operation));
            assert_eq!(operation.name().parse(), Ok(operation));
        }
        for bit in [0, 3, 16, 255] {
            assert_eq!(Operation::from_bit(bit), None);
        }
    }

    #[test]
    fn unknown_or_no_bits_are_no_set() {
        for bits in [0, 16, 31, 128, 255] {
            assert_eq!(OperationSet::from_bits(bits), None);
        }
        assert_eq!(OperationSet::from_bits(15), Some(OperationSet::ALL));
    }

    #[test]
    fn a_set_lists_its_kinds_in_running_order() {
        assert_eq!(OperationSet::ALL.to_string(), "send, write, read, flush");
        assert_eq!(
            OperationSet::of(Operation::Flush)
                .with(Operation::Write)
                .to_string(),
            "write, flush"
        );
    }
}
