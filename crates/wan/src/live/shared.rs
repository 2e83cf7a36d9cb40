//! State shared by the handle of a link and its thread.

use super::tun::Tun;
use crate::model::Link;
use crate::packet::Frame;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The model of a running link, its devices, and the means to wake its thread.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) model: Mutex<Link<Frame>>,
    pub(super) started: Instant,
    pub(super) ends: [Tun; 2],
    /// Number of packets that the receiving host refused, by direction.
    pub(super) refused: [AtomicU64; 2],
    pub(super) stopping: AtomicBool,
    /// An eventfd that makes the thread check the model and `stopping` again.
    pub(super) bell: OwnedFd,
}

impl Shared {
    /// Locks the model. A panic of another holder leaves it usable: no state spans calls.
    pub(super) fn model(&self) -> MutexGuard<'_, Link<Frame>> {
        self.model.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The model's time.
    pub(super) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Makes the thread check the model and `stopping` again.
    pub(super) fn ring(&self) {
        // Fails only if the counter is full, and then the thread is already being woken.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }
}
