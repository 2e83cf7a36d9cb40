//! Tables, drawings and targets of the results, which may come from several partial runs: the points are those of the
//! results.

use super::point::Point;
use super::rows::{colour, first_hop, title};
use crate::bench::flows::{GOODPUT, PROCESSORS_BUSY, STEADY, cpu};
use crate::bench::plot::{self, Axis, Chart, Kind, Scale, Series};
use crate::bench::report::{Bound, Report, Verdict};
use crate::bench::results::{Metric, Results};
use crate::bench::stats::Summary;
use crate::bench::table::Table;
use crate::bench::wan::percent;
use phoebus_proto::units::{Probability, Span};
use phoebus_wan::model::Rate;

/// The reference row for all others.
const LINK: &str = "link";
/// Share of the link's goodput that the best automatic choice must reach.
const ENOUGH: f64 = 0.85;
/// Share of the best fixed choice that `auto` must reach.
const NEAR: f64 = 0.95;

/// The report of `results`, whose flows lasted `seconds`.
pub(super) fn of(seconds: u64, results: &Results) -> Report {
    let mut report = Report {
        title: "Transports over a WAN".into(),
        method: format!(
            "One flow of {seconds} s, memory to memory, timed by its receiver; the columns are round trips of the WAN, to which \
             the LANs add 8 ms each. Each row has a path of its own, whose gateways run on from test to test, and so do \
             their connections. The link is what one stream carries over the same links without the WAN's delay and \
             without loss. From dst to src, no row can pass what dst itself sends under cubic over its LAN, which stands \
             first. Medians, with the smallest and the largest of the runs."
        ),
        ..Report::default()
    };
    let measured = Measured::of(results);
    for (rate, loss) in measured.groups() {
        for reverse in [false, true] {
            let rows = measured.rows(rate, loss, reverse);
            if rows.is_empty() {
                continue;
            }
            let (from, to) = if reverse { ("dst", "src") } else { ("src", "dst") };
            let under = format!("{rate}, LAN loss {}", percent(loss));
            let caption = |what: &str| format!("{what} from {from} to {to}, {under}");
            report.tables.push(measured.table(&caption("Goodput, Mbit/s,"), rate, loss, &rows, GOODPUT));
            if !reverse {
                report.tables.push(measured.shares(&caption("Share of the link's goodput"), rate, loss, &rows));
                report.tables.push(measured.costs(&caption("Processor time"), rate, loss, &rows));
            }
            report.charts.extend(measured.charts(rate, loss, reverse, &rows));
        }
    }
    report.verdicts = measured.verdicts();
    report
}

/// The results, indexed by rate, loss and row.
struct Measured<'a> {
    results: &'a Results,
    points: Vec<Point>,
    /// Identifiers, in the order of their first measurement.
    rows: Vec<&'a str>,
}

impl<'a> Measured<'a> {
    fn of(results: &'a Results) -> Self {
        let (mut points, mut rows) = (Vec::new(), Vec::new());
        let samples = results.samples.iter().map(|sample| (&sample.point, &sample.row));
        let failures = results.failures.iter().map(|failure| (&failure.point, &failure.row));
        for (point, row) in samples.chain(failures) {
            points.extend(Point::read(point).filter(|point| !points.contains(point)));
            if !rows.contains(&row.as_str()) {
                rows.push(row.as_str());
            }
        }
        points.sort_by(|a, b| {
            b.rate_key().cmp(&a.rate_key()).then(a.loss.get().total_cmp(&b.loss.get())).then(a.rtt.cmp(&b.rtt))
        });
        rows.sort_by_key(|id| rank(id));
        Self { results, points, rows }
    }

    /// Rates and losses with tables of their own.
    fn groups(&self) -> Vec<(Rate, Probability)> {
        let mut groups: Vec<_> = self.points.iter().map(|point| (point.rate, point.loss)).collect();
        groups.dedup();
        groups
    }

    fn rtts(&self, rate: Rate, loss: Probability) -> Vec<Span> {
        self.points.iter().filter(|point| (point.rate, point.loss) == (rate, loss)).map(|point| point.rtt).collect()
    }

    fn points(&self, rate: Rate, loss: Probability) -> impl Iterator<Item = String> {
        self.rtts(rate, loss).into_iter().map(move |rtt| Point { rate, loss, rtt }.label().id)
    }

    fn rows(&self, rate: Rate, loss: Probability, reverse: bool) -> Vec<&'a str> {
        let tried = |row: &&str| self.points(rate, loss).any(|point| self.results.tried(&point, row));
        self.rows.iter().copied().filter(|row| row.starts_with("reverse-") == reverse).filter(tried).collect()
    }

    fn median(&self, point: &str, row: &str, metric: Metric) -> Option<f64> {
        self.results.summary(point, row, metric).map(|summary| summary.median)
    }

    fn columns(&self, rate: Rate, loss: Probability) -> impl Iterator<Item = String> {
        std::iter::once(String::new()).chain(self.rtts(rate, loss).into_iter().map(|rtt| rtt.to_string()))
    }

    fn table(&self, caption: &str, rate: Rate, loss: Probability, rows: &[&str], metric: Metric) -> Table {
        let mut table = Table::new(caption, self.columns(rate, loss));
        for row in rows {
            let cells =
                self.points(rate, loss).map(|point| self.results.cell(&point, row, metric, Summary::with_extremes));
            table.row(std::iter::once(title(row)).chain(cells));
        }
        table
    }

    /// Ratios of medians; in brackets those from the fourth second on, when all flows have found their rate.
    fn shares(&self, caption: &str, rate: Rate, loss: Probability, rows: &[&str]) -> Table {
        let mut table = Table::new(format!("{caption} (from the fourth second on)"), self.columns(rate, loss));
        for row in rows.iter().filter(|row| **row != LINK) {
            let share =
                |point: &str, metric| Some(self.median(point, row, metric)? / self.median(point, LINK, metric)?);
            let cell = |point: String| match (share(&point, GOODPUT), share(&point, STEADY)) {
                (Some(all), Some(steady)) => format!("{all:.2} ({steady:.2})"),
                (Some(all), None) => format!("{all:.2}"),
                _ => "–".into(),
            };
            table.row(std::iter::once(title(row)).chain(self.points(rate, loss).map(cell)));
        }
        table
    }

    /// Costs at the longest round trip, where most data is in flight.
    fn costs(&self, caption: &str, rate: Rate, loss: Probability, rows: &[&str]) -> Table {
        const ROLES: [&str; 5] = ["client", "agent", "gateways", "server", "links"];
        let longest = self.rtts(rate, loss).last().copied().unwrap_or_default();
        let point = Point { rate, loss, rtt: longest }.label().id;
        let heads = ["".to_owned(), "processors busy, %".to_owned()].into_iter();
        let heads = heads.chain(ROLES.iter().map(|role| format!("{role}, s/GB")));
        let mut table = Table::new(format!("{caption}, round trip {longest}"), heads);
        for row in rows {
            let metrics = std::iter::once(PROCESSORS_BUSY).chain(ROLES.map(cpu));
            let cell = |metric| match self.results.values(&point, row, metric).is_empty() {
                true => String::new(),
                false => self.results.cell(&point, row, metric, Summary::with_extremes),
            };
            table.row(std::iter::once(title(row)).chain(metrics.map(cell)));
        }
        table
    }

    /// One drawing for each first hop, each with the direct rows.
    fn charts(&self, rate: Rate, loss: Probability, reverse: bool, rows: &[&str]) -> Vec<(String, Chart)> {
        let beside = |row: &&&str| !row.contains("wan-") && **row != LINK;
        let mut hops: Vec<&str> = rows.iter().filter_map(|row| Some(row.rsplit_once("wan-")?.0)).collect();
        hops.dedup();
        let chart = |hop: &str| {
            let of_hop = |row: &&&str| row.rsplit_once("wan-").is_some_and(|(prefix, _)| prefix == hop);
            let shown: Vec<_> = rows.iter().filter(beside).chain(rows.iter().filter(of_hop)).collect();
            let name = match hop.trim_end_matches(['+', '-']) {
                "" => "hop-cubic",
                hop => hop,
            };
            let ending = format!("{rate}-{}-{name}", percent(loss).replace('%', ""));
            let (from, to) = if reverse { ("dst", "src") } else { ("src", "dst") };
            (
                ending,
                Chart {
                    title: format!("Goodput of one stream from {from} to {to}, {rate}, LAN loss {}", percent(loss)),
                    subtitle: format!("{}; LAN round trips of 8 ms; medians with smallest and largest", first_hop(hop)),
                    kind: Kind::Bars,
                    x: Axis::new(
                        "round trip of the WAN",
                        Scale::Categories(self.rtts(rate, loss).iter().map(Span::to_string).collect()),
                    ),
                    y: Axis::new("goodput, Mbit/s", Scale::Linear),
                    series: shown
                        .into_iter()
                        .map(|row| self.series(rate, loss, row))
                        .filter(|series| !series.points.is_empty())
                        .collect(),
                    marks: self
                        .link(rate, loss)
                        .filter(|_| !reverse)
                        .map(|link| (link, "the link".into()))
                        .into_iter()
                        .collect(),
                },
            )
        };
        hops.into_iter().map(chart).collect()
    }

    fn series(&self, rate: Rate, loss: Probability, row: &str) -> Series {
        let value = |(place, point): (u32, String)| {
            let summary = self.results.summary(&point, row, GOODPUT)?;
            Some(plot::Point::of(f64::from(place), &summary))
        };
        Series {
            name: title(row),
            colour: colour(row),
            points: (0..).zip(self.points(rate, loss)).filter_map(value).collect(),
        }
    }

    /// The link's goodput over all points of a group.
    fn link(&self, rate: Rate, loss: Probability) -> Option<f64> {
        let all: Vec<_> =
            self.points(rate, loss).flat_map(|point| self.results.values(&point, LINK, GOODPUT)).collect();
        Summary::of(&all).map(|summary| summary.median)
    }

    fn verdicts(&self) -> Vec<Verdict> {
        let forward: Vec<_> = self.rows.iter().copied().filter(|row| !row.starts_with("reverse-")).collect();
        let (mut verdicts, mut rates) = (Vec::new(), self.points.iter().map(|point| point.rate).collect::<Vec<_>>());
        rates.dedup();
        for rate in rates {
            let worst = |share: &dyn Fn(&str) -> Option<f64>| {
                let points = self.points.iter().filter(|point| point.rate == rate).map(Point::label);
                let shares = points.filter_map(|point| Some((share(&point.id)?, point.title)));
                shares.min_by(|a, b| a.0.total_cmp(&b.0))
            };
            let best = |point: &str, wanted: &dyn Fn(&str) -> bool| {
                let medians =
                    forward.iter().filter(|row| wanted(row)).filter_map(|row| self.median(point, row, GOODPUT));
                medians.max_by(f64::total_cmp)
            };
            // The choices of a host without bbr: its own cubic, or an agent.
            let stock = |row: &str| row.contains("wan-") && !row.starts_with("hop-bbr");
            for (what, wanted) in [
                (
                    "the best automatic choice",
                    &(|row: &str| stock(row) && row.ends_with("wan-auto")) as &dyn Fn(&str) -> bool,
                ),
                ("the best of all choices", &|row: &str| stock(row)),
            ] {
                let share = |point: &str| Some(best(point, wanted)? / self.median(point, LINK, GOODPUT)?);
                if let Some((measured, at)) = worst(&share) {
                    let target = format!("{what}, ends on stock cubic, to the link, at its worst ({at})");
                    verdicts.push(Verdict { target, measured, bound: Bound::AtLeast(ENOUGH) });
                }
            }
            for auto in forward.iter().filter(|row| row.ends_with("wan-auto")) {
                let hop = auto.trim_end_matches("auto");
                let fixed = |row: &str| row != *auto && row.strip_prefix(hop).is_some();
                let share = |point: &str| Some(self.median(point, auto, GOODPUT)? / best(point, &fixed)?);
                if let Some((measured, at)) = worst(&share) {
                    let target = format!("auto to the best fixed choice, {}, at its worst ({at})", first_hop(hop));
                    verdicts.push(Verdict { target, measured, bound: Bound::AtLeast(NEAR) });
                }
            }
        }
        verdicts
    }
}

/// The sort key of a row in tables: reference rows first, then by first hop.
fn rank(id: &str) -> (bool, String, usize) {
    const LAST: [&str; 13] = [
        "link",
        "direct-cubic",
        "direct-bbr",
        "direct-udt",
        "direct-quic",
        "reverse-ceiling",
        "reverse-direct",
        "cubic",
        "bbr",
        "quic",
        "udt",
        "udt-native",
        "auto",
    ];
    let (hop, last) = id.rsplit_once("wan-").unwrap_or(("", id));
    (id.contains("wan-"), hop.to_owned(), LAST.iter().position(|one| *one == last).unwrap_or(LAST.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(values: &[(&str, &str, f64)]) -> Results {
        let mut results = Results::of("throughput-transports");
        for (point, row, value) in values {
            results.add(point, row, 1, &[(GOODPUT, *value)]);
        }
        results
    }

    #[test]
    fn choices_are_compared_with_the_link_of_the_same_point() {
        let results = measured(&[
            ("50ms 0.01% 1gbit", "link", 900.0),
            ("50ms 0.01% 1gbit", "wan-auto", 200.0),
            ("50ms 0.01% 1gbit", "hop-quic+wan-auto", 810.0),
            ("50ms 0.01% 1gbit", "hop-quic+wan-quic", 900.0),
            ("50ms 0.01% 1gbit", "hop-bbr+wan-quic", 950.0),
            ("100ms 0.01% 1gbit", "link", 1000.0),
            ("100ms 0.01% 1gbit", "hop-quic+wan-auto", 800.0),
        ]);
        let verdicts: Vec<_> = of(10, &results).verdicts.iter().map(|v| (v.target.clone(), v.measured)).collect();
        let at = |ms| format!("at its worst ({ms}ms, loss 0.01%, 1gbit)");
        assert_eq!(
            verdicts,
            [
                (format!("the best automatic choice, ends on stock cubic, to the link, {}", at(100)), 0.8),
                (format!("the best of all choices, ends on stock cubic, to the link, {}", at(100)), 0.8),
                (format!("auto to the best fixed choice, first hop quic, {}", at(50)), 0.9),
            ]
        );
    }

    #[test]
    fn report_includes_points_of_other_runs() {
        let results = measured(&[
            ("100ms 0.1% 1gbit", "wan-udt", 41.0),
            ("100ms 0.1% 1gbit", "direct-cubic", 7.0),
            ("50ms 0.1% 1gbit", "wan-udt", 42.0),
            ("50ms 0.001% 500mbit", "reverse-wan-bbr", 400.0),
        ]);
        let report = of(10, &results);
        assert_eq!(report.tables[0].columns[1..], ["50ms", "100ms"]);
        assert_eq!(
            report.tables[0].rows,
            [["direct, cubic", "–", "7.00"], ["first hop cubic, WAN udt", "42.0", "41.0"]]
        );
        let names: Vec<_> = report.charts.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["1gbit-0.1-hop-cubic", "500mbit-0.001-reverse"]);
    }
}
