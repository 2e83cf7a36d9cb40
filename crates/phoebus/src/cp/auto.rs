//! What is chosen where nothing is said (U16): how many files are carried at a time, and over how many connections each goes.
//! Buffers are never chosen: the kernel tunes them as it goes, and a size that is set would end that.
//!
//! | `--transfers` | is | because |
//! |---|---|---|
//! | long files | 4 | while one is verified and published, others fill the path; more would share what there is |
//! | short ones (up to 1 MiB), both ends on this machine or nearer than [`FAR`] | 4 | a disk and a processor have no more to do |
//! | short ones, to or from a server that is farther | 48 | each waits six round trips, two of them with a data connection: so many keep 16 control connections (of each kind) at work, and no server is asked for more |

//!
//! | `--streams` | is | because |
//! |---|---|---|
//! | servers of plain FTP, or nearer than [`FAR`] | 1 | they know nothing else; and there one is limited by processors and disks |
//! | what the kernel lets be under way on one connection lasts for [`RATE`] over the round trip, and little is lost | 1 | its autotuning fills the path: more would only take from others |
//! | it does not | as many as do together | the administrator has set a limit for each connection, which one cannot pass |
//! | more than [`LOSS`] of what was sent had to be sent again | as many as carry [`LOSSY_RATE`] together, by Mathis' formula | a loss halves the window of one of them, and not of all |
//! | in any case | at most 8, each with at least 16 MiB | more gain little, and small parts are gone before windows have grown |

use super::human;
use phoebus_gridftp::client::Segment;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// From which round trip on what takes time is waiting for answers, and not the work.
pub(super) const FAR: Duration = Duration::from_millis(2);

/// How many control connections of a server are used at a time, at the most.
pub(super) const SESSIONS: usize = 16;

/// What a connection should be able to carry, in bytes a second: 10 Gbit/s, the fastest that wide areas commonly have.
const RATE: f64 = 1.25e9;

/// Which part may be lost without anything being done about it: what good paths lose.
const LOSS: f64 = 1e-5;

/// What connections that lose should carry together, in bytes a second: 1 Gbit/s.
const LOSSY_RATE: f64 = 1.25e8;

/// What one segment carries, and the factor of Mathis' formula: rate = size / round trip × 1.22 / √loss.
const MATHIS: f64 = 1448.0 * 1.22;

/// How many connections a file goes over at the most.
const MOST: f64 = 8.0;

/// How much each should have to carry.
const EACH: u64 = 16 << 20;

/// Over how many connections a file goes.
pub(super) fn streams(segment: &Segment) -> u32 {
    let Segment { size, rtt, window, loss } = *segment;
    if rtt < FAR {
        return 1;
    }
    let rtt = rtt.as_secs_f64();
    let by_window = RATE * rtt / (window.max(1) as f64);
    let by_loss = if loss > LOSS { LOSSY_RATE / (MATHIS / rtt / loss.sqrt()) } else { 1.0 };
    let most = MOST.min((size / EACH) as f64);
    // Between 1 and 8.
    by_window.max(by_loss).ceil().min(most).max(1.0) as u32
}

/// The same in words, of a server of which so much is known.
pub(super) fn words(name: &str, rtt: Duration, windows: (u64, u64), asked: (Option<u32>, Option<u32>)) -> String {
    let long = |window| streams(&Segment { size: u64::MAX, rtt, window, loss: 0.0 });
    let files = Files::choose(asked.1, Some(rtt));
    let streams = match asked.0 {
        Some(n) => format!("{n} as asked"),
        None => {
            format!("up to {} when read, {} when written, and more if much is lost", long(windows.0), long(windows.1))
        }
    };
    format!(
        "{name}: round trip {:.1} ms, kernel's windows {} (read) and {} (write); connections for a file: {streams}; files at a time: \
         {} long or {} short",
        rtt.as_secs_f64() * 1e3,
        human::bytes(windows.0),
        human::bytes(windows.1),
        files.long,
        files.short
    )
}

/// A number, or whatever suits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Auto<const MOST: u32>(pub(super) Option<u32>);

impl<const MOST: u32> FromStr for Auto<MOST> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            _ if text == "auto" => Ok(Self(None)),
            Ok(n) if (1..=MOST).contains(&n) => Ok(Self(Some(n))),
            _ => Err(format!("\"auto\" or a number from 1 to {MOST} was expected")),
        }
    }
}

impl<const MOST: u32> fmt::Display for Auto<MOST> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(n) => n.fmt(f),
            None => f.write_str("auto"),
        }
    }
}

/// How many files are carried at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Files {
    /// If they are long.
    pub(super) long: usize,
    /// If they are short.
    pub(super) short: usize,
}

impl Files {
    /// As many as are `asked` for, or else by the round trip to the farthest server, if there is any.
    pub(super) fn choose(asked: Option<u32>, rtt: Option<Duration>) -> Self {
        match asked {
            Some(n) => Self { long: n as usize, short: n as usize },
            None if rtt.is_some_and(|rtt| rtt >= FAR) => Self { long: 4, short: 3 * SESSIONS },
            None => Self { long: 4, short: 4 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_kept() {
        for (asked, rtt, long, short) in
            [(None, None, 4, 4), (None, Some(1), 4, 4), (None, Some(50), 4, 48), (Some(7), Some(50), 7, 7)]
        {
            let rtt = rtt.map(Duration::from_millis);
            assert_eq!(Files::choose(asked, rtt), Files { long, short }, "{asked:?} {rtt:?}");
        }
        let mb = 1u64 << 20;
        for (size, rtt, window, loss, expected) in [
            (1 << 40, 1, 4 * mb, 0.0, 1),
            (1 << 40, 50, 128 * mb, 0.0, 1),
            (1 << 40, 50, 4 * mb, 0.0, 8),
            (1 << 40, 10, 6 * mb, 0.0, 2),
            (40 * mb, 50, 4 * mb, 0.0, 2),
            (15 * mb, 50, 4 * mb, 0.0, 1),
            (1 << 40, 50, 128 * mb, 1e-6, 1),
            (1 << 40, 50, 128 * mb, 1e-4, 8),
            (1 << 40, 5, 128 * mb, 1e-4, 4),
        ] {
            let segment = Segment { size, rtt: Duration::from_millis(rtt), window, loss };
            assert_eq!(streams(&segment), expected, "{segment:?}");
        }
        assert_eq!("auto".parse(), Ok(Auto::<9>(None)));
        assert_eq!("9".parse(), Ok(Auto::<9>(Some(9))));
        assert!(["0", "10", "", "many"].iter().all(|text| text.parse::<Auto<9>>().is_err()));
    }
}
