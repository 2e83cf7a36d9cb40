//! The data channel: connections that carry files and listings, in stream mode (MODE S, RFC 959) or extended block mode
//! (MODE E, GFD.20, section 3.4; U2, U5, S11).
//!
//! ```text
//!   a flow of blocks ──► Channel::send ──► 1 … n connections ──► Channel::receive ──► a flow of blocks
//! ```
//!
//! - `acceptor`: accepts connections, and selects those of a transfer.
//! - [`Channel`]: which end connects, and the connections that are kept between transfers.
//! - `mode`: the transfer modes, and objects over UDP in place of extended blocks, behind one trait; `outgoing`: the sending state of a connection.
//! - `send`, `receive`: transfers. Both ends are flows of `phoebus_files`, so a disk, a draft and a program look the
//!   same.
//! - `files`: many short files in a row.
//! - `time_slice`: plain connections on threads ([`IoThreads`]), where the kernel sends files (`outgoing`), and received
//!   bytes go directly to the draft (`write`), past flows and tasks (invariant 9).
//! - [`ChannelSecurity`]: authentication of the peer, and protection of data (DCAU, PROT).
//! - [`pinned`]: QUIC, and TLS without authorities, between ends that have exchanged keys.
//! - [`Settings`]: transport, buffers, streams, limits, permitted peers.
//! - [`stack`]: stacks of drivers and their options, in GCT's notation.
//!
//! In stream mode the end of the connection ends the transfer; a reset, or an end before the expected bytes, is an
//! error. Over QUIC the receiver closes its side once it has everything, and the sender waits for that. In extended
//! block mode a transfer is complete after as many ends as one connection announced. Only then a received flow ends;
//! anything else is an error.

mod acceptor;
mod blocks;
mod channel;
mod connection;
mod error;
mod gsi;
pub(crate) mod inside;
mod intake;
#[cfg(feature = "kerberos")]
pub(crate) mod kerberos;
mod known_paths;
mod losses;
mod mode;
mod object_memory;
mod objects;
mod opened;
mod outgoing;
pub mod pinned;
mod receive;
mod security;
mod send;
mod sessions;
mod settings;
mod short_files;
pub mod stack;
mod time_slice;
mod write;

pub use channel::Channel;
pub use error::Error;
pub use intake::Intake;
pub use known_paths::KnownPaths;
pub use losses::{Losses, ObjectTotals};
pub use mode::Sharing;
pub use object_memory::{MemoryShare, ObjectMemory};
pub use objects::{Objects, RateControl};
pub use receive::Incoming;
pub use security::{ChannelSecurity, Protection};
pub use settings::{Mode, Peers, Settings};
pub use time_slice::IoThreads;
