//! `phoebus bench gridftp --disk`: one file from disk to disk on loopback, until it has its final name: all pairs of
//! our and GCT's programs, and rsync with a daemon.
//!
//! The source is in memory, and the target goes to the page cache and, if a program waits for it, to the disk: ours
//! syncs a file before it publishes it, the others leave that to the kernel. So ours appears twice, with and without
//! this wait, and a second figure gives the time until everything is on the disk (`sync`), for all programs.

use super::super::conditions::versions;
use super::super::engine::{Experiment, Label};
use super::super::flows::cpu;
use super::super::plot::{Axis, Chart, Colour, Kind, Point, Scale, Series};
use super::super::process::spent;
use super::super::report::{Bound, Report, Verdict};
use super::super::results::{Metric, Reading, Results};
use super::super::stats::Summary;
use super::super::table::Table;
use super::super::transfer::Client;
use super::hosts::{AROUND, Hosts, Server};
use super::timed::fill;
use anyhow::{Context, bail};
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

/// The experiment.
pub(in crate::bench) struct Disks {
    megabytes: u64,
}

const POINTS: [(&str, &str, bool); 2] = [("put", "put", true), ("get", "get", false)];

/// The rows: the server, our client's verification or `None` for GCT's client, and the colour.
const ROWS: [(&str, &str, Server, Option<&str>, Colour); 6] = [
    (RSYNC, "rsync", Server::Rsync, None, Colour::LightGrey),
    (GCT, "globus-url-copy, globus-gridftp-server", Server::Gct, None, Colour::Grey),
    ("serve", "globus-url-copy, phoebus serve", Server::Ours, None, Colour::Sky),
    ("cp", "phoebus cp, globus-gridftp-server", Server::Gct, Some("none"), Colour::Blue),
    (OURS, "phoebus cp, phoebus serve", Server::Ours, Some("none"), Colour::Orange),
    ("verified", "the same, verified", Server::Ours, Some("auto"), Colour::Vermilion),
];

const RSYNC: &str = "rsync";
const GCT: &str = "gct";
const OURS: &str = "both";

const RATE: Metric = Metric { name: "rate", unit: "MB/s" };
const SYNCED: Metric = Metric { name: "rate until it is on the disk", unit: "MB/s" };

/// Interval of checks whether a program has ended.
const LOOK: Duration = Duration::from_millis(2);

impl Disks {
    pub(in crate::bench) fn new(quick: bool) -> Self {
        Self { megabytes: if quick { 128 } else { 1024 } }
    }

    fn bytes(&self) -> f64 {
        self.megabytes as f64 * 1e6
    }
}

/// Runs a client to its end, and returns its processor time.
fn to_its_end(command: Command, hosts: &Hosts, limit: Duration) -> anyhow::Result<f64> {
    let mut client = Client::start(command, &hosts.file("client.log")?)?;
    let deadline = Instant::now() + limit;
    let used = loop {
        match spent(client.pid())? {
            (used, true) => break used,
            _ if Instant::now() > deadline => bail!("the client did not end within {} s", limit.as_secs()),
            _ => std::thread::sleep(LOOK),
        }
    };
    client.wait_for_success()?;
    Ok(used)
}

impl Experiment for Disks {
    type Bed = Hosts;

    fn name(&self) -> &'static str {
        "gridftp-disk"
    }

    fn points(&self) -> Vec<Label> {
        POINTS.iter().map(|(id, title, _)| Label::new(*id, *title)).collect()
    }

    fn rows(&self) -> Vec<Label> {
        ROWS.iter().map(|(id, title, ..)| Label::new(*id, *title)).collect()
    }

    fn expected(&self, _: &str, _: &str) -> Duration {
        // Slow disks have some 200 MB/s.
        Duration::from_secs(self.megabytes / 200) + AROUND
    }

    fn set_up(&self, _: &str) -> anyhow::Result<Hosts> {
        let hosts = Hosts::new()?;
        fill(&hosts.file("source")?, self.megabytes * 1_000_000)?;
        Ok(hosts)
    }

    fn conditions(&self, hosts: &Hosts) -> Vec<(String, String)> {
        let programs =
            [("rsync", "--version"), ("globus-gridftp-server", "--version"), ("globus-url-copy", "-version")];
        let mut all = versions(&programs);
        all.extend(hosts.conditions());
        let test = format!(
            "a file of {} MB that is in memory, to a new one beside it, until the program has ended; MODE S, anonymous, in clear",
            self.megabytes
        );
        all.push(("test".into(), test));
        all
    }

    fn measure(&self, hosts: &mut Hosts, point: &str, row: &str, limit: Duration) -> anyhow::Result<Vec<Reading>> {
        let Some((.., is_put)) = POINTS.iter().find(|(id, ..)| *id == point) else { return Ok(Vec::new()) };
        let Some((_, _, kind, verify, _)) = ROWS.iter().find(|(id, ..)| *id == row) else { return Ok(Vec::new()) };
        let (source, target) = (hosts.file("source")?, hosts.file("target")?);
        let _ = fs::remove_file(&target);
        rustix::fs::sync();
        let server = hosts.server(*kind)?;
        let (near, far) = if *is_put { (&source, &target) } else { (&target, &source) };
        let (near, far) = (near.display().to_string(), hosts.url(*kind, &far.display().to_string()));
        let near = if *kind == Server::Rsync { near } else { format!("file://{near}") };
        let [from, to] = if *is_put { [near, far] } else { [far, near] };
        let mut client = match (kind, verify) {
            (Server::Rsync, _) => {
                let mut client = hosts.command("rsync")?;
                client.args(["--whole-file", "--times"]);
                client
            }
            (_, Some(verify)) => {
                let mut client = hosts.phoebus()?;
                client.args(["cp", "--quiet", "--verify", verify]);
                client
            }
            (_, None) => hosts.command("globus-url-copy")?,
        };
        client.args([from, to]);
        let (before, _) = spent(server.process.pid())?;
        let began = Instant::now();
        let used = to_its_end(client, hosts, limit)?;
        let took = began.elapsed().as_secs_f64();
        rustix::fs::sync();
        let synced = began.elapsed().as_secs_f64();
        if fs::metadata(&target).context("nothing arrived")?.len() != self.megabytes * 1_000_000 {
            bail!("the file arrived with another length");
        }
        // The time of children counts only once they have ended.
        std::thread::sleep(Duration::from_millis(200));
        let serving = spent(server.process.pid())?.0 - before;
        let gigabytes = self.bytes() / 1e9;
        Ok(vec![
            (RATE, self.bytes() / 1e6 / took),
            (SYNCED, self.bytes() / 1e6 / synced),
            (cpu("client"), used / gigabytes),
            (cpu("server"), serving / gigabytes),
        ])
    }

    fn report(&self, results: &Results) -> Report {
        let tables = [RATE, SYNCED, cpu("client"), cpu("server")].map(|metric| {
            let heads = POINTS.iter().map(|(_, title, _)| (*title).to_owned());
            let caption = format!("{}, {}", metric.name, metric.unit);
            let mut table = Table::new(caption, std::iter::once(String::new()).chain(heads));
            for (row, title, ..) in ROWS.iter().filter(|(row, ..)| POINTS.iter().any(|(p, ..)| results.tried(p, row))) {
                let cells = POINTS.iter().map(|(id, ..)| results.cell(id, row, metric, Summary::with_extremes));
                table.row(std::iter::once((*title).to_owned()).chain(cells));
            }
            table
        });
        Report {
            title: "GridFTP from disk to disk".into(),
            method: format!(
                "A file of {} MB, client and server on one machine. Medians, with the smallest and the largest of the runs.",
                self.megabytes
            ),
            tables: tables.into(),
            charts: vec![("rate".into(), chart(results))],
            verdicts: verdicts(results),
        }
    }
}

fn chart(results: &Results) -> Chart {
    let series = ROWS.iter().map(|(row, title, _, _, colour)| Series {
        name: super::brief(title),
        colour: *colour,
        points: POINTS
            .iter()
            .enumerate()
            .filter_map(|(place, (id, ..))| Some(Point::of(place as f64, &results.summary(id, row, SYNCED)?)))
            .collect(),
    });
    Chart {
        title: "A file from disk to disk".into(),
        subtitle: "until all is on the disk; medians with smallest and largest".into(),
        kind: Kind::Bars,
        x: Axis::new("", Scale::Categories(POINTS.iter().map(|(id, ..)| (*id).to_owned()).collect())),
        y: Axis::new("MB/s", Scale::Linear),
        series: series.filter(|series| !series.points.is_empty()).collect(),
        marks: Vec::new(),
    }
}

/// The worst case: both programs ours against either peer, until everything is on the disk.
fn verdicts(results: &Results) -> Vec<Verdict> {
    let worst = |peer: &'static str| {
        let ratio = |(id, title, _): &(&str, &'static str, bool)| {
            let median = |row| results.summary(id, row, SYNCED).map(|summary| summary.median);
            Some((median(OURS)? / median(peer)?, *title))
        };
        let (measured, title) = POINTS.iter().filter_map(ratio).min_by(|a, b| a.0.total_cmp(&b.0))?;
        let target = format!("phoebus cp and serve to {peer}, until it is on the disk, at its worst ({title})");
        Some(Verdict { target, measured, bound: Bound::AtLeast(1.0) })
    };
    [worst(RSYNC), worst(GCT)].into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdict_uses_the_worse_direction() {
        let mut results = Results::of("gridftp-disk");
        for (point, row, rate) in
            [("put", RSYNC, 100.0), ("put", OURS, 150.0), ("get", RSYNC, 100.0), ("get", OURS, 90.0)]
        {
            results.add(point, row, 1, &[(SYNCED, rate)]);
        }
        let verdicts = verdicts(&results);
        assert_eq!(verdicts.len(), 1);
        assert!(verdicts[0].measured == 0.9 && verdicts[0].target.ends_with("(get)"), "{verdicts:?}");
    }
}
