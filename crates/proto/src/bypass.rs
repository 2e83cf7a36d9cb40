//! What clients remember of paths that turned out short, to go direct next time (S26).
//!
//! The memory is a text file with a line for each session, appended by the preload shim and by `phoebus connect` alike:
//!
//! ```text
//! 1763700000 10.0.0.4 812 pg1:5006,pg2:5006
//! ```
//!
//! Unix time in seconds, destination, round trip of the whole path in microseconds, path. Later lines stand before earlier
//! ones. Lines that cannot be read count for nothing: a memory that is lost only costs a detour. Reading and writing
//! allocate nothing.

use crate::endpoint::{Endpoint, HostRef};
use std::fmt;
use std::io::Write;
use std::time::Duration;

/// Longest line; a path of names that would need more is not remembered.
pub const LINE_MAX: usize = 512;
/// Largest file worth reading, some thousand destinations. Whoever would make it larger starts it anew.
pub const FILE_MAX: usize = 128 * 1024;
/// How long a measurement counts: routes change by the day.
pub const AGE_MAX: Duration = Duration::from_secs(24 * 3600);

/// What was measured of one session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Measured<'a> {
    /// When, in seconds since 1970.
    pub at: u64,
    /// To where. The port does not matter to the distance.
    pub destination: HostRef<'a>,
    /// Round trip of all hops, in microseconds.
    pub rtt_us: u64,
    /// The gateways that were asked for.
    pub path: &'a [Endpoint],
}

impl Measured<'_> {
    /// Writes the line, with its end, and returns its length; `None` when it does not fit.
    pub fn write(&self, mut line: &mut [u8]) -> Option<usize> {
        let room = line.len();
        let Self { at, destination, rtt_us, path } = self;
        writeln!(line, "{at} {destination} {rtt_us} {}", Path(path)).ok()?;
        Some(room - line.len())
    }
}

/// The round trip last measured to `destination` over `path`, if `memory` has one that is not too old at `now` (seconds
/// since 1970).
pub fn recall(memory: &[u8], destination: HostRef, path: &[Endpoint], now: u64) -> Option<Duration> {
    memory.rsplit(|byte| *byte == b'\n').find_map(|line| {
        let mut fields = line.split(|byte| *byte == b' ');
        let at = number(fields.next()?)?;
        let same = reads(fields.next()?, &destination);
        let rtt = number(fields.next()?)?;
        let same = same && reads(fields.next()?, &Path(path)) && fields.next().is_none();
        // A clock that was set back makes a measurement of the future: it is as good as one of now.
        (same && now.saturating_sub(at) <= AGE_MAX.as_secs()).then_some(Duration::from_micros(rtt))
    })
}

/// A path as it stands in `PHOEBUS_PATH`, so that another path is another memory.
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

/// Whether `text` is exactly what `value` prints.
fn reads(text: &[u8], value: &impl fmt::Display) -> bool {
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
    use crate::endpoint::Host;
    use proptest::prelude::*;

    fn line(measured: &Measured) -> String {
        let mut buffer = [0; LINE_MAX];
        let len = measured.write(&mut buffer).unwrap();
        String::from_utf8(buffer[..len].to_vec()).unwrap()
    }

    #[test]
    fn the_latest_measurement_of_the_same_path_counts() {
        let (one, two) = (Endpoint::parse_path("pg1").unwrap(), Endpoint::parse_path("pg1,pg2").unwrap());
        let (dst, other) = ("10.0.0.4".parse::<Host>().unwrap(), "dst.example".parse::<Host>().unwrap());
        let at = |at, rtt_us, path| line(&Measured { at, destination: dst.as_ref(), rtt_us, path });
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
    fn a_line_that_does_not_fit_is_not_written() {
        let path = Endpoint::parse_path("pg1").unwrap();
        let host: Host = "10.0.0.4".parse().unwrap();
        let measured = Measured { at: 1, destination: host.as_ref(), rtt_us: 2, path: &path };
        let len = line(&measured).len();
        assert_eq!(measured.write(&mut vec![0; len]), Some(len));
        assert_eq!(measured.write(&mut vec![0; len - 1]), None);
    }

    proptest! {
        #[test]
        fn what_is_written_is_recalled(at: u64, rtt_us: u64, ip: std::net::IpAddr, garbage: Vec<u8>) {
            let path = Endpoint::parse_path("pg1,[::1]:7").unwrap();
            let destination = HostRef::Addr(ip);
            let mut memory = garbage;
            memory.push(b'\n');
            memory.extend(line(&Measured { at, destination, rtt_us, path: &path }).bytes());
            prop_assert_eq!(recall(&memory, destination, &path, at), Some(Duration::from_micros(rtt_us)));
        }
    }
}
