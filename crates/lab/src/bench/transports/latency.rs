//! `phoebus bench latency --transport`: connect and one-byte echo over warm hops, with each transport between the
//! gateways, and Fast Open or an agent on the first hop (Table 2 of the SC09 paper, S26, S27).

use super::rows::{self, Row, RowRoute};
use super::{Path, PathCache};
use crate::bench::bed::Service;
use crate::bench::compared::FirstHop;
use crate::bench::engine::{Experiment, Label};
use crate::bench::latency::{CONNECT, FIRST, LatencyArgs, NEXT, READY, readings};
use crate::bench::plot::{Axis, Chart, Kind as Drawn, Point, Scale, Series};
use crate::bench::process;
use crate::bench::report::{Bound, Report, Verdict};
use crate::bench::results::{Metric, Reading, Results};
use crate::bench::stats::Summary;
use crate::bench::table::Table;
use crate::bench::wan;
use anyhow::bail;
use phoebus_proto::units::{Probability, Span};
use std::net::SocketAddr;
use std::time::Duration;

/// The experiment.
pub(crate) struct Latencies {
    rtts: Vec<Span>,
    /// Connections of each kind in one run.
    each: u32,
    seed: u64,
    rows: Vec<Row>,
}

impl Latencies {
    /// The experiment with these options, in `runs` runs.
    pub(crate) fn new(args: &LatencyArgs, runs: u32) -> Self {
        let direct = Row { id: "direct".into(), kind: RowRoute::Direct { carrier: "tcp", cc: None }, reverse: false };
        let through = rows::through(&args.compared.hops(&[FirstHop::Cubic, FirstHop::Quic]), &args.compared.wans())
            .collect::<Vec<_>>();
        Self {
            rtts: args.rtts(&[50, 100]),
            each: args.each(runs),
            seed: args.common.seed,
            rows: std::iter::once(direct).chain(through).collect(),
        }
    }

    fn rtt(&self, point: &str) -> Span {
        self.rtts.iter().copied().find(|rtt| rtt.to_string() == point).unwrap_or_default()
    }
}

impl Experiment for Latencies {
    type Bed = PathCache;

    fn name(&self) -> &'static str {
        "latency-transports"
    }

    fn points(&self) -> Vec<Label> {
        self.rtts.iter().map(|rtt| Label::new(rtt.to_string(), rtt.to_string())).collect()
    }

    fn rows(&self) -> Vec<Label> {
        self.rows.iter().map(|row| Label::new(row.id.clone(), rows::title(&row.id))).collect()
    }

    fn expected(&self, point: &str, _: &str) -> Duration {
        // Connect, two echoes, and half a round trip for everything else.
        (self.rtt(point).0 + Duration::from_millis(20)).mul_f64(3.5) * self.each + Duration::from_millis(500)
    }

    fn set_up(&self, point: &str) -> anyhow::Result<PathCache> {
        let mut sites = PathCache::new(wan::path(self.rtt(point), Probability::default(), self.seed, "bbr"));
        sites.get(&Path::Direct, |bed| bed.serve_peer("echo", Service::Echo))?;
        Ok(sites)
    }

    fn conditions(&self, sites: &PathCache) -> Vec<(String, String)> {
        let connections = format!("{} of each kind in each run, after one that is not counted; none lost", self.each);
        let mut all = vec![("connections".to_owned(), connections)];
        all.push((
            "first hop".into(),
            "fast open, whose cookie the connection before the first got, or an agent".into(),
        ));
        all.extend(rows::conditions(&self.rows));
        all.extend(sites.any().map(|bed| wan::conditions(bed, self.seed)).unwrap_or_default());
        all
    }

    fn measure(&self, sites: &mut PathCache, _: &str, row: &str, limit: Duration) -> anyhow::Result<Vec<Reading>> {
        let Some(row) = self.rows.iter().find(|one| one.id == row) else { bail!("there is no row {row}") };
        let bed = &mut sites.get(&row.path(), |bed| bed.serve_peer("echo", Service::Echo))?.bed;
        bed.check()?;
        let to = SocketAddr::new(bed.address("dst")?, Service::Echo.port()).to_string();
        let mut command = bed.peer("src", &["ping", &to, &(self.each + 1).to_string()])?;
        if let RowRoute::Through { hop, .. } = &row.kind {
            hop.route(bed, &mut command)?;
        }
        let line = process::run("the echo's client", command, limit)?;
        bed.check()?;
        readings(&line)
    }

    fn report(&self, results: &Results) -> Report {
        let metrics = [CONNECT, FIRST, NEXT, READY];
        let charts = [("connect", CONNECT), ("ready", READY)];
        Report {
            title: "Latency over each transport".into(),
            method: "A connection from `src` to an echo at `dst`, and one byte there and back, from a program with blocking \
                     calls. The columns are round trips of the WAN, to which the LANs add 8 ms each. Hops between gateways \
                     are warm; a first hop of the program's own is TCP with fast open. Medians with quartiles, in ms."
                .into(),
            tables: metrics.map(|metric| self.table(results, metric)).into(),
            charts: rows::by_hop(&self.tried(results).collect::<Vec<_>>())
                .iter()
                .flat_map(|(hop, rows)| {
                    charts.map(|(name, metric)| (format!("{name}-{hop}"), self.chart(results, metric, rows)))
                })
                .collect(),
            verdicts: self.verdicts(results),
        }
    }
}

impl Latencies {
    fn tried<'a>(&'a self, results: &'a Results) -> impl Iterator<Item = &'a Row> {
        self.rows.iter().filter(|row| self.rtts.iter().any(|rtt| results.tried(&rtt.to_string(), &row.id)))
    }

    fn table(&self, results: &Results, metric: Metric) -> Table {
        let columns = std::iter::once(String::new()).chain(self.rtts.iter().map(Span::to_string));
        let mut table = Table::new(format!("Time to {}, ms", metric.name), columns);
        for row in self.tried(results) {
            let cell = |rtt: &Span| results.cell(&rtt.to_string(), &row.id, metric, Summary::with_quartiles);
            table.row(std::iter::once(rows::title(&row.id)).chain(self.rtts.iter().map(cell)));
        }
        table
    }

    fn chart(&self, results: &Results, metric: Metric, rows: &[&Row]) -> Chart {
        let value = |row: &Row, (place, rtt): (u32, &Span)| {
            let summary = results.summary(&rtt.to_string(), &row.id, metric)?;
            let (low, high) = (summary.first_quartile, summary.third_quartile);
            Some(Point { x: f64::from(place), y: summary.median, low, high })
        };
        let series = rows.iter().map(|row| Series {
            name: rows::title(&row.id),
            colour: rows::colour(&row.id),
            points: (0..).zip(&self.rtts).filter_map(|at| value(row, at)).collect(),
        });
        Chart {
            title: format!("Time to {}", metric.name),
            subtitle: "medians with quartiles".into(),
            kind: Drawn::Bars,
            x: Axis::new("round trip of the WAN", Scale::Categories(self.rtts.iter().map(Span::to_string).collect())),
            y: Axis::new("time, ms", Scale::Linear),
            series: series.collect(),
            marks: Vec::new(),
        }
    }

    fn verdicts(&self, results: &Results) -> Vec<Verdict> {
        let of = |rtt: &Span| {
            let rtt = rtt.to_string();
            let median = |row: &str| results.summary(&rtt, row, CONNECT).map(|summary| summary.median);
            let verdict = |row: &Row| {
                let target = format!("connect to direct, {}, {rtt}", rows::title(&row.id));
                Some(Verdict { target, measured: median(&row.id)? / median("direct")?, bound: Bound::AtMost(1.05) })
            };
            let through = self.rows.iter().filter(|row| matches!(row.kind, RowRoute::Through { .. }));
            through.filter_map(verdict).collect::<Vec<_>>()
        };
        self.rtts.iter().flat_map(of).collect()
    }
}
