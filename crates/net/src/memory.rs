//! Buffers that are placed so that copies between them are fast.
//!
//! On AMD's processors since Zen 3, `rep movsb`, by which the kernel and glibc copy long runs of bytes, is twenty times
//! slower if the destination's offset in its page is above the source's by less than 37 bytes (3 instead of 66 GB/s on an
//! EPYC; glibc's bug 30994). The kernel's pages of received bytes and large allocations both begin at the start of a page,
//! or a few bytes behind it. So buffers here begin elsewhere in a page, each kind of buffer at its own place.

use std::ops::{Deref, DerefMut};

const PAGE: usize = 4096;

/// The place in a page at which a buffer begins: in which step of a copy its bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PageOffset {
    /// Bytes on their way between two streams.
    Carried = 2048,
    /// Records of TLS, before or after encryption.
    Records = 1024,
}

/// A buffer of fixed length, filled with zeros, that begins at a certain place of a page. The default is empty.
#[derive(Debug, Default)]
pub(crate) struct PageOffsetBuffer {
    memory: Box<[u8]>,
    start: usize,
}

impl PageOffsetBuffer {
    /// A buffer of `len` bytes.
    pub(crate) fn new(len: usize, place: PageOffset) -> Self {
        let memory: Box<[u8]> = vec![0; len + PAGE - 1].into();
        let start = (place as usize).wrapping_sub(memory.as_ptr().addr()) % PAGE;
        Self { memory, start }
    }
}

impl Deref for PageOffsetBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let end = self.memory.len().saturating_sub(PAGE - 1) + self.start;
        &self.memory[self.start..end]
    }
}

impl DerefMut for PageOffsetBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        let end = self.memory.len().saturating_sub(PAGE - 1) + self.start;
        &mut self.memory[self.start..end]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_begin_at_their_places() {
        for place in [PageOffset::Carried, PageOffset::Records] {
            for len in [1, 4095, 4096, 100_000] {
                let mut buffer = PageOffsetBuffer::new(len, place);
                assert_eq!((buffer.len(), buffer.as_ptr().addr() % PAGE), (len, place as usize));
                buffer.fill(7);
                // A move of the owner does not move the memory.
                let moved = std::hint::black_box(buffer);
                assert_eq!((moved[len - 1], moved.as_ptr().addr() % PAGE), (7, place as usize));
            }
        }
        assert!(PageOffsetBuffer::default().is_empty());
    }
}
