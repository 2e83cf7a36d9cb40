//! Buffers for received datagrams.

use super::Socket;
use quinn_udp::RecvMeta;
use std::io::IoSliceMut;

/// Most buffers that one receive call fills; with UDP_GRO, each holds several coalesced datagrams.
pub(crate) const RECEIVED_MAX: usize = 16;
/// Size of one such buffer, in bytes.
const BUFFER: usize = 65_536;

/// Buffers for received datagrams. As many as one call has filled so far, so that many transfers with little traffic take little
/// memory.
#[derive(Debug)]
pub(crate) struct Inbox {
    bytes: Vec<u8>,
    most: usize,
}

impl Inbox {
    /// For up to so many buffers at a time, at most [`RECEIVED_MAX`].
    pub(crate) fn new(most: usize) -> Self {
        Self { bytes: vec![0; BUFFER], most: most.clamp(1, RECEIVED_MAX) }
    }

    /// Receives with one call, and passes each datagram on, with where it came from. Returns whether more may have arrived.
    pub(crate) fn receive(&mut self, socket: &Socket, mut each: impl FnMut(&mut [u8], &RecvMeta)) -> bool {
        let room = self.bytes.len() / BUFFER;
        let mut metas = [RecvMeta::default(); RECEIVED_MAX];
        let mut slots = self.bytes.chunks_exact_mut(BUFFER);
        let mut buffers: [_; RECEIVED_MAX] = std::array::from_fn(|_| IoSliceMut::new(slots.next().unwrap_or_default()));
        let Some(count) = socket.receive(&mut buffers[..room], &mut metas[..room]) else { return false };
        for (bytes, meta) in self.bytes.chunks_exact_mut(BUFFER).zip(&metas[..count]) {
            let len = meta.len.min(BUFFER);
            bytes[..len].chunks_mut(meta.stride.max(1)).for_each(|datagram| each(datagram, meta));
        }
        let is_full = count == room;
        if is_full && room < self.most {
            self.bytes.resize(self.most.min(2 * room) * BUFFER, 0);
        }
        is_full
    }
}
