//! The final report of an experiment: targets, tables, drawings, and the conditions of the measurements.

use super::plot::Chart;
use super::results::{CommandRun, Failure, Results, Store};
use super::table::Table;
use std::fmt::Write;

/// An experiment's tables and drawings.
#[derive(Debug, Clone, Default)]
pub(crate) struct Report {
    /// The heading.
    pub(crate) title: String,
    /// The method, in a paragraph.
    pub(crate) method: String,
    /// The tables, in reading order.
    pub(crate) tables: Vec<Table>,
    /// The drawings, each with a suffix for its file name.
    pub(crate) charts: Vec<(String, Chart)>,
    /// The targets, with the measured values.
    pub(crate) verdicts: Vec<Verdict>,
}

/// A target with the measured value. It is printed, never asserted: a busy machine is no failure.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Verdict {
    /// The target.
    pub(crate) target: String,
    /// What was measured, in the target's unit.
    pub(crate) measured: f64,
    /// The bound.
    pub(crate) bound: Bound,
}

/// The bound of a target.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Bound {
    /// At least this much.
    AtLeast(f64),
    /// At most this much.
    AtMost(f64),
}

impl Verdict {
    /// Whether the target is met.
    pub(crate) fn met(&self) -> bool {
        match self.bound {
            Bound::AtLeast(bound) => self.measured >= bound,
            Bound::AtMost(bound) => self.measured <= bound,
        }
    }
}

impl Report {
    /// The report in Markdown. It ends with the command of every run, and the conditions that differ from the run
    /// before.
    pub(crate) fn to_markdown(&self, results: &Results) -> String {
        let mut text = format!("## {}\n\n{}\n", self.title, self.method);
        for table in &self.tables {
            text += &format!("\n{}", table.to_markdown());
        }
        if !self.verdicts.is_empty() {
            text += &format!("\n{}", verdicts(&self.verdicts).to_markdown());
        }
        if !results.failures.is_empty() {
            text += &failures(&results.failures);
        }
        text + &conditions(&results.parts)
    }

    /// Writes the report and its drawings next to the values.
    pub(crate) fn save(&self, results: &Results, store: &Store) -> anyhow::Result<()> {
        let mut text = self.to_markdown(results);
        for (ending, chart) in &self.charts {
            let ending = format!("-{ending}.svg");
            store.write(&ending, &chart.to_svg())?;
            let path = store.path(&ending);
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            text += &format!("\n![{}]({name})\n", chart.title);
        }
        store.write("md", &text)
    }
}

fn verdicts(verdicts: &[Verdict]) -> Table {
    let mut table = Table::new("Targets", ["target", "asked", "measured", ""]);
    for verdict in verdicts {
        let asked = match verdict.bound {
            Bound::AtLeast(bound) => format!("≥ {}", trimmed(bound)),
            Bound::AtMost(bound) => format!("≤ {}", trimmed(bound)),
        };
        let outcome = match (verdict.met(), verdict.bound) {
            (true, _) => "met",
            (false, Bound::AtLeast(_)) => "**below**",
            (false, Bound::AtMost(_)) => "**above**",
        };
        table.row([verdict.target.clone(), asked, trimmed(verdict.measured), outcome.into()]);
    }
    table
}

/// Three decimals suffice for ratios near 1, none for hundreds.
fn trimmed(value: f64) -> String {
    if value.abs() >= 100.0 {
        return format!("{value:.0}");
    }
    format!("{value:.3}").trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn failures(failures: &[Failure]) -> String {
    let mut text = "\nNot measured:\n\n".to_owned();
    for Failure { point, row, run, reason } in failures {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "- {row} at {point}, run {run}: {reason}");
    }
    text
}

fn conditions(parts: &[CommandRun]) -> String {
    let mut text = String::new();
    let mut previous: Option<&CommandRun> = None;
    for part in parts {
        let _ = writeln!(text, "\n`{}` ({})", part.command, part.started);
        let known = previous.map_or(&[][..], |previous| &previous.conditions);
        let changed: Vec<_> = part.conditions.iter().filter(|condition| !known.contains(condition)).collect();
        if !changed.is_empty() {
            text.push('\n');
        }
        for (name, value) in changed {
            let _ = writeln!(text, "- {name}: {value}");
        }
        previous = Some(part);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_prints_targets_as_met_or_missed() {
        let verdict = |measured, bound| Verdict { target: "goodput".into(), measured, bound };
        let table = verdicts(&[
            verdict(915.4, Bound::AtLeast(800.0)),
            verdict(0.94, Bound::AtLeast(0.95)),
            verdict(1.125, Bound::AtMost(1.1)),
        ]);
        let cells: Vec<_> = table.rows.iter().map(|row| row[1..].join(" ")).collect();
        assert_eq!(cells, ["≥ 800 915 met", "≥ 0.95 0.94 **below**", "≤ 1.1 1.125 **above**"]);
    }

    #[test]
    fn report_prints_unchanged_conditions_once() {
        let part = |command: &str, seed: &str| CommandRun {
            command: command.into(),
            started: "2026-11-21 05:00 UTC".into(),
            conditions: vec![("kernel".into(), "Linux".into()), ("seed".into(), seed.into())],
        };
        let text = conditions(&[part("a", "1"), part("b", "1"), part("c", "2")]);
        assert_eq!((text.matches("- seed: 1").count(), text.matches("- seed: 2").count()), (1, 1));
        assert_eq!(text.matches("- kernel: Linux").count(), 1);
        assert_eq!(text.matches("(2026-11-21 05:00 UTC)").count(), 3);
    }
}
