//! Blocks of bytes in flight, in a bounded number of buffers (P22, L8).

pub use crate::pool::{Buffer, Pool};

use crate::error::Error;
use crate::range::Extent;
use crate::sum::Combining;
use crate::user_file::UserFile;
use bytes::Bytes;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Bytes of an object, and their place in it. Blocks of an object may come in any order.
///
/// `B` says where the bytes are. Most users take a `Block<Bytes>`, whose bytes are in memory. A flow gives a
/// [`Block<Body>`](Body), whose bytes may be elsewhere if the user has asked for that ([`Shape`](crate::store::Shape)).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block<B = Body> {
    /// The offset of the first byte.
    pub offset: u64,
    /// The bytes, or where they are.
    pub body: B,
    /// Their checksum, if it was computed on the way, of the transfer's algorithm.
    pub sum: Option<u32>,
}

/// Where the bytes of a block are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    /// In memory. A slice keeps the whole buffer in use.
    Bytes(Bytes),
    /// In an open file, from which the user reads them. Only on request ([`Shape::lend`](crate::store::Shape::lend)).
    FileRange(FileRange),
    /// In the draft already, written directly by the receiver ([`Shape::into`](crate::store::Shape::into)).
    Written(u64),
    /// A hole: zeros that take no space. Only on request ([`Shape::holes`](crate::store::Shape::holes)).
    Hole(u64),
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        Self::Bytes(bytes)
    }
}

/// The bytes of a block, wherever they are.
pub trait Content: Sized {
    /// Their number.
    fn len(&self) -> u64;

    /// Whether they are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// `len` bytes from `from` on, if there are so many.
    fn part(&self, from: u64, len: u64) -> Option<Self>;

    /// Their checksum, if it can be computed here.
    fn sum(&self, how: Combining) -> Option<u32>;
}

impl Content for Bytes {
    fn len(&self) -> u64 {
        self.len() as u64
    }

    fn part(&self, from: u64, len: u64) -> Option<Self> {
        let (from, end) = (usize::try_from(from).ok()?, usize::try_from(from.checked_add(len)?).ok()?);
        (end <= self.len()).then(|| self.slice(from..end))
    }

    fn sum(&self, how: Combining) -> Option<u32> {
        Some(how.of(self))
    }
}

impl Content for FileRange {
    fn len(&self) -> u64 {
        self.len
    }

    fn part(&self, from: u64, len: u64) -> Option<Self> {
        let fits = from.checked_add(len).is_some_and(|end| end <= self.len);
        fits.then_some(Self { at: self.at.checked_add(from)?, len, ..self.clone() })
    }

    fn sum(&self, _how: Combining) -> Option<u32> {
        None
    }
}

impl Content for Body {
    fn len(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::FileRange(lent) => lent.len,
            Self::Written(len) | Self::Hole(len) => *len,
        }
    }

    fn part(&self, from: u64, len: u64) -> Option<Self> {
        let fits = from.checked_add(len).is_some_and(|end| end <= self.len());
        match self {
            Self::Bytes(bytes) => bytes.part(from, len).map(Self::Bytes),
            Self::FileRange(lent) => lent.part(from, len).map(Self::FileRange),
            Self::Written(_) => fits.then_some(Self::Written(len)),
            Self::Hole(_) => fits.then_some(Self::Hole(len)),
        }
    }

    fn sum(&self, how: Combining) -> Option<u32> {
        match self {
            Self::Bytes(bytes) => bytes.sum(how),
            Self::Hole(len) => Some(how.of_zeros(*len)),
            Self::FileRange(_) | Self::Written(_) => None,
        }
    }
}

/// Bytes of an open file of this machine.
#[derive(Debug, Clone)]
pub struct FileRange {
    /// The file, and the user as whom it is read.
    pub file: UserFile,
    /// Name in errors.
    pub name: Arc<str>,
    /// Whether it is a regular file, which the kernel can send from without copying.
    pub regular: bool,
    /// Offset in the file.
    pub at: u64,
    /// How many they are.
    pub len: u64,
}

impl PartialEq for FileRange {
    fn eq(&self, other: &Self) -> bool {
        self.file.is(&other.file) && (self.at, self.len) == (other.at, other.len)
    }
}

impl Eq for FileRange {}

impl FileRange {
    /// Reads from `from` on, as many bytes as fit into `room`. Blocks.
    ///
    /// # Errors
    /// Reading fails, or the file has become shorter.
    pub fn read(&self, from: u64, room: &mut [u8]) -> Result<usize, Error> {
        let most = usize::try_from(self.len.saturating_sub(from)).unwrap_or(usize::MAX).min(room.len());
        loop {
            match self.file.act(|file| file.read_at(&mut room[..most], self.at.saturating_add(from))) {
                Ok(0) if most > 0 => return Err(self.short(from)),
                Ok(read) => return Ok(read),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::io(&self.name, "read", error)),
            }
        }
    }

    /// The error for a file that ends before `from`.
    pub fn short(&self, from: u64) -> Error {
        let (at, expected) = (self.at.saturating_add(from), self.at.saturating_add(self.len));
        Error::Short { name: self.name.to_string(), at, expected }
    }
}

impl<B: From<Bytes>> Block<B> {
    /// A block of `bytes` at `offset`.
    pub fn new(offset: u64, bytes: impl Into<Bytes>) -> Self {
        Self { offset, body: bytes.into().into(), sum: None }
    }
}

impl From<Block<Bytes>> for Block {
    fn from(Block { offset, body, sum }: Block<Bytes>) -> Self {
        Self { offset, body: Body::Bytes(body), sum }
    }
}

impl From<Block<FileRange>> for Block {
    fn from(Block { offset, body, sum }: Block<FileRange>) -> Self {
        Self { offset, body: Body::FileRange(body), sum }
    }
}

impl<B: Content> Block<B> {
    /// Its length in bytes.
    pub fn len(&self) -> u64 {
        self.body.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.body.is_empty()
    }

    /// Its range in the object. `None` if it exceeds 64 bits.
    pub fn extent(&self) -> Option<Extent> {
        Extent::new(self.offset, self.len())
    }

    /// Its checksum: the one it carries, or a computed one.
    pub fn sum_by(&self, how: Combining) -> Option<u32> {
        self.sum.or_else(|| self.body.sum(how))
    }

    /// The part `extent`, as a block without a checksum.
    pub fn part(&self, extent: Extent) -> Option<Self> {
        let extent = extent.common(self.extent()?)?;
        let body = self.body.part(extent.start() - self.offset, extent.len())?;
        Some(Self { offset: extent.start(), body, sum: None })
    }
}

impl Block {
    /// A block for `extent` that is in the draft already.
    pub fn written(extent: Extent) -> Self {
        Self { offset: extent.start(), body: Body::Written(extent.len()), sum: None }
    }

    /// A block for the hole `extent`.
    pub fn hole(extent: Extent, sum: Option<u32>) -> Self {
        Self { offset: extent.start(), body: Body::Hole(extent.len()), sum }
    }

    /// Whether its bytes are in the draft already.
    pub fn is_written(&self) -> bool {
        matches!(self.body, Body::Written(_))
    }

    /// Whether it is a hole.
    pub fn is_hole(&self) -> bool {
        matches!(self.body, Body::Hole(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_those_bytes_and_no_others() {
        let block = Block { sum: Some(1), ..Block::<Bytes>::new(100, &b"abcdef"[..]) };
        let part = block.part(Extent::between(98, 103).unwrap()).unwrap();
        assert_eq!(part, Block::new(100, &b"abc"[..]));
        assert_eq!(block.part(Extent::between(106, 110).unwrap()), None);
        assert_eq!(Block::<Bytes>::new(u64::MAX, &b"ab"[..]).extent(), None);
    }
}
