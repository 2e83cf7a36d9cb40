//! Which congestion control keeps a connection at its rate (S17), where the choice is the gateway's. Pure: what was counted and
//! times are arguments.
//!
//! bbr, which such connections begin with, finds a rate at once and bears loss, but never quite holds it: it goes below, to see
//! whether the path is shorter than it believes (for 200 ms every 10 s, and for a round trip in eight), and pacing keeps it from
//! going above to make up for that. Where nothing is lost, the rate is all that bounds a connection under cubic, and it is held.

use phoebus_net::{CongestionControl, Stats};
use std::time::Duration;

/// Looks at one connection.
#[derive(Debug, Clone)]
pub(super) struct Steady {
    before: Option<(u64, u64)>,
    /// For how long it has used its rate without loss.
    clean: Duration,
    /// For how long it has to, before cubic is believed to hold it.
    needed: Duration,
    cubic: bool,
}

impl Steady {
    /// A connection that sends this much of its share is held up by nothing else. Headers are not counted, and the share has them.
    const FULL: f64 = 0.85;
    /// Some round trips of a long path.
    const NEEDED: Duration = Duration::from_secs(1);
    /// After a loss under cubic twice as long is needed, up to this: where loss is rare, it does not come and go all the time.
    const NEEDED_MOST: Duration = Duration::from_secs(64);

    /// A connection under bbr.
    pub(super) fn new() -> Self {
        Self { before: None, clean: Duration::ZERO, needed: Self::NEEDED, cubic: false }
    }

    /// Whether it is not under what it began with.
    pub(super) fn is_cubic(&self) -> bool {
        self.cubic
    }

    /// Looks at what the connection has counted, `passed` after the last look, under `share` in bits per second; returns what it is
    /// to be controlled by from now on, if that is something else.
    pub(super) fn look(&mut self, stats: &Stats, passed: Duration, share: f64) -> Option<CongestionControl> {
        let before = self.before.replace((stats.bytes_sent, stats.retransmits));
        let (sent, retransmits) = before.filter(|_| !passed.is_zero())?;
        let lost = stats.retransmits > retransmits;
        let used = stats.bytes_sent.saturating_sub(sent) as f64 * 8.0 / passed.as_secs_f64();
        let clean = !lost && used >= share * Self::FULL;
        self.clean = if clean { self.clean + passed } else { Duration::ZERO };
        if lost && self.cubic {
            self.needed = (self.needed * 2).min(Self::NEEDED_MOST);
        } else if self.clean >= Self::NEEDED_MOST {
            self.needed = Self::NEEDED;
        }
        // One that sends less has something else to fear than the rate, or begins again: bbr is quicker at that.
        let cubic = if self.cubic { clean } else { self.clean >= self.needed };
        if cubic == self.cubic {
            return None;
        }
        (self.cubic, self.clean) = (cubic, Duration::ZERO);
        Some(if cubic { CongestionControl::Cubic } else { CongestionControl::Bbr })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOK: Duration = Duration::from_millis(250);
    const RATE: f64 = 100e6;

    /// A connection at this part of its rate, whose segments are lost or not, for so many looks; what it was told.
    fn pass(steady: &mut Steady, stats: &mut Stats, part: f64, lost: u64, looks: u32) -> Vec<CongestionControl> {
        let told = (0..looks).filter_map(|_| {
            stats.bytes_sent += (RATE / 8.0 * part * LOOK.as_secs_f64()) as u64;
            stats.retransmits += lost;
            steady.look(stats, LOOK, RATE)
        });
        told.collect()
    }

    #[test]
    fn cubic_holds_a_rate_that_nothing_is_lost_of() {
        let (mut steady, mut stats) = (Steady::new(), Stats::default());
        assert_eq!(pass(&mut steady, &mut stats, 0.94, 0, 4), []);
        assert_eq!(pass(&mut steady, &mut stats, 0.94, 0, 100), [CongestionControl::Cubic]);
        assert!(steady.is_cubic());
        // A program that pauses begins again under bbr.
        assert_eq!(pass(&mut steady, &mut stats, 0.1, 0, 10), [CongestionControl::Bbr]);
        assert_eq!(pass(&mut steady, &mut stats, 0.94, 0, 10), [CongestionControl::Cubic]);
    }

    #[test]
    fn bbr_stays_where_segments_are_lost_or_the_rate_is_not_used() {
        let (mut steady, mut stats) = (Steady::new(), Stats::default());
        assert_eq!(pass(&mut steady, &mut stats, 0.94, 1, 100), []);
        assert_eq!(pass(&mut steady, &mut stats, 0.5, 0, 100), []);
    }

    #[test]
    fn rare_loss_makes_it_wait_longer_and_longer() {
        let (mut steady, mut stats) = (Steady::new(), Stats::default());
        let mut changes = 0;
        for _ in 0..60 {
            changes += pass(&mut steady, &mut stats, 0.94, 1, 1).len();
            changes += pass(&mut steady, &mut stats, 0.94, 0, 39).len();
        }
        // A loss every ten seconds, for ten minutes: after 1, 2, 4 and 8 s to cubic and back, and then no more.
        assert!((2..=8).contains(&changes), "{changes}");
        assert!(!steady.is_cubic());
        // For a minute and more nothing is lost.
        assert_eq!(pass(&mut steady, &mut stats, 0.94, 0, 300), [CongestionControl::Cubic]);
        assert_eq!(pass(&mut steady, &mut stats, 0.94, 0, 300), []);
        assert_eq!(steady.needed, Steady::NEEDED);
    }
}
