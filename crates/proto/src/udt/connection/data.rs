//! The application's interface: writing and reading a stream or messages.

use super::{Connection, State};
use crate::udt::message::{Kind, MessageOptions, SendError};
use std::time::Duration;

/// Why no message was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// No complete message has arrived.
    #[error("no message has arrived")]
    Nothing,
    /// The message does not fit into the caller's buffer. It can still be read.
    #[error("the next message has {len} bytes, more than there is room for")]
    NoRoom {
        /// Length of the message, in bytes.
        len: usize,
    },
}

impl Connection {
    /// Number of bytes that [`write`](Self::write) accepts at present.
    pub fn writable(&self) -> usize {
        match &self.state {
            State::Open(open) if open.closing.is_none() && self.config.kind == Kind::Stream => {
                open.send.room(open.control.pace().window)
            }
            _ => 0,
        }
    }

    /// Whether the send buffer has enough room to make waking a writer worthwhile.
    pub fn has_ample_room(&self) -> bool {
        match &self.state {
            State::Open(open) if open.closing.is_none() => open.send.has_ample_room(open.control.pace().window),
            _ => false,
        }
    }

    /// Buffers bytes of the stream for sending and returns their number. Accepts none unless the connection is open.
    pub fn write(&mut self, data: &[u8]) -> usize {
        match &mut self.state {
            State::Open(open) if open.closing.is_none() && self.config.kind == Kind::Stream => {
                let window = open.control.pace().window;
                open.send.write(data, window)
            }
            _ => 0,
        }
    }

    /// Whether the peer has acknowledged everything that was written.
    pub fn is_flushed(&self) -> bool {
        match &self.state {
            State::Open(open) => open.send.is_empty(),
            _ => false,
        }
    }

    /// Buffers a message for sending.
    ///
    /// # Errors
    /// [`SendError`] if the message was not buffered.
    pub fn send_message(&mut self, now: Duration, data: &[u8], options: MessageOptions) -> Result<(), SendError> {
        match &mut self.state {
            State::Open(open) if open.closing.is_none() && self.config.kind == Kind::Message => {
                open.send.send(now, data, options)
            }
            _ => Err(SendError::NotOpen),
        }
    }

    /// The next received bytes of the stream, without copying. Empty if none have arrived. They stay in the buffer
    /// until [`consume`](Self::consume).
    pub fn chunk(&self) -> &[u8] {
        self.established().map_or(&[], |open| open.receive.chunk())
    }

    /// The number of received packets of the stream that are ready to be read.
    pub fn readable_packets(&self) -> u32 {
        self.established().map_or(0, |open| open.receive.readable_packets())
    }

    /// Removes the first `len` bytes of [`chunk`](Self::chunk) from the receive buffer.
    pub fn consume(&mut self, len: usize) {
        if let Some(open) = self.established_mut() {
            open.receive.consume(len);
        }
    }

    /// Reads bytes of the stream and returns their number.
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
        self.established()?.receive.message_len()
    }

    /// Reads the next message and returns its length.
    ///
    /// # Errors
    /// [`ReadError`] if nothing was read.
    pub fn read_message(&mut self, out: &mut [u8]) -> Result<usize, ReadError> {
        let len = self.message_len().ok_or(ReadError::Nothing)?;
        let out = out.get_mut(..len).ok_or(ReadError::NoRoom { len })?;
        if let Some(open) = self.established_mut() {
            open.receive.read_message(out);
        }
        Ok(len)
    }
}
