//! The paper's statements, each compared with the results of this experiment. `docs/benchmarks.md` explains the
//! differences.

use super::Cell;
use super::rows::{DIRECT, DIRECT_8, DIRECT_UDT, PHOEBUS, PHOEBUS_8, PHOEBUS_UDT};
use crate::bench::flows::GOODPUT;
use crate::bench::results::{Metric, Results};
use crate::bench::table::Table;
use crate::bench::transfer::SHARE;

/// A statement of the paper.
struct Statement {
    /// Its section.
    section: &'static str,
    /// Its text, shortened.
    text: &'static str,
    /// The related results, and whether they agree with the paper. `None` while a value is missing.
    here: fn(&Measured) -> Option<(String, bool)>,
}

/// "On par": within a tenth.
const PAR: f64 = 0.9;
/// "Little degradation": within a fifth.
const LITTLE: f64 = 0.8;

const STATEMENTS: [Statement; 8] = [
    Statement {
        section: "5.3, Figures 4, 5",
        text: "near and with little loss, Phoebus-TCP shows unnecessary overhead beside direct TCP",
        here: |m| m.ratio(Cell::new(25, 1e-5), PHOEBUS, DIRECT).map(|(said, ratio)| (said, ratio < 1.0)),
    },
    Statement {
        section: "5.3, Figures 4, 5",
        text: "there Phoebus-UDT is on par with the best",
        here: |m| m.against_best(Cell::new(25, 1e-5), &[DIRECT, DIRECT_8, DIRECT_UDT], PHOEBUS_UDT, PAR),
    },
    Statement {
        section: "5.3, Figures 6, 10",
        text: "at 100 ms Phoebus-UDT clearly outperforms all others, direct UDT included",
        here: |m| {
            let others = [DIRECT, DIRECT_8, DIRECT_UDT, PHOEBUS, PHOEBUS_8];
            let far = |loss| m.against_best(Cell::new(100, loss), &others, PHOEBUS_UDT, 1.0);
            far(1e-4).or_else(|| far(1e-5))
        },
    },
    Statement {
        section: "5.3, Figure 7",
        text: "at 150 ms Phoebus is the clear winner",
        here: |m| {
            let best = m.best(Cell::new(150, 1e-5), &[DIRECT, DIRECT_8, DIRECT_UDT])?;
            let ours = m.best(Cell::new(150, 1e-5), &[PHOEBUS, PHOEBUS_UDT, PHOEBUS_8])?;
            Some((format!("{ours:.0} to {best:.0} Mbit/s"), ours > best))
        },
    },
    Statement {
        section: "5.3, Figure 7",
        text: "with little degradation by the latency",
        here: |m| {
            let (far, near) = (Cell::new(150, 1e-5), Cell::new(25, 1e-5));
            m.between(far, near, PHOEBUS_UDT).map(|(said, ratio)| (said, ratio >= LITTLE))
        },
    },
    Statement {
        section: "5.3, Figures 8 to 10",
        text: "with 0.01 % of loss Phoebus suffers little, while direct TCP does",
        here: |m| {
            let (more, less) = (Cell::new(25, 1e-4), Cell::new(25, 1e-5));
            let (ours, theirs) = (m.between(more, less, PHOEBUS_UDT)?, m.between(more, less, DIRECT)?);
            Some((format!("Phoebus-UDT: {}; direct: {}", ours.0, theirs.0), ours.1 >= LITTLE && theirs.1 < LITTLE))
        },
    },
    Statement {
        section: "5.3",
        text: "TCP at the edges and UDT on the WAN is competitive with parallel streams even where conditions are good",
        here: |m| m.ratio(Cell::new(25, 1e-5), PHOEBUS_UDT, DIRECT_8).map(|(said, ratio)| (said, ratio >= PAR)),
    },
    Statement {
        section: "5.4, Table 1",
        text: "behind a gateway that speaks UDT, the client uses a quarter to two fifths of what it uses for UDT of its own",
        here: |m| {
            let share = |row| m.value(Cell::new(25, 1e-5), row, SHARE);
            let (ours, theirs) = (share(PHOEBUS_UDT)?, share(DIRECT_UDT)?);
            Some((format!("{ours:.1} to {theirs:.1} %"), ours / theirs <= 15.7 / 38.4))
        },
    },
];

/// All statements, with the related results.
pub(super) fn table(results: &Results) -> Table {
    let mut table = Table::new("The paper's statements", ["statement", "paper", "here", ""]);
    let measured = Measured(results);
    for statement in STATEMENTS {
        let (here, verdict) = match (statement.here)(&measured) {
            None => ("not measured".to_owned(), "–"),
            Some((here, true)) => (here, "the same"),
            Some((here, false)) => (here, "**differs**"),
        };
        table.row([statement.text, statement.section, &here, verdict]);
    }
    table
}

struct Measured<'a>(&'a Results);

impl Measured<'_> {
    fn value(&self, cell: Cell, row: &str, metric: Metric) -> Option<f64> {
        self.0.summary(&cell.label().id, row, metric).map(|summary| summary.median)
    }

    fn best(&self, cell: Cell, rows: &[&str]) -> Option<f64> {
        let values = rows.iter().map(|row| self.value(cell, row, GOODPUT)).collect::<Option<Vec<_>>>()?;
        values.into_iter().max_by(f64::total_cmp)
    }

    /// Goodputs of two rows under the same circumstances, and their ratio.
    fn ratio(&self, cell: Cell, ours: &str, theirs: &str) -> Option<(String, f64)> {
        let (ours, theirs) = (self.value(cell, ours, GOODPUT)?, self.value(cell, theirs, GOODPUT)?);
        Some((format!("{ours:.0} to {theirs:.0} Mbit/s"), ours / theirs))
    }

    /// Goodputs of one row under two circumstances, and their ratio.
    fn between(&self, one: Cell, other: Cell, row: &str) -> Option<(String, f64)> {
        let (one, other) = (self.value(one, row, GOODPUT)?, self.value(other, row, GOODPUT)?);
        Some((format!("{one:.0} after {other:.0} Mbit/s"), one / other))
    }

    /// Whether a row reaches this part of the best of the others.
    fn against_best(&self, cell: Cell, others: &[&str], row: &str, part: f64) -> Option<(String, bool)> {
        let (ours, best) = (self.value(cell, row, GOODPUT)?, self.best(cell, others)?);
        Some((format!("{ours:.0} to {best:.0} Mbit/s, {}", cell.label().title), ours >= part * best))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statement_is_judged_by_the_results() {
        let mut results = Results::of("sc09");
        for (row, value) in
            [(PHOEBUS, 900.0), (DIRECT, 450.0), (DIRECT_8, 930.0), (DIRECT_UDT, 300.0), (PHOEBUS_UDT, 850.0)]
        {
            results.add("25ms 0.001%", row, 1, &[(GOODPUT, value), (SHARE, value / 20.0)]);
        }
        let table = table(&results);
        assert_eq!(table.rows[0][2..4], ["900 to 450 Mbit/s", "**differs**"]);
        assert_eq!(table.rows[1][2..4], ["850 to 930 Mbit/s, 25ms, loss 0.001%", "the same"]);
        assert_eq!(table.rows[2][2..4], ["not measured", "–"]);
        assert_eq!(table.rows[6][3], "the same");
        assert_eq!(table.rows[7][2..4], ["42.5 to 15.0 %", "**differs**"]);
    }
}
