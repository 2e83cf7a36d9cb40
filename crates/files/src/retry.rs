//! Retry policy.

use std::time::Duration;

/// Retry policy: number of attempts, and pauses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    /// Attempts in total.
    pub attempts: u32,
    /// Pause before the second attempt. It doubles before each further one.
    pub first: Duration,
    /// Longest pause.
    pub most: Duration,
}

impl Default for Retry {
    /// Five attempts in about fifteen seconds, longer than the restart of a server.
    fn default() -> Self {
        Self { attempts: 5, first: Duration::from_secs(1), most: Duration::from_secs(30) }
    }
}

impl Retry {
    /// The pause after attempt number `attempt`.
    pub fn wait(&self, attempt: u32) -> Duration {
        let factor = 1u32.checked_shl(attempt.saturating_sub(1)).unwrap_or(u32::MAX);
        self.first.saturating_mul(factor).min(self.most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_a_bound() {
        let waits: Vec<_> = [1, 2, 3, 5, 6, 40].map(|n| Retry::default().wait(n).as_secs()).into();
        assert_eq!(waits, [1, 2, 4, 16, 30, 30]);
    }
}
