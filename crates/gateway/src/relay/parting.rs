//! What a session that has failed leaves to be done: both hops are told, and a framed one is brought to where its
//! connection can carry the next session (S21, S22).
//!
//! A program that ends its transfer with a reset is no reason to lose a connection whose congestion window took seconds to
//! grow. So a framed hop finishes the frame under way, exchanges RESET frames and discards what is still on its way. That
//! costs at most [`PATIENCE`], and is given up as soon as the peer is seen to take or send no more: the connection is then
//! reset, which passes where a frame cannot.

use super::end::End;
use phoebus_net::{Carrier, Stream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a raw peer may take to confirm what it was sent before the session failed, until it is reset for good.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// How long both sides of a framed connection may take to clear it. Buffers for a long path drain in a second or two.
const PATIENCE: Duration = Duration::from_secs(3);
/// For how long a receiver's window may be closed, with bytes to send and none under way. Pacing can look like that for a
/// moment.
const STALLED: Duration = Duration::from_millis(10);
/// How long nothing may move on a framed connection, besides three round trips, while the peer has yet to confirm bytes: more
/// than the least retransmission time-out.
const SILENCE: Duration = Duration::from_millis(300);
/// The same when it has confirmed all, and only its RESET is missing.
const ANSWER: Duration = Duration::from_millis(100);
/// Longest pause between two looks.
const PAUSE_MAX: Duration = Duration::from_millis(16);

/// Waits until the peer has confirmed all that it was sent, or is seen to take no more; then resets it.
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

/// Tells a framed peer `reason`, and clears the connection of the session; `carrier` holds what was on its way there.
/// Returns the connection if it is free for another session, and resets it otherwise.
pub(super) async fn framed(mut end: End, mut carrier: Option<Carrier>, reason: &[u8]) -> Option<Arc<Stream>> {
    const SCRATCH: usize = 64 * 1024;
    let mut scratch = vec![0; SCRATCH];
    let mut watch = Watch::new();
    while watch.begun.elapsed() < PATIENCE {
        let moved = end.try_part(carrier.as_mut(), reason, &mut scratch).ok()?;
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

/// Follows whether a connection is still getting somewhere.
struct Watch {
    begun: Instant,
    /// When anything was last seen to move.
    last: Instant,
    pause: Duration,
    unacknowledged: usize,
    round_trip: Duration,
    /// Since when there are bytes to send and none under way.
    stalled: Option<Instant>,
}

impl Watch {
    fn new() -> Self {
        let now = Instant::now();
        let pause = Duration::from_millis(1);
        Self { begun: now, last: now, pause, unacknowledged: usize::MAX, round_trip: Duration::ZERO, stalled: None }
    }

    /// Looks at what the peer has confirmed. False when the connection has failed.
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

    /// The pause until the next look, ever longer while nothing moves.
    fn pause(&mut self) -> Duration {
        let pause = self.pause;
        self.pause = (pause * 2).min(PAUSE_MAX);
        pause
    }
}
