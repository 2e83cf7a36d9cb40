//! Congestion control by a model of the path: it continuously measures the path's delivery rate and its
//! round-trip time without a queue, and keeps about their product (the bandwidth-delay product) in flight
//! (U8).
//!
//! The idea and its gains are BBR's (Cardwell et al., "BBR: congestion-based congestion control", 2016), with
//! the response to loss of [`phoebus_proto::udt`]'s `model`: loss counts only together with a queue. quinn
//! has a BBR too, but it takes the time between two acknowledgements for a sample of the rate, which
//! overestimates without bound when acknowledgements arrive in batches. Here the rate is measured as in
//! draft-cheng-iccrg-delivery-rate-estimation.
//!
//! quinn asks a controller only for a window, and paces at 5/4 of it per round trip. So this control steers
//! the window, and the rate follows from it through the returning acknowledgements. BBR paces at the measured
//! rate, whatever queue others build, and its window has room for that queue. Here, a window for the empty
//! path would deliver less as soon as others build a queue, the measured rate would fall with it, and so on,
//! round by round. A standing queue, one that remains even after a pause, therefore counts as part of the
//! path ([`Control::standing`]).

#[cfg(test)]
mod tests;

use quinn_proto::RttEstimator;
use quinn_proto::congestion::{Controller, ControllerFactory};
use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Creates a controller for each path.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Model;

impl ControllerFactory for Model {
    fn build(self: Arc<Self>, now: Instant, mtu: u16) -> Box<dyn Controller> {
        Box::new(Control::new(now, mtu))
    }
}

/// Initial window, in packets: more than TCP's 10, because they are paced.
const INITIAL: f64 = 32.0;
/// Minimum window, in packets.
const LEAST: f64 = 16.0;
/// Growth of the window per round trip during startup: 2 / ln 2, with which the delivery rate doubles.
const STARTUP: f64 = 2.885;
/// The same for windows of more than [`LARGE`] packets: with BBR's gain, a queue of less than two
/// bandwidth-delay products overflows, and the receiver has more gaps than quinn accepts ([`GAPS`]).
const STARTUP_LARGE: f64 = 2.0;
const LARGE: f64 = 1024.0;
/// Data in flight in the eight steps of a cycle, in bandwidth-delay products: a probe for more, the pause
/// that drains its queue, and six steps with some margin for delayed acknowledgements.
const CRUISE: [f64; 8] = [1.35, 0.95, 1.15, 1.15, 1.15, 1.15, 1.15, 1.15];
/// The same for cruising and probing beside flows that keep a standing queue, in units of what the path and
/// that queue hold: less, since the excess is lost, and costs the other flows packets too.
const CRUISE_SHARED: f64 = 1.05;
const PROBE_SHARED: f64 = 1.2;
/// Exclusive bound of the random number of steps that a cycle leaves out.
const SKIPPED: usize = 3;
/// Limit of what the path and the standing queue are taken to hold, in bandwidth-delay products, as in BBR: a
/// queue of one round trip.
const STANDING_MAX: f64 = 2.0;
/// Number of rounds over which the highest rate and the lowest round-trip time are taken: a cycle and a
/// little.
const ROUNDS: usize = 10;
/// Response time of a busy host, however short the path: a smaller window would leave both ends waiting for
/// each other's threads.
const HOSTS: Duration = Duration::from_micros(500);
/// Bounds of the excess round-trip time that shows a queue. A quarter of the minimum counts, but at least the
/// first value, by which round trips vary anyway, and after startup at most the second, since a router's
/// buffer may be much shorter than the path. During startup the second does not apply: it would end the
/// startup at once on a path that varies more and loses packets.
const QUEUED: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(5));
/// Tolerated loss in one round, as a fraction in addition to the path's own loss.
const LOSS_TOLERATED: f64 = 0.02;
/// Largest fraction of loss that is attributed to the path itself.
const LOSS_MAX: f64 = 0.1;
/// Interval after which the minimum round-trip time is measured again, and the least duration of that
/// measurement.
const MIN_RTT_AGE: Duration = Duration::from_secs(10);
const PROBE_TIME: Duration = Duration::from_millis(200);
/// Most gaps in the data at the peer. A peer that reads accepts any number ([`super::receive`]); for a reader
/// that has stopped, quinn accepts 1024 gaps in one stream before it ends the connection.
const GAPS: f64 = 700.0;
/// Number of send times that are remembered for rate samples: a round trip's worth at any rate that a
/// processor can encrypt.
const REMEMBERED: usize = 1 << 16;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Phase {
    /// The rate doubles every round until it grows no more.
    Startup,
    /// The queue built during startup drains.
    Drain,
    /// Cruising: the step of [`CRUISE`], and when it began.
    Cruise { step: usize, since: Instant },
    /// So little is in flight that the minimum round-trip time shows.
    Probe { until: Instant },
}

/// State at the time when a packet was sent. Packets sent at the same instant share one.
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
    /// Highest delivery rate of each recent round, in bytes per second.
    rates: [f64; ROUNDS],
    /// Lowest round-trip time of each of these rounds.
    leasts: [Duration; ROUNDS],
    min_rtt: Option<Duration>,
    min_rtt_at: Instant,
    /// Whether the bottleneck's buffer has overflowed since `min_rtt_at`.
    has_overflowed: bool,
    /// The lowest round-trip time during the new measurement of the minimum.
    min_rtt_next: Duration,
    rtt: Duration,
    /// Number of rounds that were not application-limited, and the value of `delivered` that ends the current
    /// round.
    round: usize,
    round_ends: u64,
    /// During startup: the reference rate, and for how many rounds no rate exceeded it by a quarter.
    plateau: (f64, u32),
    /// Bytes lost and delivered in this round, and the smoothed fraction of loss.
    lost: u64,
    acked: u64,
    loss: f64,
    /// The smoothed fraction of loss without a queue.
    floor: f64,
    /// Upper bound of the window, in bytes: set when the bottleneck's buffer overflows, and growing slowly
    /// since.
    bound: f64,
    /// Largest recent number of bytes in one acknowledgement: the margin for delayed acknowledgements.
    batch: f64,
    in_flight: u64,
    sent: VecDeque<Sent>,
    newest: Option<Sent>,
    batch_acked: u64,
    delivered: u64,
    delivered_at: Instant,
    first_sent_at: Instant,
    /// Packets sent until `delivered` exceeds this were application-limited: they show the application's
    /// rate, not the path's.
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
            // The packets before the first data are small.
            app_limited_until: 1,
            random: std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0),
        }
    }

    fn rate(&self) -> f64 {
        self.rates.iter().copied().fold(0.0, f64::max)
    }

    /// Bytes that the path holds without a queue. On a path within a machine room, the hosts' response time
    /// dominates.
    fn product(&self) -> f64 {
        self.rate() * self.min_rtt.map_or(Duration::ZERO, |least| least.max(HOSTS)).as_secs_f64()
    }

    /// Bytes that the path and the queue of other flows hold. This connection's own queue drains in the pause
    /// of every cycle; a queue that remains then belongs to others.
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
                // A round-trip time within a sixteenth of the minimum confirms it. But a minimum measured
                // beside other flows may include their queue, which every cycle would then fill again until
                // it overflows; after an overflow it must be measured again.
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

    /// Whether packets queue somewhere on the path.
    fn is_queued(&self) -> bool {
        let least = self.min_rtt.unwrap_or_default();
        let most = if self.phase == Phase::Startup { Duration::MAX } else { QUEUED.1 };
        self.rtt > least + (least / 4).clamp(QUEUED.0, most)
    }

    fn end_of_round(&mut self, app_limited: bool) {
        let loss = self.lost as f64 / (self.lost + self.acked).max(1) as f64;
        self.loss += (loss - self.loss) / 8.0;
        if matches!(self.phase, Phase::Cruise { step: 2, .. }) {
            // These packets were sent during the pause, without a queue that could lose them.
            self.floor += (loss - self.floor) / 4.0;
        }
        // Loss beyond chance while cruising, without a visible queue, means that a short buffer overflows.
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

    /// Handles an overflow of the bottleneck's buffer.
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
                    // Some cycles are shorter: of two flows with equal cycles, one might always probe in the
                    // other's pause.
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

    /// Starts cruising at a random step, so that flows do not probe together, but never at the pause.
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
                    0 => self.standing() * PROBE_SHARED,
                    1 => 0.0,
                    _ => self.standing() * CRUISE_SHARED,
                };
                beside.max(product * CRUISE[step]) + self.batch
            }
            Phase::Probe { .. } => product * 0.5,
        };
        let gaps = GAPS * self.mtu / self.loss.max(1e-6);
        self.window = target.min(self.bound).min(gaps).max(LEAST * self.mtu);
    }
}

/// The events of a connection, free of quinn's types.
impl Control {
    /// Records that `bytes` were sent.
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

    /// Records that the packet sent at `sent` was acknowledged, as part of the current acknowledgement.
    fn arrived(&mut self, sent: Instant, bytes: u64) {
        self.batch_acked += bytes;
        if self.newest.is_none_or(|newest| newest.at < sent) {
            let at = self.sent.partition_point(|other| other.at <= sent);
            let found = at.checked_sub(1).and_then(|at| self.sent.get(at));
            self.newest = found.filter(|found| found.at == sent).copied().or(self.newest);
        }
    }

    /// Ends the current acknowledgement.
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
                    // An application-limited round teaches nothing, so it does not displace older
                    // measurements.
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

    /// Takes a rate sample: the bytes delivered since `newest` was sent, over the time this took.
    fn take_rate(&mut self, now: Instant, newest: &Sent) {
        let sending = newest.at.saturating_duration_since(newest.first_sent_at);
        let interval = now.saturating_duration_since(newest.delivered_at).max(sending);
        let rate = (self.delivered - newest.delivered) as f64 / interval.as_secs_f64().max(1e-6);
        // The path also carried what its random loss then removed.
        let rate = rate / (1.0 - self.floor.min(LOSS_MAX));
        // Samples over less than a round trip measure bursts of acknowledgements, not the path.
        let is_long = self.min_rtt.is_some_and(|least| interval >= least);
        if is_long && (!newest.app_limited || rate > self.rate()) {
            let best = &mut self.rates[self.round % ROUNDS];
            *best = best.max(rate);
        }
    }

    /// Records that bytes were lost or, if `lost` is 0, that a router marked a packet (ECN). `persistent`:
    /// nothing was delivered for long.
    fn missing(&mut self, now: Instant, lost: u64, persistent: bool) {
        self.lost += lost;
        self.in_flight = self.in_flight.saturating_sub(lost);
        if lost == 0 {
            // A router's mark reports a queue.
            self.overflow();
        }
        if persistent {
            // The model of the path is void.
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
