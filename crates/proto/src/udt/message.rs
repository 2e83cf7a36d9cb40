//! The two kinds of connections: a stream of bytes, or messages with boundaries.

use std::time::Duration;

/// Kind of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A stream of bytes.
    Stream,
    /// Messages with boundaries and an optional time to live.
    Message,
}

impl Kind {
    pub(super) const fn number(self) -> u32 {
        match self {
            Self::Stream => 1,
            Self::Message => 2,
        }
    }
}

/// Delivery options of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageOptions {
    /// Whether to deliver the message only after all messages sent before it.
    pub in_order: bool,
    /// The sender drops the message if it was not delivered within this time.
    pub time_to_live: Option<Duration>,
}

/// Why a message was not queued for sending.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The send buffer is full until the peer acknowledges more packets.
    #[error("the send buffer is full")]
    Full,
    /// The message is empty.
    #[error("a message needs at least one byte")]
    Empty,
    /// The message is longer than the send buffer.
    #[error("a message of {len} bytes; the send buffer holds {max}")]
    TooLong {
        /// Length of the message, in bytes.
        len: usize,
        /// Size of the send buffer, in bytes.
        max: usize,
    },
    /// The connection carries a stream, is not yet open, or is closed.
    #[error("no messages can be sent on this connection")]
    NotOpen,
}
