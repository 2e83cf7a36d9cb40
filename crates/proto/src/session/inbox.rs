//! Reads one message exactly: never a byte more than the preface, the prefix or the body that is due.
//!
//! The bytes after OPENED belong to the program, so whoever reads the handshake must stop at its last byte. An [`Inbox`]
//! offers just as much space as may be read next.

use super::message::Message;
use super::wire::{MESSAGE_MAX, PREFACE, PREFIX_LEN, ProtocolError};

/// Where an inbox keeps what it has read.
pub trait Storage {
    /// At least the first `min` and at most the first `max` bytes, earlier contents kept; `None` when there is no room.
    fn room(&mut self, min: usize, max: usize) -> Option<&mut [u8]>;
    /// The bytes given out so far.
    fn bytes(&self) -> &[u8];
}

/// A buffer that never grows, such as the preload shim's.
impl Storage for &mut [u8] {
    fn room(&mut self, min: usize, max: usize) -> Option<&mut [u8]> {
        let end = max.min(self.len());
        if end < min { None } else { self.get_mut(..end) }
    }

    fn bytes(&self) -> &[u8] {
        self
    }
}

/// A buffer that grows as bytes arrive: a peer that announces much and sends little makes nobody hold much.
impl Storage for Vec<u8> {
    fn room(&mut self, min: usize, max: usize) -> Option<&mut [u8]> {
        const STEP: usize = 1024;
        let end = min.saturating_add(STEP).min(max).max(min);
        if self.len() < end {
            self.resize(end, 0);
        }
        self.get_mut(..end)
    }

    fn bytes(&self) -> &[u8] {
        self
    }
}

/// Reads messages, one after another, exactly.
#[derive(Debug)]
pub struct Inbox<B> {
    buffer: B,
    filled: usize,
    phase: Phase,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The preface, and the prefix of HELLO that always follows it.
    Preface,
    Prefix,
    Body(usize),
    Complete(usize),
}

const GREETING_LEN: usize = PREFACE.len() + PREFIX_LEN;

impl<B: Storage> Inbox<B> {
    /// Waits for a preface and a first message.
    pub fn new(buffer: B) -> Self {
        Self { buffer, filled: 0, phase: Phase::Preface }
    }

    /// How many bytes may be read next; 0 when a message is complete.
    pub fn want(&self) -> usize {
        self.due() - self.filled
    }

    /// Where to read the next bytes to; at most [`Inbox::want`], and empty when a message is complete.
    ///
    /// # Errors
    /// [`ProtocolError::NoRoom`] when the storage cannot hold the message.
    pub fn space(&mut self) -> Result<&mut [u8], ProtocolError> {
        let (due, filled) = (self.due(), self.filled);
        if due == filled {
            return Ok(&mut []);
        }
        let room = self.buffer.room(filled + 1, due).ok_or(ProtocolError::NoRoom(due))?;
        Ok(&mut room[filled..])
    }

    /// Says that `n` bytes were read into [`Inbox::space`].
    ///
    /// # Errors
    /// [`ProtocolError::Preface`] and [`ProtocolError::TooLong`].
    pub fn filled(&mut self, n: usize) -> Result<(), ProtocolError> {
        self.filled += n.min(self.want());
        if self.phase == Phase::Preface {
            self.check_preface()?;
        }
        if self.filled < self.due() {
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

    /// Takes what it may from `input` and returns how much that was; never a byte beyond the message that is due.
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

    /// Forgets the complete message and waits for the next.
    pub fn next(&mut self) {
        if matches!(self.phase, Phase::Complete(_)) {
            self.phase = Phase::Prefix;
            self.filled = 0;
        }
    }

    fn due(&self) -> usize {
        match self.phase {
            Phase::Preface => GREETING_LEN,
            Phase::Prefix => PREFIX_LEN,
            Phase::Body(len) | Phase::Complete(len) => len,
        }
    }

    /// Refuses a stranger at the first wrong byte: one who sends less than a greeting would otherwise be waited for.
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
            // An empty body is no map, and decoding says so.
            Some(0) => self.phase = Phase::Complete(0),
            Some(len) => self.phase = Phase::Body(len),
            None => return Err(ProtocolError::TooLong(len)),
        }
        Ok(())
    }
}
