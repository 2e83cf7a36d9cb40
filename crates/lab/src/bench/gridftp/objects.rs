//! `phoebus bench objects`: the driver `object` on a long path that loses packets, beside our other transports and other
//! projects' programs (L1–L6, L12).
//!
//! GridFTP's programs put a fixed number of bytes from memory to memory, so that their rates are those of useful bytes, from the
//! first to the last with its confirmation. The others report what their receivers have got in the same time.

use super::super::conditions::versions;
use super::super::engine::{Experiment, Label};
use super::super::flows::{GOODPUT, PROCESSORS_BUSY, STEADY, cpu};
use super::super::plot::{Axis, Chart, Colour, Kind, Point, Scale, Series};
use super::super::report::{Bound, Report, Verdict};
use super::super::results::{Metric, Reading, Results};
use super::super::sc09::site::Grid;
use super::super::stats::Summary;
use super::super::table::Table;
use super::super::transfer::SET_UP;
use super::super::wan::percent;
use super::super::{Common, iperf};
use super::carried::{ClientAndServer, DataTransport, MonitoredTransfer, ProgramUser, WASTE};
use super::hosts::Hosts;
use super::program::TransferProgram;
use super::site::Site;
use super::uftp;
use super::wan::{CONTROL, path};
use phoebus_proto::units::{BitRate, Probability, Span};
use std::path::PathBuf;
use std::time::Duration;

/// Options of the experiment.
#[derive(Debug, clap::Args)]
pub(crate) struct ObjectsArgs {
    #[command(flatten)]
    pub(in crate::bench) common: Common,
    /// Length of each transfer at the path's rate, in seconds [default: 10, with --quick 3].
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: Option<u64>,
    /// The path's round trips [default: 25ms,50ms,100ms,200ms; with --quick 100ms].
    #[arg(long, value_name = "TIME", value_delimiter = ',')]
    rtt: Vec<Span>,
    /// Its losses, each way [default: 0,0.1%,1%,5%; with --quick 1%].
    #[arg(long, value_name = "PROBABILITY", value_delimiter = ',')]
    loss: Vec<Probability>,
    /// Its capacity.
    #[arg(long, value_name = "RATE", default_value = "1gbit")]
    rate: BitRate,
    /// quinn's perf tool; its row is left out without it.
    #[arg(long, value_name = "PATH")]
    quinn_perf: Option<PathBuf>,
    /// qcp; its row is left out without it.
    #[arg(long, value_name = "PATH")]
    qcp: Option<PathBuf>,
    /// On loopback instead, beside QUIC and UDT.
    #[arg(long, conflicts_with_all = ["seconds", "rtt", "loss", "rate", "quinn_perf", "qcp"])]
    pub(in crate::bench) loopback: bool,
    /// Through two gateways instead, beside sessions through them.
    #[arg(long, conflicts_with_all = ["seconds", "rtt", "loss", "rate", "quinn_perf", "qcp", "loopback"])]
    pub(in crate::bench) gateways: bool,
    /// As the superuser and as an ordinary user instead, on known paths and on others.
    #[arg(long, conflicts_with_all = ["seconds", "rtt", "loss", "rate", "quinn_perf", "qcp", "loopback", "gateways"])]
    pub(in crate::bench) users: bool,
}

/// The experiment.
pub(in crate::bench) struct Objects {
    rtts: Vec<Span>,
    losses: Vec<Probability>,
    rate: BitRate,
    seconds: u64,
    seed: u64,
    quinn_perf: Option<PathBuf>,
    qcp: Option<PathBuf>,
}

struct Row {
    id: &'static str,
    title: &'static str,
    /// None for rows that the drawing leaves out: it has room for eleven.
    colour: Option<Colour>,
    program: TransferProgram,
    /// Whether it encrypts.
    is_sealed: bool,
}

const fn row(id: &'static str, title: &'static str, colour: Colour, program: TransferProgram) -> Row {
    Row { id, title, colour: Some(colour), program, is_sealed: false }
}

const fn sealed(id: &'static str, title: &'static str, colour: Colour, program: TransferProgram) -> Row {
    Row { id, title, colour: Some(colour), program, is_sealed: true }
}

const fn undrawn(row: Row) -> Row {
    Row { colour: None, ..row }
}

const fn ours(over: DataTransport) -> TransferProgram {
    TransferProgram::Files(MonitoredTransfer {
        pair: ClientAndServer::Ours,
        over,
        disk: false,
        user: ProgramUser::Root,
    })
}

const GCT_UDT: TransferProgram = TransferProgram::Files(MonitoredTransfer {
    pair: ClientAndServer::Gct,
    over: DataTransport::Udt,
    disk: false,
    user: ProgramUser::Root,
});

const OBJECT: &str = "object";
const CLEAR: &str = "object-clear";
const AUTO: &str = "auto";
/// The stacks among which `auto` could choose.
const FIXED: [&str; 5] = [OBJECT, "udt", "udt-tls", "quic", "tcp"];
const ROWS: [Row; 14] = [
    sealed(OBJECT, "objects", Colour::Wine, ours(DataTransport::Object)),
    undrawn(row(CLEAR, "objects, in clear", Colour::Grey, ours(DataTransport::ObjectClear))),
    sealed(AUTO, "Phoebus, --stack auto", Colour::Orange, ours(DataTransport::Auto)),
    row("tcp", "Phoebus, TCP, in clear", Colour::Blue, ours(DataTransport::TcpChosen)),
    row("udt", "Phoebus, UDT, in clear", Colour::Sky, ours(DataTransport::Udt)),
    undrawn(sealed("udt-tls", "Phoebus, TLS on UDT", Colour::Grey, ours(DataTransport::UdtTls))),
    sealed("quic", "Phoebus, QUIC", Colour::Vermilion, ours(DataTransport::Quic)),
    row("iperf3-bbr", "iperf3, bbr, in clear", Colour::Green, TransferProgram::Iperf { streams: 1, control: "bbr" }),
    row(
        "iperf3-8",
        "iperf3, 8 × cubic, in clear",
        Colour::Grey,
        TransferProgram::Iperf { streams: 8, control: CONTROL },
    ),
    row("gct-udt", "GCT, UDT, in clear", Colour::Black, GCT_UDT),
    row("libudt", "libudt, in clear", Colour::LightGrey, TransferProgram::Libudt),
    sealed(QUINN, "quinn's perf tool", Colour::Purple, TransferProgram::Quinn),
    undrawn(sealed(QCP, "qcp, bbr", Colour::Grey, TransferProgram::Qcp)),
    sealed("uftp", "uftp, at 0.95 of the rate", Colour::Yellow, TransferProgram::Uftp),
];
const QUINN: &str = "quinn-perf";
const QCP: &str = "qcp";

/// Bytes of a packet's payload, of 1500 on the link: the rest are the headers of IP and UDP, of the object, and the seal.
const PAYLOAD: f64 = 1438.0 / 1500.0;
/// Time for logins and tails, over round trips of a fifth of a second.
const AROUND: Duration = Duration::from_secs(5);

impl Objects {
    pub(in crate::bench) fn new(args: &ObjectsArgs) -> Self {
        let quick = args.common.quick;
        let millis: &[u64] = if quick { &[100] } else { &[25, 50, 100, 200] };
        let shares: &[f64] = if quick { &[0.01] } else { &[0.0, 0.001, 0.01, 0.05] };
        let rtts = match args.rtt.is_empty() {
            true => millis.iter().map(|ms| Span(Duration::from_millis(*ms))).collect(),
            false => args.rtt.clone(),
        };
        let losses = match args.loss.is_empty() {
            true => shares.iter().filter_map(|share| Probability::new(*share)).collect(),
            false => args.loss.clone(),
        };
        let seconds = args.seconds.unwrap_or(if quick { 3 } else { 10 });
        let (rate, seed) = (args.rate, args.common.seed);
        Self { rtts, losses, rate, seconds, seed, quinn_perf: args.quinn_perf.clone(), qcp: args.qcp.clone() }
    }

    /// All paths, those with equal loss together.
    fn paths(&self) -> impl Iterator<Item = (Span, Probability)> {
        self.losses.iter().flat_map(|loss| self.rtts.iter().map(move |rtt| (*rtt, *loss)))
    }

    /// The path with this identifier.
    fn path(&self, at: &str) -> (Span, Probability) {
        self.paths().find(|path| point(*path) == at).unwrap_or_default()
    }

    /// What objects leave of the rate for bytes of files, in Mbit/s.
    fn ceiling(&self, loss: Probability) -> f64 {
        self.rate.0 as f64 * 1e-6 * PAYLOAD * (1.0 - loss.get())
    }
}

/// The identifier of a path.
fn point((rtt, loss): (Span, Probability)) -> String {
    format!("{rtt}-{}", percent(loss))
}

impl Experiment for Objects {
    type Bed = Site;

    fn name(&self) -> &'static str {
        "objects"
    }

    fn points(&self) -> Vec<Label> {
        self.paths().map(|path| Label::new(point(path), format!("{}, loss {}", path.0, percent(path.1)))).collect()
    }

    fn rows(&self) -> Vec<Label> {
        ROWS.iter().map(|row| Label::new(row.id, row.title)).collect()
    }

    fn has(&self, _: &str, row: &str) -> bool {
        match row {
            QUINN => self.quinn_perf.is_some(),
            QCP => self.qcp.is_some(),
            _ => true,
        }
    }

    fn expected(&self, _: &str, _: &str) -> Duration {
        Duration::from_secs(self.seconds) + AROUND
    }

    fn set_up(&self, at: &str) -> anyhow::Result<Site> {
        let (rtt, loss) = self.path(at);
        Ok(Site { hosts: Hosts::with_path(path(rtt, self.rate, loss), self.seed, CONTROL)?, grid: Grid::bare()? })
    }

    fn conditions(&self, site: &Site) -> Vec<(String, String)> {
        let mut all = versions(&[
            ("globus-gridftp-server", "--version"),
            ("globus-url-copy", "-version"),
            (iperf::PROGRAM, "--version"),
        ]);
        all.push((uftp::SENDER.into(), uftp::version()));
        all.extend(site.hosts.conditions());
        all.push(("path".into(), format!("{}, a queue of one round trip, seed {}", self.rate, self.seed)));
        all
    }

    fn measure(&self, site: &mut Site, at: &str, row: &str, limit: Duration) -> anyhow::Result<Vec<Reading>> {
        let Some(row) = ROWS.iter().find(|one| one.id == row) else { return Ok(Vec::new()) };
        let bytes = self.rate.0 / 8 * self.seconds;
        match row.program {
            TransferProgram::Files(transfer) if transfer.pair == ClientAndServer::Ours => {
                transfer.run_to_end(&site.hosts, &site.grid, bytes, limit)
            }
            TransferProgram::Uftp => uftp::run(&site.hosts, bytes, self.rate, limit),
            TransferProgram::Quinn => match &self.quinn_perf {
                Some(tool) => super::program::quinn(tool, &site.hosts, self.seconds, limit),
                None => Ok(Vec::new()),
            },
            TransferProgram::Qcp => match &self.qcp {
                Some(tool) => super::qcp::run(tool, &site.hosts, bytes, (self.rate, self.path(at).0), limit),
                None => Ok(Vec::new()),
            },
            other => other.run(site, self.seconds, limit),
        }
    }

    fn report(&self, results: &Results) -> Report {
        let mut tables = Vec::new();
        for metric in [GOODPUT, STEADY, WASTE, cpu("client"), cpu("server"), SET_UP, PROCESSORS_BUSY] {
            tables.extend(self.losses.iter().map(|loss| self.table(results, metric, *loss)));
        }
        let charts = self.losses.iter().map(|loss| (percent(*loss).replace('%', ""), self.chart(results, *loss)));
        Report {
            title: "Objects on a long path".into(),
            method: format!(
                "Memory to memory over {}. Phoebus's programs put {} MB, from the first byte of data to the confirmation of the \
                 last; the others send for {} s. The columns are round trips. Medians, with the smallest and the largest of the runs.",
                self.rate,
                self.rate.0 / 8_000_000 * self.seconds,
                self.seconds
            ),
            tables: tables.into_iter().filter(|table| !table.rows.is_empty()).collect(),
            charts: charts.collect(),
            verdicts: self.verdicts(results),
        }
    }
}

impl Objects {
    fn table(&self, results: &Results, metric: Metric, loss: Probability) -> Table {
        let heads = self.rtts.iter().map(ToString::to_string);
        let caption = format!("{}, {}, loss {}", metric.name, metric.unit, percent(loss));
        let mut table = Table::new(caption, std::iter::once(String::new()).chain(heads));
        let at = |rtt: &Span| point((*rtt, loss));
        for row in &ROWS {
            let has_failed = metric == GOODPUT && self.rtts.iter().any(|rtt| results.tried(&at(rtt), row.id));
            let has_values = self.rtts.iter().any(|rtt| results.summary(&at(rtt), row.id, metric).is_some());
            if has_failed || has_values {
                let cells = self.rtts.iter().map(|rtt| results.cell(&at(rtt), row.id, metric, Summary::with_extremes));
                table.row(std::iter::once(row.title.to_owned()).chain(cells));
            }
        }
        table
    }

    fn verdicts(&self, results: &Results) -> Vec<Verdict> {
        let median = |row: &str, at: &str, metric| results.summary(at, row, metric).map(|summary| summary.median);
        let worst = |target: String, each: Vec<(f64, String)>, bound| {
            let by = |a: &&(f64, String), b: &&(f64, String)| a.0.total_cmp(&b.0);
            let worst = match bound {
                Bound::AtLeast(_) => each.iter().min_by(by),
                Bound::AtMost(_) => each.iter().max_by(by),
            };
            worst.map(|(measured, at)| Verdict {
                target: format!("{target}, at its worst ({at})"),
                measured: *measured,
                bound,
            })
        };
        let mut all = Vec::new();
        for (least, is_high) in [(0.97, false), (0.95, true)] {
            let paths = self.paths().filter(|path| (path.1.get() > 0.01) == is_high);
            let each = paths.filter_map(|path| {
                let at = point(path);
                Some((median(OBJECT, &at, STEADY)? / self.ceiling(path.1), at))
            });
            let which = if is_high { "above 1 % of loss" } else { "to 1 % of loss" };
            let target = format!("objects after 3 s to what rate, headers and loss leave, {which}");
            all.extend(worst(target, each.collect(), Bound::AtLeast(least)));
        }
        for (target, only_sealed, least) in [
            ("objects to the best of all others", false, 0.98),
            ("objects to the best of those that encrypt", true, 1.0),
        ] {
            let each = self.paths().filter_map(|path| {
                let at = point(path);
                let others = ROWS
                    .iter()
                    .filter(|row| ![OBJECT, CLEAR, AUTO].contains(&row.id) && (row.is_sealed || !only_sealed));
                let best = others.filter_map(|row| median(row.id, &at, GOODPUT)).max_by(f64::total_cmp)?;
                Some((median(OBJECT, &at, GOODPUT)? / best, at))
            });
            all.extend(worst(target.to_owned(), each.collect(), Bound::AtLeast(least)));
        }
        let each = self.paths().filter_map(|path| {
            let at = point(path);
            let best = FIXED.iter().filter_map(|row| median(row, &at, GOODPUT)).max_by(f64::total_cmp)?;
            Some((median(AUTO, &at, GOODPUT)? / best, at))
        });
        all.extend(worst("auto to the best of Phoebus's stacks".to_owned(), each.collect(), Bound::AtLeast(0.95)));
        let each = self.paths().filter_map(|path| {
            let at = point(path);
            let loss = path.1.get();
            Some((median(OBJECT, &at, WASTE)? - 100.0 * loss / (1.0 - loss), at))
        });
        let target = "waste of objects beyond what the loss makes needful, points".to_owned();
        all.extend(worst(target, each.collect(), Bound::AtMost(0.5)));
        all
    }

    fn chart(&self, results: &Results, loss: Probability) -> Chart {
        let drawn = ROWS.iter().filter_map(|row| Some((row, row.colour?)));
        let series = drawn.map(|(row, colour)| Series {
            name: row.title.to_owned(),
            colour,
            points: (0..)
                .zip(&self.rtts)
                .filter_map(|(x, rtt)| {
                    let summary = results.summary(&point((*rtt, loss)), row.id, GOODPUT)?;
                    Some(Point::of(f64::from(x), &summary))
                })
                .collect(),
        });
        Chart {
            title: format!("Objects and others at {} loss", percent(loss)),
            subtitle: format!("{}; medians with smallest and largest", self.rate),
            kind: Kind::Bars,
            x: Axis::new("round trip", Scale::Categories(self.rtts.iter().map(ToString::to_string).collect())),
            y: Axis::new("Mbit/s", Scale::Linear),
            series: series.filter(|series| !series.points.is_empty()).collect(),
            marks: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usual() -> Objects {
        let args = ObjectsArgs {
            common: Common::for_tests(),
            seconds: None,
            rtt: Vec::new(),
            loss: Vec::new(),
            rate: BitRate(1_000_000_000),
            quinn_perf: None,
            qcp: None,
            loopback: false,
            gateways: false,
            users: false,
        };
        Objects::new(&args)
    }

    #[test]
    fn every_path_is_a_point() {
        let usual = usual();
        assert_eq!(usual.points().len(), 16);
        assert!(usual.points().iter().any(|point| point.id == "200ms-5%"), "{:?}", usual.points());
        assert!(!usual.has("200ms-5%", QUINN) && usual.has("200ms-5%", OBJECT));
    }

    #[test]
    fn verdicts_use_the_worst_path() {
        let (usual, mut results) = (usual(), Results::of("objects"));
        for (at, row, rate, waste) in [
            ("25ms-1%", OBJECT, 900.0, 1.2),
            ("25ms-1%", "udt", 900.0, 0.0),
            ("25ms-1%", "quic", 600.0, 0.0),
            ("100ms-1%", OBJECT, 800.0, 1.6),
            ("100ms-1%", "iperf3-bbr", 850.0, 0.0),
        ] {
            results.add(at, row, 1, &[(GOODPUT, rate), (STEADY, rate), (WASTE, waste)]);
        }
        let verdicts = usual.verdicts(&results);
        let met: Vec<_> = verdicts.iter().map(Verdict::met).collect();
        assert_eq!(met, [false, false, true, false], "{verdicts:?}");
        assert!(verdicts[0].target.ends_with("(100ms-1%)"), "{verdicts:?}");
    }
}
