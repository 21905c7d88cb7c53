//! Bytes that tell where they belong: every seed gives another sequence, without a short period.

/// `len` bytes of the sequence `seed`.
pub fn bytes(seed: u64, len: usize) -> Vec<u8> {
    (0..len).map(|offset| byte(seed, offset)).collect()
}

/// Checks that `found` is the start of the sequence `seed`.
///
/// # Errors
/// A sentence with the first wrong offset and how many bytes are wrong.
pub fn check(found: &[u8], seed: u64) -> Result<(), String> {
    let wrong = |&(offset, &found): &(usize, &u8)| found != byte(seed, offset);
    let Some((offset, &first)) = found.iter().enumerate().find(wrong) else {
        return Ok(());
    };
    let count = found.iter().enumerate().filter(wrong).count();
    Err(format!(
        "offset {offset}: expected {:#04x}, found {first:#04x}; {count} of {} bytes are wrong",
        byte(seed, offset),
        found.len()
    ))
}

fn byte(seed: u64, offset: usize) -> u8 {
    // A multiplication by an odd constant mixes low bits upwards; the top byte depends on all.
    let x = (seed ^ 0x5bf0_3635_dcc9_cf2d).wrapping_add(offset as u64);
    x.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()[7]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flipped_byte_is_named_by_its_offset() {
        let mut bytes = bytes(7, 5000);
        assert_eq!(check(&bytes, 7), Ok(()));
        bytes[4321] ^= 1;
        let text = check(&bytes, 7).expect_err("one byte differs");
        assert!(
            text.starts_with("offset 4321:") && text.contains("1 of 5000"),
            "{text}"
        );
    }

    #[test]
    fn sequences_differ_by_seed_and_place() {
        assert!(check(&bytes(7, 64), 8).is_err());
        assert!(check(&bytes(7, 64)[1..], 7).is_err());
        assert!(check(&[0; 64], 7).is_err());
    }
}
