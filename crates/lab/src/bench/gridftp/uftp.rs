//! uftp, which sends files over UDP at a fixed rate, to one receiver here: a peer of objects.

use super::super::flows::GOODPUT;
use super::super::process::{self, Background};
use super::super::results::Reading;
use super::hosts::Hosts;
use anyhow::{Context, anyhow};
use phoebus_proto::units::BitRate;
use std::fs::{self, File};
use std::process::Command;
use std::time::Duration;

/// The sending program.
pub(super) const SENDER: &str = "uftp";
const RECEIVER: &str = "uftpd";
/// The part of the path's rate at which it sends: its own headers come on top.
const PART: f64 = 0.95;
/// Payload of a packet: what the path carries, less its headers.
const BLOCK: &str = "1400";
/// Most that it asks the kernel for.
const BUFFER: &str = "16777216";

/// The version of Debian's package, for the conditions of a measurement: the program itself has no option for that.
pub(super) fn version() -> String {
    let said = Command::new("dpkg-query").args(["-W", "-f", "${Version}", SENDER]).output();
    let text = said.ok().filter(|said| said.status.success()).and_then(|said| String::from_utf8(said.stdout).ok());
    text.unwrap_or_else(|| "not of a package".to_owned())
}

/// Sends a file of so many bytes over a path of this rate, encrypted by AES-128-GCM.
pub(super) fn run(hosts: &Hosts, bytes: u64, rate: BitRate, limit: Duration) -> anyhow::Result<Vec<Reading>> {
    let (target, source) = (hosts.file("uftp")?, hosts.file("uftp-source")?);
    if target.exists() {
        fs::remove_dir_all(&target).context("what was sent before")?;
    }
    fs::create_dir(&target)?;
    File::create(&source)?.set_len(bytes)?;
    let to = hosts.address().to_string();
    let mut receiver = hosts.at_server(RECEIVER)?;
    receiver.args(["-d", "-K", "rsa:2048", "-B", BUFFER, "-I", &to, "-D"]).arg(&target);
    let mut receiver = Background::start(RECEIVER, receiver)?;
    // It says nothing when it is there; the sender repeats its announcement.
    receiver.check()?;
    // Its report goes to standard error.
    let mut sender = hosts.command("sh")?;
    sender.args(["-c", "exec \"$@\" 2>&1", "sh", SENDER]);
    let kilobits = (rate.0 as f64 * PART / 1e3) as u64;
    sender.args(["-M", &to, "-R", &kilobits.to_string(), "-b", BLOCK, "-B", BUFFER]);
    sender.args(["-Y", "aes128-gcm", "-h", "sha256", "-K", "2048", "-m", "10"]).arg(&source);
    let report = process::run(SENDER, sender, limit)?;
    let rate = read(&report).with_context(|| format!("{SENDER}'s report is not understood"))?;
    Ok(vec![(GOODPUT, rate)])
}

/// The rate in Mbit/s.
fn read(report: &str) -> anyhow::Result<f64> {
    if !report.contains("Status: Completed") {
        return Err(anyhow!("the receiver did not complete the file"));
    }
    let line = report.lines().find_map(|line| line.trim().strip_prefix("Overall throughput:"));
    let number = line.and_then(|line| line.trim().strip_suffix("KB/s")?.trim().parse::<f64>().ok());
    // Its kilobytes have 1024 bytes.
    number.map(|kilobytes| kilobytes * 1024.0 * 8e-6).ok_or_else(|| anyhow!("it has no throughput"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_is_parsed() {
        let report = "Transfer status:\nHost: 0x7F000001       Status: Completed   time:   2.704 seconds\n\
                      Total elapsed time: 2.704 seconds\nOverall throughput: 72239.90 KB/s\n";
        assert!((read(report).unwrap() - 591.789).abs() < 0.01);
        assert!(read(&report.replace("Completed", "Lost")).is_err());
    }
}
