//! The rate of `--limit-rate`, as in curl, wget and rsync (`5M`, `5m`, `500k`: bytes per second), or as networks are
//! measured (`500mbit`: bits per second).

use phoebus_proto::units::{BitRate, ByteSize};
use std::str::FromStr;

/// Bytes per second, at least one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limit(pub(super) u64);

/// Longest burst.
const BLOCK: u64 = 1 << 20;

impl Limit {
    /// Most bytes that may pass at a time: the first ones wait for nothing, so they are at most a quarter of a
    /// second's.
    pub(super) fn block(self) -> usize {
        usize::try_from((self.0 / 4).clamp(1, BLOCK)).unwrap_or(1)
    }
}

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let trimmed = text.trim();
        let amount = trimmed.strip_suffix("/s").unwrap_or(trimmed);
        // The spelling distinguishes bytes from bits: "5MB" and "5M" are bytes, "5Mbit" is bits, and "5Mb", which
        // people read either way, is refused.
        let bytes =
            Some(amount).filter(|amount| !amount.ends_with('b')).and_then(|amount| amount.parse::<ByteSize>().ok());
        let bytes = bytes.map(|size| Ok(size.0)).unwrap_or_else(|| trimmed.parse::<BitRate>().map(|rate| rate.0 / 8));
        match bytes {
            Ok(0) => Err("more than nothing was expected".to_owned()),
            Ok(bytes) => Ok(Self(bytes)),
            Err(_) => {
                Err("a rate in bytes a second such as 500k, 5M or 5MB/s, or in bits such as 500mbit, was expected"
                    .to_owned())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn burst_is_at_most_a_quarter_of_a_second() {
        for (rate, block) in [(1, 1), (5, 1), (100 << 10, 25 << 10), (4 << 20, 1 << 20), (u64::MAX, 1 << 20)] {
            assert_eq!(Limit(rate).block(), block);
        }
    }

    #[test]
    fn bytes_and_bits_are_told_apart() {
        for (text, bytes) in [
            ("5M", 5 << 20),
            ("5m", 5 << 20),
            ("1.5g/s", 3 << 29),
            ("5MB/s", 5_000_000),
            ("5MiB/s", 5 << 20),
            ("500k", 500 << 10),
            ("4096", 4096),
            ("500mbit", 62_500_000),
            ("1Gbit/s", 125_000_000),
        ] {
            assert_eq!(text.parse(), Ok(Limit(bytes)), "{text}");
        }
        for text in ["0", "7bit", "5Mb/s", "5mb", "1Gm", "fast", "-5M", ""] {
            assert!(text.parse::<Limit>().is_err(), "{text}");
        }
    }
}
