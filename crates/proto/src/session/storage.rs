//! Buffers that hold the messages of a handshake: of fixed size, or growing.

/// A buffer of the handshake, for what is received or for what is sent.
pub trait Storage {
    /// Returns at least the first `min` and at most the first `max` bytes of the buffer. Keeps earlier contents.
    /// Returns `None` if the buffer cannot hold `min` bytes.
    fn room(&mut self, min: usize, max: usize) -> Option<&mut [u8]>;
    /// The bytes of the buffer: at least those that [`Storage::room`] has returned, up to those that
    /// [`Storage::release`] has given back since.
    fn bytes(&self) -> &[u8];
    /// Gives back the memory behind the first `keep` bytes, if the buffer can.
    fn release(&mut self, keep: usize);
}

/// A buffer of fixed size, such as the preload shim's.
impl Storage for &mut [u8] {
    fn room(&mut self, min: usize, max: usize) -> Option<&mut [u8]> {
        let end = max.min(self.len());
        if end < min { None } else { self.get_mut(..end) }
    }

    fn bytes(&self) -> &[u8] {
        self
    }

    fn release(&mut self, _keep: usize) {}
}

/// A buffer that grows as bytes arrive: a peer that announces a long message and sends little of it ties up little
/// memory.
impl Storage for Vec<u8> {
    fn room(&mut self, min: usize, max: usize) -> Option<&mut [u8]> {
        const STEP: usize = 1024;
        let end = min.saturating_add(STEP).min(max).max(min);
        if self.len() < end {
            self.resize(end, 0);
        }
        self.get_mut(..end)
    }

    fn bytes(&self) -> &[u8] {
        self
    }

    fn release(&mut self, keep: usize) {
        self.truncate(keep);
        self.shrink_to_fit();
    }
}
