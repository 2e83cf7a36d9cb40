//! Ends control connections through gateways. A session ends well only if its client has received the server's last
//! reply and end. A task does so, and [`farewells`] lets the process wait for such tasks.

use std::sync::LazyLock;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::timeout;

/// Longest wait for the reply to QUIT if all earlier replies have arrived. Busy gateways have taken seconds for a few
/// bytes.
pub(super) const ANSWER: Duration = Duration::from_secs(20);

/// Longest wait if a reply is missing. Also the longest time until a connection is told to end.
pub(super) const LATE: Duration = Duration::from_secs(2);

/// The connections of this process.
static ALL: LazyLock<Farewells> = LazyLock::new(Farewells::default);

/// Connections that have not ended.
#[derive(Debug, Clone, Default)]
struct Farewells(watch::Sender<Count>);

#[derive(Debug, Default)]
struct Count {
    open: usize,
    /// Of these, the number that are ending.
    leaving: usize,
}

/// Counts a connection as long as it lives.
#[derive(Debug)]
pub(super) struct Farewell {
    of: Farewells,
    leaves: bool,
}

impl Farewell {
    pub(super) fn begin() -> Self {
        ALL.begin()
    }

    /// Sends QUIT and waits for the end, at most `limit`. Returns whether the connection has ended.
    pub(super) async fn leave<E>(&mut self, limit: Duration, leave: impl Future<Output = Result<(), E>>) -> bool {
        if !self.leaves {
            self.leaves = true;
            self.of.0.send_modify(|count| count.leaving += 1);
        }
        matches!(timeout(limit, leave).await, Ok(Ok(())))
    }
}

impl Drop for Farewell {
    fn drop(&mut self) {
        self.of.0.send_modify(|count| {
            count.open -= 1;
            count.leaving -= usize::from(self.leaves);
        });
    }
}

impl Farewells {
    fn begin(&self) -> Farewell {
        self.0.send_modify(|count| count.open += 1);
        Farewell { of: self.clone(), leaves: false }
    }

    async fn over(&self) {
        let mut count = self.0.subscribe();
        // The longer limit applies.
        let _ = timeout(LATE, count.wait_for(|count| count.open == 0)).await;
        let _ = timeout(ANSWER, count.wait_for(|count| count.leaving == 0)).await;
    }
}

/// Waits until control connections of dropped stores have ended at the gateways, within limits. To be called before the
/// runtime ends; otherwise gateways see the sessions cut.
pub async fn farewells() {
    ALL.over().await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;
    use std::future::pending;
    use tokio::time::{Instant, sleep};

    type Left = Result<(), Infallible>;

    #[tokio::test(start_paused = true)]
    async fn a_server_that_answers_late_is_waited_for() {
        let all = Farewells::default();
        let mut farewell = all.begin();
        let left = tokio::spawn(async move {
            let answer = async {
                sleep(Duration::from_secs(10)).await;
                Left::Ok(())
            };
            farewell.leave(ANSWER, answer).await
        });
        all.over().await;
        assert!(left.is_finished() && left.await.unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_does_not_answer_is_not_waited_for_without_an_end() {
        let (all, begun) = (Farewells::default(), Instant::now());
        let mut silent = all.begin();
        let left = tokio::spawn(async move { silent.leave(ANSWER, pending::<Left>()).await });
        all.over().await;
        assert_eq!((begun.elapsed().as_secs(), left.await.unwrap()), (ANSWER.as_secs(), false));
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_nobody_ends_is_hardly_waited_for() {
        let (all, begun) = (Farewells::default(), Instant::now());
        let _kept = all.begin();
        all.over().await;
        assert_eq!(begun.elapsed().as_secs(), LATE.as_secs());
    }
}
