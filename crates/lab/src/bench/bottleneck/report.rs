//! Tables, drawings and targets of the bottleneck experiment.

use super::{Bottleneck, CROSS, Case, EACH_SECOND, GOODPUT, JAIN, OTHERS, ROWS, Row, UNSTEADY};
use crate::bench::flows::RETRANSMITTED;
use crate::bench::narrow::{self, ON_LINK, OVERFLOW};
use crate::bench::plot::{Axis, Chart, Colour, Kind, Point, Scale, Series};
use crate::bench::report::{Bound, Report, Verdict};
use crate::bench::results::{Metric, Results};
use crate::bench::stats::Summary;
use crate::bench::table::Table;

/// The share of a circuit that a sender at its rate must fill.
const FILLED: f64 = 0.95;
/// A column's heading: goodput, in per cent of that of a TCP flow that fills the link.
const SHARE: &str = "of the circuit, %";

pub(super) fn of(bottleneck: &Bottleneck, results: &Results) -> Report {
    let capacity = bottleneck.capacity;
    let mut report = Report {
        title: "Bottleneck and circuit".into(),
        method: format!(
            "One flow of {} s from `src` to `dst` over a WAN of {capacity} and {}, memory to memory, as its receiver counts. \
             A TCP that fills the link carries {:.0} Mbit/s; the rest is headers and framing. \"At the rate\" has {capacity} \
             as the rate of the profile between the gateways. Unsteadiness is the standard deviation of the seconds from \
             the fourth on, per cent of their mean; overflow is what found no room in the link's queue.",
            bottleneck.seconds,
            bottleneck.rtt,
            narrow::goodput(capacity)
        ),
        ..Report::default()
    };
    let pictures = Pictures { bottleneck, results };
    for case in &bottleneck.cases {
        let point = case.label(bottleneck.flows).id;
        if ROWS.iter().any(|row| results.tried(&point, row.id)) {
            report.tables.push(pictures.table(*case));
            report.charts.extend(pictures.charts(*case));
        }
    }
    report.verdicts = pictures.verdicts();
    report
}

struct Pictures<'a> {
    bottleneck: &'a Bottleneck,
    results: &'a Results,
}

impl Pictures<'_> {
    fn rows(&self, point: &str) -> impl Iterator<Item = &'static Row> {
        ROWS.iter().filter(move |row| self.results.tried(point, row.id))
    }

    fn table(&self, case: Case) -> Table {
        let label = case.label(self.bottleneck.flows);
        let metrics: &[Metric] = match case {
            Case::Shared => &[GOODPUT, OTHERS, JAIN, UNSTEADY, RETRANSMITTED, OVERFLOW, ON_LINK],
            Case::Circuit => &[GOODPUT, UNSTEADY, RETRANSMITTED, OVERFLOW, ON_LINK],
        };
        let heads = metrics.iter().map(|metric| match metric.unit {
            "1" => metric.name.to_owned(),
            unit => format!("{}, {unit}", metric.name),
        });
        let shares = (case == Case::Circuit).then(|| SHARE.to_owned());
        let caption = format!("{}, {}", self.bottleneck.capacity, label.title);
        let mut table = Table::new(caption, std::iter::once(String::new()).chain(heads).chain(shares.clone()));
        for row in self.rows(&label.id) {
            let cell = |metric: &Metric| self.results.cell(&label.id, row.id, *metric, Summary::with_extremes);
            let share = || self.share(row).map_or_else(|| "–".into(), |share| format!("{:.1}", share * 100.0));
            let cells = metrics.iter().map(cell).chain(shares.as_ref().map(|_| share()));
            table.row(std::iter::once(row.title.to_owned()).chain(cells));
        }
        table
    }

    /// The row's goodput relative to a TCP flow that fills the circuit.
    fn share(&self, row: &Row) -> Option<f64> {
        let point = Case::Circuit.label(self.bottleneck.flows).id;
        Some(self.results.summary(&point, row.id, GOODPUT)?.median / narrow::goodput(self.bottleneck.capacity))
    }

    /// For each row a drawing with its competitors, as in Figures 11 to 13; one drawing of all rows on the circuit,
    /// as in Figure 14.
    fn charts(&self, case: Case) -> Vec<(String, Chart)> {
        let label = case.label(self.bottleneck.flows);
        let own = |row: &Row| self.trace(&label.id, row, EACH_SECOND, row.title.to_owned(), row.colour);
        match case {
            Case::Circuit => {
                let series = self.rows(&label.id).filter_map(own).collect();
                vec![("circuit".into(), self.chart(&format!("Flows {}", label.title), case, series))]
            }
            Case::Shared => {
                let one = |row: &Row| {
                    let name = || "a competing flow (cubic)".to_owned();
                    let others = CROSS
                        .iter()
                        .filter_map(|metric| self.trace(&label.id, row, *metric, name(), Colour::LightGrey));
                    let mut series: Vec<_> = others.collect();
                    let mut own = own(row)?;
                    own.colour = Colour::Vermilion;
                    series.push(own);
                    Some((
                        format!("shared-{}", row.id),
                        self.chart(&format!("{}, {}", row.title, label.title), case, series),
                    ))
                };
                self.rows(&label.id).filter_map(one).collect()
            }
        }
    }

    fn chart(&self, title: &str, case: Case, series: Vec<Series>) -> Chart {
        let Bottleneck { capacity, rtt, loss, flows, .. } = self.bottleneck;
        let full = narrow::goodput(*capacity);
        let subtitle = match case {
            Case::Shared => format!("WAN {capacity}, {rtt}; throughput in each second"),
            Case::Circuit => {
                format!("WAN {capacity}, {rtt}, LAN loss {}; throughput in each second", super::wan::percent(*loss))
            }
        };
        let marks = match case {
            Case::Shared => vec![(full / f64::from(*flows + 1), "an equal part".to_owned())],
            Case::Circuit => vec![(full, "the full circuit".to_owned())],
        };
        Chart {
            title: title.to_owned(),
            subtitle,
            kind: Kind::Traces,
            x: Axis::new("time, s", Scale::Linear),
            y: Axis::new("Mbit/s", Scale::Linear),
            series,
            marks,
        }
    }

    /// One value per second of the first run.
    fn trace(&self, point: &str, row: &Row, metric: Metric, name: String, colour: Colour) -> Option<Series> {
        let own = |s: &&crate::bench::results::Sample| s.point == point && s.row == row.id && s.metric == metric.name;
        let run = self.results.samples.iter().filter(own).map(|s| s.run).min()?;
        let values: Vec<f64> =
            self.results.samples.iter().filter(own).filter(|s| s.run == run).map(|s| s.value).collect();
        // Bytes after the last whole second were still on their way.
        let whole = values.len().min(usize::try_from(self.bottleneck.seconds).unwrap_or(usize::MAX));
        let point = |(second, y): (usize, &f64)| Point { x: second as f64 + 0.5, y: *y, low: *y, high: *y };
        let points: Vec<_> = values[..whole].iter().enumerate().map(point).collect();
        (!points.is_empty()).then_some(Series { name, colour, points })
    }

    fn verdicts(&self) -> Vec<Verdict> {
        let best = |ids: [&str; 2]| {
            let rows = ROWS.iter().filter(|row| ids.contains(&row.id));
            rows.filter_map(|row| self.share(row)).reduce(f64::max)
        };
        let held = best(["udt-held", "quic-held"]).map(|measured| Verdict {
            target: "UDT or QUIC at the circuit's rate, of what the circuit carries".into(),
            measured,
            bound: Bound::AtLeast(FILLED),
        });
        held.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Bottleneck, BottleneckArgs};
    use super::*;
    use crate::bench::Common;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: BottleneckArgs,
    }

    fn experiment() -> Bottleneck {
        let mut args = Cli::parse_from(["bottleneck", "--seconds", "10"]).args;
        args.common = Common::for_tests();
        Bottleneck::new(&args)
    }

    #[test]
    fn drawings_show_all_flows_second_by_second() {
        let experiment = experiment();
        let mut results = Results::of("bottleneck");
        let mut readings = experiment.summed(&[50_000_000; 11], 400.0, &[vec![10.0; 10], vec![20.0; 10]]);
        readings.extend([(EACH_SECOND, 400.0); 11]);
        readings.extend([(CROSS[0], 10.0); 10].into_iter().chain([(CROSS[1], 20.0); 10]));
        results.add("shared", "udt", 1, &readings);
        results.add("circuit", "udt-held", 1, &[(GOODPUT, 460.0), (EACH_SECOND, 460.0)]);
        let report = of(&experiment, &results);
        let endings: Vec<_> = report.charts.iter().map(|(ending, _)| ending.as_str()).collect();
        assert_eq!(endings, ["shared-udt", "circuit"]);
        let series = &report.charts[0].1.series;
        assert_eq!(series.iter().map(|series| series.points.len()).collect::<Vec<_>>(), [10, 10, 10]);
        assert!(report.charts[0].1.to_svg().contains("Phoebus, udt"));
        assert!((results.values("shared", "udt", JAIN)[0] - 430.0 * 430.0 / (3.0 * 160_500.0)).abs() < 1e-9);
        assert_eq!(results.values("shared", "udt", UNSTEADY), [0.0]);
        assert_eq!(report.verdicts.len(), 1);
        assert!(report.verdicts[0].met() && report.verdicts[0].measured < 1.0, "{:?}", report.verdicts);
    }
}
