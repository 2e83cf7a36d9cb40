//! qcp, which copies files over QUIC between hosts that SSH reaches: a peer of objects.

use super::super::flows::GOODPUT;
use super::super::process;
use super::super::results::Reading;
use super::super::sshd::Sshd;
use super::hosts::Hosts;
use anyhow::{Context, anyhow};
use phoebus_proto::units::{BitRate, Span};
use std::fs::{self, File};
use std::path::Path;
use std::time::Duration;

const NAME: &str = "qcp";
/// What it asks the kernel for.
const BUFFER: &str = "16777216";

/// Puts a file of so many bytes with the program at `tool`, which is told the path's rate and round trip, and uses bbr.
pub(super) fn run(
    tool: &Path,
    hosts: &Hosts,
    bytes: u64,
    (rate, rtt): (BitRate, Span),
    limit: Duration,
) -> anyhow::Result<Vec<Reading>> {
    let tool = std::path::absolute(tool)?;
    let (source, target, keys) = (hosts.file("qcp-source")?, hosts.file("qcp-target")?, hosts.file("qcp-keys")?);
    for old in [&source, &target] {
        if old.exists() {
            fs::remove_file(old).context("what was sent before")?;
        }
    }
    if keys.exists() {
        fs::remove_dir_all(&keys).context("the keys of before")?;
    }
    fs::create_dir(&keys)?;
    File::create(&source)?.set_len(bytes)?;
    let sshd = Sshd::new(&keys, hosts.address())?;
    let _server = sshd.start(hosts.at_server("unshare")?)?;
    // Its report goes to standard error.
    let mut client = hosts.command("sh")?;
    client.env("HOME", &keys).args(["-c", "exec \"$@\" 2>&1", "sh"]).arg(&tool);
    client.args(["--color", "never", "--congestion", "bbr", "--udp-buffer", BUFFER]);
    let (rate, millis) = ((rate.0 / 8).to_string(), rtt.0.as_millis().to_string());
    client.args(["--rx", &rate, "--tx", &rate, "--rtt", &millis]).arg("--remote-qcp-binary").arg(&tool);
    for option in sshd.options() {
        client.args(["-S", &option]);
    }
    client.arg(&source).arg(format!("root@{}:{}", hosts.address(), target.display()));
    let report = process::run(NAME, client, limit)?;
    let arrived = fs::metadata(&target).context("nothing arrived")?.len();
    if arrived != bytes {
        return Err(anyhow!("{arrived} of {bytes} bytes arrived"));
    }
    let seconds = read(&report).with_context(|| format!("{NAME}'s report is not understood"))?;
    Ok(vec![(GOODPUT, bytes as f64 * 8e-6 / seconds)])
}

/// Seconds of the transfer, without the login.
fn read(report: &str) -> anyhow::Result<f64> {
    let line = report.lines().find_map(|line| line.split_once("transferred ").map(|(_, rest)| rest));
    let time = line.and_then(|line| line.split_once(" in ")?.1.split_once("; ")).map(|(time, _)| time);
    let expected = || anyhow!("\"transferred SIZE in SECONDSs\" was expected");
    let time = time.ok_or_else(expected)?;
    let number = |text: &str| text.parse::<f64>().map_err(|_| expected());
    // Below a minute 6.34s or 840ms, from there 1:02.5.
    if let Some(millis) = time.strip_suffix("ms") {
        return Ok(number(millis)? / 1e3);
    }
    if let Some(seconds) = time.strip_suffix('s') {
        return number(seconds);
    }
    time.split(':').try_fold(0.0, |sum, part| Ok(sum * 60.0 + number(part)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_is_parsed() {
        let line =
            "2026-11-29 18:53:41L  INFO source: transferred 1.25GB in 6.34s; average 197.1MB/s; peak 233.4MB/s\n";
        let of = |time: &str| read(&line.replace("6.34s", time)).ok();
        assert_eq!([of("6.34s"), of("840ms"), of("1:02.5"), of("fast")], [Some(6.34), Some(0.84), Some(62.5), None]);
        assert!(read("nothing").is_err());
    }
}
