//! Reassembles the bytes of a stream that arrive out of order. Sans-IO.
//!
//! Arriving bytes are copied into blocks. Keeping the received buffers instead would let a single byte of a
//! datagram retain everything that the kernel handed over with it.

use std::collections::{BTreeMap, VecDeque};

/// Size of a memory block, in bytes: large enough that a window of a gigabyte has few of them, small enough
/// that a lone byte costs little.
const BLOCK: usize = 64 << 10;
/// Most free blocks that are kept for reuse.
const SPARE: usize = 16;

/// The stream has more gaps than it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Scattered;

/// A stream from some offset on, with gaps.
#[derive(Debug)]
pub(super) struct Assembly {
    /// Offset of the next byte to return.
    front: u64,
    /// Offset of the first missing byte.
    ready: u64,
    /// The runs of bytes behind the first missing one: start and end offset of each.
    runs: BTreeMap<u64, u64>,
    /// The blocks from the one with `front` on; `None` where a block would be empty.
    blocks: VecDeque<Option<Box<[u8]>>>,
    spare: Vec<Box<[u8]>>,
    /// Number of bytes held.
    held: u64,
    gaps_max: usize,
}

impl Assembly {
    /// Creates an empty assembly that starts at offset `front` and accepts at most `gaps_max` gaps.
    pub(super) fn new(front: u64, gaps_max: usize) -> Self {
        Self {
            front,
            ready: front,
            runs: BTreeMap::new(),
            blocks: VecDeque::new(),
            spare: Vec::new(),
            held: 0,
            gaps_max,
        }
    }

    /// The number of bytes held, in order or not.
    pub(super) fn held(&self) -> u64 {
        self.held
    }

    /// Offset of the first missing byte.
    pub(super) fn ready(&self) -> u64 {
        self.ready
    }

    /// The number of bytes that are in order and can be returned.
    pub(super) fn ready_len(&self) -> u64 {
        self.ready - self.front
    }

    /// Whether any byte can be returned.
    pub(super) fn is_ready(&self) -> bool {
        self.ready > self.front
    }

    /// Whether no gap precedes any held byte.
    pub(super) fn is_whole(&self) -> bool {
        self.runs.is_empty()
    }

    /// Skips the next `len` bytes, which the caller delivers directly instead of through
    /// [`insert`](Self::insert) and [`give`](Self::give). Requires that no held byte precedes them.
    pub(super) fn pass(&mut self, len: u64) {
        debug_assert!(!self.is_ready(), "what is held comes first");
        self.front += len;
        self.ready = self.front;
        self.join();
        self.drop_given();
    }

    /// Stores `bytes` at offset `start`. Bytes that are already held are ignored.
    ///
    /// # Errors
    /// When that makes too many gaps. The assembly must not be used afterwards.
    pub(super) fn insert(&mut self, start: u64, bytes: &[u8]) -> Result<(), Scattered> {
        let end = start + bytes.len() as u64;
        let from = start.max(self.ready);
        if from >= end {
            return Ok(());
        }
        self.write(from, &bytes[(from - start) as usize..]);
        self.add_run(from, end);
        self.join();
        if self.runs.len() > self.gaps_max { Err(Scattered) } else { Ok(()) }
    }

    /// Copies the next bytes that are in order into `buffer`, and returns their number.
    pub(super) fn give(&mut self, buffer: &mut [u8]) -> usize {
        let mut given = 0;
        while given < buffer.len() && self.is_ready() {
            let at = (self.front % BLOCK as u64) as usize;
            let most = (BLOCK - at).min(buffer.len() - given).min((self.ready - self.front) as usize);
            let Some(Some(block)) = self.blocks.front() else { break };
            buffer[given..given + most].copy_from_slice(&block[at..at + most]);
            given += most;
            self.front += most as u64;
            self.drop_given();
        }
        self.held -= given as u64;
        given
    }

    /// Releases the blocks before `front`, and those behind the last byte needed.
    fn drop_given(&mut self) {
        let needed = self.ready.max(self.runs.last_key_value().map_or(0, |(_, end)| *end));
        let first = self.front / BLOCK as u64;
        let most = if needed > self.front { needed.div_ceil(BLOCK as u64) - first } else { 0 };
        while self.blocks.len() as u64 > most {
            if let Some(block) = self.blocks.pop_front().flatten()
                && self.spare.len() < SPARE
            {
                self.spare.push(block);
            }
        }
    }

    /// Copies `bytes` into the blocks at `offset`.
    fn write(&mut self, mut offset: u64, mut bytes: &[u8]) {
        let first = self.front / BLOCK as u64;
        while !bytes.is_empty() {
            let index = (offset / BLOCK as u64 - first) as usize;
            if self.blocks.len() <= index {
                self.blocks.resize_with(index + 1, || None);
            }
            let block =
                self.blocks[index].get_or_insert_with(|| self.spare.pop().unwrap_or_else(|| vec![0; BLOCK].into()));
            let at = (offset % BLOCK as u64) as usize;
            let (now, later) = bytes.split_at(bytes.len().min(BLOCK - at));
            block[at..at + now.len()].copy_from_slice(now);
            offset += now.len() as u64;
            bytes = later;
        }
    }

    /// Adds a run, and merges it with the runs that it touches.
    fn add_run(&mut self, mut start: u64, mut end: u64) {
        self.held += end - start;
        if let Some((&before, &until)) = self.runs.range(..=start).next_back()
            && until >= start
        {
            self.held -= until.min(end) - start;
            (start, end) = (before, end.max(until));
        }
        while let Some((&next, &until)) = self.runs.range(start..).next()
            && next <= end
        {
            // A run that starts at `start` was already subtracted above.
            if next > start {
                self.held -= end.min(until) - next;
            }
            end = end.max(until);
            self.runs.remove(&next);
        }
        self.runs.insert(start, end);
    }

    /// Moves runs that are no longer behind a gap to the bytes in order.
    fn join(&mut self) {
        while let Some(run) = self.runs.first_entry()
            && *run.key() <= self.ready
        {
            self.ready = self.ready.max(run.remove());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn byte(offset: u64) -> u8 {
        (offset.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
    }

    fn bytes(start: u64, end: u64) -> Vec<u8> {
        (start..end).map(byte).collect()
    }

    proptest! {
        /// Inserting pieces in any order, with duplicates and with reads in between, yields the stream.
        #[test]
        fn pieces_become_the_stream(
            front in 0..200_000u64,
            cuts in prop::collection::btree_set(1..400_000u64, 1..80),
            order in prop::collection::vec(any::<prop::sample::Index>(), 200),
            step in 1..100_000usize,
        ) {
            let cuts: Vec<u64> = [0].into_iter().chain(cuts).map(|cut| front + cut).collect();
            let mut pieces: Vec<_> = cuts.windows(2).map(|two| (two[0], two[1])).collect();
            let last = *cuts.last().unwrap();
            for (at, index) in order.iter().enumerate() {
                let (left, right) = (at % pieces.len(), index.index(pieces.len()));
                pieces.swap(left, right);
            }
            // Additional pieces that overlap others.
            let more: Vec<_> = pieces.iter().step_by(3).map(|(start, end)| (start - (start - front).min(7), *end)).collect();
            let mut assembly = Assembly::new(front, 1000);
            let (mut got, mut buffer) = (Vec::new(), vec![0; step]);
            for (start, end) in pieces.into_iter().chain(more) {
                assembly.insert(start, &bytes(start, end)).unwrap();
                let n = assembly.give(&mut buffer);
                got.extend_from_slice(&buffer[..n]);
                let runs: u64 = assembly.runs.iter().map(|(start, end)| end - start).sum();
                prop_assert_eq!(assembly.held(), assembly.ready - assembly.front + runs);
            }
            while assembly.is_ready() {
                let n = assembly.give(&mut buffer);
                got.extend_from_slice(&buffer[..n]);
            }
            prop_assert!(got == bytes(front, last));
            prop_assert!(assembly.is_whole() && assembly.held() == 0 && assembly.blocks.is_empty());
        }
    }

    #[test]
    fn passed_bytes_join_held_bytes() {
        let mut assembly = Assembly::new(10, 4);
        assembly.insert(20, &bytes(20, 70_000)).unwrap();
        assert!(!assembly.is_ready() && !assembly.is_whole());
        assembly.pass(10);
        assert!(assembly.is_ready() && assembly.is_whole());
        let mut all = vec![0; 100_000];
        let n = assembly.give(&mut all);
        assert!(all[..n] == bytes(20, 70_000));
        assembly.pass(200_000);
        assembly.insert(270_000, &bytes(270_000, 270_100)).unwrap();
        assert_eq!((assembly.give(&mut all), &all[..100]), (100, &bytes(270_000, 270_100)[..]));
    }

    #[test]
    fn gaps_and_memory_are_bounded() {
        let mut assembly = Assembly::new(0, 1000);
        for gap in 0..1000 {
            assembly.insert(gap * 2 + 1, &[0]).unwrap();
        }
        assert_eq!((assembly.held(), assembly.blocks.len()), (1000, 1));
        assert_eq!(assembly.insert(5001, &[0]), Err(Scattered));
    }
}
