//! quinn's own perf tool, the reference for `quic`: one stream at full speed, with windows that do not limit it.

use super::process::{self, Background, cpu_seconds};
use anyhow::{Context, anyhow};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// How to obtain the tool, for users who do not have it.
pub(crate) const OBTAIN: &str = "quinn-perf is a part of quinn's repository and in no registry: `git clone \
    https://github.com/quinn-rs/quinn && cargo build --release -p perf` makes it; say where it is by --quinn-perf PATH";

/// The result of a test.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Outcome {
    /// The rate of completed requests, by the tool's own median, in Gbit/s.
    pub(crate) rate: f64,
    /// Total UDP payload sent, in bytes; about 3 % are headers.
    pub(crate) bytes: u64,
    /// Processor time of the client, which sends, in seconds.
    pub(crate) client_cpu: f64,
    /// Processor time of the server, in seconds.
    pub(crate) server_cpu: f64,
}

/// Makes a command that runs a program on one of the test's hosts.
pub(crate) type MakeCommand<'a> = &'a dyn Fn(&Path) -> anyhow::Result<Command>;

/// As large as the transport's windows.
const WINDOW: &str = "64M";
/// Size of one upload: small enough that some complete, large enough that its start does not matter.
const UPLOAD: &str = "64M";
const PORT: u16 = 4433;

/// Runs a test for `seconds`; `[client, server]` make commands that run on the hosts of the two ends, and `to` is the
/// server's address.
pub(crate) fn run(
    tool: &Path,
    [client, server]: [MakeCommand<'_>; 2],
    to: IpAddr,
    seconds: u64,
    limit: Duration,
) -> anyhow::Result<Outcome> {
    let windows = ["--stream-receive-window", WINDOW, "--receive-window", WINDOW, "--send-window", WINDOW];
    let mut server = server(tool)?;
    server.args(["server", "--listen", &SocketAddr::new(to, PORT).to_string()]).args(windows);
    let server = Background::start("quinn-perf's server", server)?;
    // The server prints nothing, and listens on UDP: the client retries until it answers.
    let before = cpu_seconds(server.pid())?;
    // The shell prints the times of its child.
    let mut client = client(Path::new("sh"))?;
    client.args(["-c", "\"$@\"; times", "sh"]).arg(tool).args(["client", "--conn-stats", "--ip", &to.to_string()]);
    client.args(["--upload-size", UPLOAD, "--download-size", "0", "--duration", &seconds.to_string()]);
    client.args(windows).arg(format!("localhost:{PORT}"));
    let report = process::run("quinn-perf", client, limit)?;
    let server_cpu = cpu_seconds(server.pid())? - before;
    let (rate, bytes, client_cpu) =
        read(&report).with_context(|| format!("quinn-perf's report is not understood; it ends: {}", end(&report)))?;
    Ok(Outcome { rate, bytes, client_cpu, server_cpu })
}

/// The rate in Gbit/s, bytes sent and seconds used.
fn read(report: &str) -> anyhow::Result<(f64, u64, f64)> {
    let last = |start: &str| {
        report
            .lines()
            .rev()
            .find(|line| line.trim_start().starts_with(start))
            .ok_or_else(|| anyhow!("there is no {start}"))
    };
    let median =
        last("P50")?.split('│').nth(4).and_then(|cell| cell.trim().strip_suffix("Mb/s")?.trim().parse::<f64>().ok());
    let rate = median.filter(|rate| *rate > 0.0).ok_or_else(|| anyhow!("no upload was completed"))? / 1e3;
    let bytes = last("ConnectionStats")?.split_once("udp_tx").and_then(|(_, rest)| {
        let digits = rest.split_once("bytes: ")?.1;
        digits[..digits.find(|c: char| !c.is_ascii_digit())?].parse().ok()
    });
    let bytes = bytes.ok_or_else(|| anyhow!("it does not say how much was sent"))?;
    // "0m0.83s 0m0.36s": user and system time of children, in the last line.
    let times = report.lines().last().unwrap_or_default().split_ascii_whitespace().map(|time| {
        let (minutes, seconds) = time.trim_end_matches('s').split_once('m')?;
        Some(minutes.parse::<f64>().ok()? * 60.0 + seconds.parse::<f64>().ok()?)
    });
    let cpu = times.sum::<Option<f64>>().ok_or_else(|| anyhow!("the shell did not say what it used"))?;
    Ok((rate, bytes, cpu))
}

fn end(text: &str) -> String {
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(3)..].join(" / ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_is_parsed() {
        let report = "      │ Upload Duration │ …\n P50  │        775.17ms │  0.00ns │   0.00ns │      2178.94 Mb/s │  0.00 Mb/s\n\
                      ConnectionStats { udp_tx: UdpStats { datagrams: 7, bytes: 590123, ios: 2 }, udp_rx: UdpStats { bytes: 5 } }\n\
                      0m0.000000s 0m0.000000s\n0m0.830000s 1m0.360000s\n";
        let (rate, bytes, cpu) = read(report).unwrap();
        assert!((rate - 2.17894).abs() < 1e-9 && bytes == 590_123 && (cpu - 61.19).abs() < 1e-9);
        let none = report.replace("2178.94", "0.00");
        assert_eq!(read(&none).unwrap_err().to_string(), "no upload was completed");
    }
}
