//! What came under protection: opened a message or some records at a time, and read in whatever pieces are asked for.

/// Bytes that were opened and not read yet.
#[derive(Debug, Default)]
pub(super) struct Opened {
    bytes: Vec<u8>,
    read: usize,
}

impl Opened {
    /// Gives out as many as fit into `room`, and says how many; 0 where there are none.
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

    /// Where more is opened to, behind what was not read.
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
    fn what_was_opened_is_read_in_any_pieces() {
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
