//! Defaults of `--transfers` and `--streams` (U16): how many files are copied at a time, and over how many connections
//! each. Buffer sizes have no default here: a fixed size would disable the autotuning of the kernel.
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
//! | the largest window of one connection is enough for [`RATE`] over the round trip, and loss is low | 1 | autotuning fills the path; more connections would only take bandwidth from others |
//! | the window is too small | as many as reach [`RATE`] together | a limit of the kernel holds for each connection |
//! | more than [`LOSS`] of what was sent had to be sent again | as many as carry [`LOSSY_RATE`] together, by Mathis' formula | a loss halves the window of one of them, and not of all |
//! | in any case | at most 8, each with at least 16 MiB | more gain little, and small parts are gone before windows have grown |

use phoebus_files::plan::Bounds;
use phoebus_files::store::Time;
use phoebus_gridftp::client::Segment;
use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

/// Round trip from which waiting for replies dominates, and not the work.
pub const FAR: Duration = Duration::from_millis(2);

/// Most control connections of a server.
pub const SESSIONS: usize = 16;

/// Target of one connection, in bytes per second: 10 Gbit/s, the fastest common wide-area link.
pub const RATE: f64 = 1.25e9;

/// Loss that is ignored: that of good paths.
pub const LOSS: f64 = 1e-5;

/// Target of several connections on a lossy path, in bytes per second: 1 Gbit/s.
pub const LOSSY_RATE: f64 = 1.25e8;

/// Bytes of a segment, and the factor of Mathis' formula: rate = size / round trip × 1.22 / √loss.
const MATHIS: f64 = 1448.0 * 1.22;

/// Most connections of a file.
const MOST: f64 = 8.0;

/// Fewest bytes for each of them.
const EACH: u64 = 16 << 20;

/// The number of connections of a file.
pub fn streams(segment: &Segment) -> u32 {
    let Segment { size, rtt, window, loss, .. } = *segment;
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

/// A number, or `auto`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Auto<const MOST: u32>(pub Option<u32>);

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

/// The number of concurrent transfers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Files {
    /// For long files.
    pub long: usize,
    /// For short files.
    pub short: usize,
}

impl Files {
    /// The number `asked` for, or one by the round trip to the farthest server, if there is any.
    pub fn choose(asked: Option<u32>, rtt: Option<Duration>) -> Self {
        match asked {
            Some(n) => Self { long: n as usize, short: n as usize },
            None if rtt.is_some_and(|rtt| rtt >= FAR) => Self { long: 4, short: 3 * SESSIONS },
            None => Self { long: 4, short: 4 },
        }
    }
}

/// Limits of size and age. Other files are ignored at both ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Choice {
    /// The smallest size, in bytes.
    pub min_size: Option<u64>,
    /// The largest size, in bytes.
    pub max_size: Option<u64>,
    /// Shortest time since the last modification.
    pub min_age: Option<Duration>,
    /// Longest time since the last modification.
    pub max_age: Option<Duration>,
}

impl Choice {
    /// Whether any limit is set.
    pub fn is_some(&self) -> bool {
        self.min_size.or(self.max_size).is_some() || self.min_age.or(self.max_age).is_some()
    }

    /// The limits for the file engine. Ages are counted back from `now`.
    pub fn bounds(&self, now: SystemTime) -> Bounds {
        // A time before all representable ones is no limit.
        let ago = |age: Option<Duration>| age.and_then(|age| now.checked_sub(age)).map(Time::from);
        Bounds { min_size: self.min_size, max_size: self.max_size, from: ago(self.max_age), to: ago(self.min_age) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_follow_the_table() {
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
            let segment = Segment { size, rtt: Duration::from_millis(rtt), window, loss, rate: 0.0 };
            assert_eq!(streams(&segment), expected, "{segment:?}");
        }
        assert_eq!("auto".parse(), Ok(Auto::<9>(None)));
        assert_eq!("9".parse(), Ok(Auto::<9>(Some(9))));
        assert!(["0", "10", "", "many"].iter().all(|text| text.parse::<Auto<9>>().is_err()));
    }
}
