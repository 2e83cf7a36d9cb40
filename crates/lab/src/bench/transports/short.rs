//! `phoebus bench short --transport`: short transfers over warm hops, with each transport between the gateways (P41).
//!
//! Before each measured transfer, another goes through the same gateways, followed by a pause: the hop between them
//! is warm, all others are new. Direct connections are always new.

use super::rows::{self, Row, RowRoute};
use super::{Path, PathCache};
use crate::bench::bed::Service;
use crate::bench::compared::FirstHop;
use crate::bench::engine::{Experiment, Label};
use crate::bench::peer::Transfer;
use crate::bench::plot::{Axis, Chart, Kind as Drawn, Point, Scale, Series};
use crate::bench::process;
use crate::bench::report::{Bound, Report, Verdict};
use crate::bench::results::{Metric, Reading, Results};
use crate::bench::short::{CONNECT, PAUSE, ShortArgs, TOTAL, WARMING};
use crate::bench::stats::Summary;
use crate::bench::table::Table;
use crate::bench::wan::{self, percent};
use anyhow::{Context, bail};
use phoebus_proto::units::{ByteSize, Probability, Span};
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

/// The experiment.
pub(crate) struct ShortTransfers {
    sizes: Vec<ByteSize>,
    rtt: Span,
    loss: Probability,
    seed: u64,
    rows: Vec<Row>,
}

impl ShortTransfers {
    /// The experiment with these options.
    pub(crate) fn new(args: &ShortArgs) -> Self {
        let megabytes: &[u64] = if args.common.quick { &[1, 8, 32] } else { &[1, 8, 32, 128, 1000] };
        let direct = |id: &str, cc| Row {
            id: id.into(),
            kind: RowRoute::Direct { carrier: "tcp", cc: Some(cc) },
            reverse: false,
        };
        let mut rows = vec![direct("direct-cubic", "cubic"), direct("direct-bbr", "bbr")];
        rows.extend(rows::through(&args.compared.hops(&[FirstHop::Bbr, FirstHop::Quic]), &args.compared.wans()));
        Self {
            sizes: match args.size.is_empty() {
                true => megabytes.iter().map(|n| ByteSize(n * 1_000_000)).collect(),
                false => args.size.clone(),
            },
            rtt: args.rtt,
            loss: args.loss,
            seed: args.common.seed,
            rows,
        }
    }
}

impl Experiment for ShortTransfers {
    type Bed = PathCache;

    fn name(&self) -> &'static str {
        "short-transports"
    }

    fn points(&self) -> Vec<Label> {
        self.sizes.iter().map(|size| Label::new(size.to_string(), size.to_string())).collect()
    }

    fn rows(&self) -> Vec<Label> {
        self.rows.iter().map(|row| Label::new(row.id.clone(), rows::title(&row.id))).collect()
    }

    fn expected(&self, point: &str, row: &str) -> Duration {
        let bytes = point.parse::<ByteSize>().map_or(0, |size| size.0);
        // Cubic reaches 25 to 100 Mbit/s at this loss, all others most of the link's rate.
        let rate = if row == "direct-cubic" { 5e6 } else { 60e6 };
        let transfer = Duration::from_secs_f64(1.0 + bytes as f64 / rate);
        if row.contains("wan-") { transfer + PAUSE + Duration::from_secs(2) } else { transfer }
    }

    fn set_up(&self, _: &str) -> anyhow::Result<PathCache> {
        let mut sites = PathCache::new(wan::path(self.rtt, self.loss, self.seed, "bbr"));
        sites.get(&Path::Direct, |bed| bed.serve_peer("sink", Service::Sink))?;
        Ok(sites)
    }

    fn conditions(&self, sites: &PathCache) -> Vec<(String, String)> {
        let path = format!("round trip of the WAN {}, loss on the LANs {}", self.rtt, percent(self.loss));
        let (warming, pause) = (ByteSize(WARMING), PAUSE.as_secs());
        let warm = format!("after a transfer of {warming} through the same gateways and {pause} s of silence");
        let mut all = vec![("path".to_owned(), path), ("warm".to_owned(), warm)];
        all.extend(rows::conditions(&self.rows));
        all.extend(sites.any().map(|bed| wan::conditions(bed, self.seed)).unwrap_or_default());
        all
    }

    fn measure(&self, sites: &mut PathCache, point: &str, row: &str, limit: Duration) -> anyhow::Result<Vec<Reading>> {
        let Some(row) = self.rows.iter().find(|one| one.id == row) else { bail!("there is no row {row}") };
        let size: ByteSize = point.parse()?;
        let bed = &mut sites.get(&row.path(), |bed| bed.serve_peer("sink", Service::Sink))?.bed;
        bed.check()?;
        let to = SocketAddr::new(bed.address("dst")?, Service::Sink.port()).to_string();
        let mut send = |bytes: u64| -> anyhow::Result<Transfer> {
            let mut command = bed.peer("src", &["send", &to, &bytes.to_string()])?;
            match &row.kind {
                RowRoute::Direct { cc: Some(cc), .. } => drop(command.args(["--cc", cc])),
                RowRoute::Through { hop, .. } => drop(hop.route(bed, &mut command)?),
                _ => {}
            }
            let line = process::run("the transfer", command, limit)?;
            serde_json::from_str(&line).context("the transfer printed no times")
        };
        if matches!(row.kind, RowRoute::Through { .. }) {
            send(WARMING).context("while warming")?;
            thread::sleep(PAUSE);
        }
        let times = send(size.0)?;
        bed.check()?;
        Ok(vec![(TOTAL, times.total), (CONNECT, times.connect)])
    }

    fn report(&self, results: &Results) -> Report {
        let (rtt, loss) = (self.rtt, percent(self.loss));
        Report {
            title: "Short transfers over each transport".into(),
            method: format!(
                "From before connect until the receiver's confirmation of the last byte, `src` to `dst`, memory to memory, \
                 round trip of the WAN {rtt}, loss on the LANs {loss}; the hop between the gateways is warm. Medians, with \
                 the smallest and the largest of the runs."
            ),
            tables: vec![self.table(results), self.gains(results)],
            charts: rows::by_hop(&self.tried(results).collect::<Vec<_>>())
                .iter()
                .map(|(hop, rows)| (format!("time-{hop}"), self.chart(results, rows)))
                .collect(),
            verdicts: self.verdicts(results),
        }
    }
}

impl ShortTransfers {
    fn tried<'a>(&'a self, results: &'a Results) -> impl Iterator<Item = &'a Row> {
        self.rows.iter().filter(|row| self.sizes.iter().any(|size| results.tried(&size.to_string(), &row.id)))
    }

    fn columns(&self) -> impl Iterator<Item = String> {
        std::iter::once(String::new()).chain(self.sizes.iter().map(ByteSize::to_string))
    }

    fn table(&self, results: &Results) -> Table {
        let mut table = Table::new("Time of a transfer, s", self.columns());
        for row in self.tried(results) {
            let cell = |size: &ByteSize| results.cell(&size.to_string(), &row.id, TOTAL, Summary::with_extremes);
            table.row(std::iter::once(rows::title(&row.id)).chain(self.sizes.iter().map(cell)));
        }
        table
    }

    fn gains(&self, results: &Results) -> Table {
        let mut table = Table::new("Times as fast as direct bbr", self.columns());
        for row in self.tried(results) {
            let gain = |size: &ByteSize| Some(format!("{:.2}", gain(results, *size, &row.id)?));
            let cells = self.sizes.iter().map(|size| gain(size).unwrap_or_else(|| "–".into()));
            table.row(std::iter::once(rows::title(&row.id)).chain(cells));
        }
        table
    }

    fn chart(&self, results: &Results, rows: &[&Row]) -> Chart {
        let value = |row: &Row, size: &ByteSize, metric: Metric| {
            Some(Point::of(size.0 as f64 / 1e6, &results.summary(&size.to_string(), &row.id, metric)?))
        };
        let series = rows.iter().map(|row| Series {
            name: rows::title(&row.id),
            colour: rows::colour(&row.id),
            points: self.sizes.iter().filter_map(|size| value(row, size, TOTAL)).collect(),
        });
        Chart {
            title: "Time of a short transfer over warm hops".into(),
            subtitle: format!("WAN {}, LAN loss {}; medians with extremes", self.rtt, percent(self.loss)),
            kind: Drawn::Lines,
            x: Axis::new("size, MB", Scale::Log),
            y: Axis::new("time, s", Scale::Log),
            series: series.collect(),
            marks: Vec::new(),
        }
    }

    fn verdicts(&self, results: &Results) -> Vec<Verdict> {
        let through = || self.rows.iter().filter(|row| matches!(row.kind, RowRoute::Through { .. }));
        let of = |size: ByteSize| {
            through().filter_map(move |row| {
                let target = format!("{size}, {}, warm, times as fast as direct bbr", rows::title(&row.id));
                Some(Verdict { target, measured: gain(results, size, &row.id)?, bound: Bound::AtLeast(2.0) })
            })
        };
        [8, 32].into_iter().flat_map(|megabytes| of(ByteSize(megabytes * 1_000_000))).collect()
    }
}

fn gain(results: &Results, size: ByteSize, row: &str) -> Option<f64> {
    let median = |row| results.summary(&size.to_string(), row, TOTAL).map(|summary| summary.median);
    Some(median("direct-bbr")? / median(row)?)
}
