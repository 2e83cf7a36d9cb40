//! `phoebus bench stores`: how many readers, writers and buffers a slow store needs, and whether `auto` is as good as the best
//! numbers (L8, L9).
//!
//! The store moves 200 MB/s, and each block takes 5 ms more: a network file system, or disks behind a controller. It is made of
//! this machine's by a library that delays reads and writes (`slow_store.c`). The file goes as an object over loopback, which
//! carries more than the store.

use super::super::Common;
use super::super::engine::{Experiment, Label};
use super::super::plot::{Axis, Chart, Colour, Kind, Point, Scale, Series};
use super::super::process;
use super::super::report::{Bound, Report, Verdict};
use super::super::results::{Metric, Reading, Results};
use super::super::stats::Summary;
use super::super::table::Table;
use super::hosts::{AROUND, Hosts};
use super::single_put::{Loads, SinglePut};
use super::timed::fill;
use anyhow::{Context, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Options of the experiment.
#[derive(Debug, clap::Args)]
pub(crate) struct StoresArgs {
    #[command(flatten)]
    pub(in crate::bench) common: Common,
    /// Length of the file in MB [default: 400, with --quick 100].
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    megabytes: Option<u64>,
}

/// The experiment.
pub(in crate::bench) struct Stores {
    megabytes: u64,
}

/// The hosts, and the library that makes a store slow.
pub(in crate::bench) struct Bed {
    hosts: Hosts,
    library: PathBuf,
}

const STORE: &str = include_str!("slow_store.c");
/// What the store moves, in MB/s.
const STORE_RATE: f64 = 200.0;

/// Which end has the slow store.
const POINTS: [(&str, &str); 2] = [("read", "read, slow source"), ("write", "written, slow target")];

const THREADS: [u32; 5] = [1, 2, 4, 8, 16];
const BUFFERS: [(u32, Colour); 3] = [(4, Colour::Sky), (16, Colour::Orange), (64, Colour::Wine)];
const AUTO: &str = "auto";

const RATE: Metric = Metric { name: "rate", unit: "MB/s" };

impl Stores {
    pub(in crate::bench) fn new(args: &StoresArgs) -> Self {
        Self { megabytes: args.megabytes.unwrap_or(if args.common.quick { 100 } else { 400 }) }
    }
}

/// The identifier of a row.
fn row((threads, buffers): (u32, u32)) -> String {
    format!("{threads}-{buffers}")
}

/// All numbers of readers or writers, and of buffers.
fn numbers() -> impl Iterator<Item = (u32, u32)> {
    THREADS.into_iter().flat_map(|threads| BUFFERS.into_iter().map(move |(buffers, _)| (threads, buffers)))
}

/// Compiles the library into `directory`.
fn compile(directory: &Path) -> anyhow::Result<PathBuf> {
    const LIMIT: Duration = Duration::from_secs(60);
    let (source, library) = (directory.join("slow_store.c"), directory.join("slow_store.so"));
    fs::write(&source, STORE)?;
    let mut command = Command::new("cc");
    command.args(["-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o"]).arg(&library).arg(&source).arg("-ldl");
    process::run("cc", command, LIMIT).context("the slow store needs a C compiler")?;
    Ok(library)
}

impl Experiment for Stores {
    type Bed = Bed;

    fn name(&self) -> &'static str {
        "stores"
    }

    fn points(&self) -> Vec<Label> {
        POINTS.iter().map(|(id, title)| Label::new(*id, *title)).collect()
    }

    fn rows(&self) -> Vec<Label> {
        let title = |numbers: (u32, u32)| format!("{} at a time, {} buffers", numbers.0, numbers.1);
        let fixed = numbers().map(|numbers| Label::new(row(numbers), title(numbers)));
        fixed.chain([Label::new(AUTO, "auto")]).collect()
    }

    fn expected(&self, _: &str, _: &str) -> Duration {
        // One block at a time takes 10 ms.
        Duration::from_secs(self.megabytes / 90) + AROUND
    }

    fn set_up(&self, _: &str) -> anyhow::Result<Bed> {
        let hosts = Hosts::new()?;
        fill(&hosts.file("source")?, self.megabytes * 1_000_000)?;
        let library = compile(&hosts.file("")?)?;
        Ok(Bed { hosts, library })
    }

    fn conditions(&self, bed: &Bed) -> Vec<(String, String)> {
        let mut all = bed.hosts.conditions();
        let store = "each block of 64 KiB or more takes 5 ms, and all together 200 MB/s".to_owned();
        all.push(("slow store".into(), store));
        let test =
            format!("a file of {} MB that is in memory, put as an object, sealed, not verified again", self.megabytes);
        all.push(("test".into(), test));
        all
    }

    fn measure(&self, bed: &mut Bed, point: &str, row: &str, limit: Duration) -> anyhow::Result<Vec<Reading>> {
        let hosts = &bed.hosts;
        let fixed = numbers().find(|numbers| self::row(*numbers) == row);
        let (source, target) = (hosts.file("source")?, hosts.file("target")?);
        let _ = fs::remove_file(&target);
        rustix::fs::sync();
        let options = match fixed {
            Some((threads, buffers)) => {
                let (threads, number) = (threads.to_string(), buffers.to_string());
                let stack = format!("object:buffers={buffers}");
                ["--readers", &threads, "--buffers", &number, "--stack", &stack].map(str::to_owned).into()
            }
            None => ["--stack", "object"].map(str::to_owned).into(),
        };
        let loads = if point == "read" { Loads::Client } else { Loads::Server };
        let put = SinglePut {
            source: &source,
            target: &target,
            data: fixed.map_or(String::new(), |(threads, _)| format!("writers = {threads}\n")),
            options,
            library: Some((loads, bed.library.clone())),
        };
        let took = put.run(hosts, limit)?;
        if fs::metadata(&target).context("nothing arrived")?.len() != self.megabytes * 1_000_000 {
            bail!("the file arrived with another length");
        }
        Ok(vec![(RATE, self.megabytes as f64 / took.time)])
    }

    fn report(&self, results: &Results) -> Report {
        let tables = POINTS.map(|(point, title)| {
            let heads = BUFFERS.iter().map(|(buffers, _)| format!("{buffers} buffers"));
            let caption = format!("{}, {}, {title}", RATE.name, RATE.unit);
            let mut table = Table::new(caption, std::iter::once("at a time".to_owned()).chain(heads));
            for threads in THREADS {
                let cell = |(buffers, _): &(u32, _)| {
                    results.cell(point, &row((threads, *buffers)), RATE, Summary::with_extremes)
                };
                table.row(std::iter::once(threads.to_string()).chain(BUFFERS.iter().map(cell)));
            }
            let auto = results.cell(point, AUTO, RATE, Summary::with_extremes);
            table.row([AUTO.to_owned(), auto].into_iter().chain(BUFFERS[1..].iter().map(|_| String::new())));
            table
        });
        Report {
            title: "Readers, writers and buffers of a slow store".into(),
            method: format!(
                "A file of {} MB, from the client's start to its end: the source, or the target, moves {STORE_RATE} MB/s, and each \
                 block takes 5 ms more. Medians, with the smallest and the largest of the runs.",
                self.megabytes
            ),
            tables: tables.into(),
            charts: POINTS.iter().map(|(point, title)| ((*point).to_owned(), chart(results, point, title))).collect(),
            verdicts: verdicts(results),
        }
    }
}

fn verdicts(results: &Results) -> Vec<Verdict> {
    let mut all = Vec::new();
    for (point, title) in POINTS {
        let median = |row: &str| results.summary(point, row, RATE).map(|summary| summary.median);
        let Some(auto) = median(AUTO) else { continue };
        let best = numbers().filter_map(|numbers| Some((median(&row(numbers))?, row(numbers))));
        if let Some((best, at)) = best.max_by(|a, b| a.0.total_cmp(&b.0)) {
            let target = format!("auto to the best numbers ({at}), {title}");
            all.push(Verdict { target, measured: auto / best, bound: Bound::AtLeast(0.95) });
        }
        let target = format!("auto to what the store moves, {title}");
        all.push(Verdict { target, measured: auto / STORE_RATE, bound: Bound::AtLeast(0.9) });
    }
    all
}

fn chart(results: &Results, point: &str, title: &str) -> Chart {
    let series = BUFFERS.map(|(buffers, colour)| Series {
        name: format!("{buffers} buffers"),
        colour,
        points: (0..)
            .zip(THREADS)
            .filter_map(|(x, threads)| {
                Some(Point::of(f64::from(x), &results.summary(point, &row((threads, buffers)), RATE)?))
            })
            .collect(),
    });
    Chart {
        title: format!("A file {title}"),
        subtitle: "a store of 200 MB/s, 5 ms a block; medians with smallest and largest".into(),
        kind: Kind::Bars,
        x: Axis::new("blocks at a time", Scale::Categories(THREADS.map(|threads| threads.to_string()).into())),
        y: Axis::new("MB/s", Scale::Linear),
        series: series.into_iter().filter(|series| !series.points.is_empty()).collect(),
        marks: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_is_compared_to_the_best_numbers_and_to_the_store() {
        let mut results = Results::of("stores");
        for (row, rate) in [("1-4", 90.0), ("8-64", 190.0), (AUTO, 185.0)] {
            results.add("read", row, 1, &[(RATE, rate)]);
        }
        let verdicts = verdicts(&results);
        let met: Vec<_> = verdicts.iter().map(|verdict| (verdict.met(), verdict.measured)).collect();
        assert_eq!(met, [(true, 185.0 / 190.0), (true, 0.925)]);
        assert!(verdicts[0].target.contains("8-64"), "{verdicts:?}");
    }

    #[test]
    fn slow_store_takes_its_time() {
        let dir = tempfile::tempdir().unwrap();
        let library = compile(dir.path()).unwrap();
        let file = dir.path().join("x");
        fs::write(&file, vec![7; 1 << 20]).unwrap();
        let script = "import os, time\n\
                      fd = os.open('x', os.O_RDWR)\n\
                      begin = time.monotonic()\n\
                      for i in range(10): assert len(os.pread(fd, 1 << 18, 0)) == 1 << 18\n\
                      print(time.monotonic() - begin)";
        let mut python = Command::new("python3");
        let output = python.args(["-c", script]).current_dir(dir.path()).env("LD_PRELOAD", library).output().unwrap();
        let took: f64 = String::from_utf8_lossy(&output.stdout).trim().parse().unwrap();
        // 10 × (5 ms + 1.3 ms).
        assert!(took >= 0.062, "{took}");
    }
}
