//! How transfers that are under way are asked to end.

use std::sync::Arc;
use tokio::sync::watch;

/// Asks transfers to end with what they have made safe, so that another attempt goes on from there. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    asked: watch::Sender<bool>,
    /// How many transfers are under way.
    under_way: watch::Sender<usize>,
}

impl Stop {
    /// Asks all that have it.
    pub fn ask(&self) {
        self.0.asked.send_replace(true);
    }

    /// Whether they were asked.
    pub fn is_asked(&self) -> bool {
        *self.0.asked.borrow()
    }

    /// Returns once they are.
    pub async fn asked(&self) {
        // What sends is held here, so that it does not go before.
        let _ = self.0.asked.subscribe().wait_for(|asked| *asked).await;
    }

    /// Returns as soon as no transfer that has it is under way.
    pub async fn over(&self) {
        let _ = self.0.under_way.subscribe().wait_for(|count| *count == 0).await;
    }

    /// Notes that one is under way, until what this gives is dropped.
    pub(super) fn begin(&self) -> UnderWay<'_> {
        self.0.under_way.send_modify(|count| *count += 1);
        UnderWay(&self.0.under_way)
    }
}

/// A transfer that is under way.
pub(super) struct UnderWay<'a>(&'a watch::Sender<usize>);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn all_that_have_it_are_asked_and_waited_for() {
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
