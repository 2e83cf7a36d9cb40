//! Holds a stream to a rate (S17, S25): what it may write is measured out.
//!
//! quinn has no bound on the rate of a connection. A stream that is written to at a rate is sent at that rate, as long as
//! congestion control allows it and nothing waits in front of it. What does, because it was written under a higher rate or under
//! none, is let out by the connection's window instead ([`window`], [`Gauge::hold`](super::gauge::Gauge::hold)).

use std::time::{Duration, Instant};

/// What may be written at once after a pause: 5 ms at the rate.
const DEPTH: Duration = Duration::from_millis(5);
/// The same for a writer that has waited, on a machine too busy to wake it in time: it makes up for that.
const LATE: Duration = Duration::from_millis(20);
/// The least of it, in datagrams.
const LEAST: f64 = 4.0;
/// Bytes of a datagram that are no stream: QUIC's header (1 and 8 of the connection id and 3), the frame's (1, 2, 6 and 2)
/// and the tag of its encryption (16).
pub(super) const INSIDE: u64 = 39;
/// What the link carries besides the datagram: its headers, of UDP and IPv4, and framing. Those 20 bytes more of IPv6 are
/// within what a rate may be off.
const OUTSIDE: f64 = 28.0 + crate::wire::FRAMING as f64;

/// The measure of one stream.
#[derive(Debug)]
pub(super) struct Allowance {
    /// Bits per second, headers and framing included.
    rate: Option<u64>,
    tokens: f64,
    at: Instant,
    /// There was more to write than could be.
    is_waiting: bool,
}

impl Allowance {
    pub(super) fn new(rate: Option<u64>, now: Instant) -> Self {
        Self { rate, tokens: 0.0, at: now, is_waiting: false }
    }

    pub(super) fn rate(&self) -> Option<u64> {
        self.rate
    }

    /// Changes the rate from now on.
    pub(super) fn set(&mut self, rate: Option<u64>, mtu: u64, now: Instant) {
        self.fill(mtu, now);
        self.rate = rate;
        self.tokens = self.tokens.min(self.depth(mtu));
    }

    /// How many of `wanted` bytes may be written now: 0 when it is not time yet.
    pub(super) fn grant(&mut self, wanted: usize, mtu: u64, now: Instant) -> usize {
        if self.rate.is_none() {
            return wanted;
        }
        self.fill(mtu, now);
        let whole = (wanted as f64).min(payload(mtu));
        if self.tokens < whole { 0 } else { wanted.min(self.tokens as usize) }
    }

    /// `written` bytes were, or that many of what was written before were lost and go once more.
    pub(super) fn spend(&mut self, written: usize) {
        if self.rate.is_some() {
            self.tokens -= written as f64;
            self.is_waiting &= written == 0;
        }
    }

    /// When the next datagram may be written, if that is not now.
    pub(super) fn next(&mut self, mtu: u64, now: Instant) -> Option<Instant> {
        let per_second = self.per_second(mtu)?;
        self.fill(mtu, now);
        let missing = payload(mtu) - self.tokens;
        // Rounded up: at that time it may be written.
        let wait = || Duration::from_secs_f64((missing / per_second).min(3600.0)) + Duration::from_nanos(1);
        self.is_waiting |= missing > 0.0;
        (missing > 0.0).then(|| now + wait())
    }

    fn fill(&mut self, mtu: u64, now: Instant) {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.at = now;
        if let Some(per_second) = self.per_second(mtu) {
            // What was there before is not taken back.
            self.tokens = self.tokens.max((self.tokens + per_second * passed).min(self.depth(mtu)));
        }
    }

    /// The most that gathers.
    fn depth(&self, mtu: u64) -> f64 {
        let time = if self.is_waiting { LATE } else { DEPTH };
        let bytes = self.per_second(mtu).map_or(f64::INFINITY, |per_second| per_second * time.as_secs_f64());
        bytes.max(LEAST * payload(mtu))
    }

    /// Bytes of the stream per second.
    fn per_second(&self, mtu: u64) -> Option<f64> {
        let rate = self.rate?;
        Some((rate as f64 / 8.0 * payload(mtu) / (mtu as f64 + OUTSIDE)).max(1.0))
    }
}

/// Whether what was written under the rate `before`, or under none, can be so much that it matters at `rate`. Where several streams
/// share a rate, each has a little more or less of it many times a second, and nothing ever waits.
pub(super) fn leaves_a_queue(before: Option<u64>, rate: u64) -> bool {
    before.is_none_or(|before| rate < before / 2)
}

/// Bytes of datagrams that may be on their way, so that `rate` bits per second go on a path of this round-trip time: two
/// datagrams at least, without which nothing would go at all.
pub(super) fn window(rate: u64, mtu: u64, rtt: Duration) -> u64 {
    let mtu_on_link = mtu as f64 + OUTSIDE;
    let bytes = rate as f64 / 8.0 * rtt.as_secs_f64() * (mtu as f64 / mtu_on_link);
    (bytes as u64).max(2 * mtu)
}

/// Bytes of the stream in a full datagram.
fn payload(mtu: u64) -> f64 {
    (mtu as f64 - INSIDE as f64).max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that a writer gets through per second, looking at the clock as often as it is told to, and late by `late`.
    fn written(rate: u64, late: Duration) -> f64 {
        let start = Instant::now();
        let mut allowance = Allowance::new(Some(rate), start);
        let (mut now, mut last, mut sum) = (start, start, 0);
        while now < start + Duration::from_secs(1) {
            match allowance.grant(100_000, 1452, now) {
                0 => now = allowance.next(1452, now).unwrap() + late,
                n => {
                    allowance.spend(n);
                    sum += n;
                    last = now;
                }
            }
        }
        sum as f64 / (last - start).as_secs_f64()
    }

    #[test]
    fn a_rate_is_held_with_headers_and_by_late_timers() {
        for late in [0, 1200, 15_000].map(Duration::from_micros) {
            for rate in [10_000_000, 500_000_000, 5_000_000_000] {
                let wire = written(rate, late) * 1518.0 / 1413.0 * 8.0;
                let off = (wire / rate as f64 - 1.0).abs();
                assert!(off < 0.01, "{rate} bit/s gave {wire} with timers late by {late:?}");
            }
        }
    }

    #[test]
    fn a_window_is_what_a_rate_has_on_its_way_and_never_nothing() {
        let ms = Duration::from_millis;
        // 1 MB on the link, of which 1452 bytes of each 1518 are the datagram's.
        assert_eq!(window(80_000_000, 1452, ms(100)), 1_000_000 * 1452 / 1518);
        assert_eq!(window(8, 1452, ms(100)), 2904);
        assert_eq!(window(u64::MAX, 1452, Duration::MAX), u64::MAX);
    }

    #[test]
    fn without_a_rate_there_is_no_bound() {
        let now = Instant::now();
        let mut allowance = Allowance::new(Some(8), now);
        assert_eq!(allowance.grant(1000, 1452, now), 0);
        allowance.set(None, 1452, now);
        assert_eq!((allowance.grant(1000, 1452, now), allowance.next(1452, now)), (1000, None));
    }
}
