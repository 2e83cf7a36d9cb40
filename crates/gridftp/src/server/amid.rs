//! What is let end when the server ends: files that clients have begun. Once the bytes of one have come, its client still asks for its
//! checksum, sets its time and gives it its name, and may use several control connections for it.

use super::count::{Counted, Counts};
use super::serve::Ending;
use super::session::task::{Account, Task};
use std::net::IpAddr;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

/// How long a client has for his next command about such a file, beside the time that it takes to come.
const GRACE: Duration = Duration::from_secs(1);

/// How many bytes a client's disk writes in a second at least, before he asks for more about a file that he got.
const WRITES: u64 = 100_000_000;

/// How often is looked whether something is under way.
const LOOK: Duration = Duration::from_millis(100);

/// A user, and the host that he is at.
type Whose = (String, IpAddr);

/// What is under way about files.
pub(super) type Moving = Counts<Whose>;

/// What one control connection has to do with them.
#[derive(Debug, Clone)]
pub(super) struct Amid {
    moving: Moving,
    peer: IpAddr,
    whose: Option<Whose>,
    /// When something was last done about a file, if anything was.
    last: Option<Instant>,
    /// How long he may be busy with what he got last.
    writes: Duration,
}

impl Amid {
    /// One with a client at `peer`, of a server on which these are under way.
    pub(super) fn new(moving: Moving, peer: IpAddr) -> Self {
        Self { moving, peer, whose: None, last: None, writes: Duration::ZERO }
    }

    /// Notes that `account` has `task` carried out, which goes on until what is returned is dropped.
    pub(super) fn begins(&mut self, account: Option<&Account>, task: &Task) -> Option<Counted<Whose>> {
        if !task.is_of_files() {
            return None;
        }
        self.whose = account.map(|account| (account.name.clone(), self.peer));
        (self.last, self.writes) = (Some(Instant::now()), Duration::ZERO);
        // Sums count as transfers do: one of a long file takes as long.
        self.moving.add(self.whose.clone()?, usize::MAX)
    }

    /// Notes that the client was sent so many bytes of a file.
    pub(super) fn sent(&mut self, bytes: u64) {
        self.writes = Duration::from_secs(bytes / WRITES);
    }

    /// Notes that a command was answered. Who only says that he is there asks for nothing about a file.
    pub(super) fn answered(&mut self, line: &[u8]) {
        if self.last.is_some() && !line.trim_ascii().eq_ignore_ascii_case(b"NOOP") {
            self.last = Some(Instant::now());
        }
    }

    /// Returns once nothing more is to be expected that belongs to a file which has been begun: when the client has done nothing about
    /// any here, or lets more than a second pass after what he did here and after the last of his transfers, and the time that it may take
    /// him to write what he got. `trip` is how long an answer takes to him and his next command back.
    pub(super) async fn is_over(&self, trip: Duration) {
        let Some(mut last) = self.last else { return };
        loop {
            if self.whose.as_ref().is_some_and(|whose| self.moving.has(whose)) {
                last = Instant::now();
            }
            if last.elapsed() >= GRACE + trip + self.writes {
                return;
            }
            sleep(LOOK).await;
        }
    }
}

/// Returns when the server is told to end; if it has been, when nothing more of what is `amid` is to be expected, or it ends at once.
pub(super) async fn over(ending: watch::Receiver<Ending>, amid: Option<(Amid, Duration)>) {
    let Some((amid, trip)) = amid else { return told(ending, Ending::Soon).await };
    tokio::select! {
        () = told(ending, Ending::Now) => {}
        () = amid.is_over(trip) => {}
    }
}

/// Returns when the server is told to end, and as soon as `least` says.
pub(super) async fn told(mut ending: watch::Receiver<Ending>, least: Ending) {
    // Whoever could say so has ended.
    let _ = ending.wait_for(|ending| *ending == least || *ending == Ending::Now).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::session::task::FileTask;
    use phoebus_files::key::Key;

    #[tokio::test(start_paused = true)]
    async fn a_client_has_time_to_write_what_he_got() {
        let (moving, peer) = (Moving::default(), IpAddr::from([192, 0, 2, 1]));
        let mut amid = Amid::new(moving, peer);
        let begin = Instant::now();
        amid.is_over(Duration::ZERO).await;
        assert_eq!(begin.elapsed(), Duration::ZERO, "nothing was begun");
        let account = Account { name: "jane".into(), read_only: false, third_party: false, keyed_third_party: false };
        let task = Task::File(FileTask::Modified(Key::ROOT));
        for (bytes, seconds) in [(0, 1), (WRITES - 1, 1), (20 * WRITES, 21)] {
            drop(amid.begins(Some(&account), &task));
            amid.sent(bytes);
            let begin = Instant::now();
            amid.is_over(Duration::ZERO).await;
            assert_eq!(begin.elapsed().as_secs(), seconds);
        }
    }
}
