//! The command line.

use clap::Parser;
use phoebus_net::{CongestionControl, Profile};
use phoebus_proto::units::{BitRate, ByteSize, Span};
use std::net::SocketAddr;

/// Connects standard input and output to a UDT4 peer, libudt's included.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Exit codes: 0 everything that was to be sent is acknowledged and everything expected has arrived; 1 no \
                  connection, or a standard stream failed; 2 bad usage; 3 the peer shut down, and without --length nobody \
                  can tell whether that was all; 4 the connection ended too early, or too much arrived."
)]
pub(crate) struct Options {
    /// Where to connect to, or with --listen where to listen: HOST:PORT.
    pub(crate) address: String,
    /// Waits for one connection instead of making one.
    #[arg(long, short)]
    pub(crate) listen: bool,
    /// Meets a peer that does the same at the same time; LOCAL is the address that the peer names, as in 0.0.0.0:9000.
    #[arg(long, value_name = "LOCAL", conflicts_with = "listen")]
    pub(crate) rendezvous: Option<SocketAddr>,
    /// Bytes that the peer will send: less or more than that is an error.
    #[arg(long, short = 'n', value_name = "BYTES")]
    pub(crate) length: Option<ByteSize>,
    /// Only sends standard input, and shuts down when all of it is acknowledged.
    #[arg(long, short, conflicts_with_all = ["length", "receive"])]
    pub(crate) send: bool,
    /// Only receives.
    #[arg(long, short)]
    pub(crate) receive: bool,
    /// Largest IP packet, in bytes: 1500, or less if the path carries less.
    #[arg(long)]
    pub(crate) mss: Option<u32>,
    /// Most bits per second that are sent, headers included, such as 500mbit.
    #[arg(long)]
    pub(crate) rate: Option<BitRate>,
    /// Rate control of what is sent: model, native (UDT's own) or fixed (at --rate, whatever happens).
    #[arg(long, default_value = "model", value_name = "NAME")]
    pub(crate) control: CongestionControl,
    /// How long to try to connect.
    #[arg(long, default_value = "3s")]
    pub(crate) timeout: Span,
    /// Prints a line about the transfer at its end.
    #[arg(long)]
    pub(crate) report: bool,
}

impl Options {
    /// The settings of the connection.
    pub(crate) fn profile(&self) -> Profile {
        Profile { congestion_control: self.control, rate: self.rate, mss: self.mss, ..Profile::default() }
    }
}
