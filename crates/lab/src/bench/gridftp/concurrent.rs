//! `phoebus bench gridftp --concurrent`: GridFTP over TCP and over UDT at the same time, over one link (U17; Tables 2
//! and 3 of the paper on UDT in XIO, where UDT uses what TCP leaves). Each flow has its own client, server and hosts.
//!
//! The paths are those of the tables: on one, the paper's figures show that the flows did not compete; on the other,
//! that all of them together had a quarter of 1 Gbit/s. The losses follow from the rate of a single TCP flow, by
//! Mathis's law.

use super::super::conditions::versions;
use super::super::engine::{Experiment, Label};
use super::super::flows::PROCESSORS_BUSY;
use super::super::plot::{Axis, Chart, Colour, Kind, Point, Scale, Series};
use super::super::report::{Bound, Report, Verdict};
use super::super::results::{Metric, Reading, Results};
use super::super::sc09::site::Grid;
use super::super::stats::Summary;
use super::super::table::Table;
use super::super::usage::Watch;
use super::carried::{ClientAndServer, DataTransport, MonitoredTransfer, ProgramUser, RunningTransfer};
use super::hosts::Hosts;
use super::site::Site;
use super::wan::{CONTROL, WanArgs, path};
use anyhow::{Context, bail};
use phoebus_proto::units::{BitRate, Probability, Span};
use std::thread;
use std::time::{Duration, Instant};

/// The experiment.
pub(in crate::bench) struct Concurrent {
    rate: BitRate,
    seconds: u64,
    seed: u64,
}

/// The number of concurrent flows of TCP and of UDT, and the paper's rates of one of each.
struct FlowMix {
    id: &'static str,
    title: &'static str,
    tcp: usize,
    udt: usize,
}

const MIXES: [FlowMix; 6] = [
    FlowMix { id: "tcp", title: "1 TCP", tcp: 1, udt: 0 },
    FlowMix { id: "udt", title: "1 UDT", tcp: 0, udt: 1 },
    FlowMix { id: "tcp2", title: "2 TCP", tcp: 2, udt: 0 },
    FlowMix { id: "udt2", title: "2 UDT", tcp: 0, udt: 2 },
    FlowMix { id: "tcp-udt", title: "1 TCP, 1 UDT", tcp: 1, udt: 1 },
    FlowMix { id: "tcp2-udt", title: "2 TCP, 1 UDT", tcp: 2, udt: 1 },
];
const PAIRS: [(&str, &str, ClientAndServer); 2] =
    [("gct", "GCT", ClientAndServer::Gct), ("ours", "Phoebus", ClientAndServer::Ours)];

/// A path of the paper.
struct PaperPath {
    id: &'static str,
    title: &'static str,
    round_trip: u64,
    /// The fraction 1/n of the capacity that the flows get.
    share: u64,
    loss: f64,
    /// Mbit/s of one TCP flow, and of one UDT flow, for each mix.
    paper: [[Option<f64>; 6]; 2],
}

const PLACES: [PaperPath; 2] = [
    PaperPath {
        id: "table2",
        title: "table 2: 194 ms",
        round_trip: 194,
        share: 1,
        loss: 3e-7,
        paper: [
            [Some(132.1), None, Some(119.4), None, Some(122.6), Some(122.9)],
            [None, Some(416.8), None, Some(403.9), Some(404.3), Some(405.7)],
        ],
    },
    PaperPath {
        id: "table3",
        title: "table 3: 193 ms, a quarter of the rate",
        round_trip: 193,
        share: 4,
        loss: 8.4e-7,
        paper: [
            [Some(80.1), None, Some(78.9), None, Some(42.4), Some(30.6)],
            [None, Some(240.2), None, Some(123.5), Some(187.6), Some(164.4)],
        ],
    },
];

const TCP: Metric = Metric { name: "each TCP", unit: "Mbit/s" };
const UDT: Metric = Metric { name: "each UDT", unit: "Mbit/s" };

/// Time for the flows to find their rates.
const RAMP: Duration = Duration::from_secs(10);
/// Time for the logins, one after another.
const AROUND: Duration = Duration::from_secs(8);
const LOOK: Duration = Duration::from_millis(20);

impl Concurrent {
    pub(in crate::bench) fn new(args: &WanArgs, seconds: Option<u64>, quick: bool, seed: u64) -> Self {
        Self { rate: args.rate, seconds: seconds.unwrap_or(if quick { 5 } else { 20 }), seed }
    }

    fn flows(
        &self,
        site: &Site,
        pair: ClientAndServer,
        mix: &FlowMix,
        limit: Duration,
    ) -> anyhow::Result<Vec<Reading>> {
        let overs = [(DataTransport::Tcp(1), mix.tcp), (DataTransport::Udt, mix.udt)];
        let overs = overs.into_iter().flat_map(|(over, count)| std::iter::repeat_n(over, count));
        let start = |(nth, over)| {
            let carried = MonitoredTransfer { pair, over, disk: false, user: ProgramUser::Root };
            Ok((over, carried.start(&site.hosts, &site.grid, nth)?))
        };
        let mut flows =
            overs.enumerate().map(start).collect::<anyhow::Result<Vec<(DataTransport, RunningTransfer)>>>()?;
        let deadline = Instant::now() + limit;
        for (_, going) in &mut flows {
            while !going.has_data() {
                going.client.check()?;
                if Instant::now() > deadline {
                    bail!("no data arrived within {} s", limit.as_secs());
                }
                thread::sleep(LOOK);
            }
        }
        thread::sleep(RAMP);
        let watch = Watch::start(&[])?;
        let (before, since) = (written(&flows), Instant::now());
        while since.elapsed() < Duration::from_secs(self.seconds) {
            thread::sleep(LOOK);
            flows.iter_mut().try_for_each(|(_, going)| going.client.check())?;
        }
        let (after, seconds) = (written(&flows), since.elapsed().as_secs_f64());
        let busy = watch.stop()?.busy;
        flows.iter().try_for_each(|(_, going)| going.check())?;
        let rates: Vec<_> =
            after.iter().zip(before).map(|(after, before)| (after - before) as f64 * 8e-6 / seconds).collect();
        let (tcp, udt) = rates.split_at(mix.tcp);
        let mean = |of: &[f64]| (!of.is_empty()).then(|| of.iter().sum::<f64>() / of.len() as f64);
        let each = [(TCP, mean(tcp)), (UDT, mean(udt))].into_iter().filter_map(|(metric, rate)| Some((metric, rate?)));
        Ok(each.chain([(PROCESSORS_BUSY, busy)]).collect())
    }
}

fn written(flows: &[(DataTransport, RunningTransfer)]) -> Vec<u64> {
    flows.iter().map(|(_, going)| going.receiver().written()).collect()
}

fn row(pair: &str, mix: &FlowMix) -> String {
    format!("{pair}-{}", mix.id)
}

impl Experiment for Concurrent {
    type Bed = Site;

    fn name(&self) -> &'static str {
        "gridftp-concurrent"
    }

    fn points(&self) -> Vec<Label> {
        PLACES.iter().map(|place| Label::new(place.id, place.title)).collect()
    }

    fn rows(&self) -> Vec<Label> {
        let of = |mix: &'static FlowMix| {
            PAIRS.iter().map(|(id, who, _)| Label::new(row(id, mix), format!("{who}, {}", mix.title)))
        };
        MIXES.iter().flat_map(of).collect()
    }

    fn expected(&self, _: &str, _: &str) -> Duration {
        Duration::from_secs(self.seconds) + RAMP + AROUND
    }

    fn set_up(&self, point: &str) -> anyhow::Result<Site> {
        let place = PLACES.iter().find(|place| place.id == point).context("no such place")?;
        let rate = BitRate(self.rate.0 / place.share);
        let rtt = Span(Duration::from_millis(place.round_trip));
        let path = path(rtt, rate, Probability::new(place.loss).unwrap_or_default());
        Ok(Site { hosts: Hosts::with_flows(path, self.seed, CONTROL)?, grid: Grid::bare()? })
    }

    fn conditions(&self, site: &Site) -> Vec<(String, String)> {
        let mut all = versions(&[("globus-gridftp-server", "--version"), ("globus-url-copy", "-version")]);
        all.extend(site.hosts.conditions());
        let test = format!(
            "puts of /dev/zero to /dev/null for {} s, after {} s for all to find their rates, as each receiver's interface counts them, headers included; TCP \
             over one stream in MODE E, UDT in MODE S",
            self.seconds,
            RAMP.as_secs()
        );
        all.push(("test".into(), test));
        for place in &PLACES {
            let rate = BitRate(self.rate.0 / place.share);
            let (rtt, loss) = (place.round_trip, place.loss * 100.0);
            all.push((place.title.into(), format!("{rate}, {rtt} ms, loss {loss:.5}%, a queue of one round trip")));
        }
        all
    }

    fn measure(&self, site: &mut Site, _: &str, wanted: &str, limit: Duration) -> anyhow::Result<Vec<Reading>> {
        let all = PAIRS.iter().flat_map(|pair| MIXES.iter().map(move |mix| (pair, mix)));
        let found = all.into_iter().find(|(pair, mix)| row(pair.0, mix) == wanted);
        let ((_, _, pair), mix) = found.with_context(|| format!("there is no row {wanted}"))?;
        self.flows(site, *pair, mix, limit)
    }

    fn report(&self, results: &Results) -> Report {
        let charts = PAIRS.iter().map(|(id, who, _)| ((*id).to_owned(), chart(results, id, who)));
        Report {
            title: "GridFTP over TCP and UDT at once".into(),
            method: format!(
                "One to three flows over one link of {}, beside tables 2 and 3 of the paper. The cells are Mbit/s of one flow of TCP / of one \
                 of UDT, medians of the means.",
                self.rate
            ),
            tables: PLACES.iter().map(|place| table(results, place)).collect(),
            charts: charts.collect(),
            verdicts: verdicts(results),
        }
    }
}

fn table(results: &Results, place: &PaperPath) -> Table {
    let heads = PAIRS.iter().flat_map(|(_, who, _)| [(*who).to_owned(), "processors busy".into()]);
    let heads = std::iter::once(String::new()).chain(heads).chain(["the paper".to_owned()]);
    let mut table = Table::new(format!("{}: each TCP / each UDT, Mbit/s", place.title), heads);
    for (nth, mix) in MIXES.iter().enumerate() {
        let mut cells = vec![mix.title.to_owned()];
        for (id, ..) in PAIRS {
            let cell = |metric| results.cell(place.id, &row(id, mix), metric, Summary::with_extremes);
            cells.push(both(mix, cell(TCP), cell(UDT)));
            cells.push(results.cell(place.id, &row(id, mix), PROCESSORS_BUSY, |busy| format!("{:.0} %", busy.median)));
        }
        let [tcp, udt] = place.paper.map(|of| of[nth].map_or_else(String::new, |rate| rate.to_string()));
        cells.push(both(mix, tcp, udt));
        table.row(cells);
    }
    table
}

/// Joins the values of TCP and UDT, as far as the mix has them.
fn both(mix: &FlowMix, tcp: String, udt: String) -> String {
    match (mix.tcp, mix.udt) {
        (_, 0) => tcp,
        (0, _) => udt,
        _ => format!("{tcp} / {udt}"),
    }
}

/// Whether UDT yields, and how much of its rate TCP keeps: for each pair, compared with the paper.
fn verdicts(results: &Results) -> Vec<Verdict> {
    let mut all = Vec::new();
    for place in &PLACES {
        for (id, who, _) in PAIRS {
            let median = |mix: usize, metric| {
                results.summary(place.id, &row(id, &MIXES[mix]), metric).map(|summary| summary.median)
            };
            for mix in [4, 5] {
                let beside = MIXES[mix].title;
                let [kept, given] = [(0, TCP), (1, UDT)].map(|(alone, metric)| {
                    let paper = place.paper[alone][mix]? / place.paper[alone][alone]?;
                    Some((median(mix, metric)? / median(alone, metric)?, paper))
                });
                all.extend(kept.map(|(measured, paper)| Verdict {
                    target: format!("{who}, {}, {beside}: what TCP keeps of what it has alone", place.title),
                    measured,
                    bound: Bound::AtLeast(rounded(paper)),
                }));
                all.extend(given.map(|(measured, paper)| Verdict {
                    target: format!("{who}, {}, {beside}: what UDT takes of what it has alone", place.title),
                    measured,
                    bound: Bound::AtMost(rounded(paper)),
                }));
            }
        }
    }
    all
}

fn rounded(ratio: f64) -> f64 {
    (ratio * 100.0).round() / 100.0
}

fn chart(results: &Results, id: &str, who: &str) -> Chart {
    let colours = [[Colour::Blue, Colour::Orange], [Colour::Sky, Colour::Vermilion]];
    let series = PLACES.iter().zip(colours).flat_map(|(place, colours)| {
        [(TCP, "TCP"), (UDT, "UDT")].into_iter().zip(colours).map(move |((metric, name), colour)| Series {
            name: format!("{name}, {}", place.title.split(':').next().unwrap_or_default()),
            colour,
            points: MIXES
                .iter()
                .enumerate()
                .filter_map(|(x, mix)| Some(Point::of(x as f64, &results.summary(place.id, &row(id, mix), metric)?)))
                .collect(),
        })
    });
    Chart {
        title: format!("GridFTP over TCP and UDT at once, {who}"),
        subtitle: "Mbit/s of one flow of each; medians with smallest and largest".into(),
        kind: Kind::Bars,
        x: Axis::new("flows", Scale::Categories(MIXES.iter().map(|mix| mix.title.to_owned()).collect())),
        y: Axis::new("Mbit/s each", Scale::Linear),
        series: series.filter(|series| !series.points.is_empty()).collect(),
        marks: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn udt_yields_as_much_as_in_the_paper() {
        let mut results = Results::of("gridftp-concurrent");
        results.add("table3", "ours-tcp", 1, &[(TCP, 200.0)]);
        results.add("table3", "ours-udt", 1, &[(UDT, 200.0)]);
        results.add("table3", "ours-tcp-udt", 1, &[(TCP, 120.0), (UDT, 90.0)]);
        let found: Vec<_> = verdicts(&results).into_iter().map(|v| (v.measured, v.bound, v.met())).collect();
        assert_eq!(found, [(0.6, Bound::AtLeast(0.53), true), (0.45, Bound::AtMost(0.78), true)]);
        let table = table(&results, &PLACES[1]);
        assert_eq!(table.rows[4], ["1 TCP, 1 UDT", "– / –", "–", "120 / 90.0", "–", "42.4 / 187.6"]);
    }
}
