//! The end of control connections that lead through gateways. A session has ended well only where its client took the server's last
//! answer and its end. A task does so, and whoever ends the process waits for such tasks a while ([`farewells`]).

use std::sync::LazyLock;
use std::time::Duration;
use tokio::sync::watch;

/// How long a server may take to answer QUIT: some round trips of the longest path.
pub(super) const ANSWER: Duration = Duration::from_secs(2);

/// How many connections there are.
static OPEN: LazyLock<watch::Sender<usize>> = LazyLock::new(|| watch::Sender::new(0));

/// As long as it lives, a connection has not ended.
#[derive(Debug)]
pub(super) struct Farewell(());

impl Farewell {
    pub(super) fn begin() -> Self {
        OPEN.send_modify(|count| *count += 1);
        Self(())
    }
}

impl Drop for Farewell {
    fn drop(&mut self) {
        OPEN.send_modify(|count| *count -= 1);
    }
}

/// Waits until the control connections through gateways of stores that were dropped have ended, though not long for a server that does
/// not answer. Before the runtime ends: otherwise the gateways see them cut.
pub async fn farewells() {
    let mut open = OPEN.subscribe();
    // Late is as good as it gets.
    let _ = tokio::time::timeout(ANSWER, open.wait_for(|count| *count == 0)).await;
}
