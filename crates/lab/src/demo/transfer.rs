//! One program, run and watched from start to end.

use super::stage::{PATH, STOCK, Stage};
use anyhow::{Context, Result, bail};
use serde::Serialize;
use std::io::Read;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// How often the link is looked at. Fine enough for a curve over seconds.
const SAMPLE: Duration = Duration::from_millis(250);
/// How long a program that was given its time may take beyond it, for all that it does before and after.
const PATIENCE: Duration = Duration::from_secs(60);

/// Which way a transfer goes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// Without gateways.
    Direct,
    /// Through them, with `phoebus run`.
    Session,
    /// Likewise, with the end host's congestion control as most hosts have it.
    StockSession,
}

/// A program to be run on `src`.
pub(super) struct Transfer<'a> {
    pub(super) stage: &'a Stage,
    pub(super) way: Way,
    /// The program and its arguments.
    pub(super) words: &'a [&'a str],
    /// The same without what only the demo needs.
    pub(super) shown: &'a [&'a str],
    /// How long it may take.
    pub(super) limit: Limit,
}

/// When to stop waiting.
#[derive(Clone, Copy)]
pub(super) enum Limit {
    /// The program itself stops after this time; if it does not, something is wrong.
    Itself(Duration),
    /// The program is stopped after this time, which is a result.
    Stop(Duration),
}

/// Seconds since the start, and Mbit/s (headers included) that reached `dst` since the sample before.
pub(super) type Samples = Vec<(f64, f64)>;

/// What came of it.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Outcome {
    /// As a user would type it.
    pub(super) command: String,
    /// How long it took, from the program's start to its end.
    pub(super) seconds: f64,
    /// Whether it came to its end, or was stopped for taking too long.
    pub(super) complete: bool,
    /// Data that arrived.
    pub(super) bytes: u64,
    /// Data over time.
    pub(super) bits_per_second: f64,
    /// Whether what arrived is what was sent, where that can be said.
    pub(super) intact: Option<bool>,
    /// How it went.
    pub(super) samples: Samples,
}

impl Outcome {
    /// For those who wait.
    pub(super) fn line(&self) -> String {
        let intact = match self.intact {
            Some(true) => ", sha256 equal",
            Some(false) => ", ALTERED",
            None if self.complete => "",
            None => ", then stopped",
        };
        format!("{}\n    {:.1} Mbit/s in {:.1} s{intact}", self.command, self.bits_per_second / 1e6, self.seconds)
    }
}

impl Transfer<'_> {
    /// Runs the program and returns what it printed beside its outcome, whose amounts the caller knows.
    pub(super) fn run(&self) -> Result<(Outcome, Vec<u8>)> {
        let gateway = ["run", "--path", PATH];
        let stock: &[&str] = if self.way == Way::StockSession { &["--cc", STOCK] } else { &[] };
        let (program, mut command) = match self.way {
            Way::Direct => (self.words[0], self.stage.command("src", self.words[0])?),
            _ => ("phoebus run", self.stage.command("src", &self.stage.phoebus)?),
        };
        let mut shown = self.shown.join(" ");
        if self.way == Way::Direct {
            command.args(&self.words[1..]);
        } else {
            command.args(gateway).args(stock).arg("--").args(self.words);
            shown = format!(
                "phoebus {}{}{} -- {shown}",
                gateway.join(" "),
                if stock.is_empty() { "" } else { " " },
                stock.join(" ")
            );
        }
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = Running(command.spawn().with_context(|| format!("cannot start {program}"))?);
        let readers = child.readers();
        let (seconds, samples, success) = self.watch(&mut child, &shown)?;
        let bytes = self.stage.arrived();
        // Stops it, should it still run.
        drop(child);
        let [output, errors] = readers.map(|reader| reader.join().unwrap_or_default());
        if success == Some(false) {
            // iperf3 says in its output, a report, what is wrong.
            let report: serde_json::Value = serde_json::from_slice(&output).unwrap_or_default();
            if let Some(error) = report["error"].as_str() {
                bail!("{shown}: failed: {error}");
            }
            let said = if errors.is_empty() { &output } else { &errors };
            let said = String::from_utf8_lossy(said);
            let said: Vec<_> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
            bail!("{shown}: failed: {}", said.join(" "));
        }
        let (complete, bits_per_second) = (success.is_some(), bytes as f64 * 8.0 / seconds);
        let outcome = Outcome { command: shown, seconds, complete, bytes, bits_per_second, intact: None, samples };
        Ok((outcome, output))
    }

    /// How long the program took, the rate over that time, and whether it succeeded; `None` if it was not at its end.
    fn watch(&self, child: &mut Running, shown: &str) -> Result<(f64, Samples, Option<bool>)> {
        let begun = Instant::now();
        let (mut samples, mut last) = (Vec::new(), (0.0, self.stage.received()));
        loop {
            let status = child.0.try_wait()?;
            let now = begun.elapsed();
            let (at, received) = (now.as_secs_f64(), self.stage.received());
            if at - last.0 >= SAMPLE.as_secs_f64() || status.is_some() {
                let rate = (received - last.1) as f64 * 8e-6 / (at - last.0).max(1e-3);
                samples.push((at, rate));
                last = (at, received);
                self.stage.whisper(&format!("{shown}: {at:.0} s, {rate:.0} Mbit/s"));
            }
            if let Some(status) = status {
                return Ok((at, samples, Some(status.success())));
            }
            match self.limit {
                Limit::Stop(limit) if now > limit => return Ok((at, samples, None)),
                Limit::Itself(limit) if now > limit + PATIENCE => bail!("{shown}: does not end"),
                _ => {}
            }
            self.stage.interrupt.check()?;
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A program that does not outlive the demo.
struct Running(Child);

impl Running {
    /// Threads that read its outputs, lest it wait for somebody to do so.
    fn readers(&mut self) -> [std::thread::JoinHandle<Vec<u8>>; 2] {
        fn all(from: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<Vec<u8>> {
            std::thread::spawn(move || {
                let mut bytes = Vec::new();
                if let Some(mut from) = from {
                    let _ = from.read_to_end(&mut bytes);
                }
                bytes
            })
        }
        [all(self.0.stdout.take()), all(self.0.stderr.take())]
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
