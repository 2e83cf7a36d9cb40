//! When what failed is tried again.

use std::time::Duration;

/// When what failed is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    /// How often in all.
    pub attempts: u32,
    /// How long is waited before the second attempt; twice as long before each other one.
    pub first: Duration,
    /// How long is waited at most.
    pub most: Duration,
}

impl Default for Retry {
    /// Five attempts in some fifteen seconds: longer than a server takes to be started again.
    fn default() -> Self {
        Self { attempts: 5, first: Duration::from_secs(1), most: Duration::from_secs(30) }
    }
}

impl Retry {
    /// How long is waited after attempt number `attempt`.
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
