//! A link of a running testbed.

use super::Error;
use super::LinkSpec;
use crate::live::{LiveLink, Tun};
use crate::model::{Direction, DirectionUpdate, LinkConfig, LinkCounters};
use std::sync::{Mutex, PoisonError};

/// A running link. Any thread may call any method at any time.
#[derive(Debug)]
pub struct Link {
    name: String,
    ends: [String; 2],
    /// The settings, with changes since the start.
    config: Mutex<LinkConfig>,
    live: LiveLink,
}

impl Link {
    /// Joins the two TUN devices of `spec`.
    pub(super) fn start(spec: &LinkSpec, [a, b]: [Tun; 2]) -> Result<Self, Error> {
        let what = || format!("cannot start link \"{}\"", spec.name);
        let live = LiveLink::start(spec.config.clone(), a, b).map_err(Error::system(what()))?;
        Ok(Self { name: spec.name.clone(), ends: spec.ends.clone(), config: Mutex::new(spec.config.clone()), live })
    }

    /// The link's name, which is also that of both hosts' interfaces to it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The two hosts; packets from the first go [forward](Direction::Forward).
    pub fn ends(&self) -> [&str; 2] {
        [&self.ends[0], &self.ends[1]]
    }

    /// The current settings.
    pub fn config(&self) -> LinkConfig {
        self.config.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The counters since the link's start.
    pub fn counters(&self) -> LinkCounters {
        self.live.counters()
    }

    /// Changes one direction; settings absent from `update` stay unchanged.
    pub fn update(&self, direction: Direction, update: &DirectionUpdate) {
        // The lock is held until the link has changed too, so that concurrent updates cannot leave recorded
        // and actual settings different.
        let mut config = self.config.lock().unwrap_or_else(PoisonError::into_inner);
        match direction {
            Direction::Forward => config.forward.change(update),
            Direction::Backward => config.backward.change(update),
        }
        self.live.update(direction, *update);
    }

    /// Interrupts the link: packets on it and all further packets are lost, until it is healed. The
    /// interfaces stay up.
    pub fn cut(&self) {
        self.live.cut();
    }

    /// Ends a cut.
    pub fn heal(&self) {
        self.live.heal();
    }
}
