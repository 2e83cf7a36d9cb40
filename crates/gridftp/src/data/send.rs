//! Sends a flow.

use super::channel::Channel;
use super::error::Error;
use super::mode::{Sending, Sharing};
use super::settings::Mode;
use phoebus_files::store::Flow;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

impl Channel {
    /// Sends all of `flow`, adds sent bytes to `moved`, and returns their number. In stream mode the flow must be in
    /// order. In extended block mode it goes over `streams` connections to each address (S11), which are kept for the
    /// next transfer. Dropping the future resets connections, so that the peer sees a cut.
    ///
    /// # Errors
    /// Of connections, and of the flow ([`Error::Store`]).
    pub async fn send(
        &self,
        mode: Mode,
        streams: u32,
        flow: Arc<dyn Flow>,
        moved: &Arc<AtomicU64>,
    ) -> Result<u64, Error> {
        let sending = Sending { flow, moved: moved.clone(), streams, sharing: Sharing::default() };
        self.0.transfer(mode).send(self.0.clone(), sending).await
    }

    /// The same in extended block mode, as one of several senders to the same addresses.
    ///
    /// # Errors
    /// As above.
    pub async fn send_beside(
        &self,
        streams: u32,
        flow: Arc<dyn Flow>,
        moved: &Arc<AtomicU64>,
        sharing: Sharing,
    ) -> Result<u64, Error> {
        let sending = Sending { flow, moved: moved.clone(), streams, sharing };
        self.0.transfer(Mode::Extended).send(self.0.clone(), sending).await
    }
}
