//! `phoebus bench objects --loopback`: objects beside QUIC and UDT where only the processors limit the rate.

use super::super::engine::{Experiment, Label};
use super::super::flows::{GOODPUT, cpu};
use super::super::plot::{Axis, Chart, Colour, Kind, Point, Scale, Series};
use super::super::report::{Bound, Report, Verdict};
use super::super::results::{Metric, Reading, Results};
use super::super::sc09::site::Grid;
use super::super::stats::Summary;
use super::super::table::Table;
use super::carried::{ClientAndServer, DataTransport, MonitoredTransfer, ProgramUser};
use super::hosts::{AROUND, Hosts};
use super::site::Site;
use std::time::Duration;

/// The experiment.
pub(in crate::bench) struct LocalObjects {
    bytes: u64,
}

const POINT: &str = "loopback";
const OBJECT: &str = "object";
const CLEAR: &str = "object-clear";
const ROWS: [(&str, &str, DataTransport, Colour); 5] = [
    (OBJECT, "objects", DataTransport::Object, Colour::Wine),
    (CLEAR, "objects, in clear", DataTransport::ObjectClear, Colour::Orange),
    ("quic", "QUIC", DataTransport::Quic, Colour::Vermilion),
    ("udt", "UDT, in clear", DataTransport::Udt, Colour::Sky),
    ("udt-tls", "TLS on UDT", DataTransport::UdtTls, Colour::Blue),
];

impl LocalObjects {
    pub(in crate::bench) fn new(quick: bool) -> Self {
        Self { bytes: if quick { 1_000_000_000 } else { 4_000_000_000 } }
    }
}

/// Processor time of both ends.
const BOTH: Metric = Metric { name: "cpu of both ends", unit: "s/GB" };

impl Experiment for LocalObjects {
    type Bed = Site;

    fn name(&self) -> &'static str {
        "objects-loopback"
    }

    fn points(&self) -> Vec<Label> {
        vec![Label::new(POINT, POINT)]
    }

    fn rows(&self) -> Vec<Label> {
        ROWS.iter().map(|(id, title, ..)| Label::new(*id, *title)).collect()
    }

    fn expected(&self, _: &str, _: &str) -> Duration {
        // The slowest has some 2 Gbit/s.
        Duration::from_secs(self.bytes / 250_000_000) + AROUND
    }

    fn set_up(&self, _: &str) -> anyhow::Result<Site> {
        Ok(Site { hosts: Hosts::new()?, grid: Grid::bare()? })
    }

    fn conditions(&self, site: &Site) -> Vec<(String, String)> {
        let mut all = site.hosts.conditions();
        let test = format!("{} MB from /dev/zero to /dev/null, put by one flow", self.bytes / 1_000_000);
        all.push(("test".into(), test));
        all
    }

    fn measure(&self, site: &mut Site, _: &str, row: &str, limit: Duration) -> anyhow::Result<Vec<Reading>> {
        let Some((_, _, over, _)) = ROWS.iter().find(|(id, ..)| *id == row) else { return Ok(Vec::new()) };
        let transfer =
            MonitoredTransfer { pair: ClientAndServer::Ours, over: *over, disk: false, user: ProgramUser::Root };
        let mut readings = transfer.run_to_end(&site.hosts, &site.grid, self.bytes, limit)?;
        let ends = [cpu("client"), cpu("server")];
        let both = readings.iter().filter(|(metric, _)| ends.contains(metric)).map(|(_, value)| value).sum();
        readings.push((BOTH, both));
        Ok(readings)
    }

    fn report(&self, results: &Results) -> Report {
        let metrics = [GOODPUT, BOTH, cpu("client"), cpu("server")];
        let heads = metrics.map(|metric| format!("{}, {}", metric.name, metric.unit));
        let mut table = Table::new(POINT.to_owned(), std::iter::once(String::new()).chain(heads));
        for (id, title, ..) in ROWS {
            let cells = metrics.map(|metric| results.cell(POINT, id, metric, Summary::with_extremes));
            table.row(std::iter::once(title.to_owned()).chain(cells));
        }
        Report {
            title: "Objects on loopback".into(),
            method: format!(
                "Puts of {} MB from memory to memory, client and server on one machine. Medians, with the smallest and the largest of the runs.",
                self.bytes / 1_000_000
            ),
            tables: vec![table],
            charts: vec![("rate".into(), chart(results))],
            verdicts: verdicts(results),
        }
    }
}

fn verdicts(results: &Results) -> Vec<Verdict> {
    let ratio = |metric, one: &str, other: &str| {
        let median = |row| results.summary(POINT, row, metric).map(|summary| summary.median);
        Some(median(one)? / median(other)?)
    };
    let all = [
        ("throughput of objects to QUIC's", ratio(GOODPUT, OBJECT, "quic"), Bound::AtLeast(1.3)),
        ("processor time of objects to QUIC's", ratio(BOTH, OBJECT, "quic"), Bound::AtMost(0.8)),
        ("processor time of objects in clear to UDT's", ratio(BOTH, CLEAR, "udt"), Bound::AtMost(1.0)),
    ];
    let verdict = |(target, measured, bound): (&str, Option<f64>, _)| {
        Some(Verdict { target: target.into(), measured: measured?, bound })
    };
    all.into_iter().filter_map(verdict).collect()
}

fn chart(results: &Results) -> Chart {
    let series = ROWS.map(|(id, title, _, colour)| Series {
        name: title.to_owned(),
        colour,
        points: [GOODPUT]
            .iter()
            .filter_map(|metric| Some(Point::of(0.0, &results.summary(POINT, id, *metric)?)))
            .collect(),
    });
    Chart {
        title: "Objects and others on loopback".into(),
        subtitle: "medians with smallest and largest".into(),
        kind: Kind::Bars,
        x: Axis::new("", Scale::Categories(vec![POINT.to_owned()])),
        y: Axis::new("Mbit/s", Scale::Linear),
        series: series.into_iter().filter(|series| !series.points.is_empty()).collect(),
        marks: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_compare_rates_and_processor_time() {
        let mut results = Results::of("objects-loopback");
        for (row, rate, used) in
            [(OBJECT, 5000.0, 2.0), (CLEAR, 8000.0, 1.0), ("quic", 2500.0, 4.0), ("udt", 6000.0, 0.9)]
        {
            results.add(POINT, row, 1, &[(GOODPUT, rate), (BOTH, used)]);
        }
        let found: Vec<_> = verdicts(&results).iter().map(|verdict| (verdict.measured, verdict.met())).collect();
        assert_eq!(found, [(2.0, true), (0.5, true), (1.0 / 0.9, false)]);
    }
}
