//! Whether a peer that does not answer over QUIC or UDT is there at all. When its process has died, or takes no more connections,
//! its host says so over TCP alone. So a new session that waits for an answer has the beacon lit again.

use super::Pool;
use crate::ear::{Ear, Heard};
use crate::refusal::Refusal;
use phoebus_net::transport::Pulse;
use phoebus_proto::session::Code;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::sleep;

/// Pause between two looks whether the beacon is lit.
const AGAIN: Duration = Duration::from_millis(200);
/// Round trips that a connection has after the refusal which is only being made, each as long as the refusal took: three for
/// QUIC's longest handshake and one for the answer.
const GRACE_TRIPS: u32 = 4;
/// And besides, for a busy host.
const GRACE: Duration = Duration::from_millis(100);

impl Pool {
    /// Waits until it is clear that nobody is there: no beacon is lit at the peer though there was one, its TCP port refuses
    /// connections, and on the connection of this pulse no question is answered. A connection that cannot ask, or is only being made,
    /// gets some round trips for it. A peer that is draining refuses as well, and may still answer what it was asked before.
    pub(super) async fn is_gone(&self, pulse: Option<Box<dyn Pulse>>) -> Refusal {
        if self.beside.is_none() {
            return std::future::pending().await;
        }
        let mut ear = Ear::at(pulse);
        loop {
            // Where there never was a beacon, the peer may not listen with TCP at all.
            if self.had_beacon.load(Ordering::Relaxed)
                && !self.has_beacon.load(Ordering::Relaxed)
                && let Some(took) = self.try_beacon().await
            {
                let is_silent = if ear.ask().is_some() {
                    ear.listen(self.limits.silence, || self.is_refused()).await == Heard::Silence
                } else {
                    sleep(GRACE_TRIPS * took + GRACE).await;
                    true
                };
                if is_silent && self.is_refused() {
                    let (name, address, by) = (&self.peer.name, &self.peer.address, self.hidden());
                    let reason = format!(
                        "no session through {name} ({address}): it does not answer over {by}, and its TCP port refuses \
                         connections: no gateway is running there, or it is shutting down"
                    );
                    return Refusal::at(name, Code::Refused, reason);
                }
            }
            sleep(AGAIN).await;
        }
    }
}
