//! Rates that connections have in common (S17, S25): what this gateway sends to one neighbour under one profile never exceeds
//! the profile's rate, however many connections carry it, and one that alone has something to send gets all of it.
//!
//! Connections hold their part of the rate by themselves: the kernel paces TCP, UDT paces its packets, QUIC's streams are
//! measured out. Here it is divided: anew whenever a session begins or ends, and some fifty times a second as long as several
//! have one in common, by what each of them sends (`share`). Where a profile leaves the congestion control to the gateway, it is
//! one that keeps to the rate (`steady`).

mod share;
mod steady;

use crate::config::Config;
use phoebus_net::transport::Change;
use phoebus_net::{CongestionControl, Stream};
use phoebus_proto::units::BitRate;
use share::{Claim, Meter, divide};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::ErrorKind;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use steady::Steady;
use tokio::sync::Notify;
use tracing::warn;

/// Pause between two looks at connections that share a rate: less than a round trip of a long path.
const LOOK: Duration = Duration::from_millis(20);
/// A look at a connection takes some microseconds: with more than this many, looks are rarer.
const MANY: usize = 100;
/// Pause between two looks at whether a connection is under the right congestion control: a bbr that goes below its rate for a
/// round trip is not seen by it.
const STEADY_LOOK: Duration = Duration::from_millis(250);
/// A share is not raised for less than this part of it: each change is a system call.
const WORTH: f64 = 0.01;

/// Rates by the names of the profiles that have them.
pub(crate) type Rates = BTreeMap<Arc<str>, BitRate>;

/// What profiles say of rates.
#[derive(Debug, Default)]
pub(crate) struct Terms {
    pub(crate) rates: Rates,
    /// Profiles that leave the congestion control to the gateway.
    pub(crate) any_control: BTreeSet<Arc<str>>,
}

impl Terms {
    pub(crate) fn of(config: &Config) -> Self {
        Self { rates: config.rates.clone(), any_control: config.any_control.clone() }
    }
}

/// What has a rate: connections under a profile to a neighbour.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Segment {
    /// The profile's name.
    pub(crate) profile: Arc<str>,
    pub(crate) neighbour: Neighbour,
}

#[cfg(test)]
impl Segment {
    /// One that has no rate.
    pub(crate) fn none() -> Self {
        Self { profile: "none".into(), neighbour: Neighbour::Peer("nobody".into()) }
    }
}

/// Who is at the other end.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Neighbour {
    /// The gateway of this name.
    Peer(Arc<str>),
    /// A host that is none.
    Host(IpAddr),
}

/// A bandwidth was asked for that cannot be promised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TooMuch {
    /// What can.
    pub(crate) free: u64,
}

/// All rates of a gateway.
#[derive(Debug, Default)]
pub(crate) struct Reservations {
    state: Mutex<State>,
    /// There is something to look at.
    shared: Notify,
}

#[derive(Debug, Default)]
struct State {
    terms: Terms,
    /// Profiles that had a rate once: connections that were made then still have it.
    unrated: BTreeSet<Arc<str>>,
    shared: HashMap<Segment, Shared>,
    next: u64,
}

/// One rate, and who shares it.
#[derive(Debug, Default)]
struct Shared {
    /// In bits per second; `None` where all that there is are connections that hold what was promised to them.
    rate: Option<u64>,
    members: Vec<Member>,
    looked: Option<Instant>,
    steadied: Option<Instant>,
}

#[derive(Debug)]
struct Member {
    id: u64,
    /// Only the relay keeps it open.
    stream: Weak<Stream>,
    booked: Option<u64>,
    meter: Meter,
    /// Where its congestion control is the gateway's choice and can be changed.
    steady: Option<Steady>,
    /// What it was told.
    share: f64,
    /// It did not take what it was told, and that was said.
    deaf: bool,
}

/// A session's part in a rate, given up when this is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    reservations: Arc<Reservations>,
    segment: Segment,
    id: u64,
}

impl Reservations {
    pub(crate) fn new(terms: Terms) -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(State { terms, ..State::default() }), shared: Notify::new() })
    }

    /// The rate of `segment`, in bits per second, and how much of it is promised to nobody.
    pub(crate) fn free(&self, segment: &Segment) -> Option<[u64; 2]> {
        let state = self.lock();
        let rate = state.terms.rates.get(&segment.profile)?.0;
        let promised = state.shared.get(segment).map_or(0, Shared::promised);
        Some([rate, rate.saturating_sub(promised)])
    }

    /// Holds `stream` to a part in the rate of `segment`, or to what is `booked` for it alone; `None` where there is neither.
    ///
    /// # Errors
    /// When so much cannot be promised any more.
    pub(crate) fn hold(
        self: &Arc<Self>,
        segment: &Segment,
        stream: &Arc<Stream>,
        booked: Option<u64>,
    ) -> Result<Option<Held>, TooMuch> {
        let mut state = self.lock();
        let rate = state.terms.rates.get(&segment.profile).map(|rate| rate.0);
        if rate.is_none() && booked.is_none() {
            if state.unrated.contains(&segment.profile) {
                // One that has failed is about to be gone.
                let _ = stream.set(Change::Rate(None));
            }
            return Ok(None);
        }
        let promised = state.shared.get(segment).map_or(0, Shared::promised);
        if let (Some(rate), Some(booked)) = (rate, booked)
            && promised.saturating_add(booked) > rate
        {
            return Err(TooMuch { free: rate.saturating_sub(promised) });
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
        Ok(Some(Held { reservations: self.clone(), segment: segment.clone(), id }))
    }

    /// Puts other rates in force, for open sessions too.
    pub(crate) fn change(&self, terms: Terms) {
        let state = &mut *self.lock();
        let old = std::mem::replace(&mut state.terms, terms);
        state.unrated.extend(old.rates.into_keys());
        for (segment, shared) in &mut state.shared {
            shared.rate = state.terms.rates.get(&segment.profile).map(|rate| rate.0);
            shared.divide(segment);
        }
        self.shared.notify_one();
    }

    /// Divides rates for as long as it runs.
    pub(crate) async fn keep(self: Arc<Self>) {
        loop {
            match self.look(Instant::now()) {
                Some(pause) => tokio::time::sleep(pause).await,
                None => self.shared.notified().await,
            }
        }
    }

    /// Looks at all connections that share a rate or may be under the wrong control; returns when to look again, if there are any.
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

    /// Whether what one does not use could be of use to another.
    fn is_contended(&self) -> bool {
        self.rate.is_some() && self.members.len() > 1
    }

    /// Whether congestion controls are to be looked after.
    fn is_steadied(&self) -> bool {
        self.members.iter().any(|member| member.steady.is_some())
    }

    /// Looks whether each connection is under the control that keeps it at its rate.
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
            let sent = member.stream.upgrade().and_then(|stream| stream.stats().ok()).map(|stats| stats.bytes_sent);
            if let Some(sent) = sent {
                member.meter.look(sent, passed, member.share);
            }
        }
    }

    /// Tells every member its share: those that are to have less first, so that the sum is never more than there is. While one of
    /// them has not taken that, no other gets more.
    fn divide(&mut self, segment: &Segment) {
        if let [only] = &mut self.members[..] {
            // What it sends is of no interest, and what it sent before that says nothing.
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

/// Whether it is TCP's bbr that controls it.
fn is_under_bbr(stream: &Stream) -> bool {
    stream.stats().is_ok_and(|stats| stats.congestion_control == "bbr")
}

impl Member {
    fn steady(&mut self, passed: Duration) {
        let Some(steady) = &mut self.steady else { return };
        let Some(stream) = self.stream.upgrade() else { return };
        let control = stream.stats().ok().and_then(|stats| steady.look(&stats, passed, self.share));
        if control.is_some_and(|control| stream.set(Change::CongestionControl(control)).is_err()) {
            // Its transport, or the kernel, does not let this process choose: it stays as it is.
            self.steady = None;
        }
    }

    /// Puts it back under the control that it had before it was held to a rate.
    fn release(&mut self) {
        if self.steady.take().is_some_and(|steady| steady.is_cubic())
            && let Some(stream) = self.stream.upgrade()
        {
            // One that has failed is about to be gone.
            let _ = stream.set(Change::CongestionControl(CongestionControl::Bbr));
        }
    }

    /// Says whether it sends no more than that now.
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
            // One that has failed sends nothing, and is about to be gone.
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

impl Drop for Held {
    fn drop(&mut self) {
        let mut state = self.reservations.lock();
        let Some(shared) = state.shared.get_mut(&self.segment) else { return };
        if let Some(at) = shared.members.iter().position(|member| member.id == self.id) {
            let mut gone = shared.members.swap_remove(at);
            gone.release();
            // A connection without a session sends next to nothing. What it is used for next, it is told then.
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
