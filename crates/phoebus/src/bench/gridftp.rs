//! `phoebus bench gridftp`: `phoebus serve` beside `globus-gridftp-server`, both with `globus-url-copy`, from memory to memory on
//! loopback, where nothing but the processors holds them up (U6, U13).

use super::Common;
use super::conditions::versions;
use super::engine::{Experiment, Label};
use super::flows::{GOODPUT, cpu};
use super::plot::{Axis, Chart, Colour, Kind, Point, Scale, Series};
use super::process::{self, Background};
use super::report::{Bound, Report, Verdict};
use super::results::{Metric, Reading, Results};
use super::stats::Summary;
use super::table::Table;
use super::transfer::{Client, Receiver, SET_UP, watch};
use anyhow::Context;
use phoebus_wan::testbed::{HostSpec, Scenario, Testbed};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Options of the experiment.
#[derive(Debug, clap::Args)]
pub(crate) struct GridftpArgs {
    #[command(flatten)]
    pub(super) common: Common,
    /// Length of each transfer, in seconds [default: 5, with --quick 2].
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: Option<u64>,
}

/// The experiment.
pub(super) struct Servers {
    seconds: u64,
}

/// A way to transfer.
struct Transfer {
    id: &'static str,
    title: &'static str,
    /// Towards the server.
    is_put: bool,
    /// What the client is told, beside whereto.
    options: &'static [&'static str],
}

const fn transfer(id: &'static str, title: &'static str, is_put: bool, options: &'static [&'static str]) -> Transfer {
    Transfer { id, title, is_put, options }
}

const TRANSFERS: [Transfer; 6] = [
    transfer("put-s", "put, MODE S", true, &[]),
    transfer("put-1", "put, MODE E, 1 stream", true, &["-p", "1"]),
    transfer("put-8", "put, MODE E, 8 streams", true, &["-p", "8"]),
    transfer("get-s", "get, MODE S", false, &[]),
    transfer("get-1", "get, MODE E, 1 stream", false, &["-p", "1"]),
    transfer("get-8", "get, MODE E, 8 streams", false, &["-p", "8"]),
];

const GCT: &str = "gct";
const OURS: &str = "phoebus";
const ROWS: [(&str, &str, Colour); 2] =
    [(GCT, "globus-gridftp-server", Colour::Grey), (OURS, "phoebus serve", Colour::Orange)];

const HOST: &str = "loop";
const LOCAL: &str = "127.0.0.1";
const PORT: u16 = 2811;
/// More than any transfer moves: a terabyte.
const ENDLESS: &str = "1099511627776";
/// Starting and ending.
const AROUND: Duration = Duration::from_secs(3);
/// Where Debian has servers.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

impl Servers {
    /// The experiment that `args` ask for.
    pub(super) fn new(args: &GridftpArgs) -> Self {
        Self { seconds: args.seconds.unwrap_or(if args.common.quick { 2 } else { 5 }) }
    }

    fn once(&self, room: &Room, transfer: &Transfer, row: &str, limit: Duration) -> anyhow::Result<Vec<Reading>> {
        let server = room.server(row)?;
        let [memory, remote] = ["/dev/zero", "/dev/null"];
        let url = |path: &str| format!("ftp://{LOCAL}:{PORT}{path}");
        let ends = match transfer.is_put {
            true => [format!("file://{memory}"), url(remote)],
            false => [url(memory), format!("file://{remote}")],
        };
        let mut client = room.command("globus-url-copy")?;
        client.args(transfer.options).args(["-len", ENDLESS]).args(ends);
        let began = Instant::now();
        let mut client = Client::start(client, &room.file("client.log"))?;
        let receiver = match (transfer.is_put, row) {
            (false, _) => Receiver::Process(client.pid()),
            (true, OURS) => Receiver::Process(server.pid()),
            (true, _) => Receiver::Children { of: server.pid(), name: "globus-gridftp-" },
        };
        watch(&mut client, began, receiver, self.seconds, &[("server", server.pid())], limit)
    }
}

/// A host of its own, with a place for files.
pub(super) struct Room {
    host: Testbed,
    files: tempfile::TempDir,
}

impl Room {
    fn new() -> anyhow::Result<Self> {
        let host = Testbed::up(&Scenario { hosts: vec![HostSpec::new(HOST)], stock: true, ..Scenario::default() })?;
        let room = Self { host, files: tempfile::tempdir().context("no place for files")? };
        // The default of a network namespace can be only what the machine allows all users.
        let mut route = room.command("ip")?;
        route.args(["route", "replace", "local", LOCAL, "dev", "lo", "table", "local", "congctl", "cubic"]);
        process::run("ip, of iproute2", route, AROUND).context("no route under cubic")?;
        Ok(room)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.files.path().join(name)
    }

    fn command(&self, program: impl AsRef<Path>) -> anyhow::Result<Command> {
        let mut command = self.host.exec(HOST, program.as_ref())?;
        command.env_clear().env("PATH", PATH).env("HOME", "/nonexistent").current_dir(self.files.path());
        Ok(command)
    }

    /// One that lets everybody in.
    fn server(&self, row: &str) -> anyhow::Result<Background> {
        let listen = format!("{LOCAL}:{PORT}");
        let (name, server) = if row == OURS {
            let mut server = self.command(std::env::current_exe().context("where this program is")?)?;
            server.args(["serve", "--root", "/", "--anonymous", "--listen", &listen]);
            ("phoebus serve", server)
        } else {
            let mut server = self.command("globus-gridftp-server")?;
            server.args(["-p", &PORT.to_string(), "-control-interface", LOCAL, "-data-interface", LOCAL]);
            server.args(["-c", "/dev/null", "-aa", "-anonymous-user", "root", "-allow-root", "-l"]);
            server.arg(self.file("server.log"));
            ("globus-gridftp-server", server)
        };
        Background::start(name, server)?.listening(PORT)
    }
}

impl Experiment for Servers {
    type Bed = Room;

    fn name(&self) -> &'static str {
        "gridftp"
    }

    fn points(&self) -> Vec<Label> {
        TRANSFERS.iter().map(|transfer| Label::new(transfer.id, transfer.title)).collect()
    }

    fn rows(&self) -> Vec<Label> {
        ROWS.iter().map(|(id, title, _)| Label::new(*id, *title)).collect()
    }

    fn expected(&self, _: &str, _: &str) -> Duration {
        Duration::from_secs(self.seconds) + AROUND
    }

    fn set_up(&self, _: &str) -> anyhow::Result<Room> {
        Room::new()
    }

    fn conditions(&self, room: &Room) -> Vec<(String, String)> {
        let mut all = versions(&[("globus-gridftp-server", "--version"), ("globus-url-copy", "-version")]);
        let hosts = room.host.report().hosts.into_iter();
        all.extend(hosts.map(|host| ("loopback of its own".to_owned(), host.conditions.to_string())));
        all.push(("congestion control".into(), "cubic, by the route".into()));
        all.push((
            "test".into(),
            format!(
                "globus-url-copy of /dev/zero to /dev/null for {} s from the first byte of data at the receiver on; anonymous, in \
                 clear, no checksums",
                self.seconds
            ),
        ));
        all
    }

    fn measure(&self, room: &mut Room, point: &str, row: &str, limit: Duration) -> anyhow::Result<Vec<Reading>> {
        match TRANSFERS.iter().find(|transfer| transfer.id == point) {
            Some(transfer) => self.once(room, transfer, row, limit),
            None => Ok(Vec::new()),
        }
    }

    fn report(&self, results: &Results) -> Report {
        Report {
            title: "GridFTP servers on loopback".into(),
            method: format!(
                "`globus-url-copy` from /dev/zero to /dev/null for {} s, with a server of either kind at the other end. Medians, \
                 with the smallest and the largest of the runs.",
                self.seconds
            ),
            tables: vec![
                table("Goodput", results, GOODPUT),
                table("Processor time of the server", results, cpu("server")),
                table("Processor time of the client", results, cpu("client")),
                table("Set-up, from the client's start to the first byte of data", results, SET_UP),
            ],
            charts: vec![chart("rate", "Goodput", results, GOODPUT), chart("cpu", "Server", results, cpu("server"))],
            verdicts: verdicts(results),
        }
    }
}

fn table(caption: &str, results: &Results, metric: Metric) -> Table {
    let heads = ROWS.iter().map(|(_, title, _)| (*title).to_owned());
    let mut table = Table::new(format!("{caption}, {}", metric.unit), std::iter::once(String::new()).chain(heads));
    for transfer in &TRANSFERS {
        let cells = ROWS.iter().map(|(row, ..)| results.cell(transfer.id, row, metric, Summary::with_extremes));
        table.row(std::iter::once(transfer.title.to_owned()).chain(cells));
    }
    table
}

fn chart(name: &str, title: &str, results: &Results, metric: Metric) -> (String, Chart) {
    let series = ROWS.iter().map(|(row, title, colour)| Series {
        name: (*title).to_owned(),
        colour: *colour,
        points: TRANSFERS
            .iter()
            .enumerate()
            .filter_map(|(place, t)| Some(Point::of(place as f64, &results.summary(t.id, row, metric)?)))
            .collect(),
    });
    let chart = Chart {
        title: format!("{title}, with globus-url-copy on loopback"),
        subtitle: "memory to memory; medians with smallest and largest".into(),
        kind: Kind::Bars,
        x: Axis::new(
            "put and get in MODE S, and in MODE E over 1 and 8 streams",
            Scale::Categories(TRANSFERS.iter().map(|transfer| transfer.id.to_owned()).collect()),
        ),
        y: Axis::new(format!("{}, {}", metric.name, metric.unit), Scale::Linear),
        series: series.filter(|series| !series.points.is_empty()).collect(),
        marks: Vec::new(),
    };
    (name.to_owned(), chart)
}

/// At its worst of all transfers: throughput to GCT's, and processor time of the server to GCT's.
fn verdicts(results: &Results) -> Vec<Verdict> {
    let ratios = |metric| {
        TRANSFERS.iter().filter_map(move |transfer| {
            let median = |row| results.summary(transfer.id, row, metric).map(|summary| summary.median);
            Some((median(OURS)? / median(GCT)?, transfer.title))
        })
    };
    let least = ratios(GOODPUT).min_by(|a, b| a.0.total_cmp(&b.0));
    let most = ratios(cpu("server")).max_by(|a, b| a.0.total_cmp(&b.0));
    let verdict = |what: &str, worst: Option<(f64, &str)>, bound| {
        let (measured, title) = worst?;
        Some(Verdict { target: format!("{what}, at its worst ({title})"), measured, bound })
    };
    [
        verdict("throughput of phoebus serve to globus-gridftp-server's", least, Bound::AtLeast(1.0)),
        verdict("its processor time per GB to the same", most, Bound::AtMost(1.0)),
    ]
    .into_iter()
    .flatten()
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_of_all_transfers_counts() {
        let mut results = Results::of("gridftp");
        for (point, row, rate, used) in [
            ("put-s", GCT, 100.0, 1.0),
            ("put-s", OURS, 150.0, 0.5),
            ("get-8", GCT, 100.0, 1.0),
            ("get-8", OURS, 90.0, 1.2),
        ] {
            results.add(point, row, 1, &[(GOODPUT, rate), (cpu("server"), used)]);
        }
        let verdicts: Vec<_> = verdicts(&results).into_iter().map(|v| (v.measured, v.met(), v.target)).collect();
        assert_eq!((verdicts[0].0, verdicts[0].1), (0.9, false));
        assert_eq!((verdicts[1].0, verdicts[1].1), (1.2, false));
        assert!(verdicts.iter().all(|verdict| verdict.2.ends_with("(get, MODE E, 8 streams)")), "{verdicts:?}");
        assert_eq!(table("x", &results, GOODPUT).rows[0][1..], ["100", "150"]);
    }
}
