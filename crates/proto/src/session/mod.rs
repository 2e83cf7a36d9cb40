//! The session protocol: one small handshake, then a stream, raw or framed (`docs/protocol/session.md`; P8, P18, S21,
//! S22).
//!
//! The same handshake runs from client to gateway, gateway to gateway, and gateway to a session-aware destination, on
//! one connection of any transport. Reading order:
//!
//! - [`message`]: HELLO, CHALLENGE, AUTH, OPEN, OPENED, REFUSED, ATTACH as borrowed views.
//! - [`code`]: why a session was refused or reset, and the `errno` that stands for it.
//! - [`inbox`]: reads exactly one message, so that it never consumes a byte after OPENED.
//! - [`auth`]: how an initiator proves who it is.
//! - [`initiator`], [`acceptor`]: the two ends of the handshake.
//! - [`login`]: an initiator that authenticates.
//! - [`principal`]: who asks, as gateways tell each other.
//! - [`plan`]: whom a client asks, and what it does after a failure.
//! - [`frame`]: the framed mode, and when a connection may be used for the next session.
//! - [`bundle`]: one session over several connections of a hop.
//! - [`datagrams`]: datagrams beside a session.
//!
//! The initiator's side does not allocate, so that the preload shim can run it inside another program's `connect`.

pub mod acceptor;
pub mod auth;
pub mod bundle;
pub mod code;
mod codec;
pub mod datagrams;
pub mod frame;
pub mod inbox;
pub mod initiator;
pub mod list;
pub mod login;
pub mod message;
mod outbox;
pub mod plan;
pub mod principal;
pub mod storage;
mod wire;

pub use acceptor::Acceptor;
pub use code::Code;
pub use inbox::Inbox;
pub use initiator::Initiator;
pub use list::List;
pub use principal::{Principal, PrincipalRef};
pub use wire::{MESSAGE_MAX, PREFACE, PREFIX_LEN, ProtocolError};

use std::fmt;

/// The version of the protocol that this code speaks.
pub const VERSION: u16 = 1;

/// Identifies a session on every hop: 128 random bits, chosen by the client. A gateway refuses an identifier that it
/// has seen before. OPEN may therefore travel in a TCP Fast Open SYN, which the network can deliver twice (RFC 7413
/// §2.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub [u8; 16]);

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionId({self})")
    }
}

/// How a hop carries the stream after OPENED.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// The bytes as they are; the end of the connection is the end of the session.
    Raw,
    /// Frames ([`frame`]); the connection may carry another session afterwards.
    Framed,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Raw => "raw",
            Self::Framed => "framed",
        })
    }
}
