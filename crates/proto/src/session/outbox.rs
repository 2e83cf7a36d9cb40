//! The messages that one end of a handshake has to send.

use super::message::Message;
use super::storage::Storage;
use super::wire::{MESSAGE_MAX, PREFACE, PREFIX_LEN, ProtocolError};

/// Sizes that a buffer which grows is tried at: for nearly all messages, for an OPEN that is padded to fill a segment, and
/// for the longest message.
const ROOMS: [usize; 3] = [1 << 10, 16 << 10, PREFIX_LEN + MESSAGE_MAX];

/// Bytes to send, in a buffer of kind `B`. Holds no memory while there are none, if the buffer can give it back: a
/// connection may be kept for hours between two messages.
#[derive(Debug)]
pub(super) struct Outbox<B> {
    buffer: B,
    len: usize,
    sent: usize,
}

impl<B: Storage> Outbox<B> {
    pub(super) fn new(buffer: B) -> Self {
        Self { buffer, len: 0, sent: 0 }
    }

    /// The bytes to send next.
    pub(super) fn outgoing(&self) -> &[u8] {
        &self.buffer.bytes()[self.sent..self.len]
    }

    /// Records that the first `n` bytes of [`Outbox::outgoing`] were sent.
    pub(super) fn sent(&mut self, n: usize) {
        self.sent += n.min(self.len - self.sent);
        if self.sent == self.len {
            (self.len, self.sent) = (0, 0);
            self.buffer.release(0);
        }
    }

    /// Adds the preface of a connection.
    ///
    /// # Errors
    /// [`ProtocolError::NoRoom`] if the buffer cannot hold it.
    pub(super) fn add_preface(&mut self) -> Result<(), ProtocolError> {
        let end = self.len + PREFACE.len();
        let room = self.buffer.room(end, end).ok_or(ProtocolError::NoRoom(PREFACE.len()))?;
        room[self.len..end].copy_from_slice(&PREFACE);
        self.len = end;
        Ok(())
    }

    /// Adds `message`.
    ///
    /// # Errors
    /// [`ProtocolError::NoRoom`] if the buffer cannot hold it, or if it is longer than [`MESSAGE_MAX`].
    pub(super) fn add(&mut self, message: &Message) -> Result<(), ProtocolError> {
        let added = self.encode(message);
        if let Ok(len) = added {
            self.len += len;
        }
        self.buffer.release(self.len);
        added.map(|_| ())
    }

    /// Writes `message` behind what there is, and returns its length.
    fn encode(&mut self, message: &Message) -> Result<usize, ProtocolError> {
        for room in ROOMS {
            let end = self.len + room;
            let Some(grown) = self.buffer.room(end, end) else {
                // The buffer does not grow.
                let all = self.buffer.room(self.len, usize::MAX).ok_or(ProtocolError::NoRoom(0))?;
                return message.encode(&mut all[self.len..]);
            };
            match message.encode(&mut grown[self.len..end]) {
                Err(ProtocolError::NoRoom(_)) if room < PREFIX_LEN + MESSAGE_MAX => {}
                encoded => return encoded,
            }
        }
        Err(ProtocolError::NoRoom(MESSAGE_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::message::Hello;

    #[test]
    fn memory_is_held_only_while_there_is_something_to_send() {
        let mut outbox = Outbox::new(Vec::new());
        outbox.add_preface().unwrap();
        outbox.add(&Message::Hello(Hello::of("pg1"))).unwrap();
        let len = outbox.outgoing().len();
        assert!(outbox.outgoing().starts_with(&PREFACE) && outbox.buffer.capacity() == len);
        outbox.sent(PREFACE.len());
        assert_eq!(outbox.outgoing().len(), len - PREFACE.len());
        outbox.sent(len);
        assert_eq!((outbox.outgoing().len(), outbox.buffer.capacity()), (0, 0));
    }

    #[test]
    fn long_message_fits_a_buffer_that_grows_and_a_slice_of_its_length() {
        let name = "n".repeat(3000);
        let hello = Message::Hello(Hello::of(&name));
        let mut grown = Outbox::new(Vec::new());
        grown.add(&hello).unwrap();
        let mut exact = vec![0; grown.outgoing().len()];
        let mut fixed = Outbox::new(&mut exact[..]);
        fixed.add(&hello).unwrap();
        assert_eq!(fixed.outgoing(), grown.outgoing());
        assert!(matches!(fixed.add(&hello), Err(ProtocolError::NoRoom(_))));
        assert_eq!(fixed.outgoing(), grown.outgoing(), "a message that does not fit leaves the others as they are");

        let too_long = "n".repeat(MESSAGE_MAX);
        assert!(matches!(grown.add(&Message::Hello(Hello::of(&too_long))), Err(ProtocolError::NoRoom(_))));
        assert_eq!(grown.outgoing(), fixed.outgoing());
    }
}
