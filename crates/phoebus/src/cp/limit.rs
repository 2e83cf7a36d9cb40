//! The rate of `--limit-rate`, as curl, wget and rsync take it (`5M`, `5m`, `500k`: bytes a second) and as networks are measured
//! (`500mbit`: bits a second).

use phoebus_proto::units::{BitRate, ByteSize};
use std::str::FromStr;

/// Bytes a second, at least one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limit(pub(super) u64);

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let trimmed = text.trim();
        let amount = trimmed.strip_suffix("/s").unwrap_or(trimmed);
        // Units of bytes are told from units of bits by their spelling: "5MB" and "5M" are bytes, "5Mbit" is bits, and "5Mb",
        // which people read either way, is neither.
        let lower = amount.strip_suffix(['m', 'g']).map(|_| amount.to_ascii_uppercase());
        let bytes = lower
            .as_deref()
            .unwrap_or(amount)
            .parse::<ByteSize>()
            .map(|size| size.0)
            .or_else(|_| trimmed.parse::<BitRate>().map(|rate| rate.0 / 8));
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
