//! Passes a reset on: a session that has failed on one hop is ended on both. A raw connection is reset; a framed one
//! gets RESET and is brought to where it can carry the next session (S21, S22).
//!
//! A program that ends its transfer with a reset is no reason to lose a connection whose congestion window took seconds
//! to grow. So a framed hop completes the current frame, exchanges RESET frames and discards what is still in flight.
//! That takes at most [`CLEARING_TIME_MAX`], and ends as soon as the peer neither takes nor sends anything more. The connection
//! is then reset, because a reset passes where a frame cannot.

use super::end::End;
use phoebus_net::{Carrier, Stream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest wait for a raw peer to acknowledge what it was sent before the session failed. Then it is reset.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Longest time for both sides to clear a framed connection. Buffers for a long path drain in a second or two.
const CLEARING_TIME_MAX: Duration = Duration::from_secs(3);
/// How long a receiver's window may be closed, with bytes to send and none in flight. Pacing can look like that for a
/// moment.
const STALLED: Duration = Duration::from_millis(10);
/// How long a framed connection may be idle, beyond three round trips, while the peer has yet to acknowledge bytes:
/// more than the minimum retransmission time-out.
const SILENCE: Duration = Duration::from_millis(300);
/// The same when the peer has acknowledged everything, and only its RESET is missing.
const ANSWER: Duration = Duration::from_millis(100);
/// Longest pause between two checks.
const PAUSE_MAX: Duration = Duration::from_millis(16);

/// Waits until the peer has acknowledged everything or evidently takes no more; then resets the connection.
pub(super) async fn raw(stream: Arc<Stream>) {
    let mut watch = Watch::new();
    while watch.begun.elapsed() < LAST_WORDS
        && watch.look(&stream)
        && watch.unacknowledged > 0
        && watch.stalled() < STALLED
    {
        tokio::time::sleep(watch.pause()).await;
    }
}

/// Tells a framed peer `reason`, and clears the session from the connection; `carrier` holds what was about to be sent
/// there. Returns the connection if it is free for another session, and resets it otherwise.
pub(super) async fn framed(mut end: End, mut carrier: Option<Carrier>, reason: &[u8]) -> Option<Arc<Stream>> {
    const SCRATCH: usize = 64 * 1024;
    let mut scratch = vec![0; SCRATCH];
    let mut watch = Watch::new();
    while watch.begun.elapsed() < CLEARING_TIME_MAX {
        let moved = end.try_reset(carrier.as_mut(), reason, &mut scratch).ok()?;
        if !watch.look(&end.stream) {
            return None;
        }
        if end.is_over() && (watch.unacknowledged == 0 || !end.is_initiator()) {
            return Some(end.stream);
        }
        if moved > 0 {
            watch.moved();
        }
        let silence = if watch.unacknowledged > 0 { SILENCE } else { ANSWER };
        if watch.last.elapsed() > silence + 3 * watch.round_trip {
            return None;
        }
        let _ = tokio::time::timeout(watch.pause(), end.stream.readable()).await;
    }
    None
}

/// Tracks whether a connection still makes progress.
struct Watch {
    begun: Instant,
    /// When bytes last moved.
    last: Instant,
    pause: Duration,
    unacknowledged: usize,
    round_trip: Duration,
    /// Since when there are bytes to send and none in flight.
    stalled: Option<Instant>,
}

impl Watch {
    fn new() -> Self {
        let now = Instant::now();
        let pause = Duration::from_millis(1);
        Self { begun: now, last: now, pause, unacknowledged: usize::MAX, round_trip: Duration::ZERO, stalled: None }
    }

    /// Checks what the peer has acknowledged. False if the connection has failed.
    fn look(&mut self, stream: &Stream) -> bool {
        let (Ok(left), Ok(stats)) = (stream.unacknowledged(), stream.stats()) else { return false };
        if left < self.unacknowledged {
            self.moved();
        }
        self.unacknowledged = left;
        self.round_trip = Duration::from_micros(stats.rtt_us);
        let waits = left > 0 && stats.in_flight == 0;
        self.stalled = waits.then(|| self.stalled.unwrap_or_else(Instant::now));
        !stats.closed
    }

    fn stalled(&self) -> Duration {
        self.stalled.map_or(Duration::ZERO, |since| since.elapsed())
    }

    fn moved(&mut self) {
        self.last = Instant::now();
        self.pause = Duration::from_millis(1);
    }

    /// The pause until the next check; it doubles while nothing moves.
    fn pause(&mut self) -> Duration {
        let pause = self.pause;
        self.pause = (pause * 2).min(PAUSE_MAX);
        pause
    }
}
