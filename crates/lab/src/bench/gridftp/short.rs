//! `phoebus bench gridftp --short`: the method of the paper on RFIO and GridFTP (R8–R10, R16): 45 Mbit/s and 125 ms,
//! files of 1 to 100 MB, 1 to 10 streams, set-up and transfer timed separately. Buffers are 64 KB, the default of the
//! paper's systems, or tuned: GCT requests 1 MB, ours leave the choice to the kernel (U16), which for 64 KB is
//! limited to that size.

mod statements;

use super::super::conditions::versions;
use super::super::engine::{Experiment, Label};
use super::super::iperf;
use super::super::plot::{Axis, Chart, Colour, Kind, Point, Scale, Series};
use super::super::report::Report;
use super::super::results::{Metric, Reading, Results};
use super::super::sc09::site::Grid;
use super::super::stats::Summary;
use super::super::table::Table;
use super::super::transfer::SET_UP;
use super::super::wan::percent;
use super::hosts::{Hosts, Server};
use super::site::Site;
use super::timed::{RATE, TOOK, Transfer, fill};
use phoebus_proto::units::{ByteSize, Probability, Span};
use phoebus_wan::model::{DirectionConfig, Loss, Rate};
use std::num::NonZeroU64;
use std::time::Duration;

/// What is transferred.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ShortArgs {
    /// Files of 1 to 100 MB over 45 Mbit/s and 125 ms, set-up and transfer apart; in the current directory.
    #[arg(long, conflicts_with_all = ["seconds", "disk"])]
    pub(in crate::bench) short: bool,
    /// Sizes of the files, in megabytes [default: 1,25,50,100, with --quick 1,5].
    #[arg(long, value_name = "MB", value_delimiter = ',', requires = "short")]
    megabytes: Vec<u64>,
    /// Numbers of streams [default: 1,2,3,5,9,10, with --quick 1,3].
    #[arg(long, value_name = "N", value_delimiter = ',', requires = "short")]
    streams: Vec<u32>,
}

/// The experiment.
pub(in crate::bench) struct Sizes {
    megabytes: Vec<u64>,
    streams: Vec<u32>,
    loss: Probability,
    seed: u64,
}

/// Client, server and their buffers.
struct Setup {
    id: &'static str,
    title: &'static str,
    program: TransferProgram,
    buffers: Buffers,
    by_certificate: bool,
}

const fn way(id: &'static str, title: &'static str, program: TransferProgram, buffers: Buffers) -> Setup {
    Setup { id, title, program, buffers, by_certificate: false }
}

const fn by_certificate(id: &'static str, title: &'static str, program: TransferProgram, buffers: Buffers) -> Setup {
    Setup { id, title, program, buffers, by_certificate: true }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TransferProgram {
    Files(Server),
    /// iperf3, for the time of a test, to compare with the longest put.
    Iperf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Buffers {
    /// The program requests this much.
    Asked(u64),
    /// The kernel gives at most this much.
    Bounded(u64),
    /// The kernel chooses.
    Tuned,
}

const SMALL: u64 = 64 << 10;
const GCT: TransferProgram = TransferProgram::Files(Server::Gct);
const OURS: TransferProgram = TransferProgram::Files(Server::Ours);

const WAYS: [Setup; 8] = [
    way(GCT_SMALL, "GCT, 64 KB", GCT, Buffers::Asked(SMALL)),
    way(OURS_SMALL, "Phoebus, 64 KB", OURS, Buffers::Bounded(SMALL)),
    way(IPERF_SMALL, "iperf3, 64 KB", TransferProgram::Iperf, Buffers::Bounded(SMALL)),
    way(GCT_TUNED, "GCT, 1 MB", GCT, Buffers::Asked(1 << 20)),
    way(OURS_TUNED, "Phoebus, tuned by the kernel", OURS, Buffers::Tuned),
    way(IPERF_TUNED, "iperf3, tuned by the kernel", TransferProgram::Iperf, Buffers::Tuned),
    by_certificate(GCT_GSI, "GCT, 1 MB, by certificate", GCT, Buffers::Asked(1 << 20)),
    by_certificate(OURS_GSI, "Phoebus, tuned by the kernel, by certificate", OURS, Buffers::Tuned),
];
const GCT_SMALL: &str = "gct-64k";
const GCT_TUNED: &str = "gct-1m";
const OURS_SMALL: &str = "ours-64k";
const OURS_TUNED: &str = "ours";
const IPERF_SMALL: &str = "iperf3-64k";
const IPERF_TUNED: &str = "iperf3";
const GCT_GSI: &str = "gct-gsi";
const OURS_GSI: &str = "ours-gsi";

const RATE_OF_PATH: u64 = 45_000_000;
const ROUND_TRIP: Duration = Duration::from_millis(125);
const CONTROL: &str = "cubic";
/// How long iperf3 sends, in seconds.
const SECONDS: u64 = 15;

impl Buffers {
    /// Approximate rate of one stream, in bits per second: one buffer per round trip.
    fn rate(self) -> u64 {
        match self {
            Self::Asked(bytes) | Self::Bounded(bytes) => (bytes * 8) * 1000 / ROUND_TRIP.as_millis() as u64,
            Self::Tuned => RATE_OF_PATH,
        }
    }
}

impl Sizes {
    pub(in crate::bench) fn new(args: &ShortArgs, loss: Option<Probability>, quick: bool, seed: u64) -> Self {
        let (sizes, streams): (&[u64], &[u32]) =
            if quick { (&[1, 5], &[1, 3]) } else { (&[1, 25, 50, 100], &[1, 2, 3, 5, 9, 10]) };
        let megabytes = if args.megabytes.is_empty() { sizes.into() } else { args.megabytes.clone() };
        let streams = if args.streams.is_empty() { streams.into() } else { args.streams.clone() };
        Self { megabytes, streams, loss: loss.unwrap_or_default(), seed }
    }

    fn directions(&self) -> impl Iterator<Item = (bool, u64)> {
        [false, true].into_iter().flat_map(|is_put| self.megabytes.iter().map(move |size| (is_put, *size)))
    }

    fn ways(&self) -> impl Iterator<Item = (&'static Setup, u32)> {
        WAYS.iter().flat_map(|way| self.streams.iter().map(move |streams| (way, *streams)))
    }

    fn largest(&self) -> u64 {
        self.megabytes.iter().copied().max().unwrap_or(1)
    }

    /// The meaning of a point and a row: direction, size, way and streams; `None` if they are not measured.
    fn find(&self, wanted: &str, of: &str) -> Option<(bool, u64, &'static Setup, u32)> {
        let (is_put, size) = self.directions().find(|d| point(*d) == wanted)?;
        let (way, streams) = self.ways().find(|(way, streams)| row(way.id, *streams) == of)?;
        let is_measured = way.program != TransferProgram::Iperf || (is_put && size == self.largest());
        is_measured.then_some((is_put, size, way, streams))
    }
}

fn point((is_put, size): (bool, u64)) -> String {
    format!("{} {size}MB", if is_put { "put" } else { "get" })
}

fn row(way: &str, streams: u32) -> String {
    format!("{way}-{streams}")
}

impl Experiment for Sizes {
    type Bed = Site;

    fn name(&self) -> &'static str {
        "gridftp-short"
    }

    fn points(&self) -> Vec<Label> {
        self.directions().map(|of| Label::new(point(of), point(of))).collect()
    }

    fn rows(&self) -> Vec<Label> {
        let plural = |n| if n == 1 { "stream" } else { "streams" };
        let title = |way: &Setup, n| format!("{}, {n} {}", way.title, plural(n));
        self.ways().map(|(way, n)| Label::new(row(way.id, n), title(way, n))).collect()
    }

    fn expected(&self, wanted: &str, of: &str) -> Duration {
        let Some((_, size, way, streams)) = self.find(wanted, of) else { return Duration::ZERO };
        let rate = RATE_OF_PATH.min(way.buffers.rate() * u64::from(streams));
        Duration::from_secs(5 + if way.program == TransferProgram::Iperf { SECONDS } else { size * 8_000_000 / rate })
    }

    fn set_up(&self, wanted: &str) -> anyhow::Result<Site> {
        let path = DirectionConfig {
            delay: Span(ROUND_TRIP / 2),
            loss: Loss::Bernoulli(self.loss),
            rate: NonZeroU64::new(RATE_OF_PATH).map_or(Rate::Unlimited, Rate::Limited),
            queue: ByteSize((RATE_OF_PATH as f64 / 8.0 * ROUND_TRIP.as_secs_f64()) as u64),
            ..DirectionConfig::default()
        };
        let hosts = Hosts::with_path(path, self.seed, CONTROL)?;
        let megabytes = self.directions().find(|d| point(*d) == wanted).map_or(1, |(_, size)| size);
        fill(&hosts.file("source")?, megabytes * 1_000_000)?;
        Ok(Site { hosts, grid: Grid::bare()? })
    }

    fn conditions(&self, Site { hosts, .. }: &Site) -> Vec<(String, String)> {
        let mut all = versions(&[
            ("globus-gridftp-server", "--version"),
            ("globus-url-copy", "-version"),
            (iperf::PROGRAM, "--version"),
        ]);
        all.extend(hosts.conditions());
        let loss = percent(self.loss);
        all.push(("path".into(), format!("45mbit, round trip 125ms, a queue of one round trip, loss {loss} each way")));
        all.push((
            "test".into(),
            "a file, MODE E, anonymous and in clear, or by certificate with data connections that prove who they are (DCAU A), not verified; set-up until the first 64 KiB have arrived, transfer from there to the \
             end of the client; 64 KB are what -tcp-bs asks for and what tcp_rmem and tcp_wmem bound others to"
                .into(),
        ));
        all
    }

    fn measure(&self, site: &mut Site, wanted: &str, of: &str, limit: Duration) -> anyhow::Result<Vec<Reading>> {
        let Some((is_put, size, way, streams)) = self.find(wanted, of) else { return Ok(Vec::new()) };
        let (bound, buffer) = match way.buffers {
            Buffers::Bounded(bytes) => (Some(bytes), None),
            Buffers::Asked(bytes) => (None, Some(bytes)),
            Buffers::Tuned => (None, None),
        };
        site.hosts.bound_buffers(bound)?;
        let TransferProgram::Files(server) = way.program else {
            let rate = site.hosts.iperf(SECONDS, streams, CONTROL, limit)?;
            return Ok(vec![(RATE, rate)]);
        };
        let (disk, bytes, by_certificate) = (true, size * 1_000_000, way.by_certificate);
        Transfer { is_put, disk, bytes, streams, by_certificate, buffer }.run(site, server, limit)
    }

    fn report(&self, results: &Results) -> Report {
        let tables = [SET_UP, TOOK, RATE].map(|metric| self.table(results, metric));
        let charts = [false, true].into_iter().flat_map(|is_put| {
            [("64k", [GCT_SMALL, OURS_SMALL, IPERF_SMALL]), ("tuned", [GCT_TUNED, OURS_TUNED, IPERF_TUNED])]
                .map(|(buffers, ways)| self.chart(results, is_put, buffers, ways))
        });
        Report {
            title: "GridFTP on a path of 45 Mbit/s and 125 ms".into(),
            method: "Files of several sizes over several streams, with buffers of 64 KB and tuned ones; iperf3 beside the longest put. \
                     Medians, with the smallest and the largest of the runs. The paper's path had other traffic; its figures, which are \
                     asked for below, are of GSIFTP, as the rows by certificate are; all others are anonymous."
                .into(),
            tables: tables.into(),
            charts: charts.collect(),
            verdicts: statements::verdicts(self, results),
        }
    }
}

impl Sizes {
    fn table(&self, results: &Results, metric: Metric) -> Table {
        let heads = self.directions().map(point);
        let mut table =
            Table::new(format!("{}, {}", metric.name, metric.unit), std::iter::once(String::new()).chain(heads));
        let has = |row: &str| self.directions().any(|of| results.summary(&point(of), row, metric).is_some());
        for label in self.rows().into_iter().filter(|label| has(&label.id)) {
            let cells = self.directions().map(|of| results.cell(&point(of), &label.id, metric, Summary::with_extremes));
            table.row(std::iter::once(label.title.clone()).chain(cells));
        }
        table
    }

    /// Like the paper's Figures 1 to 4: a line for each size.
    fn chart(&self, results: &Results, is_put: bool, buffers: &str, ways: [&str; 3]) -> (String, Chart) {
        const COLOURS: [[Colour; 4]; 3] = [
            [Colour::LightGrey, Colour::Sky, Colour::Blue, Colour::Black],
            [Colour::Purple, Colour::Orange, Colour::Vermilion, Colour::Wine],
            [Colour::Green; 4],
        ];
        let names = ["GCT", "Phoebus", "iperf3"];
        let series = (0..3).flat_map(|who| {
            self.megabytes.iter().enumerate().map(move |(nth, size)| Series {
                name: if who == 2 { names[who].to_owned() } else { format!("{}, {size} MB", names[who]) },
                colour: COLOURS[who][nth.min(3)],
                points: self
                    .streams
                    .iter()
                    .filter_map(|n| {
                        let summary = results.summary(&point((is_put, *size)), &row(ways[who], *n), RATE)?;
                        Some(Point::of(f64::from(*n), &summary))
                    })
                    .collect(),
            })
        });
        let name = if is_put { "put" } else { "get" };
        let with = if buffers == "64k" { "buffers of 64 KB" } else { "tuned buffers" };
        let chart = Chart {
            title: format!("GridFTP {name}, {with}"),
            subtitle: format!("45 Mbit/s, 125 ms, loss {}; medians with smallest and largest", percent(self.loss)),
            kind: Kind::Lines,
            x: Axis::new("streams", Scale::Linear),
            y: Axis::new("Mbit/s", Scale::Linear),
            series: series.filter(|series| !series.points.is_empty()).collect(),
            marks: Vec::new(),
        };
        (format!("{name}-{buffers}"), chart)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes() -> Sizes {
        Sizes::new(&ShortArgs { short: true, megabytes: Vec::new(), streams: Vec::new() }, None, false, 1)
    }

    #[test]
    fn expected_time_grows_with_a_small_buffer() {
        let sizes = sizes();
        assert_eq!((sizes.points().len(), sizes.rows().len()), (8, 48));
        let expected = |row| sizes.expected("get 100MB", row).as_secs();
        assert!(expected("gct-64k-1") > 100 && expected("gct-64k-10") < 30 && expected("ours-1") < 30);
        assert!(expected("ours-64k-1") > 100 && expected("iperf3-1") == 0, "iperf3 stands beside the longest put");
        assert!(sizes.expected("put 100MB", "iperf3-1") > Duration::from_secs(SECONDS));
    }

    #[test]
    fn verdicts_cover_the_papers_statements() {
        let mut results = Results::of("gridftp-short");
        for (point, row, rate) in [
            ("get 100MB", "gct-64k-9", 40.0),
            ("get 100MB", "gct-1m-1", 32.0),
            ("get 100MB", "gct-1m-2", 40.0),
            ("get 100MB", "gct-1m-3", 38.0),
        ] {
            results.add(point, row, 1, &[(RATE, rate)]);
        }
        results.add("get 1MB", "gct-1m-1", 1, &[(SET_UP, 2.0)]);
        results.add("get 1MB", "ours-1", 1, &[(SET_UP, 3.0)]);
        results.add("get 1MB", "gct-gsi-1", 1, &[(SET_UP, 4.0)]);
        results.add("get 1MB", "ours-gsi-1", 1, &[(SET_UP, 2.0)]);
        let found: Vec<_> =
            statements::verdicts(&sizes(), &results).into_iter().map(|v| (v.measured, v.met())).collect();
        assert_eq!(found, [(2.0, true), (0.5, true), (1.5, false), (40.0, true), (0.95, true), (1.25, true)]);
    }
}
