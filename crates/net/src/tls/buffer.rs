//! A byte queue that owns memory only while it holds bytes, so that thousands of idle connections cost
//! nothing.

use crate::memory::{PageOffset, PageOffsetBuffer};
use std::sync::{Mutex, PoisonError};

/// Capacity of one buffer, in bytes: four records of the largest size, and some space.
pub(super) const CAPACITY: usize = 4 * ((1 << 14) + 256 + 5) + 1024;
/// Most free memory blocks that are kept for reuse.
const IDLE_MAX: usize = 64;

static IDLE: Mutex<Vec<PageOffsetBuffer>> = Mutex::new(Vec::new());

#[derive(Default)]
pub(super) struct Buffer {
    /// Empty, or [`CAPACITY`] bytes long.
    memory: PageOffsetBuffer,
    start: usize,
    end: usize,
}

impl Buffer {
    pub(super) fn filled(&self) -> &[u8] {
        &self.memory[self.start..self.end]
    }

    pub(super) fn filled_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.end]
    }

    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn memory(&self) -> usize {
        self.memory.len()
    }

    /// Makes [`Buffer::space`] at least `wanted` bytes long, if that much is free.
    pub(super) fn make_room(&mut self, wanted: usize) {
        if self.memory.is_empty() {
            let idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner).pop();
            self.memory = idle.unwrap_or_else(|| PageOffsetBuffer::new(CAPACITY, PageOffset::Records));
        }
        if self.memory.len() - self.end < wanted && self.start > 0 {
            self.memory.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
    }

    /// The free space behind the filled part.
    pub(super) fn space(&mut self) -> &mut [u8] {
        &mut self.memory[self.end..]
    }

    /// Adds the first `n` bytes of the space to the filled part.
    pub(super) fn fill(&mut self, n: usize) {
        self.end = (self.end + n).min(self.memory.len());
    }

    /// Removes the first `n` bytes of the filled part.
    pub(super) fn discard(&mut self, n: usize) {
        self.start = (self.start + n).min(self.end);
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Releases the memory if the buffer is empty.
    pub(super) fn relax(&mut self) {
        if self.start == self.end && !self.memory.is_empty() {
            (self.start, self.end) = (0, 0);
            let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
            if idle.len() < IDLE_MAX {
                idle.push(std::mem::take(&mut self.memory));
            } else {
                self.memory = PageOffsetBuffer::default();
            }
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        (self.start, self.end) = (0, 0);
        self.relax();
    }
}
