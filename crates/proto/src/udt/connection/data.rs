//! What the application puts in and takes out: bytes of a stream, or messages.

use super::{Connection, State};
use crate::udt::message::{Kind, MessageOptions, SendError};
use std::time::Duration;

/// Why a message is not given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// There is none yet.
    #[error("no message has arrived")]
    Nothing,
    /// It does not fit, and is still there.
    #[error("the next message has {len} bytes, more than there is room for")]
    NoRoom {
        /// Its length.
        len: usize,
    },
}

impl Connection {
    /// Bytes of the stream that [`write`](Self::write) would take at present.
    pub fn writable(&self) -> usize {
        match &self.state {
            State::Open(open) if open.closing.is_none() && self.config.kind == Kind::Stream => {
                open.send.room(open.control.pace().window)
            }
            _ => 0,
        }
    }

    /// Whether there is so much room that waking a writer is worth it.
    pub fn is_roomy(&self) -> bool {
        match &self.state {
            State::Open(open) if open.closing.is_none() => open.send.is_roomy(open.control.pace().window),
            _ => false,
        }
    }

    /// Takes bytes of the stream and returns how many; none unless the connection is open.
    pub fn write(&mut self, data: &[u8]) -> usize {
        match &mut self.state {
            State::Open(open) if open.closing.is_none() && self.config.kind == Kind::Stream => {
                let window = open.control.pace().window;
                open.send.write(data, window)
            }
            _ => 0,
        }
    }

    /// Whether all that was written has been acknowledged.
    pub fn is_flushed(&self) -> bool {
        match &self.state {
            State::Open(open) => open.send.is_empty(),
            _ => false,
        }
    }

    /// Takes a message.
    ///
    /// # Errors
    /// [`SendError`]; the message was not taken.
    pub fn send_message(&mut self, now: Duration, data: &[u8], options: MessageOptions) -> Result<(), SendError> {
        match &mut self.state {
            State::Open(open) if open.closing.is_none() && self.config.kind == Kind::Message => {
                open.send.send(now, data, options)
            }
            _ => Err(SendError::NotOpen),
        }
    }

    /// The next bytes of the stream, in place; none if none have arrived. They stay until [`consume`](Self::consume).
    pub fn chunk(&self) -> &[u8] {
        self.rest().map_or(&[], |open| open.receive.chunk())
    }

    /// Gives up the first `len` bytes of [`chunk`](Self::chunk).
    pub fn consume(&mut self, len: usize) {
        if let Some(open) = self.rest_mut() {
            open.receive.consume(len);
        }
    }

    /// Reads bytes of the stream and returns how many.
    pub fn read(&mut self, out: &mut [u8]) -> usize {
        let mut at = 0;
        while at < out.len() {
            let chunk = self.chunk();
            let n = chunk.len().min(out.len() - at);
            if n == 0 {
                break;
            }
            out[at..at + n].copy_from_slice(&chunk[..n]);
            self.consume(n);
            at += n;
        }
        at
    }

    /// The length of the next message, if one has arrived.
    pub fn message_len(&self) -> Option<usize> {
        self.rest()?.receive.message_len()
    }

    /// Reads the next message and returns its length.
    ///
    /// # Errors
    /// [`ReadError`]; nothing was read.
    pub fn read_message(&mut self, out: &mut [u8]) -> Result<usize, ReadError> {
        let len = self.message_len().ok_or(ReadError::Nothing)?;
        let out = out.get_mut(..len).ok_or(ReadError::NoRoom { len })?;
        if let Some(open) = self.rest_mut() {
            open.receive.read_message(out);
        }
        Ok(len)
    }
}
