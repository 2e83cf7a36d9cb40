//! `phoebus bench packets`: objects of 80 MB in packets of many sizes, with and without batches (L11).
//!
//! The paper swept the packet size of FOBS from disk to disk over an OC-12 and found it to matter a great deal: each packet cost a
//! system call, and an interrupt. Here a system call sends a batch of packets, which the kernel segments, unless `batch=1` says
//! otherwise.

use super::super::Common;
use super::super::engine::{Experiment, Label};
use super::super::flows::cpu;
use super::super::plot::{Axis, Chart, Colour, Kind, Point, Scale, Series};
use super::super::report::Report;
use super::super::results::{Metric, Reading, Results};
use super::super::stats::Summary;
use super::super::table::Table;
use super::hosts::{AROUND, Hosts};
use super::single_put::SinglePut;
use super::wan::{CONTROL, path};
use phoebus_proto::units::{BitRate, Probability, Span};
use std::path::Path;
use std::time::Duration;

/// Options of the experiment.
#[derive(Debug, clap::Args)]
pub(crate) struct PacketsArgs {
    #[command(flatten)]
    pub(in crate::bench) common: Common,
}

/// The experiment.
pub(in crate::bench) struct Packets {
    megabytes: u64,
    seed: u64,
}

/// A path: its MTU, and its rate and round trip if it is not loopback.
struct Way {
    id: &'static str,
    title: &'static str,
    mtu: u32,
    link: Option<(BitRate, Duration)>,
}

const GIGABIT: Option<(BitRate, Duration)> = Some((BitRate(1_000_000_000), Duration::from_millis(10)));
const WAYS: [Way; 3] = [
    Way { id: "1500", title: "1 Gbit/s, MTU 1500", mtu: 1500, link: GIGABIT },
    Way { id: "9000", title: "1 Gbit/s, MTU 9000", mtu: 9000, link: GIGABIT },
    Way { id: "loopback", title: "loopback, MTU 65536", mtu: 65_536, link: None },
];
/// Bytes of a packet.
const SIZES: [u32; 10] = [512, 1024, 1438, 2048, 4096, 8192, 8938, 16_384, 32_768, 64_512];
const BATCHES: [(&str, u32, Colour); 2] = [("batches", 64, Colour::Wine), ("single packets", 1, Colour::Sky)];
/// Headers of IP, UDP and the object, and the seal.
const OVERHEAD: u32 = 62;
/// The object of the paper.
const MEGABYTES: u64 = 80;

const RATE: Metric = Metric { name: "rate", unit: "Mbit/s" };

impl Packets {
    pub(in crate::bench) fn new(args: &PacketsArgs) -> Self {
        Self { megabytes: MEGABYTES, seed: args.common.seed }
    }
}

fn row(size: u32, batch: u32) -> String {
    format!("{size}-{batch}")
}

fn way(id: &str) -> Option<&'static Way> {
    WAYS.iter().find(|way| way.id == id)
}

/// All packet sizes and batches.
fn numbers() -> impl Iterator<Item = (u32, u32)> {
    SIZES.into_iter().flat_map(|size| BATCHES.map(|(_, batch, _)| (size, batch)))
}

impl Experiment for Packets {
    type Bed = Hosts;

    fn name(&self) -> &'static str {
        "packets"
    }

    fn points(&self) -> Vec<Label> {
        WAYS.iter().map(|way| Label::new(way.id, way.title)).collect()
    }

    fn rows(&self) -> Vec<Label> {
        let title = |(size, batch): (u32, u32)| format!("{size} bytes, {batch} at a time");
        numbers().map(|numbers| Label::new(row(numbers.0, numbers.1), title(numbers))).collect()
    }

    fn has(&self, point: &str, row: &str) -> bool {
        let size = numbers().find(|(size, batch)| self::row(*size, *batch) == row).map(|(size, _)| size);
        way(point).zip(size).is_some_and(|(way, size)| size + OVERHEAD <= way.mtu)
    }

    fn expected(&self, _: &str, _: &str) -> Duration {
        Duration::from_secs(2) + AROUND
    }

    fn set_up(&self, point: &str) -> anyhow::Result<Hosts> {
        match way(point).and_then(|way| Some((way.link?, way.mtu))) {
            Some(((rate, rtt), mtu)) => {
                let path = path(Span(rtt), rate, Probability::new(0.0).unwrap_or_default());
                Hosts::with_path_of_mtu(path, u16::try_from(mtu).unwrap_or(u16::MAX), self.seed, CONTROL)
            }
            None => Hosts::new(),
        }
    }

    fn conditions(&self, hosts: &Hosts) -> Vec<(String, String)> {
        let mut all = hosts.conditions();
        let test = format!(
            "{} MB from /dev/zero to /dev/null as objects, sealed, from the client's start to its end; links of 1 Gbit/s have a \
             round trip of 10 ms and a queue as long",
            self.megabytes
        );
        all.push(("test".into(), test));
        all
    }

    fn measure(&self, hosts: &mut Hosts, _: &str, row: &str, limit: Duration) -> anyhow::Result<Vec<Reading>> {
        let Some((size, batch)) = numbers().find(|(size, batch)| self::row(*size, *batch) == row) else {
            return Ok(Vec::new());
        };
        let length = (self.megabytes * 1_000_000).to_string();
        let stack = format!("object:packet={size};batch={batch}");
        let put = SinglePut {
            source: Path::new("/dev/zero"),
            target: Path::new("/dev/null"),
            data: String::new(),
            options: ["--length", &length, "--stack", &stack].map(str::to_owned).into(),
            library: None,
        };
        let took = put.run(hosts, limit)?;
        let gigabytes = self.megabytes as f64 / 1e3;
        Ok(vec![
            (RATE, self.megabytes as f64 * 8.0 / took.time),
            (cpu("client"), took.client / gigabytes),
            (cpu("server"), took.server / gigabytes),
        ])
    }

    fn report(&self, results: &Results) -> Report {
        let tables = [RATE, cpu("client"), cpu("server")].map(|metric| {
            let heads = WAYS.iter().flat_map(|way| BATCHES.map(|(name, ..)| format!("{}, {name}", way.title)));
            let caption = format!("{}, {}", metric.name, metric.unit);
            let mut table = Table::new(caption, std::iter::once("bytes of a packet".to_owned()).chain(heads));
            for size in SIZES {
                let cells = WAYS.iter().flat_map(|way| {
                    BATCHES.map(|(_, batch, _)| match self.has(way.id, &row(size, batch)) {
                        true => results.cell(way.id, &row(size, batch), metric, Summary::with_extremes),
                        false => String::new(),
                    })
                });
                table.row(std::iter::once(size.to_string()).chain(cells));
            }
            table
        });
        Report {
            title: "Packets of an object".into(),
            method: format!(
                "Objects of {} MB from memory to memory. Medians, with the smallest and the largest of the runs.",
                self.megabytes
            ),
            tables: tables.into(),
            charts: WAYS.iter().map(|way| (way.id.to_owned(), chart(results, way))).collect(),
            verdicts: Vec::new(),
        }
    }
}

fn chart(results: &Results, way: &Way) -> Chart {
    let sizes = || SIZES.into_iter().filter(|size| size + OVERHEAD <= way.mtu);
    let series = BATCHES.map(|(name, batch, colour)| Series {
        name: name.to_owned(),
        colour,
        points: (0..)
            .zip(sizes())
            .filter_map(|(x, size)| Some(Point::of(f64::from(x), &results.summary(way.id, &row(size, batch), RATE)?)))
            .collect(),
    });
    Chart {
        title: format!("Objects of 80 MB over {}", way.title),
        subtitle: "by the size of packets; medians with smallest and largest".into(),
        kind: Kind::Bars,
        x: Axis::new("bytes of a packet", Scale::Categories(sizes().map(|size| size.to_string()).collect())),
        y: Axis::new("Mbit/s", Scale::Linear),
        series: series.into_iter().filter(|series| !series.points.is_empty()).collect(),
        marks: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_have_to_fit_the_path() {
        let packets = Packets { megabytes: 1, seed: 1 };
        let count = |point| packets.rows().iter().filter(|label| packets.has(point, &label.id)).count();
        assert_eq!(["1500", "9000", "loopback"].map(count), [6, 14, 20]);
        assert!(packets.has("1500", "1438-64") && !packets.has("1500", "2048-64"));
    }
}
