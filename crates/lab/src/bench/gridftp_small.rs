//! `phoebus bench small`: a directory of 10 000 files of 10 KB to and from a server 50 ms away: `phoebus cp` against
//! `globus-url-copy -cc 8 -pp`, both with GCT's server, `phoebus cp` with `phoebus serve`, and `scp -r`.
//!
//! The programs do not do the same: only `phoebus cp` verifies every file before it publishes it under its name.

use super::Common;
use super::conditions::versions;
use super::engine::{Experiment, Label};
use super::process::{self, Background};
use super::report::{Bound, Report, Verdict};
use super::results::{Metric, Reading, Results};
use super::stats::Summary;
use super::table::Table;
use super::wan::control_routes;
use anyhow::{Context, anyhow, bail};
use phoebus_wan::testbed::{Scenario, Testbed};
use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;
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
}

/// The experiment.
pub(super) struct Small {
    files: u32,
}

/// Number of files over the time from the client's start to its end.
const RATE: Metric = Metric { name: "files", unit: "1/s" };
/// The time from the client's start to its end; for scp, scaled to the number of files of the others.
const TIME: Metric = Metric { name: "time", unit: "s" };

const POINTS: [(&str, &str); 2] = [("put", "put"), ("get", "get")];
const GUC: &str = "guc";
const OURS: &str = "cp";
const BOTH: &str = "both";
const SCP: &str = "scp";
const ROWS: [(&str, &str); 4] = [
    (GUC, "globus-url-copy -cc 8 -pp, GCT's server"),
    (OURS, "phoebus cp, GCT's server"),
    (BOTH, "phoebus cp, phoebus serve"),
    (SCP, "scp -r"),
];

const SIZE: usize = 10_000;
/// The number of files for scp, whose time is then scaled: it waits a round trip or two for each file.
const FOR_SCP: u32 = 500;
const PORT: u16 = 2811;
const SCENARIO: &str = "seed = 1\n[[host]]\nname = \"src\"\n[[host]]\nname = \"dst\"\n[[link]]\nname = \"wan\"\n\
                        ends = [\"src\", \"dst\"]\ndelay = \"25ms\"\nrate = \"1gbit\"\n";
/// The congestion control of all senders.
const CONTROL: &str = "cubic";
const KEY: Duration = Duration::from_secs(10);
/// The directories in which Debian installs servers.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

impl Small {
    /// The experiment with these options.
    pub(super) fn new(args: &SmallArgs) -> Self {
        Self { files: args.files.unwrap_or(if args.common.quick { 1000 } else { 10_000 }) }
    }

    fn once(&self, hosts: &Hosts, is_put: bool, row: &str, limit: Duration) -> anyhow::Result<Vec<Reading>> {
        let count = if row == SCP { FOR_SCP.min(self.files) } else { self.files };
        let from = hosts.files(count)?;
        let target = hosts.path("target");
        if target.exists() {
            fs::remove_dir_all(&target).context("what was copied before")?;
        }
        let _server = hosts.server(row)?;
        let (near, far) = if is_put { (&from, &target) } else { (&target, &from) };
        let url = format!("ftp://{}:{PORT}{}/", hosts.address, far.display());
        let ends = |near: String| if is_put { [near, url.clone()] } else { [url.clone(), near] };
        let mut client = match row {
            GUC => {
                let mut client = hosts.command("src", "globus-url-copy")?;
                client.args(["-cc", "8", "-pp", "-r", "-cd"]).args(ends(format!("file://{}/", near.display())));
                client
            }
            SCP => {
                let mut client = hosts.command("src", "scp")?;
                let known = format!("UserKnownHostsFile={}", hosts.path("known").display());
                client.args([
                    "-4",
                    "-q",
                    "-B",
                    "-r",
                    "-F",
                    "/dev/null",
                    "-o",
                    "IdentitiesOnly=yes",
                    "-o",
                    &known,
                    "-i",
                ]);
                client.arg(hosts.path("ssh-user"));
                let far = format!("root@dst:{}", far.display());
                client.args(if is_put { [near.display().to_string(), far] } else { [far, near.display().to_string()] });
                client
            }
            _ => {
                let mut client = hosts.command("src", &program()?)?;
                client.args(["cp", "-r", "-q"]).args(ends(format!("{}/", near.display())));
                client
            }
        };
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
    address: IpAddr,
    place: tempfile::TempDir,
}

fn program() -> anyhow::Result<String> {
    let path = std::env::current_exe().context("where this program is")?;
    path.into_os_string().into_string().map_err(|_| anyhow!("this program's name is not UTF-8"))
}

impl Hosts {
    fn new() -> anyhow::Result<Self> {
        let testbed = Testbed::up(&Scenario::parse(SCENARIO, "two hosts")?)?;
        let address = testbed.addresses("dst")?.iter().copied().find(IpAddr::is_ipv4);
        let address = address.ok_or_else(|| anyhow!("dst has no IPv4 address"))?;
        let hosts = Self { testbed, address, place: tempfile::tempdir().context("no place for files")? };
        for host in ["src", "dst"] {
            control_routes(hosts.command(host, "sh")?, CONTROL)?;
        }
        fs::create_dir(hosts.path("home")).context("no place for files")?;
        for key in ["ssh-host", "ssh-user"] {
            let mut keygen = Command::new("ssh-keygen");
            keygen.args(["-q", "-t", "ed25519", "-N", "", "-C", "phoebus-bench", "-f"]).arg(hosts.path(key));
            process::run("ssh-keygen", keygen, KEY)?;
        }
        fs::write(hosts.path("known"), format!("dst {}", fs::read_to_string(hosts.path("ssh-host.pub"))?))?;
        let own = hosts.place.path().display().to_string();
        // Without PAM, sshd treats an account with a locked password as a locked account.
        let shadow = fs::read_to_string("/etc/shadow").unwrap_or_default();
        let pam = if shadow.lines().any(|line| line.starts_with("root:!")) { "yes" } else { "no" };
        let text = format!(
            "Port {PORT}\nHostKey {own}/ssh-host\nAuthorizedKeysFile {own}/ssh-user.pub\nStrictModes no\nUsePAM {pam}\nPidFile none\n\
             PermitRootLogin yes\nPasswordAuthentication no\nSubsystem sftp /usr/lib/openssh/sftp-server\n"
        );
        fs::write(hosts.path("sshd_config"), text.replace(&format!("Port {PORT}"), "Port 22"))?;
        Ok(hosts)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    fn command(&self, host: &str, program: &str) -> anyhow::Result<Command> {
        let mut command = self.testbed.exec(host, program)?;
        command.env_clear().env("PATH", PATH).env("HOME", "/nonexistent").current_dir(self.place.path());
        Ok(command)
    }

    /// A directory of `count` files, no two of them alike.
    fn files(&self, count: u32) -> anyhow::Result<PathBuf> {
        let dir = self.path(&format!("source-{count}"));
        if !dir.exists() {
            fs::create_dir(&dir)?;
            for i in 0..count {
                let bytes: Vec<u8> = (0..SIZE).map(|at| (at as u32).wrapping_mul(i | 1).to_le_bytes()[1]).collect();
                fs::write(dir.join(format!("file-{i}")), bytes)?;
            }
        }
        Ok(dir)
    }

    fn server(&self, row: &str) -> anyhow::Result<Background> {
        let port = PORT.to_string();
        let (name, port, command) = match row {
            BOTH => {
                let mut server = self.command("dst", &program()?)?;
                server.args(["serve", "--root", "/", "--anonymous", "--listen", &format!("0.0.0.0:{port}")]);
                ("phoebus serve", PORT, server)
            }
            SCP => {
                let mut server = self.command("dst", "unshare")?;
                let run = format!(
                    "mount -t tmpfs tmpfs /run && mkdir /run/sshd && exec \"$(command -v sshd)\" -De -f '{}'",
                    self.path("sshd_config").display()
                );
                server.args(["-m", "sh", "-c", &run]);
                ("sshd", 22, server)
            }
            _ => {
                let mut server = self.command("dst", "globus-gridftp-server")?;
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
        POINTS.iter().map(|(id, title)| Label::new(*id, *title)).collect()
    }

    fn rows(&self) -> Vec<Label> {
        ROWS.iter().map(|(id, title)| Label::new(*id, *title)).collect()
    }

    fn expected(&self, _: &str, row: &str) -> Duration {
        let files = if row == SCP { FOR_SCP.min(self.files) } else { self.files };
        Duration::from_millis(u64::from(files) * if row == SCP { 200 } else { 20 })
    }

    fn set_up(&self, _: &str) -> anyhow::Result<Hosts> {
        Hosts::new()
    }

    fn conditions(&self, hosts: &Hosts) -> Vec<(String, String)> {
        let mut all =
            versions(&[("globus-gridftp-server", "--version"), ("globus-url-copy", "-version"), ("ssh", "-V")]);
        let hosts = hosts.testbed.report().hosts.into_iter();
        all.extend(hosts.map(|host| (format!("host {}", host.name), host.conditions.to_string())));
        all.push(("link".into(), format!("25 ms each way, 1 Gbit/s, no loss; {CONTROL}, by the routes")));
        all.push(("files".into(), format!("{} of {SIZE} bytes, in one directory; scp has {FOR_SCP}", self.files)));
        all
    }

    fn measure(&self, hosts: &mut Hosts, point: &str, row: &str, limit: Duration) -> anyhow::Result<Vec<Reading>> {
        self.once(hosts, point == "put", row, limit)
    }

    fn report(&self, results: &Results) -> Report {
        Report {
            title: "Small files over a long path".into(),
            method: format!(
                "A directory of {} files of 10 KB, to and from a server 50 ms away, from the client's start to its end. `phoebus cp` \
                 verifies each file and gives it its name only then; the others do neither. scp copies {FOR_SCP} files, and its time is \
                 scaled. Medians, with the smallest and the largest of the runs.",
                self.files
            ),
            tables: vec![table("Files a second", results, RATE), table("Time for all", results, TIME)],
            charts: Vec::new(),
            verdicts: verdicts(results),
        }
    }
}

fn table(caption: &str, results: &Results, metric: Metric) -> Table {
    let heads = POINTS.iter().map(|(_, title)| (*title).to_owned());
    let mut table = Table::new(format!("{caption}, {}", metric.unit), std::iter::once(String::new()).chain(heads));
    for (row, title) in ROWS {
        let cells = POINTS.iter().map(|(point, _)| results.cell(point, row, metric, Summary::with_extremes));
        table.row(std::iter::once(title.to_owned()).chain(cells));
    }
    table
}

fn verdicts(results: &Results) -> Vec<Verdict> {
    let median = |point: &str, row| results.summary(point, row, RATE).map(|summary| summary.median);
    let ratio = |point: &str, own, who: &str, (other, name, least)| {
        let measured = median(point, own)? / median(point, other)?;
        let target = format!("{who}: files a second to those of {name} ({point})");
        Some(Verdict { target, measured, bound: Bound::AtLeast(least) })
    };
    let others = [(GUC, "globus-url-copy -cc 8 -pp", 1.0), (SCP, "scp -r", 20.0)];
    let each = POINTS.iter().flat_map(|(point, _)| {
        let own = [(OURS, "phoebus cp with GCT's server"), (BOTH, "phoebus cp with phoebus serve")];
        own.into_iter().flat_map(move |(own, who)| others.map(|other| ratio(point, own, who, other)))
    });
    each.flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_compares_rates_in_each_direction() {
        let mut results = Results::of("small");
        for (point, row, rate) in [("put", GUC, 60.0), ("put", OURS, 90.0), ("put", SCP, 5.0), ("get", GUC, 100.0)] {
            results.add(point, row, 1, &[(RATE, rate)]);
        }
        let found: Vec<_> = verdicts(&results).into_iter().map(|verdict| (verdict.measured, verdict.met())).collect();
        assert_eq!(found, [(1.5, true), (18.0, false)]);
        assert_eq!(table("x", &results, RATE).rows[1], ["phoebus cp, GCT's server", "90.0", "–"]);
    }
}
