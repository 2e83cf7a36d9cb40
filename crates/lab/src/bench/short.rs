//! `phoebus bench short`: transfers that end before a new connection finds its rate (Figure 2 of the report, P41;
//! R8).
//!
//! A gateway keeps connections to its peer, and one that has carried data knows the WAN's rate. "Cold" is the first
//! transfer through newly started gateways, "warm" one that follows another. First hop and last hop are always new.

use super::bed::{Bed, BedRoute, Service};
use super::compared::Compared;
use super::conditions::versions;
use super::engine::{Experiment, Label};
use super::peer::Transfer;
use super::plot::{Axis, Chart, Colour, Kind, Point, Scale, Series};
use super::process;
use super::report::{Bound, Report, Verdict};
use super::results::{Metric, Reading, Results};
use super::stats::Summary;
use super::table::Table;
use super::wan::{self, percent};
use super::{Common, haproxy};
use anyhow::Context;
use phoebus_proto::units::{ByteSize, Probability, Span};
use std::thread;
use std::time::Duration;

/// Options of the experiment.
#[derive(Debug, clap::Args)]
pub(crate) struct ShortArgs {
    #[command(flatten)]
    pub(super) common: Common,
    /// Sizes [default: 1MB,8MB,32MB,128MB, and 1GB with --transport].
    #[arg(long, value_delimiter = ',', value_name = "SIZE")]
    pub(super) size: Vec<ByteSize>,
    /// Round trip of the WAN.
    #[arg(long, default_value = "100ms", value_name = "TIME")]
    pub(super) rtt: Span,
    /// Loss on both LANs, each way.
    #[arg(long, default_value = "0.01%", value_name = "PROBABILITY")]
    pub(super) loss: Probability,
    /// Congestion control of pg1 and pg2, for all that is compared.
    #[arg(long, default_value = "bbr", value_name = "NAME")]
    gateway_cc: String,
    #[command(flatten)]
    pub(super) compared: Compared,
}

/// The experiment.
pub(super) struct Short {
    sizes: Vec<ByteSize>,
    rtt: Span,
    loss: Probability,
    gateway_cc: String,
    seed: u64,
}

/// A row of the comparison.
struct Row {
    id: &'static str,
    title: &'static str,
    way: BedRoute,
    cc: &'static str,
    before: Before,
    colour: Colour,
}

/// What happens before a measured transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Before {
    /// Nothing that matters.
    Nothing,
    /// The gateways are restarted.
    Restart,
    /// Another transfer, and a pause.
    Transfer,
}

const fn row(id: &'static str, title: &'static str, way: BedRoute, cc: &'static str, colour: Colour) -> Row {
    Row { id, title, way, cc, before: Before::Nothing, colour }
}

const ROWS: [Row; 5] = [
    row("direct-cubic", "direct, cubic", BedRoute::Direct, "cubic", Colour::LightGrey),
    row("direct-bbr", "direct, bbr", BedRoute::Direct, "bbr", Colour::Grey),
    row("haproxy-bbr", "HAProxy, bbr", BedRoute::Haproxy, "bbr", Colour::Blue),
    Row {
        before: Before::Restart,
        ..row("phoebus-cold", "Phoebus in the clear, cold", BedRoute::Phoebus, "bbr", Colour::Orange)
    },
    Row {
        before: Before::Transfer,
        ..row("phoebus-warm", "Phoebus in the clear, warm", BedRoute::Phoebus, "bbr", Colour::Vermilion)
    },
];

pub(super) const TOTAL: Metric = Metric { name: "total", unit: "s" };
pub(super) const CONNECT: Metric = Metric { name: "connect", unit: "s" };
/// Bytes of the transfer that warms the path: enough for a WAN connection of 1 Gbit/s and 150 ms to reach its rate.
pub(super) const WARMING: u64 = 64_000_000;
/// Pause between warming and measuring: longer than any retransmission time-out, as between two commands of a user.
pub(super) const PAUSE: Duration = Duration::from_secs(2);
/// Time for a new gateway to connect to its peer, even if its first attempt failed.
const AFTER_RESTART: Duration = Duration::from_secs(3);

impl Short {
    /// The experiment with these options.
    pub(super) fn new(args: &ShortArgs) -> Self {
        let megabytes: &[u64] = if args.common.quick { &[1, 8, 32] } else { &[1, 8, 32, 128] };
        Self {
            sizes: match args.size.is_empty() {
                true => megabytes.iter().map(|n| ByteSize(n * 1_000_000)).collect(),
                false => args.size.clone(),
            },
            rtt: args.rtt,
            loss: args.loss,
            gateway_cc: args.gateway_cc.clone(),
            seed: args.common.seed,
        }
    }

    fn send(bed: &mut Bed, row: &Row, bytes: u64, limit: Duration) -> anyhow::Result<Transfer> {
        let to = bed.entrance(row.way, Service::Sink)?.to_string();
        let mut arguments = vec!["send", &to];
        let bytes = bytes.to_string();
        arguments.push(&bytes);
        // The shim requests its own.
        if row.way != BedRoute::Phoebus {
            arguments.extend(["--cc", row.cc]);
        }
        let mut command = bed.peer("src", &arguments)?;
        bed.route(&mut command, row.way, Some(row.cc))?;
        let line = process::run("the transfer", command, limit)?;
        serde_json::from_str(&line).context("the transfer printed no times")
    }
}

impl Experiment for Short {
    type Bed = Bed;

    fn name(&self) -> &'static str {
        "short"
    }

    fn points(&self) -> Vec<Label> {
        self.sizes.iter().map(|size| Label::new(size.to_string(), size.to_string())).collect()
    }

    fn rows(&self) -> Vec<Label> {
        ROWS.iter().map(|row| Label::new(row.id, row.title)).collect()
    }

    fn expected(&self, point: &str, row: &str) -> Duration {
        let bytes = point.parse::<ByteSize>().map_or(0, |size| size.0);
        // Cubic reaches 25 to 100 Mbit/s at this loss, all others most of the link's rate.
        let rate = if row == "direct-cubic" { 3e6 } else { 80e6 };
        let transfer = Duration::from_secs_f64(1.0 + bytes as f64 / rate);
        match ROWS.iter().find(|one| one.id == row).map(|row| row.before) {
            Some(Before::Transfer) => transfer + PAUSE + Duration::from_secs(2),
            Some(Before::Restart) => transfer + AFTER_RESTART,
            _ => transfer,
        }
    }

    fn set_up(&self, _: &str) -> anyhow::Result<Bed> {
        let mut bed = Bed::up(&wan::path(self.rtt, self.loss, self.seed, &self.gateway_cc), &[Service::Sink])?;
        bed.serve_peer("sink", Service::Sink)?;
        Ok(bed)
    }

    fn conditions(&self, bed: &Bed) -> Vec<(String, String)> {
        let mut all = versions(&[(haproxy::PROGRAM, "-v")]);
        all.push((
            "path".into(),
            format!("round trip of the WAN {}, loss on the LANs {}", self.rtt, percent(self.loss)),
        ));
        let warming = ByteSize(WARMING);
        all.push((
            "warm".into(),
            format!("after a transfer of {warming} through the same gateways and {} s of silence", PAUSE.as_secs()),
        ));
        all.extend(wan::conditions(bed, self.seed));
        all
    }

    fn measure(&self, bed: &mut Bed, point: &str, row: &str, limit: Duration) -> anyhow::Result<Vec<Reading>> {
        let Some(row) = ROWS.iter().find(|one| one.id == row) else { return Ok(Vec::new()) };
        let size: ByteSize = point.parse()?;
        bed.check()?;
        match row.before {
            Before::Nothing => {}
            Before::Restart => {
                bed.restart_gateways()?;
                thread::sleep(AFTER_RESTART);
            }
            Before::Transfer => {
                Self::send(bed, row, WARMING, limit).context("while warming")?;
                thread::sleep(PAUSE);
            }
        }
        let times = Self::send(bed, row, size.0, limit)?;
        bed.check()?;
        Ok(vec![(TOTAL, times.total), (CONNECT, times.connect)])
    }

    fn report(&self, results: &Results) -> Report {
        let (rtt, loss) = (self.rtt, percent(self.loss));
        Report {
            title: "Short transfers".into(),
            method: format!(
                "From before connect until the receiver's confirmation of the last byte, `src` to `dst`, memory to memory, \
                 round trip of the WAN {rtt}, loss on the LANs {loss}. Medians, with the smallest and the largest of the runs."
            ),
            tables: vec![self.table(results), self.rates(results)],
            charts: vec![("time".into(), self.chart(results))],
            verdicts: self.verdicts(results),
        }
    }
}

impl Short {
    fn columns(&self) -> impl Iterator<Item = String> {
        std::iter::once(String::new()).chain(self.sizes.iter().map(ByteSize::to_string))
    }

    fn tried<'a>(&'a self, results: &'a Results) -> impl Iterator<Item = &'static Row> {
        ROWS.iter().filter(|row| self.sizes.iter().any(|size| results.tried(&size.to_string(), row.id)))
    }

    fn table(&self, results: &Results) -> Table {
        let mut table = Table::new("Time of a transfer, s", self.columns());
        for row in self.tried(results) {
            let cell = |size: &ByteSize| results.cell(&size.to_string(), row.id, TOTAL, Summary::with_extremes);
            table.row(std::iter::once(row.title.to_owned()).chain(self.sizes.iter().map(cell)));
        }
        table
    }

    /// The rate relative to the fastest direct row.
    fn rates(&self, results: &Results) -> Table {
        let mut table = Table::new("Times as fast as direct bbr", self.columns());
        for row in self.tried(results) {
            let cell = |size: &ByteSize| {
                self.gain(results, *size, row.id).map_or_else(|| "–".into(), |gain| format!("{gain:.2}"))
            };
            table.row(std::iter::once(row.title.to_owned()).chain(self.sizes.iter().map(cell)));
        }
        table
    }

    fn gain(&self, results: &Results, size: ByteSize, row: &str) -> Option<f64> {
        let median = |row| results.summary(&size.to_string(), row, TOTAL).map(|summary| summary.median);
        Some(median("direct-bbr")? / median(row)?)
    }

    fn chart(&self, results: &Results) -> Chart {
        let series = ROWS.iter().map(|row| Series {
            name: row.title.to_owned(),
            colour: row.colour,
            points: self
                .sizes
                .iter()
                .filter_map(|size| {
                    let summary = results.summary(&size.to_string(), row.id, TOTAL)?;
                    Some(Point::of(size.0 as f64 / 1e6, &summary))
                })
                .collect(),
        });
        Chart {
            title: "Time of a short transfer".into(),
            subtitle: format!(
                "WAN {}, LAN loss {}; connect to the receiver's confirmation; medians with extremes",
                self.rtt,
                percent(self.loss)
            ),
            kind: Kind::Lines,
            x: Axis::new("size, MB", Scale::Log),
            y: Axis::new("time, s", Scale::Log),
            series: series.filter(|series| !series.points.is_empty()).collect(),
            marks: Vec::new(),
        }
    }

    fn verdicts(&self, results: &Results) -> Vec<Verdict> {
        let sizes = [8, 32].map(|n| ByteSize(n * 1_000_000));
        let verdict = |size: ByteSize| {
            let target = format!("{size}, warm, times as fast as direct bbr");
            Some(Verdict { target, measured: self.gain(results, size, "phoebus-warm")?, bound: Bound::AtLeast(2.0) })
        };
        sizes.into_iter().filter_map(verdict).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gains_are_ratios_of_times() {
        let args = ShortArgs {
            common: super::super::Common::for_tests(),
            size: Vec::new(),
            rtt: Span(Duration::from_millis(100)),
            loss: Probability::default(),
            gateway_cc: "bbr".into(),
            compared: Compared::none(),
        };
        let short = Short::new(&args);
        let mut results = Results::of("short");
        for (row, seconds) in [("direct-bbr", 1.2), ("phoebus-warm", 0.4), ("phoebus-cold", 2.4)] {
            results.add("8MB", row, 1, &[(TOTAL, seconds)]);
        }
        let verdicts = short.verdicts(&results);
        assert_eq!(verdicts.len(), 1, "32 MB was not measured");
        assert!((verdicts[0].measured - 3.0).abs() < 1e-9 && verdicts[0].met());
        assert_eq!(short.rates(&results).rows[1], ["Phoebus in the clear, cold", "–", "0.50", "–", "–"]);
    }
}
