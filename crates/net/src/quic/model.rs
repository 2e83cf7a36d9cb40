//! Congestion control by a model of the path: the rate that it delivers and its round-trip time without a queue are measured
//! all the time, and about their product is kept under way (U8).
//!
//! The idea and its gains are BBR's (Cardwell et al., "BBR: congestion-based congestion control", 2016), with the response
//! to loss of [`phoebus_proto::udt`]'s `model`: a loss counts only together with a queue. quinn has a BBR too; it takes the
//! time between two acknowledgements for a sample of the rate, which overestimates without bound where they come in
//! batches. Here the rate is measured as in draft-cheng-iccrg-delivery-rate-estimation.
//!
//! quinn asks a controller for a window alone, and paces at 5/4 of it per round trip. So the window is what is steered: the
//! rate follows from it, by its own acknowledgements. BBR paces at the rate that it has found, whatever queue others make,
//! and its window has room for that. Here a window for the path without a queue would deliver less as soon as others fill
//! one, the rate measured would fall with it, and so on, round by round. A queue that stands, even after a pause, is
//! therefore counted with the path ([`Control::standing`]).

#[cfg(test)]
mod tests;

use quinn_proto::RttEstimator;
use quinn_proto::congestion::{Controller, ControllerFactory};
use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Makes a controller for each path.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Model;

impl ControllerFactory for Model {
    fn build(self: Arc<Self>, now: Instant, mtu: u16) -> Box<dyn Controller> {
        Box::new(Control::new(now, mtu))
    }
}

/// Packets of the first window: more than TCP's 10, because they are paced.
const INITIAL: f64 = 32.0;
/// Packets that may always be under way.
const LEAST: f64 = 16.0;
/// Growth of the window in a round trip while the rate is being found: 2 / ln 2, with which delivery doubles.
const STARTUP: f64 = 2.885;
/// The same for windows of more packets than [`LARGE`]: with BBR's, a queue of less than two products overflows, and the
/// receiver has more gaps than quinn takes ([`GAPS`]).
const STARTUP_LARGE: f64 = 2.0;
const LARGE: f64 = 1024.0;
/// What is kept under way, in products of rate and least round trip, in the eight steps of a cycle: a probe for more, the
/// pause that lets its queue go, and six with enough in hand for acknowledgements that come late.
const CRUISE: [f64; 8] = [1.35, 0.95, 1.15, 1.15, 1.15, 1.15, 1.15, 1.15];
/// The same, cruising and probing, beside others that keep a queue, in units of what the path and that queue hold: less, since
/// what is too much is lost, by the others too.
const BESIDE: f64 = 1.05;
const BESIDE_PROBE: f64 = 1.2;
/// Fewer steps than this are left out of a cycle.
const SKIPPED: usize = 3;
/// The most that the path and that queue are taken to hold, in products, as in BBR: a queue of one round trip.
const STANDING_MAX: f64 = 2.0;
/// Rounds from which the highest rate and the least round trip are taken: a cycle and a little.
const ROUNDS: usize = 10;
/// How long a busy host takes to answer, however short the path: a window for less would leave both ends waiting for each
/// other's threads.
const HOSTS: Duration = Duration::from_micros(500);
/// A round trip that is a quarter longer than the least shows a queue; but no less than this, by which round trips differ
/// anyway, and, once started, no more than that: what a router holds may be much shorter than the path. While starting up,
/// a path that differs by more and loses packets besides would end the start at once.
const QUEUED: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(5));
/// Loss in one round that means nothing, in addition to what the path loses anyway.
const LOSS_TOLERATED: f64 = 0.02;
/// More loss than this is not taken for the path's.
const LOSS_MAX: f64 = 0.1;
/// After how long the minimum round-trip time is measured again, and how long that takes at least.
const MIN_RTT_AGE: Duration = Duration::from_secs(10);
const PROBE_TIME: Duration = Duration::from_millis(200);
/// Gaps that may be in what the peer has. A peer that reads takes any number ([`super::receive`]); of what waits for a reader
/// that has stopped, quinn takes 1024 in one stream before it ends the connection.
const GAPS: f64 = 700.0;
/// Sent packets whose deliveries can be told apart: a round trip at any rate that a processor can encrypt.
const REMEMBERED: usize = 1 << 16;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Phase {
    /// The rate doubles every round, until it does not help any more.
    Startup,
    /// The queue that this made is let go.
    Drain,
    /// Cruising; the step of [`CRUISE`], and since when.
    Cruise { step: usize, since: Instant },
    /// So little is under way that the minimum round-trip time shows.
    Probe { until: Instant },
}

/// What packets remember of the time when they were sent. Those sent together share one.
#[derive(Debug, Clone, Copy)]
struct Sent {
    at: Instant,
    delivered: u64,
    delivered_at: Instant,
    first_sent_at: Instant,
    app_limited: bool,
}

#[derive(Debug, Clone)]
struct Control {
    mtu: f64,
    phase: Phase,
    window: f64,
    /// Highest delivery rates of the last rounds, in bytes per second.
    rates: [f64; ROUNDS],
    /// The least round trips of the same rounds.
    leasts: [Duration; ROUNDS],
    min_rtt: Option<Duration>,
    min_rtt_at: Instant,
    /// Whether the bottleneck's buffer has overflowed since that was measured.
    has_overflowed: bool,
    /// The least round trip while the minimum is measured anew.
    min_rtt_next: Duration,
    rtt: Duration,
    /// Rounds in which the path was tried, and how much is delivered when this one ends.
    round: usize,
    round_ends: u64,
    /// While starting up: the rate that was not exceeded by a quarter, and for how many rounds.
    plateau: (f64, u32),
    /// Bytes lost and delivered in this round, and the average of the fraction that is lost.
    lost: u64,
    acked: u64,
    loss: f64,
    /// The fraction that is lost without any queue.
    floor: f64,
    /// Bytes under way at which the bottleneck's buffer overflowed.
    bound: f64,
    /// The most that one acknowledgement told of lately: what may come late.
    batch: f64,
    in_flight: u64,
    sent: VecDeque<Sent>,
    newest: Option<Sent>,
    batch_acked: u64,
    delivered: u64,
    delivered_at: Instant,
    first_sent_at: Instant,
    /// Packets sent until more than this was delivered show what the application had, not what the path gave.
    app_limited_until: u64,
    random: u64,
}

impl Control {
    fn new(now: Instant, mtu: u16) -> Self {
        let mtu = f64::from(mtu);
        Self {
            mtu,
            phase: Phase::Startup,
            window: INITIAL * mtu,
            rates: [0.0; ROUNDS],
            leasts: [Duration::MAX; ROUNDS],
            min_rtt: None,
            min_rtt_at: now,
            has_overflowed: false,
            min_rtt_next: Duration::MAX,
            rtt: Duration::ZERO,
            round: 0,
            round_ends: 0,
            plateau: (0.0, 0),
            lost: 0,
            acked: 0,
            loss: 0.0,
            floor: 0.0,
            bound: f64::INFINITY,
            batch: 0.0,
            in_flight: 0,
            sent: VecDeque::new(),
            newest: None,
            batch_acked: 0,
            delivered: 0,
            delivered_at: now,
            first_sent_at: now,
            // What comes before the first data is little.
            app_limited_until: 1,
            random: std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0),
        }
    }

    fn rate(&self) -> f64 {
        self.rates.iter().copied().fold(0.0, f64::max)
    }

    /// Bytes that the path holds without a queue; that of a path within a machine room is in its hosts.
    fn product(&self) -> f64 {
        self.rate() * self.min_rtt.map_or(Duration::ZERO, |least| least.max(HOSTS)).as_secs_f64()
    }

    /// Bytes that the path holds with the queue that others keep. One of this connection's own is gone when it has paused,
    /// once in every cycle; what is there even then is not its own.
    fn standing(&self) -> f64 {
        let min_rtt = self.min_rtt.unwrap_or_default();
        let least = self.leasts.iter().copied().fold(self.rtt, Duration::min);
        let product = self.product();
        (self.rate() * least.max(min_rtt).as_secs_f64()).min(STANDING_MAX * product).max(product)
    }

    fn take_rtt(&mut self, now: Instant, rtt: Duration) {
        self.rtt = if self.rtt.is_zero() { rtt } else { self.rtt * 7 / 8 + rtt / 8 };
        self.min_rtt_next = self.min_rtt_next.min(rtt);
        let least = &mut self.leasts[self.round % ROUNDS];
        *least = rtt.min(*least);
        match self.min_rtt {
            None => (self.min_rtt, self.min_rtt_at) = (Some(rtt), now),
            Some(least) => {
                self.min_rtt = Some(least.min(rtt));
                // Within a sixteenth it is the same path. But one that was measured beside others may have their queue in it,
                // which is then filled again in every cycle, and overflows.
                if rtt <= least + least / 16 && !self.has_overflowed {
                    self.min_rtt_at = now;
                }
            }
        }
        let is_old = now > self.min_rtt_at + MIN_RTT_AGE;
        if is_old && matches!(self.phase, Phase::Cruise { .. }) {
            self.phase = Phase::Probe { until: now + PROBE_TIME.max(self.rtt) };
            self.min_rtt_next = rtt;
        }
    }

    /// Whether packets wait somewhere on the path.
    fn is_queued(&self) -> bool {
        let least = self.min_rtt.unwrap_or_default();
        let most = if self.phase == Phase::Startup { Duration::MAX } else { QUEUED.1 };
        self.rtt > least + (least / 4).clamp(QUEUED.0, most)
    }

    fn end_of_round(&mut self, app_limited: bool) {
        let loss = self.lost as f64 / (self.lost + self.acked).max(1) as f64;
        self.loss += (loss - self.loss) / 8.0;
        if matches!(self.phase, Phase::Cruise { step: 2, .. }) {
            // These packets were sent in the pause, when no queue lost them.
            self.floor += (loss - self.floor) / 4.0;
        }
        // Less than a queue that shows, but more than chance: a short buffer overflows.
        let is_cruising = matches!(self.phase, Phase::Cruise { .. }) && self.lost as f64 > 10.0 * self.mtu;
        let is_much = loss > LOSS_TOLERATED + self.floor.min(LOSS_MAX) && self.is_queued();
        if is_much || loss > 2.0 * LOSS_TOLERATED + self.floor && is_cruising {
            self.overflow();
        } else {
            self.bound *= 1.1;
        }
        (self.lost, self.acked) = (0, 0);
        if self.phase == Phase::Startup && !app_limited {
            let rate = self.rate();
            if rate > self.plateau.0 * 1.25 {
                self.plateau = (rate, 0);
            } else {
                self.plateau.1 += 1;
                if self.plateau.1 >= 3 {
                    self.phase = Phase::Drain;
                }
            }
        }
    }

    /// The bottleneck's buffer has overflowed.
    fn overflow(&mut self) {
        self.has_overflowed = true;
        let least = self.standing().max(LEAST * self.mtu);
        self.bound = (self.in_flight as f64 * 0.85).clamp(least, self.bound.max(least));
        if self.phase == Phase::Startup {
            self.phase = Phase::Drain;
        }
    }

    fn next_phase(&mut self, now: Instant) {
        let (in_flight, product) = (self.in_flight as f64, self.product());
        match self.phase {
            Phase::Startup => {}
            Phase::Drain if in_flight > product.max(LEAST * self.mtu) => {}
            Phase::Drain => self.cruise(now),
            Phase::Cruise { step, since } => {
                let drained = step == 1 && in_flight <= product;
                if now > since + self.min_rtt.unwrap_or_default() || drained {
                    // Some cycles are shorter: of two as long as each other, one might always probe in the other's pause.
                    let skipped = if step == 2 { self.draw() % SKIPPED } else { 0 };
                    self.phase = Phase::Cruise { step: (step + 1 + skipped) % CRUISE.len(), since: now };
                }
            }
            Phase::Probe { until } if now < until => {}
            Phase::Probe { .. } => {
                (self.min_rtt, self.min_rtt_at, self.has_overflowed) = (Some(self.min_rtt_next), now, false);
                self.cruise(now);
            }
        }
    }

    /// Begins at a step of its own, so that flows do not probe together, but never with the pause.
    fn cruise(&mut self, now: Instant) {
        let step = 2 + self.draw() % (CRUISE.len() - 2);
        self.phase = Phase::Cruise { step, since: now };
    }

    fn draw(&mut self) -> usize {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) as usize
    }

    fn decide(&mut self) {
        let product = self.product();
        let target = match self.phase {
            _ if product <= 0.0 => self.window,
            Phase::Startup => {
                let gain = if self.window > LARGE * self.mtu { STARTUP_LARGE } else { STARTUP };
                let most = (product * gain + self.batch).max(self.window.min(INITIAL * self.mtu));
                (self.window + self.batch_acked as f64).min(most)
            }
            Phase::Drain => product,
            Phase::Cruise { step, .. } => {
                let beside = match step {
                    0 => self.standing() * BESIDE_PROBE,
                    1 => 0.0,
                    _ => self.standing() * BESIDE,
                };
                beside.max(product * CRUISE[step]) + self.batch
            }
            Phase::Probe { .. } => product * 0.5,
        };
        let gaps = GAPS * self.mtu / self.loss.max(1e-6);
        self.window = target.min(self.bound).min(gaps).max(LEAST * self.mtu);
    }
}

/// What a connection tells, apart from quinn's types.
impl Control {
    /// Bytes go.
    fn sent(&mut self, now: Instant, bytes: u64) {
        if self.in_flight == 0 {
            (self.delivered_at, self.first_sent_at) = (now, now);
        }
        self.in_flight += bytes;
        if self.sent.back().is_none_or(|sent| sent.at != now) {
            if self.sent.len() == REMEMBERED {
                self.sent.pop_front();
            }
            self.sent.push_back(Sent {
                at: now,
                delivered: self.delivered,
                delivered_at: self.delivered_at,
                first_sent_at: self.first_sent_at,
                app_limited: self.delivered <= self.app_limited_until,
            });
        }
    }

    /// A packet sent at `sent` has arrived: one of those that an acknowledgement tells of.
    fn arrived(&mut self, sent: Instant, bytes: u64) {
        self.batch_acked += bytes;
        if self.newest.is_none_or(|newest| newest.at < sent) {
            let at = self.sent.partition_point(|other| other.at <= sent);
            let found = at.checked_sub(1).and_then(|at| self.sent.get(at));
            self.newest = found.filter(|found| found.at == sent).copied().or(self.newest);
        }
    }

    /// That was all of the acknowledgement.
    fn acknowledged(&mut self, now: Instant, in_flight: u64, app_limited: bool) {
        self.in_flight = in_flight;
        self.acked += self.batch_acked;
        self.delivered += self.batch_acked;
        self.delivered_at = now;
        self.batch = (self.batch * 0.99).max(self.batch_acked as f64);
        if app_limited {
            self.app_limited_until = self.delivered + in_flight;
        }
        if let Some(newest) = self.newest.take() {
            self.first_sent_at = newest.at;
            self.take_rtt(now, now.saturating_duration_since(newest.at));
            if newest.delivered >= self.round_ends {
                self.round_ends = self.delivered;
                if !newest.app_limited {
                    // What was known is not forgotten over a pause: nothing was learnt in it.
                    self.round += 1;
                    self.rates[self.round % ROUNDS] = 0.0;
                    self.leasts[self.round % ROUNDS] = Duration::MAX;
                }
                self.end_of_round(newest.app_limited);
            }
            self.take_rate(now, &newest);
            let forget = newest.at.checked_sub((self.rtt * 4).max(Duration::from_secs(1)));
            while forget.is_some_and(|forget| self.sent.front().is_some_and(|sent| sent.at < forget)) {
                self.sent.pop_front();
            }
        }
        self.next_phase(now);
        self.decide();
        self.batch_acked = 0;
    }

    /// What was delivered since `newest` was sent, and in what time, is a sample of the rate.
    fn take_rate(&mut self, now: Instant, newest: &Sent) {
        let sending = newest.at.saturating_duration_since(newest.first_sent_at);
        let interval = now.saturating_duration_since(newest.delivered_at).max(sending);
        let rate = (self.delivered - newest.delivered) as f64 / interval.as_secs_f64().max(1e-6);
        // What the path itself lost took its share of it as well.
        let rate = rate / (1.0 - self.floor.min(LOSS_MAX));
        // Samples over less than a round trip see bursts of acknowledgements, not the path.
        let is_long = self.min_rtt.is_some_and(|least| interval >= least);
        if is_long && (!newest.app_limited || rate > self.rate()) {
            let best = &mut self.rates[self.round % ROUNDS];
            *best = best.max(rate);
        }
    }

    /// Bytes were lost, or, if none, marked by a router instead (ECN). `persistent`: nothing got through for long.
    fn missing(&mut self, now: Instant, lost: u64, persistent: bool) {
        self.lost += lost;
        self.in_flight = self.in_flight.saturating_sub(lost);
        if lost == 0 {
            // A queue, by the router's own word.
            self.overflow();
        }
        if persistent {
            // What was known of the path is void.
            let fresh = Self::new(now, self.mtu as u16);
            let window = LEAST * self.mtu;
            let (delivered, sent, in_flight) = (self.delivered, std::mem::take(&mut self.sent), self.in_flight);
            *self = Self { delivered, sent, in_flight, window, random: self.random, ..fresh };
        }
    }
}

impl Controller for Control {
    fn on_sent(&mut self, now: Instant, bytes: u64, _last: u64) {
        self.sent(now, bytes);
    }

    fn on_ack(&mut self, _now: Instant, sent: Instant, bytes: u64, _app_limited: bool, _rtt: &RttEstimator) {
        self.arrived(sent, bytes);
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool, _largest: Option<u64>) {
        self.acknowledged(now, in_flight, app_limited);
    }

    fn on_congestion_event(&mut self, now: Instant, _sent: Instant, persistent: bool, lost: u64) {
        self.missing(now, lost, persistent);
    }

    fn on_mtu_update(&mut self, mtu: u16) {
        self.mtu = mtu.into();
        self.window = self.window.max(LEAST * self.mtu);
    }

    fn window(&self) -> u64 {
        self.window as u64
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        (INITIAL * self.mtu) as u64
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
