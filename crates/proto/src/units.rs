//! Durations, sizes, rates and probabilities as people write them.
//!
//! The command line and all configuration files share this grammar, so that `100ms`, `16MB` or `0.01%` mean the same
//! everywhere. Each unit parses from text and prints as text that parses back to the same value. A parse error states
//! what was expected.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A text that does not parse as the expected quantity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{text}\" is not {expected}")]
pub struct UnitError {
    text: String,
    expected: &'static str,
}

/// A length of time: `250us`, `100ms`, `1.5s`, `30s`, `2m`, `1h`, `7d`, `2w`, or `0`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Span(pub Duration);

/// A number of bytes: `4096`, `16MB` (1000-based), `16MiB` or `16M` (1024-based), in either case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ByteSize(pub u64);

/// Bits per second, 1000-based: `1gbit`, `500mbit`, `1Gbit/s`, `64kbit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct BitRate(pub u64);

/// A probability between 0 and 1: `0.01%` or `0.0001`.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Default)]
pub struct Probability(f64);

impl Span {
    const EXPECTED: &'static str = "a duration such as 250us, 100ms, 30s, 2m, 1h, 7d or 2w";
    /// Suffixes with their length in nanoseconds, the largest last.
    const SCALE: [(&'static str, f64); 8] = [
        ("ns", 1.0),
        ("us", 1e3),
        ("ms", 1e6),
        ("s", 1e9),
        ("m", 60e9),
        ("h", 3600e9),
        ("d", 86_400e9),
        ("w", 604_800e9),
    ];
}

impl ByteSize {
    const EXPECTED: &'static str = "a size such as 4096, 64kB, 16MB (1000-based), 16MiB or 16M (1024-based)";
    /// Suffixes in lower case; they are read in either.
    const SCALE: [(&'static str, f64); 14] = [
        ("", 1.0),
        ("b", 1.0),
        ("kb", 1e3),
        ("mb", 1e6),
        ("gb", 1e9),
        ("tb", 1e12),
        ("k", 1024.0),
        ("kib", 1024.0),
        ("m", 1_048_576.0),
        ("mib", 1_048_576.0),
        ("g", 1_073_741_824.0),
        ("gib", 1_073_741_824.0),
        ("t", 1_099_511_627_776.0),
        ("tib", 1_099_511_627_776.0),
    ];
}

impl BitRate {
    const EXPECTED: &'static str = "a rate such as 64kbit, 500mbit, 1gbit or 10Gbit/s";
    const SCALE: [(&'static str, f64); 4] = [("bit", 1.0), ("kbit", 1e3), ("mbit", 1e6), ("gbit", 1e9)];
}

impl Probability {
    const EXPECTED: &'static str = "a probability such as 0.01% or 0.0001, between 0 and 1";

    /// The probability `p`, if it lies between 0 and 1.
    pub fn new(p: f64) -> Option<Self> {
        (0.0..=1.0).contains(&p).then_some(Self(p))
    }

    /// The value, between 0 and 1.
    pub fn get(self) -> f64 {
        self.0
    }
}

impl FromStr for Span {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        if text.trim() == "0" {
            return Ok(Self(Duration::ZERO));
        }
        let nanos = scaled(text, &Self::SCALE, u64::MAX as f64, Self::EXPECTED)?;
        Ok(Self(Duration::from_nanos(nanos)))
    }
}

impl FromStr for ByteSize {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let scaled = scaled(&text.to_ascii_lowercase(), &Self::SCALE, u64::MAX as f64, Self::EXPECTED);
        scaled.map(Self).map_err(|error| UnitError { text: text.to_owned(), ..error })
    }
}

impl FromStr for BitRate {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let lower = text.trim().to_ascii_lowercase();
        let per_second = lower.strip_suffix("/s").or_else(|| lower.strip_suffix("ps")).unwrap_or(&lower);
        scaled(per_second, &Self::SCALE, u64::MAX as f64, Self::EXPECTED)
            .map(Self)
            .map_err(|_| error(text, Self::EXPECTED))
    }
}

impl FromStr for Probability {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let trimmed = text.trim();
        let (digits, divisor) = trimmed.strip_suffix('%').map_or((trimmed, 1.0), |d| (d.trim_end(), 100.0));
        let value = number(digits).ok_or_else(|| error(text, Self::EXPECTED))?;
        Self::new(value / divisor).ok_or_else(|| error(text, Self::EXPECTED))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.as_nanos();
        let (unit, suffix) = [(60_000_000_000, "m"), (1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us"), (1, "ns")]
            .into_iter()
            .find(|(unit, _)| nanos != 0 && nanos.is_multiple_of(*unit))
            .unwrap_or((1_000_000_000, "s"));
        write!(f, "{}{suffix}", nanos / unit)
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [
            (1 << 30, "GiB"),
            (1_000_000_000, "GB"),
            (1 << 20, "MiB"),
            (1_000_000, "MB"),
            (1 << 10, "KiB"),
            (1_000, "kB"),
        ];
        match units.into_iter().find(|(unit, _)| self.0 != 0 && self.0.is_multiple_of(*unit)) {
            Some((unit, suffix)) => write!(f, "{}{suffix}", self.0 / unit),
            None => write!(f, "{}", self.0),
        }
    }
}

impl fmt::Display for BitRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, suffix) = [(1_000_000_000, "gbit"), (1_000_000, "mbit"), (1_000, "kbit")]
            .into_iter()
            .find(|(unit, _)| self.0 != 0 && self.0.is_multiple_of(*unit))
            .unwrap_or((1, "bit"));
        write!(f, "{}{suffix}", self.0 / unit)
    }
}

impl fmt::Display for Probability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

fn error(text: &str, expected: &'static str) -> UnitError {
    UnitError { text: text.to_owned(), expected }
}

/// Parses a non-negative decimal number. Refuses the exponents, signs and infinities that `f64::from_str` accepts.
fn number(digits: &str) -> Option<f64> {
    let plain = digits.bytes().all(|b| b.is_ascii_digit() || b == b'.') && digits.bytes().any(|b| b.is_ascii_digit());
    if plain { digits.parse().ok() } else { None }
}

fn scaled(text: &str, scale: &[(&str, f64)], max: f64, expected: &'static str) -> Result<u64, UnitError> {
    let trimmed = text.trim();
    let split = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (digits, suffix) = trimmed.split_at(split);
    let unit = scale.iter().find(|(name, _)| *name == suffix.trim_start()).map(|(_, unit)| *unit);
    match (number(digits), unit) {
        // Whole numbers are parsed as integers, because an `f64` holds only 53 bits exactly.
        (Some(value), Some(unit)) if value * unit < max => Ok(match digits.parse::<u64>() {
            Ok(whole) => whole.saturating_mul(unit as u64),
            Err(_) => (value * unit).round() as u64,
        }),
        _ => Err(error(text, expected)),
    }
}

#[cfg(feature = "serde")]
mod text {
    //! Serde: units are strings in files, such as `rate = "1gbit"`.
    use super::{BitRate, ByteSize, Probability, Span};
    use serde::{
        Deserialize, Deserializer, Serialize, Serializer,
        de::{Error, Unexpected, Visitor},
    };
    use std::fmt;

    /// Expects a string; the field is an example of one, for the error message. A zero needs no unit.
    struct Text(&'static str);

    impl Visitor<'_> for Text {
        type Value = String;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "text in quotes such as \"{}\"", self.0)
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<String, E> {
            Ok(text.to_owned())
        }

        fn visit_i64<E: Error>(self, number: i64) -> Result<String, E> {
            match number {
                0 => Ok("0".to_owned()),
                _ => Err(E::invalid_type(Unexpected::Signed(number), &self)),
            }
        }
    }

    macro_rules! as_text {
        ($($unit:ty, $example:literal;)*) => {$(
            impl Serialize for $unit {
                fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                    serializer.collect_str(self)
                }
            }
            impl<'de> Deserialize<'de> for $unit {
                fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                    deserializer.deserialize_any(Text($example))?.parse().map_err(D::Error::custom)
                }
            }
        )*};
    }
    as_text! {
        Span, "5s";
        ByteSize, "16MiB";
        BitRate, "100mbit";
        Probability, "0.1%";
    }
}

/// An error of a deserializer in words of users, who do not know the types of Rust.
pub fn in_words(message: &str) -> String {
    const TYPES: [(&str, &str); 12] = [
        ("a nonzero u16", "a whole number from 1 to 65535"),
        ("a nonzero u32", "a whole number from 1 to 4294967295"),
        ("a nonzero u64", "a whole number from 1 on"),
        ("usize", "a whole number"),
        ("u64", "a whole number"),
        ("u32", "a whole number up to 4294967295"),
        ("u16", "a whole number up to 65535"),
        ("u8", "a whole number up to 255"),
        ("i64", "a whole number"),
        ("f64", "a number"),
        ("a boolean", "true or false"),
        ("struct GivenPool", "a table such as { min = 1, max = 8 }"),
    ];
    // What was expected ends a line.
    let one = |line: &str| {
        let told = TYPES.iter().find_map(|(name, meaning)| {
            let rest = line.strip_suffix(name)?.strip_suffix("expected ")?;
            Some(format!("{rest}expected {meaning}"))
        });
        told.unwrap_or_else(|| line.to_owned())
    };
    message.split('\n').map(one).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn common_spellings_are_parsed() {
        assert_eq!("100ms".parse(), Ok(Span(Duration::from_millis(100))));
        assert_eq!("1.5s".parse(), Ok(Span(Duration::from_millis(1500))));
        assert_eq!("0".parse(), Ok(Span(Duration::ZERO)));
        assert_eq!("16MB".parse(), Ok(ByteSize(16_000_000)));
        assert_eq!("16 MiB".parse(), Ok(ByteSize(16 << 20)));
        assert_eq!("16M".parse(), Ok(ByteSize(16 << 20)));
        assert_eq!("4096".parse(), Ok(ByteSize(4096)));
        assert_eq!("1Gbit/s".parse(), Ok(BitRate(1_000_000_000)));
        assert_eq!("500mbit".parse(), Ok(BitRate(500_000_000)));
        assert_eq!("0.01%".parse::<Probability>().map(Probability::get), Ok(0.01 / 100.0));
    }

    #[test]
    fn errors_quote_the_text_and_state_what_was_expected() {
        for text in ["", "ms", "-1s", "1e3s", "5 parsecs", "1..2s", "inf", "999999999999999999d"] {
            let message = text.parse::<Span>().unwrap_err().to_string();
            assert_eq!(message, format!("\"{text}\" is not {}", Span::EXPECTED));
        }
        for text in ["1gb", "", "1", "fast"] {
            assert!(text.parse::<BitRate>().unwrap_err().to_string().starts_with(&format!("\"{text}\" is not a rate")));
        }
        for text in ["101%", "1.5", "-0.1", "NaN"] {
            assert!(text.parse::<Probability>().is_err(), "{text}");
        }
    }

    #[test]
    fn types_are_told_in_words() {
        let told = in_words("invalid type: string \"8\", expected usize");
        assert_eq!(told, "invalid type: string \"8\", expected a whole number");
        assert_eq!(in_words("expected u16\nin port"), "expected a whole number up to 65535\nin port");
        assert_eq!(in_words("expected usize of it"), "expected usize of it");
    }

    proptest! {
        #[test]
        fn printed_values_parse_back(bytes in 0..1u64 << 53, bits in 0..1u64 << 53, nanos in 0..1u64 << 53, p in 0.0..=1.0f64) {
            prop_assert_eq!(ByteSize(bytes).to_string().parse(), Ok(ByteSize(bytes)));
            prop_assert_eq!(BitRate(bits).to_string().parse(), Ok(BitRate(bits)));
            let span = Span(Duration::from_nanos(nanos));
            prop_assert_eq!(span.to_string().parse(), Ok(span));
            prop_assert_eq!(Probability(p).to_string().parse(), Ok(Probability(p)));
        }

        #[test]
        fn parsing_never_panics(text in ".{0,24}") {
            let _ = (text.parse::<Span>(), text.parse::<ByteSize>(), text.parse::<BitRate>(), text.parse::<Probability>());
        }
    }
}
