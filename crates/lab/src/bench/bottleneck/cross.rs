//! The competing flows at the bottleneck: iperf3 under cubic, between the hosts at its ends.

use crate::bench::bed::Bed;
use crate::bench::iperf;
use crate::bench::process::{self, Background};
use anyhow::{Context, anyhow};
use serde_json::Value;
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// The port of their receiver, on `pg2`.
const PORT: u16 = 5301;
/// They start this many seconds before the measurement, and end [`AFTER`] seconds after it.
const BEFORE: u64 = 3;
const AFTER: u64 = 2;

/// Running competing flows.
pub(super) struct CompetingFlows {
    _server: Background,
    client: JoinHandle<anyhow::Result<String>>,
    seconds: usize,
}

impl CompetingFlows {
    /// Starts `flows` for a measurement of `seconds`, and returns when it may begin.
    pub(super) fn start(bed: &Bed, flows: u32, seconds: u64, limit: Duration) -> anyhow::Result<Self> {
        let server = iperf::serve(bed.command("pg2", iperf::PROGRAM)?, PORT)?;
        let to = bed.address("pg2")?.to_string();
        let mut client = bed.command("pg1", iperf::PROGRAM)?;
        let (port, time, flows) = (PORT.to_string(), (BEFORE + seconds + AFTER).to_string(), flows.to_string());
        client.args(["-c", &to, "-p", &port, "-t", &time, "-P", &flows, "-C", "cubic", "-J", "-i", "1"]);
        let client = thread::spawn(move || process::run("the competing iperf3", client, limit));
        thread::sleep(Duration::from_secs(BEFORE));
        let seconds = usize::try_from(seconds).unwrap_or(usize::MAX);
        Ok(Self { _server: server, client, seconds })
    }

    /// Mbit/s of each flow in each second of the measurement.
    pub(super) fn finish(self) -> anyhow::Result<Vec<Vec<f64>>> {
        let text = self.client.join().map_err(|_| anyhow!("the thread of the competing flows has failed"))??;
        read(&text, self.seconds)
    }
}

fn read(report: &str, seconds: usize) -> anyhow::Result<Vec<Vec<f64>>> {
    let report: Value = serde_json::from_str(report).context("iperf3 printed no JSON")?;
    // With -J, iperf3 also exits with 0 where it has failed.
    if let Some(error) = report["error"].as_str() {
        return Err(anyhow!("the competing iperf3: {error}"));
    }
    let intervals = report["intervals"].as_array().ok_or_else(|| anyhow!("the report of iperf3 has no intervals"))?;
    let mut flows: Vec<Vec<f64>> = Vec::new();
    for interval in intervals.iter().skip(BEFORE as usize).take(seconds) {
        for (number, stream) in interval["streams"].as_array().into_iter().flatten().enumerate() {
            flows.resize(flows.len().max(number + 1), Vec::new());
            flows[number].push(stream["bits_per_second"].as_f64().unwrap_or(0.0) / 1e6);
        }
    }
    Ok(flows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_excludes_seconds_before_the_measurement() {
        let second = |a: f64, b: f64| serde_json::json!({ "streams": [{ "bits_per_second": a * 1e6 }, { "bits_per_second": b * 1e6 }] });
        let intervals: Vec<_> = (0..7).map(|n| second(f64::from(n), 10.0 + f64::from(n))).collect();
        let report = serde_json::json!({ "intervals": intervals }).to_string();
        assert_eq!(read(&report, 2).unwrap(), [[3.0, 4.0], [13.0, 14.0]]);
        assert!(read("{}", 2).unwrap_err().to_string().contains("no intervals"));
    }
}
