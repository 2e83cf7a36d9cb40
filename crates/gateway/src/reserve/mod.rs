//! Rates that connections share (S17, S25). What this gateway sends to one neighbour under one profile never exceeds
//! the profile's rate, however many connections carry it; and if only one has something to send, it gets the whole
//! rate.
//!
//! Each connection keeps to its share by itself: the kernel paces TCP, UDT paces its packets, and QUIC streams are
//! throttled. This module divides the rate: whenever a session begins or ends, and about fifty times a second while
//! several connections share one, by what each of them sends (`share`). Where a profile leaves the congestion control
//! to the gateway, it chooses one that keeps to the rate (`steady`).
//!
//! The same holds for the bandwidth of users, groups, sources and peers (`[[limit]]`). So a connection has shares of several
//! rates at once (`bounds`), and keeps to the least of them. Each rate is divided by itself: a connection that another one
//! holds back needs less, and leaves the rest to others.

mod bounds;
mod share;
mod steady;

pub(crate) use bounds::{Bound, Bounds};

use crate::config::{Account, AccountLimits, Config};
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
    /// The bandwidth of accounts.
    pub(crate) accounts: AccountLimits,
}

impl ReservationRules {
    pub(crate) fn of(config: &Config) -> Self {
        let accounts = config.account_limits.clone();
        Self { rates: config.rates.clone(), any_control: config.any_control.clone(), accounts }
    }

    /// The rate in bits per second.
    fn rate(&self, bound: &Bound) -> Option<u64> {
        match bound {
            Bound::Segment(segment) => self.rates.get(&segment.profile).map(|rate| rate.0),
            Bound::Account(account, _) => self.accounts.of(account)?.bandwidth.map(|rate| rate.0),
        }
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

/// Why a connection cannot keep to its rates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CannotHold {
    /// The requested bandwidth cannot be promised.
    Insufficient {
        /// What can be promised, in bits per second: the least of all rates that bound the connection.
        free: u64,
        /// Whose bandwidth does not suffice; `None` for the segment's.
        account: Option<Account>,
    },
    /// The bandwidth of this account is limited, and the connection's transport takes no rate once it is open.
    Transport(Account),
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
    shared: HashMap<Bound, Shared>,
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
    /// The connection, which is a member of several rates.
    paced: Arc<Mutex<Paced>>,
    /// Which of the connection's shares this one is.
    part: usize,
    booked: Option<u64>,
    meter: Meter,
    /// `Some` if the gateway chooses its congestion control and can change it.
    steady: Option<Steady>,
    /// The share that it was last set to, in bits per second.
    share: f64,
}

/// A connection, which keeps to the least of its shares.
#[derive(Debug)]
struct Paced {
    /// Weak, since only the relay keeps the stream open.
    stream: Weak<Stream>,
    /// In bits per second.
    shares: Box<[f64]>,
    /// What it was last set to.
    told: f64,
    /// Setting that failed, and was logged.
    deaf: bool,
}

/// A connection's parts in the rates that bound it, released on drop.
#[derive(Debug)]
pub(crate) struct Reservation {
    reservations: Arc<Reservations>,
    bounds: Bounds,
    id: u64,
}

impl Reservations {
    pub(crate) fn new(terms: ReservationRules) -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(State { terms, ..State::default() }), shared: Notify::new() })
    }

    /// The rate of `segment` and the unpromised part of it, in bits per second.
    #[cfg(test)]
    fn free(&self, segment: &Segment) -> Option<[u64; 2]> {
        let state = self.lock();
        let bound = Bound::Segment(segment.clone());
        let rate = state.terms.rate(&bound)?;
        let promised = state.shared.get(&bound).map_or(0, Shared::promised);
        Some([rate, rate.saturating_sub(promised)])
    }

    /// The least rate that bounds a connection, in bits per second.
    pub(crate) fn rate(&self, bounds: &Bounds) -> Option<u64> {
        let state = self.lock();
        bounds.0.iter().filter_map(|bound| state.terms.rate(bound)).min()
    }

    /// Limits `stream` to a part of each rate that bounds it, and to the bandwidth `booked` for it alone. `None` if there
    /// is none of both.
    ///
    /// # Errors
    /// When `booked` exceeds what can still be promised, or the transport cannot keep to the bandwidth of an account.
    pub(crate) fn hold(
        self: &Arc<Self>,
        bounds: &Bounds,
        stream: &Arc<Stream>,
        booked: Option<u64>,
    ) -> Result<Option<Reservation>, CannotHold> {
        let state = &mut *self.lock();
        let rates: Vec<_> = bounds.0.iter().map(|bound| state.terms.rate(bound)).collect();
        let profile = |bound: &Bound| match bound {
            Bound::Segment(segment) => Some(segment.profile.clone()),
            Bound::Account(..) => None,
        };
        if rates.iter().all(Option::is_none) && booked.is_none() {
            if bounds.0.iter().filter_map(profile).any(|profile| state.unrated.contains(&profile)) {
                // A connection that has failed needs no change.
                let _ = stream.set(Change::Rate(None));
            }
            return Ok(None);
        }
        let account = |bound: &Bound| match bound {
            Bound::Account(account, _) => Some(account.clone()),
            Bound::Segment(_) => None,
        };
        let free = |(bound, rate): (&Bound, &Option<u64>)| {
            let promised = state.shared.get(bound).map_or(0, Shared::promised);
            Some((rate.as_ref()?.saturating_sub(promised), account(bound)))
        };
        let least = bounds.0.iter().zip(&rates).filter_map(free).min_by_key(|(free, _)| *free);
        if let (Some((free, account)), Some(booked)) = (least, booked)
            && booked > free
        {
            return Err(CannotHold::Insufficient { free, account });
        }
        let limited = bounds.0.iter().zip(&rates).find_map(|(bound, rate)| rate.and(account(bound)));
        let rate = rates.iter().copied().flatten().min();
        if let (Some(account), Some(rate)) = (limited, rate)
            && stream.set(Change::Rate(Some(BitRate(rate)))).is_err_and(|error| error.kind() == ErrorKind::Unsupported)
        {
            return Err(CannotHold::Transport(account));
        }
        let id = state.next;
        state.next += 1;
        let shares = vec![f64::INFINITY; bounds.0.len()].into();
        let paced = Paced { stream: Arc::downgrade(stream), shares, told: f64::INFINITY, deaf: false };
        let paced = Arc::new(Mutex::new(paced));
        // It joins those without a rate too: a reload may give them one.
        for (part, (bound, rate)) in bounds.0.iter().zip(rates).enumerate() {
            let is_free = profile(bound).is_some_and(|profile| state.terms.any_control.contains(&profile));
            let shared = state.shared.entry(bound.clone()).or_default();
            shared.rate = rate;
            shared.members.push(Member {
                id,
                paced: paced.clone(),
                part,
                booked,
                meter: Meter::new(),
                steady: (is_free && is_under_bbr(stream)).then(Steady::new),
                share: f64::INFINITY,
            });
            shared.divide(bound);
            if shared.is_contended() || shared.is_steadied() {
                self.shared.notify_one();
            }
        }
        Ok(Some(Reservation { reservations: self.clone(), bounds: bounds.clone(), id }))
    }

    /// Applies other rates, to open sessions too.
    pub(crate) fn change(&self, terms: ReservationRules) {
        let state = &mut *self.lock();
        let old = std::mem::replace(&mut state.terms, terms);
        state.unrated.extend(old.rates.into_keys());
        for (bound, shared) in &mut state.shared {
            shared.rate = state.terms.rate(bound);
            shared.divide(bound);
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
        for (bound, shared) in &mut state.shared {
            if shared.is_contended() {
                shared.look(now);
                shared.divide(bound);
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
            let stats = member.stream().and_then(|stream| stream.stats().ok());
            if let Some(stats) = stats {
                member.meter.look(Progress::of(&stats), passed, member.share);
            }
        }
    }

    /// Sets every member's share, reductions first, so that the sum never exceeds the rate. While a reduction has not
    /// taken effect, no member gets more.
    fn divide(&mut self, bound: &Bound) {
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
            taken &= self.members[i].set(shares[i], bound);
        }
        for i in more.into_iter().filter(|_| taken) {
            self.members[i].set(shares[i], bound);
        }
    }
}

/// Whether it is a TCP connection under bbr.
fn is_under_bbr(stream: &Stream) -> bool {
    stream.stats().is_ok_and(|stats| stats.congestion_control == "bbr")
}

impl Member {
    fn stream(&self) -> Option<Arc<Stream>> {
        self.paced().stream.upgrade()
    }

    fn paced(&self) -> MutexGuard<'_, Paced> {
        self.paced.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn steady(&mut self, passed: Duration) {
        let Some(stream) = self.stream() else { return };
        let share = self.paced().told;
        let Some(steady) = &mut self.steady else { return };
        let control = stream.stats().ok().and_then(|stats| steady.look(&stats, passed, share));
        if control.is_some_and(|control| stream.set(Change::CongestionControl(control)).is_err()) {
            // The transport or the kernel does not permit the change: keep the current control.
            self.steady = None;
        }
    }

    /// Restores the congestion control that it had before it was limited.
    fn release(&mut self) {
        if self.steady.take().is_some_and(|steady| steady.is_cubic())
            && let Some(stream) = self.stream()
        {
            // A connection that has failed needs no change.
            let _ = stream.set(Change::CongestionControl(CongestionControl::Bbr));
        }
    }

    /// Sets the share. Returns whether the connection now sends no more than that.
    fn set(&mut self, share: f64, bound: &Bound) -> bool {
        let is_new = self.share.is_infinite();
        if share == self.share || !is_new && share > self.share && share < self.share * (1.0 + WORTH) {
            return true;
        }
        let is_kept = self.paced().set(self.part, share, bound);
        if is_kept {
            self.share = share;
        }
        is_kept
    }
}

impl Paced {
    /// Sets one of its shares. Returns whether the connection now sends no more than that.
    fn set(&mut self, part: usize, share: f64, bound: &Bound) -> bool {
        let Some(stream) = self.stream.upgrade() else { return true };
        let before = std::mem::replace(&mut self.shares[part], share);
        let least = self.shares.iter().copied().fold(f64::INFINITY, f64::min);
        if least == self.told {
            return true;
        }
        let is_new = self.told.is_infinite();
        let rate = least.is_finite().then_some(BitRate(least as u64));
        match stream.set(Change::Rate(rate)) {
            Ok(()) => (self.told, self.deaf) = (least, false),
            Err(error) if error.kind() == ErrorKind::Unsupported && is_new => {
                self.told = least;
                warn!(rate = bound.name(), "a transport cannot hold a rate");
            }
            // A connection that has failed sends nothing.
            Err(_) if stream.stats().is_ok_and(|stats| stats.closed) => {}
            Err(error) => {
                self.shares[part] = before;
                if !std::mem::replace(&mut self.deaf, true) {
                    let why = phoebus_net::reason(&error);
                    warn!(rate = bound.name(), "a connection does not take its part of the rate: {why}");
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
        for bound in &self.bounds.0 {
            let Some(shared) = state.shared.get_mut(bound) else { continue };
            if let Some(at) = shared.members.iter().position(|member| member.id == self.id) {
                let mut gone = shared.members.swap_remove(at);
                gone.release();
                // A connection without a session sends next to nothing, and its next use sets its share of the segment's rate.
                // Of other rates it has none any more.
                if shared.rate.is_none() || matches!(bound, Bound::Account(..)) {
                    gone.set(f64::INFINITY, bound);
                }
            }
            if shared.members.is_empty() {
                state.shared.remove(bound);
            } else {
                shared.divide(bound);
            }
        }
    }
}

#[cfg(test)]
mod tests;
