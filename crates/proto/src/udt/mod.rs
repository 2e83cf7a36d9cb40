//! UDT4, the UDP-based data transfer protocol, wire-compatible with libudt 4.11 (S17, S20, U8): a state machine without
//! sockets or clocks. `docs/protocol/udt4.md` is its specification.
//!
//! - An [`Endpoint`] represents one UDP socket. It assigns datagrams to [`Connection`]s and answers new clients without
//!   keeping state.
//! - A [`Connection`] processes received datagrams ([`handle`](Connection::handle)), produces datagrams to send
//!   ([`poll_transmit`](Connection::poll_transmit)), and tells when its next timer expires
//!   ([`poll_timeout`](Connection::poll_timeout)). The caller writes to it and reads from it.
//! - [`control`](crate::control) determines the sending rate and the congestion window (U8).
//! - [`packet`] is the wire format; [`Handshake`] and [`LossList`] are its larger bodies.
//!
//! Times are durations since an origin that the caller chooses, the same for an endpoint and its connections. The cost
//! of a packet does not depend on the number of packets in flight. Packets are not allocated one by one: payloads live
//! in pools that grow to the size in use.
//!
//! UDT neither authenticates nor encrypts: anyone who sees a connection's packets can end the connection or inject
//! data. Authenticity needs a layer above, such as TLS.

mod config;
mod connection;
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

/// UDT's period of acknowledgements.
pub const SYN: Duration = Duration::from_millis(10);
/// A packet whose sequence number is a multiple of this is the first of a packet pair, sent to probe the capacity.
const PAIR_EVERY: u32 = 16;
/// Bytes of the IPv4 and UDP headers, which the MSS includes. UDT counts the same over IPv6.
const IP_UDP_LEN: u32 = 28;
