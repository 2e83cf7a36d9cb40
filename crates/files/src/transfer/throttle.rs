//! A rate limit for all transfers together.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// A rate limit. Clones share it.
#[derive(Debug, Clone)]
pub struct Throttle {
    rate: u64,
    /// Time at which the bytes permitted so far will have passed at the rate.
    until: Arc<Mutex<Option<Instant>>>,
}

impl Throttle {
    /// `rate` bytes per second, at least one.
    pub fn new(rate: u64) -> Self {
        Self { rate: rate.max(1), until: Arc::default() }
    }

    /// Waits until `bytes` more may pass, after all earlier ones. Unused time is not saved up.
    pub async fn wait_for(&self, bytes: u64) {
        let now = Instant::now();
        let turn = {
            let mut until = self.until.lock().unwrap_or_else(PoisonError::into_inner);
            let turn = until.filter(|&until| until > now).unwrap_or(now);
            *until = Some(turn + Duration::from_secs_f64(bytes as f64 / self.rate as f64));
            turn
        };
        if turn > now {
            sleep_until(turn).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_is_let_through_keeps_to_the_rate() {
        let (throttle, begin) = (Throttle::new(1000), Instant::now());
        for n in 0..10 {
            throttle.wait_for(500).await;
            assert_eq!(begin.elapsed(), Duration::from_millis(500 * n));
        }
        tokio::time::advance(Duration::from_secs(60)).await;
        let begin = Instant::now();
        throttle.wait_for(500).await;
        throttle.wait_for(500).await;
        assert_eq!(begin.elapsed(), Duration::from_millis(500), "idle time was saved up");
    }
}
