//! Blocks of bytes on their way, in a bounded number of buffers (P22, L8).

use crate::range::Extent;
use crate::sum::Combining;
use bytes::Bytes;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes of an object, and where in it they belong. Blocks of an object may come in any order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// The offset of the first byte.
    pub offset: u64,
    /// The bytes. A slice of them keeps the whole buffer in use.
    pub bytes: Bytes,
    /// Their checksum, where it was computed on the way, of the sort that the transfer uses.
    pub sum: Option<u32>,
}

impl Block {
    /// `bytes`, which belong at `offset`.
    pub fn new(offset: u64, bytes: impl Into<Bytes>) -> Self {
        Self { offset, bytes: bytes.into(), sum: None }
    }

    /// Which bytes of the object these are, unless they reach beyond what 64 bits can count.
    pub fn extent(&self) -> Option<Extent> {
        Extent::new(self.offset, self.bytes.len() as u64)
    }

    /// The checksum that travels with it, or that of its bytes.
    pub fn sum_by(&self, how: Combining) -> u32 {
        self.sum.unwrap_or_else(|| how.of(&self.bytes))
    }

    /// The bytes of it that `extent` names, as a block of their own without a checksum.
    pub fn part(&self, extent: Extent) -> Option<Self> {
        let extent = extent.common(self.extent()?)?;
        let from = usize::try_from(extent.start() - self.offset).ok()?;
        let to = from + usize::try_from(extent.len()).ok()?;
        Some(Self { offset: extent.start(), bytes: self.bytes.slice(from..to), sum: None })
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
