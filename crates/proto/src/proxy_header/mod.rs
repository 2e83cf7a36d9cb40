//! The PROXY protocol (HAProxy's proxy-protocol.txt): a header before the first byte of a connection, by which a relay says for whom
//! it has connected. [`encode`] writes version 2 (§2.2), [`HeaderReader`] reads versions 1 (§2.1) and 2.
//!
//! A reader takes no byte beyond the header, and has to be told where a header begins: nothing here guesses whether there is one.

mod read;
mod v1;
mod v2;

pub use read::HeaderReader;
pub use v2::{Tlv, encode};

use std::net::SocketAddr;

/// Longest header that is read, in bytes. Version 2 could have 65551. Relays that pass on a certificate need some thousand.
pub const HEADER_MAX: usize = 8192;
/// Longest unique identifier in bytes (§2.2.5).
pub const UNIQUE_ID_MAX: usize = 128;

/// Types of further values (§2.2).
pub mod tlv {
    /// The name that the client has asked for.
    pub const AUTHORITY: u8 = 0x02;
    /// A checksum of the header.
    pub const CRC32C: u8 = 0x03;
    /// An identifier of the connection.
    pub const UNIQUE_ID: u8 = 0x05;
    /// The user's name in UTF-8: this project's own, in the range for applications (§2.2.8).
    pub const USER: u8 = 0xe0;
}

/// Both ends of the client's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ends {
    /// The client.
    pub client: SocketAddr,
    /// Where it wanted to go.
    pub to: SocketAddr,
}

/// What a header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The relay speaks for itself, as in a health check (LOCAL).
    Relay,
    /// The relay speaks for a client that it does not name (UNSPEC, UNKNOWN, or an address that is none of IP's).
    Unknown,
    /// It speaks for this client.
    Client(Ends),
}

/// Why a header does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// The first bytes are none of a header.
    #[error("the connection does not begin with a PROXY header")]
    NoHeader,
    /// The header is too long.
    #[error("the PROXY header is longer than {HEADER_MAX} bytes")]
    TooLong,
    /// A line of version 1 does not end.
    #[error("the line of the PROXY header does not end within 107 bytes")]
    EndlessLine,
    /// The header breaks a rule of the protocol.
    #[error("the PROXY header is malformed: {0}")]
    Malformed(&'static str),
}

#[cfg(test)]
mod tests;
