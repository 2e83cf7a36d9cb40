//! `phoebus bench objects --gateways`: objects whose datagrams two gateways relay, beside sessions through the same gateways and the
//! path without gateways (S17, L3).
//!
//! `src` – `pg1` – `pg2` – `dst`, with loss on the WAN in the middle or on both LANs. Every transfer is one `phoebus cp` from memory to
//! memory, with its logins.

use super::super::bed::Bed;
use super::super::engine::{Experiment, Label};
use super::super::flows::GOODPUT;
use super::super::gateway;
use super::super::hop::Wan;
use super::super::plot::{Axis, Chart, Colour, Kind, Point, Scale, Series};
use super::super::process::{Background, run};
use super::super::relay_wan::{CPU, Costs, SWITCHES};
use super::super::report::{Bound, Report, Verdict};
use super::super::results::{Metric, Reading, Results};
use super::super::stats::Summary;
use super::super::table::Table;
use super::super::wan;
use super::hosts::PORT;
use crate::testbed::Security;
use anyhow::{Context, bail};
use phoebus_proto::endpoint::DEFAULT_PORT;
use phoebus_proto::units::{Probability, Span};
use phoebus_wan::model::Loss;
use phoebus_wan::testbed::Sc09;
use std::collections::BTreeMap;
use std::time::Duration;

/// The experiment.
pub(in crate::bench) struct RelayedObjects {
    rtt: Span,
    bytes: u64,
    seed: u64,
}

/// Where packets are lost, in per cent: on the WAN, and on each LAN.
struct Losses {
    id: &'static str,
    title: &'static str,
    wan: f64,
    lan: f64,
}

const LOSSES: [Losses; 4] = [
    Losses { id: "none", title: "no loss", wan: 0.0, lan: 0.0 },
    Losses { id: "wan-1", title: "1 % on the WAN", wan: 0.01, lan: 0.0 },
    Losses { id: "lan-1", title: "1 % on both LANs", wan: 0.0, lan: 0.01 },
    Losses { id: "all-1", title: "1 % on all links", wan: 0.01, lan: 0.01 },
];

struct Row {
    id: &'static str,
    title: &'static str,
    colour: Colour,
    /// What joins the gateways; none if the path has none.
    between: Option<&'static str>,
    stack: Option<&'static str>,
}

const OBJECT: &str = "object";
const UDT: &str = "udt";
const ROWS: [Row; 5] = [
    Row { id: OBJECT, title: "objects", colour: Colour::Wine, between: Some("bbr"), stack: Some("object") },
    Row { id: "tls", title: "session, TLS on TCP", colour: Colour::Blue, between: Some("bbr"), stack: None },
    Row { id: UDT, title: "session, TLS on UDT", colour: Colour::Sky, between: Some("udt"), stack: None },
    Row { id: "quic", title: "session, QUIC", colour: Colour::Vermilion, between: Some("quic"), stack: None },
    Row {
        id: "direct",
        title: "objects, without gateways",
        colour: Colour::Grey,
        between: None,
        stack: Some("object"),
    },
];

const WASTE: Metric = super::carried::WASTE;
/// Bytes per second, for estimates of time.
const LINK: u64 = 50_000_000;

/// The paths of one set of losses, each built when a row first needs it.
pub(in crate::bench) struct Paths {
    settings: Sc09,
    beds: BTreeMap<&'static str, (Bed, Background)>,
}

impl RelayedObjects {
    pub(in crate::bench) fn new(quick: bool, seed: u64) -> Self {
        let bytes = if quick { 250_000_000 } else { 1_000_000_000 };
        Self { rtt: Span(Duration::from_millis(75)), bytes, seed }
    }
}

impl Paths {
    /// The path of a row, with a server at its end.
    fn of(&mut self, row: &Row) -> anyhow::Result<&mut (Bed, Background)> {
        let name = row.between.unwrap_or("direct");
        if !self.beds.contains_key(name) {
            let mut bed = match row.between {
                Some(wan) => {
                    let wan = wan.parse::<Wan>().map_err(anyhow::Error::msg)?.secured(Security::Encrypt);
                    Bed::joined(&self.settings, wan)?
                }
                None => Bed::bare(&self.settings)?,
            };
            if row.between.is_some() {
                bed.restart_gateways()?;
            }
            let mut server = bed.testbed.exec("dst", gateway::program())?;
            server.args(["serve", "--anonymous", "--root", "/", "--listen"]);
            server.arg(format!("{}:{PORT}", bed.address("dst")?));
            let server = Background::start("phoebus serve", server)?.listening(PORT)?;
            self.beds.insert(name, (bed, server));
        }
        self.beds.get_mut(name).with_context(|| format!("there is no path {name}"))
    }
}

impl Experiment for RelayedObjects {
    type Bed = Paths;

    fn name(&self) -> &'static str {
        "objects-gateways"
    }

    fn points(&self) -> Vec<Label> {
        LOSSES.iter().map(|losses| Label::new(losses.id, losses.title)).collect()
    }

    fn rows(&self) -> Vec<Label> {
        ROWS.iter().map(|row| Label::new(row.id, row.title)).collect()
    }

    fn expected(&self, _: &str, _: &str) -> Duration {
        Duration::from_secs(5 + self.bytes / LINK)
    }

    fn set_up(&self, at: &str) -> anyhow::Result<Paths> {
        let losses = LOSSES.iter().find(|losses| losses.id == at).context("the losses of a point")?;
        let of = |share| Probability::new(share).unwrap_or_default();
        let settings =
            Sc09 { wan_loss: Loss::Bernoulli(of(losses.wan)), ..wan::path(self.rtt, of(losses.lan), self.seed, "bbr") };
        Ok(Paths { settings, beds: BTreeMap::new() })
    }

    fn conditions(&self, _: &Paths) -> Vec<(String, String)> {
        let defaults = Sc09::default();
        vec![
            ("round trips".into(), format!("{} of the WAN, {} of each LAN", self.rtt, defaults.lan_rtt)),
            ("links".into(), format!("{} each, seed {}", defaults.rate, self.seed)),
            ("bytes".into(), format!("{} MB from /dev/zero to /dev/null", self.bytes / 1_000_000)),
            ("to the ends".into(), "sessions: TCP under bbr, in the clear; objects: sealed from end to end".into()),
        ]
    }

    fn measure(&self, paths: &mut Paths, _: &str, row: &str, limit: Duration) -> anyhow::Result<Vec<Reading>> {
        let row = ROWS.iter().find(|one| one.id == row).with_context(|| format!("there is no row {row}"))?;
        let (bed, server) = paths.of(row)?;
        server.check()?;
        let mut client = bed.testbed.exec("src", gateway::program())?;
        client.args(["cp", "--json", "--verify", "none", "--attempts", "1", "--length", &self.bytes.to_string()]);
        let via = match row.between {
            Some(_) => format!("{}/{DEFAULT_PORT},pg2/{DEFAULT_PORT}", bed.address("pg1")?),
            None => "none".to_owned(),
        };
        client.args(["--gateways", &via]);
        client.args(row.stack.iter().flat_map(|stack| ["--stack", stack]));
        client.args(["file:///dev/zero".to_owned(), format!("ftp://{}:{PORT}/dev/null", bed.address("dst")?)]);
        let pids = bed.gateway_pids();
        let before = Costs::of(&pids)?;
        let said = run("phoebus cp", client, limit)?;
        let costs = Costs::of(&pids)?.since(&before);
        bed.check()?;
        let report: serde_json::Value =
            serde_json::from_str(said.lines().last().unwrap_or_default()).context("the client printed no report")?;
        let seconds = report["seconds"].as_f64().context("a report without a time")?;
        if report["bytes"] != self.bytes {
            bail!("{} of {} bytes were moved", report["bytes"], self.bytes);
        }
        let mut readings = vec![(GOODPUT, self.bytes as f64 * 8e-6 / seconds)];
        if !pids.is_empty() {
            readings.extend(costs.readings(self.bytes, pids.len()));
        }
        readings.extend(report["objects"]["waste"].as_f64().map(|waste| (WASTE, 100.0 * waste)));
        Ok(readings)
    }

    fn report(&self, results: &Results) -> Report {
        Report {
            title: "Objects through gateways".into(),
            method: format!(
                "Puts of {} MB from memory to memory through two gateways, whose hop is encrypted; with the client's logins, which take \
                 some eight round trips. Processor time is that of both gateways, read from the kernel, and context switches are \
                 those of one. Medians, with the smallest and the largest of the runs.",
                self.bytes / 1_000_000
            ),
            tables: [GOODPUT, CPU, SWITCHES, WASTE].map(|metric| table(results, metric)).into(),
            charts: vec![("rate".into(), chart(results))],
            verdicts: verdicts(results),
        }
    }
}

fn table(results: &Results, metric: Metric) -> Table {
    let heads = LOSSES.iter().map(|losses| losses.title.to_owned());
    let mut table =
        Table::new(format!("{}, {}", metric.name, metric.unit), std::iter::once(String::new()).chain(heads));
    let has = |row: &&Row| LOSSES.iter().any(|losses| results.summary(losses.id, row.id, metric).is_some());
    for row in ROWS.iter().filter(has) {
        let cells = LOSSES.iter().map(|losses| results.cell(losses.id, row.id, metric, Summary::with_extremes));
        table.row(std::iter::once(row.title.to_owned()).chain(cells));
    }
    table
}

fn verdicts(results: &Results) -> Vec<Verdict> {
    let median = |at: &str, row, metric| results.summary(at, row, metric).map(|summary| summary.median);
    let of = |metric| move |losses: &Losses| Some(median(losses.id, OBJECT, metric)? / median(losses.id, UDT, metric)?);
    let dearest = LOSSES.iter().filter_map(of(CPU)).max_by(f64::total_cmp);
    let slowest = LOSSES.iter().filter_map(of(GOODPUT)).min_by(f64::total_cmp);
    let verdict = |target: &str, measured: Option<f64>, bound| {
        Some(Verdict { target: target.to_owned(), measured: measured?, bound })
    };
    let dear = verdict(
        "the gateways' processor time for objects to that for a session over UDT, at its worst",
        dearest,
        Bound::AtMost(0.6),
    );
    let slow = verdict("the rate of objects to that of a session over UDT, at its worst", slowest, Bound::AtLeast(1.0));
    dear.into_iter().chain(slow).collect()
}

fn chart(results: &Results) -> Chart {
    let series = ROWS.iter().map(|row| Series {
        name: row.title.to_owned(),
        colour: row.colour,
        points: (0..)
            .zip(&LOSSES)
            .filter_map(|(x, losses)| Some(Point::of(f64::from(x), &results.summary(losses.id, row.id, GOODPUT)?)))
            .collect(),
    });
    Chart {
        title: "Objects through two gateways".into(),
        subtitle: "links of 1 Gbit/s, WAN of 75 ms; medians with smallest and largest".into(),
        kind: Kind::Bars,
        x: Axis::new("", Scale::Categories(LOSSES.iter().map(|losses| losses.title.to_owned()).collect())),
        y: Axis::new("Mbit/s", Scale::Linear),
        series: series.filter(|series| !series.points.is_empty()).collect(),
        marks: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_use_the_worst_losses() {
        let mut results = Results::of("objects-gateways");
        for (at, row, rate, cost) in [
            ("none", OBJECT, 900.0, 1.0),
            ("none", UDT, 800.0, 4.0),
            ("all-1", OBJECT, 700.0, 2.0),
            ("all-1", UDT, 800.0, 2.5),
        ] {
            results.add(at, row, 1, &[(GOODPUT, rate), (CPU, cost)]);
        }
        let all: Vec<_> = verdicts(&results).iter().map(|verdict| (verdict.measured, verdict.met())).collect();
        assert_eq!(all, [(0.8, false), (0.875, false)]);
        assert_eq!(table(&results, GOODPUT).rows.len(), 2);
    }
}
