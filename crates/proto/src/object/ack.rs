//! Acknowledgements (`docs/protocol/object.md` §5; L6): a full statement about the packets in flight, in as many datagrams
//! as it needs. Each datagram makes sense by itself, and the next statement makes good a lost one.
//!
//! A datagram states, for all packets from one place up to another, which of them have arrived. It does so by sections:
//! runs of packets that have all arrived, and mixed runs as ranges or as a bitmap, whichever is shorter. Of packets
//! between two sections, none has arrived.

use super::bitmap::Bitmap;
use super::packet::{CHUNK_END, INDEX_END, PacketNumber, TRANSMISSION_END};
use super::varint::{put, take};
use std::ops::Range;
use std::time::Duration;

/// Body of an acknowledgement. `S` is its statement: [`Sections`] when it was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ack<S> {
    /// The highest transmission number that has arrived.
    pub largest: u64,
    /// How long ago it arrived.
    pub delay: Duration,
    /// Number of data datagrams that have arrived since the transfer began.
    pub received: u64,
    /// Number of those whose packets had arrived before.
    pub duplicates: u64,
    /// Number of datagrams that the receiver's kernel has dropped since the transfer began, as far as it says.
    pub drops: u64,
    /// Chunks below this number may be sent: the receiver has buffers for them.
    pub credit: u64,
    /// All packets of chunks below this number have arrived.
    pub complete: u64,
    /// Which other packets have arrived.
    pub statement: S,
}

/// The statement of a received acknowledgement, checked but still encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sections<'a> {
    complete: u64,
    from: PacketNumber,
    end: Option<PacketNumber>,
    bytes: &'a [u8],
}

/// Sections of at least so many packets that have all arrived, or of which none has, are not mixed with others.
const UNIFORM: u32 = 256;
/// Most packets in a mixed section: its bitmap has 128 bytes.
const MIXED: u32 = 1024;
/// Longest encoding of a mixed section: chunk, first packet, length, form, bitmap.
const SECTION_MAX: usize = 6 + 4 + 2 + 1 + MIXED as usize / 8;
/// Longest encoding of all before the sections.
const FIXED_MAX: usize = 7 * 10 + 4 + 1;
/// The shortest room for an acknowledgement, in bytes.
pub const ACK_LEN_MIN: usize = FIXED_MAX + SECTION_MAX;

/// Forms of a section.
const ALL: u8 = 0;
const RANGES: u8 = 1;
const BITMAP: u8 = 2;

/// Flag: the statement covers all packets after its last section, too.
const LAST: u8 = 1;

/// A source of what has arrived, for the encoder.
pub(super) trait Arrived {
    /// Packets of `chunk` that have arrived, if any has.
    fn of(&self, chunk: u64) -> Option<&Bitmap>;

    /// All chunks from this number on have no packets yet.
    fn end(&self) -> u64;
}

impl Ack<()> {
    /// Appends an acknowledgement of at most `room` bytes to `out`: without any section, if the room is less than
    /// [`ACK_LEN_MIN`]. Its statement begins with the packet `from`. Returns where the next one has to begin; `None` if this one reached the end.
    pub(super) fn encode(
        &self,
        from: PacketNumber,
        arrived: &impl Arrived,
        room: usize,
        out: &mut Vec<u8>,
    ) -> Option<PacketNumber> {
        let begin = out.len();
        let micros = u64::try_from(self.delay.as_micros()).unwrap_or(u64::MAX);
        for value in [self.largest, micros, self.received, self.duplicates, self.drops, self.credit, self.complete] {
            put(out, value);
        }
        put(out, u64::from(from.index));
        let flags_at = out.len();
        out.push(0);
        let mut last_chunk = self.complete;
        put(out, from.chunk.saturating_sub(last_chunk));
        last_chunk = last_chunk.max(from.chunk);
        let limit = begin + room;
        // The packet after the last section: where this statement ends if it is cut.
        let mut stated = from;
        let mut at = from;
        while at.chunk < arrived.end() {
            let Some((first, bitmap)) = arrived.of(at.chunk).and_then(|set| Some((set.next(at.index)?, set))) else {
                at = PacketNumber { chunk: at.chunk + 1, index: 0 };
                continue;
            };
            if out.len() + SECTION_MAX > limit {
                return Some(stated);
            }
            put(out, at.chunk - last_chunk);
            last_chunk = at.chunk;
            let end = section(first, bitmap, out);
            at.index = end;
            stated = at;
        }
        out[flags_at] = LAST;
        None
    }
}

/// Appends the section that begins with the packet `first`, which has arrived. Returns the packet after it.
fn section(first: u32, bitmap: &Bitmap, out: &mut Vec<u8>) -> u32 {
    put(out, u64::from(first));
    let run_end = bitmap.next_missing(first).unwrap_or_else(|| bitmap.len());
    if run_end - first >= UNIFORM || bitmap.next(run_end).is_none() {
        out.push(ALL);
        put(out, u64::from(run_end - first));
        return run_end;
    }
    // A mixed section ends before a long uniform run, and with a packet that has arrived.
    let limit = (first + MIXED).min(bitmap.len());
    let (mut ranges, mut end, mut start) = (Vec::new(), first, first);
    while start < limit {
        let run_end = bitmap.next_missing(start).unwrap_or_else(|| bitmap.len());
        if run_end - start >= UNIFORM && start > first {
            break;
        }
        let run_end = run_end.min(limit);
        if start > first {
            put(&mut ranges, u64::from(start - end));
        }
        put(&mut ranges, u64::from(run_end - start));
        end = run_end;
        match bitmap.next(run_end) {
            Some(next) if next - run_end < UNIFORM => start = next,
            _ => break,
        }
    }
    let len = end - first;
    let bytes = len.div_ceil(8);
    if ranges.len() <= bytes as usize {
        out.push(RANGES);
        put(out, u64::from(len));
        out.append(&mut ranges);
    } else {
        out.push(BITMAP);
        put(out, u64::from(len));
        out.extend((0..bytes).map(|at| bitmap.bits(first + 8 * at, (len - 8 * at).min(8))));
    }
    end
}

impl<'a> Ack<Sections<'a>> {
    /// Parses and checks an acknowledgement. `None` if it is malformed.
    pub fn decode(mut bytes: &'a [u8]) -> Option<Self> {
        let rest = &mut bytes;
        let largest = take(rest).filter(|largest| *largest < TRANSMISSION_END)?;
        let delay = Duration::from_micros(take(rest)?);
        let [received, duplicates, drops] = [take(rest)?, take(rest)?, take(rest)?];
        let credit = take(rest).filter(|credit| *credit <= CHUNK_END)?;
        let complete = take(rest).filter(|complete| *complete <= CHUNK_END)?;
        let index = take(rest).filter(|index| *index < INDEX_END.into())? as u32;
        let (flags, after) = rest.split_first()?;
        *rest = after;
        let chunk = complete.checked_add(take(rest)?).filter(|chunk| *chunk <= CHUNK_END)?;
        let from = PacketNumber { chunk, index };
        let mut sections = Sections { complete, from, end: None, bytes };
        let mut end = from;
        let mut walk = Walk { bytes: sections.bytes, chunk, next: from };
        while !walk.bytes.is_empty() {
            let run = walk.section(|_, _| {})?;
            end = run;
        }
        if *flags & LAST == 0 {
            sections.end = Some(end);
        }
        Some(Self { largest, delay, received, duplicates, drops, credit, complete, statement: sections })
    }
}

impl Sections<'_> {
    /// Whether the statement says of this packet that it has arrived or has not.
    pub fn covers(&self, packet: PacketNumber) -> bool {
        packet.chunk < self.complete || packet >= self.from && self.end.is_none_or(|end| packet < end)
    }

    /// Calls `visit` for each run of packets that have arrived, besides those of complete chunks: the chunk, and the places
    /// in it.
    pub fn each(&self, mut visit: impl FnMut(u64, Range<u32>)) {
        let mut walk = Walk { bytes: self.bytes, chunk: self.from.chunk, next: self.from };
        // It was checked when it was decoded.
        while !walk.bytes.is_empty() && walk.section(&mut visit).is_some() {}
    }
}

/// Reads sections one by one.
struct Walk<'a> {
    bytes: &'a [u8],
    chunk: u64,
    /// The first packet that the next section may contain.
    next: PacketNumber,
}

impl Walk<'_> {
    /// Reads one section, and returns the packet after it. `None` if it is malformed.
    fn section(&mut self, mut visit: impl FnMut(u64, Range<u32>)) -> Option<PacketNumber> {
        let rest = &mut self.bytes;
        let chunk = self.chunk.checked_add(take(rest)?).filter(|chunk| *chunk < CHUNK_END)?;
        let index = |value: u64| u32::try_from(value).ok().filter(|value| *value <= INDEX_END);
        let first = index(take(rest)?)?;
        let (form, after) = rest.split_first()?;
        *rest = after;
        let len = index(take(rest)?).filter(|len| *len > 0)?;
        let end = index(u64::from(first) + u64::from(len))?;
        if (PacketNumber { chunk, index: first }) < self.next {
            return None;
        }
        match *form {
            ALL => visit(chunk, first..end),
            RANGES => {
                let mut at = first;
                loop {
                    let run = index(take(rest)?).filter(|run| *run > 0)?;
                    let run_end = at.checked_add(run).filter(|run_end| *run_end <= end)?;
                    visit(chunk, at..run_end);
                    if run_end == end {
                        break;
                    }
                    let gap = index(take(rest)?).filter(|gap| *gap > 0)?;
                    at = run_end.checked_add(gap).filter(|at| *at < end)?;
                }
            }
            BITMAP => {
                let (bits, after) = rest.split_at_checked(len.div_ceil(8) as usize)?;
                *rest = after;
                let has = |at: u32| bits[at as usize / 8] >> (at % 8) & 1 == 1;
                let mut at = 0;
                while at < len {
                    let run = (at..len).take_while(|at| has(*at)).count() as u32;
                    if run > 0 {
                        visit(chunk, first + at..first + at + run);
                    }
                    at += run + 1;
                }
            }
            _ => return None,
        }
        (self.chunk, self.next) = (chunk, PacketNumber { chunk, index: end });
        Some(self.next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    struct Sets(u64, Vec<Bitmap>);

    impl Arrived for Sets {
        fn of(&self, chunk: u64) -> Option<&Bitmap> {
            self.1.get(chunk.checked_sub(self.0)? as usize).filter(|set| !set.is_empty())
        }

        fn end(&self) -> u64 {
            self.0 + self.1.len() as u64
        }
    }

    fn ack(complete: u64) -> Ack<()> {
        let delay = Duration::from_micros(77);
        Ack { largest: 1 << 39, delay, received: 9, duplicates: 2, drops: 0, credit: 1 << 40, complete, statement: () }
    }

    /// The datagrams of a statement, each of at most `room` bytes.
    fn datagrams(ack: &Ack<()>, sets: &Sets, room: usize) -> Vec<Vec<u8>> {
        let mut from = Some(PacketNumber { chunk: ack.complete, index: 0 });
        let mut all = Vec::new();
        while let Some(at) = from {
            let mut out = Vec::new();
            from = ack.encode(at, sets, room, &mut out);
            assert!(out.len() <= room, "{} of {room} bytes", out.len());
            all.push(out);
        }
        all
    }

    proptest! {
        #[test]
        fn statement_says_of_each_packet_what_is_true(
            chunks in prop::collection::vec((1u32..3000, prop::collection::vec((0u32..3000, 1u32..900), 0..12)), 0..5),
            complete in prop::sample::select(vec![0, 7, 1 << 39]),
        ) {
            let sets = chunks.iter().map(|(len, runs)| {
                let mut set = Bitmap::new(*len);
                // Every run is dense, sparse or regular.
                for (at, (start, run)) in runs.iter().enumerate() {
                    for index in (*start..start + run).step_by(1 + at % 3) {
                        set.insert(index);
                    }
                }
                set
            });
            let sets = Sets(complete, sets.collect());
            let mut said = BTreeSet::new();
            let mut from = PacketNumber { chunk: complete, index: 0 };
            let all = datagrams(&ack(complete), &sets, 300);
            for (at, datagram) in all.iter().enumerate() {
                let decoded = Ack::decode(datagram).unwrap();
                prop_assert_eq!((decoded.largest, decoded.delay, decoded.complete), (1 << 39, Duration::from_micros(77), complete));
                let mut runs = Vec::new();
                decoded.statement.each(|chunk, range| runs.push((chunk, range)));
                for (chunk, range) in runs {
                    for index in range {
                        let is_covered = decoded.statement.covers(PacketNumber { chunk, index });
                        prop_assert!(is_covered);
                        prop_assert!(said.insert((chunk, index)), "said twice");
                    }
                }
                // Of what lies between two datagrams nothing would be said.
                prop_assert_eq!(decoded.statement.from, from);
                from = decoded.statement.end.unwrap_or(from);
                let is_last = at + 1 == all.len();
                prop_assert_eq!(decoded.statement.covers(PacketNumber { chunk: CHUNK_END - 1, index: 0 }), is_last);
            }
            let truth = (complete..).zip(&sets.1).flat_map(|(chunk, set)| {
                (0..set.len()).filter(|index| set.has(*index)).map(move |index| (chunk, index))
            });
            prop_assert_eq!(said, truth.collect::<BTreeSet<_>>());
        }

        #[test]
        fn any_bytes_are_an_acknowledgement_or_none(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Some(ack) = Ack::decode(&bytes) {
                ack.statement.each(|chunk, range| assert!(chunk < CHUNK_END && range.start < range.end));
            }
        }
    }

    #[test]
    fn statement_is_as_short_as_its_form_allows() {
        let mut set = Bitmap::full(2900);
        let len = |set: &Bitmap| datagrams(&ack(0), &Sets(0, vec![set.clone()]), 1400)[0].len();
        let (whole, lost) = (len(&set), [1500, 1600, 1700]);
        // Each lost packet costs a gap and a run.
        lost.into_iter().for_each(|index| _ = set.remove(index));
        let ranges = len(&set);
        assert!(ranges > whole && ranges <= whole + 4 * 3 + 8, "{ranges} bytes instead of {whole}");
        // Where every second packet is lost, each costs a bit.
        (0..2900).step_by(2).for_each(|index| _ = set.remove(index));
        let bitmap = len(&set);
        assert!((2900 / 8..2900 / 8 + 60).contains(&bitmap), "{bitmap} bytes");
    }
}
