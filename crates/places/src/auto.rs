//! What carries a file with `--stack auto` (S25). The first line that holds counts:
//!
//! | a file | goes | because |
//! |---|---|---|
//! | shorter than [`LONG`] | over TCP | it is gone before objects have agreed on anything |
//! | to be put on a path that objects have found to carry more than [`FAST`] | over TCP | the kernel takes less of a processor for each byte |
//! | to or from a server nearer than [`FAR`], without much loss | over TCP | TCP recovers at once from what it loses, and finds the rate within milliseconds |
//! | any other | as an object | neither loss nor the kernel's windows bound it, and it is encrypted |
//!
//! Files go over TCP all the same through gateways, with `--streams` or `--stripe`, inside SSH, in order, to servers that take no
//! objects, and where datagrams do not get through. Objects are always encrypted, so nothing is less protected than over TCP.

use crate::choose::LOSS;
use phoebus_gridftp::client::{Carrier, Segment};
use std::time::Duration;

/// Fewest bytes of an object: what takes more than a round trip or two at the rates of wide-area networks.
const LONG: u64 = 4 << 20;

/// The rate from which on TCP is chosen, in bits per second: two thirds of what one processor encrypts and sends in packets of 1438
/// bytes (docs/benchmarks.md, "Packets of an object").
const FAST: f64 = 4e9;

/// Round trip from which on objects are chosen.
const FAR: Duration = Duration::from_millis(10);

/// What carries a file.
pub(crate) fn carrier(segment: &Segment) -> Carrier {
    let Segment { size, rtt, loss, rate, .. } = *segment;
    let (is_object, why) = if size < LONG {
        (false, "they are short")
    } else if rate > FAST {
        (false, "the path is faster than objects are cheap")
    } else if loss > LOSS {
        (true, "the path loses packets")
    } else if rtt < FAR {
        (false, "the server is near")
    } else {
        (true, "the server is far")
    };
    Carrier { is_object, why: why.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn carriers_follow_the_table() {
        for (mib, ms, loss, rate, expected, why) in [
            (1, 100, 0.01, 0.0, false, "they are short"),
            (100, 100, 0.0, 0.0, true, "the server is far"),
            (100, 100, 0.0, 5e9, false, "the path is faster than objects are cheap"),
            (100, 1, 0.0, 0.0, false, "the server is near"),
            (100, 1, 0.001, 9e8, true, "the path loses packets"),
        ] {
            let segment = Segment { size: mib << 20, rtt: Duration::from_millis(ms), window: 6 << 20, loss, rate };
            assert_eq!(carrier(&segment), Carrier { is_object: expected, why: why.into() }, "{segment:?}");
        }
    }
}
