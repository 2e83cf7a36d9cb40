//! `phoebus bench gridftp --wan`: GridFTP over a long path, with the round trips of the paper on UDT in XIO
//! (U13–U15): over TCP, UDT and QUIC, from memory and from disk, compared with iperf3 and with the bare transports.
//!
//! The paper gives the capacity of its paths, 1 Gbit/s, but not their loss. The loss follows from the rate of one
//! iperf3 stream under Reno, by Mathis's law (1.22 segments per round trip, divided by the square root of the loss):
//! 0.0012 % and 0.001 % over 204 and 60 ms, 0.00015 % over 193 ms. The other traffic there, which held UDT down to
//! 200 to 430 Mbit/s, is not emulated.

use super::super::conditions::versions;
use super::super::engine::{Experiment, Label};
use super::super::flows::{GOODPUT, PROCESSORS_BUSY, cpu};
use super::super::iperf;
use super::super::plot::{Axis, Chart, Colour, Kind, Point, Scale, Series};
use super::super::report::{Bound, Report, Verdict};
use super::super::results::{Metric, Reading, Results};
use super::super::sc09::site::Grid;
use super::super::stats::Summary;
use super::super::table::Table;
use super::super::transfer::{SET_UP, memory};
use super::super::wan::percent;
use super::carried::{ClientAndServer, DataTransport, MonitoredTransfer, ProgramUser};
use super::hosts::Hosts;
use super::program::TransferProgram;
use super::site::Site;
use super::timed::fill;
use phoebus_proto::units::{BitRate, ByteSize, Probability, Span};
use phoebus_wan::model::{DirectionConfig, Loss, Rate};
use std::num::NonZeroU64;
use std::time::Duration;

/// The path, and what goes over it.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct WanArgs {
    /// Over a long path; in the current directory.
    #[arg(long, conflicts_with_all = ["disk", "short"])]
    pub(in crate::bench) wan: bool,
    /// Several flows at once over a long path, TCP and UDT.
    #[arg(long, conflicts_with_all = ["disk", "short", "wan"])]
    pub(in crate::bench) concurrent: bool,
    /// The path's round trips [default: 204ms,60ms,193ms, those of ANL–NZ, ANL–ISI and BMI–Japan; with --quick 60ms].
    #[arg(long, value_name = "TIME", value_delimiter = ',', requires = "wan")]
    rtt: Vec<Span>,
    /// Its capacity.
    #[arg(long, value_name = "RATE", default_value = "1gbit")]
    pub(super) rate: BitRate,
    /// Its loss, each way [default: with --wan 0.001%, and at 193ms 0.00015%; with --short none].
    #[arg(long, value_name = "PROBABILITY", conflicts_with_all = ["disk", "concurrent"])]
    pub(in crate::bench) loss: Option<Probability>,
}

/// The experiment.
pub(in crate::bench) struct LongPath {
    rtts: Vec<Span>,
    rate: BitRate,
    loss: Option<Probability>,
    seconds: u64,
    seed: u64,
}

struct Row {
    id: &'static str,
    title: &'static str,
    colour: Colour,
    program: TransferProgram,
}

const fn row(id: &'static str, title: &'static str, colour: Colour, program: TransferProgram) -> Row {
    Row { id, title, colour, program }
}

const fn files(pair: ClientAndServer, over: DataTransport, disk: bool) -> TransferProgram {
    TransferProgram::Files(MonitoredTransfer { pair, over, disk, user: ProgramUser::Root })
}

use ClientAndServer::{Gct, Mixed, Ours};
use DataTransport::{Object, Quic, Tcp, Udt};

const ROWS: [Row; 23] = [
    row("iperf3-1", "iperf3, 1 stream", Colour::LightGrey, TransferProgram::Iperf { streams: 1, control: CONTROL }),
    row("iperf3-8", "iperf3, 8 streams", Colour::Grey, TransferProgram::Iperf { streams: 8, control: CONTROL }),
    row("libudt", "bare UDT, libudt", Colour::Black, TransferProgram::Libudt),
    row("udt", "bare UDT, ours", Colour::Sky, TransferProgram::Bare(&["udt"])),
    row(
        "udt-native",
        "bare UDT, ours, by UDT's own control",
        Colour::Blue,
        TransferProgram::Bare(&["udt", "--cc", "native"]),
    ),
    row("quic", "bare QUIC, ours", Colour::Green, TransferProgram::Bare(&["quic"])),
    row("gct-1", "GCT, TCP, 1 stream", Colour::LightGrey, files(Gct, Tcp(1), false)),
    row("ours-1", "Phoebus, TCP, 1 stream", Colour::Sky, files(Ours, Tcp(1), false)),
    row("gct-8", "GCT, TCP, 8 streams", Colour::Grey, files(Gct, Tcp(8), false)),
    row("ours-8", "Phoebus, TCP, 8 streams", Colour::Blue, files(Ours, Tcp(8), false)),
    row("gct-udt", "GCT, UDT", Colour::Black, files(Gct, Udt, false)),
    row("mixed-udt", "GCT's client, phoebus serve, UDT", Colour::Purple, files(Mixed, Udt, false)),
    row(OURS_UDT, "Phoebus, UDT", Colour::Orange, files(Ours, Udt, false)),
    row("ours-quic", "Phoebus, QUIC", Colour::Vermilion, files(Ours, Quic, false)),
    row("ours-object", "Phoebus, objects", Colour::Wine, files(Ours, Object, false)),
    row("gct-1-disk", "GCT, TCP, 1 stream, disk", Colour::LightGrey, files(Gct, Tcp(1), true)),
    row("ours-1-disk", "Phoebus, TCP, 1 stream, disk", Colour::Sky, files(Ours, Tcp(1), true)),
    row("gct-8-disk", "GCT, TCP, 8 streams, disk", Colour::Grey, files(Gct, Tcp(8), true)),
    row("ours-8-disk", "Phoebus, TCP, 8 streams, disk", Colour::Blue, files(Ours, Tcp(8), true)),
    row("gct-udt-disk", "GCT, UDT, disk", Colour::Black, files(Gct, Udt, true)),
    row("ours-udt-disk", "Phoebus, UDT, disk", Colour::Orange, files(Ours, Udt, true)),
    row("ours-quic-disk", "Phoebus, QUIC, disk", Colour::Vermilion, files(Ours, Quic, true)),
    row("ours-object-disk", "Phoebus, objects, disk", Colour::Wine, files(Ours, Object, true)),
];
const OURS_UDT: &str = "ours-udt";

/// The congestion control of all TCP senders.
pub(super) const CONTROL: &str = "cubic";
/// Time for logins, over round trips of a fifth of a second.
const AROUND: Duration = Duration::from_secs(7);

impl LongPath {
    pub(in crate::bench) fn new(args: &WanArgs, seconds: Option<u64>, quick: bool, seed: u64) -> Self {
        let usual: &[u64] = if quick { &[60] } else { &[204, 60, 193] };
        let rtts = match args.rtt.is_empty() {
            true => usual.iter().map(|ms| Span(Duration::from_millis(*ms))).collect(),
            false => args.rtt.clone(),
        };
        let seconds = seconds.unwrap_or(if quick { 3 } else { 15 });
        Self { rtts, rate: args.rate, loss: args.loss, seconds, seed }
    }

    /// The loss of the path with this round trip.
    fn loss(&self, rtt: Span) -> Probability {
        let usual = if rtt.0 == Duration::from_millis(193) { 1.5e-6 } else { 1e-5 };
        self.loss.or(Probability::new(usual)).unwrap_or_default()
    }
}

/// A path with this round trip, and a queue of one bandwidth-delay product.
pub(super) fn path(rtt: Span, rate: BitRate, loss: Probability) -> DirectionConfig {
    let queue = (rate.0 as f64 / 8.0 * rtt.0.as_secs_f64()) as u64;
    DirectionConfig {
        delay: Span(rtt.0 / 2),
        loss: Loss::Bernoulli(loss),
        rate: NonZeroU64::new(rate.0).map_or(Rate::Unlimited, Rate::Limited),
        queue: ByteSize(queue.max(64 << 10)),
        ..DirectionConfig::default()
    }
}

impl Experiment for LongPath {
    type Bed = Site;

    fn name(&self) -> &'static str {
        "gridftp-wan"
    }

    fn points(&self) -> Vec<Label> {
        let title = |rtt: &Span| format!("{rtt}, loss {}", percent(self.loss(*rtt)));
        self.rtts.iter().map(|rtt| Label::new(rtt.to_string(), title(rtt))).collect()
    }

    fn rows(&self) -> Vec<Label> {
        ROWS.iter().map(|row| Label::new(row.id, row.title)).collect()
    }

    fn expected(&self, _: &str, _: &str) -> Duration {
        Duration::from_secs(self.seconds) + AROUND
    }

    fn set_up(&self, point: &str) -> anyhow::Result<Site> {
        let rtt = self.rtts.iter().find(|rtt| rtt.to_string() == point).copied().unwrap_or_default();
        let hosts = Hosts::with_path(path(rtt, self.rate, self.loss(rtt)), self.seed, CONTROL)?;
        // The file is longer than anybody can send in the time.
        fill(&hosts.file("source")?, self.rate.0 / 8 * (self.seconds + 2))?;
        Ok(Site { hosts, grid: Grid::bare()? })
    }

    fn conditions(&self, site: &Site) -> Vec<(String, String)> {
        let mut all = versions(&[
            ("globus-gridftp-server", "--version"),
            ("globus-url-copy", "-version"),
            (iperf::PROGRAM, "--version"),
        ]);
        all.extend(site.hosts.conditions());
        let test = format!(
            "puts for {} s from the first byte of data on, as the receiver's interface counts them, with up to 3 % of headers, slow start included; TCP in MODE E, UDT \
             and QUIC over one connection; not verified; in clear, but for QUIC and objects, which are encrypted; anonymous, but for GCT's client over UDT, \
             which asks for no driver without a certificate; disk: from a file in memory to a new one",
            self.seconds
        );
        all.push(("test".into(), test));
        all.push(("path".into(), format!("{}, a queue of one round trip, seed {}", self.rate, self.seed)));
        all
    }

    fn measure(&self, site: &mut Site, _: &str, row: &str, limit: Duration) -> anyhow::Result<Vec<Reading>> {
        let Some(row) = ROWS.iter().find(|one| one.id == row) else { return Ok(Vec::new()) };
        row.program.run(site, self.seconds, limit)
    }

    fn report(&self, results: &Results) -> Report {
        let metrics = [GOODPUT, SET_UP, cpu("client"), cpu("server"), PROCESSORS_BUSY].into_iter();
        let tables = metrics.chain(memory("server")).map(|metric| self.table(results, metric));
        Report {
            title: "GridFTP over a long path".into(),
            method: format!(
                "Puts for {} s over {}, beside iperf3 and bare flows. The columns are round trips, and losses each way: those that make Reno \
                 what the paper's iperf found. Medians, with the smallest and the largest of the runs.",
                self.seconds, self.rate
            ),
            tables: tables.filter(|table| !table.rows.is_empty()).collect(),
            charts: vec![
                ("memory".into(), self.chart(results, "memory to memory", false)),
                ("disk".into(), self.chart(results, "disk to disk", true)),
            ],
            verdicts: self.verdicts(results),
        }
    }
}

impl LongPath {
    fn table(&self, results: &Results, metric: Metric) -> Table {
        let heads = self.points().into_iter().map(|point| point.title);
        let caption = format!("{}, {}", metric.name, metric.unit);
        let mut table = Table::new(caption, std::iter::once(String::new()).chain(heads));
        let failed = |row: &Row| metric == GOODPUT && self.points().iter().any(|at| results.tried(&at.id, row.id));
        let has = |row: &&Row| {
            failed(row) || self.points().iter().any(|at| results.summary(&at.id, row.id, metric).is_some())
        };
        for row in ROWS.iter().filter(has) {
            let cells =
                self.points().into_iter().map(|at| results.cell(&at.id, row.id, metric, Summary::with_extremes));
            table.row(std::iter::once(row.title.to_owned()).chain(cells));
        }
        table
    }

    /// The worst case of all round trips.
    fn verdicts(&self, results: &Results) -> Vec<Verdict> {
        let ratio = |rtt: &Span, one: &str, other: &str| {
            let median = |row: &str| results.summary(&rtt.to_string(), row, GOODPUT).map(|summary| summary.median);
            Some((median(one)? / median(other)?, rtt.to_string()))
        };
        let mut all = Vec::new();
        let mut say = |target: &str, one: &str, other: &str, least: f64| {
            let each = self.rtts.iter().filter_map(|rtt| ratio(rtt, one, other));
            all.extend(each.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(measured, rtt)| Verdict {
                target: format!("{target}, at its worst ({rtt})"),
                measured,
                bound: Bound::AtLeast(least),
            }));
        };
        say("Phoebus over UDT to our bare UDT (U15)", OURS_UDT, "udt", 0.95);
        say("Phoebus over UDT to libudt (U15)", OURS_UDT, "libudt", 0.95);
        say("Phoebus over QUIC to our bare QUIC", "ours-quic", "quic", 0.95);
        say("Phoebus by objects to our bare UDT", "ours-object", "udt", 0.98);
        say("Phoebus by objects to our bare QUIC", "ours-object", "quic", 0.98);
        say("GCT over UDT to libudt (U15)", "gct-udt", "libudt", 0.95);
        for (streams, names) in [(1, ["gct-1", "ours-1", "iperf3-1"]), (8, ["gct-8", "ours-8", "iperf3-8"])] {
            say(&format!("Phoebus to GCT over TCP, streams: {streams}"), names[1], names[0], 1.0);
            say(
                &format!("Phoebus over TCP to iperf3, streams: {streams} (paper: comparable)"),
                names[1],
                names[2],
                0.9,
            );
        }
        say("Phoebus to GCT over TCP, disk, streams: 1", "ours-1-disk", "gct-1-disk", 1.0);
        say("Phoebus to GCT over TCP, disk, streams: 8", "ours-8-disk", "gct-8-disk", 1.0);
        say("Phoebus to GCT over UDT", OURS_UDT, "gct-udt", 1.0);
        say("Phoebus to GCT over UDT, disk", "ours-udt-disk", "gct-udt-disk", 1.0);
        say("Phoebus over UDT, disk to memory", "ours-udt-disk", OURS_UDT, 0.9);
        say("Phoebus over UDT to one stream of TCP (paper: 3 or more)", OURS_UDT, "ours-1", 3.0);
        say("GCT over UDT to one stream of TCP (paper: 3 or more)", "gct-udt", "gct-1", 3.0);
        all
    }

    fn chart(&self, results: &Results, what: &str, is_disk: bool) -> Chart {
        let shown = ROWS.iter().filter(|row| match row.program {
            TransferProgram::Files(carried) => carried.disk == is_disk && carried.pair != Mixed,
            _ => false,
        });
        let series = shown.map(|row| Series {
            name: row.title.trim_end_matches(", disk").to_owned(),
            colour: row.colour,
            points: self
                .rtts
                .iter()
                .enumerate()
                .filter_map(|(x, rtt)| Some(Point::of(x as f64, &results.summary(&rtt.to_string(), row.id, GOODPUT)?)))
                .collect(),
        });
        Chart {
            title: format!("GridFTP over a long path, {what}"),
            subtitle: format!("{}; medians with smallest and largest", self.rate),
            kind: Kind::Bars,
            x: Axis::new(
                "round trip, loss",
                Scale::Categories(self.points().into_iter().map(|point| point.title).collect()),
            ),
            y: Axis::new("Mbit/s", Scale::Linear),
            series: series.filter(|series| !series.points.is_empty()).collect(),
            marks: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usual() -> LongPath {
        let args = WanArgs { wan: true, concurrent: false, rtt: Vec::new(), rate: BitRate(500_000_000), loss: None };
        LongPath::new(&args, None, false, 1)
    }

    #[test]
    fn queue_holds_a_round_trip() {
        let long = usual();
        assert_eq!(long.points().len(), 3);
        assert_eq!(path(long.rtts[0], long.rate, Probability::default()).queue, ByteSize(12_750_000));
        assert_eq!(long.points()[2].title, "193ms, loss 0.00015%");
    }

    #[test]
    fn verdict_uses_the_worst_round_trip() {
        let mut results = Results::of("gridftp-wan");
        for (point, row, rate) in
            [("60ms", OURS_UDT, 400.0), ("60ms", "udt", 400.0), ("204ms", OURS_UDT, 380.0), ("204ms", "udt", 400.0)]
        {
            results.add(point, row, 1, &[(GOODPUT, rate)]);
        }
        let verdicts = usual().verdicts(&results);
        assert_eq!(verdicts.len(), 1);
        assert!(verdicts[0].met() && verdicts[0].measured == 0.95 && verdicts[0].target.ends_with("(204ms)"));
    }
}
