//! Transports of a hop: sockets, their options, splicing and statistics (S13–S15, S18, S19, P37).
//!
//! Code that relays or starts sessions uses this crate alone and opens no socket of its own. Reading order:
//!
//! - [`Profile`]: the settings of a transport on a segment, from a configuration file.
//! - [`transport`]: the interface of all transports. A [`Stream`] is a connection of any transport: it reads, writes, shuts
//!   down either direction, gives [`Stats`] and reports failure while nobody reads.
//! - [`tcp`]: the transport that every host has.
//! - [`quic`]: one connection to each peer, with a stream for each session.
//! - [`udt`]: UDT4 over UDP, for long paths with loss and circuits with a rate.
//! - [`tls`]: authenticates and encrypts TCP or any other transport.
//! - [`proxied`]: listens behind relays that speak the PROXY protocol.
//! - [`credentials`]: the certificate of this end, and the trust anchors for its peers.
//! - [`carrier`]: moves bytes from stream to stream through pooled pipes, without copying them.
//! - [`bulk`]: moves bytes between a connection and a file on a thread that may block.
//! - [`dial`]: resolves names and connects to their addresses (RFC 8305), all in bounded time.
//! - [`host`]: which kernel settings limit a profile, and the commands that would change them.
//! - [`route`]: whether an address belongs to this host.
//! - [`wrapblock`]: a transport from a library with blocking calls; [`driver`]: such a library loaded from a file (U9–U11).
//! - [`object`]: object-based transfer over UDP, beside a control stream.
//! - [`datagram_relay`]: passes datagrams beside sessions on.
//! - [`pair`]: a connection to another process of this host that carries the bytes elsewhere, such as `ssh`.
//! - [`https`]: fetches a short document from a web server.
//! - [`wire`]: the size of packets on a link, by which rates are counted.
//! - [`limits`]: the limit of open descriptors.
//!
//! # The linger discipline
//!
//! The kernel closes the sockets of a killed process with FIN, which its peers read as a clean end. Therefore
//! every [`Stream`] carries `SO_LINGER{1,0}` from before connect or listen: dropping it for any reason
//! (panic, signal, early return) resets the connection. [`Stream::disarm`] is only for a stream whose both
//! directions have ended.

pub mod bulk;
pub mod carrier;
mod congestion_control;
mod connection_note;
pub mod credentials;
mod datagram;
pub mod datagram_relay;
pub mod dial;
pub mod driver;
mod duplex;
mod error;
pub mod heap;
pub mod host;
pub mod https;
pub mod limits;
mod memory;
pub mod names;
pub mod object;
pub mod pair;
mod poll_pause;
mod profile;
pub mod proxied;
pub mod quic;
mod registry;
pub mod route;
mod stats;
mod stream;
mod sys;
pub mod tcp;
pub mod tls;
pub mod transport;
pub mod udt;
mod waiting;
pub mod wire;
pub mod wrapblock;

pub use carrier::{Carrier, PipePool};
pub use congestion_control::CongestionControl;
pub use connection_note::ConnectionNote;
pub use duplex::OtherEnd;
pub use error::{Error, code_of, reason};
pub use profile::{Buffer, Profile};
pub use registry::Registry;
pub use stats::Stats;
pub use stream::{DatagramRoute, Stream};
pub use sys::watch;
