//! One direction of a link: queue, transmitter, loss, delay.

use super::config::{DirectionConfig, DirectionUpdate};
use super::counters::{Amount, DirectionCounters};
use super::loss::LossProcess;
use super::rng::Rng;
use super::{FRAMING_BYTES, Packet};
use std::collections::VecDeque;
use std::time::Duration;

/// Longest time for which one offloaded packet occupies the transmitter; a longer packet is split. Real links
/// forward segment by segment, so this also bounds how late the first bytes of a packet can be; but each
/// piece costs the hosts a wake-up. At 1 Gbit/s a packet of 64 KiB just stays whole, at 100 Mbit/s a piece of
/// four 1500-byte segments does.
pub const GRAIN: Duration = Duration::from_micros(600);

/// The model of one direction. The [module](super) describes the path of packets through it.
#[derive(Debug)]
pub struct OneWay<P> {
    config: DirectionConfig,
    mtu: u16,
    loss: LossProcess,
    jitter: Rng,
    cut: bool,
    /// The latest time that was given.
    clock: Duration,
    /// Queued packets, and their wire bytes.
    waiting: VecDeque<P>,
    waiting_bytes: u64,
    sending: Option<Sending<P>>,
    /// Remainder of the last division by the rate, so that rounding to nanoseconds does not accumulate.
    carry: u128,
    /// Packets in flight, by arrival time.
    wire: VecDeque<(Duration, P)>,
    counters: DirectionCounters,
}

/// The packet in transmission.
#[derive(Debug)]
struct Sending<P> {
    packet: P,
    bytes: u64,
    start: Duration,
    end: Duration,
}

impl<P: Packet> OneWay<P> {
    /// An idle direction.
    pub fn new(config: DirectionConfig, mtu: u16, seed: u64) -> Self {
        let mut seeds = Rng::new(seed);
        Self {
            mtu,
            // Each purpose has its own random generator: changing the jitter leaves the losses unchanged.
            loss: LossProcess::new(config.loss, seeds.next_u64()),
            jitter: Rng::new(seeds.next_u64()),
            cut: false,
            clock: Duration::ZERO,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            sending: None,
            carry: 0,
            wire: VecDeque::new(),
            counters: DirectionCounters::default(),
            config,
        }
    }

    /// Accepts a packet. One with segments above the MTU is dropped silently, as on Ethernet: the router in
    /// front of the link, whose interface has the link's MTU, must fragment it or answer that it is too big.
    pub fn push(&mut self, now: Duration, mut packet: P) {
        let now = self.advance(now);
        let amount = packet.amount();
        self.counters.packets_in += 1;
        self.counters.entered += amount;
        if packet.segment_bytes() > u32::from(self.mtu) {
            self.counters.oversize_drops += amount;
            return;
        }
        if self.cut {
            self.counters.cut_drops += amount;
            return;
        }
        self.counters.held += amount;
        if self.config.rate.bits_per_second().is_none() {
            self.onto_wire(packet, now);
            return;
        }
        let fitting = self.fitting(&packet, now);
        if fitting < packet.segments() {
            let dropped = if fitting == 0 { amount } else { packet.split_off(fitting).amount() };
            self.counters.queue_drops += dropped;
            self.release(dropped);
        }
        if fitting > 0 {
            self.waiting_bytes += packet.amount().bytes;
            self.waiting.push_back(packet);
            self.send_next(now);
            self.counters.queue_bytes_max = self.counters.queue_bytes_max.max(self.queue_bytes(now));
        }
    }

    /// The next packet that has arrived by `now`; call it until it returns `None`.
    pub fn poll(&mut self, now: Duration) -> Option<P> {
        self.advance(now);
        if self.wire.front()?.0 > now {
            return None;
        }
        let (_, packet) = self.wire.pop_front()?;
        let amount = packet.amount();
        self.counters.packets_out += 1;
        self.counters.delivered += amount;
        self.release(amount);
        Some(packet)
    }

    /// When [`Self::poll`] may next return a packet, unless more is pushed. May be in the past.
    pub fn next_wakeup(&self) -> Option<Duration> {
        let arrival = self.wire.front().map(|(arrival, _)| *arrival);
        let earliest = self.sending.as_ref().map(|sending| sending.end + self.delay_min());
        match (arrival, earliest) {
            (Some(arrival), Some(earliest)) if self.config.reorder => Some(arrival.min(earliest)),
            (Some(arrival), _) => Some(arrival),
            (None, earliest) => earliest,
        }
    }

    /// Changes settings; [`DirectionUpdate`] describes the effect on packets in flight.
    pub fn update(&mut self, now: Duration, update: &DirectionUpdate) {
        let now = self.advance(now);
        let rate_before = self.config.rate;
        self.config.change(update);
        self.loss.set(self.config.loss);
        if self.config.rate != rate_before {
            self.carry = 0;
            if let Some(mut sending) = self.sending.take() {
                // The unsent part continues at the new rate.
                sending.bytes = sending.unsent(now);
                sending.start = now;
                sending.end = now + self.transmission(sending.bytes);
                self.sending = Some(sending);
            }
            self.advance(now);
        }
    }

    /// Drops everything until [`Self::heal`], including packets in flight, and packets that have arrived but
    /// were not polled.
    pub fn cut(&mut self, now: Duration) {
        self.advance(now);
        self.cut = true;
        self.counters.cut_drops += self.counters.held;
        self.counters.held = Amount::default();
        self.waiting.clear();
        self.waiting_bytes = 0;
        self.sending = None;
        self.carry = 0;
        self.wire.clear();
    }

    /// Ends a cut.
    pub fn heal(&mut self) {
        self.cut = false;
    }

    /// Wire bytes of everything queued or in flight.
    pub fn held_bytes(&self) -> u64 {
        self.counters.held.bytes
    }

    /// Whether the link is cut.
    pub fn is_cut(&self) -> bool {
        self.cut
    }

    /// The settings in force.
    pub fn config(&self) -> &DirectionConfig {
        &self.config
    }

    /// The counters as of `now`.
    pub fn counters(&mut self, now: Duration) -> DirectionCounters {
        let now = self.advance(now);
        DirectionCounters { queue_bytes: self.queue_bytes(now), ..self.counters }
    }

    /// Advances the transmitter to `now`, and returns the current time.
    fn advance(&mut self, now: Duration) -> Duration {
        self.clock = self.clock.max(now);
        let now = self.clock;
        while let Some(sending) = self.sending.take_if(|sending| sending.end <= now) {
            self.onto_wire(sending.packet, sending.end);
            self.send_next(sending.end);
        }
        now
    }

    /// Starts transmitting the next queued packet, unless the transmitter is busy.
    fn send_next(&mut self, start: Duration) {
        if self.sending.is_some() {
            return;
        }
        let Some(mut packet) = self.waiting.pop_front() else {
            self.carry = 0;
            return;
        };
        let at = self.segments_per_grain(&packet);
        if at < packet.segments() {
            let rest = packet.split_off(at);
            self.waiting.push_front(rest);
        }
        let bytes = packet.amount().bytes;
        self.waiting_bytes -= bytes;
        let end = start + self.transmission(bytes);
        self.sending = Some(Sending { packet, bytes, start, end });
    }

    /// Transmission time of `bytes`.
    fn transmission(&mut self, bytes: u64) -> Duration {
        let Some(rate) = self.config.rate.bits_per_second() else { return Duration::ZERO };
        let rate = u128::from(rate.get());
        let total = u128::from(bytes) * 8 * NANOS_PER_SECOND + self.carry;
        self.carry = total % rate;
        Duration::from_nanos(u64::try_from(total / rate).unwrap_or(u64::MAX))
    }

    fn segments_per_grain(&self, packet: &P) -> u32 {
        let Some(rate) = self.config.rate.bits_per_second() else { return packet.segments() };
        let bits = u128::from(rate.get()) * GRAIN.as_nanos() / NANOS_PER_SECOND;
        let segments = bits / (u128::from(segment_wire_bytes(packet)) * 8);
        u32::try_from(segments).unwrap_or(u32::MAX).max(1)
    }

    /// How many leading segments of `packet` fit into the queue. Behind the first that does not, the rest is
    /// dropped.
    fn fitting(&self, packet: &P, now: Duration) -> u32 {
        let room = self.config.queue.0.saturating_sub(self.queue_bytes(now));
        if packet.amount().bytes <= room {
            return packet.segments();
        }
        // An idle transmitter accepts a segment even without a queue.
        let idle = u64::from(self.sending.is_none());
        let full_segments = (room / segment_wire_bytes(packet)).max(idle);
        u32::try_from(full_segments).unwrap_or(u32::MAX).min(packet.segments())
    }

    fn queue_bytes(&self, now: Duration) -> u64 {
        self.waiting_bytes + self.sending.as_ref().map_or(0, |sending| sending.unsent(now))
    }

    /// Draws the losses of a packet whose transmission ended at `sent`, and sends the runs between them on
    /// their way.
    fn onto_wire(&mut self, packet: P, sent: Duration) {
        if self.loss.is_none() {
            return self.fly(packet, sent);
        }
        let segments = packet.segments();
        let (mut rest, mut run) = (Some(packet), 0);
        for _ in 0..segments {
            if !self.loss.loses_next() {
                run += 1;
                continue;
            }
            let (survivors, lost) = split(rest, run);
            if let Some(survivors) = survivors {
                self.fly(survivors, sent);
            }
            let (lost, after) = split(lost, 1);
            if let Some(lost) = lost {
                let amount = lost.amount();
                self.counters.random_drops += amount;
                self.release(amount);
            }
            (rest, run) = (after, 0);
        }
        if let Some(survivors) = rest {
            self.fly(survivors, sent);
        }
    }

    /// Assigns arrival times. With reordering, each segment gets its own.
    fn fly(&mut self, mut packet: P, sent: Duration) {
        if self.config.reorder && !self.config.jitter.0.is_zero() {
            while packet.segments() > 1 {
                let rest = packet.split_off(1);
                self.land(packet, sent);
                packet = rest;
            }
        }
        self.land(packet, sent);
    }

    fn land(&mut self, packet: P, sent: Duration) {
        let mut arrival = sent + self.draw_delay();
        match self.wire.back() {
            Some((last, _)) if *last > arrival => {
                if self.config.reorder {
                    let place = self.wire.partition_point(|(other, _)| *other <= arrival);
                    return self.wire.insert(place, (arrival, packet));
                }
                arrival = *last;
            }
            _ => {}
        }
        self.wire.push_back((arrival, packet));
    }

    fn draw_delay(&mut self) -> Duration {
        let (delay, jitter) = (self.config.delay.0, self.config.jitter.0);
        if jitter.is_zero() {
            return delay;
        }
        let spread = jitter.mul_f64(2.0 * self.jitter.unit());
        (delay + spread).saturating_sub(jitter)
    }

    fn delay_min(&self) -> Duration {
        self.config.delay.0.saturating_sub(self.config.jitter.0)
    }

    fn release(&mut self, amount: Amount) {
        self.counters.held -= amount;
    }
}

impl<P> Sending<P> {
    /// Bytes that are still unsent at `now`.
    fn unsent(&self, now: Duration) -> u64 {
        let total = (self.end - self.start).as_nanos();
        let left = self.end.saturating_sub(now).as_nanos().min(total);
        // The quotient is at most `bytes`. A transmission without duration is complete.
        (u128::from(self.bytes) * left).checked_div(total).unwrap_or(0) as u64
    }
}

const NANOS_PER_SECOND: u128 = 1_000_000_000;

fn segment_wire_bytes<P: Packet>(packet: &P) -> u64 {
    u64::from(packet.segment_bytes()) + FRAMING_BYTES
}

/// Splits after the first `at` segments; either side may be empty.
fn split<P: Packet>(packet: Option<P>, at: u32) -> (Option<P>, Option<P>) {
    match packet {
        Some(packet) if at == 0 => (None, Some(packet)),
        Some(mut packet) if at < packet.segments() => {
            let rest = packet.split_off(at);
            (Some(packet), Some(rest))
        }
        whole => (whole, None),
    }
}
