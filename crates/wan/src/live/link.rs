//! A running link: its thread, and the handle to observe and change it.

use super::pump;
use super::shared::Shared;
use super::tun::Tun;
use crate::model::{Direction, DirectionUpdate, Link, LinkConfig, LinkCounters};
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Instant;

/// A link between two TUN devices. It runs until dropped; the devices then vanish with it.
#[derive(Debug)]
pub struct LiveLink {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl LiveLink {
    /// Joins two TUN devices. Packets from the host of `end_a` go in the forward direction.
    ///
    /// # Errors
    ///
    /// The system's error, if no thread or descriptor is left.
    pub fn start(config: LinkConfig, end_a: Tun, end_b: Tun) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            model: Mutex::new(Link::new(&config)),
            started: Instant::now(),
            ends: [end_a, end_b],
            refused: Default::default(),
            stopping: AtomicBool::new(false),
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        });
        let for_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("wan-link".into()).spawn(move || pump::run(&for_thread))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// The current counters.
    pub fn counters(&self) -> LinkCounters {
        let shared = &self.shared;
        let mut counters = shared.model().counters(shared.now());
        let ways = [&mut counters.forward, &mut counters.backward];
        for ((way, end), refused) in ways.into_iter().zip(&shared.ends).zip(&shared.refused) {
            // If the statistics cannot be read, the device is gone with its namespace and drops no more packets.
            way.overruns = end.overruns().unwrap_or(way.overruns);
            way.refused = refused.load(Ordering::Relaxed);
        }
        counters
    }

    /// Changes the settings of one direction.
    pub fn update(&self, direction: Direction, update: DirectionUpdate) {
        self.shared.model().way(direction).update(self.shared.now(), &update);
        self.shared.ring();
    }

    /// Drops everything in both directions, packets in flight included, until [`Self::heal`].
    pub fn cut(&self) {
        self.shared.model().cut(self.shared.now());
    }

    /// Ends a cut.
    pub fn heal(&self) {
        self.shared.model().heal();
    }

    /// Stops the link, and returns its last counters. Both devices vanish.
    pub fn stop(self) -> LinkCounters {
        self.counters()
    }
}

impl Drop for LiveLink {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
        self.shared.ring();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was printed already.
            let _ = thread.join();
        }
    }
}
