//! Batches: many short files on one data connection in stream mode. An extension of Phoebus (`XBATCH` in FEAT):
//! `SITE MPUT` stores what the client sends, and `SITE MGET` sends what `SITE WANT` has named.
//!
//! A batch is the four bytes `PHB1`, records, and the record of the end. Numbers are big-endian:
//!
//! ```text
//!   1  path length u16, path, size u32, flags u8, attributes, bytes, CRC-32C of the bytes u32
//!   2  reply code u16                 the file cannot be sent (SITE MGET alone)
//!   0  number of records before u32   the end
//!
//!   attributes, each if its flag is set: 1: permissions u32, 2: most permissions u32, 4: seconds since 1970 i64 and
//!   nanoseconds u32 of the modification
//! ```
//!
//! A connection that ends before the record of the end has cut the batch. With `SITE MPUT`, a path begins with a slash, from the
//! root. With `SITE MGET`, paths are empty, and the records are in the order in which the files were asked for.

use thiserror::Error;

/// Its first bytes.
const MAGIC: &[u8; 4] = b"PHB1";

/// Most files of a batch.
pub const MAX_FILES: usize = 1024;

/// Size of the largest file of a batch, in bytes.
pub const MAX_SIZE: u32 = 1 << 20;

/// Longest path, in bytes (PATH_MAX of Linux).
pub const MAX_PATH: usize = 4096;

/// Most bytes of the paths of one batch. A session keeps those of `SITE WANT` until the batch.
pub const MAX_WANTED: usize = 128 << 10;

const END: u8 = 0;
const FILE: u8 = 1;
const REFUSED: u8 = 2;

const HAS_MODE: u8 = 1;
const HAS_AT_MOST: u8 = 2;
const HAS_MODIFIED: u8 = 4;

/// A file of a batch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct File {
    /// Its path from the root, which begins with a slash; empty if the receiver has asked for it.
    pub path: Vec<u8>,
    /// Its permissions, if it is to have certain ones, or has.
    pub mode: Option<u32>,
    /// The permissions beyond which it gets none if it is new.
    pub at_most: Option<u32>,
    /// Its time of modification: seconds since 1970, nanoseconds.
    pub modified: Option<(i64, u32)>,
    /// Its content.
    pub bytes: Vec<u8>,
    /// The CRC-32C of its content, as the sender has computed it.
    pub sum: u32,
}

/// A record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    /// A file.
    File(File),
    /// A file that was asked for and cannot be sent, with the code of the reply that RETR would have got.
    Refused(u16),
    /// The end.
    End,
}

/// What makes a batch unreadable.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BatchError {
    /// It begins otherwise.
    #[error("the data are no batch: they do not begin with PHB1")]
    NoBatch,
    /// A record of another kind.
    #[error("a batch has no records of kind {0}, only 0, 1 and 2")]
    Kind(u8),
    /// A length beyond its limit.
    #[error("{what} of {found} is beyond the limit of a batch, {most}")]
    Limit {
        /// What is too long.
        what: &'static str,
        /// Its length.
        found: u64,
        /// The most.
        most: u64,
    },
    /// Unknown flags.
    #[error("a file of a batch has the flags {0:#04x}, and only 1, 2 and 4 are known")]
    Flags(u8),
    /// The nanoseconds of a time are a second or more.
    #[error("a file of a batch has a time with {0} nanoseconds, and a second has 1000000000")]
    Nanoseconds(u32),
    /// The end counts other records than there were.
    #[error("the end of a batch counts {said} records, and {found} have come")]
    Count {
        /// What it says.
        said: u32,
        /// How many there were.
        found: usize,
    },
    /// Something follows the end.
    #[error("something follows the end of a batch")]
    Behind,
    /// The connection has ended before.
    #[error("the batch was cut after {0} records")]
    Cut(usize),
}

/// Writes a batch.
#[derive(Debug)]
pub struct Encoder {
    bytes: Vec<u8>,
    records: u32,
}

impl Default for Encoder {
    fn default() -> Self {
        Self { bytes: MAGIC.to_vec(), records: 0 }
    }
}

impl Encoder {
    /// Adds a file with these bytes. [`File::bytes`] is ignored.
    ///
    /// # Errors
    /// [`BatchError::Limit`]: it does not fit into a batch. Then nothing is added.
    pub fn file(&mut self, file: &File, bytes: &[u8]) -> Result<(), BatchError> {
        let path = u16::try_from(within("the length of a path", file.path.len() as u64, MAX_PATH as u64)?);
        let size = u32::try_from(within("the size of a file", bytes.len() as u64, MAX_SIZE.into())?);
        within("the number of files", u64::from(self.records) + 1, MAX_FILES as u64)?;
        // Both limits fit.
        let (path, size) = (path.unwrap_or(0), size.unwrap_or(0));
        let flag = |is_there: bool, flag: u8| if is_there { flag } else { 0 };
        let flags = flag(file.mode.is_some(), HAS_MODE)
            | flag(file.at_most.is_some(), HAS_AT_MOST)
            | flag(file.modified.is_some(), HAS_MODIFIED);
        let out = &mut self.bytes;
        out.push(FILE);
        out.extend(path.to_be_bytes());
        out.extend(&file.path);
        out.extend(size.to_be_bytes());
        out.push(flags);
        for mode in [file.mode, file.at_most].into_iter().flatten() {
            out.extend(mode.to_be_bytes());
        }
        if let Some((seconds, nanos)) = file.modified {
            out.extend(seconds.to_be_bytes());
            out.extend(nanos.to_be_bytes());
        }
        out.extend(bytes);
        out.extend(file.sum.to_be_bytes());
        self.records += 1;
        Ok(())
    }

    /// Adds that a file cannot be sent.
    pub fn refused(&mut self, code: u16) {
        self.bytes.push(REFUSED);
        self.bytes.extend(code.to_be_bytes());
        self.records += 1;
    }

    /// Ends the batch.
    pub fn end(&mut self) {
        self.bytes.push(END);
        self.bytes.extend(self.records.to_be_bytes());
    }

    /// Number of bytes that wait to be sent.
    pub fn waiting(&self) -> usize {
        self.bytes.len()
    }

    /// Takes the bytes that wait to be sent.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }
}

/// Reads a batch.
#[derive(Debug, Default)]
pub struct Decoder {
    bytes: Vec<u8>,
    /// How many of them are read.
    at: usize,
    begun: bool,
    ended: bool,
    records: usize,
}

impl Decoder {
    /// Adds received bytes. Memory is bounded if [`Self::take`] is called until it returns nothing.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..std::mem::take(&mut self.at));
        self.bytes.extend(bytes);
    }

    /// The next record, if all of it has come.
    ///
    /// # Errors
    /// The batch is unreadable from here on.
    pub fn take(&mut self) -> Result<Option<Record>, BatchError> {
        let mut input = Input(&self.bytes[self.at..]);
        if !self.begun {
            let known = input.0.len().min(MAGIC.len());
            if input.0[..known] != MAGIC[..known] {
                return Err(BatchError::NoBatch);
            }
            if input.array::<4>().is_none() {
                return Ok(None);
            }
            (self.begun, self.at) = (true, MAGIC.len());
        }
        if self.ended {
            return if input.0.is_empty() { Ok(None) } else { Err(BatchError::Behind) };
        }
        let whole = input.0.len();
        let Some(record) = input.record(self.records)? else { return Ok(None) };
        self.at += whole - input.0.len();
        if record == Record::End {
            self.ended = true
        } else {
            self.records += 1
        }
        Ok(Some(record))
    }

    /// Checks that the batch has ended, once no more bytes come.
    ///
    /// # Errors
    /// It was cut.
    pub fn finish(&self) -> Result<(), BatchError> {
        if self.ended { Ok(()) } else { Err(BatchError::Cut(self.records)) }
    }
}

/// Bytes to read.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn some(&mut self, len: usize) -> Option<&'a [u8]> {
        let (some, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(some)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (some, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*some)
    }

    fn number(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    /// A record, if all of it is there. Lengths are judged as soon as they are known.
    fn record(&mut self, before: usize) -> Result<Option<Record>, BatchError> {
        let Some([kind]) = self.array() else { return Ok(None) };
        match kind {
            END => match self.number() {
                Some(said) if said as usize != before => Err(BatchError::Count { said, found: before }),
                said => Ok(said.map(|_| Record::End)),
            },
            FILE | REFUSED => {
                within("the number of files", before as u64 + 1, MAX_FILES as u64)?;
                match kind {
                    FILE => self.file().map(|file| file.map(Record::File)),
                    _ => Ok(self.array().map(|code| Record::Refused(u16::from_be_bytes(code)))),
                }
            }
            other => Err(BatchError::Kind(other)),
        }
    }

    fn file(&mut self) -> Result<Option<File>, BatchError> {
        let Some(len) = self.array().map(u16::from_be_bytes) else { return Ok(None) };
        within("the length of a path", len.into(), MAX_PATH as u64)?;
        let Some(path) = self.some(len.into()) else { return Ok(None) };
        let Some(size) = self.number() else { return Ok(None) };
        within("the size of a file", size.into(), MAX_SIZE.into())?;
        let Some([flags]) = self.array() else { return Ok(None) };
        if flags & !(HAS_MODE | HAS_AT_MOST | HAS_MODIFIED) != 0 {
            return Err(BatchError::Flags(flags));
        }
        let rest = (|| {
            let mode = if flags & HAS_MODE != 0 { Some(self.number()?) } else { None };
            let at_most = if flags & HAS_AT_MOST != 0 { Some(self.number()?) } else { None };
            let modified = match flags & HAS_MODIFIED {
                0 => None,
                _ => Some((i64::from_be_bytes(self.array()?), self.number()?)),
            };
            Some((mode, at_most, modified, self.some(size as usize)?.to_vec(), self.number()?))
        })();
        let Some((mode, at_most, modified, bytes, sum)) = rest else { return Ok(None) };
        match modified {
            Some((_, nanos)) if nanos >= 1_000_000_000 => Err(BatchError::Nanoseconds(nanos)),
            _ => Ok(Some(File { path: path.to_vec(), mode, at_most, modified, bytes, sum })),
        }
    }
}

fn within(what: &'static str, found: u64, most: u64) -> Result<u64, BatchError> {
    if found > most { Err(BatchError::Limit { what, found, most }) } else { Ok(found) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(decoder: &mut Decoder) -> Result<Vec<Record>, BatchError> {
        std::iter::from_fn(|| decoder.take().transpose()).collect()
    }

    fn file() -> impl Strategy<Value = File> {
        let modes = (any::<Option<u32>>(), any::<Option<u32>>());
        let time = prop::option::of((any::<i64>(), 0..1_000_000_000u32));
        let bytes = prop::collection::vec(any::<u8>(), 0..2000);
        (prop::collection::vec(any::<u8>(), 0..200), modes, time, bytes, any::<u32>()).prop_map(
            |(path, (mode, at_most), modified, bytes, sum)| File { path, mode, at_most, modified, bytes, sum },
        )
    }

    proptest! {
        #[test]
        fn batch_is_read_as_it_was_written(
            files in prop::collection::vec(prop::option::of(file()), 0..20),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
        ) {
            let mut encoder = Encoder::default();
            let mut expected = Vec::new();
            for file in files {
                match file {
                    Some(file) => {
                        encoder.file(&file, &file.bytes).unwrap();
                        expected.push(Record::File(file));
                    }
                    None => {
                        encoder.refused(550);
                        expected.push(Record::Refused(550));
                    }
                }
            }
            encoder.end();
            expected.push(Record::End);
            let bytes = encoder.take();
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len())).chain([0, bytes.len()]).collect();
            cuts.sort();
            let (mut decoder, mut found) = (Decoder::default(), Vec::new());
            for piece in cuts.windows(2) {
                prop_assert!(decoder.finish().is_err());
                decoder.push(&bytes[piece[0]..piece[1]]);
                found.extend(all(&mut decoder).unwrap());
            }
            prop_assert!(decoder.finish().is_ok());
            prop_assert_eq!(found, expected);
            decoder.push(b"x");
            prop_assert_eq!(decoder.take(), Err(BatchError::Behind));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut decoder = Decoder::default();
            decoder.push(MAGIC);
            decoder.push(&bytes);
            let _ = all(&mut decoder);
        }
    }

    #[test]
    fn limits_are_judged_before_the_bytes_have_come() {
        let read = |bytes: &[u8]| {
            let mut decoder = Decoder::default();
            decoder.push(&[MAGIC, bytes].concat());
            all(&mut decoder)
        };
        assert_eq!(read(b""), Ok(Vec::new()));
        assert_eq!(read(&[7]), Err(BatchError::Kind(7)));
        assert_eq!(
            read(&[1, 0x10, 1]),
            Err(BatchError::Limit { what: "the length of a path", found: 4097, most: 4096 })
        );
        let long = BatchError::Limit { what: "the size of a file", found: (1 << 20) + 1, most: 1 << 20 };
        assert_eq!(read(&[1, 0, 1, b'a', 0, 0x10, 0, 1]), Err(long));
        assert_eq!(read(&[1, 0, 0, 0, 0, 0, 0, 8]), Err(BatchError::Flags(8)));
        assert_eq!(read(&[0, 0, 0, 0, 1]), Err(BatchError::Count { said: 1, found: 0 }));
        let time = [&[1, 0, 0, 0, 0, 0, 0, 4][..], &[0; 8], &1_000_000_000u32.to_be_bytes(), &[0; 4]].concat();
        assert_eq!(read(&time), Err(BatchError::Nanoseconds(1_000_000_000)));
        let mut decoder = Decoder::default();
        decoder.push(b"PH1");
        assert_eq!(decoder.take(), Err(BatchError::NoBatch));
        let refused = [2, 2, 38].repeat(MAX_FILES + 1);
        assert!(matches!(read(&refused), Err(BatchError::Limit { what: "the number of files", .. })));
        assert_eq!(read(&refused[3..]).unwrap().len(), MAX_FILES);
        let mut encoder = Encoder::default();
        assert!(encoder.file(&File { path: vec![b'a'; MAX_PATH + 1], ..File::default() }, b"").is_err());
        assert!(encoder.file(&File::default(), &[0; MAX_SIZE as usize + 1]).is_err());
        assert_eq!(encoder.take(), MAGIC);
    }
}
