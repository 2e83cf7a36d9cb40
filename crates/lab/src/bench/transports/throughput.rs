//! `phoebus bench throughput --transport`: one stream from `src` to `dst` with each transport between the gateways, and each
//! first hop, over the round trips and losses of S30 (S31, S1, S12).
//!
//! Every row has its own path, with gateways that keep running between tests. The reference rows are direct
//! connections, and the link: one stream over the same three links without the WAN's delay and without loss. The
//! reverse direction is compared with its upper bound, what `dst` can send over its own LAN under cubic, which only
//! `dst` itself could improve.

use super::point::Point;
use super::rows::{self, Row, RowRoute};
use super::{Path, PathCache, report};
use crate::bench::compared::FirstHop;
use crate::bench::engine::{Experiment, Label};
use crate::bench::flows;
use crate::bench::report::Report;
use crate::bench::results::{Reading, Results};
use crate::bench::throughput::ThroughputArgs;
use crate::bench::wan;
use anyhow::bail;
use phoebus_proto::units::{Probability, Span};
use phoebus_wan::model::Rate;
use phoebus_wan::testbed::Sc09;
use std::time::Duration;

/// The experiment.
pub(crate) struct Transports {
    rtts: Vec<Span>,
    losses: Vec<Probability>,
    rates: Vec<Rate>,
    seconds: u64,
    seed: u64,
    rows: Vec<Row>,
}

/// Set-up and end of a test, in addition to its length.
const AROUND: Duration = Duration::from_millis(2500);

impl Transports {
    /// The experiment with these options.
    pub(crate) fn new(args: &ThroughputArgs) -> Self {
        let (hops, wans) =
            (args.compared.hops(&[FirstHop::Cubic, FirstHop::Bbr, FirstHop::Quic]), args.compared.wans());
        Self {
            rtts: args.rtts(),
            losses: args.losses(),
            rates: args.rate.clone(),
            seconds: args.seconds(),
            seed: args.common.seed,
            rows: rows::throughput(&hops, &wans),
        }
    }

    fn all_points(&self) -> impl Iterator<Item = Point> {
        let of = move |rate: Rate| {
            self.losses
                .iter()
                .flat_map(move |loss| self.rtts.iter().map(move |rtt| Point { rate, loss: *loss, rtt: *rtt }))
        };
        self.rates.iter().flat_map(move |rate| of(*rate))
    }

    fn row(&self, id: &str) -> anyhow::Result<&Row> {
        match self.rows.iter().find(|row| row.id == id) {
            Some(row) => Ok(row),
            None => bail!("there is no row {id}"),
        }
    }
}

impl Experiment for Transports {
    type Bed = PathCache;

    fn name(&self) -> &'static str {
        "throughput-transports"
    }

    fn points(&self) -> Vec<Label> {
        self.all_points().map(|point| point.label()).collect()
    }

    fn rows(&self) -> Vec<Label> {
        self.rows.iter().map(|row| Label::new(row.id.clone(), rows::title(&row.id))).collect()
    }

    fn expected(&self, _: &str, _: &str) -> Duration {
        Duration::from_secs(self.seconds) + AROUND
    }

    fn set_up(&self, point: &str) -> anyhow::Result<PathCache> {
        let Some(point) = Point::read(point) else { bail!("\"{point}\" is no point") };
        let settings = Sc09 { rate: point.rate, ..wan::path(point.rtt, point.loss, self.seed, "bbr") };
        let mut sites = PathCache::new(settings);
        sites.get(&Path::Direct, |_| Ok(()))?;
        Ok(sites)
    }

    fn conditions(&self, sites: &PathCache) -> Vec<(String, String)> {
        let test =
            format!("one flow of {} s, slow start included, memory to memory, timed by its receiver", self.seconds);
        let mut all = vec![("test".to_owned(), test)];
        all.extend(rows::conditions(&self.rows));
        all.push(("gateways to the ends".into(), "TCP under bbr, in the clear".into()));
        all.extend(sites.any().map(|bed| wan::conditions(bed, self.seed)).unwrap_or_default());
        all
    }

    fn measure(&self, sites: &mut PathCache, _: &str, row: &str, limit: Duration) -> anyhow::Result<Vec<Reading>> {
        let row = self.row(row)?;
        let site = sites.get(&row.path(), |_| Ok(()))?;
        site.bed.check()?;
        let sink = site.sink(row.carrier())?;
        let (sink_at, sink_pid) = (sink.at, sink.pid());
        let bed = &mut site.bed;
        let time = format!("{}s", self.seconds);
        let wanted = [&["--time", &time][..], &row.wanted()].concat();
        let mut client = flows::client(&bed.testbed, row.from(), &row.client(), sink_at, &wanted)?;
        let mut others = vec![("server", sink_pid), ("links", std::process::id())];
        if let RowRoute::Through { hop, .. } = &row.kind {
            let agent = hop.route(bed, &mut client)?;
            others.extend(bed.gateway_pids().into_iter().map(|pid| ("gateways", pid)));
            others.extend(agent.map(|pid| ("agent", pid)));
        }
        let outcome = flows::run(client, &others, limit);
        bed.check()?;
        let (flow, usage) = outcome?;
        Ok(flows::readings(&flow, &usage))
    }

    fn report(&self, results: &Results) -> Report {
        report::of(self.seconds, results)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_parsed_from_their_identifiers() {
        let point = Point {
            rate: "500mbit".parse().unwrap(),
            loss: "0.001%".parse().unwrap(),
            rtt: Span(Duration::from_millis(150)),
        };
        assert_eq!(point.label().id, "150ms 0.001% 500mbit");
        assert_eq!(Point::read(&point.label().id), Some(point));
        assert_eq!(Point::read("150ms 0.001%"), None);
    }
}
