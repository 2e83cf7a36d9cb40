//! A buffer that is filled at one end and emptied at the other, and holds memory only while something is in it: thousands of
//! idle connections cost nothing.

use std::sync::{Mutex, PoisonError};

/// What one holds: four records of the largest size, and a little.
pub(super) const CAPACITY: usize = 4 * ((1 << 14) + 256 + 5) + 1024;
/// Pieces of memory that wait to be used again.
const IDLE_MAX: usize = 64;

static IDLE: Mutex<Vec<Box<[u8]>>> = Mutex::new(Vec::new());

#[derive(Default)]
pub(super) struct Buffer {
    /// Empty or of [`CAPACITY`].
    memory: Box<[u8]>,
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

    /// Sees to it that [`Buffer::space`] is of `wanted` bytes, if so many are free.
    pub(super) fn make_room(&mut self, wanted: usize) {
        if self.memory.is_empty() {
            let idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner).pop();
            self.memory = idle.unwrap_or_else(|| vec![0; CAPACITY].into());
        }
        if self.memory.len() - self.end < wanted && self.start > 0 {
            self.memory.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
    }

    /// What is free behind the filled part.
    pub(super) fn space(&mut self) -> &mut [u8] {
        &mut self.memory[self.end..]
    }

    /// Counts the first `n` bytes of the space as filled.
    pub(super) fn fill(&mut self, n: usize) {
        self.end = (self.end + n).min(self.memory.len());
    }

    /// Forgets the first `n` bytes of the filled part.
    pub(super) fn discard(&mut self, n: usize) {
        self.start = (self.start + n).min(self.end);
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Gives the memory back if nothing is in it.
    pub(super) fn relax(&mut self) {
        if self.start == self.end && !self.memory.is_empty() {
            (self.start, self.end) = (0, 0);
            let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
            if idle.len() < IDLE_MAX {
                idle.push(std::mem::take(&mut self.memory));
            } else {
                self.memory = Box::default();
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
