//! `phoebus bench objects --users`: objects from the first byte to the last, on a path that is known and on one that is not, as the
//! superuser and as an ordinary user with the system's limits of sockets, beside what else such a user has (L3).

use super::super::conditions::versions;
use super::super::engine::{Experiment, Label};
use super::super::flows::{GOODPUT, cpu};
use super::super::plot::{Axis, Chart, Colour, Kind, Point, Scale, Series};
use super::super::report::{Bound, Report, Verdict};
use super::super::results::{Metric, Reading, Results};
use super::super::sc09::site::Grid;
use super::super::stats::Summary;
use super::super::table::Table;
use super::carried::{ClientAndServer, DataTransport, MonitoredTransfer, ProgramUser, WASTE};
use super::hosts::Hosts;
use super::site::Site;
use super::wan::{CONTROL, path};
use phoebus_proto::units::{BitRate, Probability, Span};
use std::fs;
use std::time::Duration;

/// The experiment.
pub(in crate::bench) struct Starts {
    bytes: u64,
    seed: u64,
}

struct Row {
    id: &'static str,
    title: &'static str,
    colour: Colour,
    over: DataTransport,
    user: ProgramUser,
}

const COLD: &str = "root-cold";
const WARM: &str = "root-warm";
const ROWS: [Row; 7] = [
    Row {
        id: COLD,
        title: "objects, root",
        colour: Colour::Wine,
        over: DataTransport::Object,
        user: ProgramUser::Root,
    },
    Row {
        id: WARM,
        title: "objects, root, path known",
        colour: Colour::Orange,
        over: DataTransport::Object,
        user: ProgramUser::RootAgain,
    },
    Row {
        id: "user-cold",
        title: "objects, user",
        colour: Colour::Purple,
        over: DataTransport::Object,
        user: ProgramUser::Nobody,
    },
    Row {
        id: "user-warm",
        title: "objects, user, path known",
        colour: Colour::Vermilion,
        over: DataTransport::Object,
        user: ProgramUser::NobodyAgain,
    },
    Row {
        id: "user-quic",
        title: "QUIC, user",
        colour: Colour::Green,
        over: DataTransport::Quic,
        user: ProgramUser::Nobody,
    },
    Row {
        id: "user-udt-tls",
        title: "TLS on UDT, user",
        colour: Colour::Sky,
        over: DataTransport::UdtTls,
        user: ProgramUser::Nobody,
    },
    Row {
        id: "user-tcp",
        title: "TCP, in clear, user",
        colour: Colour::Blue,
        over: DataTransport::TcpChosen,
        user: ProgramUser::Nobody,
    },
];

const LOSSES: [(&str, f64); 2] = [("0%", 0.0), ("1%", 0.01)];
const RTT: Duration = Duration::from_millis(100);
const RATE: BitRate = BitRate(1_000_000_000);
/// Bytes of a packet's payload, of 1500 on the link.
const PAYLOAD: f64 = 1438.0 / 1500.0;

impl Starts {
    pub(in crate::bench) fn new(quick: bool, seed: u64) -> Self {
        Self { bytes: if quick { 250_000_000 } else { 1_000_000_000 }, seed }
    }
}

impl Experiment for Starts {
    type Bed = Site;

    fn name(&self) -> &'static str {
        "objects-users"
    }

    fn points(&self) -> Vec<Label> {
        LOSSES.iter().map(|(id, _)| Label::new(*id, format!("loss {id}"))).collect()
    }

    fn rows(&self) -> Vec<Label> {
        ROWS.iter().map(|row| Label::new(row.id, row.title)).collect()
    }

    fn expected(&self, _: &str, _: &str) -> Duration {
        Duration::from_secs(5 + self.bytes / 50_000_000)
    }

    fn set_up(&self, at: &str) -> anyhow::Result<Site> {
        let loss = LOSSES.iter().find(|(id, _)| *id == at).and_then(|(_, loss)| Probability::new(*loss));
        let path = path(Span(RTT), RATE, loss.unwrap_or_default());
        Ok(Site { hosts: Hosts::with_path(path, self.seed, CONTROL)?, grid: Grid::bare()? })
    }

    fn conditions(&self, site: &Site) -> Vec<(String, String)> {
        let limit = |name: &str| fs::read_to_string(format!("/proc/sys/net/core/{name}")).unwrap_or_default();
        let mut all = versions(&[("setpriv", "--version")]);
        all.extend(site.hosts.conditions());
        all.push(("net.core.rmem_max".into(), limit("rmem_max").trim().to_owned()));
        all.push(("net.core.wmem_max".into(), limit("wmem_max").trim().to_owned()));
        all.push(("path".into(), format!("{RATE}, {}, a queue of one round trip, seed {}", Span(RTT), self.seed)));
        all
    }

    fn measure(&self, site: &mut Site, _: &str, row: &str, limit: Duration) -> anyhow::Result<Vec<Reading>> {
        let Some(row) = ROWS.iter().find(|one| one.id == row) else { return Ok(Vec::new()) };
        let transfer = MonitoredTransfer { pair: ClientAndServer::Ours, over: row.over, disk: false, user: row.user };
        transfer.run_to_end(&site.hosts, &site.grid, self.bytes, limit)
    }

    fn report(&self, results: &Results) -> Report {
        Report {
            title: "Objects, known paths and users".into(),
            method: format!(
                "Puts of {} MB from memory to memory, from the first byte of data to the confirmation of the last. An ordinary user's \
                 sockets have the system's limits at both ends. A known path is one that an earlier run of the client has used. Medians, with the smallest and the largest of the runs.",
                self.bytes / 1_000_000
            ),
            tables: [GOODPUT, WASTE, cpu("client"), cpu("server")].map(|metric| table(results, metric)).into(),
            charts: vec![("rate".into(), chart(results))],
            verdicts: verdicts(results),
        }
    }
}

fn table(results: &Results, metric: Metric) -> Table {
    let heads = LOSSES.iter().map(|(id, _)| format!("loss {id}"));
    let mut table =
        Table::new(format!("{}, {}", metric.name, metric.unit), std::iter::once(String::new()).chain(heads));
    let has = |row: &&Row| LOSSES.iter().any(|(at, _)| results.summary(at, row.id, metric).is_some());
    for row in ROWS.iter().filter(has) {
        let cells = LOSSES.iter().map(|(at, _)| results.cell(at, row.id, metric, Summary::with_extremes));
        table.row(std::iter::once(row.title.to_owned()).chain(cells));
    }
    table
}

/// The rates of the superuser to what rate, headers and loss leave.
fn verdicts(results: &Results) -> Vec<Verdict> {
    let share = |row: &str| {
        let of = |(at, loss): &(&str, f64)| {
            let ceiling = RATE.0 as f64 * 1e-6 * PAYLOAD * (1.0 - loss);
            Some(results.summary(at, row, GOODPUT)?.median / ceiling)
        };
        LOSSES.iter().filter_map(of).min_by(f64::total_cmp)
    };
    let all = [("objects on a path that is not known", COLD, 0.88), ("objects on a known path", WARM, 0.95)];
    let verdict = |(what, row, least): (&str, &str, f64)| {
        let target = format!("{what}, to what rate, headers and loss leave, at the worst");
        Some(Verdict { target, measured: share(row)?, bound: Bound::AtLeast(least) })
    };
    all.into_iter().filter_map(verdict).collect()
}

fn chart(results: &Results) -> Chart {
    let series = ROWS.iter().map(|row| Series {
        name: row.title.to_owned(),
        colour: row.colour,
        points: (0..)
            .zip(LOSSES)
            .filter_map(|(x, (at, _))| Some(Point::of(f64::from(x), &results.summary(at, row.id, GOODPUT)?)))
            .collect(),
    });
    Chart {
        title: "Objects, known paths and users".into(),
        subtitle: "1 Gbit/s, 100 ms; medians with smallest and largest".into(),
        kind: Kind::Bars,
        x: Axis::new("loss", Scale::Categories(LOSSES.iter().map(|(id, _)| (*id).to_owned()).collect())),
        y: Axis::new("Mbit/s", Scale::Linear),
        series: series.filter(|series| !series.points.is_empty()).collect(),
        marks: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_use_the_worse_loss() {
        let mut results = Results::of("objects-users");
        for (at, row, rate) in [("0%", COLD, 900.0), ("1%", COLD, 830.0), ("0%", WARM, 930.0)] {
            results.add(at, row, 1, &[(GOODPUT, rate)]);
        }
        let met: Vec<_> = verdicts(&results).iter().map(Verdict::met).collect();
        assert_eq!(met, [false, true]);
    }
}
