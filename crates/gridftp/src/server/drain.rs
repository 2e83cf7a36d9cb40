//! Which sessions a draining server waits for: those whose clients have begun a file. After the bytes, a client still
//! asks for the checksum, sets the time and renames the file, possibly over several control connections.

use super::session::task::Task;
use super::shutdown::Shutdown;
use phoebus_accounts::Account;
use phoebus_accounts::count::{Counted, Counts};
use std::net::IpAddr;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

/// Longest pause before the next command about such a file, in addition to the round trip.
const GRACE: Duration = Duration::from_secs(1);

/// Slowest rate, in bytes per second, at which a client is expected to write a file that it got before its next
/// command.
const WRITES: u64 = 100_000_000;

/// Interval between checks whether something is in progress.
const CHECK: Duration = Duration::from_millis(100);

/// A user at a host.
type Owner = (String, IpAddr);

/// Tasks about files in progress, by owner.
pub(super) type FileTasks = Counts<Owner>;

/// The part of one control connection in them.
#[derive(Debug, Clone)]
pub(super) struct Drain {
    tasks: FileTasks,
    peer: IpAddr,
    owner: Option<Owner>,
    /// Time of the last task about a file.
    last: Option<Instant>,
    /// Time that the client may need to write the file that it got last.
    write_time: Duration,
}

impl Drain {
    /// Starts with no task, for a client at `peer`.
    pub(super) fn new(tasks: FileTasks, peer: IpAddr) -> Self {
        Self { tasks, peer, owner: None, last: None, write_time: Duration::ZERO }
    }

    /// Records that `task` of `account` begins. It is in progress until the result is dropped.
    pub(super) fn begins(&mut self, account: Option<&Account>, task: &Task) -> Option<Counted<Owner>> {
        if !task.is_of_files() {
            return None;
        }
        self.owner = account.map(|account| (account.name.clone(), self.peer));
        (self.last, self.write_time) = (Some(Instant::now()), Duration::ZERO);
        // Checksums count as transfers do: that of a long file takes as long.
        self.tasks.add(self.owner.clone()?, usize::MAX)
    }

    /// Records that the client was sent `bytes` of a file.
    pub(super) fn sent(&mut self, bytes: u64) {
        self.write_time = Duration::from_secs(bytes / WRITES);
    }

    /// Records the reply to the command `line`. NOOP is no command about a file.
    pub(super) fn answered(&mut self, line: &[u8]) {
        if self.last.is_some() && !line.trim_ascii().eq_ignore_ascii_case(b"NOOP") {
            self.last = Some(Instant::now());
        }
    }

    /// Returns once no further command about a begun file is expected: at once if there was no task about a file here;
    /// otherwise [`GRACE`], a round trip and the time to write what was sent after the last task here or of this owner
    /// elsewhere.
    pub(super) async fn wait_until_over(&self, round_trip: Duration) {
        let Some(mut last) = self.last else { return };
        loop {
            if self.owner.as_ref().is_some_and(|owner| self.tasks.has(owner)) {
                last = Instant::now();
            }
            if last.elapsed() >= GRACE + round_trip + self.write_time {
                return;
            }
            sleep(CHECK).await;
        }
    }
}

/// Returns when the shutdown begins; or, with `drain`, once nothing more is expected of that session, or the server
/// stops at once.
pub(super) async fn over(shutdown: watch::Receiver<Shutdown>, drain: Option<(Drain, Duration)>) {
    let Some((drain, round_trip)) = drain else { return reached(shutdown, Shutdown::Draining).await };
    tokio::select! {
        () = reached(shutdown, Shutdown::Now) => {}
        () = drain.wait_until_over(round_trip) => {}
    }
}

/// Returns when the shutdown has come to `stage` or further.
pub(super) async fn reached(mut shutdown: watch::Receiver<Shutdown>, stage: Shutdown) {
    // An error means that the server is gone.
    let _ = shutdown.wait_for(|now| *now == stage || *now == Shutdown::Now).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::session::task::FileTask;
    use phoebus_files::key::Key;

    #[tokio::test(start_paused = true)]
    async fn the_client_has_time_to_write_what_it_got() {
        let (tasks, peer) = (FileTasks::default(), IpAddr::from([192, 0, 2, 1]));
        let mut drain = Drain::new(tasks, peer);
        let begin = Instant::now();
        drain.wait_until_over(Duration::ZERO).await;
        assert_eq!(begin.elapsed(), Duration::ZERO, "nothing was begun");
        let account = Account { name: "jane".into(), read_only: false, third_party: false, keyed_third_party: false };
        let task = Task::File(FileTask::Modified(Key::ROOT));
        for (bytes, seconds) in [(0, 1), (WRITES - 1, 1), (20 * WRITES, 21)] {
            drop(drain.begins(Some(&account), &task));
            drain.sent(bytes);
            let begin = Instant::now();
            drain.wait_until_over(Duration::ZERO).await;
            assert_eq!(begin.elapsed().as_secs(), seconds);
        }
    }
}
