//! The paper's statements about its path (R9, R10, R14, R16), checked on this one.

use super::{
    GCT_GSI, GCT_SMALL, GCT_TUNED, IPERF_SMALL, OURS_GSI, OURS_SMALL, OURS_TUNED, RATE, Results, SET_UP, Sizes, point,
    row,
};
use crate::bench::report::{Bound, Verdict};
use crate::bench::stats::Summary;

/// The paper's set-up time of GSIFTP, in seconds: get and put, with the buffers for which it was shorter (R9).
const PAPER: [(bool, &str, f64); 2] = [(false, "get", 2.99), (true, "put", 2.95)];
/// The ways with small and with tuned buffers.
const WHO: [(&str, &str, &str); 2] = [("GCT", GCT_SMALL, GCT_TUNED), ("Phoebus", OURS_SMALL, OURS_TUNED)];

/// The verdicts for which there are measurements.
pub(super) fn verdicts(sizes: &Sizes, results: &Results) -> Vec<Verdict> {
    let mut all = Vec::new();
    let mut say = |target: String, measured: Option<f64>, least: f64| {
        all.extend(measured.map(|measured| Verdict { target, measured, bound: Bound::AtLeast(least) }));
    };
    let largest = sizes.largest();
    let rate = |is_put: bool, way: &str, streams: u32| {
        results.summary(&point((is_put, largest)), &row(way, streams), RATE).map(|summary| summary.median)
    };
    let ratio = |one: Option<f64>, other: Option<f64>| Some(one? / other?);
    for (who, small, tuned) in WHO {
        let best = |is_put| [2, 3].into_iter().filter_map(|n| rate(is_put, tuned, n)).reduce(f64::max);
        say(format!("{who}, get of {largest} MB over 9 streams of 64 KB, Mbit/s (R10)"), rate(false, small, 9), 23.0);
        let same = ratio(rate(false, tuned, 3), rate(false, small, 9));
        say(format!("{who}, get over 3 tuned streams, to 9 of 64 KB (R10: the same)"), same, 0.95);
        say(format!("{who}, put over 9 streams of 64 KB, Mbit/s (R10)"), rate(true, small, 9), 25.0);
        let beside = ratio(rate(true, small, 10), rate(true, IPERF_SMALL, 10));
        say(format!("{who}, put over 10 streams of 64 KB, to iperf3 (R10: 29 to 32)"), beside, 0.906);
        for (is_put, name) in [(false, "get"), (true, "put")] {
            let few = ratio(best(is_put), rate(is_put, small, 10));
            say(format!("{who}, {name} over 2 or 3 tuned streams, to 10 of 64 KB (R14: the same)"), few, 0.95);
            let gain = ratio(best(is_put), rate(is_put, tuned, 1));
            say(format!("{who}, {name} over 2 or 3 tuned streams, to one (R16)"), gain, 1.25);
        }
    }
    for (name, small, other) in [("tuned", OURS_TUNED, GCT_TUNED), ("64 KB", OURS_SMALL, GCT_SMALL)] {
        let worst = worst(sizes, results, small, other);
        say(format!("Phoebus to GCT, {name}, at its worst{}", named(&worst)), worst.map(|(measured, _)| measured), 1.0);
    }
    let mut first = set_ups(sizes, results);
    first.append(&mut all);
    first
}

/// Set-up times, over all sizes and streams.
fn set_ups(sizes: &Sizes, results: &Results) -> Vec<Verdict> {
    let of = |is_put: bool, way: &str| {
        let rows = sizes.streams.iter().map(|n| row(way, *n));
        let every = |row: String| {
            let points = sizes.directions().filter(|of| of.0 == is_put);
            points.flat_map(|of| results.values(&point(of), &row, SET_UP)).collect::<Vec<_>>()
        };
        Summary::of(&rows.flat_map(every).collect::<Vec<_>>()).map(|summary| summary.median)
    };
    let each = PAPER.into_iter().flat_map(|(is_put, name, most)| {
        let ours = of(is_put, OURS_GSI);
        let told = ours.map(|measured| Verdict {
            target: format!("Phoebus, set-up of a {name} by certificate, s (R9)"),
            measured,
            bound: Bound::AtMost(most),
        });
        let beside = |how: &str, ours: Option<f64>, gct: Option<f64>| {
            ours.zip(gct).map(|(ours, gct)| Verdict {
                target: format!("Phoebus, set-up of a {name}{how}, to GCT's"),
                measured: ours / gct,
                bound: Bound::AtMost(1.0),
            })
        };
        let anonymous = beside("", of(is_put, OURS_TUNED), of(is_put, GCT_TUNED));
        [told, beside(" by certificate", ours, of(is_put, GCT_GSI)), anonymous]
    });
    each.flatten().collect()
}

/// The smallest ratio of the rates of two ways, and its point and streams.
fn worst(sizes: &Sizes, results: &Results, own: &str, other: &str) -> Option<(f64, String)> {
    let median = |at: &str, way: &str, n| results.summary(at, &row(way, n), RATE).map(|summary| summary.median);
    let all = sizes.directions().map(point).flat_map(|at| {
        let ratios = sizes
            .streams
            .iter()
            .filter_map(|n| Some((median(&at, own, *n)? / median(&at, other, *n)?, format!("{at}, streams: {n}"))));
        ratios.collect::<Vec<_>>()
    });
    all.min_by(|a, b| a.0.total_cmp(&b.0))
}

fn named(worst: &Option<(f64, String)>) -> String {
    worst.as_ref().map_or(String::new(), |(_, place)| format!(" ({place})"))
}
