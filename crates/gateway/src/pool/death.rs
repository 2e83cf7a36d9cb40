//! Sessions that are still opening when a process of the peer's name dies (`docs/protocol/session.md` §6.6). The
//! process that has died may have received the request, and will never answer. The session is then opened anew with the
//! process that has taken its place, if any.

use super::Pool;
use crate::liveness::{LivenessProbe, is_believed};
use phoebus_net::Stream;
use phoebus_net::transport::Security;
use std::time::Instant;
use tokio::sync::watch;

/// A finding that a process of the peer's name has died, or that another one, which may have taken its place, is
/// running.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Death {
    /// When it was found.
    at: Instant,
    /// The protection of the beacon that reported it.
    beacon: Security,
    /// If a process is known to have died: connections older than this belong to it. Also the protection of the beacon
    /// that reported it.
    before: Option<(Instant, Security)>,
}

impl Pool {
    /// Makes every opening session check whether its connection leads to a process that has died, as reported by a
    /// beacon with this protection. A connection without a pulse counts as dead if it was begun `before` that time.
    pub(crate) fn report_death(&self, before: Option<Instant>, beacon: Security) {
        let before = before.map(|before| (before, beacon));
        self.deaths.send_modify(|death| {
            // A waiter that did not run in between has not seen the earlier value.
            let before = before.or(death.and_then(|death| death.before));
            *death = Some(Death { at: Instant::now(), beacon, before });
        });
    }

    /// Receives the next finding.
    pub(super) fn deaths(&self) -> watch::Receiver<Option<Death>> {
        self.deaths.subscribe()
    }

    /// Waits until the process that this connection leads to has died and nothing more is heard on the connection,
    /// which has been in use since `since`. Never returns for connections whose failure is reported otherwise: by the
    /// kernel over TCP, or by the owner of a connection that streams share.
    pub(super) async fn peer_process_died(&self, stream: &Stream, is_hidden: bool, since: Instant) {
        if !is_hidden || stream.has_authenticated_close() {
            return std::future::pending().await;
        }
        let mut deaths = self.deaths();
        loop {
            let death = *deaths.borrow_and_update();
            let is_told = death.is_some_and(|death| since <= death.at && is_believed(death.beacon, stream.security()));
            let before = death.and_then(|death| death.before);
            match stream.pulse() {
                Some(pulse) if is_told => {
                    let mut probe = LivenessProbe::at([pulse]);
                    probe.retain_silent(self.limits.silence).await;
                    if !probe.is_empty() {
                        return;
                    }
                }
                None if before
                    .is_some_and(|(before, beacon)| since <= before && is_believed(beacon, stream.security())) =>
                {
                    return;
                }
                _ => {}
            }
            // The sender lives as long as `self`.
            let _ = deaths.changed().await;
        }
    }
}
