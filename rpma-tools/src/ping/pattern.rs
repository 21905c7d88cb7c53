//! The bytes that a round moves, and the poison that it must overwrite.
//!
//! Byte `i` is byte `i % 8`, counted from the least significant, of `mix(seed + (i / 8) · γ)`,
//! with the finaliser and the increment γ of the SplitMix64 generator. The seed is made of the
//! sequence number, the operation and the direction, so the bytes of another round, of another
//! operation or of the other direction do not pass for these. The poison of a place is the
//! complement of the pattern that is to arrive there: not one byte of it can pass for data.

use super::Operation;

const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// Which way the bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server.
    ToServer,
    /// From the server to the client.
    ToClient,
}

/// The first place where bytes differ from what they should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mismatch {
    /// Bytes before it.
    pub offset: usize,
    /// What should be there.
    pub expected: u8,
    /// What is there.
    pub found: u8,
    /// How many bytes are wrong altogether.
    pub wrong: u64,
}

/// The bytes of one operation of one round in one direction.
///
/// ```
/// use rpma_tools::ping::{Direction, Operation, Pattern};
///
/// let pattern = Pattern::new(7, Operation::Write, Direction::ToServer);
/// let mut bytes = [0; 32];
/// pattern.fill(0, &mut bytes);
/// assert_eq!(pattern.check(0, &bytes), None);
/// bytes[11] ^= 1;
/// assert_eq!(pattern.check(0, &bytes).unwrap().offset, 11);
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Pattern {
    seed: u64,
}

impl Pattern {
    /// The pattern of round `sequence`, `operation` and `direction`.
    pub fn new(sequence: u64, operation: Operation, direction: Direction) -> Self {
        let direction = match direction {
            Direction::ToServer => 0,
            Direction::ToClient => 1 << 8,
        };
        Self {
            seed: mix(mix(sequence) ^ (u64::from(operation.bit()) | direction)),
        }
    }

    /// Writes the part that begins `offset` bytes into the pattern.
    pub fn fill(&self, offset: usize, bytes: &mut [u8]) {
        self.write(offset, bytes, 0);
    }

    /// Writes the poison for the part that begins `offset` bytes into the pattern.
    pub fn poison(&self, offset: usize, bytes: &mut [u8]) {
        self.write(offset, bytes, u64::MAX);
    }

    /// Compares bytes with the part that begins `offset` bytes into the pattern.
    pub fn check(&self, offset: usize, bytes: &[u8]) -> Option<Mismatch> {
        let mut mismatch: Option<Mismatch> = None;
        let mut compare = |at: usize, expected: &[u8], found: &[u8]| {
            for (index, (&expected, &found)) in expected.iter().zip(found).enumerate() {
                if expected != found {
                    let first = Mismatch {
                        offset: at + index,
                        expected,
                        found,
                        wrong: 0,
                    };
                    mismatch.get_or_insert(first).wrong += 1;
                }
            }
        };
        let (head, body) = bytes.split_at(before_word(offset).min(bytes.len()));
        compare(offset, &self.word(offset).to_le_bytes()[offset % 8..], head);
        let mut at = offset + head.len();
        let (words, tail) = body.as_chunks::<8>();
        for found in words {
            let expected = self.word(at);
            if u64::from_le_bytes(*found) != expected {
                compare(at, &expected.to_le_bytes(), found);
            }
            at += 8;
        }
        compare(at, &self.word(at).to_le_bytes(), tail);
        mismatch
    }

    fn write(&self, offset: usize, bytes: &mut [u8], flip: u64) {
        let word = |at| (self.word(at) ^ flip).to_le_bytes();
        let (head, body) = bytes.split_at_mut(before_word(offset).min(bytes.len()));
        let first = &word(offset)[offset % 8..];
        head.copy_from_slice(&first[..head.len()]);
        let mut at = offset + head.len();
        let (words, tail) = body.as_chunks_mut::<8>();
        for bytes in words {
            *bytes = word(at);
            at += 8;
        }
        tail.copy_from_slice(&word(at)[..tail.len()]);
    }

    /// The word that holds the byte at `offset`.
    fn word(&self, offset: usize) -> u64 {
        mix(self
            .seed
            .wrapping_add(((offset / 8) as u64).wrapping_mul(GAMMA)))
    }
}

/// Bytes from `offset` to the next place where a word begins.
fn before_word(offset: usize) -> usize {
    offset.wrapping_neg() % 8
}

fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(GAMMA);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITE: Pattern = Pattern { seed: 0 };

    fn filled(pattern: Pattern, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        pattern.fill(0, &mut bytes);
        bytes
    }

    #[test]
    fn the_generator_gives_the_published_first_values() {
        // SplitMix64 with seed 0 begins with these words.
        let bytes = filled(WRITE, 16);
        assert_eq!(bytes[..8], 0xe220_a839_7b1d_cdaf_u64.to_le_bytes());
        assert_eq!(bytes[8..], 0x6e78_9e6a_a1b9_65f4_u64.to_le_bytes());
    }

    #[test]
    fn a_round_that_moves_nothing_is_wrong_in_every_byte() {
        for len in [1, 7, 8, 64, 1000] {
            let pattern = Pattern::new(3, Operation::Read, Direction::ToClient);
            let mut target = vec![0; len];
            pattern.poison(0, &mut target);
            let mismatch = pattern.check(0, &target).unwrap();
            assert_eq!((mismatch.offset, mismatch.wrong), (0, len as u64));
            assert_eq!(mismatch.found, !mismatch.expected);
        }
    }

    #[test]
    fn one_flipped_byte_is_found_at_its_offset() {
        let pattern = Pattern::new(0, Operation::Write, Direction::ToServer);
        let good = filled(pattern, 77);
        for offset in 0..good.len() {
            let mut bytes = good.clone();
            bytes[offset] ^= 0x20;
            let expected = Mismatch {
                offset,
                expected: good[offset],
                found: bytes[offset],
                wrong: 1,
            };
            assert_eq!(pattern.check(0, &bytes), Some(expected));
        }
    }

    #[test]
    fn a_part_is_what_the_whole_has_there() {
        let pattern = Pattern::new(9, Operation::Flush, Direction::ToServer);
        let whole = filled(pattern, 64);
        for start in 0..20 {
            for end in start..50 {
                let mut part = vec![0; end - start];
                pattern.fill(start, &mut part);
                assert_eq!(part, whole[start..end]);
                assert_eq!(pattern.check(start, &part), None);
            }
        }
    }

    #[test]
    fn a_wrong_byte_of_a_later_part_is_named_by_its_place_in_the_whole() {
        let pattern = Pattern::new(1, Operation::Send, Direction::ToClient);
        let mut part = vec![0; 30];
        pattern.fill(100, &mut part);
        part[13] ^= 1;
        part[20] ^= 1;
        let mismatch = pattern.check(100, &part).unwrap();
        assert_eq!((mismatch.offset, mismatch.wrong), (113, 2));
    }

    #[test]
    fn round_operation_and_direction_each_change_the_bytes() {
        let base = filled(Pattern::new(5, Operation::Send, Direction::ToServer), 16);
        for other in [
            Pattern::new(6, Operation::Send, Direction::ToServer),
            Pattern::new(5, Operation::Write, Direction::ToServer),
            Pattern::new(5, Operation::Send, Direction::ToClient),
        ] {
            assert_ne!(filled(other, 16), base);
        }
    }

    #[test]
    fn data_moved_to_the_wrong_offset_is_wrong() {
        let pattern = Pattern::new(5, Operation::Write, Direction::ToServer);
        let bytes = filled(pattern, 128);
        for shift in [1, 4, 8, 64] {
            assert!(pattern.check(0, &bytes[shift..]).is_some());
        }
    }
}
