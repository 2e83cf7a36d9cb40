//! When connections are made again after a peer has failed: the pauses double.
//!
//! A peer fails if it does not answer, and also if it greets and then closes the connection before a session used it: such a
//! peer is not there for sessions either.

use std::time::{Duration, Instant};

/// Longest pause between attempts to reach a peer that fails.
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// A peer that closes an unused connection within this time of its greeting fails.
pub(super) const EARLY: Duration = Duration::from_secs(3);

/// The pauses of one peer.
#[derive(Debug)]
pub(super) struct Backoff {
    /// The first pause.
    least: Duration,
    /// The next pause.
    pause: Duration,
    /// No connections are made ahead of need before this.
    retry_at: Option<Instant>,
    /// When connections were last made ahead of need.
    last_fill: Option<Instant>,
}

/// What sessions and checks have seen of the peer lately.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Seen {
    /// A session was opened.
    pub(super) has_opened: bool,
    /// An unused connection was closed within [`EARLY`].
    pub(super) closed_early: bool,
}

impl Backoff {
    /// Without failures; the first pause is `least`.
    pub(super) fn new(least: Duration) -> Self {
        Self { least, pause: least, retry_at: None, last_fill: None }
    }

    /// Takes into account what was seen up to `now`. Returns how long to wait before connections are made again, if not at
    /// all.
    pub(super) fn wait(&mut self, now: Instant, seen: Seen) -> Option<Duration> {
        if seen.has_opened {
            (self.pause, self.retry_at) = (self.least, None);
        } else if seen.closed_early {
            if self.retry_at.is_none() {
                self.fail(now);
            }
        } else if self.retry_at.is_none() && self.last_fill.is_none_or(|at| now.saturating_duration_since(at) >= EARLY)
        {
            self.pause = self.least;
        }
        self.retry_at.map(|at| at.saturating_duration_since(now)).filter(|left| !left.is_zero())
    }

    /// Connections were made at `now`, if there were too few.
    pub(super) fn filled(&mut self, now: Instant, made: usize) {
        if made > 0 {
            self.last_fill = Some(now);
        }
        self.retry_at = None;
    }

    /// No connection could be made. Returns the pause.
    pub(super) fn fail(&mut self, now: Instant) -> Duration {
        let pause = self.pause;
        self.retry_at = Some(now + pause);
        self.pause = (pause * 2).min(PAUSE_MAX);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// The seconds at which connections are made within five minutes, if the peer closes each after `open`. The pool looks
    /// once in a second.
    fn fills(open: Duration) -> Vec<u64> {
        let (mut backoff, began) = (Backoff::new(SECOND), Instant::now());
        let (mut alive_until, mut fills) = (None::<Instant>, Vec::new());
        for second in 0..300 {
            let now = began + second * SECOND;
            let closed_early = alive_until.take_if(|until| *until <= now).is_some();
            if backoff.wait(now, Seen { has_opened: false, closed_early }).is_some() {
                continue;
            }
            if alive_until.is_none() {
                alive_until = Some(now + open);
                fills.push(second.into());
            }
            backoff.filled(now, usize::from(fills.last() == Some(&second.into())));
        }
        fills
    }

    #[test]
    fn peer_that_closes_early_is_reached_ever_more_seldom() {
        for millis in [500, 1500, 2500] {
            let fills = fills(Duration::from_millis(millis));
            assert!(fills.len() <= 16, "{millis} ms: {fills:?}");
            let last = fills[fills.len() - 1] - fills[fills.len() - 2];
            assert!(last >= 30, "{millis} ms: {fills:?}");
        }
    }

    #[test]
    fn session_ends_the_pause() {
        let (mut backoff, now) = (Backoff::new(SECOND), Instant::now());
        assert_eq!([backoff.fail(now), backoff.fail(now), backoff.fail(now)], [1, 2, 4].map(|n| n * SECOND));
        assert_eq!(backoff.wait(now, Seen::default()), Some(4 * SECOND));
        assert_eq!(backoff.wait(now, Seen { has_opened: true, closed_early: true }), None);
        assert_eq!(backoff.fail(now), SECOND);
    }

    #[test]
    fn peer_that_stays_is_forgiven() {
        let (mut backoff, mut now) = (Backoff::new(SECOND), Instant::now());
        backoff.fail(now);
        now += SECOND;
        assert_eq!(backoff.wait(now, Seen::default()), None);
        backoff.filled(now, 2);
        assert_eq!(backoff.wait(now + SECOND, Seen::default()), None);
        assert_eq!(backoff.pause, 2 * SECOND, "it may still close");
        assert_eq!(backoff.wait(now + EARLY, Seen::default()), None);
        assert_eq!(backoff.pause, SECOND);
    }
}
