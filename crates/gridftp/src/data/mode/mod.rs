//! Transfer modes: how a flow goes over the connections of a channel.

mod extended;
mod object;
mod stream;

use super::blocks::Sender;
use super::channel::Inner;
use super::error::Error;
use super::intake::Intake;
use super::settings::Mode;
use phoebus_files::store::Flow;
use std::fmt::Debug;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// The result of a transfer.
pub(super) type Transferred<T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send>>;

/// A transfer mode (MODE).
pub(super) trait TransferMode: Debug + Send + Sync {
    /// Sends a flow. Returns the number of bytes. Dropping the future resets connections, so that the peer sees a cut.
    fn send(&self, inner: Arc<Inner>, sending: Sending) -> Transferred<u64>;

    /// Receives a flow, and passes its blocks on. Ends only once everything has come. The channel's port is then free,
    /// unless somebody else has the channel.
    fn receive(&self, inner: Arc<Inner>, intake: Intake, blocks: Sender) -> Transferred<()>;
}

impl Inner {
    /// What carries out a transfer in `mode`.
    pub(super) fn transfer(&self, mode: Mode) -> &'static dyn TransferMode {
        match (mode, self.settings.objects) {
            (Mode::Stream, None) => &stream::StreamMode,
            (Mode::Extended, None) => &extended::ExtendedBlockMode,
            (Mode::Stream, Some(_)) => &object::NoStreams,
            (Mode::Extended, Some(_)) => &object::ObjectMode,
        }
    }
}

/// What to send.
pub(super) struct Sending {
    /// The blocks.
    pub(super) flow: Arc<dyn Flow>,
    /// Counts sent bytes.
    pub(super) moved: Arc<AtomicU64>,
    /// Connections to each address, in modes that have several.
    pub(super) streams: u32,
    /// The other senders.
    pub(super) sharing: Sharing,
}

/// Senders to one address, each over the same number of connections (S11). If the receiver counts all ends, one sender
/// announces their number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sharing {
    /// Number of senders, including this one.
    pub senders: u64,
    /// Index of this sender. The first, 0, announces.
    pub place: u64,
}

impl Default for Sharing {
    /// A single sender.
    fn default() -> Self {
        Self { senders: 1, place: 0 }
    }
}
