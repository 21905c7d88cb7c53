//! Deliberate damage, for tests of the verification itself.
//!
//! `RPMA_PING_TEST_FLIP=SIDE:OPERATION:OFFSET@SEQUENCE` makes that side change one byte of its own
//! memory that takes part in the operation: what it is about to send or offers for reading, or
//! what has just arrived (a client's read target, a server's write target).
//! `RPMA_PING_TEST_SKIP=OPERATION@SEQUENCE` makes the client leave out the write, read or flush
//! and go on as if it had happened.
//! `RPMA_PING_TEST_VERSION=N` makes the client claim another version of the handshake.

use super::{Operation, Side};
use crate::cli::units::parse_whole;

/// What to damage; nothing by default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Hooks {
    /// One byte to flip.
    pub flip: Option<Flip>,
    /// One operation to leave out.
    pub skip: Option<(Operation, u64)>,
    /// The version that the client claims.
    pub version: Option<u16>,
}

/// One byte to flip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flip {
    /// The side that does it.
    pub side: Side,
    /// The operation whose data it is.
    pub operation: Operation,
    /// Where, in bytes from the start.
    pub offset: u64,
    /// In which round.
    pub sequence: u64,
}

impl Hooks {
    /// Reads the three variables through `var`, which gives the value of one by its name.
    ///
    /// # Errors
    /// The sentence names the variable and how it is written.
    pub fn from_vars(var: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        fn read<T>(
            var: &impl Fn(&str) -> Option<String>,
            name: &str,
            form: &str,
            parse: impl Fn(&str) -> Option<T>,
        ) -> Result<Option<T>, String> {
            match var(name) {
                None => Ok(None),
                Some(text) => parse(&text)
                    .map(Some)
                    .ok_or_else(|| format!("the variable {name} is {text:?} and not {form}")),
            }
        }
        Ok(Self {
            flip: read(
                &var,
                "RPMA_PING_TEST_FLIP",
                "client|server:send|write|read|flush:OFFSET@SEQUENCE",
                parse_flip,
            )?,
            skip: read(
                &var,
                "RPMA_PING_TEST_SKIP",
                "write|read|flush@SEQUENCE",
                parse_skip,
            )?,
            version: read(
                &var,
                "RPMA_PING_TEST_VERSION",
                "a number from 0 to 65535",
                |text| text.parse().ok(),
            )?,
        })
    }

    /// Where `side` flips a byte in this operation of this round.
    pub fn flip_at(&self, side: Side, operation: Operation, sequence: u64) -> Option<u64> {
        self.flip
            .filter(|flip| {
                (flip.side, flip.operation, flip.sequence) == (side, operation, sequence)
            })
            .map(|flip| flip.offset)
    }

    /// Whether the client leaves this operation of this round out.
    pub fn skips(&self, operation: Operation, sequence: u64) -> bool {
        self.skip == Some((operation, sequence))
    }
}

fn parse_flip(text: &str) -> Option<Flip> {
    let (rest, sequence) = text.split_once('@')?;
    let mut parts = rest.split(':');
    let side = match parts.next()? {
        "client" => Side::Client,
        "server" => Side::Server,
        _ => return None,
    };
    let operation = parts.next()?.parse().ok()?;
    let offset = parse_whole(parts.next()?).ok()?;
    let sequence = parse_whole(sequence).ok()?;
    parts.next().is_none().then_some(Flip {
        side,
        operation,
        offset,
        sequence,
    })
}

fn parse_skip(text: &str) -> Option<(Operation, u64)> {
    let (operation, sequence) = text.split_once('@')?;
    let operation = operation.parse().ok()?;
    (operation != Operation::Send).then_some((operation, parse_whole(sequence).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hooks(name: &'static str, value: &'static str) -> Result<Hooks, String> {
        Hooks::from_vars(move |asked| (asked == name).then(|| value.to_owned()))
    }

    #[test]
    fn nothing_is_damaged_without_a_variable() {
        assert_eq!(Hooks::from_vars(|_| None), Ok(Hooks::default()));
    }

    #[test]
    fn a_flip_applies_to_its_side_operation_and_round_only() {
        let hooks = hooks("RPMA_PING_TEST_FLIP", "server:write:17@3").unwrap();
        assert_eq!(hooks.flip_at(Side::Server, Operation::Write, 3), Some(17));
        assert_eq!(hooks.flip_at(Side::Client, Operation::Write, 3), None);
        assert_eq!(hooks.flip_at(Side::Server, Operation::Read, 3), None);
        assert_eq!(hooks.flip_at(Side::Server, Operation::Write, 4), None);
    }

    #[test]
    fn a_skip_applies_to_its_operation_and_round_only() {
        let hooks = hooks("RPMA_PING_TEST_SKIP", "flush@2").unwrap();
        assert!(hooks.skips(Operation::Flush, 2));
        assert!(!hooks.skips(Operation::Flush, 1));
        assert!(!hooks.skips(Operation::Write, 2));
    }

    #[test]
    fn a_mistyped_hook_is_an_error_that_names_the_variable() {
        for text in [
            "",
            "client",
            "client:write:1",
            "client:write:x@0",
            "both:write:1@0",
            "client:copy:1@0",
            "client:write:1:2@0",
        ] {
            let error =
                Hooks::from_vars(|asked| (asked == "RPMA_PING_TEST_FLIP").then(|| text.to_owned()));
            assert!(
                error.unwrap_err().contains("RPMA_PING_TEST_FLIP"),
                "{text:?}"
            );
        }
        assert!(hooks("RPMA_PING_TEST_SKIP", "send@0").is_err());
        assert!(hooks("RPMA_PING_TEST_VERSION", "65536").is_err());
    }
}
