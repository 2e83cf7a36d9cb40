//! `phoebus bench relay --wan`: what two gateways on a long path cost, with each transport between them, beside HAProxy
//! with and without TLS, and quinn's perf tool on the WAN alone (S24, S29).
//!
//! On such a path the link limits the rate, so bytes arrive in small parts, and a relay that wakes for each of them
//! spends more on waking than on bytes. So context switches are counted next to processor time.

use super::bed::{Bed, BedRoute, Service};
use super::conditions::versions;
use super::engine::{Experiment, Label};
use super::flows::GOODPUT;
use super::hop::Wan;
use super::peer::{PARALLEL_TRANSFER, ParallelTransfer, RelayChoice};
use super::plot::{Axis, Chart, Colour, Kind, Point, Scale, Series};
use super::process::{context_switches, run, user_and_system_seconds};
use super::relay::{Measurement, RelayArgs};
use super::report::{Bound, Report, Verdict};
use super::results::{Metric, Reading, Results};
use super::stats::Summary;
use super::table::Table;
use super::{haproxy, quinn, wan};
use crate::exit::Exit;
use crate::testbed::Security;
use anyhow::{Context, bail};
use phoebus_proto::endpoint::{DEFAULT_PORT, Endpoint};
use phoebus_proto::units::{Probability, Span};
use phoebus_wan::testbed::Sc09;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The experiment.
pub(super) struct RelayWan {
    rtt: Span,
    /// Numbers of sessions at the same time.
    sessions: Vec<u64>,
    /// Total bytes of a measurement.
    bytes: u64,
    seed: u64,
    quinn_perf: Option<PathBuf>,
}

/// The paths of the rows, each built when a row first needs it.
pub(super) struct Paths {
    settings: Sc09,
    beds: BTreeMap<&'static str, Bed>,
}

/// A row of the comparison.
struct Row {
    id: &'static str,
    title: &'static str,
    colour: Colour,
    between: Between,
}

/// What relays the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Between {
    /// Two relays of another kind.
    Relays(BedRoute),
    /// Two gateways, joined by the transport of this name.
    Gateways(&'static str, Security),
    /// Nothing: quinn's perf tool makes and takes the bytes on the relays' hosts.
    QuinnPerf,
}

const fn row(id: &'static str, title: &'static str, colour: Colour, between: Between) -> Row {
    Row { id, title, colour, between }
}

const ROWS: [Row; 7] = [
    row("haproxy", "HAProxy, in the clear", Colour::Sky, Between::Relays(BedRoute::Haproxy)),
    row("haproxy-tls", "HAProxy, TLS on TCP", Colour::Blue, Between::Relays(BedRoute::HaproxyTls)),
    row("clear", "Phoebus, TCP, in the clear", Colour::Grey, Between::Gateways("bbr", Security::None)),
    row("tls", "Phoebus, TLS on TCP", Colour::Vermilion, Between::Gateways("bbr", Security::Encrypt)),
    row("udt", "Phoebus, TLS on UDT", Colour::Purple, Between::Gateways("udt", Security::Encrypt)),
    row("quic", "Phoebus, QUIC", Colour::Orange, Between::Gateways("quic", Security::Encrypt)),
    row("quinn-perf", "quinn's perf tool, WAN alone", Colour::Black, Between::QuinnPerf),
];

pub(super) const CPU: Metric = Metric { name: "cpu of both relays", unit: "s/GB" };
const USER: Metric = Metric { name: "of it in user mode", unit: "s/GB" };
pub(super) const SWITCHES: Metric = Metric { name: "context switches of a relay", unit: "1/MB" };
const WAITS: Metric = Metric { name: "of them to wait", unit: "1/MB" };

/// Targets for one session: processor time of both gateways in s/GB, and context switches of each for each MB.
const TARGETS: [(&str, f64, f64); 3] = [("tls", 1.2, 8.0), ("udt", 3.0, 15.0), ("quic", 4.5, 20.0)];

/// What the links carry, in bytes per second, for estimates of time.
const LINK: f64 = 100e6;

impl RelayWan {
    /// The experiment with these options.
    pub(super) fn new(args: &RelayArgs) -> anyhow::Result<Self> {
        let quick = args.common.quick;
        let number = |what: &Measurement| match what {
            Measurement::BulkOne => Ok(1),
            Measurement::BulkMany => Ok(100),
            Measurement::Opening | Measurement::Idle => {
                Err(Exit::usage("--wan measures bulk-1 and bulk-100; opening and idle are measured on loopback"))
            }
        };
        let asked = args.what.iter().map(number).collect::<anyhow::Result<Vec<_>>>()?;
        Ok(Self {
            rtt: args.rtt,
            sessions: if asked.is_empty() { vec![1, 100] } else { asked },
            bytes: if quick { 500_000_000 } else { 2_000_000_000 },
            seed: args.common.seed,
            quinn_perf: args.quinn_perf.as_ref().map(std::path::absolute).transpose()?,
        })
    }

    fn through(&self, paths: &mut Paths, row: &Row, sessions: u64, limit: Duration) -> anyhow::Result<Vec<Reading>> {
        let (bed, way) = match row.between {
            Between::Relays(way) => (paths.relays()?, way),
            Between::Gateways(name, security) => (paths.gateways(row.id, name, security)?, BedRoute::Phoebus),
            Between::QuinnPerf => return self.quinn_perf(paths.relays()?, sessions, limit),
        };
        bed.check()?;
        let to = bed.entrance(way, Service::Sink)?;
        let (via, to) = match way {
            BedRoute::Phoebus => {
                let first = SocketAddr::new(bed.address("pg1")?, DEFAULT_PORT);
                // By the name that it has as a peer, whatever transport leads to it.
                let next = Endpoint::parse("pg2", Some(DEFAULT_PORT)).context("the name of the second gateway")?;
                (RelayChoice::gateways(&[first.into(), next]), to)
            }
            // The relay knows the destination.
            _ => (RelayChoice::relay(to), to),
        };
        let words = [to.to_string(), sessions.to_string(), (self.bytes / sessions).to_string()];
        let arguments = via.to_arguments().into_iter().chain(words);
        let arguments: Vec<_> = std::iter::once(PARALLEL_TRANSFER.to_owned()).chain(arguments).collect();
        let load = bed.peer("src", &arguments.iter().map(String::as_str).collect::<Vec<_>>())?;
        let pids = bed.relay_pids(way);
        let before = Costs::of(&pids)?;
        let done = run("the load", load, limit)?;
        let costs = Costs::of(&pids)?.since(&before);
        bed.check()?;
        let done: ParallelTransfer = serde_json::from_str(&done).context("the load printed no result")?;
        let mut readings = vec![(GOODPUT, done.bytes as f64 * 8e-6 / done.seconds)];
        readings.extend(costs.readings(done.bytes, pids.len()));
        Ok(readings)
    }

    /// The tool's sender and receiver in place of the two relays. It cannot split its bytes into sessions.
    fn quinn_perf(&self, bed: &Bed, sessions: u64, limit: Duration) -> anyhow::Result<Vec<Reading>> {
        let (Some(tool), 1) = (&self.quinn_perf, sessions) else { return Ok(Vec::new()) };
        let seconds = (self.bytes as f64 / LINK).ceil() as u64;
        let [client, server] =
            ["pg1", "pg2"].map(|host| move |program: &Path| bed.command(host, program_name(program)?));
        let done = quinn::run(tool, [&client, &server], bed.address("pg2")?, seconds, limit)?;
        let cpu = (done.client_cpu + done.server_cpu) * 1e9 / done.bytes as f64;
        Ok(vec![(GOODPUT, done.rate * 1e3), (CPU, cpu)])
    }
}

fn program_name(program: &Path) -> anyhow::Result<&str> {
    program.to_str().with_context(|| format!("{} is no text", program.display()))
}

impl Paths {
    /// The path whose middle hosts run HAProxy.
    fn relays(&mut self) -> anyhow::Result<&mut Bed> {
        self.get("relays", |settings| {
            let mut bed = Bed::bare(settings)?;
            bed.start_haproxy(&[Service::Sink])?;
            bed.start_haproxy_tls(&[Service::Sink])?;
            Ok(bed)
        })
    }

    /// The path of a row, whose middle hosts run gateways that are joined like this.
    fn gateways(&mut self, row: &'static str, name: &str, security: Security) -> anyhow::Result<&mut Bed> {
        self.get(row, |settings| {
            let wan = name.parse::<Wan>().map_err(anyhow::Error::msg)?.secured(security);
            let mut bed = Bed::joined(settings, wan)?;
            bed.restart_gateways()?;
            Ok(bed)
        })
    }

    fn get(&mut self, name: &'static str, make: impl FnOnce(&Sc09) -> anyhow::Result<Bed>) -> anyhow::Result<&mut Bed> {
        if !self.beds.contains_key(name) {
            let mut bed = make(&self.settings)?;
            bed.serve_peer("sink", Service::Sink)?;
            self.beds.insert(name, bed);
        }
        match self.beds.get_mut(name) {
            Some(bed) => Ok(bed),
            None => bail!("there is no path {name}"),
        }
    }
}

/// What processes have used so far, or between two points in time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Costs {
    user: f64,
    system: f64,
    waits: u64,
    preemptions: u64,
}

impl Costs {
    pub(super) fn of(pids: &[u32]) -> anyhow::Result<Self> {
        let mut sum = Self { user: 0.0, system: 0.0, waits: 0, preemptions: 0 };
        for pid in pids {
            let ([user, system], [waits, preemptions]) = (user_and_system_seconds(*pid)?, context_switches(*pid)?);
            sum.user += user;
            sum.system += system;
            sum.waits += waits;
            sum.preemptions += preemptions;
        }
        Ok(sum)
    }

    pub(super) fn since(&self, before: &Self) -> Self {
        Self {
            user: self.user - before.user,
            system: self.system - before.system,
            // The switches of threads that have ended no longer count.
            waits: self.waits.saturating_sub(before.waits),
            preemptions: self.preemptions.saturating_sub(before.preemptions),
        }
    }

    pub(super) fn readings(&self, bytes: u64, relays: usize) -> [Reading; 4] {
        let gigabytes = bytes as f64 / 1e9;
        let each = |switches: u64| switches as f64 / (gigabytes * 1e3) / relays.max(1) as f64;
        [
            (CPU, (self.user + self.system) / gigabytes),
            (USER, self.user / gigabytes),
            (SWITCHES, each(self.waits + self.preemptions)),
            (WAITS, each(self.waits)),
        ]
    }
}

impl Experiment for RelayWan {
    type Bed = Paths;

    fn name(&self) -> &'static str {
        "relay-wan"
    }

    fn points(&self) -> Vec<Label> {
        self.sessions.iter().map(|sessions| Label::new(sessions.to_string(), title_of(*sessions))).collect()
    }

    fn rows(&self) -> Vec<Label> {
        let measurable = |row: &&Row| row.between != Between::QuinnPerf || self.quinn_perf.is_some();
        ROWS.iter().filter(measurable).map(|row| Label::new(row.id, row.title)).collect()
    }

    fn expected(&self, _: &str, _: &str) -> Duration {
        Duration::from_secs_f64(2.0 + self.bytes as f64 / LINK)
    }

    fn set_up(&self, _: &str) -> anyhow::Result<Paths> {
        let settings = wan::path(self.rtt, Probability::default(), self.seed, "bbr");
        let mut paths = Paths { settings, beds: BTreeMap::new() };
        paths.relays()?;
        Ok(paths)
    }

    fn conditions(&self, paths: &Paths) -> Vec<(String, String)> {
        let mut all = versions(&[(haproxy::PROGRAM, "-v")]);
        all.push(("round trip of the WAN".into(), self.rtt.to_string()));
        all.push(("bytes".into(), format!("{} MB in all, memory to memory", self.bytes / 1_000_000)));
        all.push(("to the ends".into(), "TCP under bbr, in the clear".into()));
        all.extend(paths.beds.values().next().map(|bed| wan::conditions(bed, self.seed)).unwrap_or_default());
        all
    }

    fn measure(&self, paths: &mut Paths, point: &str, row: &str, limit: Duration) -> anyhow::Result<Vec<Reading>> {
        let row = ROWS.iter().find(|one| one.id == row).with_context(|| format!("there is no row {row}"))?;
        self.through(paths, row, point.parse().context("a point is a number of sessions")?, limit)
    }

    fn report(&self, results: &Results) -> Report {
        Report {
            title: "Relaying over a WAN".into(),
            method: format!(
                "From `src` through relays on `pg1` and `pg2` to `dst`, round trip of the WAN {}, memory to memory, timed \
                 from the time when all sessions were open to the last confirmation. Processor time is that of both relays, \
                 read from the kernel. Context switches are those of one relay, on average; a switch \"to wait\" is one \
                 after which the thread has to be woken. quinn's perf tool makes and takes the bytes itself, on the hosts \
                 of the relays. Medians, with the smallest and the largest of the runs.",
                self.rtt
            ),
            tables: self.sessions.iter().map(|sessions| table(results, *sessions)).collect(),
            charts: vec![("cpu".into(), self.chart(results))],
            verdicts: verdicts(results),
        }
    }
}

impl RelayWan {
    fn chart(&self, results: &Results) -> Chart {
        let series = ROWS.iter().map(|row| Series {
            name: row.title.to_owned(),
            colour: row.colour,
            points: (0..)
                .zip(&self.sessions)
                .filter_map(|(place, sessions)| {
                    Some(Point::of(f64::from(place), &results.summary(&sessions.to_string(), row.id, CPU)?))
                })
                .collect(),
        });
        let categories = self.sessions.iter().map(|sessions| title_of(*sessions)).collect();
        Chart {
            title: "Processor time of two relays".into(),
            subtitle: format!("WAN of 1 Gbit/s and {}; medians with smallest and largest", self.rtt),
            kind: Kind::Bars,
            x: Axis::new("", Scale::Categories(categories)),
            y: Axis::new("seconds for each GB", Scale::Linear),
            series: series.filter(|series| !series.points.is_empty()).collect(),
            marks: Vec::new(),
        }
    }
}

fn title_of(sessions: u64) -> String {
    if sessions == 1 { "1 session".to_owned() } else { format!("{sessions} sessions") }
}

fn table(results: &Results, sessions: u64) -> Table {
    let metrics = [GOODPUT, CPU, USER, SWITCHES, WAITS];
    let heads = metrics.iter().map(|metric| format!("{}, {}", metric.name, metric.unit));
    let mut table = Table::new(title_of(sessions), std::iter::once(String::new()).chain(heads));
    let point = sessions.to_string();
    for row in ROWS.iter().filter(|row| !results.values(&point, row.id, CPU).is_empty()) {
        let cells = metrics.iter().map(|metric| results.cell(&point, row.id, *metric, Summary::with_extremes));
        table.row(std::iter::once(row.title.to_owned()).chain(cells));
    }
    table
}

fn verdicts(results: &Results) -> Vec<Verdict> {
    let of = |(row, cpu, switches): (&'static str, f64, f64)| {
        let title = ROWS.iter().find(|one| one.id == row).map_or(row, |one| one.title);
        [(CPU, cpu), (SWITCHES, switches)].into_iter().filter_map(move |(metric, bound)| {
            let measured = results.summary("1", row, metric)?.median;
            let target = format!("{title}: {}, {}", metric.name, metric.unit);
            Some(Verdict { target, measured, bound: Bound::AtMost(bound) })
        })
    };
    TARGETS.into_iter().flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_divided_by_gigabytes_and_relays() {
        let before = Costs { user: 1.0, system: 2.0, waits: 100, preemptions: 10 };
        let after = Costs { user: 2.0, system: 4.0, waits: 8100, preemptions: 2010 };
        let readings = after.since(&before).readings(500_000_000, 2);
        assert_eq!(readings, [(CPU, 6.0), (USER, 2.0), (SWITCHES, 10.0), (WAITS, 8.0)]);
    }

    #[test]
    fn report_holds_each_transport_against_its_target() {
        let mut results = Results::of("relay-wan");
        results.add("1", "tls", 1, &[(GOODPUT, 900.0), (CPU, 1.0), (SWITCHES, 9.0)]);
        results.add("1", "quic", 1, &[(CPU, 5.0)]);
        let verdicts: Vec<_> = verdicts(&results).iter().map(|v| (v.measured, v.met())).collect();
        assert_eq!(verdicts, [(1.0, true), (9.0, false), (5.0, false)]);
        assert_eq!(table(&results, 1).rows[0][..3], ["Phoebus, TLS on TCP", "900", "1.00"]);
    }
}
