//! `phoebus bench throughput`: one iperf3 stream from `src` to `dst` over the WAN (Figures 4 to 7 of the SC09 paper, S31; P20).
//!
//! Every point is a round trip of the WAN and a loss on both LANs. The reverse direction is compared with its upper
//! bound: a download from a server with cubic cannot be faster than that server's own connection over its LAN alone.

use super::bed::{Bed, BedRoute, Service};
use super::compared::Compared;
use super::conditions::versions;
use super::engine::{Experiment, Label};
use super::iperf::{self, Test};
use super::plot::{Axis, Chart, Colour, Kind, Point, Scale, Series};
use super::report::{Bound, Report, Verdict};
use super::results::{Metric, Reading, Results};
use super::stats::Summary;
use super::table::Table;
use super::wan::{self, percent};
use super::{Common, haproxy};
use phoebus_proto::units::{Probability, Span};
use phoebus_wan::model::Rate;
use std::time::Duration;

/// Options of the experiment.
#[derive(Debug, clap::Args)]
pub(crate) struct ThroughputArgs {
    #[command(flatten)]
    pub(super) common: Common,
    /// Round trips of the WAN [default: 25ms,50ms,100ms,150ms].
    #[arg(long, value_delimiter = ',', value_name = "TIME")]
    rtt: Vec<Span>,
    /// Losses on both LANs, each way [default: 0.001%,0.01%,0.1%].
    #[arg(long, value_delimiter = ',', value_name = "PROBABILITY")]
    loss: Vec<Probability>,
    /// Length of each test, in seconds [default: 10].
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: Option<u64>,
    /// Congestion control of pg1 and pg2, for all that is compared.
    #[arg(long, default_value = "bbr", value_name = "NAME")]
    gateway_cc: String,
    #[command(flatten)]
    pub(super) compared: Compared,
    /// Capacities of all links.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "RATE",
        requires = "transport",
        default_value = "1gbit",
        help_heading = "Transports"
    )]
    pub(super) rate: Vec<Rate>,
}

/// The experiment.
pub(super) struct Throughput {
    rtts: Vec<Span>,
    losses: Vec<Probability>,
    seconds: u64,
    gateway_cc: String,
    seed: u64,
}

/// Both testbeds of a point.
pub(super) struct BothTestbeds {
    tuned: Bed,
    stock: Bed,
}

/// A row of the comparison.
struct Row {
    id: &'static str,
    title: &'static str,
    way: BedRoute,
    /// Congestion control of the sender at the end host; the system's if absent.
    cc: Option<&'static str>,
    streams: u32,
    reverse: bool,
    /// The client's host.
    from: &'static str,
    stock: bool,
    colour: Colour,
}

/// A row of the forward direction with one stream.
const fn row(id: &'static str, title: &'static str, way: BedRoute, cc: Option<&'static str>, colour: Colour) -> Row {
    Row { id, title, way, cc, streams: 1, reverse: false, from: "src", stock: false, colour }
}

/// A row of the reverse direction, from a server with cubic as its system's default, as most have.
const fn reverse(id: &'static str, title: &'static str, way: BedRoute, colour: Colour) -> Row {
    Row { reverse: true, ..row(id, title, way, Some("cubic"), colour) }
}

const ROWS: [Row; 13] = [
    row("direct-cubic", "direct, cubic", BedRoute::Direct, Some("cubic"), Colour::LightGrey),
    row("direct-bbr", "direct, bbr", BedRoute::Direct, Some("bbr"), Colour::Grey),
    Row { streams: 8, ..row("direct-x8", "direct, 8 streams, cubic", BedRoute::Direct, Some("cubic"), Colour::Black) },
    Row { stock: true, ..row("direct-stock", "direct, stock settings", BedRoute::Direct, None, Colour::Purple) },
    row("haproxy-bbr", "HAProxy, first hop bbr", BedRoute::Haproxy, Some("bbr"), Colour::Blue),
    row("haproxy-cubic", "HAProxy, first hop cubic", BedRoute::Haproxy, Some("cubic"), Colour::Sky),
    row("socat-bbr", "socat, first hop bbr", BedRoute::Socat, Some("bbr"), Colour::Green),
    row("phoebus-bbr", "Phoebus in the clear, shim's bbr", BedRoute::Phoebus, Some("bbr"), Colour::Vermilion),
    row("phoebus-cubic", "Phoebus in the clear, first hop cubic", BedRoute::Phoebus, Some("cubic"), Colour::Orange),
    Row { from: "pg2", ..reverse("reverse-ceiling", "the LAN of dst alone, to pg2", BedRoute::Direct, Colour::Black) },
    reverse("reverse-direct", "direct", BedRoute::Direct, Colour::LightGrey),
    reverse("reverse-haproxy", "HAProxy", BedRoute::Haproxy, Colour::Sky),
    reverse("reverse-phoebus", "Phoebus in the clear", BedRoute::Phoebus, Colour::Orange),
];

const GOODPUT: Metric = Metric { name: "goodput", unit: "Mbit/s" };
const RETRANSMITS: Metric = Metric { name: "retransmits", unit: "segments" };
const CLIENT_CPU: Metric = Metric { name: "client cpu", unit: "%" };
/// Set-up and end of a test, in addition to its length.
const AROUND: Duration = Duration::from_millis(1500);

impl ThroughputArgs {
    /// The round trips to measure.
    pub(super) fn rtts(&self) -> Vec<Span> {
        let default: &[u64] = if self.common.quick { &[50, 100] } else { &[25, 50, 100, 150] };
        if self.rtt.is_empty() {
            return default.iter().map(|ms| Span(Duration::from_millis(*ms))).collect();
        }
        self.rtt.clone()
    }

    /// The losses to measure.
    pub(super) fn losses(&self) -> Vec<Probability> {
        let default: &[f64] = if self.common.quick { &[1e-4] } else { &[1e-5, 1e-4, 1e-3] };
        if self.loss.is_empty() {
            return default.iter().filter_map(|p| Probability::new(*p)).collect();
        }
        self.loss.clone()
    }

    /// How long each test takes.
    pub(super) fn seconds(&self) -> u64 {
        self.seconds.unwrap_or(if self.common.quick { 5 } else { 10 })
    }
}

impl Throughput {
    /// The experiment with these options.
    pub(super) fn new(args: &ThroughputArgs) -> Self {
        Self {
            rtts: args.rtts(),
            losses: args.losses(),
            seconds: args.seconds(),
            gateway_cc: args.gateway_cc.clone(),
            seed: args.common.seed,
        }
    }

    fn point(rtt: Span, loss: Probability) -> Label {
        let loss = percent(loss);
        Label::new(format!("{rtt} {loss}"), format!("{rtt}, loss {loss}"))
    }

    fn all_points(&self) -> impl Iterator<Item = (Span, Probability)> {
        self.losses.iter().flat_map(|loss| self.rtts.iter().map(|rtt| (*rtt, *loss)))
    }
}

impl Experiment for Throughput {
    type Bed = BothTestbeds;

    fn name(&self) -> &'static str {
        "throughput"
    }

    fn points(&self) -> Vec<Label> {
        self.all_points().map(|(rtt, loss)| Self::point(rtt, loss)).collect()
    }

    fn rows(&self) -> Vec<Label> {
        ROWS.iter().map(|row| Label::new(row.id, row.title)).collect()
    }

    fn expected(&self, _: &str, _: &str) -> Duration {
        Duration::from_secs(self.seconds) + AROUND
    }

    fn set_up(&self, point: &str) -> anyhow::Result<BothTestbeds> {
        let mut all = self.all_points();
        let (rtt, loss) = all.find(|(rtt, loss)| Self::point(*rtt, *loss).id == point).unwrap_or_default();
        let settings = wan::path(rtt, loss, self.seed, &self.gateway_cc);
        let tuned = Bed::up(&settings, &[Service::Iperf])?;
        Ok(BothTestbeds { tuned, stock: Bed::bare(&wan::stock(settings))? })
    }

    fn conditions(&self, beds: &BothTestbeds) -> Vec<(String, String)> {
        let mut all = versions(&[(iperf::PROGRAM, "--version"), (haproxy::PROGRAM, "-v"), ("socat", "-V")]);
        all.push(("test".into(), format!("iperf3, {} s, slow start included, memory to memory", self.seconds)));
        all.extend(wan::conditions(&beds.tuned, self.seed));
        all.extend(wan::stock_conditions(&beds.stock));
        all
    }

    fn measure(&self, beds: &mut BothTestbeds, _: &str, row: &str, limit: Duration) -> anyhow::Result<Vec<Reading>> {
        let Some(row) = ROWS.iter().find(|one| one.id == row) else { return Ok(Vec::new()) };
        let bed = if row.stock { &mut beds.stock } else { &mut beds.tuned };
        bed.check()?;
        let server = iperf::serve(bed.command("dst", iperf::PROGRAM)?, Service::Iperf.port())?;
        let mut client = bed.command(row.from, iperf::PROGRAM)?;
        bed.route(&mut client, row.way, row.cc)?;
        // The shim requests its own control on `src`; a sending server gets it from its client.
        let congestion_control = row.cc.filter(|_| row.way != BedRoute::Phoebus || row.reverse);
        let test = Test { seconds: self.seconds, streams: row.streams, reverse: row.reverse, congestion_control };
        let outcome = test.run(client, bed.entrance(row.way, Service::Iperf)?, limit);
        bed.check()?;
        let outcome = outcome?;
        drop(server);
        Ok(vec![(GOODPUT, outcome.goodput), (RETRANSMITS, outcome.retransmits), (CLIENT_CPU, outcome.client_cpu)])
    }

    fn report(&self, results: &Results) -> Report {
        let mut report = Report {
            title: "Throughput over a WAN".into(),
            method: format!(
                "One iperf3 stream of {} s from `src` to `dst`, memory to memory; the columns are round trips of the WAN, \
                 to which the LANs add 8 ms each. Gateways run on from test to test, and so do their connections; iperf3 \
                 asks for two sessions, and which of the two gets the connection that carried the last test's data is left \
                 to the pool. Medians, with the smallest and the largest of the runs.",
                self.seconds
            ),
            ..Report::default()
        };
        for loss in &self.losses {
            for reverse in [false, true] {
                let tried =
                    |row: &&Row| self.rtts.iter().any(|rtt| results.tried(&Self::point(*rtt, *loss).id, row.id));
                let rows = || ROWS.iter().filter(|row| row.reverse == reverse).filter(tried);
                if rows().next().is_none() {
                    continue;
                }
                report.tables.push(self.table(results, *loss, reverse, rows()));
                let name = format!("{}{}", percent(*loss).replace('%', ""), if reverse { "-reverse" } else { "" });
                report.charts.push((name, self.chart(results, *loss, reverse, rows())));
            }
        }
        report.verdicts = self.verdicts(results);
        report
    }
}

impl Throughput {
    fn table<'a>(
        &self,
        results: &Results,
        loss: Probability,
        reverse: bool,
        rows: impl Iterator<Item = &'a Row>,
    ) -> Table {
        let direction = if reverse { "from dst to src" } else { "from src to dst" };
        let columns = std::iter::once(String::new()).chain(self.rtts.iter().map(Span::to_string));
        let mut table = Table::new(format!("Goodput {direction}, LAN loss {}, Mbit/s", percent(loss)), columns);
        for row in rows {
            let cell = |rtt: &Span| results.cell(&Self::point(*rtt, loss).id, row.id, GOODPUT, Summary::with_extremes);
            table.row(std::iter::once(row.title.to_owned()).chain(self.rtts.iter().map(cell)));
        }
        table
    }

    fn chart<'a>(
        &self,
        results: &Results,
        loss: Probability,
        reverse: bool,
        rows: impl Iterator<Item = &'a Row>,
    ) -> Chart {
        let series = rows.map(|row| Series {
            name: row.title.to_owned(),
            colour: row.colour,
            points: self
                .rtts
                .iter()
                .enumerate()
                .filter_map(|(place, rtt)| {
                    let summary = results.summary(&Self::point(*rtt, loss).id, row.id, GOODPUT)?;
                    Some(Point::of(place as f64, &summary))
                })
                .collect(),
        });
        let direction = if reverse { "from dst to src" } else { "from src to dst" };
        Chart {
            title: format!("Goodput of one stream {direction}, LAN loss {}", percent(loss)),
            subtitle: "1 Gbit/s, LAN round trips of 8 ms; medians with smallest and largest".into(),
            kind: Kind::Bars,
            x: Axis::new("round trip of the WAN", Scale::Categories(self.rtts.iter().map(Span::to_string).collect())),
            y: Axis::new("goodput, Mbit/s", Scale::Linear),
            series: series.filter(|series| !series.points.is_empty()).collect(),
            marks: Vec::new(),
        }
    }

    fn verdicts(&self, results: &Results) -> Vec<Verdict> {
        let median = |point: &Label, row| results.summary(&point.id, row, GOODPUT).map(|summary| summary.median);
        let mut verdicts = Vec::new();
        let main = Self::point(Span(Duration::from_millis(100)), Probability::new(1e-4).unwrap_or_default());
        if let Some(measured) = median(&main, "phoebus-bbr") {
            let target = format!("Phoebus with bbr at {}, Mbit/s", main.title);
            verdicts.push(Verdict { target, measured, bound: Bound::AtLeast(800.0) });
        }
        for (ours, theirs, under) in
            [("phoebus-bbr", "haproxy-bbr", "bbr"), ("phoebus-cubic", "haproxy-cubic", "cubic")]
        {
            let ratio = |point: Label| Some((median(&point, ours)? / median(&point, theirs)?, point.title));
            let worst = self.points().into_iter().filter_map(ratio).min_by(|a, b| a.0.total_cmp(&b.0));
            if let Some((measured, title)) = worst {
                let target = format!("Phoebus to HAProxy, first hop {under}, at its worst ({title})");
                verdicts.push(Verdict { target, measured, bound: Bound::AtLeast(0.95) });
            }
        }
        verdicts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> Throughput {
        Throughput {
            rtts: vec![Span(Duration::from_millis(50)), Span(Duration::from_millis(100))],
            losses: vec![Probability::new(1e-4).unwrap()],
            seconds: 5,
            gateway_cc: "bbr".into(),
            seed: 1,
        }
    }

    fn measured(values: &[(&str, &str, f64)]) -> Results {
        let mut results = Results::of("throughput");
        for (point, row, value) in values {
            results.add(point, row, 1, &[(GOODPUT, *value)]);
        }
        results
    }

    #[test]
    fn targets_compare_medians_of_the_same_point() {
        let results = measured(&[
            ("100ms 0.01%", "phoebus-bbr", 790.0),
            ("100ms 0.01%", "haproxy-bbr", 800.0),
            ("50ms 0.01%", "phoebus-bbr", 880.0),
            ("50ms 0.01%", "haproxy-bbr", 1100.0),
        ]);
        let verdicts = small().verdicts(&results);
        assert_eq!(verdicts.iter().map(Verdict::met).collect::<Vec<_>>(), [false, false]);
        assert_eq!((verdicts[0].measured, verdicts[1].measured), (790.0, 0.8));
        assert!(verdicts[1].target.contains("50ms"), "{verdicts:?}");
    }

    #[test]
    fn partial_results_make_a_partial_report() {
        let report = small().report(&measured(&[("50ms 0.01%", "direct-cubic", 63.1)]));
        assert_eq!(report.tables[0].rows[0], ["direct, cubic", "63.1", "–"]);
        assert_eq!(report.charts[0].1.series.len(), 1);
        assert!(report.verdicts.is_empty());
    }
}
