//! Passes a reset on over each connection of a bundle, as `reset` does over one.

use super::end::End;
use super::lanes::Lanes;
use super::reset;
use phoebus_net::Stream;
use std::sync::Arc;

impl Lanes {
    /// Clears a session that has failed for `reason` from all lanes independently, and returns those that are then free
    /// to their lenders. Returns the first connection if it is free. `held` is released when the last lane is done.
    pub(super) async fn pass_reset_on<H: Send + Sync + 'static>(
        self,
        reason: &[u8],
        held: &Arc<H>,
    ) -> Option<Arc<Stream>> {
        let Self { lanes, members, .. } = self;
        members.give_up();
        let mut lanes = lanes.into_iter().map(|lane| {
            let (stream, framing, carrier, lender) = lane.parts();
            (End::framed_as(stream, framing), carrier, lender)
        });
        let first = lanes.next();
        for (end, carrier, lender) in lanes {
            let (reason, held) = (reason.to_vec(), held.clone());
            tokio::spawn(async move {
                if let (Some(stream), Some(lender)) = (reset::framed(end, carrier, &reason).await, lender) {
                    lender.give_back(stream);
                }
                drop(held);
            });
        }
        let (end, carrier, _) = first?;
        reset::framed(end, carrier, reason).await
    }
}
