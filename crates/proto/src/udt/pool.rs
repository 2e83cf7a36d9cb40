//! Memory for payloads: slots of one size, taken and given back in any order.
//!
//! The slot given back last is taken first, so that a buffer of megabytes of which little is in use stays in the cache, and
//! memory is taken from the system only as far as it was ever needed at a time.

/// Slots per piece of memory.
const CHUNK: usize = 64;

/// Slots of `slot_len` bytes.
#[derive(Debug)]
pub(super) struct Pool {
    slot_len: usize,
    chunks: Vec<Box<[u8]>>,
    free: Vec<u32>,
}

impl Pool {
    pub(super) fn new(slot_len: usize) -> Self {
        Self { slot_len, chunks: Vec::new(), free: Vec::new() }
    }

    /// Bytes of a slot.
    pub(super) fn slot_len(&self) -> usize {
        self.slot_len
    }

    /// A slot, whose bytes are those of its last user. The caller bounds how many it takes.
    pub(super) fn take(&mut self) -> u32 {
        if self.free.is_empty() {
            let first = self.chunks.len() * CHUNK;
            self.chunks.push(vec![0; self.slot_len * CHUNK].into_boxed_slice());
            self.free.extend((first..first + CHUNK).rev().map(|slot| slot as u32));
        }
        self.free.pop().unwrap_or_default()
    }

    pub(super) fn give_back(&mut self, slot: u32) {
        self.free.push(slot);
    }

    pub(super) fn get(&self, slot: u32) -> &[u8] {
        let start = slot as usize % CHUNK * self.slot_len;
        &self.chunks[slot as usize / CHUNK][start..start + self.slot_len]
    }

    pub(super) fn get_mut(&mut self, slot: u32) -> &mut [u8] {
        let start = slot as usize % CHUNK * self.slot_len;
        &mut self.chunks[slot as usize / CHUNK][start..start + self.slot_len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_distinct_and_used_again() {
        let mut pool = Pool::new(4);
        let slots: Vec<u32> = (0..100).map(|_| pool.take()).collect();
        for slot in &slots {
            pool.get_mut(*slot).copy_from_slice(&slot.to_be_bytes());
        }
        assert!(slots.iter().all(|slot| pool.get(*slot) == slot.to_be_bytes()));
        pool.give_back(slots[7]);
        assert_eq!(pool.take(), slots[7]);
        assert_eq!(pool.chunks.len(), 2);
    }
}
