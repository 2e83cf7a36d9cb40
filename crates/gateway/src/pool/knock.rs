//! Whether a peer that does not answer over QUIC or UDT is there at all. When its process has died, or takes no more connections,
//! its host says so over TCP alone. So a new session that waits for an answer asks at the port where the beacon was.

use super::{Pool, Way, lock};
use crate::refusal::Refusal;
use phoebus_net::tcp;
use phoebus_proto::session::Code;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// Pause between two looks whether the beacon is still lit, and between two questions at the port.
const AGAIN: Duration = Duration::from_millis(200);
/// How long the port may take to refuse, for this to count: as long as two losses of a SYN.
const LIMIT: Duration = Duration::from_secs(3);
/// Addresses of the peer that are asked at most.
const ADDRESSES_MAX: usize = 8;
/// Round trips that the other transport has after the refusal, each as long as the refusal took: three for QUIC's longest
/// handshake and one for the answer.
const GRACE_TRIPS: u32 = 4;
/// And besides, for a busy host.
const GRACE: Duration = Duration::from_millis(100);

impl Pool {
    /// What `opening` comes to, or a refusal as soon as it is clear that nobody is there: no beacon is lit at the peer though there
    /// was one, and its TCP port refuses connections.
    pub(super) async fn while_there<T>(&self, opening: impl Future<Output = Result<T, Refusal>>) -> Result<T, Refusal> {
        tokio::select! {
            biased;
            result = opening => result,
            refusal = self.port_refuses() => Err(refusal),
        }
    }

    async fn port_refuses(&self) -> Refusal {
        let Some(beside) = &self.beside else { return std::future::pending().await };
        loop {
            // Where there never was a beacon, the peer may not listen with TCP at all.
            if self.had_beacon.load(Ordering::Relaxed) && !self.has_beacon.load(Ordering::Relaxed) {
                let asked = Instant::now();
                if self.refuses_at(beside).await {
                    sleep(GRACE_TRIPS * asked.elapsed() + GRACE).await;
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

    /// Whether every address of the peer refuses TCP connections at the beacon's port.
    async fn refuses_at(&self, beside: &Way) -> bool {
        let mut addresses = lock(&self.addresses).clone();
        addresses.truncate(ADDRESSES_MAX);
        let profile = self.profile_beside();
        for addr in &mut addresses {
            addr.set_port(beside.port.unwrap_or(addr.port()));
            match tcp::connect(*addr, &profile, LIMIT).await {
                Ok(stream) => {
                    stream.close();
                    return false;
                }
                Err(error) if error.code() == Code::Refused => {}
                Err(_) => return false,
            }
        }
        !addresses.is_empty()
    }
}
