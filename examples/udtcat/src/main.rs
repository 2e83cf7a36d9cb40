//! `udtcat`: standard streams over bare UDT4, to and from any UDT4 peer, such as libudt (S17, U9).
//!
//! It is the smallest program on [`phoebus_net::udt`]: a port, one connection, a thread for each direction (`copy`).
//! Bare UDT has no reliable end of stream, so the receiver must be given the length; without it, the exit code says
//! that the length is unknown. The manual is `docs/guide/udtcat.md`.

mod copy;
mod options;

use clap::Parser;
use options::Options;
use phoebus_net::udt::Port;
use phoebus_net::{Stream, reason};
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long to try to tell the peer of the end, after everything is delivered.
const FAREWELL: Duration = Duration::from_secs(1);

/// How a run can fail. The message of each is one sentence.
#[derive(Debug, thiserror::Error)]
enum Failure {
    /// Nothing was moved.
    #[error("{0}")]
    Setup(String),
    /// The connection ended, and the expected length is unknown.
    #[error(
        "{received} bytes arrived before the peer shut down; UDT does not tell whether that was all (--length would)"
    )]
    Unknown { received: u64 },
    /// The number of received bytes is wrong.
    #[error("{received} bytes arrived, {expected} were expected: {why}")]
    Length { received: u64, expected: u64, why: String },
    /// The peer did not acknowledge everything.
    #[error("{unsent} bytes were not acknowledged: {why}")]
    Undelivered { unsent: u64, why: String },
    /// A standard stream failed.
    #[error("cannot {what}: {why}")]
    Local { what: &'static str, why: String },
}

impl Failure {
    fn code(&self) -> i32 {
        match self {
            Self::Setup(_) | Self::Local { .. } => 1,
            Self::Unknown { .. } => 3,
            Self::Length { .. } | Self::Undelivered { .. } => 4,
        }
    }
}

fn main() {
    let code = match run(&Options::parse()) {
        Ok(()) => 0,
        Err(failure) => {
            eprintln!("udtcat: {failure}");
            failure.code()
        }
    };
    // Exits without returning: a thread may still be blocked on standard input.
    std::process::exit(code);
}

fn run(options: &Options) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.map_err(|error| Failure::Setup(format!("cannot start: {}", reason(&error))))?;
    runtime.block_on(async {
        let (port, stream) = open(options, &resolve(&options.address)?).await?;
        if let Some(note) = stream.note() {
            eprintln!("udtcat: {note}");
        }
        let (stream, start) = (Arc::new(stream), Instant::now());
        let result = copy::run(&stream, options).await;
        if options.report {
            report(&stream, start.elapsed());
        }
        // Delivered or not, there is nothing more to send; the peer only has to learn that the stream has ended.
        stream.disarm();
        drop(stream);
        let _ = tokio::time::timeout(FAREWELL, port.settled()).await;
        result
    })
}

fn resolve(address: &str) -> Result<Vec<SocketAddr>, Failure> {
    let failed = |why: String| Failure::Setup(format!("cannot use \"{address}\": {why}"));
    Ok(address.to_socket_addrs().map_err(|error| failed(reason(&error)))?.collect())
}

/// Opens the one connection; returns it and its port.
async fn open(options: &Options, addresses: &[SocketAddr]) -> Result<(Port, Stream), Failure> {
    if options.listen {
        return accept(options, addresses).await;
    }
    let mut failed = Failure::Setup(format!("\"{}\" has no address that can be used", options.address));
    // Tries one address after the other: to wait for fewer, the user names one.
    for address in addresses {
        if options.rendezvous.is_some_and(|local| local.is_ipv4() != address.is_ipv4()) {
            continue;
        }
        match connect(options, *address).await {
            Ok(opened) => return Ok(opened),
            Err(failure) => failed = failure,
        }
    }
    Err(failed)
}

async fn connect(options: &Options, address: SocketAddr) -> Result<(Port, Stream), Failure> {
    let local = options.rendezvous.unwrap_or_else(|| match address {
        SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        SocketAddr::V6(_) => ([0u16; 8], 0).into(),
    });
    let (port, profile, limit) = (bind(local)?, options.profile(), options.timeout.0);
    let stream = match options.rendezvous {
        Some(_) => port.meet(address, &profile, limit).await,
        None => port.connect(address, &profile, limit).await,
    };
    Ok((port, stream.map_err(|error| Failure::Setup(error.to_string()))?))
}

async fn accept(options: &Options, addresses: &[SocketAddr]) -> Result<(Port, Stream), Failure> {
    let address = addresses.first().ok_or_else(|| Failure::Setup(format!("\"{}\" has no address", options.address)))?;
    let port = bind(*address)?;
    let listener = port.listen(&options.profile()).map_err(|error| Failure::Setup(error.to_string()))?;
    eprintln!("udtcat: listening on {}", port.local_addr());
    let accepted = listener.accept().await;
    let (accepted, _) = accepted.map_err(|error| Failure::Setup(format!("cannot accept: {}", reason(&error))))?;
    Ok((port, accepted.into_stream()))
}

fn bind(at: SocketAddr) -> Result<Port, Failure> {
    Port::bind(at).map_err(|error| Failure::Setup(format!("cannot use the UDP address {at}: {}", reason(&error))))
}

/// Prints one line about the transfer.
fn report(stream: &Stream, took: Duration) {
    let Ok(stats) = stream.stats() else { return };
    let seconds = took.as_secs_f64().max(1e-9);
    let bytes = stats.bytes_received + stats.bytes_acked;
    eprintln!(
        "udtcat: received {} and sent {} bytes in {seconds:.3} s, {:.1} Mbit/s; {} packets of {} sent again, {} bytes each; \
         round trip {:.3} ms, control {}",
        stats.bytes_received,
        stats.bytes_acked,
        bytes as f64 * 8e-6 / seconds,
        stats.retransmits,
        stats.segments_sent,
        stats.segment_size,
        stats.rtt_us as f64 / 1e3,
        stats.congestion_control,
    );
}
