//! Runs one program and watches it to its end.

use super::stage::{PATH, STOCK, Stage};
use anyhow::{Context, Result, bail};
use serde::Serialize;
use std::io::Read;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// Interval between readings of the link's counters: fine enough for a curve over seconds.
const SAMPLE: Duration = Duration::from_millis(250);
/// How much longer than its given time a program may take, for its set-up and end.
const PATIENCE: Duration = Duration::from_secs(60);

/// The route of a transfer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum TransferRoute {
    /// Without gateways.
    Direct,
    /// Through gateways, with `phoebus run`.
    Session,
    /// Through gateways, with the congestion control that most end hosts have.
    StockSession,
}

/// A program to run on `src`.
pub(super) struct Transfer<'a> {
    pub(super) stage: &'a Stage,
    pub(super) way: TransferRoute,
    /// The program and its arguments.
    pub(super) words: &'a [&'a str],
    /// The same without arguments that only the demo needs.
    pub(super) shown: &'a [&'a str],
    /// The time limit.
    pub(super) limit: Limit,
}

/// When to stop waiting.
#[derive(Clone, Copy)]
pub(super) enum Limit {
    /// The program itself stops after this time; otherwise something is wrong.
    Itself(Duration),
    /// The program is stopped after this time, which is a valid result.
    Stop(Duration),
}

/// Seconds since the start, and Mbit/s (including headers) that reached `dst` since the previous sample.
pub(super) type Samples = Vec<(f64, f64)>;

/// The result of a transfer.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Outcome {
    /// The command as a user would type it.
    pub(super) command: String,
    /// Duration, from the program's start to its end.
    pub(super) seconds: f64,
    /// Whether the program finished, or was stopped at the limit.
    pub(super) complete: bool,
    /// Bytes of received data.
    pub(super) bytes: u64,
    /// Received data per second.
    pub(super) bits_per_second: f64,
    /// Whether the received data equals the original; `None` if that cannot be decided.
    pub(super) intact: Option<bool>,
    /// The rate over time.
    pub(super) samples: Samples,
}

impl Outcome {
    /// A progress line.
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
    /// Runs the program; returns its outcome, whose amounts the caller fills in, and its output.
    pub(super) fn run(&self) -> Result<(Outcome, Vec<u8>)> {
        let gateway = ["run", "--path", PATH];
        let stock: &[&str] = if self.way == TransferRoute::StockSession { &["--cc", STOCK] } else { &[] };
        let (program, mut command) = match self.way {
            TransferRoute::Direct => (self.words[0], self.stage.command("src", self.words[0])?),
            _ => ("phoebus run", self.stage.command("src", &self.stage.phoebus)?),
        };
        let mut shown = self.shown.join(" ");
        if self.way == TransferRoute::Direct {
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
        // Kills the program if it is still running.
        drop(child);
        let [output, errors] = readers.map(|reader| reader.join().unwrap_or_default());
        if success == Some(false) {
            // iperf3 states errors in its report on standard output.
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

    /// The program's duration, the rate over time, and whether it succeeded; `None` if it was stopped.
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
                self.stage.show_progress(&format!("{shown}: {at:.0} s, {rate:.0} Mbit/s"));
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

/// A program that is killed on drop.
struct Running(Child);

impl Running {
    /// Threads that read its outputs, so that it does not block on a full pipe.
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
