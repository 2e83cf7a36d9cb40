//! UDT4, the UDP-based data transfer protocol, as libudt 4.11 speaks it (S17, S20, U8): a state machine without sockets or
//! clocks. `docs/protocol/udt4.md` is its specification.
//!
//! - An [`Endpoint`] stands for one UDP socket. It tells which [`Connection`] a datagram belongs to, and answers strangers
//!   without remembering them.
//! - A [`Connection`] takes datagrams ([`handle`](Connection::handle)), gives datagrams
//!   ([`poll_transmit`](Connection::poll_transmit)), says when it wants to be asked again
//!   ([`poll_timeout`](Connection::poll_timeout)), and in between is written to and read from.
//! - [`control`] decides how fast it sends, by a rate and a window from the bandwidth that it estimates (U8).
//! - [`packet`] is what goes over the wire, [`Handshake`] and [`LossList`] its larger bodies.
//!
//! Times are durations since an origin that the caller chooses, the same for an endpoint and its connections. One packet
//! costs the same however many are under way, and none is allocated: payloads live in pools that grow to what is in use.
//!
//! UDT authenticates nobody and protects nothing: whoever sees a connection's packets can end it, or put bytes into it. What
//! comes out of it was sent by the peer only if something above says so.

mod config;
mod connection;
pub mod control;
mod cookie;
mod endpoint;
mod handshake;
mod loss_list;
mod message;
pub mod packet;
mod pool;
mod receive;
mod rtt;
mod send;
mod seq;
mod words;

pub use config::{Config, ConfigError};
pub use connection::{CloseReason, Connection, ReadError, Stats, Transmit};
pub use endpoint::{Endpoint, Incoming, Refusal, Route};
pub use handshake::{Handshake, MSS_MAX, MSS_MIN, Request};
pub use loss_list::{LossList, LossWriter};
pub use message::{Kind, MessageOptions, SendError};
pub use receive::Arrival;
pub use seq::{MessageNumber, Seq};

use std::time::Duration;

/// How often UDT acknowledges and adapts.
pub const SYN: Duration = Duration::from_millis(10);
/// A packet whose number is a multiple of this is the first of a pair.
const PAIR_EVERY: u32 = 16;
/// IPv4 and UDP headers, which the MSS includes; over IPv6 as well.
const IP_UDP_LEN: u32 = 28;
