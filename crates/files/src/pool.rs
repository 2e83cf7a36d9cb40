//! Buffers, in a bounded number (P22, L8).

use bytes::Bytes;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A bounded set of buffers of one size. Who needs one beyond the limit waits. Clones share the set.
#[derive(Debug, Clone)]
pub struct Pool(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    size: usize,
    free: Mutex<Vec<Vec<u8>>>,
    permits: Arc<Semaphore>,
}

impl Pool {
    /// A pool of `count` buffers (at least one) of `size` bytes. Memory is allocated on first use.
    pub fn new(size: usize, count: usize) -> Self {
        let permits = Arc::new(Semaphore::new(count.clamp(1, Semaphore::MAX_PERMITS)));
        Self(Arc::new(Shared { size, free: Mutex::default(), permits }))
    }

    /// How long its buffers are, in bytes.
    pub fn size(&self) -> usize {
        self.0.size
    }

    /// Waits for a buffer of [`Self::size`] bytes, with arbitrary content. Dropping the future has no effect.
    pub async fn take(&self) -> Buffer {
        // The semaphore is never closed; without a permit the buffer would only not be counted.
        let permit = self.0.permits.clone().acquire_owned().await.ok();
        let free = self.0.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        Buffer { bytes: free.unwrap_or_else(|| vec![0; self.0.size]), len: 0, pool: self.0.clone(), _permit: permit }
    }
}

/// A buffer of a [`Pool`]. It returns once it and all slices of it are dropped.
#[derive(Debug)]
pub struct Buffer {
    bytes: Vec<u8>,
    len: usize,
    pool: Arc<Shared>,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Buffer {
    /// The whole buffer, to be filled.
    pub fn room(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// The first `len` bytes, shared and immutable.
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
}
