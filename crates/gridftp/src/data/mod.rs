//! The data channel: connections that carry the bytes of files and listings, in stream mode (MODE S, RFC 959) or extended
//! block mode (MODE E, GFD.20, section 3.4; U2, U5, S11; MODE X, GFD.47).
//!
//! ```text
//!   a flow of blocks ──► Channel::send ──► 1 … n connections ──► Channel::receive ──► a flow of blocks
//! ```
//!
//! - `arrive`: who comes to where this end listens.
//! - [`Channel`]: who listens and who connects, and the connections that are kept from one transfer to the next.
//! - `send`, `receive`: what goes over them. Both ends are flows of `phoebus_files`, so that a disk, a draft or a program
//!   is the same to them.
//! - `both`: MODE X, in which either end connects.
//! - `turn`: plain connections on threads of their own ([`Carriers`]), where `send` has the kernel send files and `land` puts what comes into
//!   the draft, past flows and tasks (Invariant 9).
//! - [`Guard`]: who has to be at the other end, and what protects the bytes (DCAU, PROT).
//! - [`pinned`]: QUIC, and TLS without authorities, between ends that have told each other their keys.
//! - [`Settings`]: of the connections: transport, buffers, streams, limits, and who may connect.
//! - [`stack`]: what is said of transports and their options, as GCT writes it.
//!
//! In stream mode a transfer ends with its connection: a FIN ends it, and a reset, or an end before the bytes that were
//! expected, is an error. Over QUIC the receiver ends its side when it has all, and the sender waits for that. In extended block mode it is complete when as many connections have said that they are at their
//! end as one of them announced. A flow that was received gives none only after that; whatever else ends it is an error.

mod arrive;
mod both;
mod channel;
mod connection;
mod error;
mod gsi;
mod guard;
pub(crate) mod inside;
#[cfg(feature = "kerberos")]
pub(crate) mod kerberos;
mod land;
mod opened;
pub mod pinned;
mod receive;
mod send;
mod sessions;
mod settings;
pub mod stack;
mod turn;

pub use channel::Channel;
pub use error::Error;
pub use guard::{Guard, Protection};
pub use receive::{Incoming, Intake};
pub use send::Sharing;
pub use settings::{Losses, Mode, Peers, Settings};
pub use turn::Carriers;
