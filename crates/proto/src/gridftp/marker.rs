//! Restart and performance markers (GFD.20, sections 3.2 and 6).
//!
//! `111 Range Marker 0-100,200-300` lists the ranges that the receiver has stored since the marker before. The end of a
//! range is not included. `REST` has ranges in the same form, or one number in stream mode. `112-Perf Marker` reports
//! how many bytes a stripe has transferred.

use crate::range::{Extent, Ranges};
use std::fmt;

/// Most ranges in one marker. GCT sends up to some hundreds.
pub const MAX_RANGES: usize = 1 << 16;

/// A text that does not parse as a marker.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{text}\" is not {expected}")]
pub struct MarkerError {
    text: String,
    expected: &'static str,
}

fn error(text: &str, expected: &'static str) -> MarkerError {
    MarkerError { text: text.chars().take(100).collect(), expected }
}

/// Where a transfer resumes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Restart {
    /// Transfer from this byte on (RFC 3659, section 5).
    At(u64),
    /// Transfer everything except these ranges, in extended block mode.
    Without(Ranges),
}

impl Restart {
    /// Parses the parameter of `REST`.
    ///
    /// # Errors
    /// [`MarkerError`] if the text is neither a number nor a list of ranges.
    pub fn parse(text: &str) -> Result<Self, MarkerError> {
        match text.trim() {
            number if is_number(number) => {
                Ok(Self::At(number.parse().map_err(|_| error(text, "a number of 64 bits"))?))
            }
            ranges => parse_ranges(ranges).map(Self::Without),
        }
    }
}

impl fmt::Display for Restart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::At(at) => write!(f, "{at}"),
            Self::Without(ranges) if ranges.is_empty() => f.write_str("0-0"),
            Self::Without(ranges) => write!(f, "{ranges}"),
        }
    }
}

/// Parses `0-100,200-300`.
///
/// # Errors
/// [`MarkerError`] if the text is malformed or has more than [`MAX_RANGES`] ranges.
pub fn parse_ranges(text: &str) -> Result<Ranges, MarkerError> {
    let wrong = || error(text, "a list of ranges such as 0-100,200-300");
    let mut ranges = Ranges::new();
    for (i, part) in text.split(',').enumerate() {
        let (start, end) = part.trim().split_once('-').ok_or_else(wrong)?;
        if i >= MAX_RANGES || !is_number(start) || !is_number(end) {
            return Err(wrong());
        }
        let bounds = start.parse().ok().zip(end.parse().ok());
        ranges.insert(bounds.and_then(|(start, end)| Extent::between(start, end)).ok_or_else(wrong)?);
    }
    Ok(ranges)
}

/// Finds the ranges in the text of a 111 reply, after any words.
///
/// # Errors
/// [`MarkerError`] if there are none.
pub fn find_ranges(text: &str) -> Result<Ranges, MarkerError> {
    let from = text.find(|c: char| c.is_ascii_digit()).ok_or_else(|| error(text, "a range marker"))?;
    parse_ranges(text[from..].trim_end())
}

/// The text of a 111 reply.
pub fn print_ranges(ranges: &Ranges) -> String {
    format!("Range Marker {ranges}")
}

/// A performance marker: the progress of a stripe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Perf {
    /// Time of the measurement, in tenths of a second since 1970.
    pub tenths: u64,
    /// Index of the stripe, from 0.
    pub stripe: u32,
    /// Bytes that the stripe has transferred in total.
    pub bytes: u64,
    /// Number of stripes.
    pub stripes: u32,
}

impl Perf {
    /// Parses the lines of a 112 reply. Names are case-insensitive. Unknown lines are ignored.
    ///
    /// # Errors
    /// [`MarkerError`] if the number of bytes is missing or a value is not a number.
    pub fn parse<'a>(lines: impl IntoIterator<Item = &'a str>) -> Result<Self, MarkerError> {
        let (mut tenths, mut stripe, mut bytes, mut stripes) = (None, None, None, None);
        for line in lines {
            let Some((name, value)) = line.split_once(':') else { continue };
            let value = value.trim();
            let wrong = || error(line, "a number in a performance marker");
            match name.trim().to_ascii_lowercase().as_str() {
                "timestamp" => {
                    let (whole, fraction) = value.split_once('.').unwrap_or((value, "0"));
                    let tenth = fraction.chars().next().and_then(|c| c.to_digit(10)).ok_or_else(wrong)?;
                    let seconds: u64 = whole.parse().map_err(|_| wrong())?;
                    tenths = Some(seconds.checked_mul(10).and_then(|t| t.checked_add(tenth.into())).ok_or_else(wrong)?);
                }
                "stripe index" => stripe = Some(value.parse().map_err(|_| wrong())?),
                "stripe bytes transferred" => bytes = Some(value.parse().map_err(|_| wrong())?),
                "total stripe count" => stripes = Some(value.parse().map_err(|_| wrong())?),
                _ => {}
            }
        }
        let missing = || error("112", "a performance marker with the bytes of a stripe");
        // With a single stripe, some servers leave out its index.
        Ok(Self {
            tenths: tenths.unwrap_or(0),
            stripe: stripe.unwrap_or(0),
            bytes: bytes.ok_or_else(missing)?,
            stripes: stripes.unwrap_or(1),
        })
    }

    /// The lines of a 112 reply, including the first and the last one.
    pub fn lines(&self) -> [String; 6] {
        [
            "Perf Marker".to_owned(),
            format!(" Timestamp:  {}.{}", self.tenths / 10, self.tenths % 10),
            format!(" Stripe Index: {}", self.stripe),
            format!(" Stripe Bytes Transferred: {}", self.bytes),
            format!(" Total Stripe Count: {}", self.stripes),
            "End.".to_owned(),
        ]
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn markers_are_parsed_as_gct_prints_them() {
        let ranges = find_ranges("Range Marker 502792192-503054336,503578624-974389248").unwrap();
        assert_eq!(ranges.to_string(), "502792192-503054336,503578624-974389248");
        assert_eq!(
            Restart::parse("0-502792192,503054336-503578624").unwrap().to_string(),
            "0-502792192,503054336-503578624"
        );
        assert_eq!(Restart::parse(" 4096 "), Ok(Restart::At(4096)));
        let text = "Perf Marker\n Timestamp:  1795226516.9\n Stripe Index: 1\n Stripe Bytes Transferred: 52428800\n Total Stripe Count: 2\nEnd.";
        let perf = Perf { tenths: 17_952_265_169, stripe: 1, bytes: 52_428_800, stripes: 2 };
        assert_eq!((Perf::parse(text.lines()), perf.lines().join("\n").as_str()), (Ok(perf), text));
    }

    #[test]
    fn malformed_markers_are_refused() {
        for text in ["", "-", "1-", "5-4", "1-2,", "1-2;3-4", "+1-2", "99999999999999999999", "0-99999999999999999999"]
        {
            assert!(Restart::parse(text).unwrap_err().to_string().starts_with('"'), "{text}");
        }
        assert!(find_ranges("Range Marker").is_err());
        assert!(Perf::parse(["Stripe Index: 1"]).is_err() && Perf::parse(["Stripe Bytes Transferred: x"]).is_err());
        assert!(
            Perf::parse(["Timestamp: 99999999999999999999.1"]).is_err() && Perf::parse(["Timestamp: 1.x"]).is_err()
        );
    }

    proptest! {
        #[test]
        fn printed_markers_parse_back(parts in proptest::collection::vec((0..u64::MAX / 2, 1..u64::MAX / 4), 1..20), perf: (u32, u32, u64, u32)) {
            let ranges: Ranges = parts.into_iter().filter_map(|(at, len)| Extent::new(at, len)).collect();
            prop_assert_eq!(find_ranges(&print_ranges(&ranges)), Ok(ranges));
            let perf = Perf { tenths: perf.0.into(), stripe: perf.1, bytes: perf.2, stripes: perf.3 };
            let lines = perf.lines();
            prop_assert_eq!(Perf::parse(lines.iter().map(String::as_str)), Ok(perf));
        }

        #[test]
        fn parsing_never_panics(text in ".{0,60}") {
            let _ = (Restart::parse(&text), find_ranges(&text), Perf::parse(text.lines()));
        }
    }
}
