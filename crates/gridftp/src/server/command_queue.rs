//! Commands that a client has sent while an earlier one is being carried out.

use super::config::Limits;
use phoebus_accounts::memory::Held;
use std::collections::VecDeque;

/// Bytes that each connection may queue even if other connections have used up the shared memory: one read.
const RESERVED: u64 = 4096;

/// Queued lines, and the memory that they are charged for.
pub(super) struct CommandQueue {
    pub(super) lines: VecDeque<Vec<u8>>,
    held: Held,
}

impl CommandQueue {
    /// Makes an empty queue that charges `held`.
    pub(super) fn new(held: Held) -> Self {
        Self { lines: VecDeque::new(), held }
    }

    pub(super) fn push(&mut self, line: Vec<u8>) {
        self.held.add(cost(&line));
        self.lines.push_back(line);
    }

    pub(super) fn pop(&mut self) -> Option<Vec<u8>> {
        let line = self.lines.pop_front()?;
        self.held.take(cost(&line));
        Some(line)
    }

    /// Whether the server may read more from the client: up to `times` what clients may send ahead. A client with an
    /// almost empty queue is read even if others have used up the shared memory.
    pub(super) fn has_room(&self, limits: &Limits, times: u64) -> bool {
        self.has_own_room(limits, times) && (self.held.bytes() < RESERVED || !self.held.is_full())
    }

    /// The same without regard to the shared memory.
    pub(super) fn has_own_room(&self, limits: &Limits, times: u64) -> bool {
        (self.lines.len() as u64) < times.saturating_mul(limits.ahead as u64)
            && self.held.bytes() < times.saturating_mul(limits.ahead_bytes.0)
    }
}

/// Bytes that a queued line is charged for, including its overhead.
fn cost(line: &[u8]) -> u64 {
    line.len() as u64 + 32
}
