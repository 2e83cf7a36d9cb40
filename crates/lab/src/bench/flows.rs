//! Flows in a bed: their sinks, and their costs. The programs themselves are in [`super::peer`].

use super::gateway;
use super::peer::{Flow, credentials};
use super::process::{self, Background};
use super::results::{Metric, Reading};
use super::usage::{Usage, Watch};
use anyhow::Context;
use phoebus_wan::testbed::Testbed;
use std::ffi::OsString;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::time::Duration;

/// A program that receives flows, and sends those that a client requests.
pub(crate) struct Sink {
    server: Background,
    /// Its address.
    pub(crate) at: SocketAddr,
}

/// The receiver's rate.
pub(crate) const GOODPUT: Metric = Metric { name: "goodput", unit: "Mbit/s" };
/// The same from the fourth second on, when all flows have found their rate.
pub(crate) const STEADY: Metric = Metric { name: "goodput after 3 s", unit: "Mbit/s" };
/// The busy share of all processors.
pub(crate) const PROCESSORS_BUSY: Metric = Metric { name: "processors busy", unit: "%" };
/// Retransmitted packets.
pub(crate) const RETRANSMITTED: Metric = Metric { name: "sent again", unit: "%" };

/// Longest wait for a sink to listen.
const START: Duration = Duration::from_secs(10);
/// Seconds that [`STEADY`] excludes.
const RAMP: usize = 3;

impl Sink {
    /// Starts a sink in `host`, listening at `ip`, for flows of `carrier`, in the syntax of [`super::peer`]'s command
    /// line.
    pub(crate) fn start(testbed: &Testbed, host: &str, ip: IpAddr, carrier: &[&str]) -> anyhow::Result<Self> {
        let mut command = testbed.exec(host, gateway::program())?;
        command.args(["bench", "peer", "flows"]).args(words(testbed, carrier)?);
        command.args(["--listen", &SocketAddr::new(ip, 0).to_string()]);
        let name = format!("the sink of {}", carrier.first().unwrap_or(&"flows"));
        let (server, line) = Background::until_it_says(&name, command, START)?;
        let at = serde_json::from_str(&line).with_context(|| format!("{name} did not say where it listens"))?;
        Ok(Self { server, at })
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.server.pid()
    }

    /// Checks that it is still running.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        self.server.check()
    }
}

/// A command at `from` that opens a flow of `carrier` with the sink at `to`, with the options `wanted`.
pub(crate) fn client(
    testbed: &Testbed,
    from: &str,
    carrier: &[&str],
    to: SocketAddr,
    wanted: &[&str],
) -> anyhow::Result<Command> {
    let mut command = testbed.exec(from, gateway::program())?;
    command.args(["bench", "peer", "flow"]).args(words(testbed, carrier)?);
    command.args(["--to", &to.to_string()]).args(wanted);
    Ok(command)
}

/// The arguments for a carrier, with this testbed's credentials where it needs some.
fn words(testbed: &Testbed, carrier: &[&str]) -> anyhow::Result<Vec<OsString>> {
    let mut words: Vec<OsString> = carrier.iter().map(OsString::from).collect();
    if carrier.first() == Some(&"quic") {
        let directory = testbed.directory().join("flows");
        if !directory.exists() {
            fs::create_dir(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
            credentials(&directory).context("cannot make credentials")?;
        }
        words.extend(["--credentials".into(), directory.into_os_string()]);
    }
    Ok(words)
}

/// Runs the flow of `command`, and watches the processor use of `others` meanwhile.
pub(crate) fn run(command: Command, others: &[(&'static str, u32)], limit: Duration) -> anyhow::Result<(Flow, Usage)> {
    let watch = Watch::start(others)?;
    let line = process::run("the flow", command, limit)?;
    let usage = watch.stop()?;
    Ok((serde_json::from_str(&line).context("the flow printed no result")?, usage))
}

/// The values for tables: the goodput first, then processor time per gigabyte of all participants.
pub(crate) fn readings(flow: &Flow, usage: &Usage) -> Vec<Reading> {
    let gigabytes = flow.received.bytes as f64 / 1e9;
    let mut readings = vec![(GOODPUT, flow.goodput())];
    readings.extend(steady(&flow.received.intervals).map(|steady| (STEADY, steady)));
    readings.push((PROCESSORS_BUSY, usage.busy));
    readings.push((cpu("client"), flow.client_cpu / gigabytes));
    readings.extend(usage.roles.iter().map(|(role, seconds)| (cpu(role), seconds / gigabytes)));
    if let Some((sent, again)) = flow.packets {
        readings.push((RETRANSMITTED, 100.0 * again as f64 / sent.max(1) as f64));
    }
    readings
}

/// Processor time of a role per gigabyte.
pub(crate) fn cpu(role: &str) -> Metric {
    let name = match role {
        "client" => "client cpu",
        "server" => "server cpu",
        "gateways" => "gateways cpu",
        "agent" => "agent cpu",
        _ => "links cpu",
    };
    Metric { name, unit: "s/GB" }
}

/// Intervals are seconds; the last one is seldom whole.
fn steady(intervals: &[u64]) -> Option<f64> {
    let whole = intervals.get(RAMP..intervals.len().checked_sub(1)?)?;
    (!whole.is_empty()).then(|| whole.iter().sum::<u64>() as f64 * 8e-6 / whole.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::super::peer::Received;
    use super::*;

    #[test]
    fn steady_excludes_start_and_end() {
        assert_eq!(steady(&[1_000_000, 2, 3, 125_000_000, 375_000_000, 5]), Some(2000.0));
        assert_eq!((steady(&[1, 2, 3, 4]), steady(&[]), steady(&[1])), (None, None, None));
    }

    #[test]
    fn readings_give_costs_per_gigabyte() {
        let received = Received { bytes: 500_000_000, seconds: 4.0, intervals: vec![] };
        let flow = Flow {
            connect: 0.1,
            client_cpu: 0.25,
            client_memory: 0,
            server_cpu: 0.3,
            received,
            packets: Some((1000, 5)),
        };
        let usage = Usage { seconds: 4.2, busy: 40.0, roles: vec![("gateways", 1.0)] };
        let expected = [
            (GOODPUT, 1000.0),
            (PROCESSORS_BUSY, 40.0),
            (cpu("client"), 0.5),
            (cpu("gateways"), 2.0),
            (RETRANSMITTED, 0.5),
        ];
        assert_eq!(readings(&flow, &usage), expected);
    }
}
