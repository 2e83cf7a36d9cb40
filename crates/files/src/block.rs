//! Blocks of bytes on their way, in a bounded number of buffers (P22, L8).

use crate::error::Error;
use crate::range::Extent;
use crate::sum::Combining;
use crate::user_file::UserFile;
use bytes::Bytes;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes of an object, and where in it they belong. Blocks of an object may come in any order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// The offset of the first byte.
    pub offset: u64,
    /// The bytes, or where they are.
    pub body: Body,
    /// Their checksum, where it was computed on the way, of the sort that the transfer uses.
    pub sum: Option<u32>,
}

/// Where the bytes of a block are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    /// Here. A slice of them keeps the whole buffer in use.
    Bytes(Bytes),
    /// In an open file, where whoever carries them takes them: only for those who asked for it
    /// ([`Shape::lend`](crate::store::Shape::lend)).
    Lent(Lent),
    /// So many are in the draft already, since whoever received them was given where to put them
    /// ([`Shape::into`](crate::store::Shape::into)).
    Landed(u64),
    /// Nowhere: so many zeros, which a file of this machine has no room for: only for those who asked for it
    /// ([`Shape::holes`](crate::store::Shape::holes)).
    Hole(u64),
}

/// Bytes of an open file of this machine.
#[derive(Debug, Clone)]
pub struct Lent {
    /// The file, and as whom it is read.
    pub file: UserFile,
    /// As errors name it.
    pub name: Arc<str>,
    /// Whether it is a regular file, which the kernel can send from without copying.
    pub regular: bool,
    /// Where in it they begin.
    pub at: u64,
    /// How many they are.
    pub len: u64,
}

impl PartialEq for Lent {
    fn eq(&self, other: &Self) -> bool {
        self.file.is(&other.file) && (self.at, self.len) == (other.at, other.len)
    }
}

impl Eq for Lent {}

impl Lent {
    /// Reads the bytes from the `from`th on, as many as `room` takes or there are. Blocks.
    ///
    /// # Errors
    /// They cannot be read, or the file has become shorter.
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

    /// The error for a file that ends before the `from`th of the bytes.
    pub fn short(&self, from: u64) -> Error {
        let (at, expected) = (self.at.saturating_add(from), self.at.saturating_add(self.len));
        Error::Short { name: self.name.to_string(), at, expected }
    }
}

impl Block {
    /// `bytes`, which belong at `offset`.
    pub fn new(offset: u64, bytes: impl Into<Bytes>) -> Self {
        Self { offset, body: Body::Bytes(bytes.into()), sum: None }
    }

    /// The bytes `extent` of a draft, which are in it already.
    pub fn landed(extent: Extent) -> Self {
        Self { offset: extent.start(), body: Body::Landed(extent.len()), sum: None }
    }

    /// The zeros `extent`, which are nowhere.
    pub fn hole(extent: Extent, sum: Option<u32>) -> Self {
        Self { offset: extent.start(), body: Body::Hole(extent.len()), sum }
    }

    /// How many bytes it has.
    pub fn len(&self) -> u64 {
        match &self.body {
            Body::Bytes(bytes) => bytes.len() as u64,
            Body::Lent(lent) => lent.len,
            Body::Landed(len) | Body::Hole(len) => *len,
        }
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether its bytes are in the draft already.
    pub fn has_landed(&self) -> bool {
        matches!(self.body, Body::Landed(_))
    }

    /// Whether its bytes are zeros that are nowhere.
    pub fn is_hole(&self) -> bool {
        matches!(self.body, Body::Hole(_))
    }

    /// Its bytes.
    ///
    /// # Errors
    /// They are elsewhere, which nobody is told who has not asked for it.
    pub fn bytes(&self) -> Result<&Bytes, Error> {
        match &self.body {
            Body::Bytes(bytes) => Ok(bytes),
            Body::Lent(lent) => {
                Err(Error::Unsupported { name: lent.name.to_string(), what: "bytes that are still in a file" })
            }
            Body::Landed(_) => {
                Err(Error::Unsupported { name: "a block".to_owned(), what: "bytes that have gone on already" })
            }
            Body::Hole(_) => Err(Error::Unsupported { name: "a block".to_owned(), what: "zeros that are nowhere" }),
        }
    }

    /// Which bytes of the object these are, unless they reach beyond what 64 bits can count.
    pub fn extent(&self) -> Option<Extent> {
        Extent::new(self.offset, self.len())
    }

    /// The checksum that travels with it, or that of its bytes.
    ///
    /// # Errors
    /// There is none, and the bytes are elsewhere.
    pub fn sum_by(&self, how: Combining) -> Result<u32, Error> {
        match self.sum {
            Some(sum) => Ok(sum),
            None if self.is_hole() => Ok(how.of_zeros(self.len())),
            None => Ok(how.of(self.bytes()?)),
        }
    }

    /// The bytes of it that `extent` names, as a block of their own without a checksum.
    pub fn part(&self, extent: Extent) -> Option<Self> {
        let extent = extent.common(self.extent()?)?;
        let from = extent.start() - self.offset;
        let body = match &self.body {
            Body::Bytes(bytes) => {
                let from = usize::try_from(from).ok()?;
                Body::Bytes(bytes.slice(from..from + usize::try_from(extent.len()).ok()?))
            }
            Body::Lent(lent) => Body::Lent(Lent { at: lent.at.checked_add(from)?, len: extent.len(), ..lent.clone() }),
            Body::Landed(_) => Body::Landed(extent.len()),
            Body::Hole(_) => Body::Hole(extent.len()),
        };
        Some(Self { offset: extent.start(), body, sum: None })
    }
}

/// Buffers of one size, so many and no more: whoever wants another waits until one comes back. Clones share them.
#[derive(Debug, Clone)]
pub struct Pool(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    size: usize,
    free: Mutex<Vec<Vec<u8>>>,
    permits: Arc<Semaphore>,
}

impl Pool {
    /// `count` buffers (at least one) of `size` bytes. Their memory is taken when they are first used.
    pub fn new(size: usize, count: usize) -> Self {
        let permits = Arc::new(Semaphore::new(count.clamp(1, Semaphore::MAX_PERMITS)));
        Self(Arc::new(Shared { size, free: Mutex::default(), permits }))
    }

    /// How long its buffers are, in bytes.
    pub fn size(&self) -> usize {
        self.0.size
    }

    /// A buffer of [`Self::size`] bytes, with whatever was in it before, when there is one. Dropping the future costs
    /// nothing.
    pub async fn take(&self) -> Buffer {
        // The semaphore is never closed; without a permit the buffer would only not be counted.
        let permit = self.0.permits.clone().acquire_owned().await.ok();
        let free = self.0.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        Buffer { bytes: free.unwrap_or_else(|| vec![0; self.0.size]), len: 0, pool: self.0.clone(), _permit: permit }
    }
}

/// A buffer of a [`Pool`], which returns there when it and everything made of it is dropped.
#[derive(Debug)]
pub struct Buffer {
    bytes: Vec<u8>,
    len: usize,
    pool: Arc<Shared>,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Buffer {
    /// All of it, to be filled.
    pub fn room(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Its first `len` bytes, shared and no longer changed.
    pub fn freeze(mut self, len: usize) -> Bytes {
        self.len = len.min(self.bytes.len());
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        self.pool.free.lock().unwrap_or_else(PoisonError::into_inner).push(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test]
    async fn buffers_are_lent_until_the_last_slice_is_gone() {
        let pool = Pool::new(8, 2);
        let mut first = pool.take().await;
        first.room().copy_from_slice(b"abcdefgh");
        let _second = pool.take().await;
        let bytes = first.freeze(6);
        let slice = bytes.slice(2..4);
        drop(bytes);
        assert!(tokio::time::timeout(Duration::from_millis(10), pool.take()).await.is_err(), "a third of two");
        assert_eq!(&slice[..], b"cd");
        drop(slice);
        assert_eq!(pool.take().await.room().len(), 8);
    }

    #[test]
    fn parts_are_those_bytes_and_no_others() {
        let block = Block { sum: Some(1), ..Block::new(100, &b"abcdef"[..]) };
        let part = block.part(Extent::between(98, 103).unwrap()).unwrap();
        assert_eq!(part, Block::new(100, &b"abc"[..]));
        assert_eq!(block.part(Extent::between(106, 110).unwrap()), None);
        assert_eq!(Block::new(u64::MAX, &b"ab"[..]).extent(), None);
    }
}
