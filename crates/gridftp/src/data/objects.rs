//! Settings of object transfers.

use phoebus_proto::control::{Factory, Fixed, Model};
use phoebus_proto::object::Seal;
use phoebus_proto::units::BitRate;

/// Settings of object transfers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Objects {
    /// Bytes of a packet without headers and seal; `None`: what the path carries in one piece.
    pub packet: Option<u32>,
    /// Longest chunk, in bytes. 1 MiB by default: its packets arrive within 10 ms at 1 Gbit/s.
    pub chunk: u32,
    /// Chunks in memory at each end. By default as many as take 96 MiB ([`Self::buffers_of`]).
    pub buffers: u32,
    /// Packets after which the receiver acknowledges. 64 by default.
    pub ack: u32,
    /// The rate, in bits per second with all headers, where it is fixed. Otherwise it follows the path.
    pub rate: Option<BitRate>,
    /// The protection of datagrams.
    pub seal: Seal,
}

impl Default for Objects {
    fn default() -> Self {
        Self {
            packet: None,
            chunk: 1 << 20,
            buffers: Self::buffers_of(1 << 20),
            ack: 64,
            rate: None,
            seal: Seal::Encrypt,
        }
    }
}

impl Objects {
    /// The memory of a transfer by default: what 1 Gbit/s brings in four round trips of 200 ms. A chunk takes two and a half of
    /// them if a packet of it has to be repaired.
    const MEMORY: u32 = 96 << 20;

    /// The number of chunks of this length in memory by default. At least 8, so that others move while one is repaired.
    pub fn buffers_of(chunk: u32) -> u32 {
        (Self::MEMORY / chunk.max(1)).max(8)
    }

    /// The control of the rate.
    pub(super) fn control(&self) -> Box<dyn Factory> {
        match self.rate {
            Some(rate) => Box::new(Fixed { bits_per_second: rate.0 }),
            None => Box::new(Model),
        }
    }
}
