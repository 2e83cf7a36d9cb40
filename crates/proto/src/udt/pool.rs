//! Memory pool for payloads: slots of equal size, allocated and freed in any order.
//!
//! The slot freed last is allocated first, so that the used part of a large buffer stays in the CPU cache. The pool
//! grows only to the largest number of slots that were in use at a time.

/// Slots per allocation.
const CHUNK: usize = 64;

/// Slots of `slot_len` bytes.
#[derive(Debug)]
pub(super) struct Pool {
    slot_len: usize,
    chunks: Vec<Box<[u8]>>,
    unused: Vec<u32>,
}

impl Pool {
    pub(super) fn new(slot_len: usize) -> Self {
        Self { slot_len, chunks: Vec::new(), unused: Vec::new() }
    }

    /// Length of a slot in bytes.
    pub(super) fn slot_len(&self) -> usize {
        self.slot_len
    }

    /// Allocates a slot. It holds the bytes of its last user. The caller bounds the number of slots in use.
    pub(super) fn alloc(&mut self) -> u32 {
        if self.unused.is_empty() {
            let first = self.chunks.len() * CHUNK;
            self.chunks.push(vec![0; self.slot_len * CHUNK].into_boxed_slice());
            self.unused.extend((first..first + CHUNK).rev().map(|slot| slot as u32));
        }
        self.unused.pop().unwrap_or_default()
    }

    pub(super) fn free(&mut self, slot: u32) {
        self.unused.push(slot);
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
    fn slots_are_distinct_and_reused() {
        let mut pool = Pool::new(4);
        let slots: Vec<u32> = (0..100).map(|_| pool.alloc()).collect();
        for slot in &slots {
            pool.get_mut(*slot).copy_from_slice(&slot.to_be_bytes());
        }
        assert!(slots.iter().all(|slot| pool.get(*slot) == slot.to_be_bytes()));
        pool.free(slots[7]);
        assert_eq!(pool.alloc(), slots[7]);
        assert_eq!(pool.chunks.len(), 2);
    }
}
