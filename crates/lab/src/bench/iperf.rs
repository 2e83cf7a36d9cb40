//! iperf3: one test, and its report.

use super::process::{self, Background};
use anyhow::{Context, anyhow};
use serde_json::Value;
use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

/// The program.
pub(crate) const PROGRAM: &str = "iperf3";

/// The parameters of a test.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Test<'a> {
    /// Duration in seconds; slow start counts.
    pub(crate) seconds: u64,
    /// Number of concurrent connections.
    pub(crate) streams: u32,
    /// From the server to the client.
    pub(crate) reverse: bool,
    /// Congestion control that the sender requests.
    pub(crate) congestion_control: Option<&'a str>,
}

/// The result of a test.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Outcome {
    /// The receiver's rate, in Mbit/s.
    pub(crate) goodput: f64,
    /// Segments that the sender retransmitted.
    pub(crate) retransmits: f64,
    /// Processor time of the client, in per cent of the test's time.
    pub(crate) client_cpu: f64,
}

/// Starts a server with `command` that serves one test on `port`.
pub(crate) fn serve(mut command: Command, port: u16) -> anyhow::Result<Background> {
    command.args(["-s", "-1", "-4", "-p", &port.to_string()]);
    Background::start("the iperf3 server", command)?.listening(port)
}

impl Test<'_> {
    /// Runs a test with `command` against the server at `at`.
    pub(crate) fn run(&self, mut command: Command, at: SocketAddr, limit: Duration) -> anyhow::Result<Outcome> {
        let (seconds, streams) = (self.seconds.to_string(), self.streams.to_string());
        command.args(["-c", &at.ip().to_string(), "-p", &at.port().to_string(), "-t", &seconds, "-P", &streams, "-J"]);
        if self.reverse {
            command.arg("-R");
        }
        if let Some(cc) = self.congestion_control {
            command.args(["-C", cc]);
        }
        // iperf3 states errors in its report.
        read(&process::run("iperf3", command, limit).map_err(|error| without_json(&error))?)
    }
}

fn read(report: &str) -> anyhow::Result<Outcome> {
    let report: Value = serde_json::from_str(report).context("iperf3 printed no JSON")?;
    // With -J, iperf3 also exits with 0 where it has failed.
    if let Some(error) = report["error"].as_str() {
        return Err(anyhow!("iperf3: {error}"));
    }
    let number = |pointer: &str| {
        let missing = || anyhow!("the report of iperf3 has no {pointer}; its end is {}", report["end"]);
        report.pointer(pointer).and_then(Value::as_f64).ok_or_else(missing)
    };
    Ok(Outcome {
        goodput: number("/end/sum_received/bits_per_second")? / 1e6,
        retransmits: number("/end/sum_sent/retransmits")?,
        client_cpu: number("/end/cpu_utilization_percent/host_total")?,
    })
}

/// Extracts the error from an iperf3 report, so that no JSON is quoted.
fn without_json(error: &anyhow::Error) -> anyhow::Error {
    let text = error.to_string();
    let sentence = text.split_once("\"error\":").and_then(|(_, rest)| rest.split('"').nth(1));
    anyhow!("{}", sentence.map_or(text.clone(), |sentence| format!("iperf3: {sentence}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn iperf_report_is_parsed() {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let server = serve(Command::new(PROGRAM), port).unwrap();
        let test = Test { seconds: 1, streams: 2, reverse: true, congestion_control: Some("reno") };
        let outcome = test.run(Command::new(PROGRAM), ([127, 0, 0, 1], port).into(), Duration::from_secs(60)).unwrap();
        assert!(outcome.goodput > 1.0 && outcome.retransmits >= 0.0, "{outcome:?}");
        drop(server);
    }

    #[test]
    fn failed_test_reports_the_reason_in_a_sentence() {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let test = Test { seconds: 1, streams: 1, reverse: false, congestion_control: None };
        let error =
            test.run(Command::new(PROGRAM), ([127, 0, 0, 1], port).into(), Duration::from_secs(60)).unwrap_err();
        assert!(error.to_string().starts_with("iperf3: unable to connect to server"), "{error}");
    }
}
