//! The programs that experiments run in the hosts of a testbed, for measurements that no common program makes: the
//! time of one short transfer or one echo, and many concurrent sessions. They use sockets as any program does and
//! know nothing of Phoebus, so that the preload shim works on them as on any other. Only [`load`] performs the
//! handshake itself, and only [`flow`] uses the bare transports.
//!
//! Each prints one line of JSON. `phoebus bench peer …` starts them; it is hidden from users.

mod carrier;
mod flow;
mod load;
mod server;
mod transfer;

pub(crate) use carrier::credentials;
pub(crate) use flow::Flow;
#[cfg(test)]
pub(crate) use flow::Received;
pub(crate) use load::{IdleConnections, ParallelTransfer, RelayChoice, SequentialConnections};
pub(crate) use transfer::{Echo, Transfer};

use carrier::Carrier;
use flow::FlowOptions;
use serde::Serialize;
use std::net::SocketAddr;
use std::time::Duration;

/// The names of the programs that load a relay.
pub(crate) const PARALLEL_TRANSFER: &str = "parallel-transfer";
pub(crate) const SEQUENTIAL_CONNECTIONS: &str = "sequential-connections";
pub(crate) const IDLE_CONNECTIONS: &str = "idle-connections";

/// What a peer program does.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum PeerCommand {
    /// Reads each connection to its end, and answers with the number of bytes.
    Sink {
        /// Where to listen.
        listen: SocketAddr,
    },
    /// Sends back what it reads.
    Echo {
        /// Where to listen.
        listen: SocketAddr,
    },
    /// Sends bytes to a sink once, and waits for its answer.
    Send {
        /// The sink.
        to: SocketAddr,
        /// How many bytes.
        bytes: u64,
        /// Congestion control to ask for; the system's if absent.
        #[arg(long)]
        cc: Option<String>,
    },
    /// Connects to an echo, and has bytes echoed, again and again.
    Ping {
        /// The echo.
        to: SocketAddr,
        /// How many times.
        count: u32,
    },
    /// Receives flows, and sends flows on request. Prints its address first.
    Flows {
        #[command(flatten)]
        carrier: Carrier,
        /// Where to listen.
        #[arg(long)]
        listen: SocketAddr,
    },
    /// One flow, timed by its receiver.
    Flow {
        #[command(flatten)]
        carrier: Carrier,
        /// Where flows are received.
        #[arg(long)]
        to: SocketAddr,
        #[command(flatten)]
        wanted: FlowOptions,
    },
    /// Sends to a sink over many connections at once.
    #[command(name = PARALLEL_TRANSFER)]
    ParallelTransfer {
        #[command(flatten)]
        via: RelayChoice,
        /// The sink.
        to: SocketAddr,
        /// How many connections.
        sessions: usize,
        /// How many bytes over each.
        bytes: u64,
    },
    /// Opens connections to an echo as fast as it can, one byte each.
    #[command(name = SEQUENTIAL_CONNECTIONS)]
    SequentialConnections {
        #[command(flatten)]
        via: RelayChoice,
        /// The echo.
        to: SocketAddr,
        /// How many at once.
        at_once: usize,
        /// For how many seconds.
        seconds: u64,
    },
    /// Opens connections to an echo and holds them, idle, until its standard input ends.
    #[command(name = IDLE_CONNECTIONS)]
    IdleConnections {
        #[command(flatten)]
        via: RelayChoice,
        /// The echo.
        to: SocketAddr,
        /// How many.
        sessions: usize,
    },
}

/// Runs a peer program.
pub(crate) fn run(command: PeerCommand) -> anyhow::Result<()> {
    match command {
        PeerCommand::Sink { listen } => server::sink(listen),
        PeerCommand::Echo { listen } => server::echo(listen),
        PeerCommand::Send { to, bytes, cc } => print(&transfer::send(to, bytes, cc.as_deref())?),
        PeerCommand::Ping { to, count } => print(&transfer::ping(to, count)?),
        PeerCommand::Flows { carrier, listen } => flow::serve(&carrier, listen, print),
        PeerCommand::Flow { carrier, to, wanted } => print(&flow::run(&carrier, to, &wanted)?),
        PeerCommand::ParallelTransfer { via, to, sessions, bytes } => print(&load::bulk(&via, to, sessions, bytes)?),
        PeerCommand::SequentialConnections { via, to, at_once, seconds } => {
            print(&load::churn(&via, to, at_once, Duration::from_secs(seconds))?)
        }
        PeerCommand::IdleConnections { via, to, sessions } => load::hold(&via, to, sessions, print),
    }
}

fn print(result: &impl Serialize) -> anyhow::Result<()> {
    crate::standard::print(&format!("{}\n", serde_json::to_string(result)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(subcommand)]
        command: PeerCommand,
    }

    #[test]
    fn loads_are_started_by_their_names() {
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let via = RelayChoice::gateways(&[at(5006).into(), at(5007).into()]).to_arguments();
        for (name, rest) in [
            (PARALLEL_TRANSFER, &["127.0.0.1:7", "100", "1000"][..]),
            (SEQUENTIAL_CONNECTIONS, &["127.0.0.1:7", "8", "2"]),
            (IDLE_CONNECTIONS, &["127.0.0.1:7", "100"]),
        ] {
            let words = ["peer", name].into_iter().chain(via.iter().map(String::as_str)).chain(rest.iter().copied());
            let Line { command } = Line::try_parse_from(words).unwrap();
            let is_it = match command {
                PeerCommand::ParallelTransfer { .. } => name == PARALLEL_TRANSFER,
                PeerCommand::SequentialConnections { .. } => name == SEQUENTIAL_CONNECTIONS,
                PeerCommand::IdleConnections { .. } => name == IDLE_CONNECTIONS,
                _ => false,
            };
            assert!(is_it, "{name}");
        }
    }
}
