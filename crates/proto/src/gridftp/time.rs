//! Time stamps of FTP: `YYYYMMDDHHMMSS` with an optional fraction, in UTC (RFC 3659, section 2.3).

use std::fmt;

/// A time stamp, in seconds and nanoseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp {
    /// Seconds since 1970, negative before. Times outside the years 0 to 9999 print as the nearest time within them.
    pub seconds: i64,
    /// Nanoseconds, below 10^9.
    pub nanos: u32,
}

/// The first second of the year 0, and the last of the year 9999.
const RANGE: (i64, i64) = (-62_167_219_200, 253_402_300_799);

impl Stamp {
    /// Parses `20261121200000` or `20261121200000.123`.
    pub fn parse(text: &str) -> Option<Self> {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
        let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
        if whole.len() != 14 || fraction.is_empty() || !digits(whole) || !digits(fraction) {
            return None;
        }
        let field = |from: usize, to: usize| whole[from..to].parse::<i64>().ok();
        let (year, month, day) = (field(0, 4)?, field(4, 6)?, field(6, 8)?);
        let (hour, minute, second) = (field(8, 10)?, field(10, 12)?, field(12, 14)?);
        let days = days_of(year, month, day);
        // A day that does not exist converts back to another day. A leap second counts as the next second.
        if hour > 23 || minute > 59 || second > 60 || date_of(days) != (year, month, day) {
            return None;
        }
        let nanos = format!("{fraction:0<9.9}").parse().ok()?;
        Some(Self { seconds: days * 86_400 + hour * 3600 + minute * 60 + second, nanos })
    }
}

/// Prints the fraction only if it is not zero, without trailing zeros.
impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.seconds.clamp(RANGE.0, RANGE.1);
        let (days, rest) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
        let (year, month, day) = date_of(days);
        write!(f, "{year:04}{month:02}{day:02}{:02}{:02}{:02}", rest / 3600, rest / 60 % 60, rest % 60)?;
        match format!("{:09}", self.nanos).trim_end_matches('0') {
            "" => Ok(()),
            fraction => write!(f, ".{fraction}"),
        }
    }
}

/// Days since 1970 of a date in the Gregorian calendar. Years are counted from March, so that leap days are at their
/// end, and 400 years are an era.
fn days_of(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + (153 * month + 2) / 5 + day - 1 - 719_468
}

/// The date (year, month, day) of a day number counted from 1970.
fn date_of(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (era * 400 + year + next, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn times_agree_with_the_output_of_date() {
        for (text, seconds, nanos) in [
            ("19700101000000", 0, 0),
            ("20000229235959", 951_868_799, 0),
            ("19691231235959.5", -1, 500_000_000),
            ("20261121200000.000000001", 1_795_291_200, 1),
        ] {
            let stamp = Stamp { seconds, nanos };
            assert_eq!((Stamp::parse(text), stamp.to_string().as_str()), (Some(stamp), text));
        }
        for text in [
            "",
            "2026112120000",
            "20260229000000",
            "20261301000000",
            "20261121240000",
            "20261121200000.",
            "2026112120000é",
        ] {
            assert_eq!(Stamp::parse(text), None, "{text}");
        }
        assert_eq!(Stamp { seconds: i64::MAX, nanos: 0 }.to_string(), "99991231235959");
    }

    proptest! {
        #[test]
        fn printed_times_parse_back(seconds in RANGE.0..=RANGE.1, nanos in 0..1_000_000_000u32) {
            let stamp = Stamp { seconds, nanos };
            prop_assert_eq!(Stamp::parse(&stamp.to_string()), Some(stamp));
        }
    }
}
