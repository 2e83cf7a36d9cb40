//! `phoebus bench gridftp`: `phoebus serve` and `phoebus cp` against `globus-gridftp-server` and `globus-url-copy`,
//! in all pairs, from memory to memory on loopback, where only the processors limit the rate (U6, U13). [`disk`] does
//! the same from disk to disk; [`wan`], [`concurrent`] and [`short`] use long paths.

mod carried;
mod concurrent;
mod disk;
mod hosts;
mod local_objects;
mod objects;
mod packets;
mod program;
mod qcp;
mod relayed_objects;
mod short;
mod single_put;
mod site;
mod starts;
mod stores;
mod timed;
mod uftp;
mod wan;

use super::Common;
use super::conditions::versions;
use super::engine::{Experiment, Label};
use super::flows::{GOODPUT, cpu};
use super::plot::{Axis, Chart, Colour, Kind, Point, Scale, Series};
use super::report::{Bound, Report, Verdict};
use super::results::{Metric, Reading, Results};
use super::stats::Summary;
use super::table::Table;
use super::transfer::{Client, Receiver, SET_UP, memory, watch};
pub(super) use concurrent::Concurrent;
pub(super) use disk::Disks;
use hosts::{AROUND, Hosts, Server};
pub(super) use local_objects::LocalObjects;
pub(super) use objects::Objects;
pub(crate) use objects::ObjectsArgs;
pub(super) use packets::Packets;
pub(crate) use packets::PacketsArgs;
pub(super) use relayed_objects::RelayedObjects;
pub(super) use short::Sizes;
pub(super) use starts::Starts;
use std::time::{Duration, Instant};
pub(super) use stores::Stores;
pub(crate) use stores::StoresArgs;
pub(super) use wan::LongPath;

/// Options of the experiment.
#[derive(Debug, clap::Args)]
pub(crate) struct GridftpArgs {
    #[command(flatten)]
    pub(super) common: Common,
    /// Length of each transfer, in seconds [default: 5, with --wan 15, with --concurrent 20].
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub(super) seconds: Option<u64>,
    /// From disk to disk, beside rsync; in the current directory.
    #[arg(long, conflicts_with = "seconds")]
    pub(super) disk: bool,
    #[command(flatten)]
    pub(super) sizes: short::ShortArgs,
    #[command(flatten)]
    pub(super) path: wan::WanArgs,
}

/// The experiment.
pub(super) struct Servers {
    seconds: u64,
}

/// A kind of transfer.
struct Transfer {
    id: &'static str,
    title: &'static str,
    /// Whether it goes to the server.
    is_put: bool,
    /// Number of connections in MODE E; `None` for MODE S.
    streams: Option<u32>,
}

const fn transfer(id: &'static str, title: &'static str, is_put: bool, streams: Option<u32>) -> Transfer {
    Transfer { id, title, is_put, streams }
}

const TRANSFERS: [Transfer; 8] = [
    transfer("put-s", "put, MODE S", true, None),
    transfer("put-1", "put, MODE E, 1 stream", true, Some(1)),
    transfer("put-8", "put, MODE E, 8 streams", true, Some(8)),
    transfer("put-64", "put, MODE E, 64 streams", true, Some(64)),
    transfer("get-s", "get, MODE S", false, None),
    transfer("get-1", "get, MODE E, 1 stream", false, Some(1)),
    transfer("get-8", "get, MODE E, 8 streams", false, Some(8)),
    transfer("get-64", "get, MODE E, 64 streams", false, Some(64)),
];

/// A row of the comparison.
struct Row {
    id: &'static str,
    title: &'static str,
    colour: Colour,
    server: Server,
    /// Our client with this verification; `None` for GCT's client.
    verify: Option<&'static str>,
}

const fn row(
    id: &'static str,
    title: &'static str,
    colour: Colour,
    server: Server,
    verify: Option<&'static str>,
) -> Row {
    Row { id, title, colour, server, verify }
}

const GCT: &str = "gct";
const SERVE: &str = "serve";
const CP: &str = "cp";
const BOTH: &str = "both";
const ROWS: [Row; 6] = [
    row(GCT, "globus-url-copy, globus-gridftp-server", Colour::Grey, Server::Gct, None),
    row(SERVE, "globus-url-copy, phoebus serve", Colour::Sky, Server::Ours, None),
    row(CP, "phoebus cp, globus-gridftp-server", Colour::Blue, Server::Gct, Some("none")),
    row(BOTH, "phoebus cp, phoebus serve", Colour::Orange, Server::Ours, Some("none")),
    row("adler32", "phoebus cp with ADLER32, phoebus serve", Colour::Vermilion, Server::Ours, Some("ADLER32")),
    row("crc32c", "phoebus cp with CRC32C, phoebus serve", Colour::Wine, Server::Ours, Some("CRC32C")),
];

/// More than any transfer moves: a terabyte.
const ENDLESS: &str = "1099511627776";

impl Servers {
    /// The experiment with these options.
    pub(super) fn new(args: &GridftpArgs) -> Self {
        Self { seconds: args.seconds.unwrap_or(if args.common.quick { 2 } else { 5 }) }
    }

    fn once(&self, hosts: &Hosts, transfer: &Transfer, row: &Row, limit: Duration) -> anyhow::Result<Vec<Reading>> {
        let server = hosts.server(row.server)?;
        let (memory, nowhere) = ("/dev/zero", "/dev/null");
        let (near, far) = (|path| format!("file://{path}"), |path| hosts.url(row.server, path));
        let ends = if transfer.is_put { [near(memory), far(nowhere)] } else { [far(memory), near(nowhere)] };
        let mut client = match row.verify {
            None => {
                let mut client = hosts.command("globus-url-copy")?;
                client.args(["-len", ENDLESS]);
                if let Some(streams) = transfer.streams {
                    client.args(["-p", &streams.to_string()]);
                }
                client
            }
            Some(verify) => {
                let mut client = hosts.phoebus()?;
                client.args(["cp", "--quiet", "--attempts", "1", "--verify", verify, "--length", ENDLESS]);
                if let Some(streams) = transfer.streams {
                    client.args(["--streams", &streams.to_string()]);
                }
                client
            }
        };
        client.args(ends);
        let began = Instant::now();
        let mut client = Client::start(client, &hosts.file("client.log")?)?;
        let name = match server.receiver() {
            Receiver::Children { name, .. } => Some(name),
            _ => None,
        };
        let pid = server.process.pid();
        let receiver = Receiver::Interface { of: pid, device: "lo", name };
        watch(&mut client, began, receiver, self.seconds, &[("server", pid)], limit)
    }
}

impl Experiment for Servers {
    type Bed = Hosts;

    fn name(&self) -> &'static str {
        "gridftp"
    }

    fn points(&self) -> Vec<Label> {
        TRANSFERS.iter().map(|transfer| Label::new(transfer.id, transfer.title)).collect()
    }

    fn rows(&self) -> Vec<Label> {
        ROWS.iter().map(|row| Label::new(row.id, row.title)).collect()
    }

    fn expected(&self, _: &str, _: &str) -> Duration {
        Duration::from_secs(self.seconds) + AROUND
    }

    fn set_up(&self, _: &str) -> anyhow::Result<Hosts> {
        Hosts::new()
    }

    fn conditions(&self, hosts: &Hosts) -> Vec<(String, String)> {
        let mut all = versions(&[("globus-gridftp-server", "--version"), ("globus-url-copy", "-version")]);
        all.extend(hosts.conditions());
        all.push((
            "test".into(),
            format!(
                "/dev/zero to /dev/null for {} s from the first byte of data on, as the loopback counts them; anonymous, in clear; checksums are computed where a row says so, as bytes pass the client",
                self.seconds
            ),
        ));
        all.push(("memory".into(), "what all processes of a role had at once at most, looked at each half second (Pss: what they share counts once)".into()));
        all
    }

    fn measure(&self, hosts: &mut Hosts, point: &str, row: &str, limit: Duration) -> anyhow::Result<Vec<Reading>> {
        let transfer = TRANSFERS.iter().find(|transfer| transfer.id == point);
        match transfer.zip(ROWS.iter().find(|other| other.id == row)) {
            Some((transfer, row)) => self.once(hosts, transfer, row, limit),
            None => Ok(Vec::new()),
        }
    }

    fn report(&self, results: &Results) -> Report {
        let mut tables = vec![
            table("Goodput", results, GOODPUT),
            table("Processor time of the server", results, cpu("server")),
            table("Processor time of the client", results, cpu("client")),
            table("Set-up, from the client's start to the first byte of data", results, SET_UP),
        ];
        let memories = [("Memory of the server", "server"), ("Memory of the client", "client")];
        tables.extend(memories.into_iter().filter_map(|(caption, role)| Some(table(caption, results, memory(role)?))));
        Report {
            title: "GridFTP on loopback".into(),
            method: format!(
                "From /dev/zero to /dev/null for {} s: either client with either server. Medians, with the smallest and the largest \
                 of the runs.",
                self.seconds
            ),
            tables,
            charts: vec![
                chart("rate", "Goodput", results, GOODPUT),
                chart("cpu", "Server", results, cpu("server")),
                chart("client-cpu", "Client", results, cpu("client")),
            ],
            verdicts: verdicts(results),
        }
    }
}

fn table(caption: &str, results: &Results, metric: Metric) -> Table {
    let heads = TRANSFERS.iter().map(|transfer| transfer.title.to_owned());
    let mut table = Table::new(format!("{caption}, {}", metric.unit), std::iter::once(String::new()).chain(heads));
    for row in ROWS.iter().filter(|row| TRANSFERS.iter().any(|transfer| results.tried(transfer.id, row.id))) {
        let cells = TRANSFERS.iter().map(|t| results.cell(t.id, row.id, metric, Summary::with_extremes));
        table.row(std::iter::once(row.title.to_owned()).chain(cells));
    }
    table
}

/// A row's title in the short form for drawings.
fn brief(title: &str) -> String {
    let title = title.replace("globus-url-copy", "GCT").replace("globus-gridftp-server", "GCT");
    title.replace("phoebus cp", "cp").replace("phoebus serve", "serve")
}

fn chart(name: &str, title: &str, results: &Results, metric: Metric) -> (String, Chart) {
    let series = ROWS.iter().map(|row| Series {
        name: brief(row.title),
        colour: row.colour,
        points: TRANSFERS
            .iter()
            .enumerate()
            .filter_map(|(place, t)| Some(Point::of(place as f64, &results.summary(t.id, row.id, metric)?)))
            .collect(),
    });
    let chart = Chart {
        title: format!("{title}, GridFTP on loopback"),
        subtitle: "memory to memory; medians with smallest and largest".into(),
        kind: Kind::Bars,
        x: Axis::new(
            "put and get in MODE S, and in MODE E over 1, 8 and 64 streams",
            Scale::Categories(TRANSFERS.iter().map(|transfer| transfer.id.to_owned()).collect()),
        ),
        y: Axis::new(format!("{}, {}", metric.name, metric.unit), Scale::Linear),
        series: series.filter(|series| !series.points.is_empty()).collect(),
        marks: Vec::new(),
    };
    (name.to_owned(), chart)
}

/// The worst case of all transfers over up to 8 streams, which is where the target applies: throughput relative to
/// GCT's programs with each other, and the processor time of each of our programs relative to the GCT program that it
/// replaces.
fn verdicts(results: &Results) -> Vec<Verdict> {
    let ratios = |row: &'static str, metric| {
        let asked = TRANSFERS.iter().filter(|transfer| transfer.streams.is_none_or(|streams| streams <= 8));
        asked.filter_map(move |transfer| {
            let median = |row| results.summary(transfer.id, row, metric).map(|summary| summary.median);
            Some((median(row)? / median(GCT)?, transfer.title))
        })
    };
    let rate = |row, what: &str| {
        let (measured, title) = ratios(row, GOODPUT).min_by(|a, b| a.0.total_cmp(&b.0))?;
        let target = format!("throughput of {what} to GCT's, at its worst ({title})");
        Some(Verdict { target, measured, bound: Bound::AtLeast(1.0) })
    };
    let used = |row, what: &str, role| {
        let (measured, title) = ratios(row, cpu(role)).max_by(|a, b| a.0.total_cmp(&b.0))?;
        let target = format!("processor time per GB of the {role}, {what}, to GCT's, at its worst ({title})");
        Some(Verdict { target, measured, bound: Bound::AtMost(1.0) })
    };
    let (serve, cp, both) = ("phoebus serve with GCT's client", "phoebus cp with GCT's server", "cp and serve");
    let all = [
        rate(SERVE, serve),
        rate(CP, cp),
        rate(BOTH, both),
        used(SERVE, serve, "server"),
        used(CP, cp, "client"),
        used(BOTH, both, "server"),
        used(BOTH, both, "client"),
    ];
    all.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdict_uses_the_worst_of_all_transfers() {
        let mut results = Results::of("gridftp");
        for (point, row, rate, used) in [
            ("put-s", GCT, 100.0, 1.0),
            ("put-s", SERVE, 150.0, 0.5),
            ("get-8", GCT, 100.0, 1.0),
            ("get-8", SERVE, 90.0, 1.2),
            // Beyond the target's range.
            ("get-64", GCT, 100.0, 1.0),
            ("get-64", SERVE, 10.0, 9.0),
        ] {
            results.add(point, row, 1, &[(GOODPUT, rate), (cpu("server"), used)]);
        }
        let verdicts: Vec<_> = verdicts(&results).into_iter().map(|v| (v.measured, v.met(), v.target)).collect();
        assert_eq!(verdicts.len(), 2);
        assert_eq!((verdicts[0].0, verdicts[0].1), (0.9, false));
        assert_eq!((verdicts[1].0, verdicts[1].1), (1.2, false));
        assert!(verdicts.iter().all(|verdict| verdict.2.ends_with("(get, MODE E, 8 streams)")), "{verdicts:?}");
        assert_eq!(table("x", &results, GOODPUT).rows[0][1], "100");
    }
}
