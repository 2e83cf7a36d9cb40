//! Measures the goodput of TCP with iperf3: the rate at its receiver.

use super::{Bound, Error, Finding, Options, pair, system};
use crate::model::{DirectionConfig, LinkConfig, Loss, Rate};
use crate::testbed::{Sc09, Testbed};
use phoebus_proto::units::{BitRate, Span};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// One link of 1 Gbit/s, on which TCP can reach 941 Mbit/s: 1448 bytes of payload in every 1538, over IPv4
/// with timestamps.
pub(super) fn clean(options: &Options) -> Result<Finding, Error> {
    let direction = DirectionConfig {
        delay: Span(Duration::from_millis(5)),
        rate: BitRate(1_000_000_000).into(),
        ..DirectionConfig::default()
    };
    let testbed = pair(LinkConfig::symmetric(1, direction))?;
    let conditions = "one link of 10 ms, no loss, a queue of 4 MB, cubic";
    finding("goodput at 1 Gbit/s", options, &testbed, "cubic", conditions, 930.0)
}

/// Three such links, with a round trip of 100 ms in total.
pub(super) fn row(options: &Options) -> Result<Finding, Error> {
    let path = Sc09 { wan_rtt: Span(Duration::from_millis(84)), lan_loss: Loss::none(), ..Sc09::default() };
    let testbed = Testbed::up(&path.scenario())?;
    let conditions = "three links in a row, 8, 84 and 8 ms at 1 Gbit/s, no loss, queues of 4, 16 and 4 MB, bbr";
    finding("goodput of three links", options, &testbed, "bbr", conditions, 880.0)
}

/// No rate and no delay: the limit of the machine.
pub(super) fn unlimited(options: &Options) -> Result<Finding, Error> {
    let direction = DirectionConfig { rate: Rate::Unlimited, ..DirectionConfig::default() };
    let testbed = pair(LinkConfig::symmetric(1, direction))?;
    finding("goodput without limit", options, &testbed, "cubic", "one link without rate, delay or loss, cubic", 4000.0)
}

fn finding(
    what: &str,
    options: &Options,
    testbed: &Testbed,
    congestion_control: &str,
    conditions: &str,
    least: f64,
) -> Result<Finding, Error> {
    let mut runs = Vec::new();
    for _ in 0..options.runs {
        let warm_up = Options::WARM_UP_SECONDS.to_string();
        runs.push(Load::start(testbed, options.seconds, &["-C", congestion_control, "-O", &warm_up])?.goodput()?);
    }
    let conditions = format!(
        "iperf3 over IPv4, one stream of {} s after {} s; {conditions}",
        options.seconds,
        Options::WARM_UP_SECONDS
    );
    Ok(Finding::new(what, conditions, runs, "Mbit/s", Bound::AtLeast(least)))
}

/// An iperf3 transfer from `src` to `dst`, which ends when this is dropped.
pub(super) struct Load {
    server: Process,
    client: Process,
}

/// A child process that is killed on drop.
struct Process(Child);

impl Load {
    pub(super) fn start(testbed: &Testbed, seconds: u32, options: &[&str]) -> Result<Self, Error> {
        let mut server = iperf(testbed, "dst", &["-s", "-1", "--forceflush"])?;
        let mut listening = String::new();
        if let Some(output) = server.0.stdout.as_mut() {
            // Unbuffered, so that nothing behind that line is read.
            let mut lines = BufReader::with_capacity(1, output);
            while !listening.contains("listening") && lines.read_line(&mut listening).is_ok_and(|read| read > 0) {}
        }
        if !listening.contains("listening") {
            return Err(Error::Iperf { host: "dst".into(), said: server.complaint(&listening) });
        }
        let seconds = seconds.to_string();
        let arguments = [&["-4", "-c", "dst", "-J", "-t", &seconds], options].concat();
        let client = iperf(testbed, "src", &arguments)?;
        Ok(Self { server, client })
    }

    /// Waits for the end, and returns the receiver's rate in Mbit/s.
    fn goodput(mut self) -> Result<f64, Error> {
        let mut output = String::new();
        if let Some(stdout) = self.client.0.stdout.as_mut() {
            stdout.read_to_string(&mut output).map_err(system("cannot read iperf3's report"))?;
        }
        let _ = self.server.0.wait();
        let report: serde_json::Value = serde_json::from_str(&output).unwrap_or_default();
        report["end"]["sum_received"]["bits_per_second"].as_f64().map(|bits| bits / 1e6).ok_or_else(|| {
            let said = report["error"].as_str().map_or_else(|| self.client.complaint(&output), str::to_owned);
            Error::Iperf { host: "src".into(), said }
        })
    }

    /// Ends the transfer.
    pub(super) fn end(self) {}
}

impl Process {
    /// The program's output, errors first.
    fn complaint(&mut self, output: &str) -> String {
        let _ = self.0.kill();
        let mut text = String::new();
        if let Some(stderr) = self.0.stderr.as_mut() {
            let _ = stderr.read_to_string(&mut text);
        }
        format!("{text} {output}").split_whitespace().collect::<Vec<_>>().join(" ")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn iperf(testbed: &Testbed, host: &str, arguments: &[&str]) -> Result<Process, Error> {
    let mut command: Command = testbed.exec(host, "iperf3")?;
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().map_err(system(format!("cannot start iperf3 on {host} (is it installed?)")))?;
    Ok(Process(child))
}
