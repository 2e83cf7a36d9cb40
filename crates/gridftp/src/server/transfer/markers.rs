//! Progress markers of transfers (GFD.20, section 3.6).

use phoebus_files::range::Ranges;
use phoebus_proto::gridftp::marker::{Perf, print_ranges};
use phoebus_proto::gridftp::reply::Reply;
use std::time::{SystemTime, UNIX_EPOCH};

/// A performance marker, of one stripe.
pub(super) fn perf(bytes: u64) -> Reply {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let tenths = u64::try_from(now.as_millis() / 100).unwrap_or(u64::MAX);
    Reply::of_lines(112, Perf { tenths, stripe: 0, bytes, stripes: 1 }.lines())
}

/// A range marker.
pub(super) fn ranges(ranges: &Ranges) -> Reply {
    Reply::new(111, print_ranges(ranges))
}
