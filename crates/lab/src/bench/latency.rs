//! `phoebus bench latency`: connect and one-byte echo (Table 2 of the SC09 paper, S27; S26).

use super::bed::{Bed, BedRoute, Service};
use super::compared::Compared;
use super::conditions::versions;
use super::engine::{Experiment, Label};
use super::peer::Echo;
use super::plot::{Axis, Chart, Colour, Kind, Point, Scale, Series};
use super::process;
use super::report::{Bound, Report, Verdict};
use super::results::{Metric, Reading, Results};
use super::stats::Summary;
use super::table::Table;
use super::{Common, haproxy, wan};
use anyhow::Context;
use phoebus_proto::units::{Probability, Span};
use phoebus_wan::model::Rate;
use phoebus_wan::testbed::Sc09;
use std::fs;
use std::time::Duration;

/// Options of the experiment.
#[derive(Debug, clap::Args)]
pub(crate) struct LatencyArgs {
    #[command(flatten)]
    pub(super) common: Common,
    /// Round trips of the WAN; 0 stands for a path without any delay [default: 0,50ms,100ms].
    #[arg(long, value_delimiter = ',', value_name = "TIME")]
    rtt: Vec<Span>,
    /// Connections of each kind, in all.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    iterations: u32,
    #[command(flatten)]
    pub(super) compared: Compared,
}

impl LatencyArgs {
    /// The round trips to measure; `usual`, in milliseconds, if none were given.
    pub(super) fn rtts(&self, usual: &[u64]) -> Vec<Span> {
        if self.rtt.is_empty() {
            return usual.iter().map(|ms| Span(Duration::from_millis(*ms))).collect();
        }
        self.rtt.clone()
    }

    /// Connections of each kind in each of `runs` runs.
    pub(super) fn each(&self, runs: u32) -> u32 {
        if self.common.quick { 5 } else { self.iterations.div_ceil(runs) }
    }
}

/// The experiment.
pub(super) struct Latency {
    rtts: Vec<Span>,
    /// Connections of each kind in one run.
    each: u32,
    seed: u64,
}

/// A row of the comparison.
struct Row {
    id: &'static str,
    title: &'static str,
    way: BedRoute,
    fast_open: bool,
    colour: Colour,
}

const fn row(id: &'static str, title: &'static str, way: BedRoute, fast_open: bool, colour: Colour) -> Row {
    Row { id, title, way, fast_open, colour }
}

const ROWS: [Row; 4] = [
    row("direct", "direct", BedRoute::Direct, false, Colour::Grey),
    row("haproxy", "HAProxy", BedRoute::Haproxy, false, Colour::Blue),
    row("phoebus", "Phoebus in the clear, no fast open", BedRoute::Phoebus, false, Colour::Orange),
    row("phoebus-tfo", "Phoebus in the clear, fast open", BedRoute::Phoebus, true, Colour::Vermilion),
];

pub(super) const CONNECT: Metric = Metric { name: "connect", unit: "ms" };
pub(super) const FIRST: Metric = Metric { name: "first echo", unit: "ms" };
pub(super) const NEXT: Metric = Metric { name: "echo", unit: "ms" };
pub(super) const READY: Metric = Metric { name: "connect and first echo", unit: "ms" };

/// Table 2 of the paper: latency, row, and the means of connect and echo in ms.
const TABLE_2: [(u64, &str, f64, f64); 9] = [
    (0, "direct", 0.46, 0.38),
    (0, "Phoebus-TCP", 2.33, 0.45),
    (0, "Phoebus-UDT", 8.03, 0.60),
    (50, "direct", 64.02, 64.04),
    (50, "Phoebus-TCP", 74.41, 64.07),
    (50, "Phoebus-UDT", 143.33, 64.04),
    (100, "direct", 114.38, 114.60),
    (100, "Phoebus-TCP", 125.27, 112.16),
    (100, "Phoebus-UDT", 245.32, 112.00),
];

impl Latency {
    /// The experiment with these options, in `runs` runs.
    pub(super) fn new(args: &LatencyArgs, runs: u32) -> Self {
        Self { rtts: args.rtts(&[0, 50, 100]), each: args.each(runs), seed: args.common.seed }
    }

    fn rtt(&self, point: &str) -> Span {
        self.rtts.iter().copied().find(|rtt| rtt.to_string() == point).unwrap_or_default()
    }

    fn settings(&self, rtt: Span) -> Sc09 {
        let path = wan::path(rtt, Probability::default(), self.seed, "bbr");
        if rtt.0.is_zero() { Sc09 { lan_rtt: rtt, rate: Rate::Unlimited, ..path } } else { path }
    }
}

/// The paper names a path without any delay this way.
fn title(rtt: Span) -> String {
    if rtt.0.is_zero() { "no delay".into() } else { rtt.to_string() }
}

impl Experiment for Latency {
    type Bed = Bed;

    fn name(&self) -> &'static str {
        "latency"
    }

    fn points(&self) -> Vec<Label> {
        self.rtts.iter().map(|rtt| Label::new(rtt.to_string(), title(*rtt))).collect()
    }

    fn rows(&self) -> Vec<Label> {
        ROWS.iter().map(|row| Label::new(row.id, row.title)).collect()
    }

    fn expected(&self, point: &str, _: &str) -> Duration {
        // Connect, two echoes, and half a round trip for everything else.
        let once = (self.rtt(point).0 + Duration::from_millis(20)).mul_f64(3.5);
        once * self.each + Duration::from_millis(200)
    }

    fn set_up(&self, point: &str) -> anyhow::Result<Bed> {
        let mut bed = Bed::up(&self.settings(self.rtt(point)), &[Service::Echo])?;
        bed.serve_peer("echo", Service::Echo)?;
        Ok(bed)
    }

    fn conditions(&self, bed: &Bed) -> Vec<(String, String)> {
        let mut all = versions(&[(haproxy::PROGRAM, "-v")]);
        all.push(("connections".into(), format!("{} of each kind in each run, none lost", self.each)));
        all.push((
            "fast open".into(),
            "switched by net.ipv4.tcp_fastopen of src; the first connection gets the cookie".into(),
        ));
        all.push(("no delay".into(), "no delay, rate or loss on any of the three links".into()));
        all.extend(wan::conditions(bed, self.seed));
        all
    }

    fn measure(&self, bed: &mut Bed, _: &str, row: &str, limit: Duration) -> anyhow::Result<Vec<Reading>> {
        let Some(row) = ROWS.iter().find(|one| one.id == row) else { return Ok(Vec::new()) };
        bed.check()?;
        // The client's processor is the first bit of the mask.
        let setting = if row.fast_open { "3" } else { "2" };
        bed.testbed
            .run_in("src", || fs::write("/proc/sys/net/ipv4/tcp_fastopen", setting))?
            .context("cannot switch fast open")?;
        let to = bed.entrance(row.way, Service::Echo)?.to_string();
        // One more than is counted: the first connection may need extra round trips, above all for the Fast Open
        // cookie.
        let mut command = bed.peer("src", &["ping", &to, &(self.each + 1).to_string()])?;
        bed.route(&mut command, row.way, None)?;
        let line = process::run("the echo's client", command, limit)?;
        bed.check()?;
        readings(&line)
    }

    fn report(&self, results: &Results) -> Report {
        let mut tables: Vec<_> = [CONNECT, NEXT, READY].map(|metric| self.table(results, metric)).into();
        tables.push(self.beside_the_paper(results));
        Report {
            title: "Latency".into(),
            method: "A connection from `src` to an echo at `dst`, and one byte there and back, from a program with blocking \
                     calls. The columns are round trips of the WAN, to which the LANs add 8 ms each; with no delay nothing is \
                     emulated but the hops. Medians with quartiles, in ms. HAProxy answers connect before it has dialled, so \
                     its connect alone does not compare: see connect and first echo."
                .into(),
            tables,
            charts: vec![("connect".into(), self.chart(results, CONNECT)), ("ready".into(), self.chart(results, READY))],
            verdicts: self.verdicts(results),
        }
    }
}

impl Latency {
    fn tried<'a>(&'a self, results: &'a Results) -> impl Iterator<Item = &'static Row> {
        ROWS.iter().filter(|row| self.rtts.iter().any(|rtt| results.tried(&rtt.to_string(), row.id)))
    }

    fn table(&self, results: &Results, metric: Metric) -> Table {
        let columns = std::iter::once(String::new()).chain(self.rtts.iter().map(|rtt| title(*rtt)));
        let mut table = Table::new(format!("{}, ms", capitalized(metric.name)), columns);
        for row in self.tried(results) {
            let cell = |rtt: &Span| results.cell(&rtt.to_string(), row.id, metric, Summary::with_quartiles);
            table.row(std::iter::once(row.title.to_owned()).chain(self.rtts.iter().map(cell)));
        }
        table
    }

    /// Means and deviations, as the paper prints them.
    fn beside_the_paper(&self, results: &Results) -> Table {
        let mut table = Table::new(
            "Beside Table 2 of the paper: mean ± standard deviation, ms (its round trips: 64 and 112; here 66 and 116)",
            ["", "latency", "connect", "echo"],
        );
        for rtt in &self.rtts {
            let milliseconds = rtt.0.as_millis() as u64;
            for (_, what, connect, echo) in TABLE_2.iter().filter(|(ms, ..)| *ms == milliseconds) {
                table.row([format!("paper: {what}"), title(*rtt), format!("{connect:.2}"), format!("{echo:.2}")]);
            }
            for row in self.tried(results) {
                let cell = |metric| {
                    let summary = results.summary(&rtt.to_string(), row.id, metric);
                    summary.map_or_else(|| "–".into(), |s| format!("{:.2} ± {:.2}", s.mean, s.deviation))
                };
                table.row([row.title.to_owned(), title(*rtt), cell(CONNECT), cell(NEXT)]);
            }
        }
        table
    }

    fn chart(&self, results: &Results, metric: Metric) -> Chart {
        let series = ROWS.iter().map(|row| Series {
            name: row.title.to_owned(),
            colour: row.colour,
            points: self
                .rtts
                .iter()
                .enumerate()
                .filter_map(|(place, rtt)| {
                    let summary = results.summary(&rtt.to_string(), row.id, metric)?;
                    let spread = [summary.first_quartile, summary.third_quartile];
                    Some(Point { x: place as f64, y: summary.median, low: spread[0], high: spread[1] })
                })
                .collect(),
        });
        Chart {
            title: capitalized(metric.name),
            subtitle: "medians with quartiles".into(),
            kind: Kind::Bars,
            x: Axis::new("round trip of the WAN", Scale::Categories(self.rtts.iter().map(|rtt| title(*rtt)).collect())),
            y: Axis::new("time, ms", Scale::Linear),
            series: series.filter(|series| !series.points.is_empty()).collect(),
            marks: Vec::new(),
        }
    }

    fn verdicts(&self, results: &Results) -> Vec<Verdict> {
        let mut verdicts = Vec::new();
        for rtt in &self.rtts {
            let median = |row, metric| results.summary(&rtt.to_string(), row, metric).map(|summary| summary.median);
            let mut ratio = |what: &str, ours, theirs, metric, bound| {
                if let (Some(ours), Some(theirs)) = (median(ours, metric), median(theirs, metric)) {
                    let target = format!("{what}, {}", title(*rtt));
                    verdicts.push(Verdict { target, measured: ours / theirs, bound: Bound::AtMost(bound) });
                }
            };
            match rtt.0.as_millis() {
                0 => {
                    for (row, how) in [("phoebus", "without fast open"), ("phoebus-tfo", "with fast open")] {
                        ratio(&format!("connect and first echo {how} to HAProxy's"), row, "haproxy", READY, 1.0);
                    }
                }
                ms => {
                    let plain = if ms >= 100 { 1.10 } else { 1.15 };
                    ratio("connect without fast open to direct", "phoebus", "direct", CONNECT, plain);
                    ratio("connect with fast open to direct", "phoebus-tfo", "direct", CONNECT, 1.10);
                    ratio("echo to direct", "phoebus", "direct", NEXT, 1.02);
                }
            }
        }
        verdicts
    }
}

/// Parses the output of the echo's client, without the first connection, which may need extra round trips.
pub(super) fn readings(line: &str) -> anyhow::Result<Vec<Reading>> {
    let times: Vec<Echo> = serde_json::from_str(line).context("the echo's client printed no times")?;
    let readings = times.iter().skip(1).flat_map(|echo| {
        let Echo { connect, first, next } = *echo;
        [(CONNECT, connect), (FIRST, first), (NEXT, next), (READY, connect + first)]
    });
    Ok(readings.map(|(metric, seconds)| (metric, seconds * 1e3)).collect())
}

fn capitalized(text: &str) -> String {
    let mut characters = text.chars();
    characters.next().map_or_else(String::new, |first| first.to_uppercase().chain(characters).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_latency_has_its_own_targets() {
        let latency = Latency { rtts: [0, 50, 100].map(|ms| Span(Duration::from_millis(ms))).into(), each: 1, seed: 1 };
        let mut results = Results::of("latency");
        for (point, row, connect) in [
            ("0s", "haproxy", 0.5),
            ("0s", "phoebus", 0.6),
            ("50ms", "direct", 66.0),
            ("50ms", "phoebus", 74.0),
            ("100ms", "direct", 116.0),
            ("100ms", "phoebus", 129.0),
        ] {
            results.add(point, row, 1, &[(CONNECT, connect), (READY, connect), (NEXT, 66.0)]);
        }
        let met: Vec<_> = latency.verdicts(&results).iter().map(|v| (v.target.clone(), v.met())).collect();
        let expected = [
            ("connect and first echo without fast open to HAProxy's, no delay", false),
            ("connect without fast open to direct, 50ms", true),
            ("echo to direct, 50ms", true),
            ("connect without fast open to direct, 100ms", false),
            ("echo to direct, 100ms", true),
        ];
        assert_eq!(met, expected.map(|(target, met)| (target.to_owned(), met)));
    }

    #[test]
    fn report_shows_the_papers_values_beside_the_measured_ones() {
        let latency = Latency { rtts: vec![Span(Duration::from_millis(50))], each: 1, seed: 1 };
        let mut results = Results::of("latency");
        results.add("50ms", "phoebus", 1, &[(CONNECT, 74.0), (NEXT, 66.0)]);
        results.add("50ms", "phoebus", 2, &[(CONNECT, 76.0), (NEXT, 66.0)]);
        let table = latency.beside_the_paper(&results);
        assert_eq!(table.rows.len(), 4);
        assert_eq!(table.rows[1], ["paper: Phoebus-TCP", "50ms", "74.41", "64.07"]);
        assert_eq!(table.rows[3], ["Phoebus in the clear, no fast open", "50ms", "75.00 ± 1.41", "66.00 ± 0.00"]);
    }
}
