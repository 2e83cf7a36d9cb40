//! Rates that connections share (S17, S25). What this gateway sends to one neighbour under one profile never exceeds
//! the profile's rate, however many connections carry it; and if only one has something to send, it gets the whole
//! rate.
//!
//! Each connection keeps to its share by itself: the kernel paces TCP, UDT paces its packets, and QUIC streams are
//! throttled. This module divides the rate: whenever a session begins or ends, and about fifty times a second while
//! several connections share one, by what each of them sends (`share`). Where a profile leaves the congestion control
//! to the gateway, it chooses one that keeps to the rate (`steady`).

mod share;
mod steady;

use crate::config::Config;
use phoebus_net::transport::Change;
use phoebus_net::{CongestionControl, Stream};
use phoebus_proto::units::BitRate;
use share::{Claim, Meter, Progress, divide};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::ErrorKind;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use steady::Steady;
use tokio::sync::Notify;
use tracing::warn;

/// Pause between two checks of connections that share a rate: less than a round trip of a long path.
const LOOK: Duration = Duration::from_millis(20);
/// Checking a connection takes some microseconds. With more connections than this, checks are rarer.
const MANY: usize = 100;
/// Pause between two checks of a connection's congestion control. It is long enough not to notice that bbr sends below
/// its rate for one round trip.
const STEADY_LOOK: Duration = Duration::from_millis(250);
/// A share is not raised by less than this fraction: each change costs a system call.
const WORTH: f64 = 0.01;

/// Rates by profile name.
pub(crate) type Rates = BTreeMap<Arc<str>, BitRate>;

/// What profiles say about rates.
#[derive(Debug, Default)]
pub(crate) struct ReservationRules {
    pub(crate) rates: Rates,
    /// Profiles that leave the congestion control to the gateway.
    pub(crate) any_control: BTreeSet<Arc<str>>,
}

impl ReservationRules {
    pub(crate) fn of(config: &Config) -> Self {
        Self { rates: config.rates.clone(), any_control: config.any_control.clone() }
    }
}

/// What a rate applies to: the connections to one neighbour under one profile.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Segment {
    /// The profile's name.
    pub(crate) profile: Arc<str>,
    pub(crate) neighbour: Neighbour,
}

#[cfg(test)]
impl Segment {
    /// A segment without a rate.
    pub(crate) fn none() -> Self {
        Self { profile: "none".into(), neighbour: Neighbour::Peer("nobody".into()) }
    }
}

/// The neighbour at the other end.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Neighbour {
    /// The gateway of this name.
    Peer(Arc<str>),
    /// A host that is not a gateway.
    Host(IpAddr),
}

/// The requested bandwidth cannot be promised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InsufficientRate {
    /// What can be promised, in bits per second.
    pub(crate) free: u64,
}

/// All rates of a gateway.
#[derive(Debug, Default)]
pub(crate) struct Reservations {
    state: Mutex<State>,
    /// Notified when there is something to check.
    shared: Notify,
}

#[derive(Debug, Default)]
struct State {
    terms: ReservationRules,
    /// Profiles that had a rate once. Connections made then still keep to it.
    unrated: BTreeSet<Arc<str>>,
    shared: HashMap<Segment, Shared>,
    next: u64,
}

/// One rate, and the connections that share it.
#[derive(Debug, Default)]
struct Shared {
    /// In bits per second; `None` where there are only connections with a promised bandwidth of their own.
    rate: Option<u64>,
    members: Vec<Member>,
    looked: Option<Instant>,
    steadied: Option<Instant>,
}

#[derive(Debug)]
struct Member {
    id: u64,
    /// Weak, since only the relay keeps the stream open.
    stream: Weak<Stream>,
    booked: Option<u64>,
    meter: Meter,
    /// `Some` if the gateway chooses its congestion control and can change it.
    steady: Option<Steady>,
    /// The share that it was last set to, in bits per second.
    share: f64,
    /// Setting its share failed, and that was logged.
    deaf: bool,
}

/// A session's part in a rate, released on drop.
#[derive(Debug)]
pub(crate) struct Reservation {
    reservations: Arc<Reservations>,
    segment: Segment,
    id: u64,
}

impl Reservations {
    pub(crate) fn new(terms: ReservationRules) -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(State { terms, ..State::default() }), shared: Notify::new() })
    }

    /// The rate of `segment` and the unpromised part of it, in bits per second.
    pub(crate) fn free(&self, segment: &Segment) -> Option<[u64; 2]> {
        let state = self.lock();
        let rate = state.terms.rates.get(&segment.profile)?.0;
        let promised = state.shared.get(segment).map_or(0, Shared::promised);
        Some([rate, rate.saturating_sub(promised)])
    }

    /// Limits `stream` to a part of the rate of `segment`, or to the bandwidth `booked` for it alone. `None` if there
    /// is neither.
    ///
    /// # Errors
    /// When `booked` exceeds what can still be promised.
    pub(crate) fn hold(
        self: &Arc<Self>,
        segment: &Segment,
        stream: &Arc<Stream>,
        booked: Option<u64>,
    ) -> Result<Option<Reservation>, InsufficientRate> {
        let mut state = self.lock();
        let rate = state.terms.rates.get(&segment.profile).map(|rate| rate.0);
        if rate.is_none() && booked.is_none() {
            if state.unrated.contains(&segment.profile) {
                // A connection that has failed needs no change.
                let _ = stream.set(Change::Rate(None));
            }
            return Ok(None);
        }
        let promised = state.shared.get(segment).map_or(0, Shared::promised);
        if let (Some(rate), Some(booked)) = (rate, booked)
            && promised.saturating_add(booked) > rate
        {
            return Err(InsufficientRate { free: rate.saturating_sub(promised) });
        }
        let id = state.next;
        state.next += 1;
        let steady = (state.terms.any_control.contains(&segment.profile) && is_under_bbr(stream)).then(Steady::new);
        let shared = state.shared.entry(segment.clone()).or_default();
        shared.rate = rate;
        let stream = Arc::downgrade(stream);
        shared.members.push(Member {
            id,
            stream,
            booked,
            meter: Meter::new(),
            steady,
            share: f64::INFINITY,
            deaf: false,
        });
        shared.divide(segment);
        if shared.is_contended() || shared.is_steadied() {
            self.shared.notify_one();
        }
        Ok(Some(Reservation { reservations: self.clone(), segment: segment.clone(), id }))
    }

    /// Applies other rates, to open sessions too.
    pub(crate) fn change(&self, terms: ReservationRules) {
        let state = &mut *self.lock();
        let old = std::mem::replace(&mut state.terms, terms);
        state.unrated.extend(old.rates.into_keys());
        for (segment, shared) in &mut state.shared {
            shared.rate = state.terms.rates.get(&segment.profile).map(|rate| rate.0);
            shared.divide(segment);
        }
        self.shared.notify_one();
    }

    /// Divides rates until it is dropped.
    pub(crate) async fn keep(self: Arc<Self>) {
        loop {
            match self.look(Instant::now()) {
                Some(pause) => tokio::time::sleep(pause).await,
                None => self.shared.notified().await,
            }
        }
    }

    /// Checks all connections that share a rate or may need another congestion control. Returns the pause until the
    /// next check, if any connection needs one.
    fn look(&self, now: Instant) -> Option<Duration> {
        let mut state = self.lock();
        let (mut contended, mut steadied) = (0, false);
        for (segment, shared) in &mut state.shared {
            if shared.is_contended() {
                shared.look(now);
                shared.divide(segment);
                contended += shared.members.len();
            }
            if shared.is_steadied() {
                shared.steady(now);
                steadied = true;
            }
        }
        match contended {
            0 => steadied.then_some(STEADY_LOOK),
            members => Some(LOOK.mul_f64((members as f64 / MANY as f64).max(1.0))),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    fn promised(&self) -> u64 {
        self.members.iter().filter_map(|member| member.booked).fold(0, u64::saturating_add)
    }

    /// Whether another member could use what one does not.
    fn is_contended(&self) -> bool {
        self.rate.is_some() && self.members.len() > 1
    }

    /// Whether the congestion control of any member needs checks.
    fn is_steadied(&self) -> bool {
        self.members.iter().any(|member| member.steady.is_some())
    }

    /// Checks that each connection uses the congestion control that keeps it at its rate.
    fn steady(&mut self, now: Instant) {
        let passed = self.steadied.map_or(STEADY_LOOK, |at| now.saturating_duration_since(at));
        if passed >= STEADY_LOOK {
            self.steadied = Some(now);
            self.members.iter_mut().for_each(|member| member.steady(passed));
        }
    }

    fn look(&mut self, now: Instant) {
        let passed = self.looked.replace(now).map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        for member in &mut self.members {
            let stats = member.stream.upgrade().and_then(|stream| stream.stats().ok());
            if let Some(stats) = stats {
                member.meter.look(Progress::of(&stats), passed, member.share);
            }
        }
    }

    /// Sets every member's share, reductions first, so that the sum never exceeds the rate. While a reduction has not
    /// taken effect, no member gets more.
    fn divide(&mut self, segment: &Segment) {
        if let [only] = &mut self.members[..] {
            // A single member needs no measurement, and earlier measurements would be stale.
            (only.meter, self.looked) = (Meter::new(), None);
        }
        let booked = |member: &Member| member.booked.map(|booked| booked as f64);
        let shares = match self.rate {
            Some(rate) => {
                let claim = |member: &Member| Claim { wants: member.meter.wants(), booked: booked(member) };
                divide(rate as f64, &self.members.iter().map(claim).collect::<Vec<_>>())
            }
            None => self.members.iter().map(|member| booked(member).unwrap_or(f64::INFINITY)).collect(),
        };
        let (less, more): (Vec<_>, Vec<_>) = (0..shares.len()).partition(|i| shares[*i] < self.members[*i].share);
        let mut taken = true;
        for i in less {
            taken &= self.members[i].set(shares[i], segment);
        }
        for i in more.into_iter().filter(|_| taken) {
            self.members[i].set(shares[i], segment);
        }
    }
}

/// Whether it is a TCP connection under bbr.
fn is_under_bbr(stream: &Stream) -> bool {
    stream.stats().is_ok_and(|stats| stats.congestion_control == "bbr")
}

impl Member {
    fn steady(&mut self, passed: Duration) {
        let Some(steady) = &mut self.steady else { return };
        let Some(stream) = self.stream.upgrade() else { return };
        let control = stream.stats().ok().and_then(|stats| steady.look(&stats, passed, self.share));
        if control.is_some_and(|control| stream.set(Change::CongestionControl(control)).is_err()) {
            // The transport or the kernel does not permit the change: keep the current control.
            self.steady = None;
        }
    }

    /// Restores the congestion control that it had before it was limited.
    fn release(&mut self) {
        if self.steady.take().is_some_and(|steady| steady.is_cubic())
            && let Some(stream) = self.stream.upgrade()
        {
            // A connection that has failed needs no change.
            let _ = stream.set(Change::CongestionControl(CongestionControl::Bbr));
        }
    }

    /// Sets the share. Returns whether the connection now sends no more than that.
    fn set(&mut self, share: f64, segment: &Segment) -> bool {
        let is_new = self.share.is_infinite();
        if share == self.share || !is_new && share > self.share && share < self.share * (1.0 + WORTH) {
            return true;
        }
        let Some(stream) = self.stream.upgrade() else { return true };
        let rate = share.is_finite().then_some(BitRate(share as u64));
        match stream.set(Change::Rate(rate)) {
            Ok(()) => (self.share, self.deaf) = (share, false),
            Err(error) if error.kind() == ErrorKind::Unsupported && is_new => {
                self.share = share;
                warn!(profile = &*segment.profile, "a transport cannot hold the rate of its profile");
            }
            // A connection that has failed sends nothing.
            Err(_) if stream.stats().is_ok_and(|stats| stats.closed) => {}
            Err(error) => {
                if !std::mem::replace(&mut self.deaf, true) {
                    let why = phoebus_net::reason(&error);
                    warn!(profile = &*segment.profile, "a connection does not take its part of the rate: {why}");
                }
                return false;
            }
        }
        true
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut state = self.reservations.lock();
        let Some(shared) = state.shared.get_mut(&self.segment) else { return };
        if let Some(at) = shared.members.iter().position(|member| member.id == self.id) {
            let mut gone = shared.members.swap_remove(at);
            gone.release();
            // A connection without a session sends next to nothing, and its next use sets its share.
            if shared.rate.is_none() {
                gone.set(f64::INFINITY, &self.segment);
            }
        }
        if shared.members.is_empty() {
            state.shared.remove(&self.segment);
        } else {
            shared.divide(&self.segment);
        }
    }
}

#[cfg(test)]
mod tests;
