//! `phoebus bench udt`: the costs of the transports themselves, on loopback: UDT against libudt, and QUIC against
//! quinn's own perf tool (S24, U9).
//!
//! One connection, a process at each end, in a namespace whose loopback has an MTU of 1500: all cut their bytes into
//! the same packets. Only the two processors limit the rate.

use super::engine::{Experiment, Label};
use super::flows::{self, Sink};
use super::peer::Flow;
use super::plot::{Axis, Chart, Colour, Kind, Point, Scale, Series};
use super::process;
use super::report::{Bound, Report, Verdict};
use super::results::{Metric, Reading, Results};
use super::stats::Summary;
use super::table::Table;
use super::{Common, libudt, quinn};
use crate::exit::Exit;
use phoebus_wan::testbed::{HostSpec, Scenario, Testbed};
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Options of the experiment.
#[derive(Debug, clap::Args)]
pub(crate) struct UdtArgs {
    #[command(flatten)]
    pub(super) common: Common,
    /// Length of each test, in seconds [default: 5, with --quick 2].
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: Option<u64>,
    /// quinn's perf tool, which QUIC is held against.
    #[arg(long, value_name = "PATH")]
    quinn_perf: Option<PathBuf>,
}

/// The experiment.
pub(super) struct Loopback {
    seconds: u64,
    quinn_perf: Option<PathBuf>,
}

const ROWS: [(&str, &str, Colour); 6] = [
    ("libudt", "libudt 4.11", Colour::Grey),
    ("libudt-driver", "libudt as a loadable driver", Colour::LightGrey),
    ("udt-native", "udt, UDT's own control", Colour::Sky),
    ("udt", "udt", Colour::Vermilion),
    ("quinn-perf", "quinn's perf tool", Colour::Black),
    ("quic", "quic", Colour::Orange),
];

const RATE: Metric = Metric { name: "throughput", unit: "Gbit/s" };
const CPU: Metric = Metric { name: "cpu", unit: "s/GB" };
const SENDER: Metric = Metric { name: "sender cpu", unit: "s/GB" };
const RECEIVER: Metric = Metric { name: "receiver cpu", unit: "s/GB" };

const HOST: &str = "loop";
const POINT: &str = "loopback";
const MTU: &str = "1500";
const LOCAL: &str = "127.0.0.1";
/// Start and end of a test; the first one also compiles.
const AROUND: Duration = Duration::from_secs(3);

impl Loopback {
    /// The experiment with these options.
    pub(super) fn new(args: &UdtArgs) -> anyhow::Result<Self> {
        let seconds = args.seconds.unwrap_or(if args.common.quick { 2 } else { 5 });
        let only = &args.common.only;
        let wanted = only.is_empty() || only.iter().any(|row| row == "quinn-perf");
        let quinn_perf = match &args.quinn_perf {
            Some(path) => Some(std::path::absolute(path)?),
            None if wanted => {
                let all: Vec<_> = ROWS.iter().map(|(id, ..)| *id).filter(|id| *id != "quinn-perf").collect();
                let why = format!("{}; or measure without it: --only {}", quinn::OBTAIN, all.join(","));
                return Err(Exit::usage(why));
            }
            None => None,
        };
        Ok(Self { seconds, quinn_perf })
    }

    /// A flow of our own, with `carrier` at both ends.
    fn flow(&self, host: &Testbed, carrier: &[&str], limit: Duration) -> anyhow::Result<Vec<Reading>> {
        let sink = Sink::start(host, HOST, IpAddr::V4(Ipv4Addr::LOCALHOST), carrier)?;
        let time = format!("{}s", self.seconds);
        let client = flows::client(host, HOST, carrier, sink.at, &["--time", &time])?;
        let (flow, _) = flows::run(client, &[], limit)?;
        let Flow { client_cpu, server_cpu, .. } = flow;
        Ok(readings(flow.goodput() / 1e3, flow.received.bytes, client_cpu, server_cpu))
    }
}

fn readings(rate: f64, bytes: u64, sender: f64, receiver: f64) -> Vec<Reading> {
    let gigabytes = bytes as f64 / 1e9;
    let each = [(CPU, sender + receiver), (SENDER, sender), (RECEIVER, receiver)];
    std::iter::once((RATE, rate)).chain(each.map(|(metric, seconds)| (metric, seconds / gigabytes))).collect()
}

impl Experiment for Loopback {
    type Bed = Testbed;

    fn name(&self) -> &'static str {
        "udt"
    }

    fn points(&self) -> Vec<Label> {
        vec![Label::new(POINT, POINT)]
    }

    fn rows(&self) -> Vec<Label> {
        ROWS.iter().map(|(id, title, _)| Label::new(*id, *title)).collect()
    }

    fn expected(&self, _: &str, _: &str) -> Duration {
        Duration::from_secs(self.seconds) + AROUND
    }

    fn set_up(&self, _: &str) -> anyhow::Result<Testbed> {
        let testbed = Testbed::up(&Scenario { hosts: vec![HostSpec::new(HOST)], stock: true, ..Scenario::default() })?;
        let mut ip = testbed.exec(HOST, "ip")?;
        ip.args(["link", "set", "lo", "mtu", MTU]);
        process::run("ip, of iproute2", ip, AROUND)?;
        Ok(testbed)
    }

    fn conditions(&self, host: &Testbed) -> Vec<(String, String)> {
        let hosts = host.report().hosts.into_iter();
        let mut all: Vec<_> =
            hosts.map(|host| ("loopback of its own".to_owned(), host.conditions.to_string())).collect();
        all.push(("MTU of loopback".into(), MTU.into()));
        all.push(("test".into(), format!("one connection for {} s, a process at each end", self.seconds)));
        all.push(("encryption".into(), "QUIC encrypts, bare UDT does not".into()));
        all
    }

    fn measure(&self, host: &mut Testbed, _: &str, row: &str, limit: Duration) -> anyhow::Result<Vec<Reading>> {
        let directory = host.directory().to_owned();
        match row {
            "libudt" => {
                let program = libudt::program(&directory)?;
                let (receiver, sender) = (host.exec(HOST, &program)?, host.exec(HOST, &program)?);
                let (sent, received) = libudt::flow(receiver, sender, LOCAL, (self.seconds, 0), limit)?;
                let rate = received.bytes as f64 * 8e-9 / received.seconds;
                Ok(readings(rate, received.bytes, sent.cpu, received.cpu))
            }
            "libudt-driver" => {
                let driver = libudt::driver(&directory)?;
                self.flow(host, &[&driver.to_string_lossy()], limit)
            }
            "quinn-perf" => {
                let Some(tool) = &self.quinn_perf else { return Err(Exit::usage(quinn::OBTAIN)) };
                let command = |program: &Path| Ok(host.exec(HOST, program)?);
                let done = quinn::run(tool, [&command; 2], IpAddr::V4(Ipv4Addr::LOCALHOST), self.seconds, limit)?;
                Ok(readings(done.rate, done.bytes, done.client_cpu, done.server_cpu))
            }
            "udt-native" => self.flow(host, &["udt", "--cc", "native"], limit),
            carrier => self.flow(host, &[carrier], limit),
        }
    }

    fn report(&self, results: &Results) -> Report {
        Report {
            title: "The transports themselves".into(),
            method: format!(
                "One connection for {} s on loopback, with an MTU of 1500, a process at each end; processor time is that of \
                 both, and of each. Medians, with the smallest and the largest of the runs.",
                self.seconds
            ),
            tables: vec![table(results)],
            charts: vec![("rate".into(), chart(results, RATE)), ("cpu".into(), chart(results, CPU))],
            verdicts: verdicts(results),
        }
    }
}

fn table(results: &Results) -> Table {
    let metrics = [RATE, CPU, SENDER, RECEIVER];
    let heads = metrics.iter().map(|metric| format!("{}, {}", metric.name, metric.unit));
    let mut table = Table::new("On loopback", std::iter::once(String::new()).chain(heads));
    for (row, title, _) in ROWS.iter().filter(|(row, ..)| results.tried(POINT, row)) {
        let cells = metrics.iter().map(|metric| results.cell(POINT, row, *metric, Summary::with_extremes));
        table.row(std::iter::once((*title).to_owned()).chain(cells));
    }
    table
}

fn chart(results: &Results, metric: Metric) -> Chart {
    let series = ROWS.iter().filter_map(|(row, title, colour)| {
        let point = Point::of(0.0, &results.summary(POINT, row, metric)?);
        Some(Series { name: (*title).to_owned(), colour: *colour, points: vec![point] })
    });
    Chart {
        title: if metric == RATE { "Throughput on loopback".into() } else { "Processor time of both ends".to_owned() },
        subtitle: "one connection, MTU 1500; medians with smallest and largest".into(),
        kind: Kind::Bars,
        x: Axis::new("", Scale::Categories(vec![String::new()])),
        y: Axis::new(format!("{}, {}", metric.name, metric.unit), Scale::Linear),
        series: series.collect(),
        marks: Vec::new(),
    }
}

fn verdicts(results: &Results) -> Vec<Verdict> {
    let median = |row, metric| results.summary(POINT, row, metric).map(|summary| summary.median);
    let asked = [
        ("throughput of udt to libudt's", "udt", "libudt", RATE, Bound::AtLeast(2.5)),
        ("processor time per GB of udt to libudt's", "udt", "libudt", CPU, Bound::AtMost(0.4)),
        ("throughput of quic to that of quinn's perf tool", "quic", "quinn-perf", RATE, Bound::AtLeast(0.9)),
    ];
    let verdict = |(target, ours, theirs, metric, bound): (&str, _, _, _, _)| {
        Some(Verdict { target: target.into(), measured: median(ours, metric)? / median(theirs, metric)?, bound })
    };
    asked.into_iter().filter_map(verdict).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_compares_each_transport_with_its_own_peer() {
        let mut results = Results::of("udt");
        for (row, rate, cpu) in [("libudt", 1.0, 10.0), ("udt", 5.0, 2.0), ("quinn-perf", 2.0, 3.0), ("quic", 1.7, 3.0)]
        {
            results.add(POINT, row, 1, &[(RATE, rate), (CPU, cpu)]);
        }
        let verdicts: Vec<_> = verdicts(&results).iter().map(|v| (v.measured, v.met())).collect();
        assert_eq!(verdicts, [(5.0, true), (0.2, true), (0.85, false)]);
        assert_eq!(table(&results).rows[0], ["libudt 4.11", "1.00", "10.0", "–", "–"]);
    }

    #[test]
    fn report_names_missing_rows() {
        let args = |only: &[&str]| UdtArgs {
            common: Common { only: only.iter().map(ToString::to_string).collect(), ..Common::for_tests() },
            seconds: None,
            quinn_perf: None,
        };
        let error = Loopback::new(&args(&[])).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains("--quinn-perf PATH") && error.contains("--only libudt,"), "{error}");
        assert!(Loopback::new(&args(&["udt", "quic"])).is_ok());
    }
}
