//! What a connection carries: a stream of bytes, or messages with bounds.

use std::time::Duration;

/// What a connection carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Bytes.
    Stream,
    /// Messages with bounds, and with a time to live if they are to have one.
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

/// How a message is to be treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageOptions {
    /// Deliver it after all that were sent before it.
    pub in_order: bool,
    /// Give it up after so long.
    pub time_to_live: Option<Duration>,
}

/// Why a message is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// There will be room when the peer has acknowledged more.
    #[error("the send buffer is full")]
    Full,
    /// It has no bytes.
    #[error("a message needs at least one byte")]
    Empty,
    /// It is longer than the buffer.
    #[error("a message of {len} bytes; the send buffer holds {max}")]
    TooLong {
        /// Its length.
        len: usize,
        /// The buffer's.
        max: usize,
    },
    /// The connection carries a stream, is not open yet, or not any more.
    #[error("no messages can be sent on this connection")]
    NotOpen,
}
