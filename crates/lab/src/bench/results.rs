//! The measured values of an experiment, one per line, and the file that stores them.
//!
//! Values are stored as measured; tables and plots are derived from them later. The file is written after every
//! measurement, so that an experiment can be interrupted, and done in parts.

use super::stats::Summary;
use super::table::csv_line;
use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};

/// All measurements of one experiment, from one run or several.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Results {
    /// The experiment's name.
    pub(crate) experiment: String,
    /// The runs, the oldest first.
    pub(crate) parts: Vec<CommandRun>,
    /// The measurements.
    pub(crate) samples: Vec<Sample>,
    /// The failed measurements.
    pub(crate) failures: Vec<Failure>,
}

/// One run of the command.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct CommandRun {
    /// The command line.
    pub(crate) command: String,
    /// Start time, in UTC.
    pub(crate) started: String,
    /// The conditions of the run, by name.
    pub(crate) conditions: Vec<(String, String)>,
}

/// One measured value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Sample {
    /// The circumstances: the identifier of a point.
    pub(crate) point: String,
    /// The compared variant: the identifier of a row.
    pub(crate) row: String,
    /// The repetition, from 1.
    pub(crate) run: u32,
    /// The name of the quantity.
    pub(crate) metric: String,
    /// Its unit.
    pub(crate) unit: String,
    /// The value.
    pub(crate) value: f64,
}

/// A failed measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Failure {
    /// As in [`Sample`].
    pub(crate) point: String,
    /// As in [`Sample`].
    pub(crate) row: String,
    /// As in [`Sample`].
    pub(crate) run: u32,
    /// The reason.
    pub(crate) reason: String,
}

/// A quantity that an experiment measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Metric {
    /// Its name in files.
    pub(crate) name: &'static str,
    /// Its unit.
    pub(crate) unit: &'static str,
}

/// A value of a quantity.
pub(crate) type Reading = (Metric, f64);

impl Results {
    /// Empty results of `experiment`.
    pub(crate) fn of(experiment: &str) -> Self {
        Self { experiment: experiment.to_owned(), ..Self::default() }
    }

    /// Adds the readings of one measurement.
    pub(crate) fn add(&mut self, point: &str, row: &str, run: u32, readings: &[Reading]) {
        self.samples.extend(readings.iter().map(|(metric, value)| Sample {
            point: point.to_owned(),
            row: row.to_owned(),
            run,
            metric: metric.name.to_owned(),
            unit: metric.unit.to_owned(),
            value: *value,
        }));
    }

    /// Whether this measurement was made.
    pub(crate) fn has(&self, point: &str, row: &str, run: u32) -> bool {
        self.samples.iter().any(|s| s.point == point && s.row == row && s.run == run)
    }

    /// The values of `metric`, in the order in which they were measured.
    pub(crate) fn values(&self, point: &str, row: &str, metric: Metric) -> Vec<f64> {
        let wanted = |s: &&Sample| s.point == point && s.row == row && s.metric == metric.name;
        self.samples.iter().filter(wanted).map(|s| s.value).collect()
    }

    /// A summary of the values of `metric`; `None` without values.
    pub(crate) fn summary(&self, point: &str, row: &str, metric: Metric) -> Option<Summary> {
        Summary::of(&self.values(point, row, metric))
    }

    /// How often this measurement failed.
    pub(crate) fn failed(&self, point: &str, row: &str) -> usize {
        self.failures.iter().filter(|f| f.point == point && f.row == row).count()
    }

    /// Whether this measurement was made, with or without success.
    pub(crate) fn tried(&self, point: &str, row: &str) -> bool {
        self.failed(point, row) > 0 || self.samples.iter().any(|s| s.point == point && s.row == row)
    }

    /// A table cell: the median with `spread`, and the number of failures.
    pub(crate) fn cell(&self, point: &str, row: &str, metric: Metric, spread: fn(&Summary) -> String) -> String {
        let value = self.summary(point, row, metric).as_ref().map(spread);
        match (value, self.failed(point, row)) {
            (Some(value), 0) => value,
            (None, 0) => "–".into(),
            (Some(value), failed) => format!("{value}, {failed} failed"),
            (None, failed) => format!("{failed} failed"),
        }
    }

    /// All values as CSV, one per line, with a header.
    pub(crate) fn to_csv(&self) -> String {
        let mut text = csv_line(["experiment", "point", "row", "run", "metric", "unit", "value"]);
        for s in &self.samples {
            let (run, value) = (s.run.to_string(), s.value.to_string());
            text += &csv_line([&self.experiment, &s.point, &s.row, &run, &s.metric, &s.unit, &value]);
        }
        text
    }
}

/// The files of an experiment's results.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    directory: PathBuf,
    experiment: String,
}

impl Store {
    /// Stores the results of `experiment` in `directory`, which is created if necessary.
    pub(crate) fn new(directory: &Path, experiment: &str) -> anyhow::Result<Self> {
        fs::create_dir_all(directory).with_context(|| format!("cannot make the directory {}", directory.display()))?;
        Ok(Self { directory: directory.to_owned(), experiment: experiment.to_owned() })
    }

    /// The results of earlier runs; empty without any.
    pub(crate) fn load(&self) -> anyhow::Result<Results> {
        let path = self.path("json");
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Results::of(&self.experiment)),
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
        };
        let results: Results = serde_json::from_slice(&text)
            .with_context(|| format!("{} does not hold results that `phoebus bench` wrote", path.display()))?;
        if results.experiment != self.experiment {
            bail!("{} holds results of {}, expected {}", path.display(), results.experiment, self.experiment);
        }
        Ok(results)
    }

    /// Writes the values as JSON and as CSV.
    pub(crate) fn save(&self, results: &Results) -> anyhow::Result<()> {
        self.write("json", &serde_json::to_string_pretty(results)?)?;
        self.write("csv", &results.to_csv())
    }

    /// Writes one file of the experiment, atomically; `ending` follows its name.
    pub(crate) fn write(&self, ending: &str, text: &str) -> anyhow::Result<()> {
        let path = self.path(ending);
        let part = self.path(&format!("{ending}.part"));
        fs::write(&part, text)
            .and_then(|()| fs::rename(&part, &path))
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// The file with this ending.
    pub(crate) fn path(&self, ending: &str) -> PathBuf {
        let dot = if ending.starts_with('-') { "" } else { "." };
        self.directory.join(format!("{}{dot}{ending}", self.experiment))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOODPUT: Metric = Metric { name: "goodput", unit: "Mbit/s" };

    fn measured() -> Results {
        let mut results = Results::of("throughput");
        for (run, value) in [(1, 900.0), (2, 920.0), (3, 910.0)] {
            results.add("100ms", "direct-bbr", run, &[(GOODPUT, value)]);
        }
        results.failures.push(Failure {
            point: "100ms".into(),
            row: "socat".into(),
            run: 1,
            reason: "did not end within 40 s".into(),
        });
        results
    }

    #[test]
    fn cells_distinguish_values_failures_and_gaps() {
        let results = measured();
        let cell = |point, row| results.cell(point, row, GOODPUT, Summary::with_extremes);
        assert_eq!(cell("100ms", "direct-bbr"), "910 (900–920)");
        assert_eq!(cell("100ms", "socat"), "1 failed");
        assert_eq!(cell("50ms", "direct-bbr"), "–");
    }

    #[test]
    fn saved_results_are_loaded_again() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::new(&directory.path().join("deep/er"), "throughput").unwrap();
        assert_eq!(store.load().unwrap(), Results::of("throughput"));
        store.save(&measured()).unwrap();
        assert_eq!(store.load().unwrap(), measured());
        let csv = fs::read_to_string(store.path("csv")).unwrap();
        assert_eq!(csv.lines().nth(1), Some("throughput,100ms,direct-bbr,1,goodput,Mbit/s,900"));
    }

    #[test]
    fn load_refuses_another_experiments_file() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::new(directory.path(), "short").unwrap();
        fs::write(store.path("json"), "{\"a\": 1}").unwrap();
        assert!(store.load().unwrap_err().to_string().contains("does not hold results"));
        fs::write(store.path("json"), serde_json::to_string(&measured()).unwrap()).unwrap();
        assert!(store.load().unwrap_err().to_string().ends_with("holds results of throughput, expected short"));
    }
}
