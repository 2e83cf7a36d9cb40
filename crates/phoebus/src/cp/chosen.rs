//! Describes the automatic choices for a server.

use crate::human;
use phoebus_gridftp::client::Segment;
use phoebus_places::choose::{Files, streams};
use std::time::Duration;

/// Concurrent files, and connections of each, for a server with these properties. `asked` has the user's own choices.
pub(super) fn words(name: &str, rtt: Duration, windows: (u64, u64), asked: (Option<u32>, Option<u32>)) -> String {
    let long = |window| streams(&Segment { size: u64::MAX, rtt, window, loss: 0.0, rate: 0.0 });
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
