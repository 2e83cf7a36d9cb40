//! `phoebus bench bottleneck`: throughput over time on a narrow WAN, as in Figures 11 to 14 of the paper (S32, S25):
//! first among nine competing iperf3 flows under cubic, then on a circuit without other traffic, with 0.01 % loss at
//! the edges.
//!
//! The competing flows run between the gateways' hosts and share only the link with the measured flow; they start
//! before it. A measurement lasts minutes, and every second of every flow is kept. `report` presents the results.

mod cross;
mod report;

use super::Common;
use super::bed::{Bed, BedRoute};
use super::conditions::versions;
use super::engine::{Experiment, Label};
use super::flows::{self, Sink};
use super::hop::Wan;
use super::narrow::{self, LinkCounters, ON_LINK, OVERFLOW};
use super::plot::Colour;
use super::report::Report;
use super::results::{Metric, Reading, Results};
use super::{iperf, libudt, wan};
use anyhow::{anyhow, bail};
use cross::CompetingFlows;
use phoebus_proto::units::{BitRate, Probability, Span};
use std::time::Duration;

/// Options of the experiment.
#[derive(Debug, clap::Args)]
pub(crate) struct BottleneckArgs {
    #[command(flatten)]
    pub(super) common: Common,
    /// Length of each measurement [default: 120, with --quick 10; the paper's is 600].
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(5..=3600))]
    seconds: Option<u64>,
    /// Capacity of the WAN.
    #[arg(long, default_value = "500mbit", value_name = "RATE")]
    capacity: BitRate,
    /// Round trip of the WAN.
    #[arg(long, default_value = "40ms", value_name = "TIME")]
    rtt: Span,
    /// Competing flows.
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=CROSS_MAX as i64))]
    flows: u32,
    /// Loss on both LANs, each way, while there is nothing else on the circuit.
    #[arg(long, default_value = "0.01%", value_name = "PROBABILITY")]
    loss: Probability,
    /// Only with the competing flows, or only without [default: both].
    #[arg(long, value_name = "CASE")]
    case: Option<Case>,
}

/// What else is on the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Case {
    /// The competing flows.
    Shared,
    /// Nothing: a circuit.
    Circuit,
}

/// The experiment.
pub(super) struct Bottleneck {
    cases: Vec<Case>,
    seconds: u64,
    capacity: BitRate,
    rtt: Span,
    flows: u32,
    loss: Probability,
    seed: u64,
}

/// A row of the comparison.
#[derive(Debug, Clone)]
struct Row {
    id: &'static str,
    title: &'static str,
    path: Path,
    colour: Colour,
}

/// How bytes get from `src` to `dst`.
#[derive(Debug, Clone)]
enum Path {
    /// One connection of this carrier.
    Direct(&'static [&'static str]),
    /// One connection of libudt.
    Libudt,
    /// Over gateways joined by `wan`, with a first hop of TCP under bbr, as the shim requests; `held` limits the rate
    /// to the WAN's capacity. Under cubic, the losses of the LAN would limit the first hop to less than the circuit
    /// carries.
    Through { wan: &'static str, held: bool },
}

/// Mbit/s of the measured flow, as its receiver counted; one value per second.
const EACH_SECOND: Metric = Metric { name: "each second", unit: "Mbit/s" };
/// Mbit/s of the measured flow.
const GOODPUT: Metric = Metric { name: "goodput", unit: "Mbit/s" };
/// Standard deviation over the seconds after the third, in per cent of their mean.
const UNSTEADY: Metric = Metric { name: "unsteadiness", unit: "%" };
/// Mbit/s of all competing flows.
const OTHERS: Metric = Metric { name: "competing flows", unit: "Mbit/s" };
/// Jain's index over the measured flow and the competing ones.
const JAIN: Metric = Metric { name: "Jain index", unit: "1" };
/// Mbit/s of each competing flow in each second.
const CROSS: [Metric; CROSS_MAX] = {
    const fn flow(name: &'static str) -> Metric {
        Metric { name, unit: "Mbit/s" }
    }
    [
        flow("competing 1"),
        flow("competing 2"),
        flow("competing 3"),
        flow("competing 4"),
        flow("competing 5"),
        flow("competing 6"),
        flow("competing 7"),
        flow("competing 8"),
        flow("competing 9"),
    ]
};
const CROSS_MAX: usize = 9;
/// Set-up and end of a measurement, in addition to its length.
const AROUND: Duration = Duration::from_secs(6);
/// Seconds that a flow needs to find its rate.
const RAMP: usize = 3;

const fn direct(id: &'static str, title: &'static str, words: &'static [&'static str], colour: Colour) -> Row {
    Row { id, title, path: Path::Direct(words), colour }
}

const fn through(id: &'static str, title: &'static str, wan: &'static str, held: bool, colour: Colour) -> Row {
    Row { id, title, path: Path::Through { wan, held }, colour }
}

const ROWS: [Row; 10] = [
    direct("direct-tcp", "direct TCP (cubic)", &["tcp", "--cc", "cubic"], Colour::Grey),
    direct("direct-udt", "direct UDT (native)", &["udt", "--cc", "native"], Colour::Sky),
    Row { id: "direct-libudt", title: "direct UDT (libudt)", path: Path::Libudt, colour: Colour::Blue },
    through("tcp", "Phoebus, tcp-bbr", "bbr", false, Colour::Green),
    through("quic", "Phoebus, quic", "quic", false, Colour::Purple),
    through("udt", "Phoebus, udt", "udt", false, Colour::Orange),
    through("udt-native", "Phoebus, udt native", "udt-native", false, Colour::Wine),
    through("tcp-held", "Phoebus, tcp at the rate", "bbr", true, Colour::Black),
    through("quic-held", "Phoebus, quic at the rate", "quic", true, Colour::LightGrey),
    through("udt-held", "Phoebus, udt at the rate", "udt", true, Colour::Vermilion),
];

impl Bottleneck {
    /// The experiment with these options.
    pub(super) fn new(args: &BottleneckArgs) -> Self {
        Self {
            cases: args.case.map_or_else(|| vec![Case::Shared, Case::Circuit], |case| vec![case]),
            seconds: args.seconds.unwrap_or(if args.common.quick { 10 } else { 120 }),
            capacity: args.capacity,
            rtt: args.rtt,
            flows: args.flows,
            loss: args.loss,
            seed: args.common.seed,
        }
    }

    /// The hosts of `case`, joined by the WAN of `row`.
    fn bed(&self, case: Case, row: Option<&Row>) -> anyhow::Result<Bed> {
        let loss = if case == Case::Circuit { self.loss } else { Probability::default() };
        let settings = wan::path(self.rtt, loss, self.seed, "bbr");
        let bed = match row.map(|row| &row.path) {
            Some(Path::Through { wan, held }) => {
                let wan: Wan = wan.parse().map_err(anyhow::Error::msg)?;
                let rate = self.capacity.to_string();
                Bed::joined(&settings, if *held { wan.with("rate", &rate) } else { wan })?
            }
            _ => Bed::bare(&settings)?,
        };
        narrow::narrow(&bed, self.capacity, self.rtt)?;
        Ok(bed)
    }
}

impl Experiment for Bottleneck {
    type Bed = Option<Bed>;

    fn name(&self) -> &'static str {
        "bottleneck"
    }

    fn points(&self) -> Vec<Label> {
        self.cases.iter().map(|case| case.label(self.flows)).collect()
    }

    fn rows(&self) -> Vec<Label> {
        ROWS.iter().map(|row| Label::new(row.id, row.title)).collect()
    }

    fn expected(&self, _: &str, _: &str) -> Duration {
        Duration::from_secs(self.seconds) + AROUND
    }

    fn set_up(&self, point: &str) -> anyhow::Result<Option<Bed>> {
        Ok(Some(self.bed(Case::of(point)?, None)?))
    }

    fn conditions(&self, bed: &Option<Bed>) -> Vec<(String, String)> {
        let mut all = versions(&[(iperf::PROGRAM, "--version")]);
        let (capacity, rtt) = (self.capacity, self.rtt);
        all.push(("bottleneck".into(), format!("{capacity}, round trip {rtt}, a queue of one round trip, no loss")));
        all.push(("test".into(), format!("one flow of {} s, memory to memory, timed by its receiver", self.seconds)));
        all.push(("competing flows".into(), format!("{} of iperf3 under cubic, from pg1 to pg2", self.flows)));
        all.push(("circuit".into(), format!("loss on the LANs {}", wan::percent(self.loss))));
        all.push(("first hop".into(), "TCP under bbr, asked for by the shim".into()));
        all.extend(bed.iter().flat_map(|bed| wan::conditions(bed, self.seed)));
        all
    }

    fn measure(&self, bed: &mut Option<Bed>, point: &str, row: &str, limit: Duration) -> anyhow::Result<Vec<Reading>> {
        let case = Case::of(point)?;
        let row = ROWS.iter().find(|one| one.id == row).ok_or_else(|| anyhow!("there is no row {row}"))?;
        // Drop the previous bed first: both would have the same host names.
        *bed = None;
        let bed = bed.insert(self.bed(case, Some(row))?);
        let driver;
        let carrier = match row.path {
            Path::Direct(words) => words,
            Path::Libudt => {
                driver = libudt::driver(bed.testbed.directory())?;
                &[driver.to_str().ok_or_else(|| anyhow!("{} is no text", driver.display()))?]
            }
            Path::Through { .. } => &["tcp"],
        };
        let mut sink = Sink::start(&bed.testbed, "dst", bed.address("dst")?, &carrier[..1])?;
        let time = format!("{}s", self.seconds);
        let mut client = flows::client(&bed.testbed, "src", carrier, sink.at, &["--time", &time])?;
        if matches!(row.path, Path::Through { .. }) {
            bed.route(&mut client, BedRoute::Phoebus, Some("bbr"))?;
        }
        let cross = match case {
            Case::Shared => Some(CompetingFlows::start(bed, self.flows, self.seconds, limit)?),
            Case::Circuit => None,
        };
        let before = LinkCounters::now(bed)?;
        let (flow, _) = flows::run(client, &[], limit)?;
        let after = LinkCounters::now(bed)?;
        sink.check()?;
        bed.check()?;
        let cross = cross.map(CompetingFlows::finish).transpose()?.unwrap_or_default();
        // Later bytes were still on their way, and found the link without competitors.
        let counted = usize::try_from(self.seconds).unwrap_or(usize::MAX).min(flow.received.intervals.len());
        let counted = &flow.received.intervals[..counted];
        let goodput = counted.iter().sum::<u64>() as f64 * 8e-6 / self.seconds as f64;
        let mut readings = self.summed(counted, goodput, &cross);
        readings.push((ON_LINK, after.delivered_since(&before)));
        readings.push((OVERFLOW, after.overflow_since(&before)));
        readings.extend(
            flow.packets.map(|(sent, again)| (flows::RETRANSMITTED, 100.0 * again as f64 / sent.max(1) as f64)),
        );
        readings.extend(flow.received.intervals.iter().map(|bytes| (EACH_SECOND, *bytes as f64 * 8e-6)));
        for (metric, flow) in CROSS.iter().zip(&cross) {
            readings.extend(flow.iter().map(|rate| (*metric, *rate)));
        }
        Ok(readings)
    }

    fn report(&self, results: &Results) -> Report {
        report::of(self, results)
    }
}

impl Bottleneck {
    /// The summary values of a measurement.
    fn summed(&self, seconds: &[u64], goodput: f64, cross: &[Vec<f64>]) -> Vec<Reading> {
        let mut readings = vec![(GOODPUT, goodput)];
        // The last second is seldom whole.
        let whole = seconds.get(RAMP..seconds.len().saturating_sub(1)).unwrap_or_default();
        let rates: Vec<f64> = whole.iter().map(|bytes| *bytes as f64 * 8e-6).collect();
        if let Some(summary) = super::stats::Summary::of(&rates) {
            readings.push((UNSTEADY, 100.0 * summary.deviation / summary.mean.max(1e-9)));
        }
        if !cross.is_empty() {
            let means: Vec<f64> =
                cross.iter().map(|flow| flow.iter().sum::<f64>() / flow.len().max(1) as f64).collect();
            readings.push((OTHERS, means.iter().sum()));
            readings.push((JAIN, super::stats::jain(means.iter().copied().chain([goodput]))));
        }
        readings
    }
}

impl Case {
    fn label(self, flows: u32) -> Label {
        match self {
            Self::Shared => Label::new("shared", format!("with {flows} competing flows")),
            Self::Circuit => Label::new("circuit", "alone on the circuit"),
        }
    }

    fn of(point: &str) -> anyhow::Result<Self> {
        match point {
            "shared" => Ok(Self::Shared),
            "circuit" => Ok(Self::Circuit),
            _ => bail!("there is no case {point}; expected shared or circuit"),
        }
    }
}
