//! Whether a peer that does not answer over QUIC or UDT is running at all. If its process has died or accepts no more
//! connections, its host says so over TCP only. So a new session that waits for an answer triggers a new beacon
//! attempt.

use super::Pool;
use crate::liveness::{LivenessProbe, ProbeResult};
use crate::refusal::Refusal;
use phoebus_net::Stream;
use phoebus_net::transport::{Pulse, Security};
use phoebus_proto::session::Code;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// Pause between two checks for a beacon.
const AGAIN: Duration = Duration::from_millis(200);
/// Longest pause between two checks, where many sessions wait for a peer that answers.
const AGAIN_MAX: Duration = Duration::from_secs(3);
/// Round trips that an unfinished connection gets after the refusal: three or four for a handshake and an answer, and
/// as many again for losses.
const GRACE_TRIPS: u32 = 8;
/// Extra time for a busy host, whose gateway may get no processor for some tenths of a second.
const GRACE: Duration = Duration::from_millis(500);
/// The assumed round trip where none was measured: the initial value of a QUIC handshake, which sends again after three
/// of these. The time of the refusal is no measure: anyone on the path may have sent it.
const TRIP_UNKNOWN: Duration = Duration::from_millis(333);

/// Waits until nothing was acknowledged for `time_limit` although something was sent. Never returns on a connection that
/// acknowledges.
pub(super) async fn silence(stream: &Stream, time_limit: Duration) {
    if time_limit == Duration::MAX {
        return std::future::pending().await;
    }
    loop {
        sleep(time_limit).await;
        // Reading reports a connection that has failed.
        if stream.stats().is_ok_and(|stats| stats.unheard() >= time_limit) {
            return;
        }
    }
}

impl Pool {
    /// Waits until it is clear that no gateway is running: there is no beacon although there was one, the peer's TCP
    /// port refuses connections, and the connection with this pulse gets no answers. An unfinished connection has no
    /// pulse; then idle or shared connections are probed, or if there are none, the connection gets some round trips. A
    /// draining peer refuses as well, and may still answer earlier requests.
    pub(super) async fn no_gateway_running(&self, pulse: Option<Box<dyn Pulse>>) -> Refusal {
        if self.beside.is_none() {
            return std::future::pending().await;
        }
        let mut again = AGAIN;
        let mut own = pulse.map(|pulse| LivenessProbe::at([pulse]));
        loop {
            // A peer that never had a beacon may not listen over TCP at all.
            if self.had_beacon.load(Ordering::Relaxed)
                && !self.has_beacon.load(Ordering::Relaxed)
                && let Some(took) = self.try_beacon().await
            {
                let mut others =
                    LivenessProbe::at(if own.is_none() { self.pulses(Security::Encrypt) } else { Vec::new() });
                let probe = own.as_mut().unwrap_or(&mut others);
                let is_silent = if probe.is_empty() {
                    let measured = self.metrics.figures(Instant::now()).round_trip;
                    sleep(GRACE_TRIPS * measured.unwrap_or(TRIP_UNKNOWN).max(took) + GRACE).await;
                    true
                } else {
                    probe.listen(self.limits.silence, || self.is_refused()).await == ProbeResult::Silence
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
