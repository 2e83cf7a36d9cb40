//! Transports of a hop: sockets, their options, splicing and statistics (S13–S15, S18, S19, P37).
//!
//! Whoever relays or starts a session works with this crate alone and opens no socket of its own. Reading order:
//!
//! - [`Profile`]: the settings of a transport on a segment, from a configuration file.
//! - [`transport`]: the seam. A [`Stream`] is a connection of any transport: it reads, writes, shuts down either side, gives
//!   [`Stats`] and watches for errors while nobody reads.
//! - [`tcp`]: the transport that everyone has.
//! - [`quic`]: one connection to each peer, a stream of it for each session.
//! - [`udt`]: UDT4 over UDP, for long paths with loss and circuits with a rate.
//! - [`tls`]: what authenticates and encrypts it, or any other.
//! - [`credentials`]: who this end is and whom it trusts.
//! - [`carrier`]: moves bytes from stream to stream through pipes that belong to a pool, without copying them.
//! - [`bulk`]: moves bytes between a connection and a file, by a thread that may block.
//! - [`dial`]: names to addresses, addresses to a connection (RFC 8305), all in bounded time.
//! - [`host`]: what the host's own settings take away from a profile, and the command that would change them.
//! - [`route`]: whether an address is one of this host.
//! - [`wrapblock`]: a transport from a library with blocking calls; [`driver`]: such a library from a file (U9–U11).
//! - [`pair`]: a connection to another process of this machine that carries bytes elsewhere, such as `ssh`.
//! - [`wire`]: what packets take on a link, by which rates are counted.
//! - [`limits`]: how many descriptors a process may have.
//!
//! # The linger discipline
//!
//! The kernel closes the sockets of a killed process with FIN, which its peers read as a clean end. Therefore every
//! [`Stream`] carries `SO_LINGER{1,0}` from before connect or listen: whatever drops it (a panic, a signal, a forgotten
//! path) resets the connection. [`Stream::disarm`] is only for a stream whose both directions have ended.

pub mod bulk;
pub mod carrier;
pub mod credentials;
pub mod dial;
pub mod driver;
mod duplex;
mod error;
pub mod host;
pub mod limits;
pub mod names;
pub mod pair;
mod profile;
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
pub use duplex::OtherEnd;
pub use error::{Error, code_of, reason};
pub use profile::{Buffer, CongestionControl, Profile};
pub use registry::Registry;
pub use stats::Stats;
pub use stream::Stream;
