//! The chunks in flight at the sender: which packets arrived, which have to be sent, and in which transmission each was sent
//! last.

use super::super::bitmap::Bitmap;
use super::super::packet::PacketNumber;
use std::collections::VecDeque;
use std::ops::Range;

/// No transmission yet.
const NEVER: u64 = u64::MAX;

/// The chunks that were begun and have not arrived as a whole, and those between them.
#[derive(Debug)]
pub struct Chunks {
    packet_len: u32,
    first: u64,
    chunks: VecDeque<Chunk>,
    /// Chunks below this may be sent.
    credit: u64,
    /// No chunk below this has packets to send.
    pending_from: u64,
    /// No chunk below this has packets that were never sent.
    new_from: u64,
}

#[derive(Debug)]
struct Chunk {
    /// Length in bytes.
    len: u32,
    arrived: Bitmap,
    /// Packets to send: new ones and lost ones.
    pending: Bitmap,
    /// The latest transmission of each packet.
    latest: Vec<u64>,
    /// All packets below this were sent.
    new_from: u32,
}

impl Chunks {
    pub(super) fn new(packet_len: u32) -> Self {
        Self { packet_len, first: 0, chunks: VecDeque::new(), credit: 0, pending_from: 0, new_from: 0 }
    }

    /// Adds a chunk of `len` bytes, and returns its number.
    pub(super) fn push(&mut self, len: u32) -> u64 {
        let packets = len.div_ceil(self.packet_len);
        let (arrived, pending) = (Bitmap::new(packets), Bitmap::full(packets));
        self.chunks.push_back(Chunk { len, arrived, pending, latest: vec![NEVER; packets as usize], new_from: 0 });
        self.end() - 1
    }

    /// The number of the next chunk.
    pub(super) fn end(&self) -> u64 {
        self.first + self.chunks.len() as u64
    }

    /// All chunks below this have arrived.
    pub(super) fn first(&self) -> u64 {
        self.first
    }

    /// Whether everything has arrived.
    pub(super) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Chunks below this may be sent.
    pub(super) fn credit(&self) -> u64 {
        self.credit
    }

    pub(super) fn raise_credit(&mut self, credit: u64) {
        self.credit = self.credit.max(credit);
    }

    /// Whether all packets to send belong to chunks that may not be sent yet, and there are such.
    pub(super) fn is_starved(&self) -> bool {
        self.credit < self.end() && self.next_pending(PacketNumber::default()).is_none()
    }

    /// The first packet to send that is at least `from`.
    pub fn next_pending(&self, from: PacketNumber) -> Option<PacketNumber> {
        let mut index = from.index;
        let start = from.chunk.max(self.pending_from);
        if start > from.chunk {
            index = 0;
        }
        (start..self.end().min(self.credit)).find_map(|chunk| {
            let found = self.at(chunk)?.pending.next(std::mem::take(&mut index))?;
            Some(PacketNumber { chunk, index: found })
        })
    }

    /// The first packet that was never sent.
    pub fn next_new(&self) -> Option<PacketNumber> {
        (self.new_from..self.end().min(self.credit)).find_map(|chunk| {
            let known = self.at(chunk)?;
            let index = (known.new_from..known.packets()).find(|index| known.latest[*index as usize] == NEVER)?;
            Some(PacketNumber { chunk, index })
        })
    }

    /// Length of the packet in bytes.
    pub(super) fn len_of(&self, packet: PacketNumber) -> u32 {
        self.at(packet.chunk).map_or(0, |chunk| chunk.len_of(packet.index, self.packet_len))
    }

    /// Records that the packet is sent. Returns its previous transmission.
    pub(super) fn sent(&mut self, packet: PacketNumber, transmission: u64) -> Option<u64> {
        let chunk = self.at_mut(packet.chunk)?;
        chunk.pending.remove(packet.index);
        let latest = chunk.latest.get_mut(packet.index as usize)?;
        let before = std::mem::replace(latest, transmission);
        while chunk.latest.get(chunk.new_from as usize).is_some_and(|latest| *latest != NEVER) {
            chunk.new_from += 1;
        }
        self.skip();
        (before != NEVER).then_some(before)
    }

    /// Records that the packet has to be sent again.
    pub(super) fn lost(&mut self, packet: PacketNumber) {
        if let Some(chunk) = self.at_mut(packet.chunk) {
            chunk.pending.insert(packet.index);
            self.pending_from = self.pending_from.min(packet.chunk);
        }
    }

    /// Calls `visit` with the packets of the run that were not known to have arrived, and their latest transmissions. `None` if
    /// one of the packets does not exist or was never sent.
    pub(super) fn arrived(
        &mut self,
        chunk: u64,
        run: Range<u32>,
        mut visit: impl FnMut(PacketNumber, u64),
    ) -> Option<()> {
        if chunk < self.first {
            return Some(());
        }
        let known = self.at_mut(chunk)?;
        if run.end > known.packets() {
            return None;
        }
        let mut from = run.start;
        while let Some(index) = known.arrived.next_missing(from).filter(|index| *index < run.end) {
            let latest = known.latest[index as usize];
            if latest == NEVER {
                return None;
            }
            known.arrived.insert(index);
            known.pending.remove(index);
            visit(PacketNumber { chunk, index }, latest);
            from = index + 1;
        }
        Some(())
    }

    /// Records that a whole chunk has arrived, as [`Self::arrived`].
    pub(super) fn all_arrived(&mut self, chunk: u64, visit: impl FnMut(PacketNumber, u64)) -> Option<()> {
        let packets = self.at(chunk).map_or(0, Chunk::packets);
        self.arrived(chunk, 0..packets, visit)
    }

    /// Whether the chunk was begun and has not arrived as a whole.
    pub(super) fn is_open(&self, chunk: u64) -> bool {
        self.at(chunk).is_some_and(|chunk| chunk.arrived.count() < chunk.packets())
    }

    /// The chunks that have not arrived as a whole, with the numbers of their packets, and of those that are not known to have
    /// arrived.
    pub(super) fn open(&self) -> impl Iterator<Item = (u64, u32, u32)> {
        let missing = |chunk: &Chunk| chunk.packets() - chunk.arrived.count();
        let open =
            (self.first..).zip(&self.chunks).map(move |(number, chunk)| (number, chunk.packets(), missing(chunk)));
        open.filter(|(_, _, missing)| *missing > 0)
    }

    /// Removes the first chunk if it has arrived, and returns its number.
    pub(super) fn pop_arrived(&mut self) -> Option<u64> {
        self.chunks.pop_front_if(|chunk| chunk.arrived.count() == chunk.packets())?;
        self.first += 1;
        self.skip();
        Some(self.first - 1)
    }

    /// Moves the marks past chunks that have nothing to send.
    fn skip(&mut self) {
        self.pending_from = self.pending_from.max(self.first);
        self.new_from = self.new_from.max(self.first);
        while self.at(self.pending_from).is_some_and(|chunk| chunk.pending.is_empty()) {
            self.pending_from += 1;
        }
        while self.at(self.new_from).is_some_and(|chunk| chunk.new_from == chunk.packets()) {
            self.new_from += 1;
        }
    }

    fn at(&self, chunk: u64) -> Option<&Chunk> {
        self.chunks.get(chunk.checked_sub(self.first)? as usize)
    }

    fn at_mut(&mut self, chunk: u64) -> Option<&mut Chunk> {
        self.chunks.get_mut(chunk.checked_sub(self.first)? as usize)
    }
}

impl Chunk {
    fn packets(&self) -> u32 {
        self.latest.len() as u32
    }

    fn len_of(&self, index: u32, packet_len: u32) -> u32 {
        self.len.saturating_sub(index.saturating_mul(packet_len)).min(packet_len)
    }
}
