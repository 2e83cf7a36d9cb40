//! `phoebus bench gridftp --short`: the method of the paper on RFIO and GridFTP (R8–R10, R16): 45 Mbit/s and 125 ms, files of 1 to 100 MB,
//! 1 to 10 streams, buffers of 64 KB and tuned ones, setting up and transferring timed apart. Ours are tuned by the
//! kernel (U16).

use super::super::conditions::versions;
use super::super::engine::{Experiment, Label};
use super::super::plot::{Axis, Chart, Colour, Kind, Point, Scale, Series};
use super::super::report::Report;
use super::super::results::{Metric, Reading, Results};
use super::super::stats::Summary;
use super::super::table::Table;
use super::super::transfer::SET_UP;
use super::room::{Room, Server};
use super::timed::{RATE, TOOK, Transfer, fill};
use phoebus_proto::units::{ByteSize, Span};
use phoebus_wan::model::{DirectionConfig, Rate};
use std::num::NonZeroU64;
use std::time::Duration;

/// The experiment.
pub(in crate::bench) struct Sizes {
    megabytes: Vec<u64>,
    streams: Vec<u32>,
    seed: u64,
}

/// Who transfers, and with what buffers.
const WAYS: [(&str, &str, Server, Option<u64>, Colour); 3] = [
    ("gct-64k", "GCT, 64 KB", Server::Gct, Some(64 << 10), Colour::LightGrey),
    ("gct-1m", "GCT, 1 MB", Server::Gct, Some(1 << 20), Colour::Blue),
    ("ours", "Phoebus", Server::Ours, None, Colour::Orange),
];

const RATE_OF_PATH: u64 = 45_000_000;
const ROUND_TRIP: Duration = Duration::from_millis(125);
const CONTROL: &str = "cubic";
/// The least that a stream can have: a buffer of 64 KB each round trip.
const SLOWEST: u64 = (64 << 10) * 8;

impl Sizes {
    pub(in crate::bench) fn new(quick: bool, seed: u64) -> Self {
        match quick {
            true => Self { megabytes: vec![1, 5], streams: vec![1, 3], seed },
            false => Self { megabytes: vec![1, 25, 50, 100], streams: vec![1, 2, 3, 5, 9, 10], seed },
        }
    }

    fn directions(&self) -> impl Iterator<Item = (bool, u64)> {
        [false, true].into_iter().flat_map(|is_put| self.megabytes.iter().map(move |size| (is_put, *size)))
    }

    fn ways(&self) -> impl Iterator<Item = (usize, u32)> {
        (0..WAYS.len()).flat_map(|way| self.streams.iter().map(move |streams| (way, *streams)))
    }
}

fn point((is_put, size): (bool, u64)) -> String {
    format!("{} {size}MB", if is_put { "put" } else { "get" })
}

fn row((way, streams): (usize, u32)) -> String {
    format!("{}-{streams}", WAYS[way].0)
}

impl Experiment for Sizes {
    type Bed = Room;

    fn name(&self) -> &'static str {
        "gridftp-short"
    }

    fn points(&self) -> Vec<Label> {
        self.directions().map(|of| Label::new(point(of), point(of))).collect()
    }

    fn rows(&self) -> Vec<Label> {
        self.ways().map(|of| Label::new(row(of), format!("{}, {} streams", WAYS[of.0].1, of.1))).collect()
    }

    fn expected(&self, wanted: &str, of: &str) -> Duration {
        let megabytes = self.directions().find(|d| point(*d) == wanted).map_or(0, |(_, size)| size);
        let (way, streams) = self.ways().find(|w| row(*w) == of).unwrap_or((0, 1));
        let window = WAYS[way].3.map_or(RATE_OF_PATH, |_| SLOWEST * 8 * u64::from(streams));
        Duration::from_secs(5 + megabytes * 8_000_000 / RATE_OF_PATH.min(window))
    }

    fn set_up(&self, wanted: &str) -> anyhow::Result<Room> {
        let path = DirectionConfig {
            delay: Span(ROUND_TRIP / 2),
            rate: NonZeroU64::new(RATE_OF_PATH).map_or(Rate::Unlimited, Rate::Limited),
            queue: ByteSize((RATE_OF_PATH as f64 / 8.0 * ROUND_TRIP.as_secs_f64()) as u64),
            ..DirectionConfig::default()
        };
        let room = Room::with_path(path, self.seed, CONTROL)?;
        let megabytes = self.directions().find(|d| point(*d) == wanted).map_or(1, |(_, size)| size);
        fill(&room.file("source")?, megabytes * 1_000_000)?;
        Ok(room)
    }

    fn conditions(&self, room: &Room) -> Vec<(String, String)> {
        let mut all = versions(&[("globus-gridftp-server", "--version"), ("globus-url-copy", "-version")]);
        all.extend(room.conditions());
        all.push(("path".into(), "45mbit, round trip 125ms, a queue of one round trip, no loss".into()));
        all.push((
            "test".into(),
            "a file, MODE E, anonymous, in clear, not verified; set-up until the first 64 KiB have arrived, transfer from there to the \
             end of the client"
                .into(),
        ));
        all
    }

    fn measure(&self, room: &mut Room, wanted: &str, of: &str, limit: Duration) -> anyhow::Result<Vec<Reading>> {
        let Some((is_put, size)) = self.directions().find(|d| point(*d) == wanted) else { return Ok(Vec::new()) };
        let Some((way, streams)) = self.ways().find(|w| row(*w) == of) else { return Ok(Vec::new()) };
        let (_, _, server, buffer, _) = WAYS[way];
        let transfer = Transfer { is_put, disk: true, bytes: size * 1_000_000, streams, buffer };
        transfer.run(room, server, limit)
    }

    fn report(&self, results: &Results) -> Report {
        let tables = [SET_UP, TOOK, RATE].map(|metric| self.table(results, metric));
        let charts = [false, true].into_iter().flat_map(|is_put| {
            let name = if is_put { "put" } else { "get" };
            let largest = self.megabytes.iter().copied().max().unwrap_or(1);
            [
                (format!("{name}-streams"), self.by_streams(results, (is_put, largest))),
                (format!("{name}-sizes"), self.by_sizes(results, is_put)),
            ]
        });
        Report {
            title: "GridFTP on a path of 45 Mbit/s and 125 ms".into(),
            method: "Files of several sizes over several streams, with buffers of 64 KB, of 1 MB, and as the kernel tunes them. Medians, \
                     with the smallest and the largest of the runs. The paper has for its set-up 3.00 s (get) and 2.95 s (put) of \
                     GSIFTP, under GSI; for a get about 23 Mbit/s at 9 streams with 64 KB, and the same with 3 at 1 MB."
                .into(),
            tables: tables.into(),
            charts: charts.collect(),
            verdicts: Vec::new(),
        }
    }
}

impl Sizes {
    fn table(&self, results: &Results, metric: Metric) -> Table {
        let heads = self.directions().map(point);
        let mut table =
            Table::new(format!("{}, {}", metric.name, metric.unit), std::iter::once(String::new()).chain(heads));
        for label in self.rows() {
            let cells = self.directions().map(|of| results.cell(&point(of), &label.id, metric, Summary::with_extremes));
            table.row(std::iter::once(label.title.clone()).chain(cells));
        }
        table
    }

    fn by_streams(&self, results: &Results, of: (bool, u64)) -> Chart {
        let series = WAYS.iter().enumerate().map(|(way, (_, title, _, _, colour))| Series {
            name: (*title).to_owned(),
            colour: *colour,
            points: self
                .streams
                .iter()
                .filter_map(|n| Some(Point::of(f64::from(*n), &results.summary(&point(of), &row((way, *n)), RATE)?)))
                .collect(),
        });
        chart(format!("Rate of a {}", point(of)), "streams", "Mbit/s", series.collect())
    }

    fn by_sizes(&self, results: &Results, is_put: bool) -> Chart {
        let most = self.streams.iter().copied().max().unwrap_or(1);
        let series = WAYS.iter().enumerate().map(|(way, (_, title, _, _, colour))| Series {
            name: (*title).to_owned(),
            colour: *colour,
            points: self
                .megabytes
                .iter()
                .filter_map(|size| {
                    let summary = results.summary(&point((is_put, *size)), &row((way, most)), TOOK)?;
                    Some(Point::of(*size as f64, &summary))
                })
                .collect(),
        });
        let what = if is_put { "puts" } else { "gets" };
        chart(format!("Time of {what} over {most} streams"), "MB", "s", series.collect())
    }
}

fn chart(title: String, x: &str, y: &str, series: Vec<Series>) -> Chart {
    Chart {
        title,
        subtitle: "45 Mbit/s, 125 ms; medians with smallest and largest".into(),
        kind: Kind::Lines,
        x: Axis::new(x, Scale::Linear),
        y: Axis::new(y, Scale::Linear),
        series: series.into_iter().filter(|series| !series.points.is_empty()).collect(),
        marks: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_buffer_takes_its_time() {
        let sizes = Sizes::new(false, 1);
        assert_eq!((sizes.points().len(), sizes.rows().len()), (8, 18));
        let expected = |row| sizes.expected("get 100MB", row).as_secs();
        assert!(expected("gct-64k-1") > 100 && expected("gct-64k-10") < 30 && expected("ours-1") < 30);
    }
}
