//! Numbers as users write them, read strictly.
//!
//! One rule holds for every whole number (size, count, port): decimal digits, then at most one
//! suffix, `k`, `K` or `KiB` for 1024, `M` or `MiB` for 1024², `G` or `GiB` for 1024³. Leading
//! zeros are allowed and mean nothing (`08` is eight). Signs, blanks, exponents, fractions and
//! other bases are errors, and so is a value that does not fit 64 bits.
//!
//! Times are seconds: decimal digits with an optional fraction of up to nine digits.

use std::ops::RangeInclusive;
use std::time::Duration;

/// Why a text is no number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NumberError {
    /// There is nothing to read.
    #[error("the value is empty")]
    Empty,
    /// The text does not begin with a decimal digit.
    #[error("it does not begin with a decimal digit")]
    NoDigit,
    /// Something other than a known suffix follows the digits.
    #[error("what follows the digits is none of k, K, KiB, M, MiB, G, GiB")]
    Suffix,
    /// The value does not fit 64 bits.
    #[error("it does not fit 64 bits")]
    TooLarge,
    /// The fraction of a time is empty, too long or no number.
    #[error("seconds are decimal digits with at most nine more after a point")]
    Seconds,
}

/// Reads a whole number with its optional suffix.
///
/// ```
/// use rpma_tools::cli::units::parse_whole;
///
/// assert_eq!(parse_whole("4k"), Ok(4096));
/// assert!(parse_whole("1e3").is_err());
/// ```
///
/// # Errors
/// [`NumberError`] says what is wrong with the text.
pub fn parse_whole(text: &str) -> Result<u64, NumberError> {
    let (digits, suffix) = split_digits(text)?;
    let shift = match suffix {
        "" => 0,
        "k" | "K" | "KiB" => 10,
        "M" | "MiB" => 20,
        "G" | "GiB" => 30,
        _ => return Err(NumberError::Suffix),
    };
    // Only digits are left, so the one way to fail is the size of the number.
    let number: u64 = digits.parse().map_err(|_| NumberError::TooLarge)?;
    number.checked_mul(1 << shift).ok_or(NumberError::TooLarge)
}

/// Reads a time in seconds.
///
/// # Errors
/// [`NumberError`] says what is wrong with the text.
pub fn parse_seconds(text: &str) -> Result<Duration, NumberError> {
    let (digits, rest) = split_digits(text)?;
    let seconds: u64 = digits.parse().map_err(|_| NumberError::TooLarge)?;
    let nanos = match rest.strip_prefix('.') {
        None if rest.is_empty() => 0,
        Some(fraction)
            if (1..=9).contains(&fraction.len())
                && fraction.bytes().all(|byte| byte.is_ascii_digit()) =>
        {
            format!("{fraction:0<9}")
                .parse()
                .map_err(|_| NumberError::Seconds)?
        }
        _ => return Err(NumberError::Seconds),
    };
    Ok(Duration::new(seconds, nanos))
}

fn split_digits(text: &str) -> Result<(&str, &str), NumberError> {
    if text.is_empty() {
        return Err(NumberError::Empty);
    }
    let end = text
        .bytes()
        .position(|byte| !byte.is_ascii_digit())
        .unwrap_or(text.len());
    if end == 0 {
        return Err(NumberError::NoDigit);
    }
    Ok(text.split_at(end))
}

/// Reads a whole number and holds it against its range; the error is the sentence for the user.
///
/// # Errors
/// The text says what is wrong and names the allowed range.
pub fn whole_within(text: &str, range: RangeInclusive<u64>) -> Result<u64, String> {
    let allowed = format!(
        "allowed is {} to {}, in decimal digits with an optional suffix k, K or KiB (1024), M or MiB, G or GiB",
        range.start(),
        range.end()
    );
    match parse_whole(text) {
        Ok(number) if range.contains(&number) => Ok(number),
        Ok(number) if number < *range.start() => Err(format!("it is too small; {allowed}")),
        Ok(_) => Err(format!("it is too large; {allowed}")),
        Err(error) => Err(format!("{error}; {allowed}")),
    }
}

/// Reads a time in seconds and holds it against its upper bound; the error is the sentence for
/// the user.
///
/// # Errors
/// The text says what is wrong and names the allowed range.
pub fn seconds_up_to(text: &str, most: Duration) -> Result<Duration, String> {
    let allowed = format!(
        "allowed is 0 to {} seconds, for example 0.25",
        most.as_secs()
    );
    match parse_seconds(text) {
        Ok(time) if time <= most => Ok(time),
        Ok(_) => Err(format!("it is too large; {allowed}")),
        Err(error) => Err(format!("{error}; {allowed}")),
    }
}

/// A time as sentences show it: seconds without trailing zeros.
///
/// ```
/// use rpma_tools::cli::units::format_seconds;
/// use std::time::Duration;
///
/// assert_eq!(format_seconds(Duration::from_millis(2500)), "2.5 s");
/// ```
pub fn format_seconds(time: Duration) -> String {
    let text = format!("{:.3}", time.as_secs_f64());
    format!("{} s", text.trim_end_matches('0').trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_are_decimal_with_one_binary_suffix() {
        for (text, number) in [
            ("0", 0),
            ("8", 8),
            ("08", 8),
            ("4k", 4096),
            ("4K", 4096),
            ("4KiB", 4096),
            ("1M", 1 << 20),
            ("1MiB", 1 << 20),
            ("1G", 1 << 30),
            ("1GiB", 1 << 30),
            ("4294967296", 1 << 32),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse_whole(text), Ok(number), "{text:?}");
        }
    }

    #[test]
    fn anything_else_is_no_whole_number() {
        for (text, error) in [
            ("", NumberError::Empty),
            ("-1", NumberError::NoDigit),
            ("+1", NumberError::NoDigit),
            (" 8", NumberError::NoDigit),
            ("k", NumberError::NoDigit),
            ("٣", NumberError::NoDigit),
            ("8 ", NumberError::Suffix),
            ("8x", NumberError::Suffix),
            ("1e3", NumberError::Suffix),
            ("0x10", NumberError::Suffix),
            ("1.5k", NumberError::Suffix),
            ("1kk", NumberError::Suffix),
            ("1KB", NumberError::Suffix),
            ("1m", NumberError::Suffix),
            ("1_000", NumberError::Suffix),
            ("18446744073709551616", NumberError::TooLarge),
            ("17179869184G", NumberError::TooLarge),
            ("1000000000000000000000000000000", NumberError::TooLarge),
        ] {
            assert_eq!(parse_whole(text), Err(error), "{text:?}");
        }
    }

    #[test]
    fn seconds_may_have_a_fraction_and_nothing_else() {
        assert_eq!(parse_seconds("0"), Ok(Duration::ZERO));
        assert_eq!(parse_seconds("2"), Ok(Duration::from_secs(2)));
        assert_eq!(parse_seconds("0.2"), Ok(Duration::from_millis(200)));
        assert_eq!(parse_seconds("1.000000001"), Ok(Duration::new(1, 1)));
        for text in [
            "",
            "-1",
            ".5",
            "1.",
            "1e3",
            "1s",
            "1.0000000001",
            " 1",
            "nan",
            "inf",
            "1.5.5",
            "1.-5",
        ] {
            assert!(parse_seconds(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn the_ends_of_a_range_are_in_and_their_neighbours_name_it() {
        assert_eq!(whole_within("1", 1..=65535), Ok(1));
        assert_eq!(whole_within("65535", 1..=65535), Ok(65535));
        for text in ["0", "65536", "64k", "x"] {
            let error = whole_within(text, 1..=65535).unwrap_err();
            assert!(error.contains("1 to 65535"), "{error}");
        }
    }

    #[test]
    fn a_time_at_the_bound_is_in_and_one_beyond_names_it() {
        let most = Duration::from_secs(3600);
        assert_eq!(seconds_up_to("3600", most), Ok(most));
        assert!(
            seconds_up_to("3600.1", most)
                .unwrap_err()
                .contains("0 to 3600 seconds")
        );
    }
}
