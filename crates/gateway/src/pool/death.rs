//! What is still being opened when a process of the peer's name has died (`docs/protocol/session.md` §6.6): it may have been begun
//! with that process, which will never answer. It is made anew with the one that has taken the place, if any.

use super::Pool;
use crate::ear::{Ear, is_believed};
use phoebus_net::Stream;
use phoebus_net::transport::Security;
use std::time::Instant;
use tokio::sync::watch;

/// A process of the peer's name was found to have died, or another one to be there, which may have taken its place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Death {
    /// When that was found.
    at: Instant,
    /// What protected the beacon that told of it.
    beacon: Security,
    /// What is in use for longer is that process's, where one is known to have died; and what protected the beacon that told of that.
    before: Option<(Instant, Security)>,
}

impl Pool {
    /// Has what is being opened look for itself whether it leads to a process that has died, as a beacon of this protection has told.
    /// On what nothing can be heard does so if it was begun `before` that.
    pub(crate) fn may_have_died(&self, before: Option<Instant>, beacon: Security) {
        let before = before.map(|before| (before, beacon));
        self.deaths.send_modify(|death| {
            // Who was not woken in between has not seen what was known before.
            let before = before.or(death.and_then(|death| death.before));
            *death = Some(Death { at: Instant::now(), beacon, before });
        });
    }

    /// Tells of the next death.
    pub(super) fn deaths(&self) -> watch::Receiver<Option<Death>> {
        self.deaths.subscribe()
    }

    /// Waits until a process has died that this connection leads to, which may be in use `since` then: nothing more is heard on it.
    /// For ever where somebody else says so: the kernel, of a connection by TCP, or who ends a connection that streams share.
    pub(super) async fn is_left_behind(&self, stream: &Stream, is_hidden: bool, since: Instant) {
        if !is_hidden || stream.has_true_ends() {
            return std::future::pending().await;
        }
        let mut deaths = self.deaths();
        loop {
            let death = *deaths.borrow_and_update();
            let is_told = death.is_some_and(|death| since <= death.at && is_believed(death.beacon, stream.security()));
            let before = death.and_then(|death| death.before);
            match stream.pulse() {
                Some(pulse) if is_told => {
                    let mut ear = Ear::at([pulse]);
                    ear.keep_silent(self.limits.silence).await;
                    if !ear.is_empty() {
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
