//! A flow: bytes from one end to the other over any [carrier](super::carrier), counted by whoever receives (S31, S32, U17, U18).
//!
//! The client says what it wants, as JSON after its length. Then whoever sends writes blocks, each a length and that many
//! bytes; a block without bytes ends them, since not every carrier has an end of stream that could be trusted. The server's
//! last word is what the flow cost it, and what it received. So all carriers are compared by one program and one clock, that
//! of the receiver, from the request to the last byte.

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

/// What a flow is asked to be.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Wanted {
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

/// What came of a flow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Flow {
    /// Until the connection stood, in seconds.
    pub(crate) connect: f64,
    /// Processor time of the program that asked for the flow, from before it connected, in seconds.
    pub(crate) client_cpu: f64,
    /// The most memory that the program had that asked for the flow, in bytes.
    pub(crate) client_memory: u64,
    /// Processor time of the other program while the flow lasted, in seconds; that of all its flows at once.
    pub(crate) server_cpu: f64,
    /// What arrived.
    pub(crate) taken: Taken,
    /// Packets sent and sent again, where the sender's transport told.
    pub(crate) packets: Option<(u64, u64)>,
}

/// What a receiver got.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Taken {
    /// All of it, in bytes.
    pub(crate) bytes: u64,
    /// From the request to the last byte, in seconds.
    pub(crate) seconds: f64,
    /// Bytes in each interval, the first one first.
    pub(crate) intervals: Vec<u64>,
}

impl Flow {
    /// Bits that arrived per second, in millions.
    pub(crate) fn goodput(&self) -> f64 {
        self.taken.bytes as f64 * 8e-6 / self.taken.seconds.max(1e-9)
    }
}

/// The first message of a flow.
#[derive(Debug, Serialize, Deserialize)]
struct Request {
    time: Option<Duration>,
    bytes: Option<u64>,
    reverse: bool,
    cc: Option<String>,
    interval: Duration,
}

/// The server's last one.
#[derive(Debug, Serialize, Deserialize)]
struct LastWord {
    cpu: f64,
    taken: Option<Taken>,
    packets: Option<(u64, u64)>,
}

/// Written at once.
const BLOCK: usize = 256 << 10;
/// No message is longer: an hour of seconds is counted in less.
const MESSAGE_MAX: usize = 1 << 20;

/// Makes one flow with the sink at `to`.
pub(super) fn run(carrier: &Carrier, to: SocketAddr, wanted: &Wanted) -> anyhow::Result<Flow> {
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
    let (taken, packets) = if wanted.reverse {
        (Some(take(&mut connection, request.interval)?), None)
    } else {
        send(&mut connection, &request)?;
        (None, None)
    };
    let last: LastWord = hear(&mut connection).context("the sink's last word")?;
    let packets = packets.or(last.packets).or_else(|| packets_of(&connection));
    let (client_cpu, client_memory) = (cpu() - before, memory());
    home.leave(connection);
    let Some(taken) = taken.or(last.taken) else { bail!("the sink did not say what it got") };
    Ok(Flow { connect, client_cpu, client_memory, server_cpu: last.cpu, taken, packets })
}

/// Serves flows at `at`, and says where that is. Ends only when it is killed.
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
    let (taken, packets) = if request.reverse {
        if let Some(cc) = &request.cc {
            connection.control(cc.parse().map_err(anyhow::Error::msg)?)?;
        }
        send(connection, &request)?;
        (None, packets_of(connection))
    } else {
        (Some(take(connection, request.interval)?), None)
    };
    say(connection, &LastWord { cpu: cpu() - before, taken, packets })?;
    connection.part();
    Ok(())
}

fn send(connection: &mut Connection, request: &Request) -> anyhow::Result<()> {
    let mut block = vec![0x5a; size_of::<u32>() + BLOCK];
    let started = Instant::now();
    let all = request.bytes.unwrap_or(u64::MAX);
    let mut left = all;
    // A block at least: the time may be over when the machine comes to it.
    while left > 0 && (left == all || request.time.is_none_or(|time| started.elapsed() < time)) {
        let length = usize::try_from(left).unwrap_or(usize::MAX).min(BLOCK);
        block[..4].copy_from_slice(&(length as u32).to_be_bytes());
        connection.write_all(&block[..4 + length]).context("cannot send")?;
        left -= length as u64;
    }
    connection.write_all(&[0; 4]).context("cannot send")
}

/// Takes blocks to their end. What follows that is left unread.
fn take(connection: &mut Connection, interval: Duration) -> anyhow::Result<Taken> {
    let mut buffer = vec![0; BLOCK];
    let mut taken = Taken::default();
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
            taken.intervals.resize(taken.intervals.len().max(place + 1), 0);
            taken.intervals[place] += n as u64;
            taken.bytes += n as u64;
            taken.seconds = now.as_secs_f64();
        }
    }
    Ok(taken)
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

/// Processor time of this process up to now, in seconds.
fn cpu() -> f64 {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    used.tv_sec as f64 + used.tv_nsec as f64 * 1e-9
}

/// The most memory that this process has had, in bytes (proc_pid_status(5)); 0 where the kernel does not say.
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
    struct Both {
        #[command(flatten)]
        carrier: Carrier,
        #[command(flatten)]
        wanted: Wanted,
    }

    fn flow(words: &str, directory: &Path) -> anyhow::Result<Flow> {
        let words = words.replace("DIR", &directory.display().to_string());
        let both = Both::parse_from(std::iter::once("flow").chain(words.split(' ')));
        let (carrier, (told, tell)) = (both.carrier.clone(), mpsc::channel());
        // It serves until the test's process ends.
        thread::spawn(move || serve(&carrier, "127.0.0.1:0".parse()?, |at| Ok(told.send(*at)?)));
        run(&both.carrier, tell.recv()?, &both.wanted)
    }

    #[test]
    fn every_carrier_delivers_what_was_sent() {
        let directory = tempfile::tempdir().unwrap();
        credentials(directory.path()).unwrap();
        for carrier in ["tcp", "tcp --rate 10gbit", "udt", "udt --cc native", "quic --credentials DIR"] {
            for direction in ["", " --reverse"] {
                let words = format!("{carrier} --bytes 3000001 --interval 50ms{direction}");
                let flow = flow(&words, directory.path()).unwrap_or_else(|error| panic!("{words}: {error:#}"));
                assert_eq!(flow.taken.bytes, 3_000_001, "{words}");
                assert_eq!(flow.taken.intervals.iter().sum::<u64>(), 3_000_001, "{words}");
                assert!(flow.goodput() > 0.0 && flow.connect > 0.0, "{words}: {flow:?}");
                assert_eq!(flow.packets.is_some(), carrier != "tcp", "{words}: {flow:?}");
            }
        }
    }

    #[test]
    fn a_flow_can_last_a_time() {
        let flow = flow("tcp --cc reno --time 50ms", Path::new("/")).unwrap();
        assert!(flow.taken.seconds > 0.0 && flow.taken.bytes > 0, "{flow:?}");
    }

    #[test]
    fn what_a_carrier_cannot_do_is_said() {
        let error = |words| format!("{:#}", flow(words, Path::new("/")).unwrap_err());
        assert_eq!(error("tcp --cc native --bytes 1"), "TCP has no congestion control native");
        // The sink ends before it says where it listens.
        assert!(error("quic --bytes 1").contains("closed channel"));
    }
}
