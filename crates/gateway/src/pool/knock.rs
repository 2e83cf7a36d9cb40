//! Whether a peer that does not answer over QUIC or UDT is there at all. When its process has died, or takes no more connections,
//! its host says so over TCP alone. So a new session that waits for an answer has the beacon lit again.

use super::Pool;
use crate::ear::{Ear, Heard};
use crate::refusal::Refusal;
use phoebus_net::Stream;
use phoebus_net::transport::{Pulse, Security};
use phoebus_proto::session::Code;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// Pause between two looks whether the beacon is lit.
const AGAIN: Duration = Duration::from_millis(200);
/// Longest pause between two questions, where many wait for a peer that answers.
const AGAIN_MAX: Duration = Duration::from_secs(3);
/// Round trips that a connection which is only being made has after the refusal: three or four for a handshake and an answer, and
/// as many again for what is lost.
const GRACE_TRIPS: u32 = 8;
/// And besides, for a busy host.
const GRACE: Duration = Duration::from_millis(100);
/// What counts for a round trip where none was measured: a handshake over QUIC takes it for three before it sends again. The refusal
/// tells nothing: whoever is on the way may have sent it.
const TRIP_UNKNOWN: Duration = Duration::from_millis(333);

/// Waits until nothing was acknowledged for `patience` although something was sent; for ever on a connection that acknowledges.
pub(super) async fn silence(stream: &Stream, patience: Duration) {
    if patience == Duration::MAX {
        return std::future::pending().await;
    }
    loop {
        sleep(patience).await;
        // One that has failed is found so by whoever reads.
        if stream.stats().is_ok_and(|stats| stats.unheard() >= patience) {
            return;
        }
    }
}

impl Pool {
    /// Waits until it is clear that nobody is there: no beacon is lit at the peer though there was one, its TCP port refuses
    /// connections, and on the connection of this pulse no question is answered. Where a connection is only being made, which has no
    /// pulse, those that are idle or shared are asked; where there are none it gets some round trips. A peer that is draining
    /// refuses as well, and may still answer what it was asked before.
    pub(super) async fn is_gone(&self, pulse: Option<Box<dyn Pulse>>) -> Refusal {
        if self.beside.is_none() {
            return std::future::pending().await;
        }
        let mut again = AGAIN;
        let mut own = pulse.map(|pulse| Ear::at([pulse]));
        loop {
            // Where there never was a beacon, the peer may not listen with TCP at all.
            if self.had_beacon.load(Ordering::Relaxed)
                && !self.has_beacon.load(Ordering::Relaxed)
                && let Some(took) = self.try_beacon().await
            {
                let mut others = Ear::at(if own.is_none() { self.pulses(Security::Encrypt) } else { Vec::new() });
                let ear = own.as_mut().unwrap_or(&mut others);
                let is_silent = if ear.is_empty() {
                    let measured = self.survey.figures(Instant::now()).round_trip;
                    sleep(GRACE_TRIPS * measured.unwrap_or(TRIP_UNKNOWN).max(took) + GRACE).await;
                    true
                } else {
                    ear.listen(self.limits.silence, || self.is_refused()).await == Heard::Silence
                };
                if is_silent && self.is_refused() {
                    let (name, address, by) = (&self.peer.name, &self.peer.address, self.hidden());
                    let reason = format!(
                        "no session through {name} ({address}): it does not answer over {by}, and its TCP port refuses \
                         connections: no gateway is running there, or it is shutting down"
                    );
                    return Refusal::at(name, Code::Refused, reason);
                }
                again = (2 * again).min(AGAIN_MAX);
            } else {
                again = AGAIN;
            }
            sleep(again).await;
        }
    }
}
