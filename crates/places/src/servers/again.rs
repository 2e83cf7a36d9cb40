//! Retries of connections to servers.

use phoebus_files::{Error, Retry};
use std::fmt;
use std::time::Duration;

/// The retry policy, and the receiver of failed attempts.
#[derive(Default)]
pub(crate) struct RetryPolicy {
    retry: Option<Retry>,
    tell: Option<Box<OnRetry>>,
}

/// Called with the reason and the pause.
type OnRetry = dyn Fn(&Error, Duration) + Send + Sync;

impl fmt::Debug for RetryPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RetryPolicy").field(&self.retry).finish()
    }
}

impl RetryPolicy {
    /// With the policy `retry`. `tell` receives each failure.
    pub(crate) fn new(retry: Retry, tell: impl Fn(&Error, Duration) + Send + Sync + 'static) -> Self {
        Self { retry: Some(retry), tell: Some(Box::new(tell)) }
    }

    /// The pause before the next attempt, after `attempt` attempts of which the last failed with `error`. `None` if
    /// another one is pointless.
    pub(super) fn wait(&self, attempt: u32, error: &Error) -> Option<Duration> {
        let retry = self.retry.filter(|retry| attempt < retry.attempts)?;
        // An unknown name stays unknown a second later.
        let may = error.may_pass() && !error.to_string().contains("not known");
        may.then(|| retry.wait(attempt)).inspect(|wait| {
            if let Some(tell) = &self.tell {
                tell(error, *wait);
            }
        })
    }
}
