//! Object-based transfer over UDP: threads that drive [`phoebus_proto::object`] with a socket, a clock and keys (L3, L5, S17).
//!
//! - [`Port`]: a UDP socket, for one transfer after the other.
//! - [`Path`]: the way to the peer, and whether datagrams get through.
//! - [`Sending`]: takes chunks, and sends them until all have arrived.
//! - [`Receiving`]: takes buffers, and returns them as complete chunks, in the order in which they complete.
//!
//! The control stream is its owner's, who passes on what it says: credit, announcements, and the end.

mod path;
mod port;
mod receive;
mod seal;
mod send;

pub use path::{Failure, Path};
pub use port::{Port, path_mtu};
pub use receive::{Received, Receiving};
pub use seal::Secret;
pub use send::{Sending, SendingOptions};

/// Bytes of a datagram besides the packet: header and seal.
pub const OVERHEAD: usize = phoebus_proto::object::packet::HEADER_LEN + seal::SEAL_LEN;
