//! What the handle of a link and its thread both touch.

use super::tun::Tun;
use crate::model::Link;
use crate::packet::Frame;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The model of a running link, its devices, and how its thread is called.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) model: Mutex<Link<Frame>>,
    pub(super) started: Instant,
    pub(super) ends: [Tun; 2],
    /// Packets that the receiving host refused, per direction.
    pub(super) refused: [AtomicU64; 2],
    pub(super) stopping: AtomicBool,
    /// Written to make the thread look at the model and at `stopping` again.
    pub(super) bell: OwnedFd,
}

impl Shared {
    /// The model. A panic of another holder leaves it usable: it has no state that spans calls.
    pub(super) fn model(&self) -> MutexGuard<'_, Link<Frame>> {
        self.model.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The model's time.
    pub(super) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Makes the thread look at the model and at `stopping` again.
    pub(super) fn ring(&self) {
        // Fails only when the counter is full, and then the bell rings already.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }
}
