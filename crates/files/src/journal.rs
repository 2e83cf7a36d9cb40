//! The journal of a draft: a file beside it that records which bytes are synced.
//!
//! A header is followed by records that are only appended, each after the bytes that it names were synced. A record is
//! `u32 length | u32 check | payload`, big-endian. The check is CRC-32C over the payload, seeded with the check of the
//! previous record, so a torn record or the rest of an older file ends the journal there: nothing counts that was not
//! written completely. [`read`] parses a journal; [`header`] and [`record`] print its parts. `draft` decides when to
//! write.
//!
//! ```text
//! header   "PHBJ" | u8 version | u64 draft | u64 size | u8 dated | i64 seconds | u32 nanos | u8 sum | source…
//! record   (u64 start | u64 length | u32 sum)…        the last only if the header names a checksum
//! ```

use crate::meta::Time;
use crate::range::{Extent, Ranges};
use crate::sum::{Combining, Tally};

/// Longest journal that is read. A transfer of ten hours over eight streams needs a tenth of it.
pub const MAX_JOURNAL: u64 = 64 << 20;

/// Longest record that is written or accepted.
const MAX_RECORD: usize = 1 << 20;

/// Longest name of a source.
pub const MAX_SOURCE: usize = 16 << 10;

const MAGIC: &[u8; 5] = b"PHBJ\x01";

/// The subject of a journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// Inode number of the draft's file.
    pub draft: u64,
    /// Its final size in bytes.
    pub size: u64,
    /// The source, without credentials.
    pub source: String,
    /// Time of modification of the source, if known.
    pub modified: Option<Time>,
    /// Algorithm of the checksums in records.
    pub sum: Option<Combining>,
}

/// The content of a journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Journal {
    /// Its subject.
    pub header: Header,
    /// Synced ranges, and their checksums.
    pub parts: Parts,
}

/// Ranges with optional checksums.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parts {
    /// The ranges.
    pub ranges: Ranges,
    /// Their checksums.
    pub tally: Option<Tally>,
}

impl Parts {
    /// No range.
    pub fn new(sum: Option<Combining>) -> Self {
        Self { ranges: Ranges::new(), tally: sum.map(Tally::new) }
    }

    /// Adds `extent`. False if it overlaps a range.
    pub fn add(&mut self, extent: Extent, sum: u32) -> bool {
        let new =
            !self.ranges.touches(extent) && self.tally.as_mut().is_none_or(|tally| tally.add(extent, sum).is_ok());
        if new {
            self.ranges.insert(extent);
        }
        new
    }

    /// Adds all of `other`. False if it overlaps.
    pub fn merge(&mut self, other: &Self) -> bool {
        other.iter().all(|(extent, sum)| self.add(extent, sum))
    }

    /// Ranges and checksums; zero without a checksum.
    pub fn iter(&self) -> Box<dyn Iterator<Item = (Extent, u32)> + '_> {
        match &self.tally {
            Some(tally) => Box::new(tally.iter()),
            None => Box::new(self.ranges.iter().map(|extent| (extent, 0))),
        }
    }
}

/// Prints `header`. Also returns the check that seeds the first record. A source that is too long is cut, and so
/// matches no source.
pub fn header(header: &Header, out: &mut Vec<u8>) -> u32 {
    let mut payload = MAGIC.to_vec();
    payload.extend(header.draft.to_be_bytes());
    payload.extend(header.size.to_be_bytes());
    payload.push(header.modified.is_some().into());
    let modified = header.modified.unwrap_or(Time { seconds: 0, nanos: 0 });
    payload.extend(modified.seconds.to_be_bytes());
    payload.extend(modified.nanos.to_be_bytes());
    payload.push(match header.sum {
        None => 0,
        Some(Combining::Crc32c) => 1,
        Some(Combining::Adler32) => 2,
    });
    payload.extend(&header.source.as_bytes()[..header.source.len().min(MAX_SOURCE)]);
    frame(&payload, 0, out)
}

/// Prints records for `parts`. Returns the check that seeds the next record.
pub fn record(parts: &Parts, mut check: u32, out: &mut Vec<u8>) -> u32 {
    let mut payload = Vec::new();
    for (extent, sum) in parts.iter() {
        if payload.len() + 20 > MAX_RECORD {
            check = frame(&payload, check, out);
            payload.clear();
        }
        payload.extend(extent.start().to_be_bytes());
        payload.extend(extent.len().to_be_bytes());
        if parts.tally.is_some() {
            payload.extend(sum.to_be_bytes());
        }
    }
    if payload.is_empty() { check } else { frame(&payload, check, out) }
}

/// Parses a journal up to its first damage. `None` if the header is damaged or of another version.
pub fn read(mut bytes: &[u8]) -> Option<Journal> {
    let mut check = 0;
    let header = parse_header(unframe(&mut bytes, &mut check)?)?;
    let mut parts = Parts::new(header.sum);
    while let Some(payload) = unframe(&mut bytes, &mut check) {
        if !parse_record(payload, &header, &mut parts) {
            break;
        }
    }
    Some(Journal { header, parts })
}

fn frame(payload: &[u8], before: u32, out: &mut Vec<u8>) -> u32 {
    let check = crc32c::crc32c_append(before, payload);
    // MAX_RECORD and MAX_SOURCE bound payloads.
    out.extend((payload.len() as u32).to_be_bytes());
    out.extend(check.to_be_bytes());
    out.extend(payload);
    check
}

fn unframe<'a>(bytes: &mut &'a [u8], before: &mut u32) -> Option<&'a [u8]> {
    let (len, rest) = bytes.split_first_chunk()?;
    let (check, rest) = rest.split_first_chunk()?;
    let (len, check) = (u32::from_be_bytes(*len) as usize, u32::from_be_bytes(*check));
    // Payloads are never empty, so trailing zeros, which power loss may leave, end the journal.
    if len == 0 || len > MAX_RECORD {
        return None;
    }
    let (payload, rest) = rest.split_at_checked(len)?;
    if crc32c::crc32c_append(*before, payload) != check {
        return None;
    }
    (*bytes, *before) = (rest, check);
    Some(payload)
}

fn parse_header(payload: &[u8]) -> Option<Header> {
    let mut rest = payload.strip_prefix(MAGIC)?;
    let draft = u64::from_be_bytes(take(&mut rest)?);
    let size = u64::from_be_bytes(take(&mut rest)?);
    let [dated] = take(&mut rest)?;
    let seconds = i64::from_be_bytes(take(&mut rest)?);
    let nanos = u32::from_be_bytes(take(&mut rest)?);
    let [sum] = take(&mut rest)?;
    let sum = match sum {
        0 => None,
        1 => Some(Combining::Crc32c),
        2 => Some(Combining::Adler32),
        _ => return None,
    };
    let modified = (dated == 1).then_some(Time { seconds, nanos });
    let source = (rest.len() <= MAX_SOURCE).then(|| String::from_utf8(rest.to_vec()).ok())??;
    Some(Header { draft, size, source, modified, sum })
}

/// Adds a record, unless it is contradictory.
fn parse_record(mut payload: &[u8], header: &Header, parts: &mut Parts) -> bool {
    while !payload.is_empty() {
        let Some((start, len)) = take(&mut payload).zip(take(&mut payload)) else { return false };
        let extent = Extent::new(u64::from_be_bytes(start), u64::from_be_bytes(len));
        let Some(extent) = extent.filter(|e| !e.is_empty() && e.end() <= header.size) else { return false };
        let sum = match header.sum {
            Some(_) => take(&mut payload).map(u32::from_be_bytes),
            None => Some(0),
        };
        let Some(sum) = sum else { return false };
        if !parts.add(extent, sum) {
            return false;
        }
    }
    true
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*taken)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn example(sum: Option<Combining>, extents: &[(u64, u64)]) -> (Journal, Vec<u8>, Vec<usize>) {
        let time = Time { seconds: -5, nanos: 7 };
        let head = Header { draft: 12, size: 1 << 40, source: "file:///d/é".into(), modified: Some(time), sum };
        let (mut bytes, mut ends, mut parts) = (Vec::new(), Vec::new(), Parts::new(sum));
        let mut check = header(&head, &mut bytes);
        ends.push(bytes.len());
        for (i, &(at, len)) in extents.iter().enumerate() {
            let mut new = Parts::new(sum);
            if new.add(Extent::new(at, len).unwrap(), i as u32) && parts.merge(&new) {
                check = record(&new, check, &mut bytes);
                ends.push(bytes.len());
            }
        }
        (Journal { header: head, parts }, bytes, ends)
    }

    proptest! {
        #[test]
        fn written_journal_reads_back(extents in proptest::collection::vec((0..1u64 << 38, 1..1u64 << 30), 0..20)) {
            for sum in [None, Some(Combining::Crc32c), Some(Combining::Adler32)] {
                let (journal, bytes, _) = example(sum, &extents);
                prop_assert_eq!(read(&bytes), Some(journal));
            }
        }

        #[test]
        fn journal_ends_at_torn_or_changed_records(
            extents in proptest::collection::vec((0..1u64 << 38, 1..1u64 << 30), 0..10),
            at: proptest::sample::Index,
            flip in 1..=255u8,
            junk in proptest::collection::vec(any::<u8>(), 0..40),
        ) {
            let (journal, bytes, ends) = example(Some(Combining::Crc32c), &extents);
            let at = at.index(bytes.len());
            let mut changed = bytes.clone();
            changed[at] ^= flip;
            let torn = [&bytes[..at], &junk[..]].concat();
            for damaged in [changed, torn] {
                let whole = ends.iter().filter(|&&end| end <= at).count();
                match read(&damaged) {
                    // The junk may happen to be the byte that was there.
                    _ if damaged.starts_with(&bytes) => {}
                    None => prop_assert_eq!(whole, 0),
                    Some(found) => {
                        prop_assert!(whole > 0);
                        prop_assert_eq!(&found.header, &journal.header);
                        prop_assert_eq!(found.parts.ranges.total() <= journal.parts.ranges.total(), true);
                        let shorter = read(&bytes[..ends[whole - 1]]).unwrap();
                        prop_assert!(found == shorter || damaged.starts_with(&bytes[..ends[whole]]));
                    }
                }
            }
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = read(&bytes);
        }
    }

    #[test]
    fn records_that_contradict_end_it() {
        let (journal, mut bytes, _) = example(None, &[(0, 10), (20, 10)]);
        let check = crc32c_of(&bytes);
        let mut twice = Parts::new(None);
        twice.add(Extent::new(25, 10).unwrap(), 0);
        record(&twice, check, &mut bytes);
        assert_eq!(read(&bytes), Some(journal));
    }

    /// The check that seeds the next record.
    fn crc32c_of(mut bytes: &[u8]) -> u32 {
        let mut check = 0;
        while unframe(&mut bytes, &mut check).is_some() {}
        check
    }
}
