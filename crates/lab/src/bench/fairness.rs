//! `phoebus bench fairness`: UDT, QUIC and objects against TCP on one bottleneck: one to three flows of each, and one against nine
//! of CUBIC, without gateways, started at the same time (U17; Tables 2 and 3 of the paper on UDT in XIO, where UDT yields to TCP).

use super::Common;
use super::bed::Bed;
use super::engine::{Experiment, Label};
use super::flows::{self, Sink};
use super::narrow::{self, LinkCounters, OVERFLOW};
use super::object_flow;
use super::peer::Flow;
use super::plot::{Axis, Chart, Colour, Kind, Point, Scale, Series};
use super::process;
use super::report::Report;
use super::results::{Metric, Reading, Results};
use super::stats::{Summary, jain};
use super::table::Table;
use super::wan;
use anyhow::{Context, anyhow};
use phoebus_proto::units::{BitRate, Probability, Span};
use std::process::Command;
use std::thread;
use std::time::Duration;

/// Options of the experiment.
#[derive(Debug, clap::Args)]
pub(crate) struct FairnessArgs {
    #[command(flatten)]
    pub(super) common: Common,
    /// How many flows of each [default: 1,2,3].
    #[arg(long, value_delimiter = ',', value_name = "COUNT", default_value = "1,2,3")]
    flows: Vec<u32>,
    /// Length of each measurement [default: 30, with --quick 10].
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(5..=3600))]
    seconds: Option<u64>,
    /// Capacity of the bottleneck.
    #[arg(long, default_value = "500mbit", value_name = "RATE")]
    capacity: BitRate,
    /// Its round trip.
    #[arg(long, default_value = "40ms", value_name = "TIME")]
    rtt: Span,
}

/// The experiment.
pub(super) struct Fairness {
    counts: Vec<u32>,
    seconds: u64,
    capacity: BitRate,
    rtt: Span,
    seed: u64,
}

/// A row of the comparison: a carrier's arguments for [`super::peer`], none for objects, and its colour.
struct Row {
    id: &'static str,
    title: &'static str,
    words: &'static [&'static str],
    colour: Colour,
}

const ROWS: [Row; 5] = [
    Row { id: "objects", title: "objects", words: &[], colour: Colour::Wine },
    Row { id: "udt-native", title: "UDT, native", words: &["udt", "--cc", "native"], colour: Colour::Sky },
    Row { id: "udt", title: "UDT, model", words: &["udt"], colour: Colour::Vermilion },
    Row { id: "quic", title: "QUIC, model", words: &["quic"], colour: Colour::Purple },
    Row { id: "tcp-bbr", title: "TCP, bbr", words: &["tcp", "--cc", "bbr"], colour: Colour::Grey },
];
/// Congestion controls of the competing TCP flows.
const CONTROLS: [&str; 2] = ["cubic", "bbr"];
/// Flows of CUBIC beside which one of the row runs, as in the paper.
const MANY: u32 = 9;

/// Mbit/s of one flow of the row, on average.
const OWN: Metric = Metric { name: "each", unit: "Mbit/s" };
/// Mbit/s of one flow of TCP, on average.
const TCP: Metric = Metric { name: "each TCP", unit: "Mbit/s" };
/// Jain's index over all flows.
const JAIN: Metric = Metric { name: "Jain index", unit: "1" };
/// Mbit/s of all flows.
const ALL: Metric = Metric { name: "all", unit: "Mbit/s" };

/// Set-up and end of a measurement, in addition to its length.
const AROUND: Duration = Duration::from_secs(4);
/// The initial part of a measurement that does not count, while all flows find their rates.
const RAMP: f64 = 0.25;

impl Fairness {
    /// The experiment with these options.
    pub(super) fn new(args: &FairnessArgs) -> Self {
        Self {
            counts: args.flows.clone(),
            seconds: args.seconds.unwrap_or(if args.common.quick { 10 } else { 30 }),
            capacity: args.capacity,
            rtt: args.rtt,
            seed: args.common.seed,
        }
    }

    /// All congestion controls of TCP, each with numbers of flows of the row and of TCP.
    fn all_points(&self) -> impl Iterator<Item = (&'static str, [u32; 2])> {
        CONTROLS
            .into_iter()
            .flat_map(|control| self.flows_under(control).into_iter().map(move |flows| (control, flows)))
    }

    /// The numbers of flows of the row and of TCP under this congestion control.
    fn flows_under(&self, control: &str) -> Vec<[u32; 2]> {
        let many = (control == CONTROLS[0]).then_some([1, MANY]);
        self.counts.iter().map(|count| [*count; 2]).chain(many).collect()
    }

    /// The mean rate of a flow over the counted part, in Mbit/s, from its bytes of each second.
    fn mean(&self, intervals: &[u64]) -> f64 {
        let seconds = usize::try_from(self.seconds).unwrap_or(usize::MAX).min(intervals.len());
        let from = (seconds as f64 * RAMP) as usize;
        let bytes: u64 = intervals.iter().take(seconds).skip(from).sum();
        bytes as f64 * 8e-6 / (seconds - from).max(1) as f64
    }
}

fn point_id(control: &str, [own, others]: [u32; 2]) -> String {
    if own == others { format!("{control} {own}") } else { format!("{control} {own} to {others}") }
}

impl Experiment for Fairness {
    type Bed = Bed;

    fn name(&self) -> &'static str {
        "fairness"
    }

    fn points(&self) -> Vec<Label> {
        let label = |(control, [own, others]): (&str, [u32; 2])| {
            Label::new(point_id(control, [own, others]), format!("{own} beside {others} of TCP under {control}"))
        };
        self.all_points().map(label).collect()
    }

    fn rows(&self) -> Vec<Label> {
        ROWS.iter().map(|row| Label::new(row.id, row.title)).collect()
    }

    fn expected(&self, _: &str, _: &str) -> Duration {
        Duration::from_secs(self.seconds) + AROUND
    }

    fn set_up(&self, _: &str) -> anyhow::Result<Bed> {
        let bed = Bed::bare(&wan::path(self.rtt, Probability::default(), self.seed, "bbr"))?;
        narrow::narrow(&bed, self.capacity, self.rtt)?;
        Ok(bed)
    }

    fn conditions(&self, bed: &Bed) -> Vec<(String, String)> {
        let (capacity, rtt, seconds) = (self.capacity, self.rtt, self.seconds);
        let mut all = vec![
            ("bottleneck".into(), format!("{capacity}, round trip {rtt}, a queue of one round trip, no loss")),
            ("flows".into(), format!("{seconds} s from pg1 to pg2, memory to memory, the last three quarters count")),
        ];
        all.extend(wan::conditions(bed, self.seed));
        all
    }

    fn measure(&self, bed: &mut Bed, point: &str, row: &str, limit: Duration) -> anyhow::Result<Vec<Reading>> {
        let row = ROWS.iter().find(|one| one.id == row).ok_or_else(|| anyhow!("there is no row {row}"))?;
        let (control, [own, others]) =
            self.all_points().find(|(control, flows)| point_id(control, *flows) == point).context("no such point")?;
        let at = bed.address("pg2")?;
        let time = format!("{}s", self.seconds);
        let sink = |words: &[&str]| Sink::start(&bed.testbed, "pg2", at, &words[..1]);
        let client = |words: &[&str], sink: &Sink| {
            Ok(Running::Peer(flows::client(&bed.testbed, "pg1", words, sink.at, &["--time", &time])?))
        };
        let of = |count: u32, words: &[&str], sink: &Sink| {
            (0..count).map(|_| client(words, sink)).collect::<anyhow::Result<Vec<_>>>()
        };
        let tcp = ["tcp", "--cc", control];
        let tcp_sink = sink(&tcp)?;
        let (_servers, first) = if row.words.is_empty() {
            let server = object_flow::serve(bed, "pg2")?;
            let clients = (0..own).map(|_| Ok(Running::Objects(object_flow::client(bed, "pg1", "pg2")?)));
            ((Some(server), None), clients.collect::<anyhow::Result<Vec<_>>>()?)
        } else {
            let sink = sink(row.words)?;
            let clients = of(own, row.words, &sink)?;
            ((None, Some(sink)), clients)
        };
        let second = of(others, &tcp, &tcp_sink)?;
        let before = LinkCounters::now(bed)?;
        let run = |flow| -> anyhow::Result<f64> {
            match flow {
                Running::Objects(command) => {
                    Ok(self.mean(&object_flow::run(command, Duration::from_secs(self.seconds))?))
                }
                Running::Peer(command) => {
                    let line = process::run("a flow", command, limit)?;
                    let flow: Flow = serde_json::from_str(&line).context("the flow printed no result")?;
                    Ok(self.mean(&flow.received.intervals))
                }
            }
        };
        let means = thread::scope(|scope| {
            let threads: Vec<_> = first.into_iter().chain(second).map(|flow| scope.spawn(|| run(flow))).collect();
            let failed = |_| anyhow!("the thread of a flow has failed");
            threads.into_iter().map(|thread| thread.join().map_err(failed)?).collect::<anyhow::Result<Vec<_>>>()
        })?;
        let overflow = LinkCounters::now(bed)?.overflow_since(&before);
        let (first, second) = means.split_at(own as usize);
        let mut readings = summed(first, second);
        readings.push((OVERFLOW, overflow));
        Ok(readings)
    }

    fn report(&self, results: &Results) -> Report {
        let method = format!(
            "Flows between the ends of a link of {} and {}, begun at once: the row's and those of TCP. The cells are Mbit/s of \
             one flow of the row / of one of TCP (medians of the means), and Jain's index over all flows.",
            self.capacity, self.rtt
        );
        let mut report = Report { title: "Fairness".into(), method, ..Report::default() };
        for control in CONTROLS {
            let tried = |row: &&Row| {
                self.flows_under(control).iter().any(|flows| results.tried(&point_id(control, *flows), row.id))
            };
            let rows: Vec<_> = ROWS.iter().filter(tried).collect();
            if !rows.is_empty() {
                report.tables.push(self.table(results, control, &rows));
                report.charts.push((control.to_owned(), self.chart(results, control, &rows)));
            }
        }
        report
    }
}

/// What a command runs.
enum Running {
    Objects(Command),
    Peer(Command),
}

/// From the mean rates of flows of the row, and of those of TCP.
fn summed(first: &[f64], second: &[f64]) -> Vec<Reading> {
    let mean = |of: &[f64]| of.iter().sum::<f64>() / of.len().max(1) as f64;
    let all = || first.iter().chain(second).copied();
    vec![(OWN, mean(first)), (TCP, mean(second)), (JAIN, jain(all())), (ALL, all().sum())]
}

impl Fairness {
    fn table(&self, results: &Results, control: &str, rows: &[&Row]) -> Table {
        let all_flows = self.flows_under(control);
        let heads =
            all_flows.iter().flat_map(|[own, others]| [format!("{own} + {others}"), "Jain".into(), "all".into()]);
        let mut table = Table::new(
            format!("Against TCP under {control}: Mbit/s each / each TCP, Jain's index, Mbit/s in all"),
            std::iter::once(String::new()).chain(heads),
        );
        for row in rows {
            let cells = all_flows.iter().flat_map(|flows| {
                let point = point_id(control, *flows);
                let median = |metric| {
                    results
                        .summary(&point, row.id, metric)
                        .map_or_else(|| "–".into(), |s| super::stats::rounded(s.median))
                };
                let each = format!("{} / {}", median(OWN), median(TCP));
                [each, results.cell(&point, row.id, JAIN, Summary::with_extremes), median(ALL)]
            });
            table.row(std::iter::once(row.title.to_owned()).chain(cells));
        }
        table
    }

    /// For every number of flows: each row, and beside it the TCP that it competed with.
    fn chart(&self, results: &Results, control: &str, rows: &[&Row]) -> Chart {
        let all_flows = self.flows_under(control);
        let series = |row: &&Row, metric: Metric, name: String, colour| {
            let point = |(place, flows): (usize, &[u32; 2])| {
                Some(Point::of(place as f64, &results.summary(&point_id(control, *flows), row.id, metric)?))
            };
            Series { name, colour, points: all_flows.iter().enumerate().filter_map(point).collect() }
        };
        let both = |row: &&Row| {
            [
                series(row, OWN, row.title.to_owned(), row.colour),
                series(row, TCP, format!("TCP beside {}", row.id), Colour::LightGrey),
            ]
        };
        let categories = all_flows.iter().map(|[own, others]| format!("{own} + {others} flows")).collect();
        Chart {
            title: format!("UDT, QUIC and objects beside TCP under {control}"),
            subtitle: format!("{}, {}; one flow of each kind, medians with extremes", self.capacity, self.rtt),
            kind: Kind::Bars,
            x: Axis::new("flows", Scale::Categories(categories)),
            y: Axis::new("Mbit/s each", Scale::Linear),
            series: rows.iter().flat_map(both).collect(),
            marks: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: FairnessArgs,
    }

    #[test]
    fn tables_and_drawings_show_both_sides() {
        let fairness = Fairness::new(&Cli::parse_from(["fairness", "--flows", "2"]).args);
        let mut results = Results::of("fairness");
        // Two flows of each.
        results.add("bbr 2", "quic", 1, &summed(&[100.0, 140.0], &[30.0, 10.0]));
        let report = fairness.report(&results);
        assert_eq!(report.tables.len(), 1);
        assert_eq!(report.tables[0].rows, [["QUIC, model", "120 / 20.0", "0.641", "280"]]);
        assert_eq!(report.charts[0].1.series.iter().map(|s| s.points[0].y).collect::<Vec<_>>(), [120.0, 20.0]);
    }

    #[test]
    fn mean_excludes_the_start_of_a_flow() {
        let fairness = Fairness::new(&Cli::parse_from(["fairness", "--seconds", "8"]).args);
        let intervals: Vec<u64> = [0, 0].into_iter().chain([2_500_000; 9]).collect();
        assert!((fairness.mean(&intervals) - 20.0).abs() < 1e-9);
    }
}
