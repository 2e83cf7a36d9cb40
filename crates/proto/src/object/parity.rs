//! Parity packets at the tail of a transfer: with as many of them as packets of a chunk are missing, these can be computed, and
//! no round trip is spent on repairs (Reed–Solomon codes over GF(2^16)).
//!
//! The packets of a chunk are the originals, the last one filled up with zeros. So the parity of a chunk depends on its bytes
//! and on the number of parity packets alone.

use std::borrow::Cow;

/// Parity packets of a chunk are at most this part of its packets.
const PART: u32 = 8;
/// And these besides, for chunks of few packets, but never more than half of these.
const FEW: u32 = 8;

/// Chunks of more packets have no parity: the code has 2^16 packets, half of them originals.
const PACKETS: u32 = 1 << 15;

/// Most parity packets of a chunk of `packets` packets.
pub fn most(packets: u32) -> u32 {
    if packets > PACKETS { 0 } else { (packets / PART + FEW).min(packets / 2).min(MAX) }
}

/// Most bytes that a receiver holds of the parity of a chunk.
pub fn most_bytes(chunk_len: u32, packet_len: u32) -> u64 {
    u64::from(most(chunk_len.div_ceil(packet_len.max(1)))) * u64::from(packet_len)
}

/// Most parity packets of any chunk: their numbers share a header's field.
const MAX: u32 = (1 << 12) - 1;

/// Whether packets of this length can have parity: the code takes two bytes at a time.
pub fn is_possible(packet_len: u32) -> bool {
    packet_len.is_multiple_of(2)
}

/// Number of a parity packet, and how many the chunk has. They stand in the header instead of the packet's index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParityNumber {
    /// From 0.
    pub number: u32,
    /// How many there are.
    pub of: u32,
}

impl ParityNumber {
    /// As a packet's index.
    pub fn to_index(self) -> u32 {
        self.of << 12 | self.number
    }

    /// From a packet's index. `None` if there is no such parity packet.
    pub fn from_index(index: u32) -> Option<Self> {
        let (of, number) = (index >> 12, index & MAX);
        (number < of).then_some(Self { number, of })
    }
}

/// The parity packets of `chunk`.
pub fn encode(chunk: &[u8], packet_len: usize, count: usize) -> Option<Vec<Vec<u8>>> {
    let originals: Vec<Cow<'_, [u8]>> = chunk.chunks(packet_len).map(|packet| filled(packet, packet_len)).collect();
    reed_solomon_simd::encode(originals.len(), count, originals).ok()
}

/// Computes the `missing` packets of `chunk`, which has its full length, by `parity`: numbers and bytes of parity packets, of
/// `count` that there are. Returns whether there were enough; otherwise nothing has changed.
pub fn restore(
    chunk: &mut [u8],
    packet_len: usize,
    missing: &[u32],
    (parity, count): (&[(u32, Vec<u8>)], usize),
) -> bool {
    let there = chunk.chunks(packet_len).enumerate().filter(|(at, _)| missing.binary_search(&(*at as u32)).is_err());
    let originals: Vec<_> = there.map(|(at, packet)| (at, filled(packet, packet_len))).collect();
    let parity = parity.iter().map(|(number, bytes)| (*number as usize, bytes));
    let packets = chunk.len().div_ceil(packet_len);
    let Ok(restored) = reed_solomon_simd::decode(packets, count, originals, parity) else { return false };
    if missing.iter().any(|index| !restored.contains_key(&(*index as usize))) {
        return false;
    }
    for (at, bytes) in restored {
        let start = at * packet_len;
        let end = (start + packet_len).min(chunk.len());
        if let (Some(room), Some(bytes)) = (chunk.get_mut(start..end), bytes.get(..end.saturating_sub(start))) {
            room.copy_from_slice(bytes);
        }
    }
    true
}

/// A packet of full length.
fn filled(packet: &[u8], packet_len: usize) -> Cow<'_, [u8]> {
    if packet.len() == packet_len {
        return packet.into();
    }
    let mut whole = packet.to_vec();
    whole.resize(packet_len, 0);
    whole.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn as_many_missing_packets_as_there_is_parity_are_computed(
            len in 1usize..5000,
            count in 1u32..20,
            lost in prop::collection::btree_set(0u32..50, 0..20),
            gone in prop::collection::btree_set(0u32..20, 0..10),
        ) {
            let (packet_len, chunk) = (100, (0..len).map(|at| (at * 7 + at / 251) as u8).collect::<Vec<_>>());
            let packets = len.div_ceil(packet_len) as u32;
            let missing: Vec<u32> = lost.into_iter().filter(|index| *index < packets).collect();
            let parity = encode(&chunk, packet_len, count as usize).unwrap();
            let parity: Vec<_> = (0..).zip(parity).filter(|(number, _)| !gone.contains(number)).collect();
            let mut damaged = chunk.clone();
            for index in &missing {
                let start = *index as usize * packet_len;
                let end = (start + packet_len).min(len);
                damaged[start..end].fill(0xee);
            }
            let before = damaged.clone();
            let is_restored = restore(&mut damaged, packet_len, &missing, (&parity, count as usize));
            prop_assert_eq!(is_restored, missing.len() <= parity.len());
            prop_assert_eq!(damaged, if is_restored { chunk } else { before });
        }

        #[test]
        fn numbers_are_indexes(index in 0..1u32 << 24) {
            if let Some(number) = ParityNumber::from_index(index) {
                prop_assert!(number.number < number.of && number.to_index() == index);
            }
        }
    }

    #[test]
    fn there_is_little_parity() {
        assert_eq!([1, 2, 16, 80, 729, PACKETS - 100, PACKETS, PACKETS + 1].map(most), [0, 1, 8, 18, 99, 4091, MAX, 0]);
        assert_eq!(
            [(1 << 20, 1438), (1 << 20, 65_472), (65_472, 65_472)].map(|(chunk, packet)| most_bytes(chunk, packet)),
            [99 * 1438, 8 * 65_472, 0]
        );
        assert!(reed_solomon_simd::ReedSolomonEncoder::supports(PACKETS as usize, MAX as usize));
        assert!(is_possible(1438) && !is_possible(1439));
    }
}
