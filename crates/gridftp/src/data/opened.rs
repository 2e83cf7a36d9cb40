//! Decrypted data: opened in messages or records, read in any pieces.

/// Opened bytes that were not read yet.
#[derive(Debug, Default)]
pub(super) struct Opened {
    bytes: Vec<u8>,
    read: usize,
}

impl Opened {
    /// Copies as many bytes as fit into `room`. 0 if there are none.
    pub(super) fn read(&mut self, room: &mut [u8]) -> usize {
        let there = &self.bytes[self.read..];
        let len = there.len().min(room.len());
        room[..len].copy_from_slice(&there[..len]);
        self.read += len;
        len
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.len() == self.read
    }

    /// The buffer to open into, behind unread bytes.
    pub(super) fn more(&mut self) -> &mut Vec<u8> {
        self.bytes.drain(..self.read);
        self.read = 0;
        &mut self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opened_records_are_read_in_any_pieces() {
        let mut opened = Opened::default();
        assert!(opened.is_empty() && opened.read(&mut [0; 4]) == 0);
        opened.more().extend_from_slice(b"abcde");
        let mut room = [0; 2];
        assert_eq!((opened.read(&mut room), &room, opened.is_empty()), (2, b"ab", false));
        opened.more().extend_from_slice(b"f");
        let mut room = [0; 9];
        assert_eq!((opened.read(&mut room), &room[..4], opened.is_empty()), (4, &b"cdef"[..], true));
    }
}
