//! Time slices: the work of a connection, done by a blocking thread, a slice at a time.
//!
//! The kernel moves bytes between a plain TCP connection and a file. A thread that blocks with it needs no wake-ups of
//! tasks, and no bytes in user space, as long as the peer keeps up. A thread that finds nothing to do leaves, and the
//! runtime waits. During its slice, the thread has the identity of the user whose files it uses.

use super::connection::Loose;
use super::error::Error;
use phoebus_files::local::Identity;
use phoebus_net::bulk::Bulk;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// Default length of a slice. Afterwards progress is reported, and waiting connections get a thread.
const TURN: Duration = Duration::from_millis(20);

/// Default number of threads: far more than a network needs, and far fewer than the runtime's pool has (512), in which
/// disks are also waited for.
const THREADS: usize = 64;

/// Threads for plain TCP connections. Clones share them. The default is one set for the process.
#[derive(Debug, Clone)]
pub struct IoThreads {
    free: Arc<Semaphore>,
    turn: Duration,
}

impl IoThreads {
    /// At most `threads` threads at a time (64 by default, at least one), with slices of `turn` while others wait (20 ms
    /// by default).
    pub fn new(threads: usize, turn: Duration) -> Self {
        Self { free: Arc::new(Semaphore::new(threads.clamp(1, Semaphore::MAX_PERMITS))), turn }
    }
}

impl Default for IoThreads {
    fn default() -> Self {
        static PROCESS: LazyLock<IoThreads> = LazyLock::new(|| IoThreads::new(THREADS, TURN));
        PROCESS.clone()
    }
}

/// The work of a connection.
pub(super) trait Work: Send + 'static {
    /// The user as whom to work, if not the process's. Files are always used as their user
    /// ([`UserFile::act`](phoebus_files::local::UserFile::act)), which costs less on a thread that has that identity.
    fn user(&self) -> Option<Arc<Identity>>;

    /// Does what [`Step::Prepare`] asked for, as the process's user.
    ///
    /// # Errors
    /// The work has failed.
    fn prepare(&mut self) -> Result<Step, Error>;

    /// Does a part of the work. A part that stops for want of data resumes in the next step.
    ///
    /// # Errors
    /// `WouldBlock` if the connection is not ready; otherwise the work has failed.
    fn step(&mut self, bulk: &Bulk) -> Result<Step, Error>;
}

/// The result of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// There is more to do.
    More,
    /// There is nothing to send until more is given.
    Starved,
    /// Something needs the process's own identity ([`Work::prepare`]): starting threads, which would keep the user's,
    /// or resources that users have few of.
    Prepare,
    /// All is done.
    Done,
}

/// Why a slice ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    /// Its time is over.
    Over,
    /// The connection is not ready.
    Waits,
    /// There is nothing to send yet.
    Starved,
    /// All is done.
    Done,
}

/// Does `work` with `connection` for one slice. Dropping the future resets the connection within a moment.
///
/// # Errors
/// Those of the work. The connection is then reset.
pub(super) async fn turn<W: Work>(
    connection: Loose,
    mut work: W,
    io_threads: &IoThreads,
) -> Result<(Loose, W, Why), Error> {
    // The semaphore is never closed.
    let permit = io_threads.free.clone().acquire_owned().await.ok();
    let turn = io_threads.turn;
    let guard = Guard::default();
    let given_up = guard.0.clone();
    let done = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        let until = Instant::now() + turn;
        loop {
            let user = work.user();
            let mut steps = || steps(&mut work, &connection.bulk, &given_up, until);
            let step = match user {
                Some(user) => user.act(steps).map_err(Error::Broken)?,
                None => steps(),
            };
            let why = match step {
                Ok(Step::Prepare) => match work.prepare()? {
                    Step::Starved => Why::Starved,
                    Step::Done => Why::Done,
                    Step::More | Step::Prepare => continue,
                },
                Ok(Step::More) => Why::Over,
                Ok(Step::Starved) => Why::Starved,
                Ok(Step::Done) => Why::Done,
                Err(Error::Broken(error)) if error.kind() == io::ErrorKind::WouldBlock => Why::Waits,
                Err(error) => return Err(error),
            };
            return Ok((connection, work, why));
        }
    });
    done.await.unwrap_or(Err(Error::GivenUp))
}

/// Runs steps until the slice is over.
fn steps<W: Work>(work: &mut W, bulk: &Bulk, given_up: &AtomicBool, until: Instant) -> Result<Step, Error> {
    loop {
        if given_up.load(Ordering::Relaxed) {
            return Err(Error::GivenUp);
        }
        match work.step(bulk) {
            Ok(Step::More) if Instant::now() < until => {}
            other => return other,
        }
    }
}

/// Tells the thread that nobody waits for it.
#[derive(Default)]
struct Guard(Arc<AtomicBool>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
