//! The programs that move bytes from the client's host to the server's, one flow or one file each.

use super::super::flows::{self, GOODPUT, Sink, cpu};
use super::super::results::Reading;
use super::super::{libudt, quinn};
use super::carried::MonitoredTransfer;
use super::hosts::Hosts;
use super::site::Site;
use std::path::Path;
use std::time::Duration;

/// A program, with its options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TransferProgram {
    /// GridFTP.
    Files(MonitoredTransfer),
    /// This many streams of iperf3, under this congestion control.
    Iperf { streams: u32, control: &'static str },
    /// One flow of our own, with the arguments of [`super::super::peer`].
    Bare(&'static [&'static str]),
    /// One flow of libudt.
    Libudt,
    /// One connection of quinn's perf tool, which [`quinn`] runs.
    Quinn,
    /// qcp, which [`super::qcp`] runs.
    Qcp,
    /// uftp, which [`super::uftp`] runs.
    Uftp,
}

impl TransferProgram {
    /// Lets it send for `seconds`. Nothing if another function runs it.
    pub(super) fn run(self, site: &Site, seconds: u64, limit: Duration) -> anyhow::Result<Vec<Reading>> {
        let hosts = &site.hosts;
        let goodput = match self {
            Self::Files(carried) => return carried.run(hosts, &site.grid, seconds, limit),
            Self::Bare(words) => {
                let sink = Sink::start(&hosts.host, "dst", hosts.address(), &words[..1])?;
                let time = format!("{seconds}s");
                let client = flows::client(&hosts.host, "src", words, sink.at, &["--time", &time])?;
                let (flow, usage) = flows::run(client, &[], limit)?;
                return Ok(flows::readings(&flow, &usage));
            }
            Self::Libudt => {
                let program = libudt::program(&hosts.file("")?)?;
                let (at, client) = (hosts.at_server(&program)?, hosts.command(&program)?);
                let (_, end) = libudt::flow(at, client, &hosts.address().to_string(), (seconds, 0), limit)?;
                end.bytes as f64 * 8e-6 / end.seconds
            }
            Self::Quinn | Self::Qcp | Self::Uftp => return Ok(Vec::new()),
            Self::Iperf { streams, control } => hosts.iperf(seconds, streams, control, limit)?,
        };
        Ok(vec![(GOODPUT, goodput)])
    }
}

/// Lets quinn's perf tool at `tool` send for `seconds`.
pub(super) fn quinn(tool: &Path, hosts: &Hosts, seconds: u64, limit: Duration) -> anyhow::Result<Vec<Reading>> {
    let (client, server) = (|program: &Path| hosts.command(program), |program: &Path| hosts.at_server(program));
    let outcome = quinn::run(tool, [&client, &server], hosts.address(), seconds, limit)?;
    let gigabytes = outcome.bytes as f64 / 1e9;
    Ok(vec![
        (GOODPUT, outcome.rate * 1e3),
        (cpu("client"), outcome.client_cpu / gigabytes),
        (cpu("server"), outcome.server_cpu / gigabytes),
    ])
}
