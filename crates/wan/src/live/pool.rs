//! Memory for packets: large chunks that are filled packet by packet and reused once all of their packets are
//! gone. So a link that holds 16 MB of packets takes little more than 16 MB, whatever their sizes, and
//! allocates nothing in its steady state.

use crate::packet::{Frame, VnetHeader};
use bytes::BytesMut;
use std::collections::VecDeque;
use std::io;

/// The largest packet from a TUN device with its virtio-net header, in bytes.
const FRAME_BYTES_MAX: usize = VnetHeader::LEN + 65_535 + 40;

/// Size of a chunk, in bytes: at least fifteen packets of the largest size, so that at most a fifteenth is
/// ever wasted.
const CHUNK_BYTES: usize = 1 << 20;

/// Most chunks kept for reuse, 64 MB of them. What a burst took beyond goes back to the system.
const CHUNKS_KEPT: usize = 64;

/// The buffers that packets are read into.
#[derive(Debug)]
pub(super) struct Pool {
    /// The chunk being filled: its length is zero, its capacity the remaining room.
    chunk: BytesMut,
    /// Filled chunks, oldest first. Each is the empty rest of a chunk whose packets may still be in use.
    used: VecDeque<BytesMut>,
}

impl Pool {
    pub(super) fn new() -> Self {
        Self { chunk: BytesMut::with_capacity(CHUNK_BYTES), used: VecDeque::new() }
    }

    /// Calls `read` on room for the largest frame, to which it appends, and returns the frame. `None` if it
    /// is shorter than a virtio-net header, which no device returns.
    pub(super) fn read(&mut self, read: impl FnOnce(&mut BytesMut) -> io::Result<usize>) -> io::Result<Option<Frame>> {
        if self.chunk.capacity() < FRAME_BYTES_MAX {
            let fresh = self.next_chunk();
            self.used.push_back(std::mem::replace(&mut self.chunk, fresh));
        }
        read(&mut self.chunk)?;
        Ok(Frame::parse(self.chunk.split()))
    }

    fn next_chunk(&mut self) -> BytesMut {
        // Packets leave nearly in the order of arrival, so the oldest chunk is the first to become free.
        let Some(chunk) = self.take_free() else { return BytesMut::with_capacity(CHUNK_BYTES) };
        if self.used.len() > CHUNKS_KEPT {
            drop(self.take_free());
        }
        chunk
    }

    fn take_free(&mut self) -> Option<BytesMut> {
        if self.used.front_mut()?.try_reclaim(CHUNK_BYTES) { self.used.pop_front() } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pool: &mut Pool, len: usize) -> Frame {
        let filler = |room: &mut BytesMut| {
            assert!(room.capacity() >= FRAME_BYTES_MAX);
            room.extend_from_slice(&vec![0x45; len]);
            Ok(len)
        };
        pool.read(filler).unwrap().unwrap()
    }

    #[test]
    fn chunks_are_reused_once_their_packets_are_gone() {
        let mut pool = Pool::new();
        let places: std::collections::BTreeSet<usize> =
            (0..10_000).map(|_| read(&mut pool, 30_000).parts()[0].as_ptr() as usize / CHUNK_BYTES).collect();
        assert!(places.len() <= 4, "300 MB of packets, one at a time, came to lie in {} MB", places.len());
    }

    #[test]
    fn packets_in_use_are_left_alone() {
        let mut pool = Pool::new();
        let kept = read(&mut pool, 1000);
        for _ in 0..1000 {
            read(&mut pool, 60_000);
        }
        assert!(kept.parts()[0].iter().all(|byte| *byte == 0x45));
    }

    #[test]
    fn input_shorter_than_a_header_is_no_frame() {
        let short = |room: &mut BytesMut| {
            room.extend_from_slice(b"short");
            Ok(5)
        };
        assert!(Pool::new().read(short).unwrap().is_none());
    }
}
