//! Many connections at the same time through a relay: plain ones, or sessions with their own handshake.
//!
//! A plain TCP relay leads to the one destination of its configuration; each session tells a gateway its own. The
//! handshake happens here rather than in the preload shim, so that the gateway is measured and not the shim.

use super::transfer::{echo, push};
use anyhow::{Context, anyhow, bail};
use phoebus_proto::endpoint::{Endpoint, EndpointRef};
use phoebus_proto::session::initiator::{Initiator, State};
use phoebus_proto::session::message::{Hello, Open};
use phoebus_proto::session::{List, SessionId};
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

/// What stands between the load and its destination.
#[derive(Debug, Clone, Default, clap::Args)]
#[group(multiple = false)]
pub(crate) struct RelayChoice {
    /// Gateways: the first is asked for a session to the destination by way of the others.
    #[arg(long, value_delimiter = ',')]
    gateway: Vec<Endpoint>,
    /// A relay that leads to the destination by itself.
    #[arg(long)]
    relay: Option<SocketAddr>,
}

/// The result of sending over many connections at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct ParallelTransfer {
    /// From the time when all were connected to the last confirmation, in seconds.
    pub(crate) seconds: f64,
    /// Total bytes sent.
    pub(crate) bytes: u64,
}

/// The result of opening connections one after another.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct SequentialConnections {
    /// Duration, in seconds.
    pub(crate) seconds: f64,
    /// Connections that were opened and echoed their byte.
    pub(crate) opened: u64,
}

/// The number of open, idle connections.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct IdleConnections {
    /// How many.
    pub(crate) sessions: usize,
}

impl RelayChoice {
    /// Through gateways, the nearest first.
    pub(crate) fn gateways(path: &[Endpoint]) -> Self {
        Self { gateway: path.to_vec(), relay: None }
    }

    /// Through a plain relay.
    pub(crate) fn relay(at: SocketAddr) -> Self {
        Self { gateway: Vec::new(), relay: Some(at) }
    }

    /// The command-line arguments for this route.
    pub(crate) fn to_arguments(&self) -> Vec<String> {
        let gateways = self.gateway.iter().map(|at| ("--gateway", at.to_string()));
        let pairs = gateways.chain(self.relay.iter().map(|at| ("--relay", at.to_string())));
        pairs.flat_map(|(name, at)| [name.to_owned(), at]).collect()
    }

    /// Opens a connection to `to`.
    fn connect(&self, to: SocketAddr) -> anyhow::Result<TcpStream> {
        let first = self.gateway.first().cloned().unwrap_or_else(|| self.relay.unwrap_or(to).into());
        let mut stream = TcpStream::connect((first.host.to_string(), first.port))
            .with_context(|| format!("cannot connect to {first}"))?;
        stream.set_nodelay(true)?;
        if let [first, rest @ ..] = &self.gateway[..] {
            open(&mut stream, to, rest).with_context(|| format!("no session by way of {first}"))?;
        }
        Ok(stream)
    }
}

/// Requests a session to `to` through `path` from the gateway at the other end of `stream`.
fn open(stream: &mut TcpStream, to: SocketAddr, path: &[Endpoint]) -> anyhow::Result<()> {
    let mut session = SessionId([0; 16]);
    getrandom::fill(&mut session.0).map_err(|error| anyhow!("no random numbers: {error}"))?;
    let path: Vec<EndpointRef> = path.iter().map(Endpoint::as_ref).collect();
    let request = Open { path: List::new(&path), ..Open::new(session, to.into()) };
    let mut handshake = Initiator::connect(Vec::new(), Vec::new(), &Hello::of(""), None, &request)?;
    stream.write_all(handshake.outgoing())?;
    while handshake.state() == State::Opening {
        match stream.read(handshake.space()?)? {
            0 => bail!("the gateway closed the connection"),
            n => handshake.received(n)?,
        }
    }
    match handshake.refused() {
        None => Ok(()),
        Some(refused) => bail!("refused: {}", refused.reason),
    }
}

/// Sends `bytes` bytes over each of `sessions` connections.
pub(super) fn bulk(via: &RelayChoice, to: SocketAddr, sessions: usize, bytes: u64) -> anyhow::Result<ParallelTransfer> {
    let streams: Vec<_> = (0..sessions).map(|_| via.connect(to)).collect::<Result<_, _>>()?;
    let start = Barrier::new(sessions);
    let work = |mut stream: TcpStream| {
        start.wait();
        // A thread for each connection: with more threads than processors, the thread that starts them may run last.
        let started = Instant::now();
        push(&mut stream, bytes).map(|()| started)
    };
    let started = thread::scope(|scope| {
        let threads: Vec<_> = streams.into_iter().map(|stream| scope.spawn(|| work(stream))).collect();
        threads.into_iter().map(join).collect::<anyhow::Result<Vec<_>>>()
    })?;
    let seconds = started.into_iter().min().map_or(0.0, |first| first.elapsed().as_secs_f64());
    Ok(ParallelTransfer { seconds, bytes: bytes * sessions as u64 })
}

/// For `time`, opens connections, `at_once` of them at any time, sends one byte over each for the echo, and closes
/// it.
pub(super) fn churn(
    via: &RelayChoice,
    to: SocketAddr,
    at_once: usize,
    time: Duration,
) -> anyhow::Result<SequentialConnections> {
    let started = Instant::now();
    let work = || {
        let mut opened = 0;
        while started.elapsed() < time {
            echo(&mut via.connect(to)?, 1)?;
            opened += 1;
        }
        Ok(opened)
    };
    let opened = thread::scope(|scope| {
        let threads: Vec<_> = (0..at_once).map(|_| scope.spawn(work)).collect();
        threads.into_iter().map(join).sum::<anyhow::Result<u64>>()
    })?;
    Ok(SequentialConnections { seconds: started.elapsed().as_secs_f64(), opened })
}

/// Opens `sessions` connections, sends one byte over each for the echo, reports to `ready`, and holds them until
/// standard input ends.
pub(super) fn hold(
    via: &RelayChoice,
    to: SocketAddr,
    sessions: usize,
    ready: impl FnOnce(&IdleConnections) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    phoebus_net::limits::raise_descriptors();
    let mut held = Vec::with_capacity(sessions);
    for number in 0..sessions {
        let mut stream = via.connect(to).with_context(|| format!("session {number} of {sessions}"))?;
        echo(&mut stream, 1).with_context(|| format!("session {number} of {sessions}"))?;
        held.push(stream);
    }
    ready(&IdleConnections { sessions: held.len() })?;
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    Ok(())
}

fn join<T>(thread: thread::ScopedJoinHandle<'_, anyhow::Result<T>>) -> anyhow::Result<T> {
    // A panic is a fault of this program: propagate it.
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
