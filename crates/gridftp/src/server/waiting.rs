//! Lines that a client has sent ahead of what is being carried out.

use super::config::Limits;
use super::memory::Held;
use std::collections::VecDeque;

/// How many bytes a connection may always have waiting, whatever others have: as much as is read at once.
const ALWAYS: u64 = 4096;

/// Lines that wait, and what is kept for them.
pub(super) struct Waiting {
    pub(super) lines: VecDeque<Vec<u8>>,
    held: Held,
}

impl Waiting {
    /// None yet.
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

    /// Whether more may be read: `times` what a client may send ahead. A little always may, so that whoever has sent nothing ahead is
    /// heard when others have used up all that there is.
    pub(super) fn has_room(&self, limits: &Limits, times: u64) -> bool {
        self.has_own_room(limits, times) && (self.held.bytes() < ALWAYS || !self.held.is_full())
    }

    /// Whether more could be read if nobody else had sent anything ahead.
    pub(super) fn has_own_room(&self, limits: &Limits, times: u64) -> bool {
        (self.lines.len() as u64) < times.saturating_mul(limits.ahead as u64)
            && self.held.bytes() < times.saturating_mul(limits.ahead_bytes.0)
    }
}

/// What a line takes, with what is kept beside its text.
fn cost(line: &[u8]) -> u64 {
    line.len() as u64 + 32
}
