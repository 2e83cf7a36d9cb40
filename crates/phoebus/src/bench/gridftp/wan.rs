//! `phoebus bench gridftp --wan`: GridFTP over a long path, with the round trips of the paper on UDT in XIO (U14), memory and disk, beside
//! iperf3 and bare UDT.
//!
//! Our client has TCP alone for data so far, so that rows over UDT and QUIC are those of nobody: GCT's driver for UDT
//! is measured by `phoebus bench sc09` (row `direct-udt`).

use super::super::conditions::versions;
use super::super::engine::{Experiment, Label};
use super::super::flows::{self, Sink};
use super::super::iperf;
use super::super::plot::{Axis, Chart, Colour, Kind, Point, Scale, Series};
use super::super::report::Report;
use super::super::results::{Reading, Results};
use super::super::stats::Summary;
use super::super::table::Table;
use super::super::transfer::SET_UP;
use super::room::{Room, Server};
use super::timed::{CLIENT, RATE, Transfer, fill};
use phoebus_proto::units::{BitRate, ByteSize, Probability, Span};
use phoebus_wan::model::{DirectionConfig, Loss, Rate};
use std::num::NonZeroU64;
use std::time::Duration;

/// The path, and what goes over it.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct WanArgs {
    /// Over a long path.
    #[arg(long, conflicts_with_all = ["disk", "short"])]
    pub(in crate::bench) wan: bool,
    /// Its round trips [default: 204ms,60ms,193ms, those of ANL–NZ, ANL–ISI and BMI–Japan; with --quick 60ms].
    #[arg(long, value_name = "TIME", value_delimiter = ',', requires = "wan")]
    rtt: Vec<Span>,
    /// Its capacity.
    #[arg(long, value_name = "RATE", default_value = "500mbit", requires = "wan")]
    rate: BitRate,
    /// Its loss, each way.
    #[arg(long, value_name = "PROBABILITY", default_value = "0.001%", requires = "wan")]
    loss: Probability,
    /// How long the file is [default: 200MB, with --quick 20MB].
    #[arg(long, value_name = "SIZE", requires = "wan")]
    size: Option<ByteSize>,
}

/// The experiment.
pub(in crate::bench) struct LongPath {
    rtts: Vec<Span>,
    rate: BitRate,
    loss: Probability,
    bytes: u64,
    seconds: u64,
    seed: u64,
}

/// What moves the bytes.
#[derive(Debug, Clone, Copy)]
enum Mover {
    /// A client with its server, MODE E over so many streams, from disk to disk or not.
    Files { ours: bool, streams: u32, disk: bool },
    /// So many streams of iperf3.
    Iperf(u32),
    /// One flow of our own UDT, under UDT's own control.
    Udt,
}

struct Row {
    id: &'static str,
    title: &'static str,
    colour: Colour,
    mover: Mover,
}

const fn files(id: &'static str, title: &'static str, colour: Colour, ours: bool, streams: u32, disk: bool) -> Row {
    Row { id, title, colour, mover: Mover::Files { ours, streams, disk } }
}

const ROWS: [Row; 11] = [
    Row { id: "iperf3-1", title: "iperf3, 1 stream", colour: Colour::LightGrey, mover: Mover::Iperf(1) },
    Row { id: "iperf3-8", title: "iperf3, 8 streams", colour: Colour::Grey, mover: Mover::Iperf(8) },
    Row { id: "udt", title: "bare UDT, its own control", colour: Colour::Sky, mover: Mover::Udt },
    files("gct-1", "GCT, 1 stream", Colour::Black, false, 1, false),
    files("gct-8", "GCT, 8 streams", Colour::Blue, false, 8, false),
    files("ours-1", "Phoebus, 1 stream", Colour::Orange, true, 1, false),
    files("ours-8", "Phoebus, 8 streams", Colour::Vermilion, true, 8, false),
    files("gct-1-disk", "GCT, 1 stream, disk", Colour::Purple, false, 1, true),
    files("gct-8-disk", "GCT, 8 streams, disk", Colour::Green, false, 8, true),
    files("ours-1-disk", "Phoebus, 1 stream, disk", Colour::Orange, true, 1, true),
    files("ours-8-disk", "Phoebus, 8 streams, disk", Colour::Wine, true, 8, true),
];

/// What everybody sends under who is TCP.
const CONTROL: &str = "cubic";

impl LongPath {
    pub(in crate::bench) fn new(args: &WanArgs, quick: bool, seed: u64) -> Self {
        let usual: &[u64] = if quick { &[60] } else { &[204, 60, 193] };
        let rtts = match args.rtt.is_empty() {
            true => usual.iter().map(|ms| Span(Duration::from_millis(*ms))).collect(),
            false => args.rtt.clone(),
        };
        let bytes = args.size.map_or(if quick { 20_000_000 } else { 200_000_000 }, |size| size.0);
        Self { rtts, rate: args.rate, loss: args.loss, bytes, seconds: if quick { 3 } else { 20 }, seed }
    }

    /// The path with this round trip, and a queue of one.
    fn path(&self, rtt: Span) -> DirectionConfig {
        let queue = (self.rate.0 as f64 / 8.0 * rtt.0.as_secs_f64()) as u64;
        DirectionConfig {
            delay: Span(rtt.0 / 2),
            loss: Loss::Bernoulli(self.loss),
            rate: NonZeroU64::new(self.rate.0).map_or(Rate::Unlimited, Rate::Limited),
            queue: ByteSize(queue.max(64 << 10)),
            ..DirectionConfig::default()
        }
    }

    fn flow(&self, room: &Room, mover: Mover, limit: Duration) -> anyhow::Result<Vec<Reading>> {
        let goodput = match mover {
            Mover::Udt => {
                let words = ["udt", "--cc", "native"];
                let sink = Sink::start(&room.host, "dst", room.address, &words[..1])?;
                let time = format!("{}s", self.seconds);
                let client = flows::client(&room.host, "src", &words, sink.at, &["--time", &time])?;
                flows::run(client, &[], limit)?.0.goodput()
            }
            Mover::Iperf(streams) => {
                let port = 5201;
                let _server = iperf::serve(room.at_server(iperf::PROGRAM)?, port)?;
                let test =
                    iperf::Test { seconds: self.seconds, streams, reverse: false, congestion_control: Some(CONTROL) };
                test.run(room.command(iperf::PROGRAM)?, (room.address, port).into(), limit)?.goodput
            }
            Mover::Files { .. } => return Ok(Vec::new()),
        };
        Ok(vec![(RATE, goodput)])
    }
}

impl Experiment for LongPath {
    type Bed = Room;

    fn name(&self) -> &'static str {
        "gridftp-wan"
    }

    fn points(&self) -> Vec<Label> {
        self.rtts.iter().map(|rtt| Label::new(rtt.to_string(), format!("round trip {rtt}"))).collect()
    }

    fn rows(&self) -> Vec<Label> {
        ROWS.iter().map(|row| Label::new(row.id, row.title)).collect()
    }

    fn expected(&self, _: &str, _: &str) -> Duration {
        // At a tenth of the rate, and a login over the path.
        Duration::from_secs(5 + self.seconds.max(self.bytes * 80 / self.rate.0.max(1)))
    }

    fn set_up(&self, point: &str) -> anyhow::Result<Room> {
        let rtt = self.rtts.iter().find(|rtt| rtt.to_string() == point).copied().unwrap_or_default();
        let room = Room::with_path(self.path(rtt), self.seed, CONTROL)?;
        fill(&room.file("source")?, self.bytes)?;
        Ok(room)
    }

    fn conditions(&self, room: &Room) -> Vec<(String, String)> {
        let mut all = versions(&[
            ("globus-gridftp-server", "--version"),
            ("globus-url-copy", "-version"),
            (iperf::PROGRAM, "--version"),
        ]);
        all.extend(room.conditions());
        let test = format!(
            "put in MODE E of {} MB, timed from the first byte on the path to the end of the client, beside flows of {} s; anonymous, in \
             clear, not verified; disk: to a file, as long as the program waits",
            self.bytes / 1_000_000,
            self.seconds
        );
        all.push(("test".into(), test));
        all.push((
            "path".into(),
            format!("{}, loss {}, a queue of one round trip, seed {}", self.rate, self.loss, self.seed),
        ));
        all
    }

    fn measure(&self, room: &mut Room, _: &str, row: &str, limit: Duration) -> anyhow::Result<Vec<Reading>> {
        let Some(row) = ROWS.iter().find(|one| one.id == row) else { return Ok(Vec::new()) };
        match row.mover {
            Mover::Files { ours, streams, disk } => {
                let server = if ours { Server::Ours } else { Server::Gct };
                let transfer = Transfer { is_put: true, disk, bytes: self.bytes, streams, buffer: None };
                transfer.run(room, server, limit)
            }
            other => self.flow(room, other, limit),
        }
    }

    fn report(&self, results: &Results) -> Report {
        let tables = [RATE, SET_UP, CLIENT].map(|metric| {
            let heads = self.points().into_iter().map(|point| point.title);
            let caption = format!("{}, {}", metric.name, metric.unit);
            let mut table = Table::new(caption, std::iter::once(String::new()).chain(heads));
            for row in ROWS.iter().filter(|row| self.rtts.iter().any(|rtt| results.tried(&rtt.to_string(), row.id))) {
                let cells =
                    self.rtts.iter().map(|rtt| results.cell(&rtt.to_string(), row.id, metric, Summary::with_extremes));
                table.row(std::iter::once(row.title.to_owned()).chain(cells));
            }
            table
        });
        Report {
            title: "GridFTP over a long path".into(),
            method: format!(
                "A put of {} MB over {}; iperf3 and bare UDT for {} s beside it. Medians, with the smallest and the largest of the runs.",
                self.bytes / 1_000_000,
                self.rate,
                self.seconds
            ),
            tables: tables.into(),
            charts: vec![("rate".into(), self.chart(results))],
            verdicts: Vec::new(),
        }
    }
}

impl LongPath {
    fn chart(&self, results: &Results) -> Chart {
        let series = ROWS.iter().map(|row| Series {
            name: row.title.to_owned(),
            colour: row.colour,
            points: self
                .rtts
                .iter()
                .enumerate()
                .filter_map(|(x, rtt)| Some(Point::of(x as f64, &results.summary(&rtt.to_string(), row.id, RATE)?)))
                .collect(),
        });
        Chart {
            title: "GridFTP over a long path".into(),
            subtitle: format!("{}, loss {}; medians with smallest and largest", self.rate, self.loss),
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

    #[test]
    fn a_queue_holds_a_round_trip() {
        let args = WanArgs {
            wan: true,
            rtt: Vec::new(),
            rate: BitRate(500_000_000),
            loss: Probability::default(),
            size: None,
        };
        let long = LongPath::new(&args, false, 1);
        assert_eq!(long.points().len(), 3);
        assert_eq!(long.path(long.rtts[0]).queue, ByteSize(12_750_000));
    }
}
