//! Runs an experiment: every row at every point, `runs` times, interleaved (A B C, A B C), so that a disturbance of
//! the machine affects all rows alike. Progress goes to standard error; results are saved after every measurement.

use super::conditions;
use super::report::Report;
use super::results::{CommandRun, Failure, Reading, Results, Store};
use crate::exit::Exit;
use anyhow::Context;
use std::time::{Duration, Instant};

/// A comparison of rows (the compared variants) at points (the circumstances).
pub(crate) trait Experiment {
    /// The environment of one point: a testbed and the programs in it. Dropping it removes both.
    type Bed;

    /// The name of the subcommand and of its files.
    fn name(&self) -> &'static str;
    /// The circumstances, in the order of measurement.
    fn points(&self) -> Vec<Label>;
    /// The compared rows, in the order of measurement.
    fn rows(&self) -> Vec<Label>;
    /// The approximate duration of one measurement.
    fn expected(&self, point: &str, row: &str) -> Duration;
    /// Whether the row can be measured at the point.
    fn has(&self, _point: &str, _row: &str) -> bool {
        true
    }
    /// Builds the bed of a point.
    fn set_up(&self, point: &str) -> anyhow::Result<Self::Bed>;
    /// The conditions while the bed exists, by name.
    fn conditions(&self, bed: &Self::Bed) -> Vec<(String, String)>;
    /// Measures a row once, within `limit`.
    fn measure(&self, bed: &mut Self::Bed, point: &str, row: &str, limit: Duration) -> anyhow::Result<Vec<Reading>>;
    /// Makes tables and drawings of the results, which may be incomplete.
    fn report(&self, results: &Results) -> Report;
}

/// A point or a row: its identifier for files and options, and its title for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Label {
    /// In files and options.
    pub(crate) id: String,
    /// In tables and legends.
    pub(crate) title: String,
}

impl Label {
    /// A label.
    pub(crate) fn new(id: impl Into<String>, title: impl Into<String>) -> Self {
        Self { id: id.into(), title: title.into() }
    }
}

/// How to run an experiment.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    /// Repetitions of every measurement.
    pub(crate) runs: u32,
    /// Only these rows; all if empty.
    pub(crate) only: Vec<String>,
    /// Keep what the store has, and measure only what it lacks.
    pub(crate) resume: bool,
}

/// The time to set up a bed, with everything that runs in it.
const SET_UP: Duration = Duration::from_secs(3);
/// How much longer than twice its expected time a measurement may take before its programs are stopped.
const PATIENCE: Duration = Duration::from_secs(20);

/// Runs `experiment`, and returns all its results in `store`.
pub(crate) fn run<E: Experiment>(experiment: &E, options: &Options, store: &Store) -> anyhow::Result<Results> {
    let rows = chosen(experiment.rows(), &options.only)?;
    let mut results = if options.resume { store.load()? } else { Results::of(experiment.name()) };
    let todo = todo(experiment, &rows, options.runs, &results);
    let mut clock = Clock::start(experiment, &todo);
    eprintln!("{}", clock.announcement(&todo));
    results.parts.push(CommandRun {
        command: conditions::command_line(),
        started: conditions::now(),
        conditions: conditions::machine(),
    });
    for (number, (point, tasks)) in todo.iter().enumerate() {
        let mut bed =
            experiment.set_up(&point.id).with_context(|| format!("cannot build the bed for {}", point.title))?;
        if number == 0
            && let Some(part) = results.parts.last_mut()
        {
            part.conditions.extend(experiment.conditions(&bed));
        }
        for (row, run) in tasks {
            let expected = experiment.expected(&point.id, &row.id);
            results.failures.retain(|f| !(f.point == point.id && f.row == row.id && f.run == *run));
            let outcome = experiment.measure(&mut bed, &point.id, &row.id, limit(expected));
            let said = match &outcome {
                Ok(readings) => {
                    results.add(&point.id, &row.id, *run, readings);
                    describe(readings)
                }
                Err(error) => {
                    let reason = format!("{error:#}");
                    let said = format!("failed: {reason}");
                    results.failures.push(Failure { point: point.id.clone(), row: row.id.clone(), run: *run, reason });
                    said
                }
            };
            eprintln!("{} {}, {}, run {run}: {said}", clock.tick(expected), point.title, row.title);
            store.save(&results)?;
        }
    }
    store.save(&results)?;
    Ok(results)
}

/// The remaining measurements: for each point its rows, run by run.
type Remaining = Vec<(Label, Vec<(Label, u32)>)>;

fn todo<E: Experiment>(experiment: &E, rows: &[Label], runs: u32, results: &Results) -> Remaining {
    let missing = |point: &Label| -> Vec<_> {
        let all = (1..=runs).flat_map(|run| rows.iter().map(move |row| (row.clone(), run)));
        let all = all.filter(|(row, _)| experiment.has(&point.id, &row.id));
        all.filter(|(row, run)| !results.has(&point.id, &row.id, *run)).collect()
    };
    let points = experiment.points().into_iter().map(|point| {
        let tasks = missing(&point);
        (point, tasks)
    });
    points.filter(|(_, tasks)| !tasks.is_empty()).collect()
}

/// The requested rows.
fn chosen(rows: Vec<Label>, only: &[String]) -> anyhow::Result<Vec<Label>> {
    let known = || rows.iter().map(|row| row.id.as_str()).collect::<Vec<_>>().join(", ");
    if let Some(odd) = only.iter().find(|wanted| rows.iter().all(|row| row.id != **wanted)) {
        return Err(Exit::usage(format!("--only {odd}: there is no such row; expected some of {}", known())));
    }
    Ok(rows.into_iter().filter(|row| only.is_empty() || only.contains(&row.id)).collect())
}

fn limit(expected: Duration) -> Duration {
    expected * 2 + PATIENCE
}

fn describe(readings: &[Reading]) -> String {
    let one = |(metric, value): &Reading| format!("{} {} {}", metric.name, super::stats::rounded(*value), metric.unit);
    match readings {
        [] => "nothing to measure".into(),
        few if few.len() <= 9 => few.iter().map(one).collect::<Vec<_>>().join(", "),
        many => format!("{}, … ({} values)", one(&many[0]), many.len()),
    }
}

/// Estimates the remaining time.
struct Clock {
    started: Instant,
    measurements: usize,
    done: usize,
    expected: Duration,
    expected_done: Duration,
    most: Duration,
}

impl Clock {
    fn start<E: Experiment>(experiment: &E, todo: &Remaining) -> Self {
        let each =
            todo.iter().flat_map(|(point, tasks)| tasks.iter().map(|(row, _)| experiment.expected(&point.id, &row.id)));
        let (measurements, expected, most) =
            each.fold((0, Duration::ZERO, Duration::ZERO), |(n, sum, most), one| (n + 1, sum + one, most + limit(one)));
        let beds = SET_UP * todo.len() as u32;
        Self {
            started: Instant::now(),
            measurements,
            done: 0,
            expected: expected + beds,
            expected_done: Duration::ZERO,
            most: most + beds,
        }
    }

    fn announcement(&self, todo: &Remaining) -> String {
        if self.measurements == 0 {
            return "Nothing is left to measure.".into();
        }
        format!(
            "{} measurements under {} conditions: about {}, and at most {} if every one meets its time limit.",
            self.measurements,
            todo.len(),
            in_words(self.expected),
            in_words(self.most)
        )
    }

    /// Counts one measurement, which was expected to take `expected`, and returns a progress line.
    fn tick(&mut self, expected: Duration) -> String {
        self.done += 1;
        self.expected_done += expected;
        // At the pace so far, but never faster than expected.
        let pace = self.started.elapsed().as_secs_f64() / self.expected_done.as_secs_f64().max(0.001);
        let left = self.expected.saturating_sub(self.expected_done).mul_f64(pace.clamp(1.0, 100.0));
        let left = if self.done == self.measurements { Duration::ZERO } else { left };
        format!("[{}/{}, {} left]", self.done, self.measurements, in_words(left))
    }
}

/// A duration in words.
fn in_words(time: Duration) -> String {
    let seconds = time.as_secs_f64().round() as u64;
    match (seconds / 3600, seconds % 3600 / 60, seconds % 60) {
        (0, 0, s) => format!("{s} s"),
        (0, m, s) => format!("{m} min {s:02} s"),
        (h, m, _) => format!("{h} h {m:02} min"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::results::Metric;
    use super::*;
    use anyhow::bail;
    use std::cell::RefCell;

    const ORDER: Metric = Metric { name: "order", unit: "1" };

    /// Records the order of calls; the row `broken` fails.
    #[derive(Default)]
    struct RecordedCalls(RefCell<Vec<String>>);

    impl Experiment for RecordedCalls {
        type Bed = ();
        fn name(&self) -> &'static str {
            "noted"
        }
        fn points(&self) -> Vec<Label> {
            ["p", "q"].map(|id| Label::new(id, id)).into()
        }
        fn rows(&self) -> Vec<Label> {
            ["a", "broken", "c"].map(|id| Label::new(id, id)).into()
        }
        fn expected(&self, _: &str, _: &str) -> Duration {
            Duration::from_secs(10)
        }
        fn set_up(&self, point: &str) -> anyhow::Result<()> {
            self.0.borrow_mut().push(format!("up {point}"));
            Ok(())
        }
        fn conditions(&self, (): &()) -> Vec<(String, String)> {
            vec![("seed".into(), "7".into())]
        }
        fn measure(&self, (): &mut (), point: &str, row: &str, limit: Duration) -> anyhow::Result<Vec<Reading>> {
            assert_eq!(limit, Duration::from_secs(40));
            self.0.borrow_mut().push(format!("{point}{row}"));
            if row == "broken" {
                bail!("out of order");
            }
            Ok(vec![(ORDER, self.0.borrow().len() as f64)])
        }
        fn report(&self, _: &Results) -> Report {
            Report::default()
        }
    }

    fn options(only: &[&str], resume: bool) -> Options {
        Options { runs: 2, only: only.iter().map(ToString::to_string).collect(), resume }
    }

    #[test]
    fn engine_interleaves_rows_and_continues_after_a_failed_one() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::new(directory.path(), "noted").unwrap();
        let noted = RecordedCalls::default();
        let results = run(&noted, &options(&[], false), &store).unwrap();
        let of = |p: &str| [format!("up {p}"), p.to_owned() + "a", p.to_owned() + "broken", p.to_owned() + "c"];
        let expected: Vec<_> =
            ["p", "q"].into_iter().flat_map(|p| [of(p).to_vec(), of(p)[1..].to_vec()].concat()).collect();
        assert_eq!(*noted.0.borrow(), expected);
        assert_eq!((results.samples.len(), results.failures.len()), (8, 4));
        assert_eq!(results.failures[0].reason, "out of order");
        assert!(results.parts[0].conditions.contains(&("seed".into(), "7".into())));
        assert_eq!(store.load().unwrap(), results);
    }

    #[test]
    fn resumed_run_measures_only_missing_values() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::new(directory.path(), "noted").unwrap();
        run(&RecordedCalls::default(), &options(&["a"], false), &store).unwrap();
        let noted = RecordedCalls::default();
        let results = run(&noted, &options(&["a", "c"], true), &store).unwrap();
        assert_eq!(*noted.0.borrow(), ["up p", "pc", "pc", "up q", "qc", "qc"]);
        assert_eq!((results.samples.len(), results.parts.len()), (8, 2));
        run(&noted, &options(&["c"], false), &store).unwrap();
        assert_eq!(store.load().unwrap().samples.len(), 4, "without --resume it starts anew");
    }

    #[test]
    fn engine_refuses_an_unknown_row_by_name() {
        let error = chosen(RecordedCalls::default().rows(), &["d".into()]).unwrap_err().to_string();
        assert_eq!(error, "--only d: there is no such row; expected some of a, broken, c");
    }

    #[test]
    fn engine_estimates_the_duration() {
        let todo = todo(&RecordedCalls::default(), &RecordedCalls::default().rows(), 5, &Results::of("noted"));
        let clock = Clock::start(&RecordedCalls::default(), &todo);
        assert_eq!(
            clock.announcement(&todo),
            "30 measurements under 2 conditions: about 5 min 06 s, and at most 20 min 06 s if every one meets its time limit."
        );
    }
}
