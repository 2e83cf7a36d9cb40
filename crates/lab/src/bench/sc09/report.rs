//! Tables and drawings of the experiment, as in the paper: a drawing for each figure, Table 1, and the paper's
//! statements.

use super::rows::{DIRECT, DIRECT_8, DIRECT_UDT, EndsControl, IPERF, PHOEBUS, PHOEBUS_UDT, ROWS, Row, RowRoute};
use super::{Cell, Sc09Figures, statements};
use crate::bench::flows::{GOODPUT, PROCESSORS_BUSY, cpu};
use crate::bench::plot::{Axis, Chart, Kind, Point, Scale, Series};
use crate::bench::report::{Bound, Report, Verdict};
use crate::bench::results::{Metric, Results};
use crate::bench::stats::Summary;
use crate::bench::table::Table;
use crate::bench::transfer::{SET_UP, SHARE};
use phoebus_proto::units::Span;
use std::time::Duration;

/// The processor use of the paper's clients, in per cent of a processor of 2009: without loss, and with 0.001 %.
const PAPER: [(&str, &str, &str); 2] = [("paper: direct UDT", "62.1", "38.4"), ("paper: Phoebus-UDT", "15.0", "15.7")];
/// From this round trip of the WAN on, one stream through gateways must be no slower than eight direct ones.
const FAR: Span = Span(Duration::from_millis(50));

pub(super) fn of(figures: &Sc09Figures, results: &Results) -> Report {
    let pictures = Pictures { cells: &figures.cells, results };
    let permitted = |row: &&Row| row.ends != EndsControl::CubicAlone;
    let alone = |row: &&Row| row.ends == EndsControl::CubicAlone || [DIRECT, DIRECT_8].contains(&row.id);
    let mut tables = vec![
        pictures.table("Goodput, ends with cubic and bbr for those who ask", GOODPUT, permitted),
        pictures.table("Goodput, ends with cubic alone", GOODPUT, alone),
        pictures.table("Set-up, from the client's start to the first byte of data", SET_UP, |_| true),
        pictures.table("Processor time of the client", cpu("client"), |_| true),
        pictures.table("Processor time of the agent at the client", cpu("agent"), |row| {
            matches!(row.way, RowRoute::ByAgent(..))
        }),
        pictures.table("Processor time of both gateways", cpu("gateways"), |row| row.transport() != ""),
        pictures.table("Processors busy, of all programs and the emulated links", PROCESSORS_BUSY, |_| true),
    ];
    tables.extend(pictures.table_1());
    tables.retain(|table| !table.rows.is_empty());
    tables.push(statements::table(results));
    Report {
        title: "GridFTP over gateways: the SC09 paper's figures".into(),
        method: format!(
            "`globus-url-copy` at `src` puts /dev/zero to /dev/null of `globus-gridftp-server` at `dst` in MODE E for {} s. What is \
             counted has arrived: what the server has written from the first byte of data on; slow start counts, logins and handshakes \
             do not. The columns are round trips of the WAN, to which the LANs add 8 ms each, and losses on both LANs. Medians, \
             with the smallest and the largest of the runs.",
            figures.seconds
        ),
        tables,
        charts: pictures.charts(),
        verdicts: pictures.verdicts(),
    }
}

struct Pictures<'a> {
    cells: &'a [Cell],
    results: &'a Results,
}

impl Pictures<'_> {
    fn tried(&self, row: &Row) -> bool {
        self.cells.iter().any(|cell| self.results.tried(&cell.label().id, row.id))
    }

    fn median(&self, cell: Cell, row: &str, metric: Metric) -> Option<f64> {
        self.results.summary(&cell.label().id, row, metric).map(|summary| summary.median)
    }

    /// The rows that have values, or have failed.
    fn table(&self, caption: &str, metric: Metric, wanted: impl Fn(&&Row) -> bool) -> Table {
        let heads = std::iter::once(String::new()).chain(self.cells.iter().map(|cell| cell.label().title));
        let mut table = Table::new(format!("{caption}, {}", metric.unit), heads);
        let shown = |row: &&Row| wanted(row) && self.tried(row);
        for row in ROWS.iter().filter(shown) {
            let cells: Vec<_> = self
                .cells
                .iter()
                .map(|cell| self.results.cell(&cell.label().id, row.id, metric, Summary::with_extremes))
                .collect();
            if cells.iter().any(|cell| cell != "–") {
                let ends = if row.ends == EndsControl::CubicAlone { ", cubic alone" } else { "" };
                table.row(std::iter::once(format!("{}{ends}", row.title)).chain(cells));
            }
        }
        table
    }

    /// The client's share of a processor, compared with the paper's Table 1.
    fn table_1(&self) -> Option<Table> {
        // The points of the paper's table: without loss, and with the least of its losses.
        let is_there = |cell: &&Cell| cell.rtt.0.is_zero() || cell.figure() == Some(4);
        let cells: Vec<_> = self.cells.iter().filter(is_there).collect();
        let heads = std::iter::once(String::new()).chain(cells.iter().map(|cell| cell.label().title));
        let mut table = Table::new("The client's share of a processor, beside Table 1 of the paper, %", heads);
        let rows = ROWS.iter().filter(|row| [DIRECT_UDT, PHOEBUS_UDT].contains(&row.id) && self.tried(row));
        for row in rows {
            let value = |cell: &&Cell| self.results.cell(&cell.label().id, row.id, SHARE, Summary::with_extremes);
            table.row(std::iter::once(row.title.to_owned()).chain(cells.iter().map(value)));
        }
        if table.rows.is_empty() || cells.is_empty() {
            return None;
        }
        for (title, none, some) in PAPER {
            let value = |cell: &&Cell| if cell.rtt.0.is_zero() { none } else { some };
            table.row(std::iter::once(title).chain(cells.iter().map(value)));
        }
        Some(table)
    }

    /// One drawing for each figure, as in the paper, and one for each loss with all round trips.
    fn charts(&self) -> Vec<(String, Chart)> {
        let mut charts = Vec::new();
        for cell in self.cells {
            let label = cell.label();
            let name =
                cell.figure().map_or_else(|| label.id.replace(' ', "-").replace('%', ""), |n| format!("figure-{n}"));
            let title = match cell.figure() {
                Some(number) => format!("Figure {number} of the paper: WAN {}", label.title),
                None => format!("GridFTP, {}", label.title),
            };
            charts.push((name, self.chart(title, &[*cell])));
        }
        let mut losses: Vec<_> = self.cells.iter().filter(|cell| !cell.rtt.0.is_zero()).map(|cell| cell.loss).collect();
        losses.dedup();
        for loss in losses {
            let cells: Vec<_> =
                self.cells.iter().copied().filter(|cell| cell.loss == loss && !cell.rtt.0.is_zero()).collect();
            if cells.len() > 1 {
                let percent = super::percent(loss);
                let title = format!("GridFTP over the WAN, LAN loss {percent}");
                charts.push((format!("loss-{}", percent.replace('%', "")), self.chart(title, &cells)));
            }
        }
        charts.retain(|(_, chart)| !chart.series.is_empty());
        charts
    }

    fn chart(&self, title: String, cells: &[Cell]) -> Chart {
        let point = |(place, cell): (usize, &Cell), row: &Row| {
            let summary = self.results.summary(&cell.label().id, row.id, GOODPUT)?;
            Some(Point::of(place as f64, &summary))
        };
        let series =
            ROWS.iter().filter(|row| row.ends != EndsControl::CubicAlone && row.id != IPERF).map(|row| Series {
                name: row.title.to_owned(),
                colour: row.colour,
                points: cells.iter().enumerate().filter_map(|cell| point(cell, row)).collect(),
            });
        let names = cells.iter().map(|cell| cell.label().title).collect();
        Chart {
            title,
            subtitle: "GridFTP's own programs, memory to memory, MODE E; medians with smallest and largest".into(),
            kind: Kind::Bars,
            x: Axis::new("round trip of the WAN, loss on the LANs", Scale::Categories(names)),
            y: Axis::new("goodput, Mbit/s", Scale::Linear),
            series: series.filter(|series| !series.points.is_empty()).collect(),
            marks: Vec::new(),
        }
    }

    fn verdicts(&self) -> Vec<Verdict> {
        let ratio = |cell: &Cell, ours, theirs| {
            let ratio = self.median(*cell, ours, GOODPUT)? / self.median(*cell, theirs, GOODPUT)?;
            Some((ratio, cell.label().title))
        };
        let worst = |ratios: Vec<(f64, String)>| ratios.into_iter().min_by(|a, b| a.0.total_cmp(&b.0));
        let mut verdicts = Vec::new();
        let main = Cell::new(100, 1e-4);
        if let Some((measured, title)) = ratio(&main, PHOEBUS, DIRECT) {
            let target = format!("one stream through Phoebus-TCP to one direct stream under cubic, {title}");
            verdicts.push(Verdict { target, measured, bound: Bound::AtLeast(4.0) });
        }
        let far = self.cells.iter().filter(|cell| cell.rtt >= FAR);
        if let Some((measured, title)) = worst(far.filter_map(|cell| ratio(cell, PHOEBUS, DIRECT_8)).collect()) {
            let target = format!(
                "one stream through Phoebus-TCP to 8 direct ones under cubic from {FAR} on, at its worst ({title})"
            );
            verdicts.push(Verdict { target, measured, bound: Bound::AtLeast(1.0) });
        }
        let emulated = self.cells.iter().filter(|cell| !cell.rtt.0.is_zero());
        if let Some((measured, title)) = worst(emulated.filter_map(|cell| ratio(cell, PHOEBUS, IPERF)).collect()) {
            let target = format!("GridFTP through Phoebus-TCP to iperf3 through it, at its worst ({title})");
            verdicts.push(Verdict { target, measured, bound: Bound::AtLeast(0.95) });
        }
        verdicts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testbed::Security;

    fn figures(cells: &[Cell]) -> Sc09Figures {
        Sc09Figures { cells: cells.to_vec(), seconds: 12, seed: 1, security: Security::Encrypt }
    }

    fn measured(values: &[(&str, &str, f64)]) -> Results {
        let mut results = Results::of("sc09");
        for (point, row, value) in values {
            results.add(point, row, 1, &[(GOODPUT, *value), (SHARE, 10.0)]);
        }
        results
    }

    #[test]
    fn targets_compare_medians_of_the_same_point() {
        let results = measured(&[
            ("100ms 0.01%", PHOEBUS, 800.0),
            ("100ms 0.01%", DIRECT, 100.0),
            ("100ms 0.01%", DIRECT_8, 400.0),
            ("50ms 0.01%", PHOEBUS, 450.0),
            ("50ms 0.01%", DIRECT_8, 500.0),
            ("50ms 0.01%", IPERF, 450.0),
            ("25ms 0.001%", PHOEBUS, 1.0),
            ("25ms 0.001%", DIRECT_8, 900.0),
        ]);
        let report = of(&figures(&[Cell::new(25, 1e-5), Cell::new(50, 1e-4), Cell::new(100, 1e-4)]), &results);
        let verdicts: Vec<_> = report.verdicts.iter().map(|verdict| (verdict.measured, verdict.met())).collect();
        assert_eq!(verdicts, [(8.0, true), (0.9, false), (1.0, true)]);
        let names: Vec<_> = report.charts.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["figure-4", "figure-9", "figure-10", "loss-0.01"]);
    }

    #[test]
    fn table_1_includes_the_papers_values() {
        let results = measured(&[("none", DIRECT_UDT, 900.0), ("25ms 0.001%", PHOEBUS_UDT, 900.0)]);
        let report = of(&figures(&[Cell::none(), Cell::new(25, 1e-5)]), &results);
        let table = report.tables.iter().find(|table| table.caption.contains("Table 1")).unwrap();
        assert_eq!(table.rows[0], ["direct UDT", "10.0", "–"]);
        assert_eq!(table.rows[2], ["paper: direct UDT", "62.1", "38.4"]);
    }
}
