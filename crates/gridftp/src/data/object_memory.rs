//! Memory for the chunks of objects, which all transfers of a server share (L9).
//!
//! A transfer gets what it wants, and at most a quarter of what is free: the first ones are fast, and later ones still have
//! some. However little is free, each has [`ObjectMemory::LEAST`], so that each moves.

use phoebus_net::heap;
use phoebus_proto::object::parity;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// How long no transfer has used the memory before it goes back to the system.
const IDLE: Duration = Duration::from_secs(5);

/// Memory for chunks. Clones are the same memory.
#[derive(Debug, Clone)]
pub struct ObjectMemory {
    free: Arc<AtomicU64>,
    all: u64,
    /// Whether a thread is about to give freed memory back to the system.
    is_releasing: Arc<AtomicBool>,
}

/// A transfer's part. Dropping it gives it back.
#[derive(Debug)]
pub struct MemoryShare {
    memory: ObjectMemory,
    /// What was taken from the memory that is shared: 0 if the transfer has only the least.
    taken: u64,
}

impl ObjectMemory {
    /// What every transfer has, in bytes, beyond the shared memory if that is used up.
    pub const LEAST: u64 = 256 << 10;
    /// Chunks of which a transfer has memory before they are made shorter: with fewer, the sender would wait for the disk.
    const CHUNKS: u64 = 4;

    /// Memory of `bytes`.
    pub fn new(bytes: u64) -> Self {
        Self { free: Arc::new(AtomicU64::new(bytes)), all: bytes, is_releasing: Arc::default() }
    }

    /// Memory in which the first transfer has all `buffers` chunks of `chunk` bytes, and all transfers together have four times that.
    pub fn of_client(chunk: u32, buffers: u32) -> Self {
        // Parity takes less than a quarter of a chunk of many packets.
        Self::new(4 * (u64::from(chunk) + u64::from(chunk / 4)) * u64::from(buffers))
    }

    /// Takes a part for at most so many chunks of such a length, with their parity.
    pub fn share(&self, (chunk, packet): (u32, u32), buffers: u32) -> MemoryShare {
        self.part(of_chunk(chunk, packet).saturating_mul(buffers.into()))
    }

    /// Takes a part of at most `wanted` bytes.
    fn part(&self, wanted: u64) -> MemoryShare {
        let part = |free: u64| Some(wanted.min(free / 4)).filter(|part| *part >= Self::LEAST);
        let update =
            self.free.fetch_update(Ordering::AcqRel, Ordering::Acquire, |free| part(free).map(|part| free - part));
        MemoryShare { memory: self.clone(), taken: update.ok().and_then(part).unwrap_or(0) }
    }
}

impl ObjectMemory {
    /// When no transfer has used it for a moment, gives the memory of their chunks back to the system.
    fn release(&self) {
        if self.is_releasing.swap(true, Ordering::AcqRel) {
            return;
        }
        let memory = self.clone();
        let thread = std::thread::Builder::new().name("release".to_owned()).spawn(move || {
            std::thread::sleep(IDLE);
            memory.is_releasing.store(false, Ordering::Release);
            if memory.free.load(Ordering::Acquire) == memory.all {
                heap::release_freed();
            }
        });
        if thread.is_err() {
            self.is_releasing.store(false, Ordering::Release);
        }
    }
}

impl MemoryShare {
    /// Its size in bytes.
    pub fn bytes(&self) -> u64 {
        self.taken.max(ObjectMemory::LEAST)
    }

    /// The length of chunks and their number that fit with their parity, of at most `chunk` bytes and at least `packet`, and at most `buffers`.
    /// At least two.
    pub fn fit(&self, (chunk, packet): (u32, u32), buffers: u32) -> (u32, u32) {
        let most = u32::try_from(self.bytes() / ObjectMemory::CHUNKS).unwrap_or(u32::MAX);
        let chunk = chunk.min(most).max(packet);
        let fitting = u32::try_from(self.bytes() / of_chunk(chunk, packet).max(1)).unwrap_or(u32::MAX);
        (chunk, buffers.min(fitting).max(2))
    }
}

/// What a chunk takes with its parity, in bytes.
fn of_chunk(chunk: u32, packet: u32) -> u64 {
    u64::from(chunk) + parity::most_bytes(chunk, packet)
}

impl Drop for MemoryShare {
    fn drop(&mut self) {
        let before = self.memory.free.fetch_add(self.taken, Ordering::AcqRel);
        if self.taken > 0 && before + self.taken == self.memory.all {
            self.memory.release();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn first_transfers_have_what_they_want_and_all_have_some() {
        let memory = ObjectMemory::new(1024 * MIB);
        let mut shares: Vec<_> = (0..500).map(|_| memory.part(96 * MIB)).collect();
        assert_eq!(shares[0].bytes(), 96 * MIB);
        assert!(shares.iter().all(|share| share.bytes() >= ObjectMemory::LEAST));
        let all: u64 = shares.iter().map(MemoryShare::bytes).sum();
        assert!(all <= 1024 * MIB + 500 * ObjectMemory::LEAST, "{all}");
        // What one gives back is there for the next.
        shares.truncate(0);
        assert_eq!(memory.part(96 * MIB).bytes(), 96 * MIB);
        assert_eq!(memory.free.load(Ordering::Relaxed), 1024 * MIB);
    }

    #[test]
    fn chunks_get_shorter_before_there_are_too_few() {
        let memory = ObjectMemory::new(1024 * MIB);
        assert_eq!(memory.share((1 << 20, 1438), 96).fit((1 << 20, 1438), 96), (1 << 20, 96));
        assert_eq!(memory.part(16 * MIB).fit((1 << 20, 1438), 96), (1 << 20, 14));
        assert_eq!(memory.part(2 * MIB).fit((1 << 20, 1438), 96), (512 << 10, 3));
        let client = ObjectMemory::of_client(1 << 20, 96);
        assert_eq!(client.share((1 << 20, 8938), 96).fit((1 << 20, 8938), 96), (1 << 20, 96));
        let none = ObjectMemory::new(0);
        assert_eq!(none.part(96 * MIB).fit((1 << 20, 1438), 96), (64 << 10, 3));
        // A packet has to fit whatever there is.
        assert_eq!(none.part(96 * MIB).fit((1 << 20, 65_473), 96), (65_536, 2));
        assert_eq!(none.part(0).fit((1 << 20, 200_000), 96), (200_000, 2));
    }
}
