//! `phoebus bench relay`: one gateway on loopback compared with HAProxy, which also splices (S24, S29, P22).
//!
//! Load and destination talk to the relay over loopback in a separate namespace; all three share both processors.
//! Throughput therefore means less than the relay's own processor time per gigabyte, which is read from the kernel.
//! Every measurement starts a new relay, so that no relay inherits memory from an earlier load.

use super::bed::Service;
use super::conditions::versions;
use super::engine::{Experiment, Label};
use super::gateway::{self, Gateway};
use super::peer::{IDLE_CONNECTIONS, PARALLEL_TRANSFER, SEQUENTIAL_CONNECTIONS};
use super::peer::{IdleConnections, ParallelTransfer, RelayChoice, SequentialConnections};
use super::plot::{Axis, Chart, Colour, Kind, Point, Scale, Series};
use super::process::{self, Background};
use super::report::{Bound, Report, Verdict};
use super::results::{Metric, Reading, Results};
use super::stats::Summary;
use super::table::Table;
use super::{Common, haproxy};
use anyhow::Context;
use clap::ValueEnum;
use phoebus_proto::units::Span;
use phoebus_wan::testbed::{HostSpec, Scenario, Testbed};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::Duration;

/// Options of the experiment.
#[derive(Debug, clap::Args)]
pub(crate) struct RelayArgs {
    #[command(flatten)]
    pub(super) common: Common,
    /// Measure only these: bulk-1, bulk-100, opening, idle.
    #[arg(long, value_delimiter = ',', value_name = "WHAT")]
    pub(super) what: Vec<Measurement>,
    /// Two gateways on a long path instead, with each transport between them; bulk-1 and bulk-100 only.
    #[arg(long)]
    pub(super) wan: bool,
    /// Round trip of the WAN.
    #[arg(long, value_name = "TIME", requires = "wan", default_value = "75ms")]
    pub(super) rtt: Span,
    /// quinn's perf tool, to be measured on the WAN alone.
    #[arg(long, value_name = "PATH", requires = "wan")]
    pub(super) quinn_perf: Option<PathBuf>,
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Measurement {
    /// Bytes over one session.
    #[value(name = "bulk-1")]
    BulkOne,
    /// Bytes over a hundred.
    #[value(name = "bulk-100")]
    BulkMany,
    /// Sessions opened and closed.
    Opening,
    /// Sessions held.
    Idle,
}

/// The experiment.
pub(super) struct Relay {
    what: Vec<Measurement>,
    /// Total bytes of a bulk measurement.
    bytes: u64,
    /// How long sessions are opened, in seconds.
    seconds: u64,
    /// Number of sessions held open.
    sessions: usize,
}

/// A namespace with the destinations in it.
pub(super) struct Host {
    /// Must be dropped before the host.
    _servers: Vec<Background>,
    testbed: Testbed,
}

const ROWS: [(&str, &str, Colour); 4] = [
    ("direct", "without a relay", Colour::LightGrey),
    ("haproxy", "HAProxy", Colour::Blue),
    ("phoebus", "Phoebus", Colour::Vermilion),
    ("phoebus-pair", "Phoebus, two gateways, in the clear", Colour::Orange),
];

const RATE: Metric = Metric { name: "throughput", unit: "Gbit/s" };
const CPU_PER_GB: Metric = Metric { name: "relay cpu", unit: "s/GB" };
const OPENED: Metric = Metric { name: "opened", unit: "sessions/s" };
const CPU_PER_SESSION: Metric = Metric { name: "relay cpu per session", unit: "ms" };
const MEMORY: Metric = Metric { name: "memory of the relay per session", unit: "KiB" };
const KERNEL: Metric = Metric { name: "memory of the kernel per session", unit: "KiB" };

const HOST: &str = "relay";
const HAPROXY_PORT: u16 = 6001;
const GATEWAY_PORTS: [u16; 2] = [5006, 5007];
/// Sessions that are opened concurrently.
const AT_ONCE: usize = 16;
/// Descriptors that a relay needs for pipes, handshakes, connections kept to a peer and itself, in addition to those of
/// the sessions.
const KEPT_DESCRIPTORS: u64 = 3200;
/// Time until memory used only for opening sessions has been freed.
const SETTLE: Duration = Duration::from_secs(2);

impl Relay {
    /// The experiment with these options.
    pub(super) fn new(args: &RelayArgs) -> Self {
        let quick = args.common.quick;
        let all = vec![Measurement::BulkOne, Measurement::BulkMany, Measurement::Opening, Measurement::Idle];
        let descriptors = phoebus_net::limits::raise_descriptors();
        let most = usize::try_from(descriptors.saturating_sub(KEPT_DESCRIPTORS) / 2).unwrap_or(usize::MAX);
        Self {
            what: if args.what.is_empty() { all } else { args.what.clone() },
            bytes: if quick { 1_000_000_000 } else { 8_000_000_000 },
            seconds: if quick { 1 } else { 3 },
            sessions: if quick { most.min(1000) } else { most },
        }
    }

    fn relay(&self, host: &Host, row: &str, to: SocketAddr) -> anyhow::Result<(Vec<Background>, RelayChoice)> {
        let program = |program: &str| -> anyhow::Result<Command> { Ok(host.testbed.exec(HOST, program)?) };
        let [first, second] = GATEWAY_PORTS.map(local);
        let limits = format!(
            "[limits]\nsessions = {n}\nsessions_per_source = {n}\nhandshakes = {h}\nhandshakes_per_source = {h}\npipes = {p}\n",
            n = self.sessions,
            h = AT_ONCE * 4,
            p = haproxy::PIPES
        );
        let gateway = |name, listen, peer| {
            let gateway = Gateway { name, listen, peer, congestion_control: "reno", more: &limits };
            let command = host.testbed.exec(HOST, gateway::program())?;
            gateway.start(command, host.testbed.directory())
        };
        Ok(match row {
            "haproxy" => {
                let listen = local(HAPROXY_PORT);
                let directory = host.testbed.directory();
                let relay = haproxy::Relay { listen, to, tls: haproxy::Tls::Off };
                let haproxy =
                    haproxy::start(program(haproxy::PROGRAM)?, "haproxy", directory, &[relay], self.sessions)?;
                (vec![haproxy], RelayChoice::relay(listen))
            }
            "phoebus" => (vec![gateway("one", first, None)?], RelayChoice::gateways(&[first.into()])),
            "phoebus-pair" => {
                let two = gateway("two", second, Some(("one", first)))?;
                let one = gateway("one", first, Some(("two", second)))?;
                (vec![one, two], RelayChoice::gateways(&[first.into(), second.into()]))
            }
            _ => (Vec::new(), RelayChoice::default()),
        })
    }

    fn load(&self, host: &Host, words: &[&str], via: &RelayChoice) -> anyhow::Result<Command> {
        let (name, rest) = words.split_first().context("no load was named")?;
        let mut command = host.testbed.exec(HOST, gateway::program())?;
        command.args(["bench", "peer", name]).args(via.to_arguments()).args(rest);
        Ok(command)
    }

    fn bulk(&self, host: &Host, row: &str, sessions: u64, limit: Duration) -> anyhow::Result<Vec<Reading>> {
        let to = local(Service::Sink.port());
        let (relays, via) = self.relay(host, row, to)?;
        let words = [to.to_string(), sessions.to_string(), (self.bytes / sessions).to_string()];
        let load = self.load(host, &[PARALLEL_TRANSFER, &words[0], &words[1], &words[2]], &via)?;
        let (done, cpu) = with_processor_time(&relays, || process::run("the load", load, limit))?;
        let done: ParallelTransfer = serde_json::from_str(&done).context("the load printed no result")?;
        let gigabytes = done.bytes as f64 / 1e9;
        let mut readings = vec![(RATE, gigabytes * 8.0 / done.seconds)];
        if !relays.is_empty() {
            readings.push((CPU_PER_GB, cpu / gigabytes));
        }
        Ok(readings)
    }

    fn opening(&self, host: &Host, row: &str, limit: Duration) -> anyhow::Result<Vec<Reading>> {
        let to = local(Service::Echo.port());
        let (relays, via) = self.relay(host, row, to)?;
        let words = [to.to_string(), AT_ONCE.to_string(), self.seconds.to_string()];
        let load = self.load(host, &[SEQUENTIAL_CONNECTIONS, &words[0], &words[1], &words[2]], &via)?;
        let (done, cpu) = with_processor_time(&relays, || process::run("the load", load, limit))?;
        let done: SequentialConnections = serde_json::from_str(&done).context("the load printed no result")?;
        let mut readings = vec![(OPENED, done.opened as f64 / done.seconds)];
        if !relays.is_empty() {
            readings.push((CPU_PER_SESSION, cpu * 1e3 / done.opened as f64));
        }
        Ok(readings)
    }

    fn idle(&self, host: &Host, row: &str, limit: Duration) -> anyhow::Result<Vec<Reading>> {
        let to = local(Service::Echo.port());
        let (relays, via) = self.relay(host, row, to)?;
        let memory = || relays.iter().map(|relay| process::memory(relay.pid())).sum::<anyhow::Result<u64>>();
        thread::sleep(SETTLE);
        let before = (memory()?, process::kernel_memory()?);
        let words = [to.to_string(), self.sessions.to_string()];
        let load = self.load(host, &[IDLE_CONNECTIONS, &words[0], &words[1]], &via)?;
        let (load, said) = Background::until_it_says("the load", load, limit)?;
        let held: IdleConnections = serde_json::from_str(&said).context("the load printed no result")?;
        thread::sleep(SETTLE);
        let after = (memory()?, process::kernel_memory()?);
        drop(load);
        // The kernel's memory is that of the whole machine, and may shrink meanwhile.
        let each = |before: u64, after: u64| (after as f64 - before as f64) / 1024.0 / held.sessions as f64;
        let mut readings = vec![(KERNEL, each(before.1, after.1))];
        if !relays.is_empty() {
            readings.push((MEMORY, each(before.0, after.0)));
        }
        Ok(readings)
    }
}

impl Measurement {
    fn label(self) -> Label {
        match self {
            Self::BulkOne => Label::new("bulk-1", "1 session"),
            Self::BulkMany => Label::new("bulk-100", "100 sessions"),
            Self::Opening => Label::new("opening", "opening sessions"),
            Self::Idle => Label::new("idle", "idle sessions"),
        }
    }
}

fn local(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// Runs `work`, and returns the processor time that the relays used for it, in seconds.
fn with_processor_time<T>(relays: &[Background], work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<(T, f64)> {
    let used = || relays.iter().map(|relay| process::cpu_seconds(relay.pid())).sum::<anyhow::Result<f64>>();
    let before = used()?;
    let done = work()?;
    Ok((done, used()? - before))
}

impl Experiment for Relay {
    type Bed = Host;

    fn name(&self) -> &'static str {
        "relay"
    }

    fn points(&self) -> Vec<Label> {
        self.what.iter().map(|what| what.label()).collect()
    }

    fn rows(&self) -> Vec<Label> {
        ROWS.iter().map(|(id, title, _)| Label::new(*id, *title)).collect()
    }

    fn expected(&self, point: &str, _: &str) -> Duration {
        match point {
            "opening" => Duration::from_secs(self.seconds + 1),
            "idle" => SETTLE * 2 + Duration::from_secs_f64(1.0 + self.sessions as f64 / 3000.0),
            // A relay and its load move about a gigabyte per second on two processors.
            _ => Duration::from_secs_f64(1.0 + self.bytes as f64 / 1e9),
        }
    }

    fn set_up(&self, _: &str) -> anyhow::Result<Host> {
        let mut host = HostSpec::new(HOST);
        // Pacing, which comes with bbr, has no place on loopback. Thousands of sessions need as many ports.
        host.sysctl.insert("net.ipv4.tcp_congestion_control".into(), "reno".into());
        host.sysctl.insert("net.ipv4.ip_local_port_range".into(), "10000 65535".into());
        let testbed = Testbed::up(&Scenario { hosts: vec![host], stock: true, ..Scenario::default() })?;
        let server = |name: &str, service: Service| {
            let mut command = testbed.exec(HOST, gateway::program())?;
            command.args(["bench", "peer", name, &local(service.port()).to_string()]);
            Background::start(name, command)?.listening(service.port())
        };
        let servers = vec![server("sink", Service::Sink)?, server("echo", Service::Echo)?];
        Ok(Host { _servers: servers, testbed })
    }

    fn conditions(&self, host: &Host) -> Vec<(String, String)> {
        let mut all = versions(&[(haproxy::PROGRAM, "-v")]);
        let hosts = host.testbed.report().hosts;
        all.extend(hosts.into_iter().map(|host| ("loopback of its own".to_owned(), host.conditions.to_string())));
        all.push(("bulk".into(), format!("{} GB in all", self.bytes / 1_000_000_000)));
        all.push(("opening".into(), format!("{AT_ONCE} at a time for {} s, one byte echoed over each", self.seconds)));
        all.push(("idle".into(), format!("{} sessions, each after one echoed byte", self.sessions)));
        all
    }

    fn measure(&self, host: &mut Host, point: &str, row: &str, limit: Duration) -> anyhow::Result<Vec<Reading>> {
        match point {
            "bulk-1" => self.bulk(host, row, 1, limit),
            "bulk-100" => self.bulk(host, row, 100, limit),
            "opening" => self.opening(host, row, limit),
            _ => self.idle(host, row, limit),
        }
    }

    fn report(&self, results: &Results) -> Report {
        Report {
            title: "Relaying".into(),
            method: format!(
                "A relay between a load and its destination, all on loopback in one namespace. Processor time is the relay's \
                 own, read from the kernel; of two gateways it is the sum. Memory is what {} idle sessions added, divided by \
                 their number: of the relay (Pss), and of the kernel as a whole, where sessions without a relay have two \
                 sockets and those with one have four. Medians, with the smallest and the largest of the runs.",
                self.sessions
            ),
            tables: vec![table(results)],
            charts: vec![("cpu".into(), chart(results))],
            verdicts: verdicts(results),
        }
    }
}

const COLUMNS: [(&str, Metric); 8] = [
    ("bulk-1", RATE),
    ("bulk-1", CPU_PER_GB),
    ("bulk-100", RATE),
    ("bulk-100", CPU_PER_GB),
    ("opening", OPENED),
    ("opening", CPU_PER_SESSION),
    ("idle", MEMORY),
    ("idle", KERNEL),
];

/// One line for each metric: eight columns would be too wide to read.
fn table(results: &Results) -> Table {
    let columns = std::iter::once("").chain(ROWS.iter().map(|(_, title, _)| *title));
    let mut table = Table::new("One relay on loopback", columns);
    for (point, metric) in COLUMNS {
        let what = Measurement::value_variants().iter().map(|what| what.label()).find(|label| label.id == point);
        let what = what.map_or_else(String::new, |label| label.title);
        let cell = |(row, ..): &(&str, &str, Colour)| match results.cell(point, row, metric, Summary::with_extremes) {
            cell if results.values(point, row, metric).is_empty() && results.has(point, row, 1) => {
                // A row without a relay has no processor time of a relay.
                cell.replace('–', "")
            }
            cell => cell,
        };
        let heading = format!("{what}: {}, {}", metric.name, metric.unit);
        table.row(std::iter::once(heading).chain(ROWS.iter().map(cell)));
    }
    table
}

fn chart(results: &Results) -> Chart {
    let points = ["bulk-1", "bulk-100"];
    let series = ROWS.iter().map(|(row, title, colour)| Series {
        name: (*title).to_owned(),
        colour: *colour,
        points: (0..)
            .zip(points)
            .filter_map(|(place, point)| Some(Point::of(f64::from(place), &results.summary(point, row, CPU_PER_GB)?)))
            .collect(),
    });
    Chart {
        title: "Processor time of a relay".into(),
        subtitle: "loopback; medians with smallest and largest".into(),
        kind: Kind::Bars,
        x: Axis::new("", Scale::Categories(vec!["1 session".into(), "100 sessions".into()])),
        y: Axis::new("seconds for each GB", Scale::Linear),
        series: series.filter(|series| !series.points.is_empty()).collect(),
        marks: Vec::new(),
    }
}

fn verdicts(results: &Results) -> Vec<Verdict> {
    let median = |point, row, metric| results.summary(point, row, metric).map(|summary| summary.median);
    let mut verdicts = Vec::new();
    for (point, title) in [("bulk-1", "1 session"), ("bulk-100", "100 sessions")] {
        if let (Some(ours), Some(theirs)) = (median(point, "phoebus", CPU_PER_GB), median(point, "haproxy", CPU_PER_GB))
        {
            let target = format!("processor time per GB to HAProxy's, {title}");
            verdicts.push(Verdict { target, measured: ours / theirs, bound: Bound::AtMost(1.1) });
        }
    }
    if let (Some(ours), Some(theirs)) = (median("opening", "phoebus", OPENED), median("opening", "haproxy", OPENED)) {
        let target = "sessions opened a second to HAProxy's".into();
        verdicts.push(Verdict { target, measured: ours / theirs, bound: Bound::AtLeast(0.8) });
    }
    let alone = [
        ("opening", "phoebus-pair", OPENED, "sessions opened a second by two gateways", Bound::AtLeast(5000.0)),
        ("idle", "phoebus", MEMORY, "memory of the gateway per idle session, KiB", Bound::AtMost(64.0)),
        ("idle", "phoebus-pair", MEMORY, "memory of two gateways per idle session, KiB", Bound::AtMost(12.0)),
    ];
    for (point, row, metric, target, bound) in alone {
        verdicts.extend(median(point, row, metric).map(|measured| Verdict { target: target.into(), measured, bound }));
    }
    verdicts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_compares_the_relay_with_haproxy() {
        let mut results = Results::of("relay");
        for (row, cpu, memory) in [("haproxy", 0.2, 3.0), ("phoebus", 0.25, 20.0)] {
            results.add("bulk-1", row, 1, &[(RATE, 8.0), (CPU_PER_GB, cpu)]);
            results.add("idle", row, 1, &[(MEMORY, memory), (KERNEL, 9.0)]);
        }
        results.add("bulk-1", "direct", 1, &[(RATE, 20.0)]);
        assert_eq!(verdicts(&results).iter().map(Verdict::met).collect::<Vec<_>>(), [false, true]);
        let table = table(&results);
        assert_eq!(table.rows[1][..4], ["1 session: relay cpu, s/GB", "", "0.200", "0.250"]);
        assert_eq!(table.rows[2][1..], ["–", "–", "–", "–"]);
    }
}
