//! Measures the emulator against its own settings, which must come before any experiment on it (`S30`).
//!
//! Every figure is measured from outside: round trips by ICMP echo, loss by counting at a receiver, goodput
//! by iperf3. Tests verify the model itself; this measures how well the machine executes it.

mod goodput;
mod loss;
mod rtt;

use crate::model::LinkConfig;
use crate::testbed::{self, HostSpec, LinkSpec, Scenario, Testbed};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;

/// The extent of the measurements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Number of runs of every measurement; the median is reported.
    pub runs: u32,
    /// Length of each transfer in seconds, not counting the first [`Self::WARM_UP_SECONDS`].
    pub seconds: u32,
    /// Number of segments by which loss is measured.
    pub segments: u32,
}

/// A measured property with its bound.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// The measured property.
    pub what: String,
    /// The conditions, in enough detail to repeat the measurement.
    pub conditions: String,
    /// The median of the runs.
    pub median: f64,
    /// Every run, in ascending order.
    pub runs: Vec<f64>,
    /// The unit of the figures.
    pub unit: String,
    /// The bound on the median.
    pub wanted: Bound,
}

/// A bound on a figure.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// No more than this.
    AtMost(f64),
    /// No less than this.
    AtLeast(f64),
}

/// The reason why a measurement failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Building the testbed failed.
    #[error(transparent)]
    Testbed(#[from] testbed::Error),
    /// A system call failed.
    #[error("{what}: {error}")]
    System {
        /// What was attempted.
        what: String,
        /// The system's error.
        error: io::Error,
    },
    /// iperf3 gave no result.
    #[error("iperf3 on {host} gave no result: {said}")]
    Iperf {
        /// The host on which it ran.
        host: String,
        /// Its output instead.
        said: String,
    },
    /// No probe of a round-trip measurement came back.
    #[error("no echo came back from {0}")]
    NoEcho(std::net::Ipv4Addr),
}

type Measurement = fn(&Options) -> Result<Finding, Error>;

/// Runs all measurements and passes each finding to `each` at once. Takes about five minutes with the
/// defaults.
pub fn all(options: &Options, mut each: impl FnMut(&Finding)) -> Result<Vec<Finding>, Error> {
    let measurements: [Measurement; 8] = [
        rtt::idle,
        rtt::half_rate,
        rtt::row,
        loss::bernoulli,
        loss::bursts,
        goodput::clean,
        goodput::row,
        goodput::unlimited,
    ];
    let mut findings = Vec::new();
    for measure in measurements {
        let finding = measure(options)?;
        each(&finding);
        findings.push(finding);
    }
    Ok(findings)
}

impl Options {
    /// Goodput excludes TCP's slow start, which is a property of the hosts and not of the emulator.
    pub const WARM_UP_SECONDS: u32 = 2;
}

impl Default for Options {
    fn default() -> Self {
        Self { runs: 5, seconds: 8, segments: 1_000_000 }
    }
}

impl Finding {
    /// Whether the median is within its bound.
    pub fn is_met(&self) -> bool {
        match self.wanted {
            Bound::AtMost(most) => self.median <= most,
            Bound::AtLeast(least) => self.median >= least,
        }
    }

    fn new(what: &str, conditions: String, mut runs: Vec<f64>, unit: &str, wanted: Bound) -> Self {
        runs.sort_by(f64::total_cmp);
        let median = quantile(&runs, 0.5);
        Self { what: what.into(), conditions, median, runs, unit: unit.into(), wanted }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, conditions, median, runs, unit, wanted } = self;
        let digits = if *median < 10.0 { 2 } else { 0 };
        let (least, most) = (quantile(runs, 0.0), quantile(runs, 1.0));
        let verdict = if self.is_met() { "met" } else { "MISSED" };
        write!(f, "{what}: {median:.digits$} {unit} ({least:.digits$} to {most:.digits$} in {} runs)", runs.len())?;
        write!(f, ", wanted {wanted} {unit}: {verdict}; {conditions}")
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(most) => write!(f, "at most {most}"),
            Self::AtLeast(least) => write!(f, "at least {least}"),
        }
    }
}

/// The quantile `share` of `sorted`; 0 if it is empty.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let index = (sorted.len().saturating_sub(1) as f64 * share).round() as usize;
    sorted.get(index).copied().unwrap_or_default()
}

/// Builds two hosts, `src` and `dst`, joined by `link`.
fn pair(link: LinkConfig) -> Result<Testbed, Error> {
    let scenario = Scenario {
        hosts: vec![HostSpec::new("src"), HostSpec::new("dst")],
        links: vec![LinkSpec { name: "link".into(), ends: ["src".into(), "dst".into()], config: link }],
        ..Scenario::default()
    };
    Ok(Testbed::up(&scenario)?)
}

fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
    let what = what.into();
    move |error| Error::System { what, error }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finding_is_judged_by_its_median() {
        let finding = |wanted| Finding::new("goodput", "here".into(), vec![950.0, 700.0, 941.0], "Mbit/s", wanted);
        assert!(finding(Bound::AtLeast(941.0)).is_met() && !finding(Bound::AtLeast(942.0)).is_met());
        assert!(finding(Bound::AtMost(941.0)).is_met() && !finding(Bound::AtMost(940.0)).is_met());
        let text = finding(Bound::AtLeast(942.0)).to_string();
        assert_eq!(text, "goodput: 941 Mbit/s (700 to 950 in 3 runs), wanted at least 942 Mbit/s: MISSED; here");
    }
}
