//! The cache of measured paths: a client connects directly when the path through gateways was short last time (S26).
//!
//! The cache is a text file with one line for each session. The preload shim and `phoebus connect` append to it:
//!
//! ```text
//! 1763700000 10.0.0.4 812 pg1:5006,pg2:5006
//! ```
//!
//! The fields are the Unix time in seconds, the destination, the round-trip time of the whole path in microseconds, and
//! the path. A later line overrides earlier ones. Malformed lines are ignored: a lost cache entry costs one detour at
//! most. Reading and writing do not allocate.

use phoebus_proto::endpoint::{Endpoint, HostRef};
use std::fmt;
use std::io::Write;
use std::time::Duration;

/// Longest line in bytes. A measurement that needs a longer line is not stored.
pub const LINE_MAX: usize = 512;
/// Largest file in bytes: several thousand destinations. A writer that would exceed it truncates the file first.
pub const FILE_MAX: usize = 128 * 1024;
/// How long a measurement is valid. Routes change from day to day.
pub const AGE_MAX: Duration = Duration::from_secs(24 * 3600);

/// The measurement of one session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Measurement<'a> {
    /// When the session was opened: Unix time in seconds.
    pub at: u64,
    /// The destination's host. The port does not change the distance.
    pub destination: HostRef<'a>,
    /// Sum of the round-trip times of all hops, in microseconds.
    pub rtt_us: u64,
    /// The gateways that the client requested.
    pub path: &'a [Endpoint],
}

impl Measurement<'_> {
    /// Writes the line including its newline and returns its length. Returns `None` if the line does not fit.
    pub fn write(&self, mut line: &mut [u8]) -> Option<usize> {
        let room = line.len();
        let Self { at, destination, rtt_us, path } = self;
        writeln!(line, "{at} {destination} {rtt_us} {}", Path(path)).ok()?;
        Some(room - line.len())
    }
}

/// Returns the round-trip time last measured to `destination` over `path`, if `memory` holds one that is at most
/// [`AGE_MAX`] old at `now` (Unix time in seconds).
pub fn recall(memory: &[u8], destination: HostRef, path: &[Endpoint], now: u64) -> Option<Duration> {
    memory.rsplit(|byte| *byte == b'\n').find_map(|line| {
        let mut fields = line.split(|byte| *byte == b' ');
        let at = number(fields.next()?)?;
        let same = is_printed_form(fields.next()?, &destination);
        let rtt = number(fields.next()?)?;
        let same = same && is_printed_form(fields.next()?, &Path(path)) && fields.next().is_none();
        // After the clock was set back, a measurement can lie in the future. It counts as measured now.
        (same && now.saturating_sub(at) <= AGE_MAX.as_secs()).then_some(Duration::from_micros(rtt))
    })
}

/// A path in the form of `PHOEBUS_PATH`. Each path has its own measurements.
struct Path<'a>(&'a [Endpoint]);

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, gateway) in self.0.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            write!(f, "{comma}{gateway}")?;
        }
        Ok(())
    }
}

fn number(field: &[u8]) -> Option<u64> {
    let digits = field.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(field).ok().filter(|_| digits)?.parse().ok()
}

/// Whether `text` equals the printed form of `value`. Compares without allocating.
fn is_printed_form(text: &[u8], value: &impl fmt::Display) -> bool {
    struct Rest<'a>(&'a [u8]);
    impl fmt::Write for Rest<'_> {
        fn write_str(&mut self, part: &str) -> fmt::Result {
            self.0 = self.0.strip_prefix(part.as_bytes()).ok_or(fmt::Error)?;
            Ok(())
        }
    }
    let mut rest = Rest(text);
    fmt::Write::write_fmt(&mut rest, format_args!("{value}")).is_ok() && rest.0.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use phoebus_proto::endpoint::Host;
    use proptest::prelude::*;

    fn line(measured: &Measurement) -> String {
        let mut buffer = [0; LINE_MAX];
        let len = measured.write(&mut buffer).unwrap();
        String::from_utf8(buffer[..len].to_vec()).unwrap()
    }

    #[test]
    fn latest_measurement_of_the_same_path_is_returned() {
        let (one, two) = (Endpoint::parse_path("pg1").unwrap(), Endpoint::parse_path("pg1,pg2").unwrap());
        let (dst, other) = ("10.0.0.4".parse::<Host>().unwrap(), "dst.example".parse::<Host>().unwrap());
        let at = |at, rtt_us, path| line(&Measurement { at, destination: dst.as_ref(), rtt_us, path });
        let memory = [
            at(1000, 1, &one),
            at(1001, 2, &one),
            at(1002, 3, &two),
            "garbage\n1003 10.0.0.4 x pg1:5006\n1003 10.0.0.4 9 pg1:5006 more\n1003 10.0.0.4".into(),
        ]
        .concat();
        let recall = |host: &Host, path, now| recall(memory.as_bytes(), host.as_ref(), path, now);
        assert_eq!(recall(&dst, &one, 1005), Some(Duration::from_micros(2)));
        assert_eq!(recall(&dst, &two, 900), Some(Duration::from_micros(3)));
        assert_eq!(recall(&other, &two, 1005), None);
        assert_eq!(recall(&dst, &one, 1001 + AGE_MAX.as_secs()), Some(Duration::from_micros(2)));
        assert_eq!(recall(&dst, &one, 1002 + AGE_MAX.as_secs()), None);
    }

    #[test]
    fn line_longer_than_the_buffer_is_not_written() {
        let path = Endpoint::parse_path("pg1").unwrap();
        let host: Host = "10.0.0.4".parse().unwrap();
        let measured = Measurement { at: 1, destination: host.as_ref(), rtt_us: 2, path: &path };
        let len = line(&measured).len();
        assert_eq!(measured.write(&mut vec![0; len]), Some(len));
        assert_eq!(measured.write(&mut vec![0; len - 1]), None);
    }

    proptest! {
        #[test]
        fn written_measurement_is_recalled_after_any_garbage(at: u64, rtt_us: u64, ip: std::net::IpAddr, garbage: Vec<u8>) {
            let path = Endpoint::parse_path("pg1,[::1]:7").unwrap();
            let destination = HostRef::Addr(ip);
            let mut memory = garbage;
            memory.push(b'\n');
            memory.extend(line(&Measurement { at, destination, rtt_us, path: &path }).bytes());
            prop_assert_eq!(recall(&memory, destination, &path, at), Some(Duration::from_micros(rtt_us)));
        }
    }
}
