//! One control for several connections on one path (L4): together they send as one connection would, and what one of them finds out
//! about the path serves all.
//!
//! Delivery is measured over all of them, so the controller sees the path's rate. Those that have something to send get equal parts
//! of the rate and of the window. A connection that joins later has its part at once.

use super::{Ack, Controller, Delivery, Factory, Loss, Pace, Path, Snapshot};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A control for connections on one path. Clones are the same control.
#[derive(Debug, Clone, Default)]
pub struct SharedControl(Arc<Mutex<State>>);

/// One connection's part of a control. Dropping it leaves its part to the others.
#[derive(Debug)]
pub struct Share {
    control: SharedControl,
    member: u64,
}

/// Packets of one connection that have arrived.
#[derive(Debug, Clone, Copy)]
pub struct Arrival {
    /// Number of packets.
    pub count: u32,
    /// The latest of them whose transmission is known.
    pub newest: Option<Snapshot>,
    /// The round-trip time, if this has measured one.
    pub rtt: Option<Duration>,
}

#[derive(Debug, Default)]
struct State {
    /// Made by the first member, and dropped by the last.
    control: Option<Box<dyn Controller>>,
    delivery: Delivery,
    members: BTreeMap<u64, Member>,
    /// Number of the next member.
    next: u64,
    /// When the peer last acknowledged anything to any member.
    heard_at: Duration,
}

#[derive(Debug, Default)]
struct Member {
    in_flight: u32,
    activity: Activity,
    /// When the peer last acknowledged anything to it, or it sent with nothing in flight.
    heard_at: Duration,
}

/// What a connection does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Activity {
    /// It has nothing to send.
    #[default]
    Idle,
    /// Its peer is silent, so that it does not use its part of the rate.
    Stalled,
    Sending,
}

impl SharedControl {
    /// Least window of a connection, in packets.
    const WINDOW_MIN: u32 = 4;

    /// Adds a connection on `path`. The first one determines by `factory` which control it is. All times are counted from the same
    /// origin.
    pub fn join(&self, now: Duration, path: &Path, factory: &dyn Factory) -> Share {
        let mut state = self.lock();
        if state.control.is_none() {
            (state.delivery, state.heard_at) = (Delivery::default(), now);
            state.control = Some(factory.build(now, path));
        }
        let member = state.next;
        state.next += 1;
        state.members.insert(member, Member::default());
        drop(state);
        Share { control: self.clone(), member }
    }

    /// Whether there is no other clone, and so no connection.
    pub fn is_only_clone(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    /// Whether `other` is the same control.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Share {
    /// The control of a single connection.
    pub fn alone(now: Duration, path: &Path, factory: &dyn Factory) -> Self {
        SharedControl::default().join(now, path, factory)
    }

    /// Records the sending of a packet, with which `in_flight` packets of this connection are in flight.
    pub fn sent(&self, now: Duration, in_flight: u32) -> Snapshot {
        let mut state = self.control.lock();
        state.set(self.member, |member| {
            member.in_flight = in_flight.saturating_sub(1);
            if member.activity == Activity::Idle {
                member.activity = Activity::Sending;
            }
            if member.in_flight == 0 {
                member.heard_at = now;
            }
        });
        let is_idle = state.in_flight() == 0;
        state.set(self.member, |member| member.in_flight = in_flight);
        state.delivery.sent(now, is_idle)
    }

    /// Records the sending of a packet that nobody acknowledges.
    pub fn sent_beside(&self, now: Duration) -> Snapshot {
        self.control.lock().delivery.sent(now, false)
    }

    /// Records that this connection has nothing to send, though more might be in flight.
    pub fn has_nothing(&self) {
        let mut state = self.control.lock();
        state.set(self.member, |member| member.activity = Activity::Idle);
        // The others still show what the path carries.
        if state.members.values().all(|member| member.activity != Activity::Sending) {
            let in_flight = state.in_flight();
            state.delivery.app_limited(in_flight);
        }
    }

    /// Records that this connection has to wait for acknowledgements. If it has heard none for longer than `patience`, its part of the
    /// rate is left to the others: a peer that is gone does not slow them down.
    pub fn is_waiting(&self, now: Duration, patience: Duration) {
        let mut state = self.control.lock();
        if state.members.len() > 1 {
            state.set(self.member, |member| {
                if now.saturating_sub(member.heard_at) > patience {
                    member.activity = Activity::Stalled;
                }
            });
        }
    }

    /// Packets have arrived, after which `path` is that of this connection.
    pub fn arrived(&self, now: Duration, path: &Path, arrival: &Arrival) {
        let mut state = self.control.lock();
        state.heard_at = now;
        state.set(self.member, |member| {
            member.heard_at = now;
            if member.activity == Activity::Stalled {
                member.activity = Activity::Sending;
            }
        });
        let Arrival { count, newest, rtt } = *arrival;
        let sample = match newest {
            Some(newest) => Some(state.delivery.acknowledged(now, count, &newest)),
            None => {
                state.delivery.arrived_late(count);
                None
            }
        };
        let delivered = state.delivery.delivered();
        state
            .tell(self.member, path, |control, path| control.on_ack(now, path, &Ack { count, sample, delivered, rtt }));
    }

    /// Packets of this connection were lost.
    pub fn lost(&self, now: Duration, path: &Path, loss: &Loss) {
        self.control.lock().tell(self.member, path, |control, path| control.on_loss(now, path, loss));
    }

    /// This connection has heard nothing since `heard_at`. If others have, the path is not at fault. Returns whether it may be.
    pub fn timed_out(&self, now: Duration, path: &Path, heard_at: Duration) -> bool {
        let mut state = self.control.lock();
        let is_silent = state.heard_at <= heard_at;
        if is_silent {
            state.tell(self.member, path, |control, path| control.on_timeout(now, path));
        }
        is_silent
    }

    /// This connection's part of the pace.
    pub fn pace(&self) -> Pace {
        let state = self.control.lock();
        let sends = |(member, other): &(&u64, &Member)| **member != self.member && other.activity == Activity::Sending;
        let (parts, pace) = (state.members.iter().filter(sends).count() as u32 + 1, state.pace());
        Pace {
            interval: pace.interval * f64::from(parts),
            window: (pace.window / parts).max(SharedControl::WINDOW_MIN.min(pace.window)),
        }
    }

    /// The pace of all connections together.
    pub fn whole_pace(&self) -> Pace {
        self.control.lock().pace()
    }

    /// The rate of the path, in packets per second, once it was found out.
    pub fn path_rate(&self) -> Option<f64> {
        self.control.lock().control.as_ref()?.path_rate()
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut state = self.control.lock();
        state.members.remove(&self.member);
        if state.members.is_empty() {
            // What it knows of the path ages from now on.
            state.control = None;
        } else if state.members.len() == 1 {
            // Nobody is left who could use the part of a silent one.
            state.members.values_mut().for_each(|last| last.activity = Activity::Sending);
        }
    }
}

impl State {
    /// Packets in flight, without those of peers that are gone.
    fn in_flight(&self) -> u32 {
        let heard = self.members.values().filter(|member| member.activity != Activity::Stalled);
        heard.fold(0, |sum, member| sum.saturating_add(member.in_flight))
    }

    fn set(&mut self, member: u64, change: impl FnOnce(&mut Member)) {
        if let Some(member) = self.members.get_mut(&member) {
            change(member);
        }
    }

    /// Tells the control of an event of a member, whose `path` becomes that of all.
    fn tell(&mut self, member: u64, path: &Path, event: impl FnOnce(&mut dyn Controller, &Path)) {
        self.set(member, |member| member.in_flight = path.in_flight);
        let path = Path { in_flight: self.in_flight(), ..*path };
        if let Some(control) = &mut self.control {
            event(&mut **control, &path);
        }
    }

    fn pace(&self) -> Pace {
        // There is a control as long as there are members.
        self.control.as_ref().map_or(Pace { interval: f64::INFINITY, window: 0 }, |control| control.pace())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Acknowledgements, Fixed};
    use super::*;

    fn path() -> Path {
        Path {
            mss: 1250,
            window_max: 1000,
            rtt: Duration::from_millis(10),
            rtt_measured: true,
            receiving: 16.0,
            capacity: 1.0,
            next: 0,
            in_flight: 0,
            acknowledgements: Acknowledgements { interval: Duration::from_millis(10), packets: 64 },
            seed: 0,
        }
    }

    #[test]
    fn those_with_something_to_send_have_equal_parts() {
        let (shared, now) = (SharedControl::default(), Duration::ZERO);
        let fixed = Fixed { bits_per_second: 10_000_000 };
        let [first, second, third] = [(); 3].map(|()| shared.join(now, &path(), &fixed));
        // 10 Mbit/s are a packet each millisecond.
        assert_eq!(first.pace().interval, 1e6);
        first.sent(now, 1);
        second.sent(now, 1);
        assert_eq!([&first, &second, &third].map(|share| share.pace().interval), [2e6, 2e6, 3e6]);
        assert_eq!(first.whole_pace().interval, 1e6);
        second.has_nothing();
        assert_eq!(first.pace().interval, 1e6);
        third.sent(now, 1);
        drop(first);
        assert_eq!(third.pace().interval, 1e6);
        drop((second, third));
        assert!(shared.is_only_clone());
        // Whoever comes next begins anew, with the control that it brings.
        let next = shared.join(now, &path(), &Fixed { bits_per_second: 20_000_000 });
        assert_eq!(next.pace().interval, 5e5);
    }

    #[test]
    fn delivery_is_measured_over_all() {
        let shared = SharedControl::default();
        let ms = Duration::from_millis;
        let fixed = Fixed { bits_per_second: 10_000_000 };
        let [one, other] = [(); 2].map(|()| shared.join(ms(0), &path(), &fixed));
        let sent = one.sent(ms(0), 1);
        let others = other.sent(ms(0), 1);
        one.arrived(ms(10), &path(), &Arrival { count: 1, newest: Some(sent), rtt: None });
        other.arrived(ms(10), &path(), &Arrival { count: 1, newest: Some(others), rtt: None });
        assert_eq!(shared.lock().delivery.delivered(), 2);
        // As long as one has something to send, samples show the path's rate.
        one.has_nothing();
        let next = other.sent(ms(11), 1);
        assert!(!shared.lock().delivery.acknowledged(ms(20), 1, &next).app_limited);
        other.has_nothing();
        let next = one.sent(ms(21), 1);
        assert!(shared.lock().delivery.acknowledged(ms(30), 1, &next).app_limited);
    }
}
