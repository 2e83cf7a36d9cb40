//! Asks running transfers to stop.

use std::sync::Arc;
use tokio::sync::watch;

/// Asks transfers to stop with what they have synced, so that they can be resumed. Clones share the request.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    asked: watch::Sender<bool>,
    /// Number of running transfers.
    under_way: watch::Sender<usize>,
}

impl Stop {
    /// Makes the request.
    pub fn ask(&self) {
        self.0.asked.send_replace(true);
    }

    /// Whether it was made.
    pub fn is_asked(&self) -> bool {
        *self.0.asked.borrow()
    }

    /// Waits for the request.
    pub async fn asked(&self) {
        // Holds the sender alive.
        let _ = self.0.asked.subscribe().wait_for(|asked| *asked).await;
    }

    /// Waits until no transfer with this request runs.
    pub async fn over(&self) {
        let _ = self.0.under_way.subscribe().wait_for(|count| *count == 0).await;
    }

    /// Counts a transfer until the result is dropped.
    pub(crate) fn begin(&self) -> UnderWay<'_> {
        self.0.under_way.send_modify(|count| *count += 1);
        UnderWay(&self.0.under_way)
    }
}

/// A running transfer.
pub(crate) struct UnderWay<'a>(&'a watch::Sender<usize>);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_program_with_the_file_is_asked() {
        let (stop, other) = (Stop::default(), Stop::default());
        let transfer = tokio::spawn({
            let stop = stop.clone();
            async move {
                let _under_way = stop.begin();
                stop.asked().await;
            }
        });
        tokio::task::yield_now().await;
        assert!(!stop.is_asked());
        stop.ask();
        transfer.await.unwrap();
        stop.over().await;
        stop.asked().await;
        assert!(stop.is_asked() && !other.is_asked());
        other.over().await;
    }
}
