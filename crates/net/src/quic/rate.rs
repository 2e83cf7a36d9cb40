//! Limits a stream to a rate (S17, S25) by an allowance for its writes (a token bucket).
//!
//! quinn cannot limit the rate of a connection. A stream that is written to at a rate is sent at that rate,
//! if congestion control permits and no earlier data is queued. Data that was queued under a higher rate, or
//! without one, is limited by the connection's window instead ([`window`],
//! [`Gauge::hold`](super::gauge::Gauge::hold)).

use std::time::{Duration, Instant};

/// Depth of the bucket, as time at the rate: the burst that may be written after a pause.
const DEPTH: Duration = Duration::from_millis(5);
/// The same while a writer waits: on a busy machine that wakes it late, it may catch up by this much.
const LATE: Duration = Duration::from_millis(20);
/// The smallest depth, in datagrams.
const LEAST: f64 = 4.0;
/// Bytes of a full datagram besides stream data: QUIC's header (1, the connection id of 8, the packet number
/// of 3), the frame's header (1, 2, 6 and 2) and the encryption's tag (16).
pub(super) const INSIDE: u64 = 39;
/// Bytes on the link besides the datagram: headers of UDP and IPv4, and framing. The 20 extra bytes of IPv6
/// are within the tolerance of a rate.
const OUTSIDE: f64 = 28.0 + crate::wire::FRAMING as f64;

/// The allowance (token bucket) of one stream.
#[derive(Debug)]
pub(super) struct Allowance {
    /// In bits per second, headers and framing included.
    rate: Option<u64>,
    tokens: f64,
    at: Instant,
    /// Whether the writer has more data than it may write.
    is_waiting: bool,
}

impl Allowance {
    pub(super) fn new(rate: Option<u64>, now: Instant) -> Self {
        Self { rate, tokens: 0.0, at: now, is_waiting: false }
    }

    pub(super) fn rate(&self) -> Option<u64> {
        self.rate
    }

    /// Changes the rate from `now` on.
    pub(super) fn set(&mut self, rate: Option<u64>, mtu: u64, now: Instant) {
        self.fill(mtu, now);
        self.rate = rate;
        self.tokens = self.tokens.min(self.depth(mtu));
    }

    /// How many of `wanted` bytes may be written now; 0 before the next datagram is due.
    pub(super) fn grant(&mut self, wanted: usize, mtu: u64, now: Instant) -> usize {
        if self.rate.is_none() {
            return wanted;
        }
        self.fill(mtu, now);
        let whole = (wanted as f64).min(payload(mtu));
        if self.tokens < whole { 0 } else { wanted.min(self.tokens as usize) }
    }

    /// Charges `written` bytes: written now, or lost earlier and retransmitted.
    pub(super) fn spend(&mut self, written: usize) {
        if self.rate.is_some() {
            self.tokens -= written as f64;
            self.is_waiting &= written == 0;
        }
    }

    /// When the next datagram may be written, if that is later than now.
    pub(super) fn next(&mut self, mtu: u64, now: Instant) -> Option<Instant> {
        let per_second = self.per_second(mtu)?;
        self.fill(mtu, now);
        let missing = payload(mtu) - self.tokens;
        // Rounded up, so that the datagram may indeed be written at that time.
        let wait = || Duration::from_secs_f64((missing / per_second).min(3600.0)) + Duration::from_nanos(1);
        self.is_waiting |= missing > 0.0;
        (missing > 0.0).then(|| now + wait())
    }

    fn fill(&mut self, mtu: u64, now: Instant) {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.at = now;
        if let Some(per_second) = self.per_second(mtu) {
            // Tokens already granted are not taken back.
            self.tokens = self.tokens.max((self.tokens + per_second * passed).min(self.depth(mtu)));
        }
    }

    /// The capacity of the bucket, in bytes.
    fn depth(&self, mtu: u64) -> f64 {
        let time = if self.is_waiting { LATE } else { DEPTH };
        let bytes = self.per_second(mtu).map_or(f64::INFINITY, |per_second| per_second * time.as_secs_f64());
        bytes.max(LEAST * payload(mtu))
    }

    /// The rate of stream data, in bytes per second.
    fn per_second(&self, mtu: u64) -> Option<f64> {
        let rate = self.rate?;
        Some((rate as f64 / 8.0 * payload(mtu) / (mtu as f64 + OUTSIDE)).max(1.0))
    }
}

/// Whether data queued under the rate `before`, or without one, can be too much for `rate`. Streams that
/// share a rate have their parts adjusted slightly many times a second, which never leaves a queue.
pub(super) fn leaves_a_queue(before: Option<u64>, rate: u64) -> bool {
    before.is_none_or(|before| rate < before / 2)
}

/// The window in bytes that lets `rate` bits per second pass on a path of this round-trip time: at least two
/// datagrams, below which nothing would be sent at all.
pub(super) fn window(rate: u64, mtu: u64, rtt: Duration) -> u64 {
    let mtu_on_link = mtu as f64 + OUTSIDE;
    let bytes = rate as f64 / 8.0 * rtt.as_secs_f64() * (mtu as f64 / mtu_on_link);
    (bytes as u64).max(2 * mtu)
}

/// Stream data in a full datagram, in bytes.
fn payload(mtu: u64) -> f64 {
    (mtu as f64 - INSIDE as f64).max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Stream bytes per second of a writer that follows the allowance's wake-ups, each late by `late`.
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
    fn rate_includes_headers_and_tolerates_late_timers() {
        for late in [0, 1200, 15_000].map(Duration::from_micros) {
            for rate in [10_000_000, 500_000_000, 5_000_000_000] {
                let wire = written(rate, late) * 1518.0 / 1413.0 * 8.0;
                let off = (wire / rate as f64 - 1.0).abs();
                assert!(off < 0.01, "{rate} bit/s gave {wire} with timers late by {late:?}");
            }
        }
    }

    #[test]
    fn window_is_rate_times_rtt_and_never_zero() {
        let ms = Duration::from_millis;
        // 1 MB on the link, of which 1452 of every 1518 bytes belong to the datagram.
        assert_eq!(window(80_000_000, 1452, ms(100)), 1_000_000 * 1452 / 1518);
        assert_eq!(window(8, 1452, ms(100)), 2904);
        assert_eq!(window(u64::MAX, 1452, Duration::MAX), u64::MAX);
    }

    #[test]
    fn stream_without_rate_is_unlimited() {
        let now = Instant::now();
        let mut allowance = Allowance::new(Some(8), now);
        assert_eq!(allowance.grant(1000, 1452, now), 0);
        allowance.set(None, 1452, now);
        assert_eq!((allowance.grant(1000, 1452, now), allowance.next(1452, now)), (1000, None));
    }
}
