//! Which packet to send next.

use super::super::packet::PacketNumber;
use super::chunks::Chunks;
use std::fmt::Debug;

/// Chooses among the packets that have not been sent yet or were lost.
pub trait Choice: Debug + Send {
    /// The next packet to send, if there is one.
    fn next(&mut self, chunks: &Chunks) -> Option<PacketNumber>;
}

/// Round and round over all packets, as in the paper (L6): no packet is sent again before all others have had their turn.
#[derive(Debug, Clone, Copy, Default)]
pub struct Circular {
    at: PacketNumber,
}

impl Choice for Circular {
    fn next(&mut self, chunks: &Chunks) -> Option<PacketNumber> {
        let next = chunks.next_pending(self.at).or_else(|| chunks.next_pending(PacketNumber::default()))?;
        self.at = PacketNumber { chunk: next.chunk, index: next.index + 1 };
        Some(next)
    }
}

/// The lowest packet number first. Lost packets go before new ones, so that chunks complete in order and their buffers
/// become free early.
#[derive(Debug, Clone, Copy, Default)]
pub struct OldestFirst;

impl Choice for OldestFirst {
    fn next(&mut self, chunks: &Chunks) -> Option<PacketNumber> {
        chunks.next_pending(PacketNumber::default())
    }
}

/// New packets before lost ones.
#[derive(Debug, Clone, Copy, Default)]
pub struct NewestFirst;

impl Choice for NewestFirst {
    fn next(&mut self, chunks: &Chunks) -> Option<PacketNumber> {
        chunks.next_new().or_else(|| chunks.next_pending(PacketNumber::default()))
    }
}
