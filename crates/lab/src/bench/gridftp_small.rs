//! `phoebus bench small`: a directory of many short files, copied on one machine, and to and from a server at several round
//! trips: `phoebus cp` with either server beside `globus-url-copy -cc 8 -pp`, `rsync --fsync`, rclone and scp.
//!
//! The programs do not do the same: only `phoebus cp` verifies every file before it publishes it under its name, and only it
//! and `rsync --fsync` sync what they write.

use super::Common;
use super::conditions::{file_system, versions};
use super::engine::{Experiment, Label};
use super::process::{self, Background, NO_HOME};
use super::report::{Bound, Report, Verdict};
use super::results::{Metric, Reading, Results};
use super::sshd::Sshd;
use super::stats::Summary;
use super::table::Table;
use super::wan::control_routes;
use anyhow::{Context, anyhow, bail};
use phoebus_proto::units::{ByteSize, Span};
use phoebus_wan::testbed::{Scenario, Testbed};
use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Options of the experiment.
#[derive(Debug, clap::Args)]
pub(crate) struct SmallArgs {
    #[command(flatten)]
    pub(super) common: Common,
    /// How many files [default: 10000, with --quick 1000].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    files: Option<u32>,
    /// The size of each.
    #[arg(long, default_value = "10kB")]
    size: ByteSize,
    /// Round trips of the path to the server; 0 is loopback [default: 0ms,1ms,10ms,50ms, with --quick 0ms].
    #[arg(long, value_delimiter = ',')]
    rtt: Vec<Span>,
}

/// The experiment.
pub(super) struct Small {
    files: u32,
    size: usize,
    points: Vec<Point>,
}

/// Number of files over the time from the client's start to its end.
const RATE: Metric = Metric { name: "files", unit: "1/s" };
/// The time from the client's start to its end; for scp and rclone, scaled to the number of files of the others.
const TIME: Metric = Metric { name: "time", unit: "s" };

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    /// A copy on one machine.
    Local,
    Put(Duration),
    Get(Duration),
}

struct Point {
    act: Act,
    id: String,
    title: String,
}

const GUC: &str = "guc";
const GUC_VERIFIED: &str = "guc-verified";
const OURS: &str = "cp";
const BOTH: &str = "both";
const RSYNC: &str = "rsync";
const UNSYNCED: &str = "rsync-unsynced";
const RCLONE: &str = "rclone";
const SCP: &str = "scp";
const ROWS: [(&str, &str); 8] = [
    (GUC, "globus-url-copy -cc 8 -pp, GCT's server"),
    (GUC_VERIFIED, "the same with -verify-checksum, MD5"),
    (OURS, "phoebus cp, GCT's server"),
    (BOTH, "phoebus cp, phoebus serve"),
    (RSYNC, "rsync -a --fsync, over ssh"),
    (UNSYNCED, "rsync -a, over ssh"),
    (RCLONE, "rclone copy --transfers 16, sftp"),
    (SCP, "scp -r; cp -r"),
];

/// The number of files for scp over a path and for rclone over SSH, whose time is then scaled. scp waits a round trip or two
/// for each file, and rclone has a program compute a checksum at the far side.
const FEW: u32 = 500;
const PORT: u16 = 2811;
/// The congestion control of all senders.
const CONTROL: &str = "cubic";
/// For so long ext4 gives no inode number out again, and looks for others at every new file.
const DELETED: Duration = Duration::from_secs(6);
/// The directories in which Debian installs servers.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

impl Act {
    fn rtt(self) -> Duration {
        match self {
            Self::Local => Duration::ZERO,
            Self::Put(rtt) | Self::Get(rtt) => rtt,
        }
    }
}

impl Small {
    /// The experiment with these options.
    pub(super) fn new(args: &SmallArgs) -> Self {
        let quick = args.common.quick;
        let usual: &[u64] = if quick { &[0] } else { &[0, 1, 10, 50] };
        let mut rtts: Vec<Duration> = args.rtt.iter().map(|span| span.0).collect();
        if rtts.is_empty() {
            rtts = usual.iter().map(|rtt| Duration::from_millis(*rtt)).collect();
        }
        let of = |act: Act, what: &str| match act {
            Act::Local => Point { act, id: "local".into(), title: "local".into() },
            _ => {
                let rtt = Span(act.rtt());
                Point { act, id: format!("{what}-{rtt}"), title: format!("{what}, {rtt}") }
            }
        };
        let over = rtts.into_iter().flat_map(|rtt| [of(Act::Put(rtt), "put"), of(Act::Get(rtt), "get")]);
        let points = std::iter::once(of(Act::Local, "")).chain(over).collect();
        let files = args.files.unwrap_or(if quick { 1000 } else { 10_000 });
        Self { files, size: usize::try_from(args.size.0).unwrap_or(usize::MAX).min(1 << 20), points }
    }

    fn act(&self, point: &str) -> Act {
        self.points.iter().find(|known| known.id == point).map_or(Act::Local, |known| known.act)
    }

    /// The number of files that a row copies.
    fn count(&self, act: Act, row: &str) -> u32 {
        let is_slow = (row == SCP && act.rtt() > Duration::ZERO) || (row == RCLONE && act != Act::Local);
        if is_slow { FEW.min(self.files) } else { self.files }
    }

    fn once(&self, hosts: &mut Hosts, act: Act, row: &str, limit: Duration) -> anyhow::Result<Vec<Reading>> {
        let count = self.count(act, row);
        let from = hosts.files(count, self.size)?;
        let target = hosts.path("target");
        if target.exists() {
            fs::remove_dir_all(&target).context("what was copied before")?;
            std::thread::sleep(DELETED);
        }
        let _server = if act == Act::Local { None } else { Some(hosts.server(row)?) };
        let mut client = hosts.client(act, row, &from, &target)?;
        client.env("HOME", hosts.path("home"));
        let began = Instant::now();
        process::run(row, client, limit)?;
        let seconds = began.elapsed().as_secs_f64();
        let came = fs::read_dir(&target).context("nothing came")?.count();
        if came != count as usize {
            bail!("{came} of {count} files came");
        }
        let whole = seconds * f64::from(self.files) / f64::from(count);
        Ok(vec![(RATE, f64::from(count) / seconds), (TIME, whole)])
    }
}

/// Two hosts, with a directory for files that both see.
pub(super) struct Hosts {
    testbed: Testbed,
    /// The server's host, and its address there.
    far: &'static str,
    address: IpAddr,
    sshd: Sshd,
    place: tempfile::TempDir,
}

fn program() -> anyhow::Result<String> {
    let path = std::env::current_exe().context("where this program is")?;
    path.into_os_string().into_string().map_err(|_| anyhow!("this program's name is not UTF-8"))
}

impl Hosts {
    /// Two hosts, with this round trip between them. Without one, the second is the first.
    fn new(rtt: Duration) -> anyhow::Result<Self> {
        let delay = Span(rtt / 2);
        let scenario = format!(
            "seed = 1\n[[host]]\nname = \"src\"\n[[host]]\nname = \"dst\"\n[[link]]\nname = \"wan\"\n\
             ends = [\"src\", \"dst\"]\ndelay = \"{delay}\"\nrate = \"1gbit\"\n"
        );
        let testbed = Testbed::up(&Scenario::parse(&scenario, "two hosts")?)?;
        let address = testbed.addresses("dst")?.iter().copied().find(IpAddr::is_ipv4);
        let address = address.ok_or_else(|| anyhow!("dst has no IPv4 address"))?;
        let (far, address) = if rtt.is_zero() { ("src", Ipv4Addr::LOCALHOST.into()) } else { ("dst", address) };
        let place = tempfile::tempdir().context("no place for files")?;
        let sshd = Sshd::new(place.path(), address)?;
        let hosts = Self { testbed, far, address, sshd, place };
        for host in ["src", "dst"] {
            control_routes(hosts.command(host, "sh")?, CONTROL)?;
        }
        fs::create_dir(hosts.path("home")).context("no place for files")?;
        Ok(hosts)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    fn command(&self, host: &str, program: &str) -> anyhow::Result<Command> {
        let mut command = self.testbed.exec(host, program)?;
        command.env_clear().env("PATH", PATH).env("HOME", NO_HOME).current_dir(self.place.path());
        Ok(command)
    }

    /// A directory of `count` files of `size` bytes, no two of them alike.
    fn files(&self, count: u32, size: usize) -> anyhow::Result<PathBuf> {
        let dir = self.path(&format!("source-{count}"));
        if !dir.exists() {
            fs::create_dir(&dir)?;
            for i in 0..count {
                let bytes: Vec<u8> = (0..size).map(|at| (at as u32).wrapping_mul(i | 1).to_le_bytes()[1]).collect();
                fs::write(dir.join(format!("file-{i}")), bytes)?;
            }
        }
        Ok(dir)
    }

    /// The command that copies `from` to `target`.
    fn client(&self, act: Act, row: &str, from: &Path, target: &Path) -> anyhow::Result<Command> {
        let (from, target) = (from.display().to_string(), target.display().to_string());
        let ssh = self.sshd.options();
        // The ends of a copy, where the far one has `before` in front of it.
        let ends = |before: &str, near: &str| match act {
            Act::Local => [format!("{near}{from}"), format!("{near}{target}")],
            Act::Put(_) => [format!("{near}{from}"), format!("{before}{target}")],
            Act::Get(_) => [format!("{before}{from}"), format!("{near}{target}")],
        };
        let with_slash = |ends: [String; 2]| ends.map(|end| end + "/");
        let ftp = format!("ftp://{}:{PORT}", self.address);
        let shell = format!("root@{}:", self.address);
        let (program, args): (String, Vec<String>) = match row {
            GUC | GUC_VERIFIED => {
                let mut args: Vec<String> = ["-cc", "8", "-pp", "-r", "-cd"].map(str::to_owned).into();
                if row == GUC_VERIFIED {
                    args.extend(["-verify-checksum", "-checksum-alg", "MD5"].map(str::to_owned));
                }
                args.extend(with_slash(ends(&ftp, "file://")));
                ("globus-url-copy".into(), args)
            }
            RSYNC | UNSYNCED => {
                let mut args = vec!["-a".to_owned(), "-e".to_owned(), format!("ssh -4 -q {}", ssh.join(" "))];
                args.extend((row == RSYNC).then(|| "--fsync".to_owned()));
                ("rsync".into(), args.into_iter().chain(with_slash(ends(&shell, ""))).collect())
            }
            RCLONE => {
                let sftp = format!(
                    ":sftp,host={},user=root,key_file={},shell_type=unix:",
                    self.address,
                    self.sshd.key().display()
                );
                let args = ["copy", "-q", "--transfers", "16", "--checkers", "16"].map(str::to_owned).into_iter();
                ("rclone".into(), args.chain(ends(&sftp, "")).collect())
            }
            SCP if act == Act::Local => ("cp".into(), ["-r".to_owned()].into_iter().chain(ends("", "")).collect()),
            SCP => {
                let args = ["-4", "-q", "-B", "-r"].map(str::to_owned).into_iter().chain(ssh);
                ("scp".into(), args.chain(ends(&shell, "")).collect())
            }
            _ => {
                let args = ["cp", "-r", "-q"].map(str::to_owned).into_iter();
                (program()?, args.chain(with_slash(ends(&ftp, ""))).collect())
            }
        };
        let mut client = self.command("src", &program)?;
        client.args(args);
        Ok(client)
    }

    fn server(&self, row: &str) -> anyhow::Result<Background> {
        let port = PORT.to_string();
        let (name, port, command) = match row {
            BOTH => {
                let mut server = self.command(self.far, &program()?)?;
                server.args(["serve", "--root", "/", "--anonymous", "--listen", &format!("0.0.0.0:{port}")]);
                ("phoebus serve", PORT, server)
            }
            SCP | RSYNC | UNSYNCED | RCLONE => return self.sshd.start(self.command(self.far, "unshare")?),
            _ => {
                let mut server = self.command(self.far, "globus-gridftp-server")?;
                server.args(["-p", &port, "-c", "/dev/null", "-aa", "-anonymous-user", "root", "-allow-root", "-l"]);
                server.arg(self.path("server.log"));
                ("globus-gridftp-server", PORT, server)
            }
        };
        Background::start(name, command)?.listening(port)
    }
}

impl Experiment for Small {
    type Bed = Hosts;

    fn name(&self) -> &'static str {
        "small"
    }

    fn points(&self) -> Vec<Label> {
        self.points.iter().map(|point| Label::new(&point.id, &point.title)).collect()
    }

    fn rows(&self) -> Vec<Label> {
        ROWS.iter().map(|(id, title)| Label::new(*id, *title)).collect()
    }

    fn expected(&self, point: &str, row: &str) -> Duration {
        let act = self.act(point);
        let each = match row {
            SCP => act.rtt() * 4,
            RCLONE if act != Act::Local => act.rtt() * 2 + Duration::from_millis(40),
            _ => act.rtt() / 4,
        };
        DELETED + (each + Duration::from_micros(600)) * self.count(act, row)
    }

    fn has(&self, point: &str, row: &str) -> bool {
        // Without a server, these are the same as others.
        self.act(point) != Act::Local || ![OURS, GUC_VERIFIED].contains(&row)
    }

    fn set_up(&self, point: &str) -> anyhow::Result<Hosts> {
        Hosts::new(self.act(point).rtt())
    }

    fn conditions(&self, hosts: &Hosts) -> Vec<(String, String)> {
        let mut all = versions(&[
            ("globus-gridftp-server", "--version"),
            ("globus-url-copy", "-version"),
            ("ssh", "-V"),
            ("rsync", "--version"),
            ("rclone", "version"),
        ]);
        let place = hosts.place.path().parent().unwrap_or(hosts.place.path()).to_path_buf();
        let hosts = hosts.testbed.report().hosts.into_iter();
        all.extend(hosts.map(|host| (format!("host {}", host.name), host.conditions.to_string())));
        all.push(("link".into(), format!("1 Gbit/s, no loss; {CONTROL}, by the routes; at 0 ms loopback")));
        all.push((
            "files".into(),
            format!(
                "{} of {} bytes, in one directory below {}, on {}; scp over a link and rclone over SSH have {FEW}",
                self.files,
                self.size,
                place.display(),
                file_system(&place)
            ),
        ));
        all
    }

    fn measure(&self, hosts: &mut Hosts, point: &str, row: &str, limit: Duration) -> anyhow::Result<Vec<Reading>> {
        self.once(hosts, self.act(point), row, limit)
    }

    fn report(&self, results: &Results) -> Report {
        Report {
            title: "Small files".into(),
            method: format!(
                "A directory of {} files of {} bytes, from the client's start to its end: copied on one machine, and put to and got \
                 from a server at the round trips of the columns. `phoebus cp` verifies each file, syncs it, and gives it its name only \
                 then, and GCT's server leaves syncing to its system; `rsync --fsync` syncs; rclone and `-verify-checksum` verify; the others do \
                 neither. scp over a link and rclone over SSH copy {FEW} \
                 files, and their time is scaled. \
                 Medians, with the smallest and the largest of the runs.",
                self.files, self.size
            ),
            tables: vec![self.table("Files a second", results, RATE), self.table("Time for all", results, TIME)],
            charts: Vec::new(),
            verdicts: self.verdicts(results),
        }
    }
}

impl Small {
    fn table(&self, caption: &str, results: &Results, metric: Metric) -> Table {
        let heads = self.points.iter().map(|point| point.title.clone());
        let mut table = Table::new(format!("{caption}, {}", metric.unit), std::iter::once(String::new()).chain(heads));
        for (row, title) in ROWS {
            let cells = self.points.iter().map(|point| results.cell(&point.id, row, metric, Summary::with_extremes));
            table.row(std::iter::once(title.to_owned()).chain(cells));
        }
        table
    }

    fn verdicts(&self, results: &Results) -> Vec<Verdict> {
        let verdict = |point: &Point, own, who: &str, other, than: &str| {
            let median = |row| results.summary(&point.id, row, RATE).map(|summary| summary.median);
            let measured = median(own)? / median(other)?;
            let target = format!("{who}: files a second to those of {than} ({})", point.title);
            Some(Verdict { target, measured, bound: Bound::AtLeast(1.0) })
        };
        let guc = "globus-url-copy -cc 8 -pp with GCT's server";
        let each = self.points.iter().flat_map(|point| match point.act {
            Act::Local => vec![verdict(point, BOTH, "phoebus cp", RSYNC, "rsync -a --fsync")],
            _ => vec![
                verdict(point, OURS, "phoebus cp with GCT's server", GUC, guc),
                verdict(
                    point,
                    OURS,
                    "phoebus cp with GCT's server",
                    GUC_VERIFIED,
                    &format!("{guc} and -verify-checksum"),
                ),
                verdict(point, BOTH, "phoebus cp with phoebus serve", GUC, guc),
            ],
        });
        each.flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Args {
        #[command(flatten)]
        small: SmallArgs,
    }

    #[test]
    fn report_compares_rates_in_each_direction() {
        let args = Args::parse_from(["small", "--rtt", "0ms,50ms", "--files", "10"]);
        let small = Small::new(&args.small);
        let ids: Vec<_> = small.points.iter().map(|point| point.id.as_str()).collect();
        assert_eq!(ids, ["local", "put-0s", "get-0s", "put-50ms", "get-50ms"]);
        let mut results = Results::of("small");
        for (point, row, rate) in [
            ("local", RSYNC, 30.0),
            ("local", BOTH, 60.0),
            ("put-50ms", GUC, 60.0),
            ("put-50ms", OURS, 90.0),
            ("get-50ms", GUC, 100.0),
        ] {
            results.add(point, row, 1, &[(RATE, rate)]);
        }
        let found: Vec<_> =
            small.verdicts(&results).into_iter().map(|verdict| (verdict.measured, verdict.met())).collect();
        assert_eq!(found, [(2.0, true), (1.5, true)]);
        let row = &small.table("x", &results, RATE).rows[2];
        assert_eq!(row[..], ["phoebus cp, GCT's server", "–", "–", "–", "90.0", "–"]);
        assert!(!small.has("local", OURS) && small.has("put-0s", OURS));
    }
}
