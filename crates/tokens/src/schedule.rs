//! When an issuer's keys are fetched: in the background, never because a token waits for them.

use std::time::Duration;

/// From one fetch to the next (as scitokens-cpp does): a new key is known before tokens are signed with it.
const REFRESH: Duration = Duration::from_secs(600);
/// From one attempt to the next that a token with an unknown key causes: whoever sends such tokens causes no more fetches than this.
const ASKED: Duration = Duration::from_secs(60);
/// The first pause after a failure. Each failure in a row doubles it, up to [`REFRESH`].
const RETRY: Duration = Duration::from_secs(5);
/// How long keys count that could not be fetched again (as scitokens-cpp has it): a weekend, and a day to mend the issuer.
const STALE: Duration = Duration::from_secs(4 * 24 * 3600);

/// The schedule of one issuer. Times are since any fixed moment, of a clock that never goes back.
#[derive(Debug, Clone, Default)]
pub struct Schedule {
    /// When the keys that count were fetched.
    fetched: Option<Duration>,
    /// When the last attempt ended.
    attempted: Option<Duration>,
    /// Failures since.
    failures: u32,
    /// Whether a token was signed with an unknown key since the last attempt.
    is_asked: bool,
}

impl Schedule {
    /// How long to wait, from `now` on, before the next attempt.
    pub fn wait(&self, now: Duration) -> Duration {
        let Some(attempted) = self.attempted else { return Duration::ZERO };
        let pause = match self.failures {
            0 => REFRESH,
            failures => RETRY.saturating_mul(1 << (failures - 1).min(10)).min(REFRESH),
        };
        let pause = if self.is_asked { pause.min(ASKED) } else { pause };
        attempted.saturating_add(pause).saturating_sub(now)
    }

    /// A token was signed with an unknown key. Returns whether that brings the next attempt forward.
    pub fn ask(&mut self) -> bool {
        !std::mem::replace(&mut self.is_asked, true)
    }

    /// An attempt has ended.
    pub fn attempted(&mut self, now: Duration, has_succeeded: bool) {
        (self.attempted, self.is_asked) = (Some(now), false);
        if has_succeeded {
            (self.fetched, self.failures) = (Some(now), 0);
        } else {
            self.failures = self.failures.saturating_add(1);
        }
    }

    /// Whether the keys of the last fetch still count.
    pub fn counts(&self, now: Duration) -> bool {
        self.fetched.is_some_and(|fetched| now.saturating_sub(fetched) <= STALE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn keys_are_fetched_at_once_then_regularly() {
        let mut schedule = Schedule::default();
        assert_eq!(schedule.wait(7 * SECOND), Duration::ZERO);
        assert!(!schedule.counts(7 * SECOND));
        schedule.attempted(10 * SECOND, true);
        assert_eq!(schedule.wait(10 * SECOND), REFRESH);
        assert_eq!(schedule.wait(300 * SECOND), 310 * SECOND);
        assert!(schedule.counts(10 * SECOND));
    }

    #[test]
    fn unknown_keys_cause_one_fetch_a_minute() {
        let mut schedule = Schedule::default();
        schedule.attempted(Duration::ZERO, true);
        assert!(schedule.ask() && !schedule.ask());
        assert_eq!(schedule.wait(5 * SECOND), 55 * SECOND);
        assert_eq!(schedule.wait(100 * SECOND), Duration::ZERO);
        schedule.attempted(100 * SECOND, true);
        assert_eq!(schedule.wait(100 * SECOND), REFRESH);
    }

    #[test]
    fn failures_are_repeated_less_and_less_often_and_keys_count_for_four_days() {
        let mut schedule = Schedule::default();
        schedule.attempted(Duration::ZERO, true);
        let mut now = REFRESH;
        let mut pauses = Vec::new();
        for _ in 0..9 {
            schedule.attempted(now, false);
            pauses.push(schedule.wait(now).as_secs());
            now += schedule.wait(now);
        }
        assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 320, 600, 600]);
        assert!(schedule.counts(STALE) && !schedule.counts(STALE + SECOND));
        schedule.attempted(STALE + 2 * SECOND, true);
        assert!(schedule.counts(STALE + 3 * SECOND));
    }
}
