//! Which congestion control keeps a connection at its rate (S17), where the gateway chooses. Pure: counters and times
//! are arguments.
//!
//! Such connections begin with bbr, which finds a rate at once and tolerates loss, but never quite holds the rate. It
//! drops below it to check whether the path is shorter than estimated (for 200 ms every 10 s, and for one round trip in
//! eight), and pacing keeps it from catching up. Where nothing is lost, cubic is limited by the rate alone, and holds
//! it.

use phoebus_net::{CongestionControl, Stats};
use std::time::Duration;

/// The choice for one connection.
#[derive(Debug, Clone)]
pub(super) struct Steady {
    before: Option<(u64, u64)>,
    /// How long it has used its rate without loss.
    clean: Duration,
    /// How long it must do so before cubic is trusted to hold the rate.
    needed: Duration,
    cubic: bool,
}

impl Steady {
    /// A connection that sends this fraction of its share is limited by nothing else. The counters exclude headers; the
    /// share includes them.
    const FULL: f64 = 0.85;
    /// Some round trips of a long path.
    const NEEDED: Duration = Duration::from_secs(1);
    /// The upper limit of that time. It doubles after each loss under cubic, so that rare loss does not cause constant
    /// changes.
    const NEEDED_MOST: Duration = Duration::from_secs(64);

    /// A connection under bbr.
    pub(super) fn new() -> Self {
        Self { before: None, clean: Duration::ZERO, needed: Self::NEEDED, cubic: false }
    }

    /// Whether it uses cubic instead of bbr.
    pub(super) fn is_cubic(&self) -> bool {
        self.cubic
    }

    /// Examines the connection's counters, `passed` after the last time, under `share` in bits per second. Returns the
    /// congestion control to change to, if any.
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
        // A connection that sends less is limited by something else or starts again; bbr recovers faster.
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

    /// Simulates `looks` checks of a connection that sends `part` of its rate and loses `lost` segments per check.
    /// Returns the changes.
    fn pass(steady: &mut Steady, stats: &mut Stats, part: f64, lost: u64, looks: u32) -> Vec<CongestionControl> {
        let told = (0..looks).filter_map(|_| {
            stats.bytes_sent += (RATE / 8.0 * part * LOOK.as_secs_f64()) as u64;
            stats.retransmits += lost;
            steady.look(stats, LOOK, RATE)
        });
        told.collect()
    }

    #[test]
    fn connection_changes_to_cubic_without_loss() {
        let (mut steady, mut stats) = (Steady::new(), Stats::default());
        assert_eq!(pass(&mut steady, &mut stats, 0.94, 0, 4), []);
        assert_eq!(pass(&mut steady, &mut stats, 0.94, 0, 100), [CongestionControl::Cubic]);
        assert!(steady.is_cubic());
        // After a pause, the program starts again under bbr.
        assert_eq!(pass(&mut steady, &mut stats, 0.1, 0, 10), [CongestionControl::Bbr]);
        assert_eq!(pass(&mut steady, &mut stats, 0.94, 0, 10), [CongestionControl::Cubic]);
    }

    #[test]
    fn bbr_stays_under_loss_or_below_the_rate() {
        let (mut steady, mut stats) = (Steady::new(), Stats::default());
        assert_eq!(pass(&mut steady, &mut stats, 0.94, 1, 100), []);
        assert_eq!(pass(&mut steady, &mut stats, 0.5, 0, 100), []);
    }

    #[test]
    fn rare_loss_doubles_the_wait_for_cubic() {
        let (mut steady, mut stats) = (Steady::new(), Stats::default());
        let mut changes = 0;
        for _ in 0..60 {
            changes += pass(&mut steady, &mut stats, 0.94, 1, 1).len();
            changes += pass(&mut steady, &mut stats, 0.94, 0, 39).len();
        }
        // With a loss every ten seconds for ten minutes, it changes to cubic after 1, 2, 4 and 8 s, and back each time;
        // then no more.
        assert!((2..=8).contains(&changes), "{changes}");
        assert!(!steady.is_cubic());
        // No loss for more than a minute.
        assert_eq!(pass(&mut steady, &mut stats, 0.94, 0, 300), [CongestionControl::Cubic]);
        assert_eq!(pass(&mut steady, &mut stats, 0.94, 0, 300), []);
        assert_eq!(steady.needed, Steady::NEEDED);
    }
}
