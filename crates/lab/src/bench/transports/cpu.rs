//! `phoebus bench cpu`: the client's cost of a transfer, when the client itself uses UDT and when it uses TCP to a
//! gateway that uses UDT (Table 1 of the SC09 paper, S24; U18).
//!
//! Processor time is that of the client's process: the kernel's work in interrupts counts for no process, in any row.

use super::{Path, PathCache};
use crate::bench::compared::FirstHop;
use crate::bench::engine::{Experiment, Label};
use crate::bench::flows::{self, GOODPUT, PROCESSORS_BUSY, cpu};
use crate::bench::hop::Wan;
use crate::bench::plot::{Axis, Chart, Colour, Kind, Point, Scale, Series};
use crate::bench::report::{Bound, Report, Verdict};
use crate::bench::results::{Metric, Reading, Results};
use crate::bench::stats::Summary;
use crate::bench::table::Table;
use crate::bench::{Common, libudt, wan};
use crate::testbed::Security;
use anyhow::bail;
use phoebus_proto::units::{Probability, Span};
use std::time::Duration;

/// Options of the experiment.
#[derive(Debug, clap::Args)]
pub(crate) struct CpuArgs {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Round trip of the WAN.
    #[arg(long, default_value = "100ms", value_name = "TIME")]
    rtt: Span,
    /// Length of each test, in seconds [default: 10, with --quick 5].
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: Option<u64>,
    /// What protects the hop between the gateways.
    #[arg(long, value_name = "NAME", default_value = "encrypt")]
    security: Security,
}

/// The experiment.
pub(crate) struct Cpu {
    rtt: Span,
    seconds: u64,
    seed: u64,
    security: Security,
}

/// The circumstances of a measurement.
struct Circumstances {
    id: &'static str,
    title: &'static str,
    /// Loss on both LANs.
    loss: f64,
    /// The limit of the sender's rate.
    rate: Option<&'static str>,
}

const POINTS: [Circumstances; 3] = [
    Circumstances { id: "none", title: "no loss", loss: 0.0, rate: None },
    Circumstances { id: "0.001%", title: "loss 0.001%", loss: 1e-5, rate: None },
    Circumstances { id: "700mbit", title: "700 Mbit/s, no loss", loss: 0.0, rate: Some("700mbit") },
];
/// The limited rate as a number, for libudt.
const HELD: u64 = 700_000_000;

const ROWS: [(&str, &str, Colour); 4] = [
    ("direct-tcp", "direct, TCP under cubic", Colour::LightGrey),
    ("direct-libudt", "direct, libudt 4.11", Colour::Grey),
    ("direct-udt", "direct, UDT", Colour::Purple),
    ("wan-udt", "TCP to a gateway, UDT on the WAN", Colour::Vermilion),
];

/// The processor use of the paper's clients, in per cent of a processor of 2009: without loss, and with 0.001 %.
const PAPER: [(&str, &str, &str); 2] = [("paper: direct UDT", "62.1", "38.4"), ("paper: Phoebus-UDT", "15.0", "15.7")];

const SHARE: Metric = Metric { name: "client's share of a processor", unit: "%" };
const MEMORY: Metric = Metric { name: "client's memory", unit: "MB" };
const AROUND: Duration = Duration::from_millis(2500);

impl Cpu {
    /// The experiment with these options.
    pub(crate) fn new(args: &CpuArgs) -> Self {
        let seconds = args.seconds.unwrap_or(if args.common.quick { 5 } else { 10 });
        Self { rtt: args.rtt, seconds, seed: args.common.seed, security: args.security }
    }

    fn circumstances(point: &str) -> anyhow::Result<&'static Circumstances> {
        match POINTS.iter().find(|one| one.id == point) {
            Some(found) => Ok(found),
            None => bail!("there is no point {point}"),
        }
    }

    fn libudt(&self, sites: &mut PathCache, held: bool, limit: Duration) -> anyhow::Result<Vec<Reading>> {
        let bed = &sites.get(&Path::Direct, |_| Ok(()))?.bed;
        let program = libudt::program(bed.testbed.directory())?;
        let to = bed.address("dst")?.to_string();
        let (receiver, sender) = (bed.testbed.exec("dst", &program)?, bed.testbed.exec("src", &program)?);
        let rate = if held { HELD } else { 0 };
        let (sent, received) = libudt::flow(receiver, sender, &to, (self.seconds, rate), limit)?;
        let goodput = received.bytes as f64 * 8e-6 / received.seconds;
        Ok(readings(goodput, received.bytes, sent.seconds, sent.cpu, sent.memory))
    }
}

fn readings(goodput: f64, bytes: u64, seconds: f64, client: f64, memory: u64) -> Vec<Reading> {
    let each = (cpu("client"), client * 1e9 / bytes as f64);
    vec![(GOODPUT, goodput), each, (SHARE, 100.0 * client / seconds), (MEMORY, memory as f64 / 1e6)]
}

impl Experiment for Cpu {
    type Bed = PathCache;

    fn name(&self) -> &'static str {
        "cpu"
    }

    fn points(&self) -> Vec<Label> {
        POINTS.iter().map(|point| Label::new(point.id, point.title)).collect()
    }

    fn rows(&self) -> Vec<Label> {
        ROWS.iter().map(|(id, title, _)| Label::new(*id, *title)).collect()
    }

    fn expected(&self, _: &str, _: &str) -> Duration {
        Duration::from_secs(self.seconds) + AROUND
    }

    fn set_up(&self, point: &str) -> anyhow::Result<PathCache> {
        let loss = Probability::new(Self::circumstances(point)?.loss).unwrap_or_default();
        let mut sites = PathCache::new(wan::path(self.rtt, loss, self.seed, "bbr"));
        sites.get(&Path::Direct, |_| Ok(()))?;
        Ok(sites)
    }

    fn conditions(&self, sites: &PathCache) -> Vec<(String, String)> {
        let mut all = vec![("round trip of the WAN".to_owned(), self.rtt.to_string())];
        all.push(("test".into(), format!("one flow of {} s, memory to memory, timed by its receiver", self.seconds)));
        all.push(("gateways joined by udt".into(), format!("security = \"{}\"", self.security.name())));
        all.push(("ends".into(), "TCP under cubic".into()));
        all.extend(sites.any().map(|bed| wan::conditions(bed, self.seed)).unwrap_or_default());
        all
    }

    fn measure(&self, sites: &mut PathCache, point: &str, row: &str, limit: Duration) -> anyhow::Result<Vec<Reading>> {
        let rate = Self::circumstances(point)?.rate;
        let held = |words: &[&'static str]| [words, &rate.map_or(vec![], |rate| vec!["--rate", rate])].concat();
        let (path, carrier, words) = match row {
            "direct-libudt" => return self.libudt(sites, rate.is_some(), limit),
            "direct-tcp" => (Path::Direct, "tcp", held(&["tcp", "--cc", "cubic"])),
            "direct-udt" => (Path::Direct, "udt", held(&["udt"])),
            _ => {
                // The gateway's backpressure limits the client.
                let wan = "udt".parse::<Wan>().map_err(anyhow::Error::msg)?.secured(self.security);
                (Path::Joined(rate.map_or(wan.clone(), |rate| wan.with("rate", rate))), "tcp", vec!["tcp"])
            }
        };
        let through = matches!(path, Path::Joined(_));
        let site = sites.get(&path, |_| Ok(()))?;
        site.bed.check()?;
        let to = site.sink(carrier)?.at;
        let time = format!("{}s", self.seconds);
        let mut client = flows::client(&site.bed.testbed, "src", &words, to, &["--time", &time])?;
        if through {
            FirstHop::Cubic.route(&mut site.bed, &mut client)?;
        }
        let (flow, usage) = flows::run(client, &[], limit)?;
        site.bed.check()?;
        let (bytes, seconds) = (flow.received.bytes, flow.received.seconds);
        let mut all = readings(flow.goodput(), bytes, seconds, flow.client_cpu, flow.client_memory);
        all.push((PROCESSORS_BUSY, usage.busy));
        Ok(all)
    }

    fn report(&self, results: &Results) -> Report {
        Report {
            title: "What a transfer costs its client".into(),
            method: format!(
                "One flow of {} s from `src` to `dst`, round trip of the WAN {}; processor time and memory of the process at \
                 `src`. Medians, with the smallest and the largest of the runs.",
                self.seconds, self.rtt
            ),
            tables: vec![
                table(results, cpu("client"), &[]),
                table(results, SHARE, &PAPER),
                table(results, GOODPUT, &[]),
                table(results, MEMORY, &[]),
            ],
            charts: vec![("client".into(), chart(results))],
            verdicts: verdicts(results),
        }
    }
}

fn table(results: &Results, metric: Metric, paper: &[(&str, &str, &str)]) -> Table {
    let heads = std::iter::once("").chain(POINTS.iter().map(|point| point.title));
    let mut table = Table::new(format!("{}, {}", metric.name, metric.unit), heads);
    for (title, none, some) in paper {
        table.row([*title, none, some, "–"]);
    }
    for (row, title, _) in ROWS {
        let cells = POINTS.iter().map(|point| results.cell(point.id, row, metric, Summary::with_extremes));
        table.row(std::iter::once(title.to_owned()).chain(cells));
    }
    table
}

fn chart(results: &Results) -> Chart {
    let series = ROWS.iter().map(|(row, title, colour)| Series {
        name: (*title).to_owned(),
        colour: *colour,
        points: (0..)
            .zip(&POINTS)
            .filter_map(|(place, point)| {
                Some(Point::of(f64::from(place), &results.summary(point.id, row, cpu("client"))?))
            })
            .collect(),
    });
    Chart {
        title: "Processor time of the client".into(),
        subtitle: "medians with smallest and largest".into(),
        kind: Kind::Bars,
        x: Axis::new("", Scale::Categories(POINTS.iter().map(|point| point.title.to_owned()).collect())),
        y: Axis::new("client cpu, s/GB", Scale::Linear),
        series: series.filter(|series| !series.points.is_empty()).collect(),
        marks: Vec::new(),
    }
}

fn verdicts(results: &Results) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for point in POINTS.iter().filter(|point| point.rate.is_none()) {
        let median = |row| results.summary(point.id, row, cpu("client")).map(|summary| summary.median);
        for (direct, title) in [("direct-udt", "direct UDT's"), ("direct-libudt", "direct libudt's")] {
            if let (Some(ours), Some(theirs)) = (median("wan-udt"), median(direct)) {
                let target = format!("client's processor time per GB, UDT on the WAN, to {title}, {}", point.title);
                verdicts.push(Verdict { target, measured: ours / theirs, bound: Bound::AtMost(0.25) });
            }
        }
    }
    verdicts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_compares_the_client_behind_a_gateway_with_both_others() {
        let mut results = Results::of("cpu");
        for (row, seconds) in [("direct-udt", 1.0), ("direct-libudt", 4.0), ("wan-udt", 0.5)] {
            results.add("none", row, 1, &readings(800.0, 1_000_000_000, 10.0, seconds, 30_000_000));
        }
        let verdicts: Vec<_> = verdicts(&results).iter().map(|v| (v.measured, v.met())).collect();
        assert_eq!(verdicts, [(0.5, false), (0.125, true)]);
        assert_eq!(table(&results, SHARE, &PAPER).rows[3][..2], ["direct, libudt 4.11", "40.0"]);
    }
}
