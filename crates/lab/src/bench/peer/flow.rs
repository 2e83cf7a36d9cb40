//! A flow: bytes from one end to the other over any [carrier](super::carrier), counted by the receiver (S31, S32,
//! U17, U18).
//!
//! The client sends its request, as JSON after its length. Then the sender writes blocks, each a length and that many
//! bytes; an empty block ends them, because not every carrier has a reliable end of stream. Finally the server
//! reports its costs and what it received. So one program and one clock, the receiver's, compare all carriers, from
//! the request to the last byte.

use super::carrier::{Carrier, Connection};
use anyhow::{Context, bail};
use phoebus_net::CongestionControl;
use phoebus_proto::units::Span;
use rustix::time::{ClockId, clock_gettime};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Options of a flow.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct FlowOptions {
    /// For how long to send.
    #[arg(long, conflicts_with = "bytes", required_unless_present = "bytes")]
    time: Option<Span>,
    /// How much to send.
    #[arg(long)]
    bytes: Option<u64>,
    /// From the sink to here.
    #[arg(long)]
    reverse: bool,
    /// Congestion control of a sink that sends.
    #[arg(long, requires = "reverse")]
    sink_cc: Option<CongestionControl>,
    /// In how long pieces of time the receiver counts.
    #[arg(long, default_value = "1s")]
    interval: Span,
}

/// The result of a flow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Flow {
    /// Time until the connection was open, in seconds.
    pub(crate) connect: f64,
    /// Processor time of the client program, from before it connected, in seconds.
    pub(crate) client_cpu: f64,
    /// Peak memory of the client program, in bytes.
    pub(crate) client_memory: u64,
    /// Processor time of the server program during the flow, in seconds; includes all its concurrent flows.
    pub(crate) server_cpu: f64,
    /// What the receiver counted.
    pub(crate) received: Received,
    /// Packets sent and retransmitted, if the sender's transport provides them.
    pub(crate) packets: Option<(u64, u64)>,
}

/// The receiver's counts.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Received {
    /// Total bytes.
    pub(crate) bytes: u64,
    /// From the request to the last byte, in seconds.
    pub(crate) seconds: f64,
    /// Bytes in each interval, the first one first.
    pub(crate) intervals: Vec<u64>,
}

impl Flow {
    /// Received megabits per second.
    pub(crate) fn goodput(&self) -> f64 {
        self.received.bytes as f64 * 8e-6 / self.received.seconds.max(1e-9)
    }
}

/// The first message of a flow, from the client.
#[derive(Debug, Serialize, Deserialize)]
struct Request {
    time: Option<Duration>,
    bytes: Option<u64>,
    reverse: bool,
    cc: Option<String>,
    interval: Duration,
}

/// The last message of a flow, from the server.
#[derive(Debug, Serialize, Deserialize)]
struct FinalReport {
    cpu: f64,
    received: Option<Received>,
    packets: Option<(u64, u64)>,
}

/// Bytes per write.
const BLOCK: usize = 256 << 10;
/// Longest message: an hour of seconds takes less.
const MESSAGE_MAX: usize = 1 << 20;

/// Runs one flow with the sink at `to`.
pub(super) fn run(carrier: &Carrier, to: SocketAddr, wanted: &FlowOptions) -> anyhow::Result<Flow> {
    let before = cpu();
    let started = Instant::now();
    let (mut connection, home) = carrier.connect(to)?;
    let connect = started.elapsed().as_secs_f64();
    let request = Request {
        time: wanted.time.map(|time| time.0),
        bytes: wanted.bytes,
        reverse: wanted.reverse,
        cc: wanted.sink_cc.map(|cc| cc.to_string()),
        interval: wanted.interval.0,
    };
    say(&mut connection, &request)?;
    let (received, packets) = if wanted.reverse {
        (Some(take(&mut connection, request.interval)?), None)
    } else {
        send(&mut connection, &request)?;
        (None, None)
    };
    let last: FinalReport = hear(&mut connection).context("the sink's last word")?;
    let packets = packets.or(last.packets).or_else(|| packets_of(&connection));
    let (client_cpu, client_memory) = (cpu() - before, memory());
    home.leave(connection);
    let Some(received) = received.or(last.received) else { bail!("the sink did not say what it got") };
    Ok(Flow { connect, client_cpu, client_memory, server_cpu: last.cpu, received, packets })
}

/// Serves flows at `at`, and prints its address. Runs until it is killed.
pub(super) fn serve(
    carrier: &Carrier,
    at: SocketAddr,
    ready: impl FnOnce(&SocketAddr) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let door = carrier.listen(at)?;
    ready(&door.address()?)?;
    door.serve(answer)
}

fn answer(connection: &mut Connection) -> anyhow::Result<()> {
    let request: Request = hear(connection).context("the request")?;
    let before = cpu();
    let (received, packets) = if request.reverse {
        if let Some(cc) = &request.cc {
            connection.control(cc.parse().map_err(anyhow::Error::msg)?)?;
        }
        send(connection, &request)?;
        (None, packets_of(connection))
    } else {
        (Some(take(connection, request.interval)?), None)
    };
    say(connection, &FinalReport { cpu: cpu() - before, received, packets })?;
    connection.part();
    Ok(())
}

fn send(connection: &mut Connection, request: &Request) -> anyhow::Result<()> {
    let mut block = vec![0x5a; size_of::<u32>() + BLOCK];
    let started = Instant::now();
    let all = request.bytes.unwrap_or(u64::MAX);
    let mut left = all;
    // At least one block: the time may already be over on a busy machine.
    while left > 0 && (left == all || request.time.is_none_or(|time| started.elapsed() < time)) {
        let length = usize::try_from(left).unwrap_or(usize::MAX).min(BLOCK);
        block[..4].copy_from_slice(&(length as u32).to_be_bytes());
        connection.write_all(&block[..4 + length]).context("cannot send")?;
        left -= length as u64;
    }
    connection.write_all(&[0; 4]).context("cannot send")
}

/// Receives blocks to their end. Leaves what follows unread.
fn take(connection: &mut Connection, interval: Duration) -> anyhow::Result<Received> {
    let mut buffer = vec![0; BLOCK];
    let mut received = Received::default();
    let started = Instant::now();
    loop {
        let mut header = [0; 4];
        connection.read_exact(&mut header).context("cannot receive")?;
        let mut left = u32::from_be_bytes(header) as usize;
        if left == 0 {
            break;
        }
        while left > 0 {
            let most = left.min(buffer.len());
            let n = connection.read(&mut buffer[..most]).context("cannot receive")?;
            if n == 0 {
                bail!("the flow was cut {left} bytes before a block's end");
            }
            left -= n;
            let now = started.elapsed();
            let place = (now.as_nanos() / interval.as_nanos().max(1)) as usize;
            received.intervals.resize(received.intervals.len().max(place + 1), 0);
            received.intervals[place] += n as u64;
            received.bytes += n as u64;
            received.seconds = now.as_secs_f64();
        }
    }
    Ok(received)
}

fn say(connection: &mut Connection, message: &impl Serialize) -> anyhow::Result<()> {
    let text = serde_json::to_vec(message)?;
    let mut bytes = (text.len() as u32).to_be_bytes().to_vec();
    bytes.extend(text);
    connection.write_all(&bytes).context("cannot send")
}

fn hear<T: DeserializeOwned>(connection: &mut Connection) -> anyhow::Result<T> {
    let mut length = [0; 4];
    connection.read_exact(&mut length).context("did not come")?;
    let length = u32::from_be_bytes(length) as usize;
    if length > MESSAGE_MAX {
        bail!("has {length} bytes, expected at most {MESSAGE_MAX}: the other end is no flow");
    }
    let mut text = vec![0; length];
    connection.read_exact(&mut text).context("was cut")?;
    serde_json::from_slice(&text).context("is not understood")
}

fn packets_of(connection: &Connection) -> Option<(u64, u64)> {
    connection.stats().map(|stats| (stats.segments_sent, stats.retransmits))
}

/// Processor time of this process so far, in seconds.
fn cpu() -> f64 {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    used.tv_sec as f64 + used.tv_nsec as f64 * 1e-9
}

/// Peak memory of this process, in bytes (proc_pid_status(5)); 0 if the kernel does not provide it.
fn memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak =
        status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    peak.unwrap_or_default() * 1024
}

#[cfg(test)]
mod tests {
    use super::super::carrier::credentials;
    use super::*;
    use clap::Parser;
    use std::path::Path;
    use std::sync::mpsc;
    use std::thread;

    #[derive(Debug, Parser)]
    struct FlowCommand {
        #[command(flatten)]
        carrier: Carrier,
        #[command(flatten)]
        wanted: FlowOptions,
    }

    fn flow(words: &str, directory: &Path) -> anyhow::Result<Flow> {
        let words = words.replace("DIR", &directory.display().to_string());
        let both = FlowCommand::parse_from(std::iter::once("flow").chain(words.split(' ')));
        let (carrier, (told, tell)) = (both.carrier.clone(), mpsc::channel());
        // It serves until the test's process ends.
        thread::spawn(move || serve(&carrier, "127.0.0.1:0".parse()?, |at| Ok(told.send(*at)?)));
        run(&both.carrier, tell.recv()?, &both.wanted)
    }

    #[test]
    fn every_carrier_delivers_the_bytes() {
        let directory = tempfile::tempdir().unwrap();
        credentials(directory.path()).unwrap();
        for carrier in ["tcp", "tcp --rate 10gbit", "udt", "udt --cc native", "quic --credentials DIR"] {
            for direction in ["", " --reverse"] {
                let words = format!("{carrier} --bytes 3000001 --interval 50ms{direction}");
                let flow = flow(&words, directory.path()).unwrap_or_else(|error| panic!("{words}: {error:#}"));
                assert_eq!(flow.received.bytes, 3_000_001, "{words}");
                assert_eq!(flow.received.intervals.iter().sum::<u64>(), 3_000_001, "{words}");
                assert!(flow.goodput() > 0.0 && flow.connect > 0.0, "{words}: {flow:?}");
                assert_eq!(flow.packets.is_some(), carrier != "tcp", "{words}: {flow:?}");
            }
        }
    }

    #[test]
    fn flow_can_last_a_given_time() {
        let flow = flow("tcp --cc reno --time 50ms", Path::new("/")).unwrap();
        assert!(flow.received.seconds > 0.0 && flow.received.bytes > 0, "{flow:?}");
    }

    #[test]
    fn flow_reports_options_that_a_carrier_lacks() {
        let error = |words| format!("{:#}", flow(words, Path::new("/")).unwrap_err());
        assert_eq!(error("tcp --cc native --bytes 1"), "TCP has no congestion control native");
        // The sink exits before it prints its address.
        assert!(error("quic --bytes 1").contains("closed channel"));
    }
}
