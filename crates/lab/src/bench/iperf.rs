//! iperf3: one test, and what its report says.

use super::process::{self, Background};
use anyhow::{Context, anyhow};
use serde_json::Value;
use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

/// The program.
pub(crate) const PROGRAM: &str = "iperf3";

/// What to test.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Test<'a> {
    /// For how long, in seconds; the slow start counts.
    pub(crate) seconds: u64,
    /// Over how many connections at once.
    pub(crate) streams: u32,
    /// From the server to the client.
    pub(crate) reverse: bool,
    /// Congestion control that the sender asks for.
    pub(crate) congestion_control: Option<&'a str>,
}

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Outcome {
    /// What the receiver got, in Mbit/s.
    pub(crate) goodput: f64,
    /// Segments that the sender sent again.
    pub(crate) retransmits: f64,
    /// Processor time of the client, per cent of the test's time.
    pub(crate) client_cpu: f64,
}

/// Starts a server by `command` that takes one test on `port`.
pub(crate) fn serve(mut command: Command, port: u16) -> anyhow::Result<Background> {
    command.args(["-s", "-1", "-4", "-p", &port.to_string()]);
    Background::start("the iperf3 server", command)?.listening(port)
}

impl Test<'_> {
    /// Tests by `command` against the server that answers at `at`.
    pub(crate) fn run(&self, mut command: Command, at: SocketAddr, limit: Duration) -> anyhow::Result<Outcome> {
        let (seconds, streams) = (self.seconds.to_string(), self.streams.to_string());
        command.args(["-c", &at.ip().to_string(), "-p", &at.port().to_string(), "-t", &seconds, "-P", &streams, "-J"]);
        if self.reverse {
            command.arg("-R");
        }
        if let Some(cc) = self.congestion_control {
            command.args(["-C", cc]);
        }
        // It says what went wrong in its report.
        read(&process::run("iperf3", command, limit).map_err(|error| without_json(&error))?)
    }
}

fn read(report: &str) -> anyhow::Result<Outcome> {
    let report: Value = serde_json::from_str(report).context("iperf3 printed no JSON")?;
    if let Some(error) = report["error"].as_str() {
        return Err(anyhow!("iperf3: {error}"));
    }
    let number = |pointer: &str| {
        report.pointer(pointer).and_then(Value::as_f64).ok_or_else(|| anyhow!("the report of iperf3 has no {pointer}"))
    };
    Ok(Outcome {
        goodput: number("/end/sum_received/bits_per_second")? / 1e6,
        retransmits: number("/end/sum_sent/retransmits")?,
        client_cpu: number("/end/cpu_utilization_percent/host_total")?,
    })
}

/// The sentence in a report that only quotes could carry otherwise.
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
    fn a_real_test_is_understood() {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let server = serve(Command::new(PROGRAM), port).unwrap();
        let test = Test { seconds: 1, streams: 2, reverse: true, congestion_control: Some("reno") };
        let outcome = test.run(Command::new(PROGRAM), ([127, 0, 0, 1], port).into(), Duration::from_secs(60)).unwrap();
        assert!(outcome.goodput > 1.0 && outcome.retransmits >= 0.0, "{outcome:?}");
        drop(server);
    }

    #[test]
    fn a_test_that_fails_says_why_in_a_sentence() {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let test = Test { seconds: 1, streams: 1, reverse: false, congestion_control: None };
        let error =
            test.run(Command::new(PROGRAM), ([127, 0, 0, 1], port).into(), Duration::from_secs(60)).unwrap_err();
        assert!(error.to_string().starts_with("iperf3: unable to connect to server"), "{error}");
    }
}
