//! The limit on control frames of a framed connection (`docs/protocol/session.md` §6.2, invariant 7): PING, PONG and
//! ACK cost their sender 16 bytes each, and this gateway a system call each.
//!
//! It is a token bucket. Bytes of the stream, in either direction, pay for the frames that accompany them. Beyond that,
//! a configured rate applies, with a burst of [`SAVED`] at that rate.

use std::time::{Duration, Instant};

/// Bytes of the stream that pay for one control frame. One page: a peer that acknowledges each part that a socket
/// delivers sends fewer.
const BYTES: u64 = 4096;
/// The largest burst, as a time at the configured rate.
const SAVED: Duration = Duration::from_secs(16);

/// The control frames that one connection may still send.
#[derive(Debug)]
pub(crate) struct Allowance {
    per_second: u32,
    /// In bytes, [`BYTES`] per frame.
    credit: u64,
    /// When the rate was last accounted for.
    accounted: Instant,
}

impl Allowance {
    /// For a connection that may send `per_second` control frames at all times (`limits.control_frames`).
    pub(crate) fn new(per_second: u32, now: Instant) -> Self {
        Self { per_second, credit: u64::from(per_second) * SAVED.as_secs() * BYTES, accounted: now }
    }

    /// The configured rate.
    pub(crate) fn per_second(&self) -> u32 {
        self.per_second
    }

    /// Accounts for one frame received at `now`. False if there are too many.
    pub(crate) fn take(&mut self, now: Instant) -> bool {
        if self.credit < BYTES {
            let passed = now.saturating_duration_since(self.accounted).min(SAVED);
            self.accounted = now;
            self.earn(passed.as_micros() as u64 * u64::from(self.per_second) * BYTES / 1_000_000);
        }
        let has = self.credit >= BYTES;
        self.credit -= if has { BYTES } else { 0 };
        has
    }

    /// Credits `bytes` of the stream.
    pub(crate) fn earn(&mut self, bytes: u64) {
        let most = u64::from(self.per_second) * SAVED.as_secs() * BYTES;
        self.credit = self.credit.saturating_add(bytes).min(most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(allowance: &mut Allowance, now: Instant) -> usize {
        (0..1_000_000).take_while(|_| allowance.take(now)).count()
    }

    #[test]
    fn time_and_stream_bytes_earn_control_frames() {
        let start = Instant::now();
        let mut allowance = Allowance::new(10, start);
        assert_eq!(taken(&mut allowance, start), 160, "what may be saved up");
        let later = start + Duration::from_millis(1500);
        assert_eq!(taken(&mut allowance, later), 15);
        allowance.earn(3 * BYTES - 1);
        assert_eq!(taken(&mut allowance, later), 2);
        allowance.earn(u64::MAX);
        assert_eq!(taken(&mut allowance, later), 160, "no more is ever saved up");
        assert_eq!(taken(&mut allowance, later + Duration::from_secs(3600)), 160);
    }

    #[test]
    fn peer_within_rate_is_never_limited() {
        let start = Instant::now();
        let mut allowance = Allowance::new(10, start);
        assert!((0..10_000).all(|n| allowance.take(start + n * Duration::from_millis(100))));
    }
}
