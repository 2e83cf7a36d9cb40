//! Numbers and times as people read them. Bytes are counted by thousands, as disks and networks are sold.

use phoebus_files::store::Time;
use phoebus_proto::gridftp::time::Stamp;
use std::time::Duration;

/// A number of bytes: `1.5 GB`.
pub(crate) fn bytes(n: u64) -> String {
    scaled(n as f64, "B")
}

/// Bytes a second: `110.0 MB/s`.
pub(crate) fn rate(per_second: f64) -> String {
    scaled(per_second.max(0.0), "B/s")
}

/// A length of time, as precisely as anybody cares: `5 s`, `3 min 20 s`, `2 h 5 min`.
pub(crate) fn span(span: Duration) -> String {
    match span.as_secs() {
        s @ 0..60 => format!("{s} s"),
        s @ 60..3600 => format!("{} min {} s", s / 60, s % 60),
        s @ 3600..172_800 => format!("{} h {} min", s / 3600, s % 3600 / 60),
        s => format!("{} days", s / 86_400),
    }
}

fn scaled(mut value: f64, unit: &str) -> String {
    let mut prefixes = ["", "k", "M", "G", "T"].into_iter();
    let mut prefix = prefixes.next().unwrap_or_default();
    // Values that round to 1000 of a unit become 1 of the next.
    while value >= 999.95
        && let Some(next) = prefixes.next()
    {
        (value, prefix) = (value / 1000.0, next);
    }
    if prefix.is_empty() { format!("{value:.0} {unit}") } else { format!("{value:.1} {prefix}{unit}") }
}

/// A moment in UTC: for people, to the second, and by RFC 3339, as precisely as it is known.
pub(crate) fn time(time: Time) -> (String, String) {
    let text = Stamp { seconds: time.seconds, nanos: time.nanos }.to_string();
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    let part = |from: usize, to: usize| whole.get(from..to).unwrap_or("00");
    let (date, clock) = (
        format!("{}-{}-{}", part(0, 4), part(4, 6), part(6, 8)),
        format!("{}:{}:{}", part(8, 10), part(10, 12), part(12, 14)),
    );
    let dot = if fraction.is_empty() { "" } else { "." };
    (format!("{date} {clock}"), format!("{date}T{clock}{dot}{fraction}Z"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_in_utc() {
        let time = Time { seconds: 1_795_291_200, nanos: 500_000_000 };
        assert_eq!(super::time(time), ("2026-11-21 20:00:00".to_owned(), "2026-11-21T20:00:00.5Z".to_owned()));
    }

    #[test]
    fn numbers_are_short() {
        for (n, text) in
            [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (999_999, "1.0 MB"), (u64::MAX, "18446744.1 TB")]
        {
            assert_eq!(bytes(n), text);
        }
        assert_eq!(rate(110e6), "110.0 MB/s");
        let spans = [59, 60, 7205, 1_000_000].map(|s| span(Duration::from_secs(s)));
        assert_eq!(spans, ["59 s", "1 min 0 s", "2 h 0 min", "11 days"]);
    }
}
