//! Reads exactly one message: never a byte beyond the preface, the prefix or the body that comes next.
//!
//! The bytes after OPENED belong to the program, so the handshake's reader must stop at its last byte. An [`Inbox`]
//! offers exactly as much space as the caller may read next.

use super::message::Message;
use super::storage::Storage;
use super::wire::{MESSAGE_MAX, PREFACE, PREFIX_LEN, ProtocolError};

/// Reads messages one after another, and no byte beyond the current one.
#[derive(Debug)]
pub struct Inbox<B> {
    buffer: B,
    filled: usize,
    phase: Phase,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The preface, together with the prefix of HELLO, which always follows it.
    Preface,
    Prefix,
    Body(usize),
    Complete(usize),
}

const GREETING_LEN: usize = PREFACE.len() + PREFIX_LEN;

impl<B: Storage> Inbox<B> {
    /// An inbox that expects a preface and the first message.
    pub fn new(buffer: B) -> Self {
        Self { buffer, filled: 0, phase: Phase::Preface }
    }

    /// Number of bytes that may be read next. 0 when a message is complete.
    pub fn want(&self) -> usize {
        self.expected_len() - self.filled
    }

    /// The buffer for the next read: at most [`Inbox::want`] bytes, and empty when a message is complete.
    ///
    /// # Errors
    /// [`ProtocolError::NoRoom`] if the storage cannot hold the message.
    pub fn space(&mut self) -> Result<&mut [u8], ProtocolError> {
        let (expected, filled) = (self.expected_len(), self.filled);
        if expected == filled {
            return Ok(&mut []);
        }
        let room = self.buffer.room(filled + 1, expected).ok_or(ProtocolError::NoRoom(expected))?;
        Ok(&mut room[filled..])
    }

    /// Records that `n` bytes were read into [`Inbox::space`].
    ///
    /// # Errors
    /// [`ProtocolError::Preface`] and [`ProtocolError::TooLong`].
    pub fn filled(&mut self, n: usize) -> Result<(), ProtocolError> {
        self.filled += n.min(self.want());
        if self.phase == Phase::Preface {
            self.check_preface()?;
        }
        if self.filled < self.expected_len() {
            return Ok(());
        }
        match self.phase {
            Phase::Preface => self.start_body(PREFACE.len()),
            Phase::Prefix => self.start_body(0),
            Phase::Body(len) => {
                self.phase = Phase::Complete(len);
                Ok(())
            }
            Phase::Complete(_) => Ok(()),
        }
    }

    /// Consumes bytes of `input` up to the end of the current message, and returns their number.
    ///
    /// # Errors
    /// Those of [`Inbox::space`] and [`Inbox::filled`].
    pub fn feed(&mut self, input: &[u8]) -> Result<usize, ProtocolError> {
        let mut taken = 0;
        while taken < input.len() && self.want() > 0 {
            let space = self.space()?;
            let n = space.len().min(input.len() - taken);
            space[..n].copy_from_slice(&input[taken..taken + n]);
            self.filled(n)?;
            taken += n;
        }
        Ok(taken)
    }

    /// The complete message, if there is one.
    ///
    /// # Errors
    /// [`ProtocolError::Malformed`].
    pub fn message(&self) -> Result<Option<Message<'_>>, ProtocolError> {
        match self.phase {
            Phase::Complete(len) => Message::decode(&self.buffer.bytes()[..len]).map(Some),
            _ => Ok(None),
        }
    }

    /// Discards the complete message and expects the next one.
    pub fn next(&mut self) {
        if matches!(self.phase, Phase::Complete(_)) {
            self.phase = Phase::Prefix;
            self.filled = 0;
            self.buffer.release(0);
        }
    }

    /// Length of the part that is being read.
    fn expected_len(&self) -> usize {
        match self.phase {
            Phase::Preface => GREETING_LEN,
            Phase::Prefix => PREFIX_LEN,
            Phase::Body(len) | Phase::Complete(len) => len,
        }
    }

    /// Refuses a peer at its first wrong byte. Otherwise a peer that sends less than a greeting would be waited for.
    fn check_preface(&self) -> Result<(), ProtocolError> {
        let seen = self.filled.min(PREFACE.len());
        let got = &self.buffer.bytes()[..seen];
        if got == &PREFACE[..seen] {
            return Ok(());
        }
        let mut first = [0; PREFACE.len()];
        first[..seen].copy_from_slice(got);
        Err(ProtocolError::Preface(first))
    }

    fn start_body(&mut self, at: usize) -> Result<(), ProtocolError> {
        let mut prefix = [0; PREFIX_LEN];
        prefix.copy_from_slice(&self.buffer.bytes()[at..at + PREFIX_LEN]);
        let len = u32::from_be_bytes(prefix);
        self.filled = 0;
        match usize::try_from(len).ok().filter(|len| *len <= MESSAGE_MAX) {
            // An empty body is not a map, and decoding reports that.
            Some(0) => self.phase = Phase::Complete(0),
            Some(len) => self.phase = Phase::Body(len),
            None => return Err(ProtocolError::TooLong(len)),
        }
        Ok(())
    }
}
