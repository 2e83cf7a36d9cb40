//! Settings of object transfers.

use phoebus_proto::control::{AtMost, Factory, Fixed, KnownPath, Model, Reaction, Resumed, Tolerant};
use phoebus_proto::object::Seal;
use phoebus_proto::units::BitRate;

/// What sets the rate of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum RateControl {
    /// It follows the path, and leaves room for others ([`Model`]).
    #[default]
    Fair,
    /// It grows until more than [`Objects::loss_per_million`] is lost ([`Tolerant`]).
    Loss,
    /// It is given, whatever is lost: for reserved circuits.
    Fixed,
}

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
    /// Most packets that the sender gives to the system at once. 64 by default, as many as Linux segments at once.
    pub batch: u32,
    /// What sets the rate.
    pub control: RateControl,
    /// With [`RateControl::Loss`] the packets that may be lost, of a million. 10 000 by default, as in FOBS.
    pub loss_per_million: u32,
    /// With [`RateControl::Fixed`] the rate, otherwise the highest, in bits per second with all headers.
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
            batch: Self::BATCH_MAX,
            control: RateControl::Fair,
            loss_per_million: 10_000,
            rate: None,
            seal: Seal::Encrypt,
        }
    }
}

impl Objects {
    /// The largest batch.
    pub const BATCH_MAX: u32 = 64;
    /// The memory of a transfer by default: what 1 Gbit/s brings in four round trips of 200 ms. A chunk takes two and a half of
    /// them if a packet of it has to be repaired.
    const MEMORY: u32 = 96 << 20;

    /// The number of chunks of this length in memory by default. At least 8, so that others move while one is repaired.
    pub fn buffers_of(chunk: u32) -> u32 {
        (Self::MEMORY / chunk.max(1)).max(8)
    }

    /// The same within `limit`.
    ///
    /// # Errors
    /// The rate is fixed, and not given.
    pub(crate) fn within(self, limit: Option<BitRate>) -> Result<Self, String> {
        let rate = self.rate.into_iter().chain(limit).min_by_key(|rate| rate.0);
        if self.control == RateControl::Fixed && rate.is_none() {
            return Err(
                "driver object: control is \"fixed\", which needs a rate: object:control=fixed;rate=1gbit".to_owned()
            );
        }
        Ok(Self { rate, ..self })
    }

    /// The control of the rate, on a path of which something may be `known`.
    pub(super) fn factory(&self, known: Option<KnownPath>) -> Box<dyn Factory> {
        let most = self.rate.map(|rate| rate.0);
        let tolerant = Tolerant { share: f64::from(self.loss_per_million) / 1e6, reaction: Reaction::default() };
        match (self.control, most, known) {
            (RateControl::Fixed, Some(bits_per_second), _) => Box::new(Fixed { bits_per_second }),
            (RateControl::Loss, Some(bits_per_second), _) => Box::new(AtMost { control: tolerant, bits_per_second }),
            (RateControl::Loss, None, _) => Box::new(tolerant),
            (_, Some(bits_per_second), None) => Box::new(AtMost { control: Model, bits_per_second }),
            (_, Some(bits_per_second), Some(known)) => Box::new(AtMost { control: Resumed { known }, bits_per_second }),
            (_, None, Some(known)) => Box::new(Resumed { known }),
            (_, None, None) => Box::new(Model),
        }
    }
}
